package main

import (
	_ "embed"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// helpTexts has a section for each verb, under its name: what its help says after its short text,
// and examples with their output, which are indented by 2. A section "shared" is of several verbs.
//
//go:embed help.txt
var helpTexts string

// shared is the annotation of a verb that names the section that it shares with others.
const shared = "shared"

var examples = regexp.MustCompile(`(?s)(^|\n)  \$ .*`)

// section returns the text and the examples of a section of helpTexts.
func section(name string) (text, example string) {
	_, after, _ := strings.Cut("\n"+helpTexts, "\n# "+name+"\n")
	text, _, _ = strings.Cut(after, "\n# ")
	example = examples.FindString(text)
	return strings.TrimSpace(strings.TrimSuffix(text, example)), strings.Trim(example, "\n")
}

// addHelp sets the long texts and the examples of a command and its verbs.
func addHelp(cmd *cobra.Command) {
	text, example := section(strings.TrimPrefix(cmd.CommandPath(), "pgleases "))
	common, _ := section("shared " + cmd.Annotations[shared])
	cmd.Example = example
	for _, paragraphs := range []string{cmd.Short + ".", text, common} {
		if paragraphs != "" {
			cmd.Long = strings.TrimPrefix(cmd.Long+"\n\n"+paragraphs, "\n\n")
		}
	}
	for _, verb := range cmd.Commands() {
		addHelp(verb)
	}
}

package main

import (
	"fmt"
	"strings"
)

// A part is one part of the table.
type part struct {
	name, title string
	rows        []row
	notes       []string
	curves      []curve
}

// A row is one figure beside its floors or rivals.
type row struct {
	what   string
	figure string
	floors []floor
	goal   string
	met    verdict
}

// A floor is what a figure is measured beside, in the same run.
type floor struct {
	name   string
	figure string
	ratio  string // the row's figure in terms of this one
}

type verdict string

const (
	noGoal  verdict = ""
	met     verdict = "met"
	missed  verdict = "**missed**"
	unknown verdict = "not measured"
)

// judge turns a comparison into a verdict.
func judge(holds bool) verdict {
	if holds {
		return met
	}
	return missed
}

func (p *part) add(r row) { p.rows = append(p.rows, r) }

// skip notes why something could not be measured on this machine.
func (p *part) skip(what, why string) {
	p.add(row{what: what, figure: why, met: unknown})
}

func (p *part) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// table writes the part in Markdown.
func (p *part) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", p.title)
	b.WriteString("| what | measured | beside | ratio | goal | |\n|---|---|---|---|---|---|\n")
	for _, r := range p.rows {
		var besides, ratios []string
		for _, f := range r.floors {
			besides = append(besides, f.name+": "+f.figure)
			ratios = append(ratios, f.ratio)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n",
			r.what, r.figure, strings.Join(besides, "<br>"), strings.Join(ratios, "<br>"), r.goal, r.met)
	}
	for _, note := range p.notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

// Package shell writes names in commands that people copy.
package shell

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

var plain = regexp.MustCompile(`^[\w@%+:,./][\w@%+:,./=-]*$`)

// Word returns a name as one word of a shell, on one line. It quotes the name only if it has to. A
// name with control characters needs bash or the like; other shells read another name, not more.
func Word(name string) string {
	escaped := strconv.Quote(name)
	switch {
	case plain.MatchString(name):
		return name
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "$'" + strings.ReplaceAll(escaped[1:len(escaped)-1], "'", `\047`) + "'"
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

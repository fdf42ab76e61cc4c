// Package wrap adds to errors which call failed, so that the name of the package stands in the text
// once: `pgleases: join lease "orders": closed`.
package wrap

import (
	"fmt"
	"strings"
)

// Names are the names with which texts of errors begin.
var Names = []string{"pgleases", "schedule", "consumer", "dashboard"}

// Errorf is fmt.Errorf. The errors among args lose the name of the package with which they begin,
// unless the new text begins with one of them.
func Errorf(format string, args ...any) error {
	kept := 0
	if strings.HasPrefix(format, "%w") {
		kept = 1
	}
	for i := kept; i < len(args); i++ {
		err, isError := args[i].(error)
		if isError && Named(err) {
			args[i] = nameless{err}
		}
	}
	return fmt.Errorf(format, args...)
}

// Named reports whether the text of an error begins with the name of a package. An error of the
// application that panics at that, such as a nil pointer, does not.
func Named(err error) (is bool) {
	defer func() { _ = recover() }()
	return Text(err) != err.Error()
}

// Bare returns an error without the name of its package. It wraps err.
func Bare(err error) error { return nameless{err} }

// Text returns the text of an error, whose lines do not begin with the name of a package.
func Text(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = trimmed(lines[i])
	}
	return strings.Join(lines, "\n")
}

func trimmed(line string) string {
	for _, name := range Names {
		if rest, found := strings.CutPrefix(line, name+": "); found {
			return trimmed(rest)
		}
	}
	return line
}

// nameless is an error without the name of its package.
type nameless struct{ error }

func (n nameless) Error() string { return Text(n.error) }
func (n nameless) Unwrap() error { return n.error }

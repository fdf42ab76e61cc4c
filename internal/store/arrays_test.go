package store_test

import (
	"fmt"
	"testing"

	. "github.com/pgleases/pgleases/internal/store"
)

func TestArraysAreReadAsTheyStand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text any
		want string
	}{
		{"{}", "[] <nil>"},
		{"{1}", "[1] <nil>"},
		{"{-9223372036854775808,0,9223372036854775807}", "[-9223372036854775808 0 9223372036854775807] <nil>"},
	} {
		var got Numbers
		err := got.Scan(c.text)
		expect(t, fmt.Sprint(got, err), c.want, fmt.Sprint("numbers of ", c.text))
	}
	for _, c := range []struct{ text, want string }{
		{"{}", "[] <nil>"}, {"{t}", "[true] <nil>"}, {"{f,t,f}", "[false true false] <nil>"},
	} {
		var got Flags
		err := got.Scan(c.text)
		expect(t, fmt.Sprint([]bool(got), err), c.want, "flags of "+c.text)
	}
	for _, wrong := range []any{
		nil, "", "{", "1,2", "{1,2", "{1,,2}", "{1,NULL}", "{1,x}", "{9223372036854775808}", 1,
	} {
		var numbers Numbers
		var flags Flags
		if numbers.Scan(wrong) == nil || flags.Scan(wrong) == nil {
			t.Errorf("%v was taken for an array", wrong)
		}
	}
}

package store

import (
	"fmt"
	"strconv"
	"strings"
)

// Arrays with an element for each partition, of which there may be 65,536. They are read in a tenth of the time that pgx takes for
// arrays of any type.
type (
	numbers []int64
	flags   []bool
)

// Scan takes the text of an array of integers.
func (ns *numbers) Scan(text any) error {
	words, n, err := elements(text)
	*ns = make(numbers, 0, n)
	for word := range strings.SplitSeq(words, ",") {
		if n == 0 || err != nil {
			return err
		}
		var number int64
		number, err = strconv.ParseInt(word, 10, 64)
		*ns = append(*ns, number)
	}
	return err
}

// Scan takes the text of an array of booleans.
func (fs *flags) Scan(text any) error {
	words, n, err := elements(text)
	*fs = make(flags, 0, n)
	for word := range strings.SplitSeq(words, ",") {
		if n == 0 || err != nil {
			return err
		}
		if word != "t" && word != "f" {
			err = fmt.Errorf("%q is no boolean", word)
		}
		*fs = append(*fs, word == "t")
	}
	return err
}

// elements returns what stands between the braces of an array, and the number of its elements.
func elements(text any) (words string, n int, err error) {
	words, ok := text.(string)
	if !ok || len(words) < 2 || words[0] != '{' || words[len(words)-1] != '}' {
		return "", 0, fmt.Errorf("%v is no array", text)
	}
	if words = words[1 : len(words)-1]; words != "" {
		n = strings.Count(words, ",") + 1
	}
	return words, n, nil
}

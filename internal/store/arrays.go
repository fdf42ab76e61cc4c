package store

import (
	"fmt"
	"strconv"
	"strings"
)

// Arrays with an element for each partition, up to 65,536. Reading them takes 10 %
// of the time that pgx takes for arrays of any type.
type (
	numbers []int64
	flags   []bool
)

// Scan reads the text of an array of integers.
func (ns *numbers) Scan(text any) (err error) {
	*ns, err = scan(text, func(word string) (int64, error) { return strconv.ParseInt(word, 10, 64) })
	return err
}

// Scan reads the text of an array of booleans.
func (fs *flags) Scan(text any) (err error) {
	*fs, err = scan(text, strconv.ParseBool)
	return err
}

// scan reads the words between the braces of an array.
func scan[T any](text any, read func(word string) (T, error)) ([]T, error) {
	words, ok := text.(string)
	if !ok || len(words) < 2 || words[0] != '{' || words[len(words)-1] != '}' {
		return nil, fmt.Errorf("%v is not an array", text)
	}
	words = words[1 : len(words)-1]
	if words == "" {
		return []T{}, nil
	}
	elements := make([]T, 0, strings.Count(words, ",")+1)
	for word := range strings.SplitSeq(words, ",") {
		element, err := read(word)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
	return elements, nil
}

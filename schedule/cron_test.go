package schedule

import (
	"fmt"
	"strings"
	"testing"
)

// TestFieldsMatchTheirRules parses every text a, a-b, a/s, a-b/s and */s of numbers below 100, in each
// field, and compares the values with the rules in docs/schedule.md.
func TestFieldsMatchTheirRules(t *testing.T) {
	t.Parallel()
	for i, limits := range [5][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}} {
		t.Run(fields[i].name, func(t *testing.T) {
			t.Parallel()
			check := fieldOracle{fields[i], limits[0], limits[1]}.check
			for a := range 100 {
				check(t, fmt.Sprint(a), a, a, 1)
				for s := range 100 {
					check(t, fmt.Sprintf("*/%d", s), limits[0], limits[1], s)
					check(t, fmt.Sprintf("%d/%d", a, s), a, limits[1], s)
				}
				for b := range 100 {
					check(t, fmt.Sprintf("%d-%d", a, b), a, b, 1)
				}
			}
			most := limits[1] + 2 // greater values are refused without a step, so with one too
			for a := range most {
				for b := range most {
					for s := range most {
						check(t, fmt.Sprintf("%d-%d/%d", a, b, s), a, b, s)
					}
				}
			}
		})
	}
}

// A fieldOracle knows what a field's texts mean: it walks around a dial from the first value to the last.
type fieldOracle struct {
	field       field
	least, most int
}

func (o fieldOracle) check(t *testing.T, text string, a, b, s int) {
	got, err := o.field.parse(text)
	values := o.most - o.least + 1
	if o.most == 7 {
		values = 7 // 7 is Sunday too
	}
	valid := o.least <= a && a <= o.most && o.least <= b && b <= o.most && 1 <= s && s <= values
	if valid != (err == nil) {
		t.Fatalf("%q: %v", text, err)
	}
	if !valid {
		return
	}
	distance := b - a
	if distance < 0 {
		distance += values
	}
	var want uint64
	for hop := 0; hop <= distance; hop += s {
		value := a + hop
		for value >= o.least+values {
			value -= values
		}
		want |= 1 << value
	}
	if got != want {
		t.Fatalf("%q means %b, want %b", text, got, want)
	}
}

func TestFieldNamesIgnoreCase(t *testing.T) {
	t.Parallel()
	for i, names := range map[int]string{
		3: "- JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC",
		4: "SUN MON TUE WED THU FRI SAT",
	} {
		for value, name := range strings.Fields(names) {
			if name == "-" {
				continue
			}
			for bits := range 8 { // each letter in both cases
				text := []byte(name)
				for letter := range text {
					if bits>>letter&1 == 1 {
						text[letter] += 'a' - 'A'
					}
				}
				for _, form := range []string{"%[1]s", "%[1]s-%[1]s", "%[1]s,%[1]s", "%[1]s-%[1]s/2"} {
					element := fmt.Sprintf(form, text)
					got, err := fields[i].parse(element)
					if err != nil || got != 1<<value {
						t.Errorf("%s: %b, %v", element, got, err)
					}
				}
			}
		}
	}
}

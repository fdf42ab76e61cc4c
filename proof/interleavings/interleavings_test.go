package interleavings

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/proof/tally"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// workers is how many databases the pairs are played on at a time.
const workers = 2

// quickly matches the names of the pairs that are played with -short.
const quickly = "^(heartbeat, evict|release, guard|override, override)$"

// pairsOfNames is how many pairs eight operations have, with those of one operation with itself.
const pairsOfNames = 8 * 9 / 2

var only = flag.String("pairs", "", "play the pairs whose names match this regular `expression`")

// A pair is two operations that are played against each other.
type pair struct{ one, other operation }

// pairs returns the variants of each two names that can meet, and one pair of names whose variants
// cannot.
func pairs(names *regexp.Regexp) (all []pair) {
	apart := make(map[string]pair)
	for i, one := range operations {
		for _, other := range operations[i:] {
			p := pair{one, other}
			_, known := apart[p.names()]
			switch {
			case !names.MatchString(p.names()):
			case one.meets(other):
				all = append(all, p)
			case !known:
				apart[p.names()] = p
			}
		}
	}
	for names, p := range apart {
		if !slices.ContainsFunc(all, func(other pair) bool { return other.names() == names }) {
			all = append(all, p)
		}
	}
	return all
}

func (p pair) names() string { return p.one.name + ", " + p.other.name }

func TestEveryInterleavingKeepsThePromises(t *testing.T) {
	names := *only
	if names == "" && testing.Short() {
		names = quickly
	}
	began := time.Now()
	queue, counts := make(chan pair), newTable()
	var wait sync.WaitGroup
	for range workers {
		w := newTestWorld(t)
		wait.Go(func() {
			for p := range queue {
				orders, err := w.playAll(t.Context(), p.one, p.other)
				counts.add(p, orders, err)
				if err == nil {
					continue
				}
				t.Errorf("%v, and %v: %v", p.one, p.other, err)
				if err := w.renew(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, p := range pairs(regexp.MustCompile(names)) {
		queue <- p
	}
	close(queue)
	wait.Wait()
	took := time.Since(began).Round(time.Second)
	t.Logf("%d interleavings of %d pairs, in %v:\n%v", counts.sum(), len(counts.orders), took, counts)
	if names == "" && len(counts.orders) != pairsOfNames {
		t.Errorf("only %d of %d pairs of operations were played", len(counts.orders), pairsOfNames)
	}
	tally.Checked(t, "interleavings of statements", counts.sum())
	tally.Violations(t, "a promise, by an interleaving", counts.violations)
}

func newTestWorld(t *testing.T) *world {
	t.Helper()
	schema := testkit.Must(gatedSchema())(t)
	url, _ := pgtest.DirectURL(pgtest.OwnerURL(pgtest.FreshDatabase(t, gateSQL, schema)))
	w := testkit.Must(newWorld(t.Context(), url))(t)
	t.Cleanup(w.close)
	return w
}

// A table counts the interleavings of each pair of names.
type table struct {
	mu         sync.Mutex // guards the rest
	orders     map[string]int
	violations int
}

func newTable() *table { return &table{orders: make(map[string]int)} }

func (c *table) add(p pair, orders int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orders[p.names()] += orders
	if v := (violation{}); errors.As(err, &v) {
		c.violations++
	}
}

func (c *table) sum() (n int) {
	for _, orders := range c.orders {
		n += orders
	}
	return n
}

func (c *table) String() string {
	var names []string
	for _, o := range operations {
		if !slices.Contains(names, o.name) {
			names = append(names, o.name)
		}
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\t"+strings.Join(names, "\t"))
	for i, one := range names {
		fmt.Fprint(table, one, strings.Repeat("\t", i))
		for _, other := range names[i:] {
			fmt.Fprint(table, "\t", c.orders[one+", "+other])
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // a builder takes all
	return b.String()
}

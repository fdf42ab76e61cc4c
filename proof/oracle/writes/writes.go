// Package writes is the oracle of guarded writes. Each write has the epoch of its guard, and its
// place in its partition's order of commits. [Read] reads all that, and [Ledger.Check] returns the
// violations. Writes under a named lock are recorded in the same way, with the lock's number and
// token.
package writes

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/proof/oracle"
)

// Suffix ends the names of the files in which workers record when their commits returned.
const Suffix = ".returns"

// A Ledger has the committed writes of one lease, or of one application's locks.
type Ledger struct {
	Writes []Write // by partition, in the order of commits
}

// A Write is a committed write.
type Write struct {
	Partition int
	Number    int64 // its place in the partition's order of commits
	Epoch     int64
	Writer    string
	At        time.Time
	Name      string
	Called    int64 // when the writer began, on the clock that all processes share
}

func (w Write) String() string {
	return fmt.Sprintf("%s wrote %d@%d at %s as number %d",
		w.Writer, w.Partition, w.Epoch, w.At.UTC().Format("15:04:05.000000"), w.Number)
}

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}

// Read reads the writes under a lease's name from the table that package faults describes.
func Read(ctx context.Context, db Querier, lease string) (*Ledger, error) {
	rows, _ := db.Query(ctx, `SELECT partition, n, epoch, writer, at, name, called FROM effects
		WHERE lease = $1 ORDER BY partition, n`, lease) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Write])
	return &Ledger{Writes: all}, err
}

// Check describes each write that was committed after a write of a newer epoch. The promise is
// that there are none.
func (l *Ledger) Check() (violations []string) {
	newest := make(map[int]int64)
	for _, w := range l.Writes {
		if w.Epoch < newest[w.Partition] {
			violations = append(violations, fmt.Sprintf("%v, after a write under %d", w, newest[w.Partition]))
		}
		newest[w.Partition] = max(newest[w.Partition], w.Epoch)
	}
	return violations
}

// Linearizable returns an error unless the writes are linearizable: they are those of an object
// that executes one write after the other, each at some time between its call and its return. The
// workers have recorded the returns in files beside their logs in a folder. A write without a
// recorded return may have been executed at any later time. The search gives up after some time.
func (l *Ledger) Linearizable(dir string, patience time.Duration) error {
	returned, err := returns(dir)
	if err != nil {
		return err
	}
	switch porcupine.CheckOperationsTimeout(fenced, l.history(returned), patience) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("writes: %d writes could not be checked within %v", len(l.Writes), patience)
	}
	return fmt.Errorf("writes: %d guarded writes are not linearizable", len(l.Writes))
}

// returns reads when the commits of the writes returned, by name.
func returns(dir string) (map[string]int64, error) {
	returned := make(map[string]int64)
	err := oracle.EachFile(filepath.Join(dir, "*"+Suffix), func(lines *bufio.Scanner) error {
		for lines.Scan() { // the last line may be incomplete
			name, number, _ := strings.Cut(lines.Text(), " ")
			if at, err := strconv.ParseInt(number, 10, 64); err == nil {
				returned[name] = at
			}
		}
		return nil
	})
	return returned, err
}

// history returns the writes as operations with their calls and returns.
func (l *Ledger) history(returned map[string]int64) (history []porcupine.Operation) {
	clients := make(map[string]int)
	for _, w := range l.Writes {
		client, known := clients[w.Writer]
		if !known {
			client = len(clients)
			clients[w.Writer] = client
		}
		end, known := returned[w.Name]
		if !known {
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{
			ClientId: client, Input: w, Call: w.Called, Output: w, Return: end,
		})
	}
	return history
}

// fenced is the model that a partition's guarded writes must match. Each write is under an epoch
// not older than the one before.
var fenced = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := make(map[int][]porcupine.Operation)
		for _, op := range history {
			n := op.Input.(Write).Partition
			by[n] = append(by[n], op)
		}
		return slices.Collect(maps.Values(by))
	},
	Init: func() any { return Write{} },
	Step: func(state, input, _ any) (bool, any) {
		before, w := state.(Write), input.(Write)
		return w.Number == before.Number+1 && w.Epoch >= before.Epoch, w
	},
	Equal: func(a, b any) bool { return a.(Write).Number == b.(Write).Number },
}

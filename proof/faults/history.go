package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
)

// returnsSuffix is appended to the name of a worker's log; the file of that name holds
// Effects.Returns.
const returnsSuffix = ".returns"

// A write is a committed write: its input and its result.
type write struct {
	partition int
	epoch     int64
	n         int64 // its place in the partition's order of commits
}

// History returns the committed writes, with the times of their calls and returns. The workers
// recorded these in files beside their logs in dir. A write without a recorded return may have been
// executed at any later time.
func (e *Effects) History(ctx context.Context, dir string) ([]porcupine.Operation, error) {
	returned := make(map[string]int64)
	err := eachFile(filepath.Join(dir, "*"+returnsSuffix), func(lines *bufio.Scanner) error {
		for lines.Scan() { // the last line may be incomplete
			name, text, _ := strings.Cut(lines.Text(), " ")
			if at, err := strconv.ParseInt(text, 10, 64); err == nil {
				returned[name] = at
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	rows, err := e.pool.Query(ctx, "SELECT partition, n, epoch, writer, name, called FROM effects WHERE lease = $1", e.lease)
	if err != nil {
		return nil, err
	}
	clients := make(map[string]int)
	var history []porcupine.Operation
	var w write
	var writer, name string
	var called int64
	_, err = pgx.ForEachRow(rows, []any{&w.partition, &w.n, &w.epoch, &writer, &name, &called}, func() error {
		if _, known := clients[writer]; !known {
			clients[writer] = len(clients)
		}
		end, known := returned[name]
		if !known {
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{ClientId: clients[writer], Input: w, Call: called, Output: w, Return: end})
		return nil
	})
	return history, err
}

// eachFile calls read with the lines of each file whose path matches a pattern of filepath.Glob.
func eachFile(pattern string, read func(*bufio.Scanner) error) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(f)
		if err := errors.Join(read(lines), lines.Err(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// fenced is the model that a partition's guarded writes must match: an object that executes one
// write after the other, each at some time between its call and its return, and each under an epoch
// not older than the one before.
var fenced = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := make(map[int][]porcupine.Operation)
		for _, op := range history {
			n := op.Input.(write).partition
			by[n] = append(by[n], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range by {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return write{} },
	Step: func(state, input, _ any) (bool, any) {
		before, w := state.(write), input.(write)
		return w.n == before.n+1 && w.epoch >= before.epoch, w
	},
	Equal: func(a, b any) bool { return a.(write).n == b.(write).n },
}

// Linearizable checks a history of guarded writes, and returns an error unless it is linearizable.
func Linearizable(history []porcupine.Operation, patience time.Duration) error {
	switch porcupine.CheckOperationsTimeout(fenced, history, patience) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("faults: %d writes could not be checked within %v", len(history), patience)
	}
	return errors.New("faults: the guarded writes are not linearizable")
}

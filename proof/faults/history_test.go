package faults

import (
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

func TestOnlyFencedWritesAreLinearizable(t *testing.T) {
	op := func(n, epoch, call, end int64) porcupine.Operation {
		w := write{partition: 1, epoch: epoch, n: n}
		return porcupine.Operation{ClientId: int(epoch), Input: w, Output: w, Call: call, Return: end}
	}
	for _, test := range []struct {
		what    string
		history []porcupine.Operation
		ok      bool
	}{
		{"in order", []porcupine.Operation{op(1, 1, 0, 10), op(2, 1, 20, 30), op(3, 2, 25, 40)}, true},
		{"overlapping", []porcupine.Operation{op(2, 1, 0, 30), op(1, 1, 20, 25)}, true},
		{"one never returned", []porcupine.Operation{op(2, 1, 0, math.MaxInt64), op(1, 1, 20, 25), op(3, 1, 30, 35)}, true},
		{"returned before what it follows was called", []porcupine.Operation{op(2, 1, 0, 10), op(1, 1, 20, 25)}, false},
		{"a zombie", []porcupine.Operation{op(1, 2, 0, 10), op(2, 1, 5, 20)}, false},
		{"one is missing", []porcupine.Operation{op(1, 1, 0, 10), op(3, 1, 20, 30)}, false},
	} {
		if err := Linearizable(test.history, time.Minute); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}

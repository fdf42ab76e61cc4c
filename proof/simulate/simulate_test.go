package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

// A client of the mutant trusts its ownership for a minute after others may take it.
const (
	mutated = "../../internal/engine/engine.go"
	sound   = "e.trust.validity.Prolong(sent.Add(trusts))"
	mutant  = "e.trust.validity.Prolong(sent.Add(trusts + 60_000_000_000))"
)

// patience bounds each test: a compiler that is busy, and a few rounds of histories.
const patience = 10 * time.Minute

func TestMutantIsFoundAndShrunk(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a mutant")
	}
	t.Parallel()
	source := string(testkit.Must(os.ReadFile(mutated))(t))
	if n := strings.Count(source, sound); n != 1 {
		t.Fatalf("%s has %q %d times, not once", mutated, sound, n)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "engine.go"), filepath.Join(dir, "overlay.json")
	testkit.OK(t, os.WriteFile(changed, []byte(strings.Replace(source, sound, mutant, 1)), 0o644))
	replace := map[string]string{testkit.Must(filepath.Abs(mutated))(t): changed}
	text := testkit.Must(json.Marshal(map[string]map[string]string{"Replace": replace}))(t)
	testkit.OK(t, os.WriteFile(overlay, text, 0o644))
	var out strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args := []string{"-years", "0.1", "-ttl", "6s", "-every", "10s", "-overlay", overlay}
	if err := run(ctx, args, &out, t.Output()); err == nil || ctx.Err() != nil {
		t.Fatalf("the mutant was not found within %v: %v: %s", patience, err, &out)
	}
	shrunk := regexp.MustCompile(`failed after (\d+) steps: .*(?:\n.*)*the fewest steps .* failed: (\d+)\n`)
	numbers := shrunk.FindStringSubmatch(out.String())
	if numbers == nil {
		t.Fatalf("the report is %s", &out)
	}
	steps := testkit.Must(strconv.Atoi(numbers[1]))(t)
	fewest := testkit.Must(strconv.Atoi(numbers[2]))(t)
	if fewest > steps || !regexp.MustCompile("overlap: |stale: ").MatchString(out.String()) {
		t.Errorf("it failed after %d steps, with %d at least: %s", steps, fewest, &out)
	}
	t.Logf("it failed after %d steps, and was shrunk to %d", steps, fewest)
}

func TestHistoriesOfASeedAreTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the histories")
	}
	t.Parallel()
	s := &simulation{
		binary: filepath.Join(t.TempDir(), "engine.test"), ttl: time.Minute, every: time.Minute,
		faults: make(map[string]int),
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testkit.OK(t, s.build(ctx, ""))
	steps := func() (all []int) {
		for _, h := range testkit.Must(s.start(ctx, 7, 3, 20))(t) {
			if h.Statements == 0 || h.Checks == 0 {
				t.Errorf("seed %d: %d statements, and %d checks", h.Seed, h.Statements, h.Checks)
			}
			all = append(all, h.Steps, h.Faults["network cut"], h.Faults["process killed"], h.Faults["clock stepped"])
		}
		return all
	}
	first := steps()
	if again := steps(); len(first) != 12 || first[0] != 20 || !slices.Equal(first, again) {
		t.Errorf("they had %v, and then %v", first, again)
	}
}

func TestTimesOutOfRangeAreRefused(t *testing.T) {
	wrong := [][]string{{"-ttl", "1s"}, {"-ttl", "1h"}, {"-every", "0s"}, {"-every", "48h"}, {"-years", "0"}}
	for _, args := range wrong {
		var out strings.Builder
		err := run(t.Context(), args, &out, t.Output())
		if err == nil || !strings.Contains(err.Error(), args[0]+" ") || !strings.Contains(err.Error(), ": give ") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Command simulate plays histories of whole clients in simulated time, against the database in
// memory, with an oracle after each statement:
//
//	go run ./simulate [-years N] [-ttl D] [-every D] [-seed S] [-overlay FILE]
//
// In each history, clients of a few leases meet about 90 steps of trouble: networks are cut,
// processes stop or are killed, the database crashes, is promoted or restored, its clock steps, and
// statements and answers are lost or come late. Then the trouble ends, and everything must be owned
// again within a bound. The program prints how many client-years it has played and how many faults
// hit, in an hour of one core, how much was executed and compared, and how long it took until
// everything was owned again.
//
// By default, clients have a TTL of a minute, and there is a step of trouble each hour, which is
// worse than most real systems. This plays many client-years. To play many faults instead, make both
// times short:
//
//	go run ./simulate -years 0.01 -ttl 6s -every 10s
//
// A seed fixes the steps of trouble. Faults of single statements, and what clients draw themselves,
// differ between two runs. So a history that failed is played again with fewer steps, several times
// each, and the program prints the fewest steps with which it failed.
//
// Simulated time exists in tests only. So the histories are a test of internal/engine, which this
// program builds and runs, one history at a time on one core.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"
)

const (
	year = 365 * 24 * time.Hour
	// round is how many histories one run of the test plays at most.
	round = 50
	// Of a history, about.
	clientsAtOnce, stepsOfTrouble = 4, 90
	// tries is how often a number of steps is played before it counts as harmless.
	tries = 5
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// run is main without the process's arguments and output, for the test.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	flags.SetOutput(progress)
	years := flags.Float64("years", 1, "how many `client-years` to play")
	ttl := flags.Duration("ttl", time.Minute, "the `TTL` of most clients")
	every := flags.Duration("every", time.Hour, "the mean `time` between two steps of trouble")
	seed := flags.Uint64("seed", 1, "the `seed` of the first history; each next history adds 1")
	overlay := flags.String("overlay", "", "a `file` for the compiler's flag -overlay, for example of a mutant")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *years <= 0 || flags.NArg() > 0 {
		return fmt.Errorf("-years %v %v: give a number above 0, and no arguments", *years, flags.Args())
	}
	if *ttl < 3*time.Second || *ttl > 3*time.Minute { // a few clients have a third of it, or three times as much
		return fmt.Errorf("-ttl %v: give 3s to 3m", *ttl)
	}
	if *every < time.Second || *every > 24*time.Hour {
		return fmt.Errorf("-every %v: give 1s to 24h", *every)
	}
	dir, err := os.MkdirTemp("", "simulate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &simulation{binary: filepath.Join(dir, "engine.test"), ttl: *ttl, every: *every, faults: make(map[string]int)}
	if err := s.build(ctx, *overlay); err != nil {
		return err
	}
	next := *seed
	for all := time.Duration(*years * float64(year)); s.clients < all; {
		n := min(round, 1+int((all-s.clients)/(clientsAtOnce*stepsOfTrouble**every)))
		failed, err := s.play(ctx, next, n)
		if err != nil {
			return err
		}
		next += uint64(n)
		fmt.Fprintln(progress, s)
		if failed != nil {
			fmt.Fprint(out, s.report())
			return s.shrink(ctx, out, *failed)
		}
	}
	_, err = fmt.Fprint(out, s.report())
	return err
}

// build builds the test of the histories.
func (s *simulation) build(ctx context.Context, overlay string) error {
	args := []string{"test", "-c", "-o", s.binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	args = append(args, "github.com/pgleases/pgleases/internal/engine")
	text, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the histories: %w\n%s", err, text)
	}
	return nil
}

// shrink plays a history that has failed with fewer and fewer steps, and prints the fewest with
// which it fails.
func (s *simulation) shrink(ctx context.Context, out io.Writer, failed history) error {
	fmt.Fprintf(out, "\nthe history of seed %d failed after %d steps: %s\n", failed.Seed, failed.Steps, failed.Failed)
	low, high := 0, failed.Steps // it failed with high steps, and is not known to fail with fewer than low
	trace := failed.trace
	for low < high {
		middle := (low + high) / 2
		again, err := s.repeat(ctx, failed.Seed, middle)
		if err != nil {
			return err
		}
		if again == nil {
			low = middle + 1
			continue
		}
		high, trace = middle, again.trace
	}
	fmt.Fprintf(out, "the fewest steps with which it failed: %d\n\n%s\n", high, trace)
	fmt.Fprintf(out, "to repeat: go test ./internal/engine -run %s -first-seed %d -seeds 1", histories, failed.Seed)
	fmt.Fprintf(out, " -steps %d -ttl %v -every %v -count %d\n", high, s.ttl, s.every, tries)
	return errors.New("a history failed")
}

// repeat plays a history with at most that many steps until it fails, a few times.
func (s *simulation) repeat(ctx context.Context, seed uint64, steps int) (*history, error) {
	for range tries {
		played, err := s.start(ctx, seed, 1, steps)
		if err != nil {
			return nil, err
		}
		for _, h := range played {
			if h.Failed != "" {
				return &h, nil
			}
		}
	}
	return nil, nil
}

//go:build unix

package proof_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/timeguard"
)

var (
	soakFor     = flag.Duration("soak", 0, "how long to attack fleets of workers, in episodes")
	soakEpisode = flag.Duration("soak-episode", time.Minute, "length of an episode")
	soakSeed    = flag.Uint64("soak-seed", 1, "seed of the first episode; each next episode adds 1")
	soakLog     = flag.String("soak-log", "soak.jsonl", "file that gets the result of each episode as a line of JSON")
	soakReport  = flag.String("soak-report", "", "file for a report of all episodes in the log")
)

// TestSoak runs only with a flag: go test -run TestSoak -timeout 2h -soak 1h . To continue an
// earlier soak, pass the seed after its last one.
func TestSoak(t *testing.T) {
	if *soakFor == 0 && *soakReport == "" {
		t.Skip("needs the flag -soak")
	}
	for began, seed := time.Now(), *soakSeed; time.Since(began) < *soakFor; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			timeguard.Run(t, func(t *timeguard.Try) {
				disk, options := smallDisk(t)
				server := pgserver.Private(t, options...)
				database := &faults.Database{Server: server, URL: server.URL(), Disk: disk}
				url := server.URL()
				if seed%2 == 0 {
					url = behindPooler(t, database)
				}
				alone := seed%3 == 0
				e := attack(t, seed, *soakEpisode, url, database, func(f *faults.Fleet) { f.Alone = alone })
				least := int(soakEpisode.Seconds())
				if alone {
					least /= 20
				}
				check(t, e, least, 0)
				line, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				f, err := os.OpenFile(*soakLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := fmt.Fprintf(f, "%s\n", line); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
	if *soakReport == "" {
		return
	}
	text, err := report(*soakLog)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*soakReport, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var logged = regexp.MustCompile(`\S*/(\S+)\.log`)

// report returns a page about the episodes in a log.
func report(log string) (string, error) {
	lines, err := os.ReadFile(log)
	if err != nil {
		return "", err
	}
	var all episode
	all.Faults, all.Worst = make(map[string]int), make(map[string]float64)
	// By whether the fault was alone, then by its kind.
	recoveries := map[bool]map[string][]float64{true: {}, false: {}}
	var seeds []uint64
	pooled, alone := 0, 0
	for decoder := json.NewDecoder(bytes.NewReader(lines)); ; {
		var e episode
		if err := decoder.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return "", fmt.Errorf("%s: %w", log, err)
		}
		seeds = append(seeds, e.Seed)
		if e.Pooled {
			pooled++
		}
		if e.Alone {
			alone++
		}
		all.Seconds += e.Seconds
		all.Clients += e.Clients
		all.Intervals += e.Intervals
		all.Reads += e.Reads
		all.Overlaps += e.Overlaps
		all.Writes += e.Writes
		all.Locks += e.Locks
		all.LockWrites += e.LockWrites
		for _, v := range e.Violations { // without the folder of the logs
			all.Violations = append(all.Violations, fmt.Sprintf("seed %d: %s", e.Seed, logged.ReplaceAllString(strings.TrimSpace(v), "$1")))
		}
		for kind, n := range e.Faults {
			all.Faults[kind] += n
		}
		for kind, ms := range e.Worst {
			recoveries[e.Alone][kind] = append(recoveries[e.Alone][kind], ms)
		}
	}
	if len(seeds) == 0 {
		return "", fmt.Errorf("%s: no episodes", log)
	}
	all.Violations = slices.Compact(all.Violations) // Run and Settled report the same
	var b strings.Builder
	fmt.Fprintf(&b, soakHead, all.Seconds/60, len(seeds), slices.Min(seeds), slices.Max(seeds), pooled, alone, runtime.NumCPU(),
		sum(all.Faults), all.Clients, all.Intervals, all.Reads, all.Overlaps, all.Writes, all.Locks, all.LockWrites, len(all.Violations))
	for _, v := range all.Violations {
		fmt.Fprintf(&b, "- %s\n", v)
	}
	fmt.Fprint(&b, soakTable)
	kinds := maps.Clone(all.Faults)
	for kind := range recoveries[false] {
		kinds[kind] += 0
	}
	figures := func(ms []float64) string {
		if len(ms) == 0 {
			return "| |"
		}
		slices.Sort(ms)
		return fmt.Sprintf("| %.0f ms | %.0f ms ", ms[len(ms)/2], ms[len(ms)-1])
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		fmt.Fprintf(&b, "| %s | %d %s%s|\n", kind, kinds[kind], figures(recoveries[true][kind]), figures(recoveries[false][kind]))
	}
	return b.String(), nil
}

const soakHead = `# Soak: a record of survived faults

The test that this page reports on writes it:

    cd proof && go test -run TestSoak -timeout 3h -soak 1h -soak-log soak.jsonl -soak-report ../docs/soak.md .

The flag -soak-seed continues an earlier soak. Each episode has its own PostgreSQL server and 4 to 15 worker processes, each behind a
proxy. They share 16 partitions with a TTL of 1 s, and take 6 named locks, exclusive and shared. The seed determines the faults. In two
of three episodes there are about three faults per second, several at a time. In the third episode they happen one after the other.
Every process reads Values all the time, and records on the machine's monotonic clock when it first and last saw each partition.
Other goroutines write under Guard, or as zombies, with epochs that have ended. At the end the test compares the intervals of all
processes, the epochs and tokens, the order of the writes (for linearizability), and how long each partition had no owner.
Other tests attack processes that run schedules, and fleets that operators change: see [proof.md](proof.md).

| | |
|---|---|
| minutes | %.0f |
| episodes | %d, seeds %d to %d |
| of these through PgBouncer in transaction mode | %d |
| of these with one fault at a time | %d |
| processors | %d |
| faults | %d |
| clients | %d |
| intervals of ownership | %d |
| reads of Values | %d |
| overlaps | **%d** |
| writes under Guard, linearizable | %d |
| intervals in which a lock was held | %d |
| writes under locks, linearizable | %d |
| violations of any promise | **%d** |

`

const soakTable = `
## By kind of fault

The table shows how long a partition had no owner. For each kind of fault, an episode counts with its longest time; the table has the
median and the longest of these. With one fault at a time, this is the cost of the fault: while a client is paused, or the database is
not available, no client can take over, and after that the clock must be watched for a TTL. If faults overlap, the time counts for
the fault of the last owner, even if another fault kept the others from taking over. The limit is 2 TTL and 1 s, plus the length of
each fault of the database meanwhile and another TTL for it, plus the length of open transactions. A longer time is a violation.

| fault | times | alone: median | alone: longest | overlapping: median | overlapping: longest |
|---|---|---|---|---|---|
`

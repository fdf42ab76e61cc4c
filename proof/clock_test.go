//go:build linux

package proof_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/leases"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// clockFaults are the faults of the database's clock.
var clockFaults = []struct {
	name  string
	step  time.Duration
	rate  float64 // of a slew; 0: a step
	short bool    // runs in short tests too
}{
	{"a minute on", time.Minute, 0, true},
	{"a minute back", -time.Minute, 0, false},
	{"an hour on", time.Hour, 0, false},
	{"an hour back", -time.Hour, 0, true},
	{"a tenth too fast", 0, 1.1, false},
	{"a tenth too slow", 0, 0.9, false},
}

// The database's clock steps and runs at a wrong rate. Live clients keep their partitions, and a
// worker process that is killed in each round, right before or right after, is evicted.
func TestAWrongDatabaseClockEvictsOnlyKilledClients(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const ttl, steadyTTL, slewed = time.Second, 3 * time.Second, 2 * time.Second
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		server := pgserver.Private(t)
		clock := newClock(t, server)
		url := server.URL()
		steady := newSteady(t, url, steadyTTL, 200*time.Millisecond)
		dir := t.TempDir()
		const partitions = 6
		var crew []*pgleases.Lease
		crewLeases := make(map[string]*pgleases.Lease)
		for i := range 2 {
			id := fmt.Sprintf("crew-%d", i)
			c := opened(t, url, id, pgleases.WithTTL(ttl), pgleases.WithHeartbeat(200*time.Millisecond), quietly(t))
			crewLeases[id] = joined(t, c, "crew", partitions, pgleases.WithHandoffDelay(0))
			crew = append(crew, crewLeases[id])
		}
		crewLogs := watched(t, crewLeases)
		reader := connection(t, url)

		var took []time.Duration
		for round, fault := range clockFaults {
			if brief() && !fault.short {
				continue
			}
			id := fmt.Sprintf("victim-%d", round)
			victim := startWorker(t, faults.Config{
				URL: url, ID: id, Lease: "crew", Partitions: partitions, TTL: ttl, Log: filepath.Join(dir, id+".log"),
			})
			hasJoined(t, victim)
			waitFor(t, patience, "the worker has its share", func() bool {
				shares := []int{len(held(t, victim)), len(crew[0].Values()), len(crew[1].Values())}
				return slices.Min(shares) == partitions/3 && slices.Max(shares) == partitions/3
			})
			before := random.IntN(2) == 0
			if before {
				victim.Kill()
				tally.Fault(t, "kill")
			}
			if fault.rate == 0 {
				clock.Set(clock.Offset() + fault.step)
			}
			if !before {
				victim.Kill()
				tally.Fault(t, "kill")
			}
			tally.Fault(t, "database's clock wrong")
			from := clock.Offset()
			if fault.rate != 0 {
				// A watch does not tolerate such a rate, so the time counts from its end. Corrected
				// clocks run wrong by 5 % of it.
				ctx, cancel := context.WithTimeout(t.Context(), slewed)
				clock.Slew(ctx, fault.rate)
				cancel()
			}
			began := time.Now()
			var now time.Time
			testkit.OK(t, reader.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now))
			wrong := now.Sub(began.Add(clock.Offset()))
			steps := fault.rate != 0 && (clock.Offset()-from).Abs() < slewed/20
			if wrong.Abs() > slack || steps {
				t.Fatalf("%s: the database's clock is %v off what was set, %v", fault.name, wrong, clock.Offset())
			}
			// A watch restarts, and so does the killed client's expiry; both are easily disturbed.
			most := 2*ttl + 2*slack
			if !comesTrue(patience, func() bool { return shared(crew...) }) {
				missed(t, began, patience, "%s: what the killed worker owned is not taken over", fault.name)
			}
			took = append(took, time.Since(began))
			if last := took[len(took)-1]; last > most {
				missed(t, began, most, "%s, killed before %v: taken over after %v, not %v",
					fault.name, before, last, most)
			}
			steady.confirmed(t, time.Now())
			steady.check(t, round)
			if t.Failed() {
				break
			}
		}
		steady.stop(t)
		logs := testkit.Must(leases.Read(dir))(t)
		report := verify(t, append(logs, crewLogs()...))
		t.Logf("%d rounds; taken over after the fault: %v; %v; %d reads of the steady",
			len(took), took, report, steady.reads)
	})
}

// Schedules run on a database whose clock is wrong by eight hours, in processes whose clocks are
// wrong by one hour. Each tick runs once, and no tick runs because of a clock that is wrong for a
// moment. A long test leaves the clock wrong: then the ticks that it has passed are late.
func TestWrongClocksRunNoTickTwiceAndNoneEarly(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("Go asks the kernel's own code for the time, which this test can replace on amd64 only")
	}
	if brief() {
		t.Skip("has a server of its own")
	}
	timeguard.Run(t, func(t *timeguard.Try) {
		server := pgserver.Private(t, committing)
		clock := newClock(t, server)
		config := withSchedules(t, server.URL(), server.URL(), false)
		config.Orders = false // a job that is enqueued with a wrong clock is due by that clock
		dir := t.TempDir()
		var workers []*faults.Process
		for i, wrong := range []time.Duration{time.Hour, -time.Hour} {
			config := config
			config.ID = fmt.Sprintf("worker-%d", i)
			config.Log = filepath.Join(dir, config.ID+".log")
			set := wallClock(t, &config)
			set(wrong)
			workers = append(workers, startWorker(t, config))
		}
		for _, w := range workers {
			hasJoined(t, w)
		}
		pool := testkit.Pool(t, server.URL(), size(2))
		waitFor(t, patience, "both know the time", func() bool {
			return testkit.Value[int](t, pool, "SELECT count(DISTINCT worker) FROM ticks") == 2
		})
		future := func() {
			t.Helper()
			if n := count(t, pool, "ticks WHERE at > $1", time.Now()); n > 0 {
				t.Fatalf("%d ticks ran before their time", n)
			}
		}
		for _, wrong := range []time.Duration{8 * time.Hour, -8 * time.Hour} {
			steps := func() int {
				const unstable = "clock unstable"
				return strings.Count(workers[0].Output(), unstable) + strings.Count(workers[1].Output(), unstable)
			}
			before := steps()
			clock.Set(wrong)
			tally.Fault(t, "database's clock wrong")
			waitFor(t, patience, "both doubt it", func() bool { future(); return steps() == before+2 })
			clock.Set(0)
			waitForOutcomes(t, pool)
			future()
		}
		if *scheduleFaults >= 100 {
			clock.Set(8 * time.Hour)
			waitFor(t, 2*patience, "it is believed", func() bool {
				return count(t, pool, "ticks WHERE at > $1", time.Now()) > 0
			})
			waitForOutcomes(t, pool)
		}
		closeWorkers(t, workers)
		l := readLedger(t, pool, dir)
		l.Stepped = true
		judge(t, l)
	})
}

// newClock gives the server a clock of its own.
func newClock(t testing.TB, s *pgserver.Server) *pgserver.Clock {
	t.Helper()
	clock, err := s.Clock(t.Context())
	pgserver.Required(t, err)
	return clock
}

// A client's own clock steps. A step forward looks like a sleep, so trust ends, and returns with
// the next heartbeat. A step backward must not prolong trust.
func TestAWrongClockOfAClientProlongsNoTrust(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		if runtime.GOARCH != "amd64" {
			t.Skip("Go asks the kernel's own code for the time, which this test can replace on amd64 only")
		}
		const ttl, partitions = 2 * time.Second, 4
		url := direct(t)
		dir := t.TempDir()
		proxy := newProxy(t, url)
		config := faults.Config{URL: url, ID: "right", Lease: "wall", Partitions: partitions, TTL: ttl}
		config.Log = filepath.Join(dir, "right.log")
		right := startWorker(t, config)
		hasJoined(t, right)
		set := wallClock(t, &config)
		config.URL, config.ID, config.Log = proxy.URL(), "wrong", filepath.Join(dir, "wrong.log")
		wrong := startWorker(t, config)
		hasJoined(t, wrong)
		share := func() bool { return len(held(t, right)) == partitions/2 && len(held(t, wrong)) == partitions/2 }
		waitFor(t, patience, "the workers share the lease", share)
		intervals := func() int { return len(watchedLog(t, wrong).Intervals) }
		lost := func() int { return strings.Count(wrong.Output(), "trust lost") }

		var recovered []time.Duration
		for _, offset := range []time.Duration{time.Hour, 2 * time.Hour} {
			before := lost()
			began, at := time.Now(), oracle.Now()
			set(offset)
			waitFor(t, ttl+slack, "it logs that it lost its trust", func() bool { return lost() > before })
			// In one look: between two, an earlier ownership may end.
			waitFor(t, patience, "it owns its share again", func() bool {
				others := func(i oracle.Interval) bool { return !i.Open || i.First < at }
				regained := slices.DeleteFunc(watchedLog(t, wrong).Intervals, others)
				return len(regained) == partitions/2 && len(held(t, right)) == partitions/2
			})
			recovered = append(recovered, time.Since(began))
			if took := recovered[len(recovered)-1]; took > 2*ttl+slack {
				missed(t, began, 2*ttl+slack, "%v on: recovered after %v", offset, took)
			}
		}
		// A step backward changes nothing for a healthy client.
		before, seen := lost(), intervals()
		stepped := time.Now()
		set(time.Hour)
		pause(t.Context(), ttl)
		if lost() != before || intervals() != seen {
			missed(t, stepped, bears(ttl, ttl/3), "an hour back: lost trust %d times, %d intervals of ownership more",
				lost()-before, intervals()-seen)
		}
		// A step backward does not help a client that is cut off, right before or right after.
		set(0)
		proxy.Freeze()
		tally.Fault(t, "freeze")
		cut, cutAt := oracle.Now(), time.Now()
		set(-time.Hour)
		// The oracle's log is a little late, and the line about the lost trust may be joined with the one before.
		waitFor(t, ttl+2*slack, "it holds nothing", func() bool { return len(held(t, wrong)) == 0 })
		earlier := func(a, b oracle.Interval) int { return int(a.Last - b.Last) }
		last := slices.MaxFunc(watchedLog(t, wrong).Intervals, earlier).Last
		if last.Sub(cut) > ttl {
			t.Errorf("it held something until %v after it was cut off, with a TTL of %v", last.Sub(cut), ttl)
		}
		waitFor(t, patience, "the other one takes over", func() bool { return len(held(t, right)) == partitions })
		if took := oracle.Now().Sub(cut); took > 2*ttl+slack {
			missed(t, cutAt, 2*ttl+slack, "taken over after %v", took)
		}
		proxy.Thaw()
		waitFor(t, patience, "it owns its share again", share)
		t.Logf("forward: recovered after %v; %v", recovered, verifyDir(t, dir))
	})
}

// watchedLog returns the oracle's log of a worker.
func watchedLog(t testing.TB, p *faults.Process) oracle.Log {
	t.Helper()
	return testkit.Must(p.Watched())(t)
}

// envWallClock names the file that holds the offset of a worker's wall clock.
const envWallClock = "PGLEASES_TEST_WALL_CLOCK"

// wallClock makes a worker that is not started yet read its wall clock from a file, and returns a
// function that sets it.
func wallClock(t testing.TB, config *faults.Config) (set func(offset time.Duration)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "offset")
	testkit.OK(t, os.WriteFile(path, make([]byte, 8), 0o600))
	config.Env = append(config.Env, envWallClock+"="+path)
	return func(offset time.Duration) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(offset/time.Second)), 0)
			err = errors.Join(err, f.Close())
		}
		testkit.OK(t, err)
	}
}

// Replaces a worker's clock before package faults makes it a worker, because init functions run in
// the order of their files.
func init() {
	path := os.Getenv(envWallClock)
	if path == "" {
		return
	}
	if err := replaceWallClock(path); err != nil {
		fmt.Fprintln(os.Stderr, "replace the clock:", err)
		os.Exit(1)
	}
}

// replaceWallClock adds the seconds in the file to this process's wall clock. A preloaded library
// cannot do that, because Go does not call libc. Go calls code that the kernel maps into every
// process, so this function replaces that code.
func replaceWallClock(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	offset, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	base, code, err := kernelCode()
	if err != nil {
		return err
	}
	file, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	entry := make(map[string]elf.Symbol)
	for _, s := range symbols {
		entry[s.Name] = s
	}
	clock, spare := entry["__vdso_clock_gettime"], entry["__vdso_gettimeofday"] // Go calls only the first
	body := []byte{0xb8, 228, 0, 0, 0,                                          // mov $SYS_clock_gettime, %eax
		0x0f, 0x05, // syscall
		0x85, 0xff, // test %edi, %edi; 0 is the wall clock
		0x75, 16, // jne to the end
		0x48, 0xb9} // movabs $offset, %rcx
	body = binary.LittleEndian.AppendUint64(body, uint64(uintptr(unsafe.Pointer(&offset[0]))))
	body = append(body, 0x48, 0x8b, 0x09, // mov (%rcx), %rcx
		0x48, 0x01, 0x0e, // add %rcx, (%rsi)
		0xc3) // ret
	if clock.Value == 0 || spare.Size < uint64(len(body)) {
		return fmt.Errorf("this kernel's code is not as expected: %+v, %+v", clock, spare)
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	if _, err := memory.WriteAt(body, int64(base+spare.Value)); err != nil {
		return err
	}
	// In one aligned word, because the runtime's threads read the clock all the time.
	jump := append([]byte{0xe9}, binary.LittleEndian.AppendUint32(nil, uint32(spare.Value-clock.Value-5))...)
	jump = append(jump, code[clock.Value+5:clock.Value+8]...)
	_, err = memory.WriteAt(jump, int64(base+clock.Value))
	return err
}

// kernelCode returns the code that the kernel maps into this process, and its address.
func kernelCode() (base uint64, code []byte, err error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.Lines(string(maps)) {
		var end uint64
		if !strings.Contains(line, "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &base, &end); err != nil {
			return 0, nil, err
		}
		memory, err := os.Open("/proc/self/mem")
		if err != nil {
			return 0, nil, err
		}
		defer memory.Close()
		code = make([]byte, end-base)
		_, err = memory.ReadAt(code, int64(base))
		return base, code, err
	}
	return 0, nil, errors.New("there is none")
}

//go:build unix

package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/leases"
	"github.com/pgleases/pgleases/proof/oracle/locks"
)

// A Fault hits one member of a fleet. Do begins it in the driver's goroutine; whatever takes time
// continues in other goroutines (Fleet.later). Do reports whether it found something to do.
type Fault struct {
	Name   string
	Weight int // how often it is picked, relative to the others
	Do     func(*Fleet, context.Context) (bool, error)
}

// Faults is the table of faults that Fleet.Run picks from.
var Faults = []Fault{
	{"join", 3, (*Fleet).join},
	hits("close", 2, true, spare, (*Fleet).leave),
	hits("kill", 3, false, spare, (*Fleet).kill),
	hits("restart", 2, false, always, (*Fleet).restart),
	hits("pause", 4, true, always, (*Fleet).pause),
	hits("ghost", 1, true, room, (*Fleet).ghost),
	hits("twin", 1, false, room, (*Fleet).twin),
	{"many clients", 1, (*Fleet).manyClients},
	network("freeze", 2, (*Proxy).Freeze),
	network("requests lost", 1, (*Proxy).LoseRequests),
	network("answers lost", 1, (*Proxy).LoseAnswers),
	network("reset", 1, (*Proxy).Reset),
	hits("slow", 2, true, always, (*Fleet).slow),
	hits("cut", 2, false, always, (*Fleet).cut),
}

// hits returns a fault of a random worker, if the fleet's size allows it. If impairs is set, it is a
// worker that no such fault impairs yet.
func hits(name string, weight int, impairs bool, allowed func(*Fleet) bool, do func(*Fleet, *member) error) Fault {
	return Fault{name, weight, func(f *Fleet, _ context.Context) (bool, error) {
		if !allowed(f) {
			return false, nil
		}
		m := f.pick(name, impairs)
		if m == nil {
			return false, nil
		}
		return true, do(f, m)
	}}
}

func always(*Fleet) bool  { return true }
func spare(f *Fleet) bool { return len(f.members) > f.Min }
func room(f *Fleet) bool  { return len(f.members) < f.Max }

// network returns a fault of a worker's connection that lasts a while.
func network(name string, weight int, do func(*Proxy)) Fault {
	return hits(name, weight, true, always, func(f *Fleet, m *member) error {
		f.later(m, name, m.thaw)
		do(m.proxy)
		return nil
	})
}

// A Fleet is a set of worker processes that share one lease, each behind a proxy of its own. Its
// methods are not safe for concurrent use, unless they say otherwise.
type Fleet struct {
	Config   Config // of every worker; ID, URL and Log are set for each worker
	Dir      string // for the logs
	Min, Max int    // the number of workers that Run keeps
	Faults   []Fault
	Database *Database                        // for the database's faults; nil: no such faults
	Counts   map[string]int                   // faults that happened, by name
	Enough   func(counts map[string]int) bool // ends Run; nil: only Run's context ends it
	// Each fault, and all its effects, ends before the next fault begins.
	Alone bool
	// Workers that start run for a tenth of the time: see Process.Starve.
	Starved   bool
	Incidents []Incident // in order; guarded by mu during Run
	// Deadlines that passed; a late machine excuses them; guarded by mu during Run.
	Overdue []Overdue

	random  *rand.Rand
	proxies []*Proxy
	spared  *member // has no faults, so that one client always watches the clock and takes over
	members map[*member]struct{}
	made    int
	burst   []*member      // the workers of the last "many clients" that have not left yet
	alone   time.Time      // when the first of burst leaves
	waits   sync.WaitGroup // for what continues after a fault began
	thaw    context.Context

	mu        sync.Mutex // guards what goroutines record
	errs      []error
	disturbed bool      // a fault of the database is in progress
	mended    time.Time // when the last fault of the database ended
	calm      time.Time // no fault of the database begins before then
}

// An Incident is the beginning or the end of a fault of a worker or of the database, or another
// event.
type Incident struct {
	At     oracle.Instant
	Wall   time.Time
	Worker string // the name of the worker's oracle log; empty: the database
	Fault  string // empty: not a fault; see Text
	Over   bool   // the fault has ended
	Text   string
}

func (i Incident) String() string {
	text := fmt.Sprintf("%s %s: %s", i.Wall.UTC().Format("15:04:05.000"), cmp.Or(i.Worker, "database"), i.Fault+i.Text)
	if i.Over {
		text += ", over"
	}
	return text
}

// An Overdue is a deadline that passed, or something that only a client without trust does.
type Overdue struct {
	From, To oracle.Instant // the window in which it happened
	Within   time.Duration  // the time that was allowed
	Text     string
}

// A member is a worker and its proxy.
type member struct {
	*Process
	proxy *Proxy
	// Guarded by Fleet.mu: whether it is paused, frozen or slowed, when the last such fault ended,
	// and whether it may be superseded.
	impaired, outlived bool
	mended             time.Time
}

func (m *member) thaw() error {
	m.proxy.Thaw()
	return nil
}

// NewFleet returns a fleet of size workers that have joined. The seed determines what Run does.
func NewFleet(ctx context.Context, config Config, dir string, size int, seed uint64) (*Fleet, error) {
	f := &Fleet{
		Config: config, Dir: dir, Min: max(2, size-2), Max: size + 2, Faults: Faults,
		Counts: make(map[string]int), random: rand.New(rand.NewPCG(seed, 0)),
		members: make(map[*member]struct{}),
	}
	var members []*member
	for range size {
		m, err := f.start(f.newID())
		if err != nil {
			return f, err
		}
		members = append(members, m)
	}
	for _, m := range members {
		if err := m.Joined(ctx); err != nil {
			return f, err
		}
	}
	f.spared = members[0]
	return f, nil
}

// Starve makes all workers run for a tenth of the time from now on.
func (f *Fleet) Starve() {
	f.Starved = true
	for m := range f.members {
		m.Starve()
	}
}

func (f *Fleet) newID() string { return fmt.Sprintf("client-%d", f.made+1) }

// start starts a worker under an ID.
func (f *Fleet) start(id string) (*member, error) {
	proxy, err := NewProxy(f.Config.URL)
	if err != nil {
		return nil, err
	}
	f.proxies = append(f.proxies, proxy)
	f.made++
	config := f.Config
	config.ID, config.URL = id, proxy.URL()
	config.DirectURL = cmp.Or(f.Config.DirectURL, f.Config.URL)
	config.Log = filepath.Join(f.Dir, fmt.Sprintf("%s.%d.log", id, f.made))
	process, err := Start(config)
	if err != nil {
		return nil, err
	}
	m := &member{Process: process, proxy: proxy}
	if f.Starved {
		m.Starve()
	}
	f.members[m] = struct{}{}
	f.tell(m, Incident{Text: fmt.Sprintf("starts as process %d", m.PID())})
	return m, nil
}

// Run injects faults into the fleet, one after the other, until ctx ends. It draws faults like
// tickets: it adds new tickets only if all are used up or cannot happen now, so that each fault
// happens as often as its weight says. Run ends early if Enough reports true, or with an error if
// something else goes wrong, for example a worker ends on its own.
func (f *Fleet) Run(ctx context.Context) error {
	thaw, cancel := context.WithCancel(context.Background())
	f.thaw = thaw
	defer func() { cancel(); f.waits.Wait() }()
	for _, fault := range f.Faults {
		f.Counts[fault.Name] += 0
	}
	tickets := slices.Clone(f.Faults) // one ticket of each fault first
	f.shuffle(tickets)
	for {
		if err := f.lookAround(); err != nil {
			return err
		}
		f.disperse()
		drawn, err := f.draw(ctx, tickets)
		if err != nil {
			return err
		}
		if drawn >= 0 {
			tickets = slices.Delete(tickets, drawn, drawn+1)
		} else {
			var more []Fault
			for _, fault := range f.Faults {
				more = append(more, slices.Repeat([]Fault{fault}, fault.Weight)...)
			}
			f.shuffle(more)
			tickets = append(tickets, more...)
		}
		if f.Alone {
			err := f.calmDown(ctx)
			if err != nil || ctx.Err() != nil {
				return err
			}
		}
		pause := 50*time.Millisecond + time.Duration(f.random.Int64N(int64(f.Config.TTL/2)))
		if f.Enough != nil && f.Enough(f.Counts) {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// calmDown waits until no fault is in progress and every partition has an owner, and then long
// enough for the clients to watch the clock.
func (f *Fleet) calmDown(ctx context.Context) error {
	for len(f.burst) > 0 && pause(ctx, 20*time.Millisecond) {
		f.disperse()
	}
	f.waits.Wait()
	err := f.Settled(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	pause(ctx, 2*f.Config.TTL)
	return nil
}

func (f *Fleet) shuffle(tickets []Fault) {
	f.random.Shuffle(len(tickets), func(i, j int) { tickets[i], tickets[j] = tickets[j], tickets[i] })
}

// draw runs the first fault that can happen now, and returns its index, or -1 if no fault can.
func (f *Fleet) draw(ctx context.Context, tickets []Fault) (int, error) {
	for i, fault := range tickets {
		befell, err := fault.Do(f, ctx)
		if err != nil {
			return i, fmt.Errorf("faults: %s: %w", fault.Name, err)
		}
		if befell {
			f.Counts[fault.Name]++
			return i, nil
		}
	}
	return -1, nil
}

// note records an incident of a worker, or of the database if m is nil. The caller holds mu.
func (f *Fleet) note(m *member, i Incident) {
	i.At, i.Wall = oracle.Now(), time.Now()
	if m != nil {
		i.Worker = strings.TrimSuffix(filepath.Base(m.Config.Log), ".log")
	}
	f.Incidents = append(f.Incidents, i)
}

// tell is note for a caller that does not hold mu.
func (f *Fleet) tell(m *member, i Incident) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(m, i)
}

// lookAround removes and records the workers that ended, and replaces those that killed themselves.
func (f *Fleet) lookAround() error {
	f.mu.Lock()
	killed := 0
	for m := range f.members {
		select {
		case <-m.Done():
		default:
			continue
		}
		delete(f.members, m)
		if m.killedItself() {
			f.note(m, Incident{Fault: SelfKill})
			killed++
			continue
		}
		f.note(m, Incident{Text: "ended: " + m.ended.Error})
		if !m.outlived || !m.ended.Superseded {
			f.errs = append(f.errs, fmt.Errorf("worker %s ended on its own: %+v %v %s",
				m.Config.Log, m.ended, m.err, m.stderr.String()))
		}
	}
	err := errors.Join(f.errs...)
	f.mu.Unlock()
	if killed > 0 {
		f.Counts[SelfKill] += killed
	}
	for ; killed > 0 && err == nil; killed-- {
		_, err = f.start(f.newID())
	}
	return err
}

// SelfKill is the name of the fault that a row kills the process that handles it.
const SelfKill = "kills itself"

// Replace starts a worker for each that killed itself, as Run does.
func (f *Fleet) Replace() error { return f.lookAround() }

// pick returns a random member that has joined, as the target of a fault, or nil if no member
// qualifies. If impair is set, it picks a member that is not impaired yet.
func (f *Fleet) pick(fault string, impair bool) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	var from []*member
	for m := range f.members {
		select {
		case <-m.joined:
			if m != f.spared && !m.outlived && !(impair && m.impaired) {
				from = append(from, m)
			}
		default:
		}
	}
	if len(from) == 0 {
		return nil
	}
	// Sorted by name, because a map's order does not depend on the seed.
	slices.SortFunc(from, func(a, b *member) int { return strings.Compare(a.Config.Log, b.Config.Log) })
	m := from[f.random.IntN(len(from))]
	m.impaired = m.impaired || impair
	f.note(m, Incident{Fault: fault})
	return m
}

// span draws the length of a fault: TTL/10 to most.
func (f *Fleet) span(most time.Duration) time.Duration {
	return f.Config.TTL/10 + time.Duration(f.random.Int64N(int64(most-f.Config.TTL/10)))
}

// later ends a fault after up to 5 TTL, or when Run ends.
func (f *Fleet) later(m *member, fault string, end func() error) {
	d := f.span(5 * f.Config.TTL)
	f.waits.Go(func() {
		select {
		case <-time.After(d):
		case <-m.Done():
		case <-f.thaw.Done():
		}
		err := end()
		f.mu.Lock()
		defer f.mu.Unlock()
		m.impaired, m.mended = false, time.Now()
		f.note(m, Incident{Fault: fault, Over: true})
		select {
		case <-m.Done(): // it was killed meanwhile
		default:
			if err != nil {
				f.errs = append(f.errs, err)
			}
		}
	})
}

// join starts a worker.
func (f *Fleet) join(context.Context) (bool, error) {
	if !room(f) {
		return false, nil
	}
	_, err := f.start(f.newID())
	return true, err
}

// manyClients starts ten workers at once, which later leave one by one.
func (f *Fleet) manyClients(context.Context) (bool, error) {
	if len(f.burst) > 0 || !room(f) {
		return false, nil
	}
	f.tell(nil, Incident{Fault: "many clients"})
	for range 10 {
		m, err := f.start(f.newID())
		if err != nil {
			return true, err
		}
		f.burst = append(f.burst, m)
	}
	f.alone = time.Now().Add(f.span(3 * f.Config.TTL))
	return true, nil
}

// disperse closes or kills one of the workers that manyClients started.
func (f *Fleet) disperse() {
	if len(f.burst) == 0 || time.Now().Before(f.alone) {
		return
	}
	m := f.burst[0]
	f.burst = f.burst[1:]
	_, here := f.members[m]
	if !here || m.outlived {
		return
	}
	kill := len(f.burst)%2 == 0
	select {
	case <-m.joined:
	default:
		kill = true
	}
	f.mu.Lock()
	kill = kill || m.impaired
	fault := "close"
	if kill {
		fault = "kill"
	}
	f.note(m, Incident{Fault: fault})
	f.mu.Unlock()
	if kill {
		m.Kill()
		delete(f.members, m)
		return
	}
	_ = f.leave(m)
}

// leave closes a worker's client, and waits for its end in the background. If a fault kept the
// worker from the database, now or a moment ago, Close may leave everything behind: without trust,
// Close does not wait for the database.
func (f *Fleet) leave(m *member) error {
	delete(f.members, m) // no other fault hits it
	began := time.Now()
	f.waits.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		ended, err := m.Close(ctx)
		f.mu.Lock()
		recently := began.Add(-2 * f.Config.TTL)
		excused := f.disturbed || f.mended.After(recently) || m.mended.After(recently)
		if err == nil && ended.Left != "" && !excused {
			now := oracle.Now()
			f.Overdue = append(f.Overdue, Overdue{now - oracle.Instant(time.Since(recently)), now, f.Config.TTL / 5,
				fmt.Sprintf("worker %s closed: %s", m.Config.Log, ended.Left)})
		}
		f.mu.Unlock()
		if err != nil {
			m.Kill()
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.note(m, Incident{Fault: "close", Over: true})
		f.errs = append(f.errs, err)
	})
	return nil
}

// kill kills a worker, in some cases one that is paused or frozen.
func (f *Fleet) kill(m *member) error {
	m.Kill()
	delete(f.members, m)
	return nil
}

// restart kills a worker and starts another under its ID.
func (f *Fleet) restart(m *member) error {
	m.Kill()
	delete(f.members, m)
	_, err := f.start(m.Config.ID)
	return err
}

// pause stops a worker for a while.
func (f *Fleet) pause(m *member) error {
	f.later(m, "pause", m.Resume)
	return m.Pause()
}

// ghost stops a worker, starts another one under its ID, and continues the old one after a while.
// The old one must end.
func (f *Fleet) ghost(m *member) error {
	if err := m.Pause(); err != nil {
		return err
	}
	m.outlive(f)
	f.later(m, "ghost", m.Resume)
	_, err := f.start(m.Config.ID)
	return err
}

// twin starts a second worker under the ID of a live one. The older one must end.
func (f *Fleet) twin(m *member) error {
	m.outlive(f)
	_, err := f.start(m.Config.ID)
	return err
}

func (m *member) outlive(f *Fleet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m.outlived = true
}

// slow delays a worker's connection by up to a TTL, for a while: statements arrive that the client
// has given up on.
func (f *Fleet) slow(m *member) error {
	f.later(m, "slow", m.thaw)
	m.proxy.Slow(time.Duration(f.random.Int64N(int64(f.Config.TTL))))
	return nil
}

// cut breaks a worker's connection.
func (f *Fleet) cut(m *member) error {
	m.proxy.Cut()
	return nil
}

// Settled waits until the live workers, which have no more faults, own every partition, and the
// superseded workers have ended.
func (f *Fleet) Settled(ctx context.Context) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if err := f.lookAround(); err != nil {
			return err
		}
		held := make(map[int]int)
		outlived := 0
		for m := range f.members {
			log, err := m.Watched()
			if err != nil {
				return err
			}
			for _, n := range log.Held() {
				held[n]++
			}
			if m.outlived {
				outlived++
			}
		}
		once := slices.IndexFunc(slices.Collect(maps.Values(held)), func(n int) bool { return n != 1 }) < 0
		if len(held) == f.Config.Partitions && once && outlived == 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("faults: not settled: of %d partitions %d are held, %d superseded clients live on: %w",
				f.Config.Partitions, len(held), outlived, context.Cause(ctx))
		}
	}
}

// LocksTaken waits until each lock was acquired again after the faults. So no lock has a holder
// that no client knows of.
func (f *Fleet) LocksTaken(ctx context.Context) error {
	began := oracle.Now()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		logs, err := f.Locks()
		if err != nil {
			return err
		}
		taken := oracle.GainsSince(logs, began)
		if len(taken) == f.Config.Locks {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("faults: of %d locks only %d were taken after the faults: %w",
				f.Config.Locks, len(taken), context.Cause(ctx))
		}
	}
}

// Close closes all workers, kills those that it cannot close, and ends the proxies.
func (f *Fleet) Close(ctx context.Context) error {
	defer func() {
		for _, proxy := range f.proxies {
			proxy.Close()
		}
	}()
	var wait sync.WaitGroup
	errs := make(chan error, len(f.members))
	for m := range f.members {
		wait.Go(func() {
			_, err := m.Process.Close(ctx)
			if err != nil && m.killedItself() {
				err = nil
			} else if err != nil {
				m.Kill()
			}
			errs <- err
		})
	}
	wait.Wait()
	close(errs)
	clear(f.members)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// Report compares what all workers have seen of the lease, including the killed ones.
func (f *Fleet) Report() (oracle.Report, error) {
	logs, err := leases.Read(f.Dir)
	return oracle.Check(logs), err
}

// Locks returns what all workers have seen of their locks.
func (f *Fleet) Locks() ([]oracle.Log, error) {
	return locks.Read(f.Dir)
}

// Output returns what the clients logged, by file.
func (f *Fleet) Output() map[string]string {
	output := make(map[string]string)
	paths, _ := filepath.Glob(filepath.Join(f.Dir, "*.log.txt"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		output[path] = string(text)
		if err != nil {
			output[path] = err.Error()
		}
	}
	return output
}

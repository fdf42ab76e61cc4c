package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// This file reads the past: what happened in a period, and who owned what. Any number of viewers
// may ask for any period, so each question reads a limited number of rows, by an index, and the
// server may take a limited time for it: see WithPastLimit.

const (
	defaultPastLimit = 5 * time.Second

	stripMost = 20_000 // events, and entries of the history, that a strip of time counts
	eventMost = 2_000  // events that the life of a lease is made from

	outagesMost  = 200 // events about outages of all clients, in a period
	outagesAfter = 20  // and after it

	// stepsMost is the maximum number of steps of a strip of time.
	stepsMost = 170
)

// ErrNoLease is returned by Life if there is no such lease.
var ErrNoLease = errors.New("pgleases: there is no such lease")

// A Period is a part of the past: from From up to To, or the Last before To. If To is zero, the
// period ends now, by the clock of the database.
type Period struct {
	Last     time.Duration
	From, To time.Time
}

// bounds returns the start and the end of a period.
func (p Period) bounds(now time.Time) (since, until time.Time) {
	until = now
	if !p.To.IsZero() {
		until = p.To
	}
	since = p.From
	if since.IsZero() {
		since = until.Add(-p.Last)
	}
	return since, until
}

// A Strip counts what happened in each step of a period.
type Strip struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	Step  int       `json:"step"` // seconds
	// From is the start of what is counted. It is later than Since if more happened than is read.
	From time.Time `json:"from"`
	Bars []Bar     `json:"bars"` // by time
	// Clients are the numbers of clients that joined or left leases, by cause. Only Moves returns them.
	Clients map[string]int64 `json:"clients,omitempty"`
	// Outages are the times without a live client. Only Moves returns them.
	Outages []Outage `json:"outages,omitempty"`
}

// An Outage is a time without a live client, in whole seconds.
type Outage struct {
	From time.Time `json:"from"` // the last heartbeat before it
	To   time.Time `json:"to"`   // when the next session was registered
}

// outageOf returns the outage that an event is about. Its text is what a client has written.
func outageOf(e Event) (o Outage, ok bool) {
	var from, to string
	if e.Cause != causeOutage {
		return o, false
	}
	if _, err := fmt.Sscanf(e.Reason, "from %s to %s", &from, &to); err != nil {
		return o, false
	}
	var noFrom, noTo error
	o.From, noFrom = time.Parse(time.RFC3339, from)
	o.To, noTo = time.Parse(time.RFC3339, to)
	return o, noFrom == nil && noTo == nil && o.From.Before(o.To)
}

// causeOutage is the cause of the event that the first client after an outage writes.
const causeOutage = "no live client"

// causeSilent is the cause of a spell that began with the last heartbeat of an owner who was not
// evicted, because no client lives.
const causeSilent = "silent"

// causeEvicted is the cause of the event that a client was found expired.
const causeEvicted = "evicted"

// outages returns the events about outages that touch a period, the newest first. That of an outage
// which ended after the period is later than the period.
func (a *Admin) outages(ctx context.Context, tx pgx.Tx, since, until time.Time) ([]Event, error) {
	rows, _ := tx.Query(ctx, a.statement("outages"), since, until, outagesMost, outagesAfter)
	all, err := pgx.CollectRows(rows, pgx.RowTo[Event])
	return slices.DeleteFunc(all, func(e Event) bool {
		o, ok := outageOf(e)
		return !ok || !o.From.Before(until) || !o.To.After(since)
	}), err
}

// A Bar is the number of events of one kind in one step.
type Bar struct {
	At    int64  `json:"at"`   // the start of the step, in seconds since 1970
	What  string `json:"what"` // of Moves the cause; of Runs tick or job, and the outcome
	Count int64  `json:"count"`
}

// steps are the lengths of a step, in seconds: 1, 5, 15 and 30 minutes, and 1, 6 and 24 hours.
var steps = []int{60, 300, 900, 1800, 3600, 21600, 86400}

// stepOf returns the shortest step that divides a period into at most stepsMost.
func stepOf(d time.Duration) int {
	for _, step := range steps {
		if d <= time.Duration(step*stepsMost)*time.Second {
			return step
		}
	}
	return steps[len(steps)-1]
}

// Moves counts the events of a period by cause: each with the number of its partitions, or 1.
func (a *Admin) Moves(ctx context.Context, p Period) (*Strip, error) {
	return a.strip(ctx, p, "moves", "count the events", func(tx pgx.Tx, s *Strip) error {
		events, err := a.outages(ctx, tx, s.Since, s.Until)
		for _, e := range slices.Backward(events) {
			o, _ := outageOf(e)
			s.Outages = append(s.Outages, o)
		}
		return err
	})
}

// Runs counts the ticks and jobs of a period by outcome. It returns ErrNoSchedules if the database
// has no tables of package schedule.
func (a *Admin) Runs(ctx context.Context, p Period) (*Strip, error) {
	s, err := a.strip(ctx, p, "runs", "count the ticks and jobs", func(pgx.Tx, *Strip) error { return nil })
	if store.Undefined(err) {
		return nil, a.noSchedules(err)
	}
	return s, err
}

const (
	// ticksMost is the maximum number of entries that Ticks reads: a tick each minute, for 31 days.
	ticksMost = 31 * 24 * 60
	// ticksStep is in seconds. Midnight is the start of a step in nearly all zones.
	ticksStep = 1800
)

// Ticks counts the ticks of a schedule by outcome, in steps of half an hour. It returns
// ErrNoSchedules if the database has no tables of package schedule.
func (a *Admin) Ticks(ctx context.Context, p Period, group, name string) (strip *Strip, err error) {
	doing := fmt.Sprintf("count the ticks of schedule %q of group %q", name, group)
	err = a.past(ctx, p, doing, func(tx pgx.Tx, since, until time.Time) error {
		err := tx.QueryRow(ctx, a.statement("ticks"), group, name, since, ticksStep, ticksMost).Scan(&strip)
		if err == nil {
			strip.Since, strip.Until = since, until
			strip.Step = ticksStep
		}
		return err
	})
	if store.Undefined(err) {
		return nil, a.noSchedules(err)
	}
	return strip, err
}

func (a *Admin) strip(
	ctx context.Context, p Period, name, doing string, complete func(pgx.Tx, *Strip) error,
) (strip *Strip, err error) {
	err = a.past(ctx, p, doing, func(tx pgx.Tx, since, until time.Time) error {
		step := stepOf(until.Sub(since))
		err := tx.QueryRow(ctx, a.statement(name), since, until, step, stripMost).Scan(&strip)
		if err != nil {
			return err
		}
		strip.Since, strip.Until = since, until
		strip.Step = step
		return complete(tx, strip)
	})
	return strip, err
}

// past calls read in a read-only transaction of one snapshot, with the bounds of a period.
func (a *Admin) past(
	ctx context.Context, p Period, doing string, read func(tx pgx.Tx, since, until time.Time) error,
) error {
	limits := fmt.Sprintf("SET LOCAL statement_timeout = %d; SET LOCAL enable_seqscan = off; "+
		"SET LOCAL plan_cache_mode = force_custom_plan", a.pastLimit.Milliseconds())
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, a.pool, options, func(tx pgx.Tx) error {
		if _, err := tx.Conn().PgConn().Exec(ctx, settings+limits).ReadAll(); err != nil {
			return err
		}
		var now time.Time
		if err := tx.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
			return err
		}
		since, until := p.bounds(now)
		return read(tx, since, until)
	})
	if store.Code(err) == "57014" {
		const late = "pgleases: %s: the server took longer than %v: choose a shorter period or another filter, " +
			"or ask again when the server is less busy: %w"
		return wrap.Errorf(late, doing, a.pastLimit, err)
	}
	return a.failure(doing, err)
}

// An EventFilter says which events Happened returns. An empty field takes all.
type EventFilter struct {
	Lease  string // with the events of all leases that name one of its clients
	Client string // that lost or gained partitions, joined, left, or was evicted
	Cause  string
	Name   string // of the schedule or job that operators changed
}

// Happened are the events of a period, the newest first.
type Happened struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Events []Event   `json:"events"`
	// More reports that the period has more events than were read, so that older ones are missing.
	More bool `json:"more"`
}

// Happened returns the events of a period that match a filter, at most 1000. Those about an outage
// of all clients also belong to the periods that the outage touches.
func (a *Admin) Happened(ctx context.Context, p Period, f EventFilter) (*Happened, error) {
	h := new(Happened)
	err := a.past(ctx, p, "read the events", func(tx pgx.Tx, since, until time.Time) (err error) {
		h.Since, h.Until = since, until
		args := []any{since, until, f.Lease, nil, f.Client, f.Cause, stripMost, eventPage + 1, f.Name}
		rows, _ := tx.Query(ctx, a.statement("happened"), args...)
		h.Events, err = pgx.CollectRows(rows, pgx.RowTo[Event])
		if err != nil || f.Client != "" || f.Name != "" || f.Cause != "" && f.Cause != causeOutage {
			return err
		}
		outages, err := a.outages(ctx, tx, since, until)
		later := slices.DeleteFunc(outages, func(e Event) bool { return e.At.Before(until) })
		h.Events = append(later, h.Events...)
		return err
	})
	if len(h.Events) > eventPage {
		h.Events, h.More = h.Events[:eventPage], true
	}
	return h, err
}

// A Life is who owned the partitions of a lease in a period.
type Life struct {
	Lease      string `json:"lease"`
	Partitions int    `json:"partitions"`
	// Since is the start of what is known. It is later than the period if more happened than is read.
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Asked  time.Time `json:"asked"`  // start of the period
	Spells []Spell   `json:"spells"` // the latest first
	Events []Event   `json:"events"` // the latest 1000 of the period that concern the lease, the newest first
}

// A Spell is a time during which partitions had one owner, or none.
type Spell struct {
	Partitions Ranges    `json:"partitions"`
	Since      time.Time `json:"since"` // the start of the period, if it began before
	Until      time.Time `json:"until"`
	Owner      string    `json:"owner"` // client ID; empty: no owner
	// The cause of the event with which it began; or "silent", if its owner has expired and was not
	// evicted, so it began with its last heartbeat; empty: it began before the period.
	Cause string `json:"cause"`
}

// Life returns who owned the partitions of a lease in a period, or one of them if partition is not
// negative. It returns ErrNoLease, ErrNoSuchPartition, or an error of the database.
func (a *Admin) Life(ctx context.Context, p Period, lease string, partition int) (*Life, error) {
	doing := fmt.Sprintf("read the past of lease %q", lease)
	var one *int
	switch {
	case partition > math.MaxUint16:
		return nil, fmt.Errorf("%w: %d of lease %q", ErrNoSuchPartition, partition, lease)
	case partition >= 0:
		one = &partition
	}
	l := &Life{Lease: lease, Events: []Event{}}
	err := a.past(ctx, p, doing, func(tx pgx.Tx, since, until time.Time) error {
		l.Asked, l.Since = since, since
		l.Until = until
		var now *present
		if err := tx.QueryRow(ctx, a.statement("present"), lease, one).Scan(&now); err != nil {
			return err
		}
		l.Partitions = now.Partitions
		if partition >= now.Partitions {
			return fmt.Errorf("%w: %d of lease %q, which has %d", ErrNoSuchPartition, partition, lease, now.Partitions)
		}
		// All events up to now are needed to know who owned what before them.
		args := []any{since, endOfTime, lease, one, "", "", eventMost, eventMost, ""}
		rows, _ := tx.Query(ctx, a.statement("happened"), args...)
		events, err := pgx.CollectRows(rows, pgx.RowTo[Event])
		if err != nil {
			return err
		}
		l.live(now, partition, events)
		return nil
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("%w: %q", ErrNoLease, lease)
	case errors.Is(err, ErrNoSuchPartition):
		return nil, err
	}
	return l, err
}

// Partitions returns the number of partitions of a lease. It returns ErrNoLease, or an error of the
// database.
func (a *Admin) Partitions(ctx context.Context, lease string) (n int, err error) {
	doing := fmt.Sprintf("read the number of partitions of lease %q", lease)
	err = a.past(ctx, Period{}, doing, func(tx pgx.Tx, _, _ time.Time) error {
		var now *present
		err := tx.QueryRow(ctx, a.statement("present"), lease, nil).Scan(&now)
		if err == nil {
			n = now.Partitions
		}
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w: %q", ErrNoLease, lease)
	}
	return n, err
}

// Kept returns since when all events are left, and the time of the database's clock.
func (a *Admin) Kept(ctx context.Context) (since, now time.Time, err error) {
	err = a.past(ctx, Period{}, "read since when events are kept", func(tx pgx.Tx, _, at time.Time) error {
		now = at.UTC()
		return tx.QueryRow(ctx, a.statement("kept")).Scan(&since)
	})
	return since.UTC(), now, err
}

// endOfTime is after all events. The clock of a former primary may have been ahead.
var endOfTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// present is who owns the partitions of a lease now.
type present struct {
	Partitions int `json:"partitions"`
	Holdings   []struct {
		Owner      string    `json:"owner"`
		Gone       bool      `json:"gone"`   // the owner was evicted
		Silent     time.Time `json:"silent"` // the last heartbeat of an owner that has expired; zero: it lives
		Partitions Ranges    `json:"partitions"`
	} `json:"holdings"`
}

// movesMost bounds the partitions of all events that a life is made of.
const movesMost = 1_000_000

// A tenure is what is known of one partition while its past is read backward in time.
type tenure struct {
	known bool
	until time.Time
	owner string // before until
	// given reports that a plan ended it, because the owner had gone. So if the owner was evicted, the
	// partition had no owner from then on.
	given bool
	// silent is since when its owner, who has expired and was not evicted, sent no heartbeat.
	silent time.Time
}

// live fills in the spells of all partitions, or of one if only is not negative. It goes from the
// present backward through the events, which are the newest first, and stops early if these have
// too many partitions.
func (l *Life) live(now *present, only int, events []Event) {
	tenures := make([]tenure, now.Partitions)
	each := func(of Ranges, do func(*tenure, int)) {
		for _, r := range of {
			for p := max(0, r[0]); p <= min(r[1], len(tenures)-1); p++ {
				if only < 0 || p == only {
					do(&tenures[p], p)
				}
			}
		}
	}
	for _, h := range now.Holdings {
		each(h.Partitions, func(t *tenure, _ int) { *t = tenure{true, l.Until, h.Owner, h.Gone, h.Silent} })
	}
	if len(events) == eventMost {
		l.Since = events[len(events)-1].At
	}
	var outages []Outage // the latest first
	for _, e := range events {
		o, ok := outageOf(e)
		if ok && len(outages) < outagesMost {
			outages = append(outages, o)
		}
	}
	spells := make(map[spellKey][]Range)
	add := func(p int, since, until time.Time, owner, cause string) {
		if since.Before(l.Since) {
			since = l.Since
		}
		if since.Before(until) {
			key := spellKey{since.UnixMicro(), until.UnixMicro(), owner, cause}
			spells[key] = append(spells[key], Range{p, p})
		}
	}
	end := func(t *tenure, p int, at time.Time, owner, cause string) {
		until := t.until
		if !t.known {
			return
		}
		if !t.silent.IsZero() {
			from := slices.MaxFunc([]time.Time{at, t.silent}, time.Time.Compare)
			add(p, from, until, "", causeSilent)
			until = slices.MinFunc([]time.Time{from, until}, time.Time.Compare)
		}
		for _, o := range outages { // its owner died when the first of these began
			if owner != "" && !o.From.Before(at) && o.From.Before(until) {
				add(p, o.From, until, "", causeOutage)
				until = o.From
			}
		}
		add(p, at, until, owner, cause)
	}
	moved := 0
	for _, e := range events {
		if moved > movesMost {
			l.Since = e.At
			break
		}
		at := e.At
		within := !at.After(l.Until)
		if !within {
			at = l.Until
		}
		concerns := true
		switch e.Cause {
		case "handed over", "given":
			moved += e.Partitions.Count()
			each(e.Partitions, func(t *tenure, p int) {
				end(t, p, at, e.To, e.Cause)
				*t = tenure{known: e.From != "", until: at, owner: e.From, given: e.Cause == "given"}
			})
		case causeEvicted:
			moved += len(tenures)
			concerns = only < 0 // of one partition, only the evictions of its owners
			for p := range tenures {
				t := &tenures[p]
				if t.known && t.given && t.owner == e.From {
					end(t, p, at, "", e.Cause)
					t.until, t.given = at, false
					concerns = true
				}
			}
		}
		if within && concerns && len(l.Events) < eventPage {
			l.Events = append(l.Events, e)
		}
	}
	for p := range tenures {
		t := &tenures[p]
		end(t, p, l.Since, t.owner, "")
	}
	l.gather(spells)
}

// A spellKey is a spell without its partitions. Times are in microseconds.
type spellKey struct {
	since, until int64
	owner, cause string
}

// gather makes the spells of their partitions.
func (l *Life) gather(spells map[spellKey][]Range) {
	l.Spells = make([]Spell, 0, len(spells))
	for key, of := range spells {
		l.Spells = append(l.Spells, Spell{
			Partitions: Ranges(of).merged(),
			Since:      time.UnixMicro(key.since).UTC(),
			Until:      time.UnixMicro(key.until).UTC(),
			Owner:      key.owner,
			Cause:      key.cause,
		})
	}
	slices.SortFunc(l.Spells, func(a, b Spell) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Partitions[0][0], b.Partitions[0][0]))
	})
}

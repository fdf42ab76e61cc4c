package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/sql"
)

// measureEvents compares statements of the protocol, which write events, with the same where what writes events is taken out of the text.
func measureEvents(ctx context.Context, l *lab, out *part) error {
	sides := make([]*eventsSide, 2) // with events, and without
	for i := range sides {
		side, err := newEventsSide(ctx, l, i == 0)
		if err != nil {
			return err
		}
		defer side.drop()
		sides[i] = side
	}
	heirs := l.pick(8, 64)
	near := func(n int) int { return n * heirs / sides[0].partitions }
	far := func(n int) int { return n % heirs }
	scenes := []struct {
		what  string
		times int // that it is done in a round
		do    func(*eventsSide) (func() error, error)
	}{
		{"a join", 20, (*eventsSide).joins},
		{"a Close with 8 partitions", 20, (*eventsSide).closes},
		{fmt.Sprintf("a plan that gives %s partitions to %d clients, each neighbours", grouped(sides[0].partitions), heirs), 1,
			func(s *eventsSide) (func() error, error) { return s.gives(heirs, near, near) }},
		{"the same, where neighbours go to different clients, and come from others", 1,
			func(s *eventsSide) (func() error, error) {
				return s.gives(heirs, far, func(n int) int { return n / heirs % heirs })
			}},
		{"a heartbeat", 500, (*eventsSide).beats},
	}
	rounds := l.pick(1, 5)
	for _, scene := range scenes {
		var took, logged [2][]float64
		for range rounds {
			for i, side := range sides {
				t, bytes, err := side.measure(ctx, scene.times, scene.do)
				if err != nil {
					return fmt.Errorf("%s: %w", scene.what, err)
				}
				took[i], logged[i] = append(took[i], t), append(logged[i], bytes)
			}
		}
		told := func(i int) string {
			return fmt.Sprintf("%s, %s bytes of log", duration(time.Duration(median(took[i]))), significant(median(logged[i])))
		}
		out.add(row{what: scene.what, figure: told(0), floors: []floor{{"without events", told(1),
			times(median(ratios(took[0], took[1]))) + ", " + times(median(ratios(logged[0], logged[1])))}}})
	}
	out.note("Medians of %d rounds, in turns, of one connection's statements; in the other database the writing of events is taken out of their text. "+
		"The ratios are those of the time and of the log.", rounds)
	return nil
}

// An eventsSide is a database whose statements write events, or do not.
type eventsSide struct {
	ctx        context.Context
	events     bool
	pool       *pgxpool.Pool
	drop       func()
	partitions int
	session    int64 // the last
}

const eventsLease = "events"

var writesEvents = regexp.MustCompile(`(?s)\), told AS \(\n\s*INSERT INTO pgleases\.events.*?\n\s*\)`)

// text is a file of package sql.
func (s *eventsSide) text(name string) (string, error) {
	text, err := sql.Files.ReadFile(name)
	if err != nil || s.events {
		return string(text), err
	}
	without := writesEvents.ReplaceAllString(string(text), ")")
	if name != "schema.sql" && name != "close.sql" && name != "release.sql" && without == string(text) {
		return "", fmt.Errorf("nothing in %s writes events", name)
	}
	return without, nil
}

func newEventsSide(ctx context.Context, l *lab, events bool) (_ *eventsSide, err error) {
	s := &eventsSide{ctx: ctx, events: events, partitions: l.pick(256, 8192)}
	url, drop, err := newDatabase(ctx, l.durable)
	if err != nil {
		return nil, err
	}
	if s.pool, err = newPool(ctx, url); err != nil {
		drop()
		return nil, err
	}
	s.drop = func() { s.pool.Close(); drop() }
	for _, name := range []string{"schema.sql", "functions.sql"} {
		text, err := s.text(name)
		if err == nil {
			_, err = s.pool.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
		}
		if err != nil {
			s.drop()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if _, err := s.pool.Exec(ctx, "INSERT INTO pgleases.server_mark VALUES (1)"); err != nil {
		s.drop()
		return nil, err
	}
	join, err := s.joins()
	if err == nil {
		err = join()
	}
	if err != nil {
		s.drop()
	}
	return s, err
}

// measure prepares what is to be done so often, does it, and returns nanoseconds and bytes of the log for each time.
func (s *eventsSide) measure(ctx context.Context, times int, prepare func(*eventsSide) (func() error, error)) (took, logged float64, err error) {
	all := make([]func() error, times)
	for i := range all {
		if all[i], err = prepare(s); err != nil {
			return 0, 0, err
		}
	}
	if _, err := s.pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return 0, 0, err
	}
	if err := all[0](); err != nil { // plans are made, and pages are written whole to the log once
		return 0, 0, err
	}
	if all[0], err = prepare(s); err != nil {
		return 0, 0, err
	}
	before, err := one[float64](ctx, s.pool, walPosition)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	for _, do := range all {
		if err := do(); err != nil {
			return 0, 0, err
		}
	}
	took = float64(time.Since(began)) / float64(times)
	after, err := one[float64](ctx, s.pool, walPosition)
	return took, (after - before) / float64(times), err
}

// send returns what sends a statement.
func (s *eventsSide) send(statement string, args ...any) func() error {
	return func() error {
		_, err := s.pool.Exec(s.ctx, statement, append([]any{pgx.QueryExecModeExec}, args...)...)
		return err
	}
}

// register begins a session.
func (s *eventsSide) register() error {
	s.session++
	return s.send(
		`INSERT INTO pgleases.clients VALUES ($1, 'client-' || $1::bigint, 1, now() + interval '1 hour', interval '1 hour', 'host', 1, now())`,
		s.session,
	)()
}

// joins is a join of a new session.
func (s *eventsSide) joins() (func() error, error) {
	text, err := s.text("join.sql")
	if err != nil {
		return nil, err
	}
	if err := s.register(); err != nil {
		return nil, err
	}
	return s.send(text, s.session, eventsLease, s.partitions, 1, 1, 5000), nil
}

// closes is the end of a session that owns 8 partitions, which go to another.
func (s *eventsSide) closes() (func() error, error) {
	release, err := s.text("release.sql")
	if err != nil {
		return nil, err
	}
	end, err := s.text("close.sql")
	if err != nil {
		return nil, err
	}
	join, err := s.joins()
	if err == nil {
		err = join()
	}
	if err != nil {
		return nil, err
	}
	const at = 8
	first := int(s.session) * at % s.partitions
	err = s.send(`UPDATE pgleases.partitions SET owner = $1, target = 1, owner_id = 'client-' || $1::bigint, epoch = epoch + 1
		WHERE partition BETWEEN $2 AND $2::int + 7`, s.session, first)()
	if err != nil {
		return nil, err
	}
	leases, numbers, heirs := make([]string, at), make([]int, at), make([]int64, at)
	for i := range at {
		leases[i], numbers[i], heirs[i] = eventsLease, first+i, 1
	}
	epochs, err := one[[]int64](s.ctx, s.pool, fmt.Sprintf(
		"SELECT array_agg(epoch ORDER BY partition) FROM pgleases.partitions WHERE partition BETWEEN %d AND %d", first, first+at-1))
	session := s.session
	return func() error {
		lease := []string{eventsLease}
		if err := s.send(release, session, leases, numbers, epochs, heirs, lease, []int64{0}, lease, 1, 5000)(); err != nil {
			return err
		}
		return s.send(end, session, 5000)()
	}, err
}

// gives is a plan of the lease, whose partitions nobody owns. The functions tell who shall, and who did.
func (s *eventsSide) gives(heirs int, to, from func(partition int) int) (func() error, error) {
	members, err := one[[]int64](s.ctx, s.pool, "SELECT array_agg(session ORDER BY session) FROM pgleases.members")
	if err != nil {
		return nil, err
	}
	for len(members) < heirs {
		join, err := s.joins()
		if err == nil {
			err = join()
		}
		if err != nil {
			return nil, err
		}
		members = append(members, s.session)
	}
	names, moves, owners := make([]string, heirs), make([]int, s.partitions), make([]string, s.partitions)
	for i := range names {
		names[i] = eventsLease
	}
	for p := range moves {
		moves[p], owners[p] = to(p)+1, fmt.Sprint("gone-", from(p))
	}
	err = s.send(`UPDATE pgleases.partitions SET owner = NULL, target = NULL, owner_id = ($1::text[])[partition + 1]`, owners)()
	if err != nil {
		return nil, err
	}
	if _, err := s.pool.Exec(s.ctx, "VACUUM pgleases.partitions"); err != nil {
		return nil, err
	}
	generation, err := one[int64](s.ctx, s.pool, "SELECT generation FROM pgleases.leases")
	lease := []string{eventsLease}
	return s.send("SELECT pgleases.apply($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::int[], $8::int[], 5000, -1::bigint, '')",
		lease, []int64{generation}, names, members[:heirs], lease, []int{0}, []int{s.partitions - 1}, moves), err
}

// beats is a heartbeat of the first session.
func (s *eventsSide) beats() (func() error, error) {
	text, err := sql.Files.ReadFile("heartbeat.sql") // it writes no events
	if err != nil {
		return nil, err
	}
	started, err := one[float64](s.ctx, s.pool, "SELECT extract(epoch FROM pg_postmaster_start_time())::float8")
	return s.send(strings.TrimSpace(string(text)), 1, 5000, "Infinity", 1, started, 1, "0"), err
}

package store_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// TestDoubleAnswersAsTheServer runs random statements on both, at the same times of a clock that is
// set by hand, and compares the answers, and the tables after each.
func TestDoubleAnswersAsTheServer(t *testing.T) {
	t.Parallel()
	f := stoppedFixture(t)
	f.ctx = t.Context() // without a time limit
	conn := f.conn()
	run := func() (Incarnation, int64) {
		beat := testkit.Must(conn.Heartbeat(f.ctx, 0, 0, Renewal{}))(f)
		return beat.Server, beat.Tables
	}
	began := time.Now().Truncate(time.Second).Add(700 * time.Millisecond) // rounding and cutting off differ
	rapid.Check(t, func(t *rapid.T) {
		_, err := f.sql.PgConn().Exec(f.ctx, `
			TRUNCATE clients, identities, leases, members, partitions, boot_marker, overrides, graces;
			UPDATE server SET accepted_timeline = pgleases.timeline(), generation = 0, next_check_at = 'infinity',
				sessions = 1, unwatched = '0', left_behind = DEFAULT`).ReadAll()
		f.ok(err)
		p := &pair{T: t, f: f, conn: conn, at: began}
		p.double = &fixture{TB: f, ctx: f.ctx, double: fakestore.New()}
		p.double.setClock(time.Now())
		now, tables := run()
		p.double.double.SetRun(now)
		p.double.double.SetTables(tables)
		p.double.double.Edit(func(t *fakestore.Tables, _ int64) { t.Server.AcceptedTimeline = now.Timeline })
		p.twin = p.double.any()
		defer p.endGuards()
		p.advance(0)
		for i := range 3 { // else it takes long to come to anything
			p.register(sessions[i], ids[i], 0, int64(i)<<ProcessBits, 6*time.Second)
			p.join(sessions[i], "one")
			p.join(sessions[i], "two")
		}
		p.setMarker(1)
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {
				if real, double := p.f.tables(), p.double.tables(); !sameTables(real, double) {
					t.Fatalf("the tables of a server:\n%+v\nof its double:\n%+v", real, double)
				}
				p.readOwners("one")
			},
			"register": func(*rapid.T) {
				id := draw(p, "id", ids)
				incarnation := draw(p, "incarnation", []int64{0, 0, 1})
				if incarnation == 1 {
					last := p.double.tables().Identities[id].Incarnation
					incarnation = last + draw(p, "less or more", []int64{-1, 0, 0, 1})
				}
				process := draw(p, "program", []int64{0, 1, 2})<<ProcessBits + draw(p, "client", []int64{0, 1, 2})
				session := p.session()
				if c, ok := p.double.tables().Clients[session]; !ok || c.Incarnation < 0 {
					// The session owns its partitions again, and no event says so. Clients draw a new
					// session for each registration.
					p.owners = nil
				}
				ttl := draw(p, "TTL", []time.Duration{time.Second, 6 * time.Second, time.Minute})
				p.register(session, id, max(incarnation, 0), process, ttl)
			},
			"superseder": func(*rapid.T) {
				id := draw(p, "id", ids)
				p.same("superseder", func(c engine.Conn) (any, error) {
					newest, err := c.Superseder(f.ctx, id)
					return spelled(newest), err
				})
			},
			"heartbeat": func(*rapid.T) { p.heartbeat(p.session()) },
			"marker": func(*rapid.T) {
				if draw(p, "after a crash", []bool{true, false}) {
					p.f.setMarker(0)
					p.double.setMarker(0)
				}
				p.setMarker(draw(p, "marker", []int64{1, 2}))
			},
			"accept": func(*rapid.T) {
				run := p.run()
				watched := draw(p, "watched", durations)
				generation := draw(p, "server generation", []int64{0, 1, 300_000_000})
				p.same("accept", func(c engine.Conn) (any, error) {
					return c.AcceptServer(f.ctx, watched, run, generation)
				})
			},
			"reject": func(*rapid.T) {
				generation := draw(p, "server generation", []int64{1, 400_000_000})
				timeline := draw(p, "timeline", []int64{p.run().Timeline, -1})
				p.same("reject", func(c engine.Conn) (any, error) {
					return nil, c.RejectServer(f.ctx, timeline, generation)
				})
			},
			"end": func(*rapid.T) {
				session := p.session()
				p.same("end", func(c engine.Conn) (any, error) { return c.End(f.ctx, session) })
			},
			"join": func(*rapid.T) { p.join(p.session(), draw(p, "lease", leases)) },
			"read": func(*rapid.T) {
				session, names := p.session(), some(p, "leases", leases)
				p.same("read", func(c engine.Conn) (any, error) {
					reads, err := c.Read(f.ctx, session, names)
					slices.SortFunc(reads, func(a, b LeaseRead) int { return cmp.Compare(a.Name, b.Name) })
					for _, r := range reads { // the double does not store the actor and the reason
						clear(r.Paused)
						clear(r.Drained)
					}
					return reads, err
				})
			},
			"owners": func(*rapid.T) {
				var spans []Span
				for _, name := range some(p, "leases", leases) {
					first := draw(p, "first", []int{0, 1})
					last := first + draw(p, "more", []int{0, 1, 100})
					spans = append(spans, Span{Lease: name, First: first, Last: last})
				}
				p.same("owners", func(c engine.Conn) (any, error) {
					found, err := c.Owners(f.ctx, spans)
					by := make(map[string]string) // one owner has its partitions in any order, and owners have none
					for span, of := range found {
						by[fmt.Sprint(span)] = fmt.Sprint(of.Partitions, of.Generation)
						for _, o := range of.Owners {
							for i, partition := range o.Partitions {
								by[fmt.Sprint(span, partition)] += fmt.Sprint(o.ID, o.Metadata, o.Epochs[i])
							}
						}
					}
					return by, err
				})
			},
			"release": func(*rapid.T) {
				session, releases := p.releases()
				var leaving []Leave
				for _, name := range some(p, "leaving", leases) {
					generation := p.double.tables().Leases[name].Generation
					leave := Leave{
						Lease:      name,
						Now:        draw(p, "now", []bool{true, true, false}),
						Returns:    draw(p, "returns", []bool{true, false}),
						Planned:    draw(p, "planned at", []int64{0, generation - 1, generation}),
						Successors: make(map[int]int64),
					}
					for _, r := range releases {
						leave.Successors[r.Partition] = draw(p, "successor", orNone)
					}
					leaving = append(leaving, leave)
				}
				last := draw(p, "last join", []int64{0, 2, 2, 2})
				p.same("release", func(c engine.Conn) (any, error) {
					return c.Release(f.ctx, session, releases, leaving, last)
				})
			},
			"announce": func(*rapid.T) {
				names, sessions := some(p, "leases", leases), some(p, "sessions", sessions)
				p.same("announce", func(c engine.Conn) (any, error) { return nil, c.Announce(f.ctx, names, sessions) })
			},
			"fence": func(*rapid.T) {
				session, busy := p.releases()
				p.same("fence", func(c engine.Conn) (any, error) { return nil, c.Fence(f.ctx, session, busy) })
			},
			"evict": func(*rapid.T) {
				run, watched, ttl := p.run(), draw(p, "watched", durations), draw(p, "own TTL", durations)
				behind := draw(p, "behind the clock", []time.Duration{0, 0, time.Second, -time.Second})
				cutoff := p.at.Add(-behind).UnixMicro()
				p.same("evict", func(c engine.Conn) (any, error) { return c.Evict(f.ctx, cutoff, watched, ttl, run) })
			},
			"claim": func(*rapid.T) {
				names := some(p, "leases", leases)
				p.same("claim", func(c engine.Conn) (any, error) { return c.Claim(f.ctx, names) })
			},
			"snapshot": func(*rapid.T) { p.snapshot() },
			"apply": func(*rapid.T) {
				read := p.snapshot()
				var places []place
				for i := range read {
					for number := range read[i].Owners {
						places = append(places, place{read[i].Name, number})
					}
					read[i].Unowned = draw(p, "without an owner", [][]int{nil, nil, {0}, {0, 1}, {0, 2}})
					read[i].Generation += draw(p, "generations since", []int64{0, 0, 0, 0, 0, 0, 1})
				}
				var moves []Move
				for _, k := range some(p, "moves", places) {
					target := draw(p, "target", orNone)
					moves = append(moves, Move{Lease: k.lease, Partition: k.number, Target: target})
				}
				next := draw(p, "next plan", []NextPlan{onlyLeftOver, onlyLeftOver, {}, {After: time.Second}})
				p.same("apply", func(c engine.Conn) (any, error) {
					read := slices.Clone(read)
					applied, err := c.Apply(f.ctx, read, moves, next)
					return fmt.Sprintf("%+v of %+v", applied, read), err
				})
			},
			"override": func(*rapid.T) {
				w, to := p.override()
				until := draw(p, "until", []int64{
					0, 0, p.at.Add(time.Second).UnixMicro(), p.at.Add(time.Minute).UnixMicro(), p.at.UnixMicro(),
				})
				force := draw(p, "force", []bool{true, false})
				p.sameVerb(w, func(f *fixture) error { return f.pin(w, to, until, force) })
			},
			"take back": func(*rapid.T) {
				w, _ := p.override()
				p.sameVerb(w, func(f *fixture) error { return f.back(w) })
			},
			"evict client": func(*rapid.T) {
				id := draw(p, "id", ids)
				p.sameVerb(id, func(f *fixture) error { return f.evictClient(id) })
			},
			"guard": func(*rapid.T) {
				if all := p.partitions(); len(all) > 0 && len(p.guards) < 3 {
					k := draw(p, "partition", all)
					epoch := p.double.tables().Partitions[k.lease][k.number].Epoch
					epoch += draw(p, "off by", []int64{0, 0, 1})
					real, double := p.f.guarding(k.lease, k.number, epoch), p.double.guarding(k.lease, k.number, epoch)
					if (real == nil) != (double == nil) {
						t.Fatalf("guard of %v under %d: refused %v on a server, %v on its double",
							k, epoch, real == nil, double == nil)
					}
					if real != nil {
						p.guards = append(p.guards, guards{k.lease, real, double})
					}
				}
			},
			"end of guards": func(*rapid.T) { p.endGuards() },
			"drop": func(*rapid.T) {
				lease := draw(p, "lease", leases)
				if p.isGuarded(lease) {
					return // it would wait for the guards
				}
				if draw(p, "all have left", []bool{true, true, false}) {
					p.leave(lease)
				}
				next := draw(p, "next", []int64{0, 0, 0, 7})
				real, double := p.f.drop(lease, next), p.double.drop(lease, next)
				if said(real) != said(double) {
					t.Fatalf("drop of %s: %v on a server, %v on its double", lease, real, double)
				}
			},
			"replace": func(*rapid.T) {
				lease, successor := draw(p, "lease", leases), draw(p, "successor", leases)
				if lease == successor || p.isGuarded(lease) {
					return // it would be refused, or wait for the guards
				}
				if draw(p, "all have left", []bool{true, true, false}) {
					p.leave(lease)
				}
				partitions := draw(p, "partitions", []int64{2, 3, 7})
				real := p.f.replace(lease, successor, partitions)
				double := p.double.replace(lease, successor, partitions)
				if said(real) != said(double) {
					t.Fatalf("%s replaced by %s: %v on a server, %v on its double", lease, successor, real, double)
				}
			},
			"time": func(*rapid.T) {
				p.advance(draw(p, "passes", []time.Duration{
					time.Millisecond, 60 * time.Millisecond, 260 * time.Millisecond, 1100 * time.Millisecond,
					5 * time.Second, 7 * time.Second, 2 * time.Minute, 25 * time.Hour, -time.Minute, -time.Hour,
				}))
			},
			"failover": func(*rapid.T) {
				for _, side := range []*fixture{p.f, p.double} {
					side.server(func(s *fakestore.Server, _ int64) { s.AcceptedTimeline = 77 })
				}
			},
			"orphan": func(*rapid.T) { // a row that an incomplete protocol left behind
				session, all := p.session(), p.partitions()
				if len(all) == 0 {
					return
				}
				p.owners = nil // no event says it
				k := draw(p, "partition", all)
				what := draw(p, "what", []string{"client", "member", "owner", "target"})
				for _, side := range []*fixture{p.f, p.double} {
					side.edit(func(t *fakestore.Tables, _ int64) {
						switch what {
						case "client":
							delete(t.Clients, session)
						case "member":
							deleteMembers(t, k.lease, func(m fakestore.Member) bool { return m.Session == session })
						case "owner":
							t.Partitions[k.lease][k.number].Owner = session
						case "target":
							t.Partitions[k.lease][k.number].Target = session
						}
					})
				}
			},
		})
	})
}

var (
	sessions  = []int64{11, 12, 13, 14, 15}
	ids       = []string{"a", "b", "c"}
	leases    = []string{"one", "two", "three"}
	sizes     = map[string]int{"one": 3, "two": 4, "three": 1}
	durations = []time.Duration{0, time.Second, 6 * time.Second, time.Hour}
)

// A pair is a server and its double, at the same instant.
type pair struct {
	*rapid.T
	f      *fixture
	double *fixture
	conn   engine.Conn
	twin   engine.Conn
	at     time.Time
	guards []guards

	owners *reader // of the server's owners of one lease; nil: they were not read yet
}

// guards are open transactions on both.
type guards struct {
	lease        string
	real, double func()
}

type place struct {
	lease  string
	number int
}

func draw[T any](p *pair, what string, from []T) T { return rapid.SampledFrom(from).Draw(p.T, what) }

// some draws a few elements, each at most once.
func some[T comparable](p *pair, what string, from []T) []T {
	if len(from) == 0 {
		return nil
	}
	return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, len(from), rapid.ID[T]).Draw(p.T, what)
}

// orNone are the sessions, and 0.
var orNone = append([]int64{0}, sessions...)

func (p *pair) session() int64 { return draw(p, "session", sessions) }

// run draws a server incarnation, usually the present one.
func (p *pair) run() Incarnation {
	run := p.double.double.Run()
	switch draw(p, "run", []int{0, 0, 0, 0, 0, 0, 1, 2, 3}) {
	case 1:
		run.Timeline++
	case 2:
		run.Started++
	case 3:
		run.Marker++
	}
	return run
}

// releases draws partitions to release, and a session, which usually owns one of them.
func (p *pair) releases() (session int64, releases []Release) {
	session = p.session()
	for _, k := range some(p, "partitions", p.partitions()) {
		row := p.double.tables().Partitions[k.lease][k.number]
		epoch := row.Epoch + draw(p, "off by", []int64{0, 0, 0, 0, 1})
		releases = append(releases, Release{Lease: k.lease, Partition: k.number, Epoch: epoch})
		if row.Owner != 0 && draw(p, "by its owner", []bool{true, true, true, false}) {
			session = row.Owner
		}
	}
	return session, releases
}

// partitions are all existing partitions.
func (p *pair) partitions() (all []place) {
	partitions := p.double.tables().Partitions
	for _, name := range slices.Sorted(maps.Keys(partitions)) {
		for number := range partitions[name] {
			all = append(all, place{name, number})
		}
	}
	return all
}

// advance moves the clock of both.
func (p *pair) advance(by time.Duration) {
	p.at = p.at.Add(by)
	p.f.setClock(p.at)
	p.double.setClock(p.at)
}

// isGuarded reports whether a guarded transaction of a lease is open.
func (p *pair) isGuarded(lease string) bool {
	return slices.ContainsFunc(p.guards, func(g guards) bool { return g.lease == lease })
}

func (p *pair) endGuards() {
	for _, g := range p.guards {
		g.real()
		g.double()
	}
	p.guards = nil
}

func (p *pair) register(session int64, id string, incarnation, process int64, ttl time.Duration) {
	p.same("register", func(c engine.Conn) (any, error) {
		r := registration(session, id, incarnation, process, ttl)
		r.Host, r.StartedAt = "host of "+id, r.StartedAt.UTC()
		incarnation, newer, err := c.Register(p.f.ctx, r)
		return fmt.Sprint(incarnation, spelled(newer)), err
	})
}

func (p *pair) setMarker(marker int64) {
	p.same("marker", func(c engine.Conn) (any, error) { return nil, c.SetMarker(p.f.ctx, marker) })
}

func (p *pair) heartbeat(session int64) {
	watched := draw(p, "watched", durations)
	renewed := p.at.Add(-draw(p, "renewed before", durations))
	last := Renewal{Clock: renewed.UnixMicro(), Marker: draw(p, "mark then", []int64{0, 1, 2})}
	p.same("heartbeat", func(c engine.Conn) (any, error) {
		beat, err := c.Heartbeat(p.f.ctx, session, watched, last)
		slices.SortFunc(beat.Leases, func(a, b LeaseBeat) int { return cmp.Compare(a.Name, b.Name) })
		return beat, err
	})
}

func (p *pair) join(session int64, lease string) {
	partitions := sizes[lease] + draw(p, "more partitions", []int{0, 0, 0, 0, 0, 0, 0, 1})
	number := draw(p, "number of the join", []int64{1, 1, 2, 3})
	terms := Terms{
		Weight:         draw(p, "weight", []int{1, 1, 1, 2, 0}),
		RebalanceDelay: draw(p, "rebalance delay", []time.Duration{0, 0, time.Second, 10 * time.Second}),
		MaxPartitions:  draw(p, "ceiling", []int{0, 0, 1, 2}),
		RestartGrace:   draw(p, "restart grace", []time.Duration{0, 0, 3 * time.Second, 10 * time.Second}),
	}
	p.same("join", func(c engine.Conn) (any, error) {
		return c.Join(p.f.ctx, session, lease, partitions, terms, number)
	})
}

func (p *pair) snapshot() (read []LeaseSnapshot) {
	names, alone := some(p, "planned", leases), draw(p, "alone", []bool{false, false, true})
	p.same("snapshot", func(c engine.Conn) (any, error) {
		var err error
		read, err = c.Snapshot(p.f.ctx, names, alone)
		return read, err
	})
	return read
}

// readOwners compares what a reader of changes knows with the owners. It forgets what it knows while
// owners may end without a change: while a session has expired, and while a partition is owned by a
// session that is no member. Clients leave and end when they own nothing.
func (p *pair) readOwners(lease string) {
	tables := p.f.tables()
	for _, c := range tables.Clients {
		if c.ExpiresAt <= p.at.UnixMicro() {
			p.owners = nil
			return
		}
	}
	for _, row := range tables.Partitions[lease] {
		_, isMember := tables.Members[fakestore.Member{Lease: lease, Session: row.Owner}]
		if row.Owner != 0 && !isMember {
			p.owners = nil
			return
		}
	}
	r, anew := p.owners, new(reader)
	anew.read(p.f, p.conn, lease)
	if r == nil {
		p.owners = anew
		return
	}
	r.read(p.f, p.conn, lease)
	if r.ids() != anew.ids() {
		p.Fatalf("a reader of changes knows %v, the owners are %v", r.owners, anew.owners)
	}
}

var epochs = regexp.MustCompile(` \d+\b`)

// ids returns the owners without their epochs, because a fence raises an epoch, and is no change.
func (r *reader) ids() string { return epochs.ReplaceAllString(fmt.Sprint(r.owners), "") }

// override draws an override, and the client that it pins to.
func (p *pair) override() (w fakestore.Override, to string) {
	w.Verb = draw(p, "verb", []string{"drain", "cordon", "pause", "freeze", "pin"})
	switch w.Verb {
	case "drain", "cordon":
		w.Client = draw(p, "client", ids)
	case "pin":
		w.Partition, to = draw(p, "partition", []int{0, 1, 3, 4}), draw(p, "client", ids)
		fallthrough
	default:
		w.Lease = draw(p, "lease", leases)
	}
	return w, to
}

// sameVerb runs an operator's verb on both.
func (p *pair) sameVerb(what any, verb func(*fixture) error) {
	p.Helper()
	if real, double := verb(p.f), verb(p.double); said(real) != said(double) {
		p.Fatalf("%v: %v on a server, %v on its double", what, real, double)
	}
}

// same runs a statement on both, and checks that the answers are equal.
func (p *pair) same(what string, statement func(c engine.Conn) (any, error)) {
	p.Helper()
	real, err := statement(p.conn)
	double, err2 := statement(p.twin)
	if got, want := fmt.Sprintf("%+v %v", double, err2), fmt.Sprintf("%+v %v", real, err); got != want {
		p.Fatalf("%s: a server says\n%s\nits double\n%s", what, want, got)
	}
}

// spelled returns a process as text.
func spelled(process *Process) string {
	if process == nil {
		return "nobody"
	}
	return fmt.Sprintf("%+v", *process)
}

// leave removes the members of a lease on both sides.
func (p *pair) leave(lease string) {
	for _, side := range []*fixture{p.f, p.double} {
		side.edit(func(t *fakestore.Tables, _ int64) {
			deleteMembers(t, lease, func(fakestore.Member) bool { return true })
		})
	}
}

// deleteMembers deletes members of a lease, and changes the lease, as every statement does that
// changes members: heartbeats return the leases of a session only after a change of one of them.
func deleteMembers(t *fakestore.Tables, lease string, which func(fakestore.Member) bool) {
	maps.DeleteFunc(t.Members, func(m fakestore.Member, _ fakestore.Membership) bool {
		return m.Lease == lease && which(m)
	})
	if l, known := t.Leases[lease]; known {
		l.Generation++
		t.Leases[lease] = l
	}
}

// said returns the kind of an error.
func said(err error) string {
	switch {
	case errors.Is(err, fakestore.ErrInUse):
		return "in use"
	case errors.Is(err, fakestore.ErrNoLease):
		return "no lease"
	case errors.Is(err, fakestore.ErrUnknown):
		return "unknown"
	case errors.Is(err, fakestore.ErrReplaced):
		return "cannot be replaced so"
	}
	return fmt.Sprint(err)
}

func sameTables(a, b fakestore.Tables) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

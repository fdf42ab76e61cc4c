package store_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A locker is a client with a connection of its application.
type locker struct {
	*client
	table interface {
		Acquire(context.Context, LockRequest, func(LockAnswer, error)) (LockAnswer, bool, error)
		Release(context.Context, time.Duration, int64, LockRelease, Incarnation) (LockOutcome, bool, error)
		List(ctx context.Context, prefix, after string, most int) ([]LockRow, error)
	}
	app    *pgx.Conn // on a server, as what follows
	locks  *Locks
	known  Incarnation
	nonces map[string]int64 // of the last acquisition, by name
}

// lockerTTL is the TTL of lockers. They send no heartbeats, and none expires by itself, however slow
// the machine is.
const lockerTTL = 10 * time.Minute

func (f *fixture) locker(id string) *locker {
	f.Helper()
	c := f.clientTTL(id, lockerTTL)
	l := &locker{client: c, known: c.run(), nonces: make(map[string]int64)}
	if f.double != nil {
		l.table = f.double.LockTable()
		return l
	}
	l.app = f.session()
	l.locks = locksOn(l.app, f.schema, 20_000)
	l.table = onServer{l.locks, l.app}
	return l
}

// locksOn are the statements on one connection.
func locksOn(conn *pgx.Conn, schema string, wait int) *Locks {
	return &Locks{Statements: StatementsFor(schema), LockWait: wait,
		OnConn: func(_, working context.Context, use func(context.Context, *pgx.Conn) error) error {
			return use(working, conn)
		}}
}

// onServer is a table of locks on one connection.
type onServer struct {
	*Locks
	app *pgx.Conn
}

func (s onServer) List(ctx context.Context, prefix, after string, most int) ([]LockRow, error) {
	return s.Locks.List(ctx, s.app, prefix, after, most)
}

// exec executes a statement on the application's connection.
func (l *locker) exec(statement string, args ...any) {
	l.f.Helper()
	testkit.Must(l.app.Exec(l.f.ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...))(l.f)
}

// tomorrow is a time limit that no test reaches.
func tomorrow() int64 { return time.Now().Add(24 * time.Hour).UnixMicro() }

func (l *locker) request(name string, shared, waits bool) LockRequest {
	return LockRequest{
		Name: name, Session: l.session, Nonce: random(), Shared: shared, Waits: waits,
		Latest: tomorrow(), Server: l.known,
	}
}

func (l *locker) send(r LockRequest) LockAnswer {
	l.f.Helper()
	answer, _, err := l.table.Acquire(l.f.ctx, r, nil)
	l.f.ok(err)
	return answer
}

func (l *locker) acquire(name string, shared, waits bool) LockAnswer {
	l.f.Helper()
	r := l.request(name, shared, waits)
	answer := l.send(r)
	if answer.Outcome == LockGranted || answer.Outcome == LockWaits {
		l.nonces[name] = r.Nonce
	}
	return answer
}

// says checks the outcome of an acquisition.
func (l *locker) says(what string, want LockOutcome, name string, shared, waits bool) LockAnswer {
	l.f.Helper()
	answer := l.acquire(name, shared, waits)
	expect(l.f.TB, answer.Outcome, want, what)
	return answer
}

const (
	exclusive, shared = false, true
	try, wait         = false, true
)

// give gives the last acquisition of a name up, on the application's connection, and reports what
// became of it.
func (l *locker) give(name string) LockOutcome {
	l.f.Helper()
	return l.release(LockRelease{Name: name, Nonce: l.nonces[name]})
}

func (l *locker) release(r LockRelease) LockOutcome {
	l.f.Helper()
	became, _, err := l.table.Release(l.f.ctx, time.Minute, l.session, r, l.known)
	l.f.ok(err)
	return became
}

// token looks at the last acquisition of a name: 0: it waits; -1: it does not exist.
func (l *locker) token(name string) int64 {
	l.f.Helper()
	found, run, err := l.LookAtLocks(l.f.ctx, l.session, []int64{l.nonces[name]}, false)
	l.f.ok(err)
	expect(l.f.TB, run, Incarnation{Timeline: l.known.Timeline, Started: l.known.Started}, "run")
	if len(found) == 0 {
		return -1
	}
	return found[0].Token
}

// sweeps removes the rows of expired sessions, all of them or not.
func (l *locker) sweeps(all bool) {
	l.f.Helper()
	expect(l.f.TB, testkit.Must(l.SweepLocks(l.f.ctx))(l.f), all, "all is swept")
}

// queue is all that hold and await a lock: h for held, w for waits, s for shared.
func (f *fixture) queue(name string) string {
	f.Helper()
	if f.double != nil {
		var words []string
		f.double.Look(func(t *fakestore.Tables, _ int64) {
			for _, l := range t.Locks[name] {
				word := cmp.Or(t.Clients[l.Session].ID, "-") + "h"
				if l.Token == 0 {
					word = word[:len(word)-1] + "w"
				}
				if l.Shared {
					word += "s"
				}
				words = append(words, word)
			}
		})
		return strings.Join(words, " ")
	}
	return strings.ReplaceAll(f.text(`
		SELECT coalesce(c.id, '-') || CASE WHEN l.token IS NULL THEN 'w' ELSE 'h' END || CASE WHEN l.shared THEN 's' ELSE '' END
		FROM locks AS l LEFT JOIN clients AS c ON c.session = l.session WHERE l.name = $1 ORDER BY l.ticket`, name), "\n", " ")
}

// guardLock opens a transaction that is guarded by a lock.
func (f *fixture) guardLock(name string, token int64) (end func(), err error) {
	f.Helper()
	tx := testkit.Must(f.session().Begin(f.ctx))(f)
	guard := StatementsFor(f.schema).LockGuard
	_, err = tx.Exec(f.ctx, guard, pgx.QueryExecModeSimpleProtocol, name, token, int64(60_000))
	return func() { f.ok(tx.Rollback(f.ctx)) }, err
}

func TestALockHasOneHolderOrManyReadersAndNoneIsPassed(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.locker("a"), f.locker("b"), f.locker("c")
		first := a.says("free", LockGranted, "x", exclusive, try)
		answer := b.says("held", LockHeld, "x", exclusive, try)
		expect(t, answer.Holder, "a", "holder")
		expect(t, answer.Host, "host", "host")
		expect(t, answer.PID, 4711, "pid")
		if !answer.LivesUntil.After(answer.Since) {
			t.Errorf("it lives until %v, and holds since %v", answer.LivesUntil, answer.Since)
		}
		a.says("held by itself", LockHeld, "x", exclusive, try)
		b.says("held by a writer", LockHeld, "x", shared, try)
		a.says("another name", LockGranted, "y", exclusive, try)
		b.says("it waits", LockWaits, "x", exclusive, wait)
		c.says("behind it", LockWaits, "x", shared, wait)
		expect(t, f.queue("x"), "ah bw cws", "queue")
		expect(t, a.give("x"), LockReleased, "release")
		expect(t, f.queue("x"), "bh cws", "queue")
		second := b.token("x")
		expect(t, second > first.Token, true, "the token rises")
		expect(t, b.give("x"), LockReleased, "release")
		a.says("with a reader", LockGranted, "x", shared, try)
		b.says("a writer waits", LockWaits, "x", exclusive, wait)
		d := f.locker("d")
		d.says("no reader passes it", LockHeld, "x", shared, try)
		d.says("it waits behind it", LockWaits, "x", shared, wait)
		expect(t, f.queue("x"), "chs ahs bw dws", "queue")
		expect(t, c.give("x"), LockReleased, "release")
		expect(t, f.queue("x"), "ahs bw dws", "queue")
		expect(t, a.give("x"), LockReleased, "release")
		expect(t, f.queue("x"), "bh dws", "queue")
		expect(t, b.give("x"), LockReleased, "release")
		expect(t, d.give("x"), LockReleased, "release")
		expect(t, f.queue("x"), "", "rows of a free lock")
	})
}

func TestReadersThatStandTogetherGetTheLockTogether(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c, d := f.locker("a"), f.locker("b"), f.locker("c"), f.locker("d")
		a.says("a", LockGranted, "x", exclusive, try)
		b.says("b", LockWaits, "x", shared, wait)
		c.says("c", LockWaits, "x", shared, wait)
		d.says("d", LockWaits, "x", exclusive, wait)
		a.give("x")
		expect(t, f.queue("x"), "bhs chs dw", "queue")
	})
}

func TestWhoGivesUpLeavesTheQueue(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.locker("a"), f.locker("b"), f.locker("c")
		a.says("a", LockGranted, "x", shared, try)
		b.says("b", LockWaits, "x", exclusive, wait)
		c.says("c", LockWaits, "x", shared, wait)
		expect(t, b.give("x"), LockReleased, "release of a place")
		expect(t, f.queue("x"), "ahs chs", "queue")
	})
}

// Only an eviction shows that a session has ended: a late session may be renewed first.
func TestALockIsTakenFromNobodyWhoWasNotEvicted(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.locker("a"), f.locker("b")
		first := a.says("a", LockGranted, "x", exclusive, try)
		f.expire(a.client)
		answer := b.says("expired", LockExpired, "x", exclusive, try)
		expect(t, answer.Holder, "a", "the expired holder")
		b.says("expired", LockWaits, "x", exclusive, wait)
		inTheWay := b.says("awaited by a live session", LockHeld, "x", exclusive, try)
		expect(t, inTheWay.Holder, "b", "the live session in the way")
		expect(t, b.token("x"), 0, "token of who waits")
		expect(t, len(b.evict().IDs), 1, "evicted")
		if token := b.token("x"); token <= first.Token {
			t.Errorf("token %d after %d", token, first.Token)
		}
	})
}

func TestALockIsHeldAsLongAsOneOfItsReadersLives(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.locker("a"), f.locker("b"), f.locker("c")
		a.says("a", LockGranted, "x", shared, try)
		b.says("b", LockGranted, "x", shared, try)
		f.expire(a.client)
		expect(t, c.says("b lives", LockHeld, "x", exclusive, try).Holder, "b", "the live reader")
		c.says("a reader meets no writer", LockGranted, "x", shared, try)
		expect(t, c.give("x"), LockReleased, "release")
		f.expire(b.client)
		expect(t, c.says("both have expired", LockExpired, "x", exclusive, try).Holder, "a", "the first reader")
	})
}

// What was committed while a statement waited is not in the snapshot that it began with.
func TestWhoWaitedForTheMutexSeesWhatWasDoneUnderIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.locker("a")
	f.exec("INSERT INTO locks VALUES ('x', 1, 1, 1, false, 1, clock_timestamp())") // of an evicted session
	release := f.lock(`SELECT pg_advisory_xact_lock(lock_mutex('x'));
		DELETE FROM locks;
		INSERT INTO clients SELECT 77, 'new', 1, now() + interval '1 hour', '1 hour', 'host', 1, now();
		INSERT INTO locks VALUES ('x', 2, 77, 5, false, 9, clock_timestamp())`)
	asking := later(func() string {
		answer, _, err := a.locks.Acquire(f.ctx, a.request("x", exclusive, try), nil)
		return fmt.Sprint(answer.Outcome, err)
	})
	f.blocked(a.app)
	release()
	expect(t, asking(), "held<nil>", "outcome")
	expect(t, f.queue("x"), "newh", "queue")
}

func TestAnOpenGuardKeepsTheLockWithoutWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.locker("a"), f.locker("b")
	token := a.says("a", LockGranted, "x", exclusive, try).Token
	end := testkit.Must(f.guardLock("x", token))(f)
	a.locks.LockWait, b.locks.LockWait = 100, 100 // a statement that waits for the guard fails
	expect(t, a.give("x"), LockBusy, "release")
	f.exec("DELETE FROM clients WHERE id = 'a'")
	b.says("of an expired holder", LockHeld, "x", exclusive, try)
	b.says("of an expired holder", LockWaits, "x", exclusive, wait)
	expect(t, b.token("x"), 0, "token of who waits")
	b.sweeps(false)
	if end, err := f.guardLock("x", token); Code(err) != CodeNotOwner {
		t.Errorf("guard of an evicted session: %v", err)
	} else {
		end()
	}
	end()
	b.sweeps(true)
	expect(t, f.queue("x"), "bh", "queue")
}

func TestLockGuardPassesForTheHoldersToken(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b := f.locker("a"), f.locker("b")
	token := a.says("a", LockGranted, "x", exclusive, try).Token
	b.says("b", LockWaits, "x", exclusive, wait)
	for _, c := range []struct {
		name   string
		token  int64
		passes bool
	}{{"x", token, true}, {"x", token - 1, false}, {"x", token + 1, false}, {"x", 0, false}, {"y", token, false}} {
		end, err := f.guardLock(c.name, c.token)
		if (err == nil) != c.passes || err != nil && Code(err) != CodeNotOwner {
			t.Errorf("%+v: %v", c, err)
		}
		end()
	}
	a.give("x")
	if _, err := f.guardLock("x", token); Code(err) != CodeNotOwner {
		t.Errorf("after the release: %v", err)
	}
}

func TestGuardDuringLockReleaseIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.locker("a")
	token := a.says("a", LockGranted, "x", exclusive, try).Token
	commit := f.lock("DELETE FROM locks")
	late := f.session()
	guarding := later(func() error { return failure(late.Exec(f.ctx, "SELECT guard_lock('x', $1)", token)) })
	f.blocked(late)
	commit()
	if err := guarding(); Code(err) != CodeNotOwner {
		t.Error(err)
	}
}

// If a token were drawn before the mutex, a session that waited for the mutex could have a lower
// one than a session that came first.
func TestTokensRiseInTheOrderOfAcquisitions(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	f.exec(`CREATE TABLE public.journal (n serial, name text, token bigint);
		CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			INSERT INTO public.journal (name, token) VALUES (NEW.name, NEW.token); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER INSERT OR UPDATE ON locks FOR EACH ROW WHEN (NEW.token IS NOT NULL) EXECUTE FUNCTION public.note()`)
	lockers := make([]func() error, 6)
	for i := range lockers {
		l := f.locker(fmt.Sprint("client ", i))
		lockers[i] = later(func() error {
			for n := range 60 {
				answer, _, err := l.locks.Acquire(f.ctx, l.request("x", exclusive, try), nil)
				if err != nil {
					return err
				}
				if answer.Outcome == LockGranted {
					_, err = l.app.Exec(f.ctx, "DELETE FROM locks WHERE session = $1", l.session)
				}
				if err != nil {
					return fmt.Errorf("pair %d: %w", n, err)
				}
			}
			return nil
		})
	}
	for _, ended := range lockers {
		f.ok(ended())
	}
	expect(t, value[int](f, "SELECT count(*) FROM public.journal") > 20, true, "there were many")
	expect(t, f.text(`
		SELECT n FROM (SELECT n, token, lag(token) OVER (ORDER BY n) AS before FROM public.journal) AS j
		WHERE token <= before`), "", "acquisitions whose token is not higher")
	a := f.locker("a")
	before := a.says("a", LockGranted, "y", exclusive, try).Token
	a.give("y")
	f.exec("UPDATE server SET generation = 7; SELECT setval('lock_tokens', 1)")
	after := a.says("a", LockGranted, "y", exclusive, try).Token
	expect(t, ServerGenerationOf(after), 7, "server generation of a token")
	expect(t, after > before, true, "a token of a later server generation is higher")
	b := f.locker("b")
	b.says("b", LockWaits, "y", exclusive, wait)
	a.give("y")
	expect(t, ServerGenerationOf(b.token("y")), 7, "server generation of a token of who waited")
}

func TestOnlyReadCommittedChangesLocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.locker("a")
	for _, level := range []string{"repeatable read", "serializable"} {
		a.exec("SET default_transaction_isolation = '" + level + "'")
		a.says(level+" is the default", LockGranted, "x", exclusive, try)
		expect(t, a.give("x"), LockReleased, "release")
		for _, call := range []string{
			"lock_acquire('x', 1, 1, false, false, 1, 1, 1, 1, 1, false)",
			"lock_release('x', 1, 1, 0, 1, 1, 1, 1, false)",
			"lock_releases(1, '{x}', '{1}', '{0}', 1, 1, 1, 1, false)",
			"lock_look(1, '{1}', false, 1, false)",
			"lock_sweep(1, 1, false)",
		} {
			if _, err := a.app.Exec(f.ctx, "SELECT "+call); Code(err) != CodeIsolation {
				t.Errorf("%s, %s: %v", level, call, err)
			}
		}
	}
}

// A grant has to be flushed before its holder learns of it. A release that grants no lock need not
// be: the next statement flushes it.
func TestLockGrantIsDurableUnderAnySetting(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b := f.locker("a"), f.locker("b")
	for given, durable := range map[string]string{
		"off": "on", "on": "on", "local": "local", "remote_apply": "remote_apply",
	} {
		a.exec("SET synchronous_commit = " + given)
		leaves := func(want, what string, do func()) {
			t.Helper()
			a.exec("BEGIN")
			do()
			got := valueOn[string](f, a.app, "SELECT current_setting('synchronous_commit')")
			expect(t, got, want, what+", of "+given)
			a.exec("COMMIT")
		}
		take := func() { a.says("a", LockGranted, "x", exclusive, try) }
		give := func() { expect(t, a.give("x"), LockReleased, "release") }
		leaves(durable, "an acquisition", take)
		leaves("off", "a release without a successor", give)
		take()
		b.says("b", LockWaits, "x", exclusive, wait)
		leaves(durable, "a release to who waits", give)
		expect(t, b.give("x"), LockReleased, "release")
		names := []string{"1", "2", "3", "4"}
		for _, name := range names {
			a.says("a", LockGranted, name, exclusive, try)
		}
		leaves(durable, "releases of several", func() {
			nonces := []int64{a.nonces["1"], a.nonces["2"], a.nonces["3"], a.nonces["4"]}
			a.exec(StatementsFor(f.schema).LockReleases, a.session, names, nonces, make([]int64, 4),
				a.known.Timeline, a.known.Started, a.known.Marker, 20_000, "")
		})
		for _, name := range names {
			expect(t, f.queue(name), "", "queue")
		}
	}
}

// Otherwise it would search for waiting sessions while one of them is on its way into the queue.
func TestAReleaseWaitsForTheMutex(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a := f.locker("a")
	a.says("a", LockGranted, "x", exclusive, try)
	release := f.lock("SELECT pg_advisory_xact_lock(lock_mutex('x'))")
	releasing := later(func() string {
		held := LockRelease{Name: "x", Nonce: a.nonces["x"]}
		became, _, err := a.locks.Release(f.ctx, time.Minute, a.session, held, a.known)
		return fmt.Sprint(became, err)
	})
	f.blocked(a.app)
	release()
	expect(t, releasing(), "released<nil>", "outcome")
}

// The application's pool may lead to a clone, or to an old primary.
func TestOtherServerGrantsAndReleasesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.locker("a")
	for _, other := range []Incarnation{
		{a.known.Timeline + 1, a.known.Started, a.known.Marker},
		{a.known.Timeline, a.known.Started - 1, a.known.Marker},
		{a.known.Timeline, a.known.Started, a.known.Marker + 1},
		{a.known.Timeline, a.known.Started, 0},
	} {
		r := a.request("x", exclusive, wait)
		r.Server = other
		expect(t, a.send(r).Outcome, LockElsewhere, fmt.Sprint("in ", other))
	}
	expect(t, f.queue("x"), "", "queue")
	a.says("a", LockGranted, "x", exclusive, try)
	run := a.known
	a.known.Marker++
	expect(t, a.give("x"), LockElsewhere, "release in another incarnation")
	a.known = run
	a.known.Started--
	expect(t, a.give("x"), LockElsewhere, "release after another start")
	releases := []LockRelease{{Name: "x", Nonce: a.nonces["x"]}}
	answer := testkit.Must(a.ReleaseLocks(f.ctx, a.session, releases, a.known))(f)
	expect(t, answer.SameRun, false, "release on the client's connection")
	a.known = run
	expect(t, f.queue("x"), "ah", "queue")

	b := f.locker("b")
	b.says("b", LockWaits, "x", exclusive, wait)
	f.exec("UPDATE server SET accepted_timeline = -1")
	b.says("while it is not accepted", LockUnaccepted, "y", exclusive, try)
	expect(t, a.give("x"), LockReleased, "release while it is not accepted")
	expect(t, b.token("x"), 0, "token of who waits while it is not accepted")
	accepted(a.client)
	f.exec("UPDATE server SET accepted_timeline = timeline()") // which the test set to another, to be accepted at once
	expect(t, b.token("x") > 0, true, "granted by the next look")
}

func TestARepeatedAcquisitionReturnsWhatTheFirstGot(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.locker("a"), f.locker("b")
		r := a.request("x", exclusive, try)
		first := a.send(r)
		expect(t, a.send(r), first, "the second answer")
		waits := b.request("x", exclusive, wait)
		expect(t, b.send(waits).Outcome, LockWaits, "outcome")
		expect(t, b.send(waits).Outcome, LockWaits, "outcome of the second")
		expect(t, f.queue("x"), "ah bw", "queue")
		a.nonces["x"] = r.Nonce
		a.give("x")
		expect(t, b.send(waits).Outcome, LockGranted, "outcome of the third")
	})
}

// A message may be delayed for long. After the release of an acquisition whose answer was lost, the
// late message must not acquire the lock without a holder.
func TestAnAcquisitionThatArrivesLateTakesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.locker("a")
		r := a.request("x", exclusive, wait)
		expect(t, a.release(LockRelease{r.Name, r.Nonce, r.Latest}), LockBusy, "release of what may still arrive")
		r.Latest = f.clock() - 1
		const what = "release of what cannot arrive any more"
		expect(t, a.release(LockRelease{r.Name, r.Nonce, r.Latest}), LockAbsent, what)
		expect(t, a.send(r).Outcome, LockLate, "outcome")
		expect(t, f.queue("x"), "", "queue")
	})
}

func TestAReleaseFreesNobodyElses(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.locker("a"), f.locker("b")
		a.says("a", LockGranted, "x", exclusive, try)
		b.nonces["x"] = a.nonces["x"]
		expect(t, b.give("x"), LockAbsent, "release by another session")
		a.nonces["y"], a.nonces["x"] = a.nonces["x"], a.nonces["x"]+1
		expect(t, a.give("x"), LockAbsent, "release under another nonce")
		expect(t, a.give("y"), LockBusy, "release under another name")
		expect(t, f.queue("x"), "ah", "queue")
	})
}

func TestEvictedOrSupersededClientAcquiresNoLock(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.locker("a"), f.locker("b")
		f.kill("a")
		a.says("evicted", LockGone, "x", exclusive, wait)
		f.locker("b")
		b.says("superseded", LockGone, "x", exclusive, wait)
		expect(t, f.queue("x"), "", "queue")
	})
}

func TestASessionThatHoldsALockIsNotEnded(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.locker("a"), f.locker("b")
		a.says("a", LockGranted, "x", exclusive, try)
		b.says("b", LockWaits, "x", exclusive, wait)
		a.end(false)
		b.end(false)
		a.give("x")
		b.give("x")
		a.end(true)
		b.end(true)
	})
}

// A lock on the row of the session would make heartbeats and evictions wait, and cost a multixact
// for each acquisition.
func TestAnAcquisitionLocksNoSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.locker("a")
	a.exec("BEGIN")
	a.says("a", LockGranted, "x", exclusive, try)
	f.exec("BEGIN; SELECT FROM clients FOR UPDATE NOWAIT; ROLLBACK")
	a.exec("ROLLBACK")
}

// A connection keeps the plans that it made when there was no lock.
func TestWhatIsPlannedForAnEmptyTableServesAFullOne(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, statements := f.locker("a"), StatementsFor(f.schema)
	all := func() {
		t.Helper()
		held := a.request("x", exclusive, try)
		token := a.send(held).Token
		a.says("again", LockHeld, "x", exclusive, try)
		a.exec(statements.LockGuard, "x", token, int64(60_000))
		a.exec(statements.LockSweep, 1000, 5000, true)
		a.says("behind", LockWaits, "x", exclusive, wait)
		a.exec(statements.LockLook, a.session, []int64{a.nonces["x"]}, false, 5000, "yes")
		testkit.Must(a.locks.List(f.ctx, a.app, "x", "", 10))(f)
		expect(t, a.release(LockRelease{Name: "x", Nonce: held.Nonce}), LockReleased, "release of who holds it")
		expect(t, a.give("x"), LockReleased, "release")
	}
	f.exec("VACUUM locks, clients, identities") // the planner knows that they are empty, or nearly so
	for range 8 {
		all()
	}
	f.exec(`
		INSERT INTO locks SELECT 'name ' || n, 1, $1, n, false, n, now() FROM generate_series(1, 50000) AS n`, a.session)
	f.exec(`
		INSERT INTO identities SELECT 'id ' || n, 1, 1, now() FROM generate_series(1, 5000) AS n;
		INSERT INTO clients SELECT n, 'id ' || n, 1, now() + interval '1 hour', '1 hour', 'host', 1, now()
		FROM generate_series(1, 5000) AS n`)
	a.exec("BEGIN")
	all()
	for _, table := range []string{"locks", "clients", "identities"} {
		n := valueOn[int64](f, a.app, `
			SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = $1::text::regclass`,
			"pgleases."+table)
		if n > 1000 {
			t.Errorf("they read %d rows of %s", n, table)
		}
	}
	expect(t, f.text(`
		SELECT proname FROM pg_proc WHERE proname ~ '^lock_(turn|acquire|queue|release|look|sweep|list)$'
		AND pronamespace = 'pgleases'::regnamespace AND NOT coalesce('jit=off' = ANY (proconfig), false)`,
	), "", "functions that may be compiled")
}

func TestLockGrantNotifiesTheWaiterOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := f.locker("a"), f.locker("b"), f.locker("c")
	ear := f.session()
	for _, l := range []*locker{a, b, c} {
		testkit.Must(ear.Exec(f.ctx, "LISTEN "+LockChannel(l.session)))(f)
	}
	a.says("a", LockGranted, "x", exclusive, try)
	a.says("held", LockHeld, "x", exclusive, try)
	b.says("b", LockWaits, "x", exclusive, wait)
	c.says("c", LockWaits, "x", exclusive, wait)
	a.give("x")
	b.give("x")
	c.give("x")
	testkit.Must(ear.Exec(f.ctx, "NOTIFY "+LockChannel(a.session)+", 'last'"))(f)
	var heard []string
	for !slices.Contains(heard, LockChannel(a.session)+" last") {
		n := testkit.Must(ear.WaitForNotification(f.ctx))(f)
		heard = append(heard, n.Channel+" "+n.Payload)
	}
	expect(t, strings.Join(heard, ", "), fmt.Sprintf("%s %d, %s %d, %s last", LockChannel(b.session), b.nonces["x"],
		LockChannel(c.session), c.nonces["x"], LockChannel(a.session)), "heard")
}

func TestSweepGrantsLocksOfExpiredSessions(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c, d := f.locker("a"), f.locker("b"), f.locker("c"), f.locker("d")
		a.says("a", LockGranted, "x", exclusive, try)
		b.says("b", LockWaits, "x", exclusive, wait)
		c.says("c", LockWaits, "x", exclusive, wait)
		d.says("d", LockGranted, "y", exclusive, try)
		b.says("b", LockWaits, "y", exclusive, wait)
		c.says("c", LockWaits, "y", exclusive, wait)
		a.says("a", LockGranted, "z", exclusive, try)
		f.kill("a", "b")
		d.sweeps(true)
		expect(t, f.queue("x"), "ch", "queue")
		expect(t, f.queue("y"), "dh cw", "queue")
		expect(t, f.queue("z"), "", "queue")
	})
}

func TestSweepDoesNotWaitForLocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, d := f.locker("c"), f.locker("d")
	c.says("c", LockGranted, "x", exclusive, try)
	d.says("d", LockGranted, "y", exclusive, try)
	c.says("c", LockWaits, "y", exclusive, wait)
	f.exec("DELETE FROM clients WHERE id = 'c'")
	release := f.lock("SELECT pg_advisory_xact_lock(lock_mutex('x'))")
	d.sweeps(false)
	expect(t, f.queue("x"), "-h", "queue")
	expect(t, f.queue("y"), "dh", "queue")
	release()
	d.sweeps(true)
}

// Even if the sweep is lost with the client that evicted.
func TestWhoWaitsGetsTheLockWithoutASweep(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c, d := f.locker("a"), f.locker("b"), f.locker("c"), f.locker("d")
		a.says("a", LockGranted, "x", shared, try)
		b.says("b", LockWaits, "x", exclusive, wait)
		c.says("c", LockWaits, "x", shared, wait)
		f.kill("b")
		expect(t, c.token("x") > 0, true, "a reader whose writer expired is granted the lock")
		d.says("d", LockWaits, "x", exclusive, wait)
		f.kill("a", "c")
		expect(t, d.token("x") > 0, true, "a writer whose readers expired is granted the lock")
		expect(t, f.queue("x"), "dh", "queue")
		f.kill("d")
		e := f.locker("e")
		e.says("expired sessions go at the next acquisition", LockGranted, "x", exclusive, try)
		expect(t, f.queue("x"), "eh", "queue")
	})
}

func TestLockLookReturnsAllRowsOfASession(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.locker("a"), f.locker("b")
		a.says("a", LockGranted, "x", exclusive, try)
		b.says("b", LockGranted, "y", exclusive, try)
		a.says("a", LockWaits, "y", exclusive, wait)
		found, _, err := a.LookAtLocks(f.ctx, a.session, nil, true)
		f.ok(err)
		names := make(map[string]bool)
		for _, l := range found {
			names[l.Name] = l.Token > 0 && l.Nonce == a.nonces[l.Name] || l.Token == 0
		}
		expect(t, fmt.Sprint(names), "map[x:true y:true]", "all")
		found, _, err = a.LookAtLocks(f.ctx, a.session, []int64{a.nonces["x"]}, false)
		f.ok(err)
		expect(t, len(found), 1, "found of one")
	})
}

func TestWhatIsListedIsWhatIsHeldAndAwaited(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.locker("a"), f.locker("b")
		for _, name := range []string{"p", "p/1", "p/2", `p/"{,}\`, "q", "o"} {
			a.says("a", LockGranted, name, shared, try)
		}
		b.says("b", LockGranted, "p/1", shared, try)
		b.says("b", LockWaits, "p/2", exclusive, wait)
		f.setClock(time.UnixMicro(f.clock()).Add(time.Second))
		list := func(prefix, after string, most int) string {
			rows := testkit.Must(a.table.List(f.ctx, prefix, after, most))(f)
			words := make([]string, len(rows))
			for i, r := range rows {
				words[i] = fmt.Sprintf("%s %v %v %d", r.Name, r.Shared, r.IDs, r.Waiting)
				for j := range r.IDs {
					isClient := r.Hosts[j] == "host" && r.PIDs[j] == 4711
					heard, lives := time.Second.Microseconds(), (lockerTTL - time.Second).Microseconds()
					isLive := r.Silent[j] == heard && r.Lives[j] == lives
					if !isClient || !isLive || r.Tokens[j] == 0 || r.Since[j] == 0 {
						t.Errorf("%+v", r)
					}
				}
			}
			return strings.Join(words, ", ")
		}
		expect(t, list("p/", "", 10), `p/"{,}\ true [a] 0, p/1 true [a b] 0, p/2 true [a] 1`, "with a prefix")
		expect(t, list("p/", `p/"{,}\`, 1), "p/1 true [a b] 0", "after a name")
		expect(t, list("", "", 2), "o true [a] 0, p true [a] 0", "all")
		expect(t, list("p", "p/2", 10), "", "after the last")
		expect(t, list("none", "", 10), "", "none")
		releases := []LockRelease{{Name: `p/"{,}\`, Nonce: a.nonces[`p/"{,}\`]}, {Name: "q", Nonce: a.nonces["q"]}}
		answer := testkit.Must(a.ReleaseLocks(f.ctx, a.session, releases, a.known))(f)
		expect(t, len(answer.Released), 2, "released")
	})
}

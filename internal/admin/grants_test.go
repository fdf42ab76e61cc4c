package admin_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/schedule"
)

// roles creates the tables of all packages, and a role for each purpose with the rights of Grants.
func roles(t *testing.T) (owner *pgxpool.Pool, role func(admin.Purpose) string) {
	t.Helper()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	owner = newPool(t, url)
	testkit.OK(t, schedule.Migrate(t.Context(), owner))
	testkit.OK(t, consumer.Migrate(t.Context(), owner))
	prefix := strings.ToLower("rights_" + rand.Text() + "_")
	role = func(p admin.Purpose) string { return prefix + strings.ReplaceAll(string(p), "-", "_") }
	t.Cleanup(func() { // before the database goes
		for _, p := range admin.Purposes {
			testkit.Execute(t, owner, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role(p)))
		}
	})
	for _, p := range admin.Purposes {
		grants := testkit.Must(admin.Grants(role(p), "pgleases", p))(t)
		testkit.Execute(t, owner, "CREATE ROLE "+role(p)+"; "+grants)
	}
	return owner, role
}

// The rights of each role. A new table or function needs a line here, and in the files of grants.
const (
	// Except timeline and tables_number, these run with the rights of the caller, so they do nothing for
	// a role without rights on tables.
	forAll = `
		announce() apply() begin_graces() check_interval() claim() hold_liveness() end_delays() evict() evict_disconnected()
		first_epoch() guard() guard_lock() guard_many() heartbeat() heartbeat_answer() join_lease() lock_acquire()
		lock_list() lock_look() lock_mutex() lock_queue() lock_release() lock_releases() lock_same_incarnation()
		lock_settings() lock_sweep() lock_turn() many_changed() watch_liveness() notify() notify_channel()
		notify_due() on_aurora() owners() part() partition_for() present_database() read() register() release() sample()
		session_ends() session_leases() settings() snapshot() tables_number() tidy() timeline() `
	forAllSchedules = `
		schedule_begin() schedule_block() schedule_canceled() schedule_check_canceled() schedule_clock()
		schedule_close() schedule_close_late() schedule_create() schedule_declare() schedule_do_backfill()
		schedule_do_cancel_job() schedule_do_catch_up() schedule_do_delete() schedule_do_lock() schedule_do_pause()
		schedule_do_resume() schedule_do_retry_failed() schedule_do_retry_job() schedule_do_retry_tick()
		schedule_do_trigger() schedule_due() schedule_end() schedule_end_job() schedule_end_job_otherwise()
		schedule_end_tick() schedule_enqueue() schedule_enqueue_many() schedule_enqueue_or_keep() schedule_enqueue_or_replace()
		schedule_entry_json() schedule_find() schedule_forget_tick() schedule_free_slot() schedule_get()
		schedule_history() schedule_job() schedule_jobs() schedule_join() schedule_json() schedule_list()
		schedule_lock_job() schedule_locked() schedule_make_slots() schedule_open() schedule_partition()
		schedule_place() schedule_poll() schedule_postpone_job() schedule_read() schedule_replace()
		schedule_retry_entry() schedule_set_aside() schedule_since() schedule_source() schedule_status_json()
		schedule_take() schedule_take_slot() schedule_trim() schedule_wake() schedule_write_ticks() `
	// Verbs, which run with the rights of their owner.
	forScheduleOperators = `
		schedule_backfill() schedule_cancel_job() schedule_catch_up() schedule_delete() schedule_lock()
		schedule_pause() schedule_resume() schedule_retry_failed() schedule_retry_job() schedule_retry_tick()
		schedule_trigger() `
	forEnqueuer = `
		schedule_clock() schedule_enqueue() schedule_enqueue_many() schedule_enqueue_or_keep()
		schedule_enqueue_or_replace() schedule_partition() schedule_wake() `
	jobsInsert = `
		jobs.args jobs.at jobs.begins jobs.due jobs.group_name jobs.key jobs.kind jobs.name jobs.nonce jobs.partition
		jobs.priority jobs.revision jobs.rule jobs.trigger jobs.unique_key`
	// Those of OnConflictReplace.
	jobsReplace = `
		jobs.args jobs.at jobs.attempts jobs.began jobs.blocked_reason jobs.blocked_since jobs.call jobs.call_began
		jobs.call_ends jobs.call_epoch jobs.call_once jobs.crash_epoch jobs.crashes jobs.due jobs.error jobs.key jobs.nonce
		jobs.outages jobs.partition jobs.priority jobs.retry_at jobs.revision`
	forAllConsumers = `
		consumer_backlog() consumer_begin() consumer_content() consumer_end() consumer_expect() consumer_inserted()
		consumer_look() `
	// These run with the rights of their owner, and lock rows that clients need.
	forApplications      = `end_overrides() trim_events() trim_samples() `
	forConsumerOperators = `
		consumer_delete() consumer_pause() consumer_resume() consumer_retry() consumer_retry_all() consumer_return()
		consumer_return_all() consumer_skip() consumer_take_letter() `
	forOperators = `
		cordon() drain() drop_lease() evict_client() freeze() new_server_generation() pause() pin() replace_lease()
		resume() uncordon() undrain() unfreeze() unpin() `
	forReaders = `
		consumer_backlog() leases_of() lock_list() schedule_clock() schedule_entry_json() schedule_history()
		schedule_job() schedule_jobs() schedule_json() schedule_since() schedule_status_json() schedule_list()
		present_database() snapshot() tables_number() timeline() `

	everything = `
		samples clients consumer_blocked consumer_dead_letters consumer_owners consumer_version consumers
		consumers_status events events_kept graces history identities jobs jobs_status leases locks locks_status
		members members_status partitions presences schedule_groups schedule_owners schedule_runs schedule_slots
		schedule_version schedules schedules_status schema_version server boot_marker installation present_marker
		status overrides `
	clientsRead = `
		samples clients events events_kept graces identities leases locks locks_status members members_status notified
		partitions presences schema_version server boot_marker present_marker status overrides `
	clientsWrite  = `boot_marker clients graces identities leases locks members partitions presences `
	clientsUpdate = clientsWrite + `server notified `
	clientsInsert = clientsWrite + `
		samples events.cause events.from_id events.generation events.lease events.partitions events.reason
		events.to_id `
	clientsDelete = `clients graces identities locks members presences `

	schedulesWrite = `history jobs schedule_groups schedule_owners schedule_slots schedules `
)

var mayDo = map[string]string{
	"PUBLIC EXECUTE": forAll + "lease_changed() leases_of() " + forAllSchedules + forAllConsumers,

	"application EXECUTE": forAll + forApplications,
	"application USAGE":   "lock_tokens schema",
	"application SELECT":  clientsRead,
	"application INSERT":  clientsInsert,
	"application UPDATE":  clientsUpdate,
	"application DELETE":  clientsDelete,

	"guard EXECUTE": "guard() guard_lock() guard_many()",
	"guard USAGE":   "schema",
	"guard SELECT":  "clients locks partitions server",
	"guard UPDATE":  "locks.since partitions.asked_at",

	"reader EXECUTE": forReaders,
	"reader USAGE":   "schema",
	"reader SELECT":  everything,

	"operator EXECUTE": forReaders + forOperators,
	"operator USAGE":   "schema",
	"operator SELECT":  everything,

	"schedule-operators EXECUTE": forReaders + "schedule_find() schedule_read() " + forScheduleOperators,
	"schedule-operators USAGE":   "schema",
	"schedule-operators SELECT":  everything,

	"schedules EXECUTE": forAll + forApplications + forScheduleOperators + forAllSchedules,
	"schedules USAGE":   "lock_tokens schema",
	"schedules SELECT":  clientsRead + schedulesWrite + "jobs_status schedule_version schedules_status",
	"schedules INSERT":  clientsInsert + schedulesWrite,
	"schedules UPDATE":  clientsUpdate + schedulesWrite,
	"schedules DELETE":  clientsDelete + "history jobs schedule_slots schedules",

	"enqueuer EXECUTE": "notify() notify_channel() notify_due() partition_for() " + forEnqueuer,
	"enqueuer USAGE":   "schema",
	"enqueuer SELECT": `notified schedule_groups
		jobs.due jobs.group_name jobs.id jobs.kind jobs.revision jobs.unique_key`,
	"enqueuer INSERT": jobsInsert,
	"enqueuer UPDATE": "notified " + jobsReplace,

	"consumers EXECUTE": forAll + forApplications + forAllConsumers,
	"consumers USAGE":   "lock_tokens schema",
	"consumers SELECT": clientsRead + `consumer_blocked consumer_dead_letters consumer_owners consumer_version
		consumers consumers_status`,
	"consumers INSERT": clientsInsert + "consumer_blocked consumer_dead_letters consumer_owners consumers",
	"consumers UPDATE": clientsUpdate + "consumer_blocked consumer_owners consumers",
	"consumers DELETE": clientsDelete + "consumer_blocked",

	"consumer-operators EXECUTE": forReaders + forConsumerOperators,
	"consumer-operators USAGE":   "schema",
	"consumer-operators SELECT":  everything,
}

// Each logged table has a replica identity.
func TestRightsAreThoseWritten(t *testing.T) {
	t.Parallel()
	owner, role := roles(t)
	names := []string{"WHEN 0 THEN 'PUBLIC'"}
	for _, p := range admin.Purposes {
		names = append(names, fmt.Sprintf("WHEN '%s'::regrole THEN '%s'", role(p), p))
	}
	rows, err := owner.Query(t.Context(), `
		SELECT CASE a.grantee `+strings.Join(names, " ")+` END || ' ' || a.privilege_type,
			string_agg(o.name, ' ' ORDER BY o.name COLLATE "C")
		FROM (SELECT relname AS name, relacl AS acl, relowner AS owner FROM pg_class
				WHERE relnamespace = 'pgleases'::regnamespace AND relkind IN ('r', 'v', 'S')
			UNION ALL SELECT relname || '.' || attname, attacl, relowner
				FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
				WHERE relnamespace = 'pgleases'::regnamespace
			UNION ALL SELECT proname || '()', coalesce(proacl, acldefault('f', proowner)), proowner FROM pg_proc
				WHERE pronamespace = 'pgleases'::regnamespace
			UNION ALL SELECT 'schema', nspacl, nspowner FROM pg_namespace WHERE nspname = 'pgleases') AS o,
			aclexplode(o.acl) AS a
		WHERE a.grantee <> o.owner
		GROUP BY 1 ORDER BY 1`, pgx.QueryExecModeSimpleProtocol)
	testkit.OK(t, err)
	have := make(map[string]string)
	var right, on string
	_, err = pgx.ForEachRow(rows, []any{&right, &on}, func() error {
		have[right] = on
		want := strings.Fields(mayDo[right])
		slices.Sort(want)
		if want := strings.Join(want, " "); on != want {
			t.Errorf("%s: %s\nwant: %s", right, on, want)
		}
		return nil
	})
	testkit.OK(t, err)
	without := testkit.Value[string](t, owner, `
		SELECT coalesce(string_agg(c.relname, ' '), '') FROM pg_class AS c
		WHERE c.relnamespace = 'pgleases'::regnamespace
		AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.relreplident = 'd'
		AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary)`)
	if without != "" { // with a publication for all tables, the server refuses updates of these
		t.Errorf("without a replica identity: %s", without)
	}
	for right := range mayDo {
		if have[right] == "" {
			t.Errorf("nobody has %s", right)
		}
	}
}

// A role that runs clients writes the events of the protocol, and none that says that an operator did
// something.
func TestApplicationsForgeNoVerb(t *testing.T) {
	t.Parallel()
	owner, role := roles(t)
	conn := testkit.Must(owner.Acquire(t.Context()))(t)
	defer conn.Release()
	automatic := []string{
		"joined", "left", "handed over", "given", "evicted", "awaited", "over ceilings", "accepted", "new generation",
		"no live client",
	}
	const insert = "INSERT INTO pgleases.events (lease, cause, reason) VALUES ('schedule/g', $1, 'why')"
	for _, p := range []admin.Purpose{admin.ForApplication, admin.ForSchedules, admin.ForConsumers} {
		testkit.Must(conn.Exec(t.Context(), "SET ROLE "+role(p)))(t)
		for _, cause := range admin.Causes {
			want := "23514" // of the constraint events_actor
			if slices.Contains(automatic, cause) {
				want = ""
			}
			_, err := conn.Exec(t.Context(), insert, cause)
			if store.Code(err) != want || want == "" && err != nil {
				t.Errorf("%s inserts the event %q: %v", p, cause, err)
			}
		}
		for _, statement := range []string{
			"INSERT INTO pgleases.events (lease, cause, actor) VALUES ('schedule/g', 'schedule paused', 'ann')",
			"INSERT INTO pgleases.events (lease, cause, name) VALUES ('schedule/g', 'joined', 's')",
			"INSERT INTO pgleases.events (lease, cause, row_id) VALUES ('schedule/g', 'joined', 1)",
			"UPDATE pgleases.events SET cause = 'schedule paused', actor = 'ann'", "DELETE FROM pgleases.events",
			"SELECT pgleases.schedule_changed('schedule paused', 'g', 's', NULL, NULL, 'ann', 'why')",
		} {
			_, err := conn.Exec(t.Context(), statement)
			if store.Code(err) != "42501" {
				t.Errorf("%s: %s: %v", p, statement, err)
			}
		}
		testkit.Must(conn.Exec(t.Context(), "RESET ROLE"))(t)
	}
}

// A role that only enqueues may use all ways to do so, even if PUBLIC may execute no function. It sees
// no arguments, and neither ends a job nor runs a client.
func TestEnqueuerOnlyEnqueues(t *testing.T) {
	t.Parallel()
	owner, role := roles(t)
	testkit.Execute(t, owner, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC")
	url := owner.Config().ConnString()
	asEnqueuer := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role(admin.ForEnqueuer) }
	pool := testkit.Pool(t, url, asEnqueuer)
	jobs := schedule.JobsOf[string](testkit.Must(schedule.NewEnqueuer(pool, "shop"))(t), "mail")
	ctx := t.Context()

	testkit.Must(jobs.Enqueue(ctx, "one", schedule.WithPriority(2), schedule.WithDelay(time.Hour)))(t)
	testkit.Must(jobs.EnqueueMany(ctx, []string{"two", "three"}, schedule.WithJobKey("k")))(t)
	id := testkit.Must(jobs.Enqueue(ctx, "four", schedule.WithUnique("u", schedule.OnConflictReject)))(t)
	_, err := jobs.Enqueue(ctx, "five", schedule.WithUnique("u", schedule.OnConflictReject))
	if !errors.Is(err, schedule.ErrExists) {
		t.Errorf("a second job of a unique key: %v", err)
	}
	for _, conflict := range []schedule.OnConflict{schedule.OnConflictIgnore, schedule.OnConflictReplace} {
		again := testkit.Must(jobs.Enqueue(ctx, "six", schedule.WithUnique("u", conflict)))(t)
		if again != id {
			t.Errorf("%v returned job %d, not %d", conflict, again, id)
		}
	}
	testkit.OK(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := jobs.EnqueueTx(ctx, tx, "seven")
		return err
	}))
	const enqueued = `SELECT string_agg(args #>> '{}', ' ' ORDER BY id) FROM pgleases.jobs`
	if got := testkit.Value[string](t, owner, enqueued); got != "one two three six seven" {
		t.Errorf("the jobs are %s", got)
	}

	for _, statement := range []string{
		"SELECT args FROM pgleases.jobs", "SELECT key FROM pgleases.jobs", "DELETE FROM pgleases.jobs",
		"UPDATE pgleases.jobs SET kind = 'other'", "UPDATE pgleases.jobs SET group_name = 'other'",
		"SELECT pgleases.schedule_cancel_job('shop', 1, 'why', '')",
		"SELECT pgleases.schedule_jobs('shop', '', '', '', 0, 9)",
		"TABLE pgleases.history", "TABLE pgleases.jobs_status", "TABLE pgleases.schedules", "TABLE pgleases.clients",
		"INSERT INTO pgleases.schedule_groups (name, partitions) VALUES ('other', 1)",
		"DELETE FROM pgleases.schedule_groups",
	} {
		_, err := pool.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)
		if store.Code(err) != "42501" {
			t.Errorf("%s: %v", statement, err)
		}
	}
	_, err = pgleases.NewClient(ctx, pool, pgleases.WithoutMigration())
	if store.Code(err) != "42501" {
		t.Errorf("to run a client, it got %v", err)
	}
}

// arguments has a plausible argument of each type.
var arguments = strings.NewReplacer(
	"pgleases.", "NULL::pgleases.",
	"timestamp with time zone[]", "'{now}'::timestamptz[]",
	"bigint[]", "ARRAY[c.session]",
	"text[]", "'{l}'::text[]",
	"integer[]", "'{0}'::int[]",
	"bigint", "c.session",
	"text", "'l'::text",
	"integer", "1",
	"boolean", "true",
	"double precision", "1.0",
	"xid8", "'0'::xid8",
	"timestamp with time zone", "now()",
	"jsonb", "'{}'::jsonb",
)

// If a reader calls a function in a transaction that stays open, no client waits for a row or a
// named lock. The lock of a sequence conflicts with no statement of a client.
func TestAReaderLocksNothing(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	owner, role := roles(t)
	c := clients.New(t, owner, pgleases.WithClientID("l"), pgleases.WithoutMigration(),
		pgleases.WithTTL(time.Second), pgleases.WithHeartbeat(100*time.Millisecond))
	joined(t, c, "l", 1)
	rows, err := owner.Query(t.Context(), `
		SELECT format('SELECT %s FROM pgleases.clients AS c', format('pgleases.%I', proname)) || '|' ||
			oidvectortypes(proargtypes)
		FROM pg_proc
		WHERE pronamespace = 'pgleases'::regnamespace AND prorettype <> 'trigger'::regtype
		AND has_function_privilege($1, oid, 'EXECUTE')`, role(admin.ForReader))
	testkit.OK(t, err)
	calls := testkit.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	if len(calls) < 40 {
		t.Fatalf("a reader may execute only %q", calls)
	}
	tx := testkit.Must(owner.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(t.Context()) }()
	do := func(statement string) error {
		_, err := tx.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	// Rows that a function could end.
	testkit.OK(t, do(`
		INSERT INTO pgleases.overrides (verb, client, until, since, actor, reason)
		VALUES ('drain', 'l', '2020-01-01', '2020-01-01', 'somebody', 'why');
		INSERT INTO pgleases.events (at, cause) VALUES ('2020-01-01', 'joined');
		INSERT INTO pgleases.locks SELECT 'l', 1, session, session, false, NULL, now() FROM pgleases.clients`))
	testkit.OK(t, do("SET LOCAL ROLE "+role(admin.ForReader)))
	locks := func() (held string) {
		t.Helper()
		testkit.OK(t, tx.QueryRow(t.Context(), `
			SELECT string_agg(concat_ws(' ', locktype, relation::regclass, mode), ', '
				ORDER BY locktype, relation, mode)
			FROM pg_locks WHERE pid = pg_backend_pid() AND mode <> 'AccessShareLock'
			AND relation IS DISTINCT FROM 'pgleases.notified'::regclass`, pgx.QueryExecModeSimpleProtocol).Scan(&held))
		return held
	}
	before, worked := locks(), 0
	for _, call := range calls {
		statement, types, _ := strings.Cut(call, "|")
		statement = strings.Replace(statement, " FROM", "("+arguments.Replace(types)+") FROM", 1)
		testkit.OK(t, do("SAVEPOINT before"))
		if err := do(statement); err == nil {
			worked++
		} else if code := store.Code(err); code == "42883" || code == "42601" {
			t.Fatalf("%s: %v", statement, err)
		} else {
			testkit.OK(t, do("ROLLBACK TO before"))
		}
		if held := locks(); held != before {
			t.Errorf("%s locks something: %s, before it: %s", statement, held, before)
			before = held
		}
	}
	if worked < 10 {
		t.Errorf("only %d of %d functions worked", worked, len(calls))
	}
	called := testkit.Value[time.Time](t, owner, "SELECT clock_timestamp()")
	testkit.Becomes(t, owner, "the client is renewed for a TTL and longer", true,
		"SELECT expires_at > $1::timestamptz + 2 * ttl FROM pgleases.clients", called)
}

// The verbs run with the rights of the owner of the tables, so they must not call a function of
// another role.
func TestVerbsCallNoOverloadOfAStrangers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	owner := newPool(t, pgtest.OwnerURL(pgtest.FreshDatabase(t)))
	a := newAdmin(t, owner)
	lease := joined(t, newClient(t, owner, "c"), "l", 2)
	testkit.OK(t, owner.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		return pgtest.Overload(t.Context(), c.Conn())
	}))
	for _, c := range []admin.Change{
		{Verb: admin.VerbDrain, Subject: "c", Force: true, Lasts: time.Hour},
		{Verb: admin.VerbUndrain, Subject: "c"},
		{Verb: admin.VerbCordon, Subject: "c"},
		{Verb: admin.VerbUncordon, Subject: "c"},
		{Verb: admin.VerbPause, Subject: "l"},
		{Verb: admin.VerbResume, Subject: "l"},
		{Verb: admin.VerbFreeze, Subject: "l"},
		{Verb: admin.VerbUnfreeze, Subject: "l"},
		{Verb: admin.VerbPin, Subject: "l", Partition: 1, Client: "c"},
		{Verb: admin.VerbUnpin, Subject: "l", Partition: 1},
		{Verb: admin.VerbPause, Subject: "l", Lasts: time.Hour},
		{Verb: admin.VerbEvict, Subject: "c"},
	} {
		c.Reason = "why"
		if err := a.Apply(t.Context(), c); err != nil {
			t.Errorf("%s: %v", c.Verb, err)
		}
	}
	testkit.Receive(t, "the client ends", lease.Done())
	testkit.Execute(t, owner, `
		UPDATE pgleases.overrides SET until = now();
		SELECT pgleases.end_overrides(), pgleases.new_server_generation();
		DELETE FROM pgleases.members`)
	testkit.OK(t, a.Apply(t.Context(), admin.Change{Verb: admin.VerbDrop, Subject: "l", Reason: "why"}))
	if testkit.Value[bool](t, owner, pgtest.OverloadCalled) {
		t.Error("a function of a stranger's was called")
	}
}

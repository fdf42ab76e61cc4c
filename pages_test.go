package pgleases_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/leader"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/schedule"
)

// Settings of a pool that docs/database-failover.md shows.
var _ = func(config *pgxpool.Config) {
	config.PingTimeout = time.Second // of a connection that was idle
	config.BeforeClose = func(conn *pgx.Conn) {
		if conn.IsClosed() { // a call was given up, and pgx would wait for the server to close its end
			_ = conn.PgConn().Conn().Close()
		}
	}
}

// README.md and docs show lines of the examples in this file word for word, which
// TestPagesShowCompiledCode checks.

func Example_tokens() {
	x := begin()
	defer x.end()
	ctx, databaseURL := x.ctx, x.url
	fetched := 0
	token := func(context.Context) (string, error) {
		fetched++
		return x.pool.Config().ConnConfig.Password, nil
	}

	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) (err error) {
		c.Password, err = token(ctx) // of your cloud's library
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.Close(ctx), fetched > 0)
	pool.Close()
	// Output: <nil> true
}

func Example_changingN() {
	x := begin()
	defer x.end()
	ctx, pool := x.ctx, x.pool
	client, before := x.client(), x.client()
	old, err := before.Lease(ctx, "orders", 128)
	x.Check(err)
	join := func() (*pgleases.Lease, error) {
		for {
			replaced := false
			err := pool.QueryRow(ctx, `SELECT EXISTS (
				SELECT FROM pgleases.leases WHERE name = 'orders' AND successor = 'orders-256'
			)`).Scan(&replaced)
			if err != nil {
				return nil, err
			}
			if replaced {
				return client.Lease(ctx, "orders-256", 256)
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
	left := make(chan error, 1)
	go func() {
		err := old.Leave(ctx)
		_, refused := pool.Exec(ctx, "SELECT pgleases.replace_lease('orders', 'orders-256', 256, 'more keys')")
		left <- cmp.Or(err, refused)
	}()
	lease, err := join()
	x.Check(err)
	x.Check(<-left)
	fmt.Println(lease.Name(), lease.NumPartitions())
	_, err = before.Lease(ctx, "orders", 128)
	fmt.Println(err)
	// Output:
	// orders-256 256
	// pgleases: join lease "orders": lease was replaced by "orders-256"
}

// headed returns the blocks of SQL of the operators' pages by the heading above them, and the
// headings in order.
func headed(t *testing.T) (headings []string, blocks map[string]string) {
	t.Helper()
	blocks = make(map[string]string)
	text := readFile(t, "docs/queries.md") + readFile(t, "docs/operations.md") + readFile(t, "docs/restore.md")
	// Package schedule has a test of these.
	if before, rest, found := strings.Cut(text, "\n## Schedules and jobs at night\n"); found {
		_, after, _ := strings.Cut(rest, "\n## ")
		text = before + "\n## " + after
	}
	for _, section := range regexp.MustCompile(`(?m)^##+ `).Split(text, -1) {
		heading, rest, _ := strings.Cut(section, "\n")
		if _, block, found := strings.Cut(rest, "```sql\n"); found {
			block, _, _ = strings.Cut(block, "\n```")
			headings = append(headings, heading)
			blocks[heading] = block
		}
	}
	return headings, blocks
}

// Every query of queries.md, operations.md and restore.md finds what it is meant to find, and only that.
func TestQueriesForOperatorsReturnTheState(t *testing.T) {
	t.Parallel()
	url := direct(t)
	clients, pool := testkit.Pool(t, url), ownersPool(t, url) // operators may more
	client := func(id string) *pgleases.Client {
		return newClient(t, clients, pgleases.WithClientID(id), pgleases.WithHeartbeat(50*time.Millisecond))
	}
	lease := func(c *pgleases.Client, name string, n int) *pgleases.Lease {
		return joined(t, c, name, n, pgleases.WithHandoffDelay(0))
	}
	gone := client("gone")
	untilOwns(t, lease(gone, "reports", 2), 2)
	shut(t, gone)
	one, two := client("worker-1"), client("worker-2")
	a, b := lease(one, "orders", 12), lease(two, "orders", 12)
	for _, l := range []*pgleases.Lease{a, b} {
		untilOwns(t, l, 6)
	}
	headings, blocks := headed(t)
	differ := []string{ // from run to run
		"oldest", "heartbeat_age", "expires_at", "draining", "host", "dead_for", "open_for", "query", "at", "tx", "id",
	}
	run := func(heading string) []string {
		t.Helper()
		if blocks[heading] == "" {
			t.Fatalf("the page has no block %q, only %q", heading, headings)
		}
		rows, err := pool.Query(t.Context(), blocks[heading], pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatalf("%s: %v", heading, err)
		}
		lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			var words []string
			for i, v := range row.RawValues() {
				name := row.FieldDescriptions()[i].Name
				if slices.Contains(differ, name) || name == "pid" && heading != "Open transactions" {
					continue
				}
				words = append(words, string(v))
			}
			return strings.Join(words, " "), nil
		})
		if err != nil {
			t.Fatalf("%s: %v", heading, err)
		}
		return lines
	}
	tells := func(heading string, want ...string) {
		t.Helper()
		if got := run(heading); !slices.Equal(got, want) {
			t.Errorf("%s shows %q, not %q", heading, got, want)
		}
	}
	calm := []string{
		"Unbalanced",
		"Draining for long",
		"Expired clients",
		"Open transactions",
		"Locked tables",
		"Who holds which lock",
		"Locks awaited for long",
	}
	for _, heading := range calm {
		tells(heading)
	}
	tells("Who owns what", "orders worker-1 6", "orders worker-2 6", "reports  2")
	happened := run("What happened")
	slices.Reverse(happened)
	if !slices.Equal(happened[:4], []string{
		"joined reports  gone   ",
		"given reports  gone {[0,2)}  ",
		"handed over reports gone  {[0,2)}  ",
		"left reports gone    ",
	}) {
		t.Errorf("first happened %q", happened[:4])
	}
	until(t, "a reader of the events sees all", func() bool { return slices.Equal(run("Follow the events"), happened) })
	tells("Partitions without an owner", "reports 0 gone ", "reports 1 gone ")
	if timeline := testkit.Value[string](t, pool, "SELECT pgleases.timeline()::text"); timeline == "0" {
		t.Error("the server does not tell its timeline")
	} else {
		tells("After a failover", timeline+" "+timeline+" 0")
	}

	held := testkit.Must(lock.New(one, clients).TryAcquire(t.Context(), "report"))(t)
	await, giveUp := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := lock.New(two, clients).AcquireShared(await, "report")
		waited <- err
	}()
	holds, waits := fmt.Sprintf("report holds f 1 worker-1 %d", held.Token()), "report waits t 2 worker-2 "
	until(t, "both are shown", func() bool { return slices.Equal(run("Who holds which lock"), []string{holds, waits}) })
	tells("Locks awaited for long")
	testkit.Execute(t, pool, `UPDATE pgleases.locks SET since = since - interval '1 minute'`)
	tells("Locks awaited for long", "report worker-2 2 worker-1")
	giveUp()
	wraps(t, "who waits gives up", testkit.Receive(t, "who waits gives up", waited), context.Canceled)
	testkit.OK(t, held.Release(t.Context()))
	until(t, "no lock is held", func() bool { return len(run("Who holds which lock")) == 0 })

	// One client works on a partition that is wanted elsewhere; one crashed, and no client has watched
	// for its TTL; one left a transaction open.
	hold := a.Hold(t.Context())
	three := client("worker-3")
	c := lease(three, "orders", 12)
	untilOwns(t, c, 2)
	untilOwns(t, b, 4)
	until(t, "the first was asked", func() bool { return len(numbers(a)) == 4 })
	testkit.Execute(t, pool, `UPDATE pgleases.partitions SET asked_at = asked_at - interval '1 minute'`)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.clients (session, id, incarnation, expires_at, ttl, host, pid, started_at)
		VALUES (1, 'expired', 1, clock_timestamp() - interval '1 hour', interval '10 minutes', 'host', 1, now())`)
	testkit.Execute(t, pool, `
		UPDATE pgleases.partitions SET owner = 1, owner_id = 'expired' WHERE lease = 'reports' AND partition = 1`)
	idle := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = idle.Rollback(context.Background()) }()
	pid := idle.Conn().PgConn().PID()

	tells("Who owns what",
		"orders worker-1 6", "orders worker-2 4", "orders worker-3 2", "reports expired 1", "reports  1")
	tells("Unbalanced", "orders worker-1 6 4.00", "orders worker-3 2 4.00")
	tells("Partitions without an owner", "reports 0 gone ", "reports 1 expired ")
	var draining []string
	for n := range 12 {
		if !a.Owns(n) && slices.Contains(hold.Values(), n) {
			draining = append(draining, fmt.Sprintf("orders %d worker-1 worker-3", n))
		}
	}
	slices.Sort(draining)
	if got := run("Draining for long"); !slices.Equal(slices.Sorted(slices.Values(got)), draining) || len(got) != 2 {
		t.Errorf("it shows that %q drain, not %q", got, draining)
	}
	got := run("Heartbeats")
	slices.Sort(got)
	if !slices.Equal(got, []string{
		"expired 00:10:00",
		"worker-1 00:01:00",
		"worker-2 00:01:00",
		"worker-3 00:01:00",
	}) {
		t.Errorf("the heartbeats are of %q", got)
	}
	heartbeats := strings.TrimSuffix(blocks["Heartbeats"], ";")
	oldest := "SELECT client FROM (" + heartbeats + ") AS all_clients LIMIT 1"
	if first := testkit.Value[string](t, pool, oldest); first != "expired" {
		t.Errorf("the oldest heartbeat is of %s", first)
	}
	tells("Expired clients", "expired")
	testkit.Must(idle.Exec(t.Context(), "LOCK TABLE pgleases.schema_version IN SHARE MODE"))(t)
	user := testkit.Value[string](t, pool, "SELECT session_user::text")
	tells("Locked tables", user+"  schema_version ShareLock idle in transaction")
	tells("Open transactions", fmt.Sprintf("%d %s  idle in transaction", pid, user))

	tellsOf := func(pid uint32) bool {
		return slices.ContainsFunc(run("Old snapshots"), func(line string) bool {
			return strings.HasPrefix(line, fmt.Sprintf("session %d ", pid))
		})
	}
	if tellsOf(pid) {
		t.Error("a transaction without a snapshot is shown as if it had one")
	}
	report := testkit.Must(pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
	defer func() { _ = report.Rollback(context.Background()) }()
	_, err := report.Exec(t.Context(), "SELECT count(*) FROM pgleases.status")
	if err != nil || !tellsOf(report.Conn().PgConn().PID()) {
		t.Errorf("it does not tell of the report that has a snapshot: %v", err)
	}

	hold.Release()
	untilOwns(t, c, 4)
	tells("Overrides")
	testkit.Execute(t, pool, "SELECT pgleases.cordon('worker-2', 'too hot', 'maria')")
	role := testkit.Value[string](t, pool, "SELECT session_user::text")
	tells("Overrides", "cordon   worker-2 too hot maria ("+role+") infinity 4")
	testkit.Execute(t, pool, "SELECT pgleases.uncordon('worker-2', 'cool')")
	tells("Evict a client", "1")
	testkit.Receive(t, "the third ends", three.Done())
	wraps(t, "it ended with", three.Err(), pgleases.ErrEvicted)
	expire(t, pool, "worker-3") // others do not wait for its TTL
	testkit.Becomes(t, pool, "its session has gone", 0, "SELECT count(*) FROM pgleases.clients WHERE incarnation < 0")
	for _, l := range []*pgleases.Lease{a, b} {
		untilOwns(t, l, 6)
	}
	again := client("worker-3")
	untilOwns(t, lease(again, "orders", 12), 4)

	_, err = pool.Exec(t.Context(), blocks["Drop a lease"])
	if err == nil || !strings.Contains(err.Error(), "live members") {
		t.Errorf("a lease with members was dropped: %v", err)
	}
	for _, c := range []*pgleases.Client{one, two, again} {
		shut(t, c)
	}
	run("Drop a lease")
	tells("Who owns what", "reports expired 1", "reports  1")
	testkit.Execute(t, pool, `
		SELECT pgleases.freeze('reports', 'at night', 'joe');
		SELECT pgleases.pause('reports', 'for an hour', 'joe');
		UPDATE pgleases.overrides SET until = now() - interval '1 minute' WHERE verb = 'pause'`) // no client deletes it
	tells("Overrides", "freeze reports   at night joe ("+role+") infinity 1")

	tested := append(calm,
		"Old snapshots", "Who owns what", "Partitions without an owner", "Heartbeats", "After a failover",
		"Evict a client", "Drop a lease", "New server generation", "Overrides", "What happened", "Follow the events")
	for _, heading := range headings {
		if !slices.Contains(tested, heading) {
			t.Errorf("nothing tests %q", heading)
		}
	}
	tells("New server generation", "")
	if got := run("After a failover"); len(got) != 1 || !strings.HasPrefix(got[0], "-1 ") {
		t.Errorf("for a restored copy it shows %q", got)
	}
}

func ownersConfig() {
	var ctx context.Context
	var databaseURL string

	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["role"] = "pgleases_owner" // not through PgBouncer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	if err := pgleases.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
}

var _ = ownersConfig // the test below does the same

// The roles of roles.md, created as it says, do their part. Package admin tests the rights of each.
func TestEachRoleOfThePageMayDoItsPart(t *testing.T) {
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	super := testkit.Pool(t, url)
	suffix := "_" + strings.ToLower(rand.Text())
	role := func(name string) string { return "pgleases_" + name + suffix }
	renamed := regexp.MustCompile(`pgleases_(owner|app|reader|operator)\b`)
	sql := func(text string) string { return renamed.ReplaceAllString(text, "pgleases_${1}"+suffix) }
	blocks := codeBlocks(t, "docs/roles.md", "sql")
	commands := regexp.MustCompile(`(?m)^    pgleases grants pgleases_(\w+) --for ([\w-]+)$`)
	purposes := commands.FindAllStringSubmatch(readFile(t, "docs/roles.md"), -1)
	if len(blocks) != 4 || len(purposes) != 4 {
		t.Fatalf("%d blocks of SQL and %d commands on the page", len(blocks), len(purposes))
	}
	execute := func(pool *pgxpool.Pool, query string) {
		t.Helper()
		testkit.Execute(t, pool, query, pgx.QueryExecModeSimpleProtocol)
	}
	as := func(name string) *pgxpool.Pool {
		return testkit.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role(name) })
	}
	t.Cleanup(func() { // before the database goes
		for _, name := range []string{"operator", "reader", "app", "owner"} {
			execute(super, fmt.Sprintf("DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s", role(name)))
		}
	})
	execute(super, sql(blocks[0]))
	owner := as("owner")
	testkit.OK(t, consumer.Migrate(t.Context(), owner))
	execute(owner, sql(blocks[3])) // PUBLIC gives no rights
	for _, p := range purposes {
		execute(owner, testkit.Must(admin.Grants(role(p[1]), "pgleases", admin.Purpose(p[2])))(t))
	}
	queue := consumer.Queue{Table: "public.outbox", Key: "customer", Partitions: 4}
	execute(super, consumer.TableSQL("mail", "", queue))
	execute(super, "INSERT INTO public.outbox (customer, payload) VALUES ('c', '1')")
	execute(super, sql(blocks[1]+";"+blocks[2]))

	app := as("app")
	a := joined(t, newClient(t, app, pgleases.WithoutMigration()), "work", 4)
	untilOwns(t, a, 4)
	guarded(t, app, a, ownership(t, a, 0))
	handle := consumer.Each(func(context.Context, pgx.Tx, consumer.Row[struct{}]) error { return nil })
	other := newClient(t, app, pgleases.WithoutMigration())
	c := testkit.Must(consumer.New(t.Context(), other, app, "mail", queue, handle, consumer.WithoutMigration()))(t)
	testkit.OK(t, c.RunUntilEmpty(t.Context()))
	operator := testkit.Must(admin.New(as("operator")))(t)
	ofMail := testkit.Must(consumer.Manage(t.Context(), as("operator"), "mail", consumer.WithReason("why", "")))(t)
	testkit.Must(ofMail.Pause(t.Context()))(t)
	testkit.OK(t, operator.Apply(t.Context(), admin.Change{Verb: admin.VerbFreeze, Subject: "work", Reason: "why"}))
	reader := as("reader")
	all := testkit.Must(testkit.Must(admin.New(reader))(t).Consumers(t.Context()))(t)
	if len(all) != 1 || *all[0].Waiting != 0 || all[0].PausedAt.IsZero() {
		t.Errorf("consumers, as the reader sees them: %+v", all)
	}
	_, queries := headed(t)
	for heading, query := range queries {
		if !slices.Contains([]string{"Evict a client", "Drop a lease", "New server generation"}, heading) {
			testkit.Execute(t, reader, query)
		}
	}
}

func shipOwned(ctx context.Context, lease *pgleases.Lease, ship func(context.Context, int)) {
	for ctx.Err() == nil && lease.Err() == nil {
		changed := lease.Changed() // taken before Values: a change in between closes it
		for _, partition := range lease.Values() {
			ship(ctx, partition)
		}
		select {
		case <-changed: // also at the end of the lease
		case <-time.After(time.Second): // look for new orders
		case <-ctx.Done():
		}
	}
}

func shipHeld(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease) {
	for ctx.Err() == nil && lease.Err() == nil {
		changed := lease.Changed()
		hold := lease.Hold(ctx)
		for _, partition := range hold.Partitions() {
			if err := shipGuarded(hold.Context(), pool, lease, partition); err != nil {
				log.Print(err) // another process owns it now, or the database is away: not shipped
			}
		}
		hold.Release()
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func shipGuarded(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, partition pgleases.Partition) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx, partition); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE orders SET shipped = true WHERE partition = $1 AND NOT shipped",
			partition.Number)
		return err
	})
}

func ExampleLease_Guard() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	partition, owned := lease.Partition(lease.PartitionFor("customer-42"))
	if !owned {
		return // another process has it
	}
	ship := func() error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := lease.Guard(ctx, tx, partition); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE orders SET shipped = true WHERE customer = 'customer-42'")
			return err
		})
	}
	fmt.Println("while it is owned:", ship())

	// Afterwards the same code is refused, also in a process that has not noticed.
	partition.Epoch--
	fmt.Println("under an older epoch:", errors.Is(ship(), pgleases.ErrNotOwner))
	// Output:
	// while it is owned: <nil>
	// under an older epoch: true
}

func shipEach(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease) error {
	err := lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		for ctx.Err() == nil { // ended: the partition is wanted elsewhere, or the lease has ended
			if err := shipGuarded(p.Context(), pool, lease, p); err != nil {
				return err // logged, and called again a little later
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	})
	return err
}

func Example_leaderCallbacks() {
	x := begin()
	defer x.end()
	client := x.client()
	lead := func(ctx context.Context, epoch int64) {
		fmt.Println("leading under epoch", epoch)
		x.stop()
		<-ctx.Done()
	}
	err := func(ctx context.Context) error {
		return leader.Run(ctx, client, "reports", leader.Callbacks{
			OnStartedLeading: func(ctx context.Context) { // each time that this process begins to lead
				lead(ctx, leader.Epoch(ctx)) // handles its own errors, and returns when ctx ends
			},
			OnStoppedLeading: func() { log.Print("standing by") }, // and it may lead again
			OnNewLeader:      func(id string) { log.Print("the leader is ", id) },
		})
	}(x.ctx)
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// leading under epoch 1
	// stopped: true
}

// runReports leads when it can. If its work fails, it steps down, so that another process can try.
func runReports(ctx context.Context, client *pgleases.Client, work func(context.Context) error) error {
	for {
		term, stepDown := context.WithCancel(ctx)
		err := leader.Run(term, client, "reports", leader.Callbacks{
			OnStartedLeading: func(ctx context.Context) {
				err := work(ctx)
				if err != nil && ctx.Err() == nil {
					log.Print(err)
					stepDown() // another process leads next, if one stands by
				}
			},
		})
		stepDown()
		if ctx.Err() != nil || !errors.Is(err, context.Canceled) {
			return err // the process stops, or the client has ended
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func Example_stepDown() {
	x := begin()
	defer x.end()
	var first int64
	err := runReports(x.ctx, x.client(), func(ctx context.Context) error {
		if first == 0 {
			first = leader.Epoch(ctx)
			return errors.New("the first report fails")
		}
		fmt.Println("leads again under a higher epoch:", leader.Epoch(ctx) > first)
		x.stop()
		<-ctx.Done()
		return nil
	})
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// leads again under a higher epoch: true
	// stopped: true
}

func Example_schedule() {
	x := begin()
	defer x.end()
	client, pool := x.client(), x.pool
	_, err := pool.Exec(x.ctx, "CREATE TABLE reports (title text PRIMARY KEY, orders bigint NOT NULL)")
	x.Check(err)
	type Report struct{ Title string }
	type Mail struct{ To string }
	sent := make(chan string, 1)
	send := func(_ context.Context, r schedule.Run[Mail]) error { sent <- r.Args.To; return nil }
	run := func(ctx context.Context) error {
		s, err := schedule.New(ctx, client, pool, "reports")
		if err != nil {
			return err
		}
		retries := schedule.WithMaxAttempts(12, schedule.Backoff(time.Minute, time.Hour))
		mail := schedule.AtLeastOnce(s, "mail", send, retries)
		order := func(ctx context.Context, tx pgx.Tx) error {
			_, err := mail.EnqueueTx(ctx, tx, Mail{"ada@example.com"}) // the job exists only if tx commits
			return err
		}
		x.Check(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return order(ctx, tx) }))

		report := schedule.InTx(s, "report", func(ctx context.Context, tx pgx.Tx, r schedule.Run[Report]) error {
			_, err := tx.Exec(ctx, "INSERT INTO reports SELECT $1, count(*) FROM orders", r.Args.Title)
			return err // the row and the outcome of the tick commit together, or neither does
		})
		if err := report.Add("nightly", Report{"nightly"}, schedule.Cron("0 2 * * *", "Europe/Berlin")); err != nil {
			return err
		}
		return s.Run(ctx) // in each process, until ctx ends
	}
	ended := make(chan error, 1)
	go func() { ended <- run(x.ctx) }()
	for err = errors.ErrUnsupported; err != nil; { // until it is added
		var operator *schedule.Scheduler
		operator, err = schedule.Manage(x.ctx, pool, "reports")
		if err == nil {
			_, err = operator.Trigger(x.ctx, "nightly")
		}
	}
	fmt.Println("mail to", <-sent)
	for reports := 0; reports == 0; { // until the triggered run has committed
		x.Check(pool.QueryRow(x.ctx, "SELECT count(*) FROM reports").Scan(&reports))
	}
	x.stop()
	fmt.Println("stopped:", errors.Is(<-ended, context.Canceled))
	// Output:
	// mail to ada@example.com
	// stopped: true
}

func Example_lock() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	makeReport := func(context.Context) error { return nil }

	locks := lock.New(client, pool)
	ran, err := locks.TryDo(ctx, "daily-report", makeReport) // false if a live process holds it
	fmt.Println(ran, err)
	// Output: true <nil>
}

func ExampleWithConnConfig() {
	x := begin()
	defer x.end()
	ctx, pool := x.ctx, x.pool
	directURL, _ := pgtest.DirectURL(x.url)

	direct, err := pgx.ParseConfig(directURL) // past the pooler, where notifications arrive
	if err != nil {
		log.Fatal(err)
	}
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithConnConfig(direct))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.Close(ctx))
	// Output: <nil>
}

func ExampleLease_PartitionFor() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"customer-1", "customer-42", "Grüße"} {
		var inSQL int
		if err := pool.QueryRow(ctx, "SELECT pgleases.partition_for($1, 128)", key).Scan(&inSQL); err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, lease.PartitionFor(key), inSQL)
	}
	// Output:
	// customer-1 71 71
	// customer-42 53 53
	// Grüße 58 58
}

const orders = `
CREATE TABLE orders (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  text NOT NULL,
    shipped   boolean NOT NULL DEFAULT false,
    partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 128)) STORED
);
INSERT INTO orders (customer) SELECT 'customer-' || n FROM generate_series(1, 300) AS n`

// exampleURL is the URL of a database with orders in it.
func exampleURL() string { return pgtest.ExampleURL(orders) }

// An example is what an Example runs with: a database with orders in it, a pool, and a context that
// stop ends. It is a pgtest.TB, so that the examples share the server of the tests.
type example struct {
	pgtest.Example
	ctx  context.Context
	stop context.CancelFunc
	url  string
	pool *pgxpool.Pool
}

func begin() *example {
	x := &example{url: exampleURL()}
	x.ctx, x.stop = context.WithTimeout(context.Background(), testkit.Patience)
	var err error
	x.pool, err = pgtest.NewPool(x.ctx, x.url)
	x.Check(err)
	x.Cleanup(x.pool.Close)
	return x
}

func (x *example) client() *pgleases.Client {
	client, err := pgleases.NewClient(x.ctx, x.pool, pgleases.WithTTL(calmTTL), pgleases.WithHeartbeat(calmHeartbeat))
	x.Check(err)
	x.Cleanup(func() { x.Check(client.Close(context.WithoutCancel(x.ctx))) })
	return client
}

func (x *example) end() {
	x.stop()
	x.End()
}

var write = flag.Bool("write", false, "write docs/sql.md again")

const sqlPage = "docs/sql.md"

// The page is generated from the comments on views, functions, tables and columns.
const commentsOfTheSchema = `
WITH described AS (
	SELECT CASE c.relkind WHEN 'v' THEN 1 ELSE 3 END AS part, c.relname::text AS name, obj_description(c.oid, 'pg_class') AS comment,
	       E'\n\n' || (
	           SELECT string_agg(format('- ` + "`%s`, %s." + `', a.attname, format_type(a.atttypid, a.atttypmod))
	                             || coalesce(' ' || col_description(c.oid, a.attnum), ''), E'\n' ORDER BY a.attnum)
	           FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS rest
	FROM pg_class AS c WHERE c.relnamespace = 'pgleases'::regnamespace AND c.relkind IN ('r', 'v')
	UNION ALL
	SELECT 2, p.proname, obj_description(p.oid, 'pg_proc'), ''
	       || E'\n\n    ' || p.proname || '(' || pg_get_function_arguments(p.oid) || ') returns ' || pg_get_function_result(p.oid)
	FROM pg_proc AS p WHERE p.pronamespace = 'pgleases'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NOT NULL
), parts AS (
	SELECT part, string_agg(E'\n\n### ' || name || E'\n\n' || coalesce(comment, '') || rest, '' ORDER BY name COLLATE "C", rest COLLATE "C") AS page
	FROM described GROUP BY part
)
SELECT string_agg(E'\n\n## ' || (ARRAY['Views', 'Functions', 'Tables'])[part] || page, '' ORDER BY part) FROM parts`

func TestSQLPageIsTheComments(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t))
	testkit.OK(t, pgleases.Migrate(t.Context(), pool))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	const head = "# SQL reference\n\n" +
		"This page describes the views, functions and tables of the schema `pgleases`, for queries of your own. " +
		"[Queries](queries.md) has some that are ready. [Upgrades](stability.md) says which of them are stable. " +
		"The page is made from the comments in the schema, by `go test -run SQLPage . -write`."
	text := head + testkit.Value[string](t, pool, commentsOfTheSchema) + "\n"
	testkit.SameAsFile(t, sqlPage, text, *write, "it is not what the comments say: go test -run SQLPage . -write")
}

func TestMonitoringPageNamesEachStat(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(readFile(t, "docs/monitoring.md"), "\n## Stats of a client\n")
	table, _, _ = strings.Cut(table, "\n## ")
	stats := reflect.VisibleFields(reflect.TypeFor[pgleases.Stats]())
	losses := reflect.VisibleFields(reflect.TypeFor[pgleases.Losses]())
	named := func(field string) bool { return strings.Contains(table, "`"+field+"`") }
	for _, f := range append(stats, losses...) {
		if f.Name != "LeaseStats" && f.Name != "Losses" && !named(f.Name) && !named("Losses."+f.Name) {
			t.Errorf("docs/monitoring.md does not name %s", f.Name)
		}
	}
}

// errorsOnPage returns the errors of a package that the page of errors has sections for, each with
// the text that the section begins with.
func errorsOnPage(page, pkg string) map[string]bool {
	all := make(map[string]bool)
	sections := regexp.MustCompile("(?m)^### `" + pkg + "\\.(Err\\w+)`\n\n`(.+)`$")
	for _, section := range sections.FindAllStringSubmatch(page, -1) {
		all[section[1]+": "+section[2]] = true
	}
	return all
}

// errorsOf returns the errors that a package exports, each with its text.
func errorsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for _, name := range testkit.Must(filepath.Glob(folder + "/*.go"))(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := testkit.Must(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			v, is := n.(*ast.ValueSpec)
			if !is || !strings.HasPrefix(v.Names[0].Name, "Err") || len(v.Values) == 0 {
				return true
			}
			ast.Inspect(v.Values[0], func(n ast.Node) bool {
				if literal, is := n.(*ast.BasicLit); is && literal.Kind == token.STRING {
					all[v.Names[0].Name+": "+testkit.Must(strconv.Unquote(literal.Value))(t)] = true
				}
				return true
			})
			return true
		})
	}
	return all
}

// The page of errors has a section for each error that a package exports, with its text, and for
// each code that the functions of the schema raise.
func TestErrorsPageIsComplete(t *testing.T) {
	t.Parallel()
	page, found := readFile(t, "docs/errors.md"), 0
	for _, pkg := range []string{"pgleases", "lock", "fence", "schedule", "consumer"} {
		exported := errorsOf(t, map[bool]string{true: ".", false: pkg}[pkg == "pgleases"])
		same(t, "docs/errors.md", "package "+pkg, exported, errorsOnPage(page, pkg))
		found += len(exported)
	}
	if found < 20 {
		t.Errorf("only %d errors found", found)
	}
	raised, listed := make(map[string]bool), make(map[string]bool)
	errCode := regexp.MustCompile(`ERRCODE = '(P[A-Z]\d+)'`)
	for _, pattern := range []string{
		"sql/schema/*.sql", "schedule/sql/*.sql", "schedule/sql/*/*.sql", "consumer/sql/*.sql", "fence/*.sql",
	} {
		for _, file := range testkit.Must(filepath.Glob(pattern))(t) {
			for _, code := range errCode.FindAllStringSubmatch(readFile(t, file), -1) {
				raised[code[1]] = true
			}
		}
	}
	for _, code := range regexp.MustCompile(`(?m)^### (P[A-Z]\d+)$`).FindAllStringSubmatch(page, -1) {
		listed[code[1]] = true
	}
	same(t, "docs/errors.md", "codes", raised, listed)
}

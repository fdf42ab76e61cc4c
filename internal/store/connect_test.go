package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/connect"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/worker"
)

func TestAReadOnlyServerIsLeft(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	a := f.client("a")
	setReadOnly := func(on string) {
		f.exec("SET default_transaction_read_only = off")
		f.exec("ALTER DATABASE " + f.sql.Config().Database + " SET default_transaction_read_only = " + on)
	}
	setReadOnly("on")
	_, err := f.connector(time.Second).Connect(f.ctx, time.Second)
	const why = "default_transaction_read_only is on, for the role, the database or the server"
	if !errors.Is(err, connect.ErrReadOnly) || !strings.Contains(err.Error(), why) {
		t.Fatalf("read-only server: %v", err)
	}
	f.ok(a.pg().Exec(f.ctx, "SET default_transaction_read_only = on"))
	if _, err := a.Heartbeat(f.ctx, a.session, 0, Renewal{}); worker.Whose(err) != worker.Standby {
		t.Errorf("heartbeat: %v", err)
	}
}

// PgBouncer compares them as text, before every transaction.
func TestSettingsAreSpelledAsTheServerReportsThem(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn := f.conn()
	for name, value := range connect.Settings {
		expect(t, conn.Raw().PgConn().ParameterStatus(name), value, name)
	}
}

func TestBeforeConnectIsObeyedEachTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls := 0
	cr := NewConnector(f.config(), func(_ context.Context, config *pgx.ConnConfig) error {
		calls++
		config.RuntimeParams["application_name"] = fmt.Sprint("token ", calls)
		return nil
	}, f.schema, time.Second)
	f.connect(cr)
	expect(t, valueOn[string](f, f.connect(cr).Raw(), "SHOW application_name"), "token 2", "name")
	expect(t, valueOn[string](f, f.conn().Raw(), "SHOW application_name"), "pgleases", "name by default")
	refused := errors.New("no token")
	cr.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return refused }
	if _, err := cr.Connect(f.ctx, time.Second); !errors.Is(err, refused) {
		t.Error(err)
	}
}

func TestAnyNumberOfSilentHostsIsPassedOver(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	config := f.config()
	live := &pgconn.FallbackConfig{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}
	config.Fallbacks = nil
	for range 7 {
		silent, err := net.Listen("tcp", "127.0.0.1:0") // whose queue takes connections that get no answer
		f.ok(err)
		defer silent.Close()
		port := uint16(silent.Addr().(*net.TCPAddr).Port)
		config.Fallbacks = append(config.Fallbacks, &pgconn.FallbackConfig{Host: "127.0.0.1", Port: port})
	}
	config.Host, config.Port = config.Fallbacks[0].Host, config.Fallbacks[0].Port
	config.Fallbacks = append(config.Fallbacks[1:], live)
	testkit.Until(t, "the live one is reached", func() bool { // on a busy machine it may need more than one attempt
		conn, err := NewConnector(config, nil, f.schema, 0).Connect(f.ctx, 100*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func TestAServerToWhichConnectionsTakeLongIsReached(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := f.config()
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-time.After(300 * time.Millisecond):
			return dial(ctx, network, address)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	cr, attempts := NewConnector(config, nil, f.schema, 0), 0
	testkit.Until(t, "it is reached", func() bool {
		attempts++
		conn, err := cr.Connect(f.ctx, 100*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	if attempts < 2 {
		t.Error("a host had more than its time at once")
	}
}

// The application's own connection hook runs after the check of where the connection leads.
func TestApplicationHookChangesNoStatement(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	f.exec("CREATE TABLE public.seen (path text, level text); GRANT ALL ON public.seen TO PUBLIC")
	config := f.config()
	calls := 0
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		calls++
		return conn.Exec(ctx, "SET search_path = public; SET default_transaction_isolation = 'serializable'").Close()
	}
	conn := f.connect(NewConnector(config, nil, f.schema, time.Second))
	expect(t, calls, 1, "calls of the hook")
	f.ok(conn.Exec(f.ctx, `
		INSERT INTO public.seen VALUES (current_setting('search_path'), current_setting('transaction_isolation'))`))
	got := f.text("SELECT path || ': ' || level FROM public.seen")
	expect(t, got, "pg_catalog, pg_temp: read committed", "settings of a statement")
	refused := errors.New("not this one")
	config.AfterConnect = func(context.Context, *pgconn.PgConn) error { return refused }
	_, err := NewConnector(config, nil, f.schema, time.Second).Connect(f.ctx, time.Second)
	if !errors.Is(err, refused) {
		t.Error(err)
	}
}

func TestSettingsOfARoleAreNotThoseOfAClientsConnection(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	wanted := map[string][2]string{ // the role's, and the client's
		"search_path":                   {"public", "pg_catalog, pg_temp"},
		"default_transaction_isolation": {"serializable", "read committed"},
		"statement_timeout":             {"1s", "0"},
		"idle_session_timeout":          {"500ms", "0"},
		"jit":                           {"on", "off"},
	}
	if f.sql.PgConn().ParameterStatus("server_version") >= "17" {
		wanted["transaction_timeout"] = [2]string{"1s", "0"}
	}
	database := pgx.Identifier{f.sql.Config().Database}.Sanitize()
	for name, values := range wanted {
		f.exec(fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", database, name, values[0]))
	}
	conn := f.conn()
	for name, values := range wanted {
		expect(t, valueOn[string](f, conn.Raw(), "SHOW "+name), values[1], name)
	}
}

// PgBouncer 1.18 and 1.19 crash at some cancel requests. pgx also sends one when it closes a
// connection during a statement.
func TestNoCancelRequestGoesThroughAPooler(t *testing.T) {
	t.Parallel()
	for _, direct := range []bool{false, true} {
		f := newFixture(t)
		config := f.config()
		dial, dialled := config.DialFunc, make(chan struct{}, 10)
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled <- struct{}{}
			return dial(ctx, network, address)
		}
		conn := f.connect(NewConnector(config, nil, f.schema, time.Second))
		expect(t, conn.Direct(), true, "leads to the server itself")
		conn.SetDirect(direct)
		release := f.lock("SELECT pg_advisory_xact_lock(1)")
		ctx, cancel := context.WithCancel(f.ctx)
		waiting := later(func() error { return conn.Exec(ctx, "SELECT pg_advisory_lock(1)") })
		f.blocked(conn.Raw())
		cancel()
		if err := waiting(); err == nil {
			t.Error("it goes on without its context")
		}
		release()
		if !direct {
			<-conn.Raw().PgConn().CleanupDone()
		}
		expect(t, len(dialled) > 1, direct, "a request to cancel was sent")
	}
}

func TestWhatCannotBeNotifiedIsWrittenAllTheSame(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.pair(1)
	a.pg().SetChannel(strings.Repeat("x", 64))
	expect(t, a.give("l", a.session).Given, 1, "given")
	expect(t, a.give("l", b.session).Asked, 1, "asked")
	expect(t, len(a.release([]Release{{"l", 0, 1}}).Released), 1, "released")
	expect(t, f.state("l", b), "b>b:2 of b", "state")
}

func TestAKeysPartitionServesAGeneratedColumnAndAnIndex(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	f.exec(`
		CREATE TABLE public.jobs (key text, partition int GENERATED ALWAYS AS (pgleases.partition_for(key, 16)) STORED);
		CREATE INDEX ON public.jobs (pgleases.partition_for(key, 128));
		INSERT INTO public.jobs VALUES ('customer-42'), (NULL)`)
	expect(t, f.text("SELECT partition FROM public.jobs WHERE key IS NOT NULL"), "5", "generated column")
	f.exec("SET enable_seqscan = off")
	plan := f.text("EXPLAIN SELECT FROM public.jobs WHERE pgleases.partition_for(key, 128) = 5")
	if !strings.Contains(plan, "jobs_partition_for_idx") {
		t.Errorf("the index is not used:\n%s", plan)
	}
}

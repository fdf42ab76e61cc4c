package schedule_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

const (
	zonedOf = "PGLEASES_SCHEDULE_ZONED"    // the database of a process that runs schedules of movedZone
	zonedID = "PGLEASES_SCHEDULE_ZONED_ID" // of its client
	// movedZone is in the zone data that the process is given, and in no other.
	movedZone = "Test/Moved"
	halfHours = "0,30 0-22 * * *"
	afternoon = "0 13 * * *"
	ofEach    = 6
)

// zoned is a process that runs schedules by its own zone data until its input ends.
func zoned(url string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	pool, err := openPool(ctx, url, 8)
	if err != nil {
		return err
	}
	for err == nil && ctx.Err() == nil { // where the machine is too busy, its start may fail
		err = runZoned(ctx, pool)
	}
	return err
}

// runZoned runs them until ctx ends, or the client or the database's patience does.
func runZoned(ctx context.Context, pool *pgxpool.Pool) error {
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithoutMigration(), pgleases.WithClientID(os.Getenv(zonedID)), pgleases.WithTTL(5*time.Second),
		pgleases.WithHeartbeat(100*time.Millisecond), pgleases.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	s, err := schedule.New(ctx, client, pool, group, schedule.WithPartitions(4), schedule.WithoutMigration(), schedule.WithMaxRunning(4), schedule.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	s.Hasten()
	place, err := time.LoadLocation(movedZone)
	if err != nil {
		return err
	}
	books := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.zoned (name, at, shown, data) VALUES ($1, $2, $3, $4)", r.Name, r.At, r.At.In(place).Format(time.DateTime), filepath.Base(os.Getenv("ZONEINFO")))
		return err
	})
	for name, expression := range zonedSchedules() {
		if err := books.Add(name, args{}, schedule.Cron(expression, movedZone), schedule.MissedAll, schedule.OverlapBuffer); err != nil {
			return err
		}
	}
	_ = s.Run(ctx)
	closing, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	return client.Close(closing)
}

func zonedSchedules() map[string]string {
	all := make(map[string]string)
	for n := range ofEach {
		all[fmt.Sprint("half an hour ", n)], all[fmt.Sprint("afternoon ", n)] = halfHours, afternoon
	}
	return all
}

// zonedMatches tells apart from rules whether clocks that show a time have a tick there.
func zonedMatches(expression string, shown time.Time) bool {
	if expression == afternoon {
		return shown.Hour() == 13 && shown.Minute() == 0
	}
	return shown.Hour() < 23 && shown.Minute()%30 == 0
}

// Processes with two versions of zone data run schedules side by side, over the time at which by one of them the clocks are set forward, and take partitions from each other. No
// tick comes twice, by instant or by what the clocks show; by the data of whoever runs it, it is the next after the one before; and a process that starts follows its data.
func TestTwoVersionsOfZoneDataSideBySide(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	places := make(map[string]*time.Location)
	for version, file := range map[string][]byte{"summer": schedule.ZoneFile([]time.Time{noon}, 0, time.Hour), "winter": schedule.ZoneFile(nil, 0)} {
		path := filepath.Join(dir, version, movedZone)
		ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
		ok(t, os.WriteFile(path, file, 0o644))
		place, err := time.LoadLocationFromTZData(movedZone, file)
		ok(t, err)
		places[version] = place
	}
	for before, after := range map[string]string{"summer": "winter", "winter": "summer"} {
		t.Run(before+" is followed by "+after, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.exec("CREATE TABLE public.zoned (n bigint GENERATED ALWAYS AS IDENTITY, name text, at timestamptz, shown text, data text); GRANT ALL ON public.zoned TO PUBLIC")
			now := noon.Add(-3 * time.Hour)
			db.setClock(now)
			started := 0
			start := func(version string) (stop func(kill bool)) {
				t.Helper()
				started++
				id := fmt.Sprint(version, " ", started)
				process := exec.Command(os.Args[0])
				process.Env = append(os.Environ(), zonedOf+"="+db.url, zonedID+"="+id, "ZONEINFO="+filepath.Join(dir, version))
				process.Stderr = os.Stderr
				input, err := process.StdinPipe()
				ok(t, err)
				ok(t, process.Start())
				t.Cleanup(func() { _ = process.Process.Kill() })
				until(t, "it has joined", func() bool {
					return one[bool](db, "SELECT EXISTS (SELECT FROM pgleases.members JOIN pgleases.clients USING (session) WHERE id = $1)", id)
				})
				return func(kill bool) {
					t.Helper()
					if kill {
						ok(t, process.Process.Kill())
					}
					ok(t, input.Close())
					if err := process.Wait(); (err != nil) != kill {
						t.Fatalf("a process with the data %s ended: %v", version, err)
					}
				}
			}
			pass := func(steps int, each time.Duration) {
				t.Helper()
				for range steps {
					now = now.Add(each)
					db.setClock(now)
					until(t, fmt.Sprintf("what is due at %v has run", now), func() bool {
						return one[int64](db, "SELECT count(*) FILTER (WHERE due > $1 AND trying IS NULL) FROM pgleases.schedules", now) == 2*ofEach
					})
				}
			}
			old := start(before)
			until(t, "the schedules are there", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.schedules") == 2*ofEach })
			pass(2, 30*time.Minute)
			young := start(after)
			until(t, "all are due by the new data", func() bool {
				return one[int64](db, "SELECT count(*) FROM pgleases.schedules WHERE name LIKE 'afternoon%' AND due = $1",
					time.Date(2026, 3, 10, 13, 0, 0, 0, places[after])) == ofEach
			})
			pass(3, 30*time.Minute)
			old(true)
			old = start(before)
			pass(2, 30*time.Minute)
			young(false)
			young = start(after)
			pass(3, 30*time.Minute)
			old(false)
			young(false)
			young = start(after)
			pass(5, 4*time.Hour)
			until(t, "all are due by the new data", func() bool {
				return one[int64](db, "SELECT count(*) FROM pgleases.schedules WHERE name LIKE 'afternoon%' AND due = $1",
					time.Date(2026, 3, 11, 13, 0, 0, 0, places[after])) == ofEach
			})
			pass(2, 4*time.Hour)
			young(false)
			checkZoned(db, places, now)
		})
	}
}

// A zonedRun is what a handler wrote.
type zonedRun struct {
	Name        string
	At          time.Time
	Shown, Data string
}

func checkZoned(db *database, places map[string]*time.Location, now time.Time) {
	t := db.t
	t.Helper()
	rows, _ := db.Query(context.Background(), "SELECT name, at, shown, data FROM public.zoned ORDER BY name, n")
	runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[zonedRun])
	ok(t, err)
	by := make(map[string]int)
	last := make(map[string]zonedRun)
	for _, r := range runs {
		by[r.Data]++
		before, ok := last[r.Name]
		last[r.Name] = r
		if !ok {
			continue
		}
		if !r.At.After(before.At) || r.Shown <= before.Shown {
			t.Errorf("a tick came twice: %+v after %+v", r, before)
		}
		for at := before.At.Add(time.Minute); at.Before(r.At); at = at.Add(time.Minute) {
			if shown := at.In(places[r.Data]); zonedMatches(zonedSchedules()[r.Name], shown) && shown.Format(time.DateTime) > before.Shown {
				t.Errorf("no tick at %v, when the clocks show %v, between %+v and %+v", at, shown, before, r)
			}
		}
	}
	if len(last) != 2*ofEach || by["summer"] == 0 || by["winter"] == 0 {
		t.Errorf("%d schedules have run, by the data %v: the test proves too little", len(last), by)
	}
	t.Logf("runs by the data: %v", by)
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.history WHERE fate <> 'done' OR ticks <> 1"), 0, "ticks that did not run")
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.history"), int64(len(runs)), "fates")
}

//go:build unix

package proof_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/punctual"
)

// buildVersion1 returns the program of a worker whose library is the last that was written for version 1 of the schema, with its own
// SQL. Its code lies in testdata/version1.zip, since a clone without its history and a module's download do not have it else. The
// archive names its commit, from which it was made, in the root of the repository:
//
//	git archive --format=zip -9 -o proof/testdata/version1.zip f777cb3 ':(glob)*.go' internal/ranges internal/seam ':(glob)internal/store/*.go' sql ':(exclude,glob)**/*_test.go'
//
// What is around the library is of today: the worker, the oracle, and the versions of the modules that they import.
func buildVersion1(t testing.TB) (program string) {
	t.Helper()
	archive, err := zip.OpenReader("testdata/version1.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	t.Logf("version 1 is commit %s", archive.Comment)
	dir := t.TempDir()
	library := filepath.Join(dir, "pgleases")
	if err := os.CopyFS(library, archive); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"../go.mod": library, "go.mod": dir, "go.sum": dir} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(from)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program, modules := filepath.Join(dir, "worker"), filepath.Join(dir, "go.mod")
	for _, args := range [][]string{
		{"mod", "edit", "-replace=github.com/pgleases/pgleases=" + library, modules},
		{"build", "-tags=version1", "-modfile=" + modules, "-o", program, "./faults/worker"},
	} {
		command := exec.Command("go", args...)
		command.Env = append(os.Environ(), "GOWORK=off") // with which -modfile does not go together
		if text, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, text)
		}
	}
	return program
}

func TestTheArchiveOfVersion1HasWhatItsCommitHas(t *testing.T) {
	t.Parallel()
	archive, err := zip.OpenReader("testdata/version1.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	history := exec.Command("git", "cat-file", "-e", archive.Comment).Run() == nil
	if !history {
		t.Logf("commit %s is not here: the archive is compared with internal/store/testdata/version1 alone", archive.Comment)
	}
	statements := 0
	for _, f := range archive.File {
		if f.FileInfo().IsDir() {
			continue
		}
		text, err := fs.ReadFile(archive, f.Name)
		if err != nil {
			t.Fatal(err)
		}
		if name, isSQL := strings.CutSuffix(f.Name, ".sql"); isSQL {
			statements++
			migrated, err := os.ReadFile("../internal/store/testdata/version1/" + path.Base(name) + ".sql")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(text, migrated) {
				t.Errorf("%s is not what the tests of the migration begin with", f.Name)
			}
		}
		if history {
			committed, err := exec.Command("git", "show", archive.Comment+":"+f.Name).Output()
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(text, committed) {
				t.Errorf("%s is not what commit %s has", f.Name, archive.Comment)
			}
		}
	}
	if statements == 0 {
		t.Error("there is no SQL in it")
	}
}

// A rollout is a fleet of worker processes that are replaced one by one, while they write under Guard.
type rollout struct {
	*punctual.Try
	config  faults.Config // of all workers
	dir     string
	pool    *pgxpool.Pool
	pods    map[string]*faults.Process // those at work, by client ID
	started int
}

// start starts a worker of a program.
func (r *rollout) start(id, program string) {
	r.Helper()
	r.started++
	config := r.config
	config.ID, config.Program = id, program
	config.Log = fmt.Sprintf("%s/%s.%d.log", r.dir, id, r.started)
	r.pods[id] = startWorker(r.Try, config)
	hasJoined(r.Try, r.pods[id])
}

// close has a worker close in good order.
func (r *rollout) close(id string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	began := time.Now()
	ended, err := r.pods[id].Close(ctx)
	if err != nil {
		r.Fatal(err)
	}
	if ended.Left != "" { // without trust there is no time to leave in
		missed(r, began, bears(r.config.TTL, r.config.TTL/3), "%s left %s behind", id, ended.Left)
	}
	delete(r.pods, id)
}

func (r *rollout) kill(id string) {
	r.pods[id].Kill()
	delete(r.pods, id)
}

// freeze stops a worker until the others own everything, and returns it.
func (r *rollout) freeze(id string) *faults.Process {
	r.Helper()
	frozen := r.pods[id]
	if err := frozen.Pause(); err != nil {
		r.Fatal(err)
	}
	delete(r.pods, id)
	r.settles("after " + id + " was frozen")
	return frozen
}

// thaw lets a worker go on.
func (r *rollout) thaw(frozen *faults.Process) {
	r.Helper()
	if err := frozen.Resume(); err != nil {
		r.Fatal(err)
	}
}

// settles waits until the workers own every partition, evenly, and then until each of them has written. The time that is allowed
// is that after a kill: the TTL until it is noticed, and a second until shares are even.
func (r *rollout) settles(when string) {
	r.Helper()
	within := r.config.TTL + 200*time.Millisecond + time.Second + lateWithoutNotify(r.config.URL, r.config.TTL/3)
	began := time.Now()
	waitFor(r.Try, within+slack, "all is owned and shared evenly "+when, func() bool {
		held := make(map[int]bool)
		least, most := r.config.Partitions, 0
		for _, p := range r.pods {
			own := heldBy(r, p)
			least, most = min(least, len(own)), max(most, len(own))
			for _, n := range own {
				held[n] = true
			}
		}
		return len(held) == r.config.Partitions && most-least <= 1
	})
	r.Logf("%s: settled after %v", when, time.Since(began).Round(time.Millisecond))
	since := value[time.Time](r, r.pool, "SELECT clock_timestamp()")
	waitFor(r.Try, patience, "all write "+when, func() bool {
		var writers []string
		err := r.pool.QueryRow(r.Context(), "SELECT coalesce(array_agg(DISTINCT writer), '{}') FROM effects WHERE at > $1", since).Scan(&writers)
		return err == nil && !slices.ContainsFunc(slices.Collect(maps.Keys(r.pods)), func(id string) bool { return !slices.Contains(writers, id) })
	})
}

// heldBy is held, of a worker that must be alive.
func heldBy(t testing.TB, p *faults.Process) []int {
	t.Helper()
	select {
	case <-p.Done():
		ended, err := p.Ended(t.Context())
		t.Fatalf("%s ended by itself: %+v, %v", p.Config.Log, ended, err)
	default:
	}
	return held(t, p)
}

// Promises 1 to 3, 5 and 6 through an upgrade from version 1 that is taken back halfway, and then carried out. Not in parallel with
// other tests: its TTL is the shortest, and it has a deadline at each step.
func TestAFleetOfVersion1IsReplacedOneByOneUnderItsWork(t *testing.T) {
	const newer = ""
	older := buildVersion1(t)
	punctual.Run(t, func(t *punctual.Try) {
		const partitions = 16
		url := pgserver.EmptyDatabase(t) // its user makes the tables: version 1 knows no rights on what later versions add
		direct, _ := pgserver.DirectURL(url)
		r := &rollout{
			Try: t, dir: t.TempDir(), pool: newPool(t, direct, size(4)), pods: make(map[string]*faults.Process),
			config: faults.Config{
				URL: url, DirectURL: direct, Lease: "orders", Partitions: partitions, TTL: time.Second, Effects: true, Patience: patience,
			},
		}
		effects := faults.NewEffects(r.pool, r.config.Lease)
		if err := effects.Create(t.Context(), partitions); err != nil {
			t.Fatal(err)
		}
		version := func() int { return value[int](t, r.pool, "SELECT version FROM pgleases.schema_version") }
		for _, id := range []string{"a", "b", "c", "d"} {
			r.start(id, older)
		}
		r.settles("after the start of version 1")
		if v := version(); v != 1 {
			t.Fatalf("the workers of version 1 made version %d of the schema", v)
		}

		intervals := func() (all int) {
			for _, p := range r.pods {
				log, err := p.Watched()
				if err != nil {
					t.Fatal(err)
				}
				all += len(log.Intervals)
			}
			return all
		}
		before, began := intervals(), time.Now()
		if err := pgleases.Migrate(t.Context(), r.pool); err != nil {
			t.Fatal(err)
		}
		migrated := value[time.Time](t, r.pool, "SELECT clock_timestamp()")
		waitFor(t, patience, "all send heartbeats after the migration", func() bool {
			return value[bool](t, r.pool, "SELECT coalesce(bool_and(expires_at - ttl > $1), false) FROM pgleases.clients", migrated)
		})
		r.settles("after the migration")
		if v := version(); v != 3 {
			t.Fatalf("version %d of the schema after the migration", v)
		}
		if now := intervals(); now != before {
			missed(t, began, bears(r.config.TTL, r.config.TTL/3), "%d ownerships began while the schema was migrated", now-before)
		}

		// As a StatefulSet does: each comes back under its own ID.
		r.close("a")
		r.settles("after a of version 1 was closed")
		r.start("a", newer)
		r.settles("after a of today came")
		r.kill("b")
		r.start("b", newer)
		r.settles("after b of today came for one that was killed")
		for _, id := range []string{"a", "c"} {
			frozen := r.freeze(id)
			r.thaw(frozen)
			r.pods[id] = frozen
			r.settles("after " + id + " goes on")
		}

		// Halfway, back: version 1 works alone on the schema of today.
		r.kill("a")
		r.settles("after a of today was killed")
		r.start("a", older)
		r.settles("after a of version 1 is back")
		r.close("b")
		r.start("b", older)
		r.settles("after b of version 1 is back")

		// And on. Of one that is frozen meanwhile another has the ID when it wakes up.
		ghost := r.freeze("a")
		r.start("a", newer)
		r.settles("after a of today took the ID")
		r.thaw(ghost)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if ended, err := ghost.Ended(ctx); err != nil || !ended.Superseded {
			t.Errorf("a of version 1 ended with %+v, %v", ended, err)
		}
		r.kill("b")
		r.start("b", newer)
		r.settles("after b of today came for one that was killed")
		r.close("c")
		r.start("c", newer)
		r.settles("after c of today came")
		// As a Deployment does: the new one first, under an ID of its own.
		r.start("e", newer)
		r.settles("after e of today came")
		r.close("d")
		r.settles("after the last of version 1 was closed")
		for _, id := range slices.Sorted(maps.Keys(r.pods)) {
			r.close(id)
		}

		report := verifyDir(t, r.dir)
		_, zombies, err := effects.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, z := range zombies {
			t.Error("zombie: " + z)
		}
		history, err := effects.History(t.Context(), r.dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := faults.Linearizable(history, patience); err != nil {
			t.Error(err)
		}
		t.Logf("%v; %d guarded writes", report, len(history))
	})
}

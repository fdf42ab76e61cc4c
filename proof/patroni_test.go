//go:build linux

package proof_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/notes"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/tally"
)

// Patroni moves the primary between two servers: by a switchover, after a crash of the primary's
// machine, and after that machine stood still. With asynchronous replication the new primary may
// lack the last commits. Workers connect to both servers, as docs/databases.md says.
func TestPatroniFailoversKeepOneOwner(t *testing.T) {
	if testing.Short() {
		t.Skip("takes over two minutes")
	}
	for _, program := range []string{"patroni", "etcd"} {
		if _, err := exec.LookPath(program); err != nil {
			notes.Lacks(t, program, fmt.Sprintf("%v; on Debian: apt-get install patroni etcd-server", err))
		}
	}
	for _, synchronous := range []bool{false, true} {
		t.Run(fmt.Sprintf("synchronous %v", synchronous), func(t *testing.T) {
			timeguard.Run(t, func(t *timeguard.Try) {
				const partitions, ttl = 16, 2 * time.Second
				p := newPatroni(t, synchronous)
				dir, url := t.TempDir(), p.url()
				effects := faults.NewEffects(testkit.Pool(t, url, size(1)), "orders")
				testkit.OK(t, effects.Create(t.Context(), partitions))
				config := faults.Config{
					URL: url, Lease: "orders", Partitions: partitions, TTL: ttl, Effects: true, Patience: patience,
				}
				workers := startWorkers(t, config, dir, 3)
				owned := func() bool {
					n := 0
					for _, w := range workers {
						n += len(held(t, w))
					}
					return n == partitions
				}
				waitFor(t, patience, "all is owned", owned)
				for _, fault := range []struct {
					name       string
					does, ends func(*member)
				}{
					{"switchover", func(m *member) { p.switchover(t, m) }, func(*member) {}},
					{"crash", (*member).kill, func(m *member) { m.start(t) }},
					{"standstill", func(m *member) { m.signal(syscall.SIGSTOP) }, func(m *member) {
						m.signal(syscall.SIGCONT)
					}},
				} {
					old := p.leader(t)
					other := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.other(old).port)
					standby := testkit.Pool(t, other, size(1))
					waitFor(t, patience, "the standby has what is owned", func() (has bool) {
						const all = "SELECT count(owner) = $1 FROM pgleases.partitions"
						err := standby.QueryRow(t.Context(), all, partitions).Scan(&has)
						return err == nil && has // an error: it does not have the table yet
					})
					began := time.Now()
					fault.does(old)
					tally.Fault(t, "Patroni: "+fault.name)
					waitFor(t, 2*patience, "another one leads", func() bool {
						l := p.leads()
						return l != nil && l != old
					})
					led := time.Since(began)
					pool := testkit.Pool(t, url, size(1))
					waitFor(t, patience, "all is owned, and confirmed there", func() (renewed bool) {
						err := pool.QueryRow(t.Context(), `SELECT
							count(*) = 3 AND min(expires_at) > clock_timestamp() + $1
							FROM pgleases.clients`, ttl/2).Scan(&renewed)
						return err == nil && renewed && owned() // an error: no server takes writes yet
					})
					t.Logf("%s: another one led after %v, all was owned after %v",
						fault.name, led.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
					fault.ends(old)
					if fault.name != "standstill" { // the next fault needs both
						waitFor(t, 2*patience, "the old one follows", func() bool { return p.follows(old) })
						continue
					}
					// The old one does, or it takes the lock back: Patroni 3.0 writes its key to etcd without
					// a look at who has it now, if it was stopped after it had read that.
					waitFor(t, 2*patience, "one of them leads, and the other has stepped down", func() bool {
						leader := p.leads()
						if leader == nil {
							return false
						}
						role, _ := p.other(leader).state()
						return role == "replica"
					})
				}
				// With a new pool, because the other one may have connections to a server that is gone.
				effects = faults.NewEffects(testkit.Pool(t, url, size(1)), "orders")
				ledger := testkit.Must(effects.Ledger(t.Context()))(t)
				written := len(ledger.Writes)
				late := weighedWrites(t, ledger)
				if len(late) > 0 || written == 0 {
					t.Errorf("of %d guarded writes, these came late: %v", written, late)
				}
				closeWorkers(t, workers)
				t.Logf("%v; %d guarded writes", verifyDir(t, dir), written)
			})
		})
	}
}

// patroni is a cluster of two servers, and an etcd.
type patroni struct {
	members     []*member
	synchronous bool
}

// A member is a server under Patroni.
type member struct {
	name, dir  string
	port, rest int
	account    *syscall.Credential
	cmd        *exec.Cmd
}

func freePort(t testing.TB) int {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// patroniAccount returns whom the servers run as: PostgreSQL refuses root.
func patroniAccount(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u := testkit.Must(user.Lookup("postgres"))(t)
	uid, err := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	testkit.OK(t, errors.Join(err, err2))
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func newPatroni(t testing.TB, synchronous bool) *patroni {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("", "pgleases-patroni-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	account := patroniAccount(t)
	if account != nil {
		testkit.OK(t, os.Chown(dir, int(account.Uid), int(account.Gid)))
	}
	client, peer := freePort(t), freePort(t)
	clients, peers := fmt.Sprintf("http://127.0.0.1:%d", client), fmt.Sprintf("http://127.0.0.1:%d", peer)
	etcd := exec.Command("etcd", "--data-dir", filepath.Join(dir, "etcd"), "--log-level", "error", "--unsafe-no-fsync",
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
		"--initial-cluster", "default="+peers)
	etcd.SysProcAttr = &syscall.SysProcAttr{Credential: account, Setpgid: true}
	testkit.OK(t, etcd.Start())
	t.Cleanup(func() { _, _ = etcd.Process.Kill(), etcd.Wait() })
	bin, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bin) == 0 {
		notes.Lacks(t, "postgresql",
			"no PostgreSQL is below /usr/lib/postgresql; on Debian: apt-get install postgresql")
	}
	p := &patroni{synchronous: synchronous}
	for i := range 2 {
		m := &member{name: fmt.Sprintf("member%d", i), port: freePort(t), rest: freePort(t), account: account}
		m.dir = filepath.Join(dir, m.name)
		p.members = append(p.members, m)
		config := fmt.Sprintf(`
scope: proof
name: %[1]s
restapi: {listen: "127.0.0.1:%[2]d", connect_address: "127.0.0.1:%[2]d"}
etcd3: {hosts: ["127.0.0.1:%[3]d"]}
bootstrap:
  dcs: {ttl: 20, loop_wait: 1, retry_timeout: 3, synchronous_mode: %[4]v, postgresql: {use_pg_rewind: true, parameters: {wal_log_hints: "on"}}}
  initdb: [encoding: UTF8, no-sync, auth: trust]
  pg_hba: ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
postgresql:
  listen: 127.0.0.1:%[5]d
  connect_address: 127.0.0.1:%[5]d
  data_dir: %[6]s
  bin_dir: %[7]s
  pgpass: %[6]s.pgpass
  authentication: {superuser: {username: postgres, password: postgres}, replication: {username: postgres, password: postgres}, rewind: {username: postgres, password: postgres}}
  parameters: {unix_socket_directories: %[8]q, shared_buffers: 32MB}
`, m.name, m.rest, client, synchronous, m.port, m.dir, cmp.Or(os.Getenv("PGLEASES_TEST_POSTGRES_BIN"), bin[len(bin)-1]), dir)
		testkit.OK(t, os.WriteFile(m.dir+".yml", []byte(config), 0o644))
		t.Cleanup(func() {
			if t.Failed() {
				log, _ := os.ReadFile(m.dir + ".log")
				t.Logf("%s logged:\n%s", m.name, lastLines(string(log), 60))
			}
			m.kill()
		})
		m.start(t)
		if i == 0 {
			waitFor(t, patience, "the first one leads", func() bool { return p.leads() == m })
		}
	}
	waitFor(t, 2*patience, "the second one follows", func() bool { return p.follows(p.members[1]) })
	return p
}

// url returns the connection string of the primary.
func (p *patroni) url() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres"+
		"?sslmode=disable&target_session_attrs=read-write&connect_timeout=1",
		p.members[0].port, p.members[1].port)
}

func (m *member) start(t testing.TB) {
	t.Helper()
	log := testkit.Must(os.OpenFile(m.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))(t)
	defer log.Close()
	m.cmd = exec.Command("patroni", m.dir+".yml")
	m.cmd.Dir, m.cmd.Stdout, m.cmd.Stderr = filepath.Dir(m.dir), log, log
	m.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "HOME=" + filepath.Dir(m.dir)}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: m.account, Setpgid: true}
	testkit.OK(t, m.cmd.Start())
}

// signal sends a signal to Patroni and to all processes of its server, as what befalls a machine
// does.
func (m *member) signal(sig syscall.Signal) {
	_ = m.cmd.Process.Signal(sig)
	pidFile, _ := os.ReadFile(filepath.Join(m.dir, "postmaster.pid"))
	first, _, _ := strings.Cut(string(pidFile), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return // no server runs
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	for _, child := range append([]string{first}, strings.Fields(string(children))...) {
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, sig)
		}
	}
}

func (m *member) kill() {
	m.signal(syscall.SIGKILL)
	_ = m.cmd.Wait()
}

// brieflyConnected leaves no goroutine: it keeps no connection after an answer, and gives up one to a
// member that is stopped.
var brieflyConnected = &http.Transport{
	DisableKeepAlives: true,
	DialContext:       (&net.Dialer{Timeout: time.Second}).DialContext,
}

// ask reads what the member's Patroni answers to a GET request, and reports whether it did.
func (m *member) ask(path string, answer any) bool {
	client := http.Client{Timeout: time.Second, Transport: brieflyConnected}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/%s", m.rest, path))
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(answer) == nil
}

// state returns the role that Patroni gives the member, and the state of its server.
func (m *member) state() (role, state string) {
	var status struct{ Role, State string }
	m.ask("patroni", &status)
	return status.Role, status.State
}

func (p *patroni) other(m *member) *member {
	if m == p.members[0] {
		return p.members[1]
	}
	return p.members[0]
}

func (p *patroni) leads() *member {
	for _, m := range p.members {
		if role, state := m.state(); (role == "master" || role == "primary") && state == "running" {
			return m
		}
	}
	return nil
}

func (p *patroni) leader(t testing.TB) (leader *member) {
	t.Helper()
	waitFor(t, patience, "one leads", func() bool { leader = p.leads(); return leader != nil })
	return leader
}

// follows reports whether the member streams from the other, and would be its successor.
func (p *patroni) follows(m *member) bool {
	role, state := m.state()
	leader := p.leads()
	if role != "replica" || state != "running" || leader == nil {
		return false
	}
	var cluster struct {
		Members []struct {
			Name, Role, State string
			Lag               any
		}
	}
	leader.ask("cluster", &cluster)
	for _, other := range cluster.Members {
		if other.Name == m.name {
			return (other.State == "running" || other.State == "streaming") && fmt.Sprint(other.Lag) != "unknown" &&
				(other.Role == "sync_standby") == p.synchronous
		}
	}
	return false
}

func (p *patroni) switchover(t testing.TB, from *member) {
	t.Helper()
	to := p.other(from)
	waitFor(t, patience, "the switchover is accepted", func() bool {
		client := http.Client{Transport: brieflyConnected}
		answer, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d/switchover", from.rest), "application/json",
			strings.NewReader(fmt.Sprintf(`{"leader": %q, "candidate": %q}`, from.name, to.name)))
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

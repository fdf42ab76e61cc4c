//go:build unix

package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/proof/tally"
)

var (
	pattern = flag.String("mutants", "", "run the mutants whose names match this regular expression")
	seeds   = flag.Int("mutant-seeds", 5, "number of seeds for each mutant whose detector has a seed")
)

// patience is the time within which each mutant must be caught.
const patience = 2 * time.Minute

// An edit replaces text that occurs a given number of times.
type edit struct {
	file, old, new string
	times          int // 0 means 1
}

// A mutant is a change that an author might make who has not thought of the case.
type mutant struct {
	name string
	by   string // the name of the detector
	// A regular expression for the detector's message; a failure with another message does not
	// count.
	finds string
	edits []edit
}

// A detector is a test in a package, with its arguments, including a seed if the test has one.
type detector struct {
	folder string
	args   func(seed int) []string
}

// seeded tells whether the detector has a seed. Other detectors do the same in each run.
func (d detector) seeded() bool {
	return !slices.Equal(d.args(1), d.args(2))
}

var detectors = map[string]detector{
	// Worker processes under faults, on a real server.
	"fleet": {"proof", func(seed int) []string {
		seeded := fmt.Sprint("-soak-seed=", seed)
		return []string{"-test.run=^TestSoak$", "-soak=1s", "-soak-episode=40s", seeded, "-soak-log=" + os.DevNull}
	}},
	// Random histories of the client's loop on a simulated database, in simulated time.
	"histories": {"internal/engine", func(seed int) []string {
		seeded := fmt.Sprint("-first-seed=", 1000*seed)
		return []string{"-test.run=^TestNoTwoClientsEverShowAPartition$", seeded, "-seeds=100"}
	}},
	// Two copies of one process on a simulated database, in simulated time.
	"copies": {"internal/engine", run("^TestTwoCopiesOwn|^TestAHeartbeatThatComesLate")},
	// Timers of the engine, with heartbeats minutes apart, in simulated time.
	"wake-ups": {"internal/engine", run("^TestTheEngineWakesUp|^TestFailureBetweenBatches")},
	// A crash of the server that loses heartbeats, with live clients.
	"crash": {"proof", run("^TestLostHeartbeatsEvictNoClient$")},
	// Server generations, on a real server.
	"generations": {"internal/store", run("^TestServerGenerationNeverFalls|^TestCopiesOfOneState")},
	// Promotions of a standby that missed the last handoffs, on real servers.
	"promotion": {"proof", run("^TestAPromotedStandbyKeepsOneOwner$")},
	// Several copies of one server.
	"siblings": {"proof", run(copies + "siblings,_seen_by_new_clients$")},
	"return":   {"proof", run(copies + "return_to_the_old_primary$")},
	"dump":     {"proof", run(copies + "restored_dump$")},
	// The end of trust, also with a connection with fast failover, in simulated time.
	"ends": {"internal/engine", run("^TestTrustEnds")},
	// A process with fast failover that was stopped, in simulated time.
	"stopped": {"internal/engine", run("^TestReadersOfStoppedProcess")},
	// Live processes with fast failover, whose connections end.
	"terminated": {"proof", run("^TestTerminatedConnection")},
	// Handoffs of which the new owner is notified late, in simulated time.
	"announced": {"internal/engine", run("IsAnnounced|ReleaseBeforeCrash")},
	// Look-ups of owners over failovers and closes, in simulated time.
	"look-ups": {"internal/engine", run("^TestOwnersFollow|^TestOwnerAnswers|^TestLeaderIsSeen")},
	// Look-ups of what has changed since, on a real server.
	"changes": {"internal/store", run("^TestReaderOf")},
	"probes":  {"health", run("^TestProbesDelayNoHandoff$")},
	// Guarded transactions that are open when their partition should be handed over.
	"closed": {"internal/engine", run("FencedPartitionWaits")},
	// Tests of each statement, and random concurrent statements, on a real server.
	"statements": {"internal/store", run("Plan|Guard|Release|PreferredOwner")},
	// Two sessions that step through each other's statements, on a real server.
	"interleaved plans":    {"proof/interleavings", run(interleaved, "-pairs=^plan, override$")},
	"interleaved releases": {"proof/interleavings", run(interleaved, "-pairs=^release, (release|guard)$")},
	"interleaved checks":   {"proof/interleavings", run(interleaved, "-pairs=^heartbeat, evict$")},
	"interleaved locks":    {"proof/interleavings", run(interleaved, "-pairs=^lock, lock$")},
	// Overrides, on a real server and in simulated time.
	"overrides": {"internal/store", run("^TestAPlanIsToldOfEachOverride|^TestRevokedSession|" +
		"^TestClientOverrideCovers|^TestEveryChangeOf|^TestAVerbThatIsRefused")},
	// Partitions that wait before they move, in simulated time, and on a real server.
	"placed":     {"internal/engine", run("Delay|Deployment|Ceiling|WhatHasNoOwner|Grace|Waits?For|NothingWaits")},
	"placements": {"internal/store", run("RebalanceDelay|Grace")},
	// Worker processes that operators operate, on a real server.
	"operated":   {"proof", run("^TestOperatorsVerbsHoldUnderFaults")},
	"overridden": {".", run("^TestPlanObeysOverrides", "-rapid.nofailfile")},
	"ceilings": {".", run("^TestPlanKeepsCeilings|^TestPlanLeavesTheSame|^TestPlanGivesAwaited|"+
		"^TestPlanMovesNothing|^TestReplanWaits", "-rapid.nofailfile")},
	// Tests of the statements for locks, on a real server.
	"lock statements": {"internal/store", run("^TestALockIsTakenFromNobody|^TestAnOpenGuardKeepsTheLock|" +
		"^TestTokensRise|^TestAReleaseFreesNobodyElses")},
	// Package lock on a real server.
	"locks": {"lock", run("Grant|CutOff")},
	// Ticks of cron expressions against an oracle.
	"ticks": {"schedule", run("Oracle|LocalTimesRise", "-rapid.shrinktime=1s", "-rapid.nofailfile")},
	// Worker processes that run schedules, under faults, on a real server.
	"schedule fleet": {"proof", func(seed int) []string {
		seeded := fmt.Sprint("-schedule-seed=", seed)
		return []string{"-test.run=^TestEveryTickHasOneOutcome/^direct$", "-schedule-faults=60", seeded}
	}},
	// Runs of schedules on a real server.
	"runs": {"schedule", run("OfTickWithOutcome|EditsWhileItRuns|CommitsItself")},
	// Runs whose partition should move to another process.
	"guarded runs": {"schedule", run("NobodyOwns")},
	// A run with a clock that the test sets.
	"clock": {"schedule", run("UnderOneKey")},
	// A job that kills its process, and runs beside it.
	"crashes": {"schedule", run("^TestJobThatKillsItsProcess")},
	// Deploys, and two versions that alternate.
	"deploys": {"schedule", run("^TestDeploysIn|^TestTwoVersions|^TestARename")},
	// Owners that are cut off in calls outside the database.
	"outside": {"schedule", run("^TestAnOwnerThatIsCutOff")},
	// Transactions that wait for each other.
	"writers":   {"schedule", run("^TestAHundredWriters")},
	"deadlocks": {"schedule", run("^TestPutsInAnyOrder")},
	"slow":      {"schedule", run("^TestASlowHandler")},
	// Owners of slots that are cut off.
	"slots": {"schedule", run("^TestSlotsOfCutOffProcess", "-test.timeout=1m")},
	// Worker processes that run schedules, over the promotion of a standby that missed the last runs.
	"schedule promotion": {"proof", run("^TestAPromotedStandbyRunsEachTickOnce$")},
	// Worker processes that run schedules, on a server whose clock is wrong.
	"schedule clocks": {"proof", run("^TestWrongClocksRun")},
	// A fence in a database without leases.
	"outside fence": {"fence", run("^TestFenceRefuses|^TestFenceWaits")},
	// Adapters, with the real libraries.
	"gocron":        {"adapters/gocron", run("^TestLocker")},
	"cron":          {"adapters/cron", run("^TestJob|^TestPanic")},
	"client-go":     {"adapters/clientgo", run("^TestControllerRuntime")},
	"client-go cut": {"adapters/clientgo", run("^TestCutLeader")},
	// Package consumer on a real server.
	"consumer guard":    {"consumer", consumed("^TestLostOwnershipIsNoCrash")},
	"consumer order":    {"consumer", consumed("ChangedRow|AfterASplit")},
	"consumer locks":    {"consumer", consumed("^TestLockedRow")},
	"consumer deletes":  {"consumer", consumed("ThatADeleteKeeps")},
	"consumer commits":  {"consumer", consumed("^TestHandlerCannotUse|^TestCommitStays")},
	"consumer crashes":  {"consumer", consumed("^TestSuspects|^TestACleanEnd|^TestLostOwnership|^TestUnavailable")},
	"consumer batches":  {"consumer", consumed("^TestOneBatch|^TestEndFinishes")},
	"consumer failures": {"consumer", consumed("FailTogether|^TestOutage|^TestCommitInAHandler|^TestBackoffHolds")},
	// Callers of one lock on a machine that is too busy.
	"overload": {"proof", run("^TestLocksRecover")},
	// Processes that work through a queue, on a real server.
	"queue": {"proof", func(seed int) []string {
		return []string{"-test.run=^TestQueueWithLateCommits$/^in_tx$", fmt.Sprint("-queue-seed=", seed)}
	}},
	// Rows that are published, on a server that flushes its log late.
	"consumer durability": {"proof", run("^TestPublishedRows")},
	// Each statement's flush of the log, on a real server.
	"durability": {"proof", run("^TestWritesAreDurable")},
}

// run returns the arguments of a detector without a seed.
func run(tests string, further ...string) func(int) []string {
	return func(int) []string { return append([]string{"-test.run=" + tests}, further...) }
}

func consumed(tests string) func(int) []string { return run(tests, "-test.timeout=100s") }

const (
	interleaved = "^TestEveryInterleaving"
	copies      = "^TestEpochsRiseOverAllCopiesOfAServer$/^"
)

const unnoticed = `received.After(s.lateUntil)`

const guarded = ` AND p.partition OPERATOR(pg_catalog.=) guard.partition AND p.epoch OPERATOR(pg_catalog.=) guard.epoch`

// elsewhere is true in another transaction than that of the handler.
const elsewhere = `IF (pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text ` +
	`OPERATOR(pg_catalog.=) p_xact) IS NOT TRUE THEN`

const liveOf = `        IF NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = r.session`

const (
	overtaken  = `a plan that was read before is applied`
	missesJoin = `a plan that saw the join and not the override`
)

var mutants = append(asleep(), []mutant{
	{"trust that outlives the connection", "ends", `trusted true`, []edit{
		{"internal/liveness/liveness.go", `	if l.validity != nil {
		l.validity.End()
	}
	l.mu.Unlock()`, `	l.mu.Unlock()`, 0},
	}},
	{"a request for each caller of a lock", "overload", `nearly all callers give up|from 2 s after`, []edit{
		{"lock/line.go", `	if of == nil {`, `	if true {`, 0},
	}},
	{"readers of a stopped process", "stopped", `goes on: trusted true`, []edit{
		{"internal/liveness/liveness.go", `Allow(now.Add(StoppedFor))`, `Allow(now.Add(time.Hour))`, 0},
	}},
	{"a terminated session taken for an expired one", "terminated", `evicted|SELECT presence`, []edit{
		{"sql/schema/liveness.sql", `s.killed = p_killed AND `, ``, 0},
	}},
	{"no local trust deadline", "histories", `overlap|stale`, []edit{
		{"internal/owned/validity.go", `time.Duration(v.deadline.Load()) > time.Since(v.opened)`,
			`v.deadline.Load() > 0`, 0},
		{"internal/owned/validity.go", `left := time.Duration(deadline) - passed`,
			`left := time.Duration(deadline)`, 0},
		{"internal/engine/trust.go", `(t.validity.Over() || !now.Round(0).Before(t.wallLimit))`,
			`!now.Round(0).Before(t.wallLimit)`, 0},
		{"internal/engine/trust.go", `	return t.validity.Deadline()`, `	return when.Never`, 0},
	}},
	{"trust anchored at the answer", "ends", `trust deadline is`, []edit{
		{"internal/engine/trust.go", `= sent.Round(0).Add(trusts)`, `= now.Round(0).Add(trusts)`, 0},
		{"internal/engine/engine.go", `e.trust.validity.Prolong(sent.Add(trusts))`,
			`e.trust.validity.Prolong(now.Add(trusts))`, 0},
	}},
	{"asynchronous ownership writes", "durability", `an apply that gives is not on disk`, []edit{
		{"sql/schema/plans.sql", `    PERFORM pgleases.settings(true, p_lock_ms);
    applied :=`, `    PERFORM pgleases.settings(false, p_lock_ms);
    applied :=`, 0},
		{"sql/schema/leases.sql", `    PERFORM pgleases.settings(true, p_lock_ms);
    -- Lock`, `    PERFORM pgleases.settings(false, p_lock_ms);
    -- Lock`, 0},
	}},
	{"a promoted server that is accepted at once", "promotion", `overlap|epoch`, []edit{
		{"internal/engine/server.go", `when.Later(s.acceptAt, watched)`, `s.acceptAt`, 0},
		{"internal/engine/begin.go", `c.AcceptServer(ctx, watched, run, seen)`,
			`c.AcceptServer(ctx, watched+MaxTTL, run, seen)`, 0},
	}},
	{"epoch without server generation", "generations", `of server generation 0 after|the other begins with`, []edit{
		{"sql/schema/plans.sql", `greatest(p.epoch + 1, lowest)`, `p.epoch + 1`, 0},
		{"sql/schema/leases.sql", `greatest(p.epoch + 1, lowest_epoch)`, `p.epoch + 1`, 0},
	}},
	{"a server generation that counts promotions, without the clock", "siblings", `epoch (repeats|falls)`, []edit{
		{"sql/statements/accept.sql", `- 1577836800, 2000000000)`, `- 1577836800, 0)`, 0},
		{"sql/schema/server.sql", `& 2147483647`, `& 0`, 0},
	}},
	{"a server known by its timeline alone", "dump", `epoch (repeats|falls)`, []edit{
		{"sql/schema/server.sql", `RETURN number OPERATOR(pg_catalog.+) ` +
			`(SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c)`, `RETURN number`, 0},
		{"sql/schema/server.sql", `concat_ws(' ', i.number, i.xmin, pgleases.present_database())`,
			`concat_ws(' ', i.number)`, 0},
	}},
	{"a server that is behind and not noticed", "return", `epoch (repeats|falls)`, []edit{
		{"internal/engine/server.go", `if s.accepted && generation < s.generation {`, `if false {`, 0},
		{"internal/engine/server.go", `s.toReject = accepted && beat.ServerGeneration < s.generation`,
			`s.toReject = false`, 0},
	}},
	{"a fence whose answer is waited for", "closed", `it shows what it had handed over`, []edit{
		{"internal/engine/assignments.go", `a.state = fencing }`, `a.state = draining }`, 0},
	}},
	{"no fence before a release", "closed", `not within 5s: no further guard passes`, []edit{
		{"internal/engine/assignments.go", `return a.busy > 1 &&`, `return false &&`, 0},
	}},
	{"EXISTS instead of a row lock in Guard", "fleet", `zombie|linearizable`, []edit{
		{"sql/schema/application.sql", "    FOR KEY SHARE;\n", "    ;\n", 0},
	}},
	{"Guard that takes the current epoch", "fleet", `zombie|linearizable`, []edit{
		{"sql/schema/application.sql", guarded, ` AND p.partition OPERATOR(pg_catalog.=) guard.partition`, 0},
	}},
	{"takeover without FOR UPDATE", "statements", `left over under a savepoint|guard`, []edit{
		{
			"sql/schema/plans.sql", "IS NOT TRUE\n                FOR UPDATE SKIP LOCKED\n",
			"IS NOT TRUE\n                OFFSET 0\n", 0,
		},
	}},
	{"claim without re-check", "statements", `after another's join|after a change that it waited for`, []edit{
		{"sql/schema/plans.sql", `WHERE l.name = r.name AND l.generation = r.generation FOR`,
			`WHERE l.name = r.name FOR`, 0},
	}},
	{"a plan that locks no lease", "interleaved plans", `was written over generation`, []edit{
		{"sql/schema/plans.sql", `l.generation = r.generation FOR UPDATE) AS l);`,
			`l.generation = r.generation) AS l);`, 0},
	}},
	{
		"a repeated release that compares no epoch", "interleaved releases",
		`a release by \d+ under epoch \d+ changed`, []edit{
			{"sql/schema/leases.sql", `(p.owner = p_session) IS TRUE AND p.epoch = b.epoch
            FOR UPDATE`, `(p.owner = p_session) IS TRUE
            FOR UPDATE`, 0},
		},
	},
	{"a guard that locks no row", "interleaved releases", `has passed, and is not of the owner`, []edit{
		{"sql/schema/application.sql", `SELECT s.generation FROM pgleases.server AS s)
    FOR KEY SHARE;`, `SELECT s.generation FROM pgleases.server AS s);`, 0},
	}},
	{"a check that compares no watch", "interleaved checks", `was evicted, though it expires at`, []edit{
		{"sql/schema/expiry.sql", `c.expires_at < cutoff AND c.ttl <= watched AS expired`,
			`c.expires_at < cutoff AS expired`, 0},
	}},
	{"a lock without its mutex", "interleaved locks", `without a holder|two holders|duplicate key`, []edit{
		{"sql/schema/locks.sql", `IF NOT pg_catalog.pg_try_advisory_xact_lock(pgleases.lock_mutex(p_name)) THEN`,
			`IF false THEN`, 0},
	}},
	{"eviction without a watch", "histories", `evicted .* after a heartbeat|overlap|stale`, []edit{
		{"internal/engine/expiry.go", `watchLacks > 0`, `watchLacks > MaxTTL`, 0},
		{"internal/engine/begin.go", `.cutoff(now), e.watch.lasts(now)`, `.cutoff(now), MaxTTL`, 0},
	}},
	{"eviction with a watch of the wrong length", "histories", `evicted .* after a heartbeat|overlap|stale`, []edit{
		{"internal/engine/begin.go", `.cutoff(now), e.watch.lasts(now)`, `.cutoff(now), 8*e.watch.lasts(now)`, 0},
	}},
	{"eviction without the boot marker", "crash", `something changed|were evicted`, []edit{
		{"sql/schema/expiry.sql", `      AND (SELECT m.marker FROM pgleases.present_marker AS m) = p_marker`,
			`      AND p_marker IS NOT NULL`, 0},
		{"internal/engine/watch.go", `	if run != w.run || run.Marker == 0 {`,
			`	if run.Marker = 1; run != w.run {`, 0},
	}},
	{"session numbers that repeat", "histories", `overlap|stale|handed over under work`, []edit{
		{"internal/store/session.go", `return max(int64(`, `return min(int64(`, 0},
		{"internal/engine/session.go", unnoticed, `false`, 0}, // otherwise this check would find it
	}},
	{"a revoked session that is renewed", "overrides", `alive, copied: got`, []edit{
		{"sql/schema/clients.sql", `      AND c.incarnation OPERATOR(pg_catalog.>=) 0 -- otherwise it is revoked
`, ``, 0},
	}},
	{"a guard that passes for a revoked session", "overrides", `a guard passes: got`, []edit{
		{"sql/schema/application.sql", ` AND c.incarnation OPERATOR(pg_catalog.>=) 0)
      AND (guard.epoch`, `)
      AND (guard.epoch`, 0},
	}},
	{"an override that overtakes no plan", "overrides", overtaken + `|` + missesJoin, []edit{
		{"sql/schema/operators.sql", `    SET generation = l.generation + 1, ` +
			`plan_due_at = least(l.plan_due_at, clock_timestamp())
    WHERE l.name = ANY (p_leases);
    INSERT INTO pgleases.events (lease, cause, actor`, `    SET plan_due_at = least(l.plan_due_at, clock_timestamp())
    WHERE l.name = ANY (p_leases);
    INSERT INTO pgleases.events (lease, cause, actor`, 0},
	}},
	{"an override that misses a join", "overrides", missesJoin, []edit{
		{"sql/schema/operators.sql", `    RETURN pgleases.leases_of(p_lease, p_client);`, `    RETURN names;`, 0},
	}},
	{"an event of a join that is repeated", "overrides", `events: got`, []edit{
		{"sql/schema/leases.sql", `WHERE member.new`, `WHERE true`, 0},
	}},
	{"a cordoned member that gets more", "overridden", `which is cordoned|they own`, []edit{
		{"rebalance.go", `		if cordoned[m] {`, `		if cordoned[m] && m > 9 {`, 0},
	}},
	{"a pin that yields to the shares", "overridden", `not within|is pinned to`, []edit{
		{"rebalance.go", `ok && !(works(m) && h.frozen) {`, `ok && !works(m) {`, 0},
	}},
	{"an operator's eviction that others do not wait for", "operated", `^overlap|^epoch falls`, []edit{
		{"sql/schema/operators.sql", `    UPDATE pgleases.clients AS c SET incarnation = -1 WHERE`,
			`    UPDATE pgleases.server SET next_check_at = 'epoch';
    UPDATE pgleases.clients AS c SET incarnation = -1, expires_at = 'epoch' WHERE`, 0},
	}},
	{"a freeze that lets shares become even", "operated", `of a frozen lease went`, []edit{
		{"rebalance.go", `(h.frozen || cordoned[m] ||`, `(cordoned[m] ||`, 0},
		{"rebalance.go", `	if held || closed {`, `	if closed {`, 0},
	}},
	{"a rebalance delay that plans do not see", "placed", `before the delay|a owns`, []edit{
		{"rebalance.go", `held := h.frozen || h.settles`, `held := h.frozen`, 0},
	}},
	{"a rebalance delay of the last member alone", "placements", `delay of the second join`, []edit{
		{"sql/schema/leases.sql", `(SELECT max(m.rebalance_delay)`,
			`(SELECT min(m.rebalance_delay - m.rebalance_delay)`, 0},
	}},
	{"a member above its ceiling that gives its lowest numbers", "ceilings", `gives its highest numbers`, []edit{
		{"rebalance.go", `	if s.unowned > 0 {`, `	if s.unowned > 99 {`, 0},
	}},
	{"a pin that does not count against the ceiling", "ceilings", `above its ceiling`, []edit{
		{"rebalance.go", `		case ceiling > has[m]:`, `		case ceiling >= 0*has[m]:`, 0},
		{"rebalance.go", `			rest.ceilings[m] = ceiling - has[m]`,
			`			rest.ceilings[m] = ceiling`, 0},
	}},
	{"ceilings that every member logs", "placed", `was logged`, []edit{
		{"internal/fakestore/statements.go", ` && session == t.firstOf(name)`, ``, 0},
	}},
	{"a client that is awaited and gets others", "ceilings", `which is away|are away|moves "`, []edit{
		{"rebalance.go", `		if s.lease.isAway(m) && s.quota[m] > s.has[m] {`,
			`		if s.lease.isAway(m) && s.quota[m] > 99 {`, 0},
		{"rebalance.go", `	if s.lease.isAway(m) && has < floor && (`,
			`	if s.lease.isAway(m) && floor > 99 && (`, 0},
	}},
	{"a restart that changes the shares of others", "ceilings", `are away`, []edit{
		{"rebalance.go", `s.lease.isAway(m) && has < floor && (`, `s.lease.isAway(m) && has <= floor && (`, 0},
	}},
	{"a grace that a close for good does not end", "placements", `after it has left for good`, []edit{
		{"sql/schema/leases.sql", `AND (b.lease IN (SELECT n FROM unnest(awaited) AS n)) IS NOT TRUE`, `AND false`, 0},
	}},
	{"a grace that an operator's drain does not end", "placed", `not within .*others have them`, []edit{
		{"internal/fakestore/statements.go", `g.lasts(clock) && !t.overridden("drain", "", key.Client)`,
			`g.lasts(clock)`, 0},
	}},
	{"a copy of a process that is not noticed", "copies", `not within 4s: one owns them`, []edit{
		{"internal/engine/session.go", unnoticed, `false`, 0},
	}},
	{"a lost answer taken for a copy", "histories", `believes that there is a copy`, []edit{
		{"internal/engine/session.go", "	s.last = false\n", "", 0},
	}},
	{"a late heartbeat taken for a copy", "copies", `believes that there is a copy`, []edit{
		{"internal/engine/session.go", "const lateAtMost = 10 * time.Minute", "const lateAtMost = 0", 0},
	}},
	{"release without epoch", "statements", `answer: got {Released|released under the epoch before`, []edit{
		{"sql/schema/leases.sql", `(p.owner = p_session) IS TRUE AND p.epoch = b.epoch
            FOR UPDATE`, `(p.owner = p_session) IS TRUE
            FOR UPDATE`, 0},
	}},
	{"release by a session that is gone", "statements", `released: got 1, want 0`, []edit{
		{"sql/schema/leases.sql", "alive := FOUND;", "alive := true;", 0},
	}},
	{"owners by the lease's generation alone", "look-ups", `hears of a again`, []edit{
		{"internal/engine/lease.go", `|| old.Server != server`, ``, 0},
	}},
	{"owners without late commits", "changes", `what the reader knows`, []edit{
		{"sql/schema/leases.sql", `oldest CONSTANT xid8 := pg_snapshot_xmin(`,
			`oldest CONSTANT xid8 := pg_snapshot_xmax(`, 0},
	}},
	{"owners without trimmed events", "changes", `what the reader knows`, []edit{
		{"sql/schema/leases.sql", `(trimmed < w.seen OR trimmed >= next)`, `true`, 0},
	}},
	{"no look-ups while a client closes", "look-ups", `while the client closes`, []edit{
		{"internal/engine/tasks.go", `beginLookUpOwners, yields`, `beginLookUpOwners, untilEnds | yields`, 0},
	}},
	{"a probe that counts as a reader", "probes", `not handed over`, []edit{
		{"internal/engine/stats.go", `len(m.lease.Board.Look().Values)`, `len(m.lease.Board.Read().Values)`, 0},
	}},
	{"release without an announcement", "announced", `not within 5s: b owns it|not within 10s: a releases it`, []edit{
		{"internal/engine/releases.go",
			`			changed = append(changed, announcement{m.lease.Name, h.Owner, h.Owner != 0})
`, ``, 0},
	}},
	{"release before the work ended", "histories", `handed over under work`, []edit{
		{"internal/engine/assignments.go", `!now.Before(a.readyAt) && !a.overdue && a.ownership.Pinned()`, `false`, 0},
	}},
	{"releases not retried", "closed", `not within 5s: no further guard passes`, []edit{
		{"internal/engine/begin.go", `		e.releases.tried(r, err, now)
`, `		for _, a := range r.assignments {
			delete(e.members.shared.draining, a)
		}
		e.releases.tried(r, err, now)
`, 0},
	}},
	{"losses that are not reported", "fleet", `without ending their contexts`, []edit{
		{"internal/owned/board.go", `		if o.cancel != nil {
			cancels = append(cancels, o.cancel)
		}
`, "", 0},
	}},
	{"a lock without a trust deadline", "fleet", `overlap|epoch falls`, []edit{
		{"lock/held.go", `	case h.acquisition.Validity.Remaining() > 0:`, `	case true:`, 0},
		{"internal/engine/engine.go", `	e.locks.Lose(cause, e.standing())`, ``, 0},
	}},
	{"a lock's guard without a row lock", "lock statements", `got released, want busy`, []edit{
		{"sql/schema/application.sql", `    FOR KEY SHARE OF l;`, `    ;`, 0},
	}},
	{"a lock's guard that takes any token", "fleet", `zombie|linearizable`, []edit{
		{"sql/schema/application.sql", `WHERE l.name = guard_lock.name AND l.token = guard_lock.token`,
			`WHERE l.name = guard_lock.name AND l.token IS NOT NULL`, 0},
	}},
	{"a release by a client that does not hold the lock", "lock statements", `release by another`, []edit{
		{"sql/schema/locks.sql", `            WHERE d.session OPERATOR(pg_catalog.=) p_session ` +
			`AND d.nonce OPERATOR(pg_catalog.=) p_nonce AND d.name OPERATOR(pg_catalog.=) p_name`,
			`            WHERE d.token IS NOT NULL AND d.name OPERATOR(pg_catalog.=) p_name`, 0},
	}},
	{"a lock taken from an expired client", "lock statements", `granted|waits`, []edit{
		{"sql/schema/locks.sql", liveOf + `) THEN`, liveOf + ` AND c.expires_at > clock_timestamp()) THEN`, 0},
	}},
	{"tokens without a server generation", "lock statements", `token|server generation`, []edit{
		{"sql/schema/locks.sql", `(s.generation OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.+) pg_catalog.nextval(`,
			`pg_catalog.nextval(`, 0},
		{"sql/schema/locks.sql", `(present << 32) + nextval(`, `nextval(`, 2},
	}},
	{"skipped local times have no tick", "ticks", `no tick at|is next, and`, []edit{
		{"schedule/zone.go", `s.makeUp = !c.matches(shown)`, `s.makeUp = false`, 0},
	}},
	{"repeated local times tick twice", "ticks", `a tick at|is next, and`, []edit{
		{"schedule/zone.go", `s.from = max(s.from, start+before.offset)`,
			`s.from = max(s.from, s.start+s.offset, before.start)`, 0},
	}},
	{"only the last change of the clocks is considered", "ticks", `a tick at|is next, and`, []edit{
		{"schedule/zone.go", `start > s.start-apart && start != never;`, `start == s.start && start != never;`, 0},
	}},
	{"spans start as package time reports", "ticks", `tick at|is due then|is next, and`, []edit{
		{"schedule/zone.go", `end <= at; end = c.end(end)`, `end < s.start; end = c.end(end)`, 0},
	}},
	{"repeated hours on a rule's only day tick once", "ticks", `no tick at|is next, and`, []edit{
		{"schedule/zone.go", `c.ceil(s.end - apart)`, `c.ceil(s.end + s.offset)`, 0},
	}},
	{"the local time of the last tick is ignored", "ticks", `the clocks show`, []edit{
		{"schedule/zone.go", `if t.Local.IsZero() {`, `if true {`, 0},
	}},
	{"a run of a schedule without a guard", "guarded runs", `in the middle of a run`, []edit{
		{"schedule/sql/functions/run.sql", `:= pgleases.guard(p_lease, p_number, p_epoch);`, `:= '';`, 0},
	}},
	{"a close of a run that raises no error if the cursor has moved", "runs", `effects|outcomes|entry`, []edit{
		{"schedule/sql/functions/run.sql",
			`RAISE EXCEPTION 'schedule % has its cursor at %, and the run began at %', ` +
				`p_schedule, s.cursor, p_cursor_before USING ERRCODE = 'PS002';`, `RETURN;`, 0},
	}},
	{"a close in another transaction than the run's", "runs", `it has its outcome`, []edit{
		{"schedule/sql/functions/run.sql", `IF current_setting('schedule.run', true) IS DISTINCT FROM p_run THEN`,
			`IF false THEN`, 2},
		{"schedule/sql/functions/run.sql",
			`AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) p_run`, ``, 3},
		{"internal/handlers/tx.go", `return ErrEnded`, `return nil`, 2},
	}},
	{"the client's clock decides what is due", "clock", `outcome`, []edit{
		{"schedule/decide.go", `r.decideTicks(&d, rule, r.Clock, epoch)`,
			`r.decideTicks(&d, rule, time.Now(), epoch)`, 0},
		{"schedule/decide.go", `r.decideRun(&d, r.Clock, epoch)`, `r.decideRun(&d, time.Now(), epoch)`, 0},
	}},
	{"a clock that is ahead by a second", "schedule fleet", `early`, []edit{
		{"schedule/decide.go", `r.decideTicks(&d, rule, r.Clock, epoch)`,
			`r.decideTicks(&d, rule, r.Clock.Add(time.Second), epoch)`, 0},
		{"schedule/decide.go", `r.decideRun(&d, r.Clock, epoch)`,
			`r.decideRun(&d, r.Clock.Add(time.Second), epoch)`, 0},
	}},
	{"the cursor locked before the handler", "runs", `put|lock`, []edit{
		{"schedule/sql/functions/run.sql", `hashint8extended(s.id, s.tableoid::bigint)) IS NOT NULL`,
			`hashint8extended(s.id, s.tableoid::bigint)) IS NOT NULL FOR UPDATE`, 0},
	}},
	{"ticks that are passed over without an outcome", "schedule fleet", `outcomes`, []edit{
		{"schedule/decide.go", `pass(due.Missed, OutcomeMissed)`, `if due.Missed.Count > 0 {
		d.moveTo(due.Missed.Last)
	}`, 0},
	}},
	{"a step of the cursor without its history", "schedule fleet", `effects|outcome`, []edit{
		{"schedule/sql/functions/run.sql", `    PERFORM pgleases.schedule_write_ticks(stepped.id,`,
			`    IF stepped.id % 2 = 0 THEN RETURN; END IF;
    PERFORM pgleases.schedule_write_ticks(stepped.id,`, 0},
		{"schedule/sql/functions/run.sql", `FROM stepped AS s;
    IF NOT FOUND THEN`, `FROM stepped AS s WHERE s.id % 2 = 0;
    IF false THEN`, 0},
	}},
	{"runs under one key side by side", "schedule fleet", `overlap`, []edit{
		{"schedule/queue.go", `if _, busy := q.keys[it.Key]; busy {`, `if false {`, 0},
	}},
	{"a limit by stored counters, which a crash does not reset", "slots", `timed out`, []edit{
		{"schedule/sql/functions/slots.sql", `AND (s.run IS NULL OR NOT EXISTS (`,
			`AND (s.run IS NULL OR false AND NOT EXISTS (`, 0},
		{"schedule/slots.go", `	if !outside {
		call = nil
	}
`, ``, 0},
		{"schedule/attempt.go", `a.slot = calls && k.limits.limited`, `a.slot = k.limits.limited`, 0},
	}},
	{"a run that finds no slot and goes on", "schedule fleet", `together`, []edit{
		{"schedule/sql/functions/slots.sql", `    IF taken IS NULL THEN
        RETURN NULL;`, `    IF taken IS NULL THEN
        RETURN 0;`, 0},
	}},
	{"crashes charged to all that ran", "crashes", `not killed by its job`, []edit{
		{"schedule/queue.go", `if q.bands[at.band][at.index].Crashes > 0 && len(q.running) > 0 {`, `if false {`, 0},
		{"schedule/queue.go", `if left > 0 && q.runsSuspect() && len(q.running) == 1 {`, `if false {`, 0},
		{"schedule/queue.go", `if it.Crashes > 0 && q.runsSuspect() {`, `if false {`, 0},
	}},
	{"crashes that are not counted", "crashes", `outcomes of "poison"|not killed by its job`, []edit{
		{"schedule/crashes.go", `return r.Trying.crashes() > 0 || o.crashed && !it.due().After(o.opened)`,
			`return false`, 0},
	}},
	{
		"a call that was begun is called again, at most once", "outside",
		`effects of|outcomes of "pay"|Name:pay .* Outcome:succeeded`, []edit{
			{"schedule/attempt.go", `case r.Trying.begun() != e.id && (r.Trying.calledOnce() || ` +
				`!k.calls.repeatable() && r.Trying.begun() != ""):`, `case false:`, 0},
		},
	},
	{"a replaced job that counts as run", "writers", `jobs whose last order did not run`, []edit{
		{"schedule/sql/functions/run.sql", `p_job AND r.revision OPERATOR(pg_catalog.=) p_revision`, `p_job`, 0},
	}},
	{"a job without its outcome", "schedule fleet", `jobs: |calls: `, []edit{
		{"schedule/sql/functions/run.sql", `FROM ended AS e;
    IF NOT FOUND THEN`, `FROM ended AS e WHERE e.id % 2 = 0;
    IF false THEN`, 0},
	}},
	{"an idempotency key of an id", "schedule promotion", `calls: two of different things have one key`, []edit{
		{"schedule/outside.go", `group, r.Nonce, r.Revision)`, `group, fmt.Sprint(r.ID), r.Revision)`, 0},
	}},
	{"a clock that is believed at once", "schedule clocks", `both doubt it|before their time`, []edit{
		{"schedule/clock.go", `case (c.doubt.IsZero() || (ahead-c.other).Abs() > maxStep) && doubted > 0:`,
			`case false:`, 0},
	}},
	{"a deploy that begins schedules anew", "deploys", `outcomes|entry`, []edit{
		{"schedule/edit.go", `if have.Rule != want.Rule {`, `if have.Rule != want.Rule || want.Declared {`, 0},
		{"schedule/sql/functions/schedules.sql", `IF s.rule <> p_rule THEN`,
			`IF s.rule <> p_rule OR p_declared THEN`, 0},
		{"schedule/edit.go", `same := alike(want, have)`, `same := !want.Declared && alike(want, have)`, 0},
	}},
	{"a deadlock that is no reason to run again", "deadlocks", `outcome of what was in deadlocks`, []edit{
		{"schedule/run.go", `e.conflicts < maxConflicts`, `false`, 0},
		{"schedule/errors.go", `return saidBy(err) == worker.Discarded ||`,
			`return conflict(err) || saidBy(err) == worker.Discarded ||`, 0},
	}},
	{"a handoff that waits for no run", "slow", `two runs at once|got`, []edit{
		{"schedule/ownership.go", `	o.runs.Wait()
`, ``, 0},
	}},
	{"an outside fence without a row lock", "outside fence", `did not wait`, []edit{
		{"fence/schema.sql", `VALUES ($1, $2)
    ON CONFLICT`, `SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM pgleases.fences AS f WHERE f.name = $1 AND f.epoch = $2)
    ON CONFLICT`, 0},
		{"fence/schema.sql", `IF NOT FOUND THEN`, `IF NOT FOUND ` +
			`AND EXISTS (SELECT FROM pgleases.fences AS f WHERE f.name = $1 AND f.epoch > $2) THEN`, 0},
	}},
	{"an outside fence that accepts a lower epoch", "outside fence", `the lower epoch: <nil>`, []edit{
		{"fence/schema.sql", ` WHERE f.epoch <= EXCLUDED.epoch;`, `;`, 0},
	}},
	{"an outside fence that does not remember", "outside fence", `the lower epoch: <nil>`, []edit{
		{"fence/schema.sql", `SET epoch = EXCLUDED.epoch`, `SET epoch = f.epoch`, 0},
	}},
	{"an outside fence on the table of another role", "outside fence", `the table of another role`, []edit{
		{"fence/schema.sql", `IF owner OPERATOR(pg_catalog.<>)`, `IF false AND owner OPERATOR(pg_catalog.<>)`, 0},
	}},
	{"a run of gocron known by its own time", "gocron", `runs, want|again in period`, []edit{
		{"adapters/gocron/gocron.go", `at = at.Truncate(schedule.Duration)`, ``, 0},
	}},
	{"a run of gocron whose lock ends with it", "gocron", `runs, want|again in period|locks are kept`, []edit{
		{"adapters/gocron/gocron.go", `time.AfterFunc(time.Until(k.until), release)`, `time.AfterFunc(0, release)`, 0},
	}},
	{"a cron job whose partition moves", "cron", `moved while the job ran|ended before the job`, []edit{
		{"adapters/cron/cron.go", `		defer hold.Release()`, `		hold.Release()`, 0},
	}},
	{"a candidate of client-go that always leads", "client-go", `two (led|managers)`, []edit{
		{"adapters/clientgo/clientgo.go", `	err := l.renew()`, `	var err error`, 0},
	}},
	{"a leader of client-go that renews without trust", "client-go cut", `two led`, []edit{
		{"adapters/clientgo/clientgo.go", `left < l.Trust {`, `left < 0 {`, 0},
	}},
	{"a grant from before a loss of trust", "locks", `trust`, []edit{
		{"internal/locks/locks.go", `	case of.Validity != now.Validity || of.Validity.Over():
		return s.config.TrustLost
	case of.Run.Unmarked() != now.Confirmed:`, `	case of.Run.Unmarked() != now.Confirmed:`, 0},
	}},
	{"a grant that is judged by the state at its arrival", "locks", `trust`, []edit{
		{"internal/locks/locks.go", `	of := s.of[a.Nonce]
	switch now := &s.standing; {`, `	of := s.of[a.Nonce]
	if of != nil && s.standing.Validity != nil {
		s.renew(of)
	}
	switch now := &s.standing; {`, 0},
	}},
	{"a batch of a consumer without its guard", "consumer guard", `rows that the next owner handled`, []edit{
		{"consumer/sql/open.sql", `pgleases.guard_many($1::pg_catalog.text, $2::int[], $3::bigint[])`,
			`CASE WHEN $1::text IS NULL OR $2::int[] IS NULL OR $3::bigint[] IS NULL ` +
				`THEN NULL ELSE '{}'::int[] END`, 0},
	}},
	{"rows deleted after the commit of their effects", "consumer deletes", `effects: 1, want 0`, []edit{
		{"consumer/attempt.go", `	batch.Queue(a.db.sql.Ours)
	removed :=`, `	batch.Queue("commit")
	removed :=`, 0},
		{"consumer/sql/schema.sql", elsewhere, `IF false THEN`, 0},
	}},
	{"a changed row that is deleted", "consumer order", `payloads of the row and attempts`, []edit{
		{"consumer/sql/removesame.sql", ` AND q.xmin::pg_catalog.text OPERATOR(pg_catalog.=) b.version`, ``, 0},
	}},
	{"NOT EXISTS instead of NOT IN", "consumer order", `overtook`, []edit{
		{"consumer/sql/read.sql", `NOT {key} OPERATOR(pg_catalog.=) ` +
			`ANY (SELECT b.key FROM pgleases.consumer_blocked AS b`,
			`NOT EXISTS (SELECT FROM pgleases.consumer_blocked AS b`, 0},
		{"consumer/sql/read.sql", `b.partition OPERATOR(pg_catalog.=) p.partition)`,
			`b.partition OPERATOR(pg_catalog.=) p.partition AND b.key OPERATOR(pg_catalog.=) {key})`, 0},
	}},
	{"rows read before a failure and handled after it", "consumer order", `payloads of the changed row`, []edit{
		{"consumer/queue.go", `	lost    bool // it is not owned`, `	lost    bool
	list    []row`, 0},
		{"consumer/attempt.go", `	o.at = len(o.rows)
	return o`, `	if l := p.list; l != nil && !r.job.isRetry {
		o.rows = l[:min(r.attempt.limit, len(l))]
	}
	o.at = len(o.rows)
	return o`, 0},
		{"consumer/run.go", `		*b = batch{limit: len(o.rows) / 2}`,
			`		*b, parts[0].list = batch{limit: len(o.rows) / 2}, o.rows`, 0},
		{"consumer/run.go", `		e.advance(parts, o)
		switch {`, `		e.advance(parts, o)
		parts[0].list = nil
		switch {`, 0},
	}},
	{"SKIP LOCKED in the read", "consumer locks", `rows that overtook|rows out of order`, []edit{
		{"consumer/statements.go", `"FOR UPDATE OF q"`, `"FOR UPDATE OF q SKIP LOCKED"`, 0},
	}},
	{"SKIP LOCKED in the read of a fleet", "queue", `^out of order`, []edit{
		{"consumer/statements.go", `"FOR UPDATE OF q"`, `"FOR UPDATE OF q SKIP LOCKED"`, 0},
	}},
	{"suspects side by side", "consumer crashes", `side by side|suspects and 0 others began`, []edit{
		{"consumer/queue.go", `q.suspects > 0 && held > 0 {`, `false {`, 0},
		{"consumer/queue.go", `if b.suspect && q.suspects == 0 {`, `if b.suspect {`, 0},
		{"consumer/queue.go", `held > 0 && !q.idle() {`, `held > 0 && q.slots.Busy() > q.suspects {`, 0},
	}},
	{"a clean end that forgets the suspicion", "consumer crashes", `suspects that are left`, []edit{
		{"consumer/sql/schema.sql", ` AND r.crashed = b.epoch AND r.attempts = 0`, ` AND r.attempts = 0`, 0},
	}},
	{"deleted rows that are not counted", "consumer deletes", `effects: 1, want 0|blocks its key`, []edit{
		{"consumer/sql/schema.sql", `ELSIF p_removed OPERATOR(pg_catalog.<>) p_expected THEN`, `ELSIF false THEN`, 0},
	}},
	{"a handler that writes to the transaction after its own", "consumer commits",
		`only rows of blocked keys|effects: 100, want 10`, []edit{
			{"internal/handlers/tx.go", `		t.ended.Store(true) // before`, `		// before`, 0},
		}},
	{"a commit that is forgotten because the next read fails", "consumer commits", `counted rows`, []edit{
		{"internal/handlers/tx.go", `	if committed {
		return err, nil`, `	if committed && err == nil {
		return err, nil`, 0},
	}},
	{"a failed attempt of the whole batch", "consumer failures", `failures: `, []edit{
		{"consumer/run.go", `	case o.at == 0 || o.at < 0 && len(o.rows) == 1:
		e.failed(o.rows[0], o.err, false)`, `	case o.at <= 0:
		for _, r := range o.rows {
			e.failed(r, o.err, false)
		}`, 0},
	}},
	{"two batches of a partition side by side", "consumer batches", `two batches|close of closed channel`, []edit{
		{"consumer/queue.go", `!p.busy && p.begun`, `p.begun`, 0},
	}},
	{"batches that are not noted after a crash", "consumer crashes", `noted batches`, []edit{
		{"consumer/sql/note.sql", `(SELECT f.first, f.last, c.watched_to`,
			`(SELECT NULL::bigint, f.last, c.watched_to`, 0},
	}},
	{"blocked rows that were due before their latest attempt", "consumer failures", `further calls`, []edit{
		{"consumer/queue.go", `if p.blockedEnd <= a.ended {`, `if true {`, 0},
	}},
	{"an outage that is not seen", "consumer failures", `keys are blocked|attempts`, []edit{
		{"consumer/outage.go", `return len(o.failed) >= keysOfOutage`, `return false`, 0},
	}},
	{
		"rows deleted in another transaction than their effects'", "consumer failures",
		`error <nil>|error , want|effects that exist twice`, []edit{
			{"consumer/sql/schema.sql", elsewhere, `IF false THEN`, 0},
		},
	},
	{"a stop that goes on with the batch", "consumer batches", `effects|rows left`, []edit{
		{"consumer/call.go", `stops := c.halting(c.parts) || time`, `stops := time`, 0},
	}},
	{"an end that is recorded during the batch", "consumer batches", `the end was recorded`, []edit{
		{"consumer/planner.go", `	<-o.idle
	p.exec.outage.left(owned.Number)
	p.ends.note(o)`, `	p.ends.note(o)`, 0},
	}},
	{
		"a crash that a live process leaves counted", "consumer crashes",
		`only rows of blocked keys|crashes of the suspect`, []edit{
			{"consumer/blocked.go", `if e.job.retry.suspect && !settled {`, `if false && !settled {`, 0},
		},
	},
	{"published rows whose inserts may be lost", "consumer durability", `was published when`, []edit{
		{"consumer/attempt.go", `batch.Queue("SET LOCAL synchronous_commit = on")`, `batch.Queue("SELECT")`, 0},
	}},
	{"orphans of unmoved targets", "histories", `has no owner`, []edit{
		{"replan.go", `!kept && (owner != 0 || target != 0)`, `!kept && read[i].Targets[partition] != target`, 0},
	}},
}...)

// asleep returns the mutants of an engine that does not wake up for one kind of timer.
func asleep() []mutant {
	asleep := func(what, file, old, new string) mutant {
		const finds = `not within|after|as late|joining|set weight|Close`
		return mutant{"asleep: " + what, "wake-ups", finds, []edit{{file, old, new, 0}}}
	}
	const look = `return when.Earlier(e.session.nextBeat, e.expiry.due(stepLook))`
	const due = `		due := when.Later(t.due(e, now), e.progress.rests[t].until)`
	mutants := []mutant{
		asleep("rests", "internal/engine/engine.go", due, due+`
		if e.progress.rests[t].until.After(now) {
			due = when.Never
		}`),
		asleep("checks", "internal/engine/tasks.go", look, `if e.expiry.due(stepLook).After(time.Now()) {
		return e.session.nextBeat
	}
	`+look),
		asleep("the trust deadline", "internal/engine/engine.go", `		e.trust.deadline(),
`, ``),
		asleep("the end of Close", "internal/engine/engine.go", `		e.closing.due(),
		e.unreachableAt(),
`, ``),
		asleep("warnings", "internal/engine/drains.go", `when.Earlier(a.warnAt, a.limitAt)`, `a.limitAt`),
		asleep("drain timeouts", "internal/engine/drains.go", `when.Earlier(a.warnAt, a.limitAt)`, `a.warnAt`),
		asleep("accepting again", "internal/engine/server.go", `	return when.Later(s.acceptAt, watched)`,
			`	if s.acceptAt.After(time.Now()) {
		return when.Never
	}
	return watched`),
	}
	tasks := []string{"connect", "register", "heartbeat", "accept the server", "join", "release", "evict", "plan"}
	for _, task := range tasks {
		mutants = append(mutants, asleep("task "+task, "internal/engine/engine.go", due, due+fmt.Sprintf(`
		if t.name == %q && due.After(now) {
			due = when.Never
		}`, task)))
	}
	return mutants
}

func root(t *testing.T) string {
	t.Helper()
	return testkit.Must(filepath.Abs("../.."))(t)
}

// overlay writes the changed files, and the file that makes the compiler use them.
func (m mutant) overlay(t *testing.T, dir string) string {
	t.Helper()
	sources := make(map[string]string)
	for _, e := range m.edits {
		path := filepath.Join(root(t), e.file)
		text, known := sources[path]
		if !known {
			bytes := testkit.Must(os.ReadFile(path))(t)
			text = string(bytes)
		}
		if n := strings.Count(text, e.old); n != max(1, e.times) {
			t.Fatalf("%s has this text %d times: %s", e.file, n, e.old)
		}
		sources[path] = strings.ReplaceAll(text, e.old, e.new)
	}
	replaced := make(map[string]string)
	for path, text := range sources {
		to := filepath.Join(dir, fmt.Sprint(len(replaced))+filepath.Ext(path))
		testkit.OK(t, os.WriteFile(to, []byte(text), 0o644))
		replaced[path] = to
	}
	bytes := testkit.Must(json.Marshal(map[string]any{"Replace": replaced}))(t)
	file := filepath.Join(dir, "overlay.json")
	testkit.OK(t, os.WriteFile(file, bytes, 0o644))
	return file
}

func TestEveryMutantApplies(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if detectors[m.by].args == nil {
				t.Errorf("no detector %q", m.by)
			}
			m.overlay(t, t.TempDir())
		})
	}
}

// A detector whose pattern matches no test would let every mutant pass.
func TestEveryDetectorNamesTests(t *testing.T) {
	for name, d := range detectors {
		var code []byte
		files, _ := filepath.Glob(filepath.Join(root(t), d.folder, "*_test.go"))
		for _, file := range files {
			text := testkit.Must(os.ReadFile(file))(t)
			code = append(code, text...)
		}
		tests, _, _ := strings.Cut(strings.TrimPrefix(d.args(1)[0], "-test.run="), "/")
		for test := range strings.SplitSeq(tests, "|") {
			declared := "(?m)^func " + strings.TrimPrefix(test, "^")
			if !strings.HasPrefix(test, "^") {
				declared = `(?m)^func \w*` + test
			}
			if !regexp.MustCompile(strings.TrimSuffix(declared, "$")).Match(code) {
				t.Errorf("%s: package %s has no test %q", name, d.folder, test)
			}
		}
	}
}

func TestEveryMutantIsCaught(t *testing.T) {
	if *pattern == "" {
		t.Skip("needs the flag -mutants")
	}
	names := regexp.MustCompile(*pattern)
	for _, m := range mutants {
		if !names.MatchString(m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			binary := filepath.Join(dir, "mutant.test")
			build := exec.Command("go", "test", "-c", "-overlay", m.overlay(t, dir), "-o", binary, ".")
			build.Dir = filepath.Join(root(t), detectors[m.by].folder) // proof is another module
			if text, err := build.CombinedOutput(); err != nil {
				t.Fatalf("it does not compile: %v\n%s", err, text)
			}
			runs := *seeds
			if !detectors[m.by].seeded() {
				runs = 1
			}
			var caught []time.Duration
			for seed := 1; seed <= runs; seed++ {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				run := exec.CommandContext(ctx, binary, detectors[m.by].args(seed)...)
				run.Env = append(os.Environ(), "CI=true") // all rounds
				run.Dir, run.WaitDelay = filepath.Join(root(t), detectors[m.by].folder), time.Second
				began := time.Now()
				text, err := run.CombinedOutput()
				took := time.Since(began)
				late := ctx.Err()
				cancel()
				var exit *exec.ExitError
				switch {
				case err == nil:
					t.Errorf("seed %d: not caught: the test passed", seed)
				case late != nil:
					t.Errorf("seed %d: not caught within %v", seed, patience)
				case !errors.As(err, &exit) || !regexp.MustCompile(m.finds).MatchString(reason(string(text))):
					t.Errorf("seed %d: %v: %s", seed, err, reason(string(text)))
				default:
					caught = append(caught, took.Round(100*time.Millisecond))
					t.Logf("seed %d: after %v: %s", seed, took.Round(100*time.Millisecond), reason(string(text)))
				}
			}
			slices.Sort(caught)
			tally.Checked(t, "runs of mutants", len(caught))
			t.Logf("caught in %d of %d runs, by %s, after %v", len(caught), runs, m.by, caught)
		})
	}
}

// says matches a line of a test's message, or the first violation of the oracle. note matches
// messages that report no failure, such as a seed.
var (
	says = regexp.MustCompile(`_test\.go:\d+: (?:oracle: \d+ violations:\n\s*)?(.*)`)
	note = regexp.MustCompile(`^seed \d+$|^(locks: )?\d+ overlaps,|^the machine was late,|` +
		`^the server does this:|^stopped after `)
)

// reason returns the first failure in the output of a test.
func reason(text string) string {
	for _, match := range says.FindAllStringSubmatch(text, -1) {
		if line := match[1]; !note.MatchString(line) {
			return line[:min(200, len(line))]
		}
	}
	return text[:min(1000, len(text))]
}

// The page about the proof says how many mutants there are, and what catches them.
func TestPageCountsMutants(t *testing.T) {
	counts := make(map[string]int)
	for _, m := range mutants {
		counts[detectors[m.by].folder]++
	}
	var want strings.Builder
	fmt.Fprintf(&want, "| %d mutants are caught by tests in | mutants |\n|---|---|\n", len(mutants))
	for _, folder := range slices.Sorted(maps.Keys(counts)) {
		name := "`" + folder + "`"
		if folder == "." {
			name = "the root"
		}
		fmt.Fprintf(&want, "| %s | %d |\n", name, counts[folder])
	}
	page := string(testkit.Must(os.ReadFile(filepath.Join(root(t), "docs", "proof.md")))(t))
	if !strings.Contains(page, want.String()) {
		t.Errorf("docs/proof.md lacks this table:\n%s", &want)
	}
}

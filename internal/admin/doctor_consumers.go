package admin

import (
	"fmt"

	"github.com/pgleases/pgleases/internal/shell"
)

// kindsOfConsumers are the faults that consumers may have.
var kindsOfConsumers = []kind{
	{"consumers", "gone", LevelWarning, "their queue tables are gone", named, createAgain},
	{"consumers", "lacking", LevelFault, "queue tables lack columns of their consumers, so no row is handled",
		column, giveBack},
	{"consumers", "index", LevelFault, "no valid, complete index on the partition and the ID, " +
		"so that each read takes the whole table", named, asOwner},
	{"consumers", "unhandled", LevelFault, "rows that no process handles, " +
		"because their partition is null or out of range", counted,
		plain("correct the column to partition_for(key, N): TableSQL of package consumer has the statements")},
	{"consumers", "blocked", LevelWarning, "keys blocked for long", blockedKeys, retryBlocked},
	{"consumers", "retried", LevelNote, "blocked keys", blockedKeys, awaitRetries},
	{"consumers", "locked", LevelWarning, "a session locks the queue table, so no row is handled",
		lockedTable, endLocker},
	{"consumers", "unattended", LevelWarning, "no process runs", consumer, startOrDelete},
	{"consumers", "unused", LevelNote, "no process runs", consumer, awaitCron},
	{"consumers", "late", LevelWarning, "rows wait for long", oldest, findWhatIsSlow},
	{"consumers", "unlooked", LevelWarning, "no process can read their queue tables, so no row is handled",
		aged, plain(`the log says why, such as "consumer: poll failed"; see also rights`)},
	{"consumers", "still", LevelWarning, "the oldest row that is not blocked stays the same", oldestRow, findWhatHangs},
	{"consumers", "forgotten", LevelWarning, "paused, so no row is handled", aged, resumeConsumer},
	{"consumers", "paused", LevelNote, "paused, so no row is handled", aged, resumeConsumer},
	{"consumers", "misnamed", LevelWarning, "rows wait for the poll, " +
		"because the trigger of the table announces another consumer", misnamed, asOwner},
	{"consumers", "dead", LevelNote, "rows in the dead letters", counted, returnDead},
	{"consumers", "unread", LevelWarning, unseenRows, named, why},
	{"consumers", "closed", LevelNote, unseenRows, named, ifItShould},
	{"consumers", "untimed", LevelNote, "rows wait, and for how long is not seen", counted, why},
}

// kindsOfQueues are the faults that queue tables may have, besides those of their consumers.
var kindsOfQueues = []kind{
	{"rights", "some", LevelFault, "a role cannot handle rows, it lacks rights on queue tables", named, asOwner},
	{"rights", "live", LevelFault, "clients cannot handle rows, because their role lacks rights on queue tables",
		named, asOwner},
	{"rights", "all", LevelNote, "a role may not handle rows, it lacks rights on queue tables", named, ifItRuns},
	{"autovacuum", "off", LevelWarning, "off for queue tables, whose dead rows are never removed",
		table, plain("ALTER TABLE ... RESET (autovacuum_enabled)")},
	{"autovacuum", "behind", LevelWarning, "behind for queue tables, so that reads slow down",
		deadRows, plain("if snapshots names a session, end it; otherwise VACUUM the table, " +
			"and lower autovacuum_vacuum_threshold or raise autovacuum_vacuum_cost_limit for it")},
}

const unseenRows = "the queue table cannot be read, so rows that wait, or that no process handles, are not seen"

func named(f fault) string { return fmt.Sprintf("%s of %q", f.Name, f.Group) }

func misnamed(f fault) string { return fmt.Sprintf("%q, not %q", f.Name, f.Group) }

func counted(f fault) string { return fmt.Sprintf("%d of %q", f.Count, f.Group) }

func column(f fault) string { return fmt.Sprintf("column %s, consumer %q", f.Name, f.Group) }

func blockedKeys(f fault) string {
	return fmt.Sprintf("%s, such as %q%s", counted(f), f.Name, f.lasts())
}

func lockedTable(f fault) string { return f.Name + f.lasts() }

func consumer(f fault) string { return fmt.Sprintf("consumer %q", f.Group) }

func oldest(f fault) string { return fmt.Sprintf("the oldest of %q%s", f.Group, f.lasts()) }

func oldestRow(f fault) string { return fmt.Sprintf("row %s of %q%s", f.Name, f.Group, f.lasts()) }

func aged(f fault) string { return fmt.Sprintf("%q%s", f.Group, f.lasts()) }

func table(f fault) string { return f.Name }

func deadRows(f fault) string { return fmt.Sprintf("%v dead rows in %s", f.Worst, f.Name) }

// consumerVerb returns a command with a verb on the consumer.
func (f fault) consumerVerb(verb, flags string) string {
	return fmt.Sprintf("pgleases consumers %s %s%s --reason '...'", verb, shell.Word(f.Group), flags)
}

// shows returns the command that shows the consumer.
func (f fault) shows() string { return "pgleases consumers show " + shell.Word(f.Group) }

func (f fault) describes() string { return "pgleases describe " + shell.Word("consumer/"+f.Group) }

func createAgain(f fault) string { return "create it again, or " + f.consumerVerb("delete", "") }

func giveBack(f fault) string {
	return "as the table's owner: rename it back, or give it its type again; " +
		"if New names other columns: end the processes, " + f.consumerVerb("delete", "") + ", and start them"
}

func asOwner(f fault) string { return "as the table's owner: " + f.Why }

func ifItRuns(f fault) string { return "if it runs this consumer, " + asOwner(f) }

func retryBlocked(f fault) string {
	return f.shows() + " shows the rows; when the cause is repaired, " +
		f.consumerVerb("retry", " --all") + "; or skip one"
}

func awaitRetries(f fault) string {
	return f.shows() + " has the errors; repair the cause: its rows are tried again by themselves, " +
		"or if all attempts failed, by " + f.consumerVerb("retry", " --all")
}

// why is the remedy of a fault whose statement says what mends it.
func why(f fault) string { return f.Why }

func ifItShould(f fault) string { return "if it should, " + f.Why }

func endLocker(f fault) string { return "end its transaction, if necessary with " + f.Why }

func startOrDelete(f fault) string {
	return "start one, or repair its cron job; if none will run, " + f.consumerVerb("delete", "")
}

func awaitCron(f fault) string {
	return "if cron starts it, wait; otherwise start one if it should run now; if it is not used any more, " +
		f.consumerVerb("delete", "")
}

func findWhatIsSlow(f fault) string {
	return f.shows() + " has the errors of rows that failed; " + f.describes() + " shows who runs; " +
		`the log says what handlers wait for, such as "consumer: partition paused" in an outage; ` +
		"otherwise start more processes"
}

func findWhatHangs(f fault) string {
	return "find out what its handler waits for: " +
		`if its log says "consumer: partition paused", for something that is away; ` +
		`if it says "handler still running", it hangs; ` + f.describes() + " shows who runs"
}

func resumeConsumer(f fault) string { return "when it may go on: " + f.consumerVerb("resume", "") }

func returnDead(f fault) string {
	return f.shows() + " lists them; when the cause is repaired, " + f.consumerVerb("return", " --all") +
		", or one of them; or delete them from consumer_dead_letters as the tables' owner"
}

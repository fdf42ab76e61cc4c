package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// An outcome is a row of the history for a job.
type outcome struct {
	job, id                     int64
	source, group, name, result string
	at, ended                   time.Time
	epoch                       *int64
	started                     *time.Time
	revision                    *int64 // only of a job that did not succeed
	live                        *int64 // revision of the job, if it has not ended
}

func (o *outcome) String() string {
	text := fmt.Sprintf("history %d: job %d %s, written %s", o.id, o.job, o.result, stamp(o.ended))
	if o.epoch != nil {
		text += fmt.Sprintf(", epoch %d", *o.epoch)
	}
	return text
}

// replaceable reports whether the job may have been replaced during a run, which then has an
// outcome beside that of the new job. Only a job with a unique key can be replaced, and its name is
// the key.
func (o *outcome) replaceable() bool { return o.source == "job" && o.name != "" }

// replay checks one entry. before is the entry of the same job before it, or nil.
func (o *outcome) replay(before *outcome) error {
	subject := fmt.Sprintf("job %d of group %q", o.job, o.group)
	wrong := func(text string, records ...string) error {
		return violated(subject, text, append(records, o.String())...)
	}
	ran := ranOutcome(o.result)
	switch {
	case !ran && o.result != "canceled":
		return wrong("that is no outcome of a job")
	case ran && (o.epoch == nil || o.started == nil):
		return wrong("it ran without an epoch or a begin")
	case ran && o.started.Add(time.Second).Before(o.at):
		return wrong(fmt.Sprintf("it ran at %s, before its time, %s", stamp(*o.started), stamp(o.at)))
	case before != nil && !o.replaceable():
		return wrong("it has two outcomes", before.String())
	case before != nil && o.revision != nil && before.revision != nil && *o.revision == *before.revision:
		return wrong(fmt.Sprintf("its revision %d has two outcomes", *o.revision), before.String())
	case o.live != nil && (!o.replaceable() || *o.live <= 1):
		return wrong("it has an outcome, and is live", fmt.Sprintf("table jobs: revision %d", *o.live))
	}
	return nil
}

func (a *auditor) checkJobs(ctx context.Context, part *Part) error {
	groups, err := a.groups(ctx)
	if err != nil {
		return err
	}
	var before *outcome
	jobs, again := int64(0), int64(0)
	err = a.each(ctx, "jobs", func(rows pgx.Rows) error {
		o := &outcome{}
		err := rows.Scan(&o.job, &o.id, &o.source, &o.group, &o.name, &o.at, &o.result, &o.epoch, &o.started, &o.ended,
			&o.revision, &o.live)
		if err != nil {
			return err
		}
		if before != nil && before.job != o.job {
			before = nil
		}
		if before == nil {
			jobs++
		} else {
			again++
		}
		err = o.replay(before)
		before = o
		return err
	}, a.period.from)
	if err != nil {
		return err
	}
	part.count(jobs, "jobs with one outcome each")
	part.unchecked("whether a job that was enqueued is lost: a job that has not ended leaves no other record")
	if again > 0 {
		part.unchecked("%d more outcomes of jobs that may have been replaced: a second outcome looks the same", again)
	}
	return a.checkOrders(ctx, groups)
}

// checkOrders checks that what retries and operators have ordered is live, or has its outcome.
func (a *auditor) checkOrders(ctx context.Context, groups map[string]group) error {
	return a.each(ctx, "orders", func(rows pgx.Rows) error {
		var name, what string
		var job int64
		var at time.Time
		if err := rows.Scan(&name, &job, &at, &what); err != nil {
			return err
		}
		from := groups[name].from
		if from.IsZero() || at.Before(from) {
			return nil // its outcome may have been deleted
		}
		subject := fmt.Sprintf("job %d of group %q", job, name)
		return violated(subject, "it was ordered, and is neither live nor in the history", stamp(at)+" "+what)
	}, a.period.from)
}

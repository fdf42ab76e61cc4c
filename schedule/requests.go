package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file carries out what operators have asked in SQL, and SQL cannot do, as it knows no rules: see functions.sql.

// requests is the kind of the jobs that have it done.
const requests = "schedule.request"

// A request is the arguments of such a job.
type request struct {
	Request  int64     `json:"request"`
	Verb     string    `json:"verb"`
	Schedule int64     `json:"schedule"`
	Name     string    `json:"name"`
	Rule     string    `json:"rule"`
	After    time.Time `json:"after"`
	Until    time.Time `json:"until"`
}

// requestKind is a kind like any other: so a request is carried out in one transaction with its answer and the end of its job, once.
func (s *Scheduler) requestKind() *kind {
	k := &kind{name: requests}
	k.limits, _ = newLimits([]KindOption{Retry(1000, Backoff(time.Second, time.Minute))})
	k.parse = func(args json.RawMessage) error {
		var q request
		if err := json.Unmarshal(args, &q); err != nil {
			return err
		}
		_, err := Parse(q.Rule) // whose zone another process may know
		return err
	}
	k.run = func(ctx context.Context, tx pgx.Tx, r Run[json.RawMessage]) error {
		var q request
		if err := json.Unmarshal(r.Args, &q); err != nil {
			return err
		}
		answer, err := s.answer(ctx, tx, q)
		switch {
		case errors.Is(err, errUntold): // the rule is another by now
			return Snooze(unknown)
		case errors.As(err, new(refusal)):
			answer = "refused: " + err.Error()
		case err != nil:
			return err
		}
		return s.sendAnswer(ctx, tx, q.Request, answer)
	}
	return k
}

// answer carries a request out, and tells what came of it.
func (s *Scheduler) answer(ctx context.Context, tx pgx.Tx, q request) (string, error) {
	_, r, err := s.sendGet(ctx, tx, q.Name, true) // locked: it is the same for what follows, which knows its name alone
	switch {
	case err != nil:
		return "", err
	case r == nil || r.ID != q.Schedule:
		return "", refusal{errors.New("the schedule was deleted")}
	}
	if _, err := Parse(r.Rule); err != nil {
		return "", fmt.Errorf("%w: %w", errUntold, err)
	}
	switch q.Verb {
	case "resume":
		return "done", s.resume(ctx, callersTx(tx), q.Name, FromNow)
	case "delete":
		return "done", s.delete(ctx, callersTx(tx), q.Name)
	case "backfill":
		ids, err := s.backfill(ctx, callersTx(tx), q.Name, q.After, q.Until)
		return fmt.Sprintf("done: put %d jobs", len(ids)), err
	}
	return "", refusal{fmt.Errorf("this version knows no verb %q", q.Verb)}
}

// A refusal is an error that is not the database's: it would be the same the next time.
type refusal struct{ error }

func (e refusal) Unwrap() error { return e.error }

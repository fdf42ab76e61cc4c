package admin

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// samplesMost is the maximum number of samples of one kind that a question reads: those of a week.
const samplesMost = 7 * 24 * 60

// Curves are samples of a period, which clients write once a minute. See sql/schema/samples.sql.
type Curves struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Step   int       `json:"step"` // seconds
	Curves []Curve   `json:"curves"`
	// Last is the time of the latest sample of these before the end; nil: there is no such sample.
	Last *time.Time `json:"last"`
}

// A Curve has the samples of one kind.
type Curve struct {
	Kind   string  `json:"kind"`
	Points []Point `json:"points"` // by time; a step without a sample is left out
}

// A Point is the highest of the samples of one step.
type Point struct {
	At    int64   `json:"at"` // the start of the step, in seconds since 1970
	Value float64 `json:"value"`
}

// Curves returns samples of a lease, a consumer or a group of schedules; with an empty name, those
// of all together.
func (a *Admin) Curves(ctx context.Context, p Period, name string, kinds ...string) (*Curves, error) {
	c := new(Curves)
	err := a.past(ctx, p, "read the samples", func(tx pgx.Tx, since, until time.Time) error {
		c.Since, c.Until = since, until
		c.Step = stepOf(until.Sub(since))
		row := tx.QueryRow(ctx, a.statement("curves"), since, until, c.Step, kinds, name, samplesMost)
		return row.Scan(&c.Curves, &c.Last)
	})
	return c, err
}

package suites

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A site is a database on which the instances of a test meet.
type site struct {
	t    *testing.T
	pool *pgxpool.Pool
	n    int // how many clients it has opened
}

func newSite(t *testing.T) *site {
	return &site{t: t, pool: testkit.Pool(t, pgtest.MigratedDatabase(t))}
}

// client opens a client, as a process of its own would. The test closes it.
func (s *site) client() *pgleases.Client {
	s.n++
	return clients.New(s.t, s.pool, pgleases.WithClientID(fmt.Sprintf("instance-%d", s.n)))
}

// notesTable is the table of a backend that stores values under a lock's token.
const notesTable = "CREATE TABLE notes (name text PRIMARY KEY, value text NOT NULL, token bigint NOT NULL)"

// closeWithin bounds what a suite does without a context of its own.
const closeWithin = 10 * time.Second

package dashboard

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/testkit"
)

func init() {
	// The loops of a handler outlive its viewers by some reads. With pauses of a second, the tests
	// would wait for the last loops when all else is done.
	defaultTimes.look = 200 * time.Millisecond
	// A busy machine takes longer than 200 ms.
	defaultTimes.past = testkit.Patience
}

// HandlerWith is like Handler, with other times.
func HandlerWith(pool *pgxpool.Pool, o Options, look, answers, write time.Duration) http.Handler {
	a, err := admin.New(pool, admin.WithPastLimit(defaultTimes.past))
	if err != nil {
		panic(err)
	}
	return newHandler(a, o, times{look, answers, write, defaultTimes.past}).guarded()
}

// Questions returns the addresses below data of all questions: those by GET, and those by POST.
func Questions() (byGet, byPost []string) {
	return append(slices.Sorted(maps.Keys(looks)), "poll"), slices.Sorted(maps.Keys(changes))
}

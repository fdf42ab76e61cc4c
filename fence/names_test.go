package fence_test

import (
	"testing"

	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestFenceRunsNoPartOfAName(t *testing.T) {
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	pool := testkit.Pool(t, url)
	for _, name := range testkit.HostileNames {
		testkit.RunPrinted(t, pool, fence.Schema(name).SQL())
	}
}

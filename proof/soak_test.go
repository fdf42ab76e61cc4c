//go:build unix

package proof_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
)

var (
	soakFor     = flag.Duration("soak", 0, "how long to attack fleets of workers, in episodes")
	soakEpisode = flag.Duration("soak-episode", time.Minute, "length of an episode")
	soakSeed    = flag.Uint64("soak-seed", 1, "seed of the first episode; each next episode adds 1")
	soakLog     = flag.String("soak-log", "soak.jsonl", "file that gets the result of each episode as a line of JSON")
)

// TestSoak runs only with a flag: go test -run TestSoak -timeout 2h -soak 1h . To continue an
// earlier soak, pass the seed after its last one.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("needs the flag -soak")
	}
	for began, seed := time.Now(), *soakSeed; time.Since(began) < *soakFor; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			timeguard.Run(t, func(t *timeguard.Try) {
				disk, options := smallDisk(t)
				server := pgserver.Private(t, options...)
				database := &faults.Database{Server: server, URL: server.URL(), Disk: disk}
				url := server.URL()
				if seed%2 == 0 {
					url = behindPooler(t, database)
				}
				alone := seed%3 == 0
				e := attack(t, seed, *soakEpisode, url, database, func(f *faults.Fleet) {
					f.Alone = alone
					if seed%4 >= 2 { // partitions wait before they move, within the bounds for gaps
						f.Config.Delay, f.Config.Grace = 2*time.Second, 500*time.Millisecond
					}
				})
				least := int(soakEpisode.Seconds())
				if alone {
					least /= 20
				}
				check(t, e, least, 0)
				line := testkit.Must(json.Marshal(e))(t)
				f := testkit.Must(os.OpenFile(*soakLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))(t)
				defer f.Close()
				testkit.Must(fmt.Fprintf(f, "%s\n", line))(t)
			})
		})
	}
}

package metrics

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// Each number of Stats is a metric.
func TestMetricsReadEachStat(t *testing.T) {
	var source string
	for _, file := range []string{"client.go", "schedule.go", "consumer.go"} {
		source += string(testkit.Must(os.ReadFile(file))(t))
	}
	for _, of := range []reflect.Type{
		reflect.TypeFor[pgleases.Stats](),
		reflect.TypeFor[pgleases.Losses](),
		reflect.TypeFor[pgleases.LockStats](),
		reflect.TypeFor[pgleases.HeartbeatMargin](),
		reflect.TypeFor[schedule.Stats](),
		reflect.TypeFor[schedule.KindStats](),
		reflect.TypeFor[consumer.Stats](),
	} {
		for _, f := range reflect.VisibleFields(of) {
			read := regexp.MustCompile(`\b[csklo]\.(Losses\.|Locks\.|HeartbeatMargin\.)?` + f.Name + `\b`)
			if !f.Anonymous && !read.MatchString(source) {
				t.Errorf("no metric reads %v.%s", of, f.Name)
			}
		}
	}
}

func TestMetricsHaveSamplesOfTheirLabels(t *testing.T) {
	one := map[string]schedule.KindStats{"k": {}}
	inDatabase := &database{
		&admin.Snapshot{Leases: []admin.Lease{{Name: "l", Members: []admin.Member{{Client: "c"}}}}},
		[]admin.ScheduleGroup{{Name: "g"}},
		[]admin.Consumer{{Name: "c", Timed: true, Waiting: new(int), Unhandled: new(int)}},
	}
	sources := []Source{
		newSource(ofClient, nil, func() *client { return &client{leases: map[string]pgleases.LeaseStats{"l": {}}} }),
		newSource(ofConsumer, nil, func() *consumer.Stats { return new(consumer.Stats) }),
		newSource(ofScheduler, nil, func() *scheduler { return &scheduler{schedule.Stats{Kinds: one}, nil} }),
		newSource(ofDatabase, nil, func() *database { return inDatabase }),
	}
	wellNamed := regexp.MustCompile(`^pgleases(\.[a-z][a-z_]*)+$`)
	names := make(map[string]bool)
	for _, s := range sources {
		sampled := make(map[*Metric]bool)
		for _, sample := range s.Read() {
			sampled[sample.Metric] = true
			if got, want := sample.Labels, sample.Metric.Labels; len(got) != len(want) {
				t.Errorf("%s: a sample with labels %q, not %q", sample.Name, got, want)
			}
			if isDistribution := sample.Distribution != nil; isDistribution != (sample.Kind == Histogram) {
				t.Errorf("%s: a sample of another kind", sample.Name)
			}
		}
		for _, m := range s.Metrics {
			if !sampled[m] || names[m.Name] {
				t.Errorf("%s: without a sample, or named twice", m.Name)
			}
			if !wellNamed.MatchString(m.Name) || !strings.HasSuffix(m.Help, ".") {
				t.Errorf("%s: misnamed, or without a sentence of help", m.Name)
			}
			names[m.Name] = true
		}
	}
}

// A pause of a lease is no lack of owners. What is not known has no sample.
func TestMetricsOfPausesAndUnknownAges(t *testing.T) {
	at, hour, two := time.Now(), time.Hour, 2
	pause := func(lease string, until time.Time) admin.Override {
		return admin.Override{Verb: admin.VerbPause, Lease: lease, Since: at.Add(-time.Minute), Until: until}
	}
	vacant := []admin.Holding{{Partitions: admin.Ranges{{0, 1}}}}
	d := &database{
		Snapshot: &admin.Snapshot{
			At:        at,
			Overrides: []admin.Override{pause("paused", time.Time{}), pause("ends", at.Add(hour))},
			Leases: []admin.Lease{
				{Name: "paused", Holdings: vacant},
				{Name: "ends", Holdings: vacant},
				{Name: "open", Holdings: vacant, Settles: at.Add(time.Minute)},
			},
		},
		consumers: []admin.Consumer{
			{Name: "late", Timed: true, Waiting: &two, Oldest: &hour},
			{Name: "empty", Timed: true, Waiting: new(int)},
			{Name: "unread", Timed: true},
			{Name: "untimed", Waiting: &two},
			{Name: "paused", PausedAt: at.Add(-time.Minute)},
			{Name: "lease", LeasePaused: true},
		},
	}
	got := string(Text(newSource(ofDatabase, nil, func() *database { return d }).Read()))
	for name, want := range map[string]map[string]string{
		"partitions_unowned":          {"lease=paused": "0", "lease=ends": "0", "lease=open": "2"},
		"pause_age_seconds":           {"lease=paused": "60", "lease=ends": "0", "lease=open": "0"},
		"rebalance_delay_seconds":     {"lease=paused": "0", "lease=ends": "0", "lease=open": "60"},
		"consumer_oldest_age_seconds": {"consumer=late": "3600", "consumer=empty": "0"},
		"consumer_paused": {
			"consumer=late": "0", "consumer=empty": "0", "consumer=unread": "0", "consumer=untimed": "0",
			"consumer=paused": "1", "consumer=lease": "1",
		},
		"consumer_pause_age_seconds": {
			"consumer=late": "0", "consumer=empty": "0", "consumer=unread": "0", "consumer=untimed": "0",
			"consumer=paused": "60", "consumer=lease": "0",
		},
	} {
		found := make(map[string]string)
		sample := regexp.MustCompile(`(?m)^pgleases_database_` + name + `{(\w+)="(\w+)"} (.*)$`)
		for _, m := range sample.FindAllStringSubmatch(got, -1) {
			found[m[1]+"="+m[2]] = m[3]
		}
		if !maps.Equal(found, want) {
			t.Errorf("%s: %v, want %v", name, found, want)
		}
	}
}

// A lease may have any name.
func TestTextEscapesLabels(t *testing.T) {
	m := &Metric{"pgleases.lease.joined", "s", Counter, []string{"lease", "client"}, "Help."}
	got := string(Text([]Sample{
		{m, 1.5, nil, []string{`a"b\c`, "d\ne\t{,}=\u2028ä"}},
		{m, 1e21, nil, []string{"\xff", ""}},
	}))
	want := `# HELP pgleases_lease_joined_seconds_total Help.
# TYPE pgleases_lease_joined_seconds_total counter
pgleases_lease_joined_seconds_total{lease="a\"b\\c",client="d\ne` + "\t{,}=\u2028ä" + `"} 1.5
pgleases_lease_joined_seconds_total{lease="` + "\ufffd" + `",client=""} 1e+21
`
	if got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
}

package admin

import (
	"testing"

	"github.com/pgleases/pgleases/internal/store"
)

// wide returns the inputs of a plan of leases whose neighboring partitions have different owners.
func wide(leases, partitions int) []store.LeaseSnapshot {
	read := make([]store.LeaseSnapshot, leases)
	for i := range read {
		l := store.LeaseSnapshot{Name: string(rune('a' + i)), Generation: 7, Members: []store.Member{{Session: 1, ID: "one"}, {Session: 2, ID: "two"}}, Pins: map[int]string{1: "one"}}
		for p := range partitions {
			l.Owners, l.Targets = append(l.Owners, int64(1+p%2)), append(l.Targets, int64(1+p%2))
			l.OwnerIDs, l.PreferredIDs = append(l.OwnerIDs, ""), append(l.PreferredIDs, "one")
		}
		read[i] = l
	}
	return read
}

// The fingerprint changes with each input of a plan, but not with the generation.
func TestAFingerprintIsOfAllThatAPlanReads(t *testing.T) {
	t.Parallel()
	drain, seen := Change{Verb: Drain, Subject: "one"}, make(map[string]string)
	of := func(what string, c Change, change func(l *store.LeaseSnapshot)) string {
		t.Helper()
		read := wide(2, 6)
		change(&read[1])
		fingerprint := fingerprint(c, read)
		if before, is := seen[fingerprint]; is {
			t.Errorf("%s: as %s", what, before)
		}
		seen[fingerprint] = what
		return fingerprint
	}
	plain := of("as it is", drain, func(*store.LeaseSnapshot) {})
	read := wide(2, 6)
	read[0].Generation++
	if later := fingerprint(drain, read); later != plain {
		t.Error("another generation is another fingerprint")
	}
	for what, change := range map[string]func(l *store.LeaseSnapshot){
		"another owner":                     func(l *store.LeaseSnapshot) { l.Owners[2] = 2 },
		"an owner of the first":             func(l *store.LeaseSnapshot) { l.Owners[0] = 2 },
		"another target":                    func(l *store.LeaseSnapshot) { l.Targets[2] = 2 },
		"another target of another":         func(l *store.LeaseSnapshot) { l.Targets[4] = 2 },
		"another last owner":                func(l *store.LeaseSnapshot) { l.OwnerIDs[5] = "two" },
		"another preferred owner":           func(l *store.LeaseSnapshot) { l.PreferredIDs[5] = "two" },
		"one preferred owner for the other": func(l *store.LeaseSnapshot) { l.OwnerIDs[5], l.PreferredIDs[5] = "one", "" },
		"another member":                    func(l *store.LeaseSnapshot) { l.Members[1].ID = "three" },
		"another weight":                    func(l *store.LeaseSnapshot) { l.Members[1].Weight = 3 },
		"another pin":                       func(l *store.LeaseSnapshot) { l.Pins[2] = "one" },
		"a pause":                           func(l *store.LeaseSnapshot) { l.Paused = true },
		"another name":                      func(l *store.LeaseSnapshot) { l.Name = "z" },
		"one partition less": func(l *store.LeaseSnapshot) {
			l.Owners, l.Targets, l.OwnerIDs, l.PreferredIDs = l.Owners[:5], l.Targets[:5], l.OwnerIDs[:5], l.PreferredIDs[:5]
		},
	} {
		of(what, drain, change)
	}
	of("another verb", Change{Verb: Cordon, Subject: "one"}, func(*store.LeaseSnapshot) {})
	of("another client", Change{Verb: Drain, Subject: "two"}, func(*store.LeaseSnapshot) {})
}

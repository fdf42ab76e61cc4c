package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// The hub's loops read what all viewers see, while somebody asks. The hub keeps it as parts: JSON
// texts, each with a version, which is a hash of its content, so that a version also holds after a
// restart, and from another process. A page polls each second with the versions that it shows, and
// the answer has the parts with another version. All viewers are sent the same bytes: one that does
// not read costs no more than its connection. Of the leases, only those that changed are sent. What
// changes with each look, the ages of heartbeats, is a part of its own.

// A part is named as its parameter in a poll, and as its field in the answer.
type part int

// In the order in which they are sent: leases name clients, and ages are those of clients, one for
// one.
const (
	clients part = iota
	leases
	ages
	locks
	events
	overrides
	schedules
	health
	parts
)

var partNames = [parts]string{"clients", "leases", "ages", "locks", "events", "overrides", "schedules", "health"}

const (
	maxLocks  = 200 // that are shown
	maxEvents = 200 // the latest, that all are sent

	mostEvents = 1000 // the latest, that who looks for some is sent
)

// times are how long things take.
type times struct {
	look    time.Duration // between the starts of two looks
	answers time.Duration // limit of a look, and of an examination: a connection that hangs must not end the looks
	write   time.Duration // for a viewer to take an answer, before it is given up
}

var defaultTimes = times{look: time.Second, answers: 15 * time.Second, write: 10 * time.Second}

const (
	linger   = 5                // looks after the last poll
	old      = 4 * time.Second  // age from which a look is stale; a look that fails makes the one before stale at once
	examined = 30 * time.Second // between two examinations of the health

	maxBefore = 60 // looks whose version of the leases is known
)

type hub struct {
	admin *admin.Admin
	times times

	mu    sync.Mutex  // guards what follows
	idle  *time.Timer // ends the loops; nil: there were none
	texts [parts]text

	looks    int      // that found leases
	names    []string // of the leases
	known    map[string]seenLease
	versions map[string]int // of all leases, and the last of the latest looks that found them so

	last    *admin.Snapshot // nil: there was no look yet; kept while nobody looks, for who comes while the database is away
	seen    time.Time       // when last was
	failure string          // of the look after it; empty: none
	slots   map[string]int  // by ID: see assignSlots
}

// A text is a part as it is sent.
type text struct {
	version string // empty: there is none
	sent    []byte // of leases nil: see leasesSince
}

// A seenLease is a lease as JSON, with the number of the first look that found it so.
type seenLease struct {
	encoded []byte
	since   int
}

func newHub(a *admin.Admin, t times) *hub {
	return &hub{admin: a, times: t, versions: make(map[string]int), slots: make(map[string]int)}
}

// asked keeps the loops running for a while, and starts them if they have ended.
func (h *hub) asked() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idle != nil && h.idle.Reset(linger*h.times.look) {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.idle = time.AfterFunc(linger*h.times.look, cancel)
	go h.again(ctx, func(took time.Duration) time.Duration { return h.times.look - took }, h.look)
	go h.again(ctx, func(time.Duration) time.Duration { return examined }, h.examine)
	go h.again(ctx, rest, h.count)
}

func encode(content any) []byte {
	encoded, err := json.Marshal(content)
	if err != nil {
		panic(err) // a type that cannot be
	}
	return encoded
}

func versionOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// publish has mu. After the end of ctx it does nothing, because other loops may run.
func (h *hub) publish(ctx context.Context, of part, content any) {
	if ctx.Err() != nil {
		return
	}
	encoded := encode(content)
	version := versionOf(encoded)
	h.texts[of] = text{version, fmt.Appendf(nil, `{"version":%q,"content":%s}`, version, encoded)}
}

// publishLeases does the same for the leases, which keep the number of the look that found them
// first as they are.
func (h *hub) publishLeases(ctx context.Context, all []admin.Lease) {
	if ctx.Err() != nil {
		return
	}
	h.looks++
	names, known, hash := []string{}, make(map[string]seenLease), sha256.New()
	for _, l := range all {
		one := seenLease{encode(l), h.looks}
		if before := h.known[l.Name]; bytes.Equal(before.encoded, one.encoded) {
			one = before
		}
		names, known[l.Name] = append(names, l.Name), one
		_, _ = hash.Write(one.encoded) // a hash takes all
	}
	version := hex.EncodeToString(hash.Sum(nil)[:8])
	h.names, h.known, h.texts[leases], h.versions[version] = names, known, text{version: version}, h.looks
	maps.DeleteFunc(h.versions, func(_ string, look int) bool { return look < h.looks-maxBefore })
}

// leasesSince has mu. It returns the leases as they are sent to a page that shows a version: the
// names of all, and those leases that are not in that version.
func (h *hub) leasesSince(version string) (pieces [][]byte) {
	shown := h.versions[version] // 0: it is not known, so all are sent
	pieces = append(pieces, fmt.Appendf(nil, `{"version":%q,"content":{"names":%s,"changed":[`, h.texts[leases].version, encode(h.names)))
	comma := ""
	for _, name := range h.names {
		if l := h.known[name]; l.since > shown {
			pieces = append(pieces, []byte(comma), l.encoded)
			comma = ","
		}
	}
	return append(pieces, []byte("]}}"))
}

// again does something again and again until ctx ends, each time with the limit of a look. The
// pause after it is what rest returns for how long it took.
func (h *hub) again(ctx context.Context, rest func(took time.Duration) time.Duration, do func(ctx, limited context.Context)) {
	for {
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, h.times.answers)
		do(ctx, limited)
		cancel()
		select {
		case <-time.After(rest(time.Since(began))):
		case <-ctx.Done():
			return
		}
	}
}

// look sees to what is in the tables.
func (h *hub) look(ctx, limited context.Context) {
	s, err := h.admin.Snapshot(limited)
	if err != nil {
		h.failed(ctx, err)
		return
	}
	h.saw(ctx, s, time.Now())
	held, happened := h.readLocks(limited), h.readEvents(limited, "", maxEvents)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(ctx, locks, held)
	h.publish(ctx, events, happened)
}

func (h *hub) failed(ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() == nil {
		h.failure = err.Error()
	}
}

// A shownClient is a client without what changes with each look, and with the number of its color,
// which it keeps while it lives, and for all viewers.
type shownClient struct {
	admin.Client
	Slot int `json:"slot"`
}

func (h *hub) saw(ctx context.Context, s *admin.Snapshot, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	h.last, h.seen, h.failure = s, at, ""
	assignSlots(h.slots, s.Clients)
	shown, silent := make([]shownClient, len(s.Clients)), make([]int64, len(s.Clients))
	for i, c := range s.Clients {
		silent[i] = c.HeartbeatAge.Milliseconds()
		c.HeartbeatAge = 0
		shown[i] = shownClient{c, h.slots[c.ID]}
	}
	h.publish(ctx, clients, shown)
	h.publishLeases(ctx, s.Leases)
	h.publish(ctx, ages, silent)
	h.publish(ctx, overrides, s.Overrides)
}

// assignSlots gives each ID among clients a number that no other of them has, the lowest that is
// free. An ID that comes back has its own again, if nobody took it.
func assignSlots(slots map[string]int, clients []admin.Client) {
	taken := make(map[int]string) // by number: the live client that has it
	for _, c := range clients {
		if slot, has := slots[c.ID]; has {
			taken[slot] = c.ID
		}
	}
	next := 0
	for _, c := range clients {
		if _, has := slots[c.ID]; !has {
			for taken[next] != "" {
				next++
			}
			slots[c.ID], taken[next] = next, c.ID
		}
	}
	maps.DeleteFunc(slots, func(id string, slot int) bool { return taken[slot] != "" && taken[slot] != id })
}

// shownLocks are the first locks by name.
type shownLocks struct {
	Locks   []admin.Lock `json:"locks"`
	More    bool         `json:"more"`
	Failure string       `json:"failure"` // empty: none. Locks are empty then
}

func (h *hub) readLocks(ctx context.Context) shownLocks {
	shown := shownLocks{Locks: []admin.Lock{}}
	for l, err := range h.admin.Locks(ctx, "") {
		if err != nil {
			return shownLocks{Locks: []admin.Lock{}, Failure: err.Error()}
		}
		if len(shown.Locks) == maxLocks {
			shown.More = true
			break
		}
		for i := range l.Holders { // what changes with each look
			l.Holders[i].HeartbeatAge, l.Holders[i].TimeLeft = 0, 0
		}
		shown.Locks = append(shown.Locks, l)
	}
	return shown
}

// shownEvents are the latest events, the latest first.
type shownEvents struct {
	Events  []admin.Event `json:"events"`
	Failure string        `json:"failure"` // empty: none. Events are empty then
}

func (h *hub) readEvents(ctx context.Context, lease string, most int) shownEvents {
	all, err := h.admin.Events(ctx, lease, most)
	if err != nil {
		return shownEvents{Events: []admin.Event{}, Failure: err.Error()}
	}
	slices.Reverse(all)
	return shownEvents{Events: append([]admin.Event{}, all...)}
}

// A shownHealth is what Doctor found.
type shownHealth struct {
	Findings []admin.Finding `json:"findings"`
	At       time.Time       `json:"at"` // by this process's clock
}

// examine sees to the health.
func (h *hub) examine(ctx, limited context.Context) {
	findings := h.admin.Doctor(limited, admin.DoctorOptions{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(ctx, health, shownHealth{findings, time.Now()})
}

// shownStatus says how fresh what is shown is. Ages, not times: the browser's clock may be another.
type shownStatus struct {
	Seen    bool          `json:"seen"`    // there was a look
	Age     int64         `json:"age_ms"`  // of the last one
	Stale   bool          `json:"stale"`   // what is shown may not be so any more
	Failure string        `json:"failure"` // why; empty: no look has failed since
	At      time.Time     `json:"at,omitzero"`
	Version int           `json:"schema_version"`
	Server  *admin.Server `json:"server"`
}

// status has mu.
func (h *hub) status() shownStatus {
	s := shownStatus{Failure: h.failure, Stale: h.failure != ""}
	if h.last != nil {
		age := time.Since(h.seen)
		s.Seen, s.Age, s.Stale = true, age.Milliseconds(), s.Stale || age > old
		s.At, s.Version, s.Server = h.last.At, h.last.Version, &h.last.Server
	}
	return s
}

// poll answers with the parts that differ from those that a page shows.
func (h *handler) poll(w http.ResponseWriter, r *http.Request) {
	h.hub.asked()
	answer := h.hub.answer(r.URL.Query())
	length := 0
	for _, piece := range answer {
		length += len(piece)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.times.write)) // if it has none, the server's own holds
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(length))
	for _, piece := range answer { // not joined: the large ones belong to all viewers
		if _, err := w.Write(piece); err != nil {
			return // the browser has gone
		}
	}
}

// answer returns the pieces of an answer to a page that shows these versions.
func (h *hub) answer(shown url.Values) (pieces [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	pieces = append(pieces, fmt.Appendf(nil, `{"status":%s,"parts":{`, encode(h.status())))
	comma := ""
	for i, t := range h.texts {
		if t.version == "" || t.version == shown.Get(partNames[i]) {
			continue
		}
		pieces = append(pieces, fmt.Appendf(nil, "%s%q:", comma, partNames[i]), t.sent)
		if part(i) == leases {
			pieces = append(pieces, h.leasesSince(shown.Get(partNames[i]))...)
		}
		comma = ","
	}
	return append(pieces, []byte("}}"))
}

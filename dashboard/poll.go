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

	"github.com/pgleases/pgleases/internal/admin"
)

// The loops of the hub read what all viewers see, while pages poll. The hub keeps parts: JSON
// texts, each with a version, which is a hash of its content. So a version also holds after a
// restart, and for another process. A page polls each second with the versions that it shows, and
// the answer contains the parts with another version. All viewers receive the same bytes, so a
// viewer that does not read costs only its connection. Of the leases, only changed ones are sent.
// The ages of heartbeats change with each read, so they are a separate part.

// A part has a name, which is its parameter in a poll and its field in the answer.
type part int

// The order of the answer: leases refer to clients, and ages are in the order of clients.
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
	maxLocks  = 200 // shown locks
	maxEvents = 200 // latest events in polls
)

// times are intervals and limits.
type times struct {
	look    time.Duration // between the starts of two reads
	answers time.Duration // limit of a read or a check, for example if a connection hangs
	write   time.Duration // limit for a viewer to read an answer
	past    time.Duration // limit of the server, which has many viewers, for a question of the past
}

var defaultTimes = times{
	look: time.Second, answers: 15 * time.Second, write: 10 * time.Second, past: 200 * time.Millisecond,
}

const (
	linger   = 5                // reads after the last poll
	old      = 4 * time.Second  // age from which a read is stale; it is stale at once if the next read fails
	examined = 30 * time.Second // between two checks of the health

	maxBefore = 60 // reads whose version of the leases is known
)

type hub struct {
	admin *admin.Admin
	times times

	mu    sync.Mutex  // guards what follows
	idle  *time.Timer // ends the loops; nil: they never ran
	texts [parts]text

	checked time.Time // of the shown health; zero: it was not checked yet

	looks    int      // number of reads of the leases
	names    []string // of the leases
	known    map[string]seenLease
	versions map[string]int // version of all leases, and the latest read with it

	uncounted bool // the last read of the groups failed

	// The last read; nil: there was no read yet. It is kept while no page polls, for a page that opens
	// during an outage.
	last    *admin.Snapshot
	seen    time.Time      // time of last
	failure string         // of a later read; empty: no failure
	slots   map[string]int // by ID: see assignSlots
}

// A text is a part as it is sent.
type text struct {
	version string // empty: there is no text yet
	sent    []byte // nil for leases: see leasesSince
}

// A seenLease is a lease as JSON, with the number of the first read that returned it.
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
	go h.again(ctx, h.restOfCount, h.count)
}

func encode(content any) []byte {
	encoded, err := json.Marshal(content)
	if err != nil {
		panic(err) // a type that cannot be
	}
	return encoded
}

// publish sets a part. The caller holds mu. After the end of ctx, other loops may run, so publish
// returns at once.
func (h *hub) publish(ctx context.Context, of part, content any) {
	if ctx.Err() != nil {
		return
	}
	encoded := encode(content)
	sum := sha256.Sum256(encoded)
	version := hex.EncodeToString(sum[:8])
	h.texts[of] = text{version, fmt.Appendf(nil, `{"version":%q,"content":%s}`, version, encoded)}
}

// publishLeases sets the leases. An unchanged lease keeps the number of its first read. The caller
// holds mu, and has checked that the loops have not ended.
func (h *hub) publishLeases(all []admin.Lease) {
	h.looks++
	names, known := []string{}, make(map[string]seenLease)
	hash := sha256.New()
	for _, l := range all {
		one, before := seenLease{encode(l), h.looks}, h.known[l.Name]
		if bytes.Equal(before.encoded, one.encoded) {
			one = before
		}
		names, known[l.Name] = append(names, l.Name), one
		_, _ = hash.Write(one.encoded) // a hash takes all
	}
	version := hex.EncodeToString(hash.Sum(nil)[:8])
	h.names, h.known = names, known
	h.texts[leases] = text{version: version}
	h.versions[version] = h.looks
	maps.DeleteFunc(h.versions, func(_ string, look int) bool { return look < h.looks-maxBefore })
}

// leasesSince returns the leases for a page that shows a version: the names of all leases, and
// those that differ from the version. The caller holds mu.
func (h *hub) leasesSince(version string) (pieces [][]byte) {
	shown := h.versions[version] // 0: unknown, so all leases are sent
	const head = `{"version":%q,"content":{"names":%s,"changed":[`
	pieces = append(pieces, fmt.Appendf(nil, head, h.texts[leases].version, encode(h.names)))
	comma := ""
	for _, name := range h.names {
		l := h.known[name]
		if l.since > shown {
			pieces = append(pieces, []byte(comma), l.encoded)
			comma = ","
		}
	}
	return append(pieces, []byte("]}}"))
}

// again calls do until ctx ends, each time with the limit of a read. rest returns the pause after a
// call that took a time.
func (h *hub) again(
	ctx context.Context, rest func(took time.Duration) time.Duration, do func(ctx, limited context.Context),
) {
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

// look reads the tables.
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

// A shownClient is a client without its heartbeat age, and with the number of its color, which is
// the same for all viewers while the client is live.
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
	h.last, h.seen = s, at
	h.failure = ""
	assignSlots(h.slots, s.Clients)
	shown, silent := make([]shownClient, len(s.Clients)), make([]int64, len(s.Clients))
	for i, c := range s.Clients {
		silent[i] = c.HeartbeatAge.Milliseconds()
		c.HeartbeatAge = 0
		shown[i] = shownClient{c, h.slots[c.ID]}
	}
	h.publish(ctx, clients, shown)
	h.publishLeases(s.Leases)
	h.publish(ctx, ages, silent)
	h.publish(ctx, overrides, s.Overrides)
}

// assignSlots gives each client ID the lowest number that no other client has. An ID that comes
// back gets its number again if it is free.
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
	Failure string       `json:"failure"` // if not empty, Locks is empty
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
		for i := range l.Holders { // these change with each read
			l.Holders[i].HeartbeatAge, l.Holders[i].TimeLeft = 0, 0
		}
		shown.Locks = append(shown.Locks, l)
	}
	return shown
}

// shownEvents are the latest events, the latest first.
type shownEvents struct {
	Events  []admin.Event `json:"events"`
	Failure string        `json:"failure"` // if not empty, Events is empty
}

func (h *hub) readEvents(ctx context.Context, lease string, most int) shownEvents {
	all, err := h.admin.Events(ctx, lease, most)
	if err != nil {
		return shownEvents{Events: []admin.Event{}, Failure: err.Error()}
	}
	slices.Reverse(all)
	return shownEvents{Events: append([]admin.Event{}, all...)}
}

// A shownHealth is the result of Doctor.
type shownHealth struct {
	Findings []admin.Finding `json:"findings"`
	At       time.Time       `json:"at"` // by this process's clock, so that each check is another content
}

// examine runs Doctor.
func (h *hub) examine(ctx, limited context.Context) {
	findings := h.admin.Doctor(limited, admin.DoctorOptions{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checked = time.Now()
	h.publish(ctx, health, shownHealth{findings, h.checked})
}

// shownStatus has the age of the shown data. It is not a time, because the browser's clock may
// differ.
type shownStatus struct {
	Seen    bool          `json:"seen"`       // there was a read
	Age     int64         `json:"age_ms"`     // of the last read
	Checked int64         `json:"checked_ms"` // age of the shown health
	Stale   bool          `json:"stale"`      // the shown data may be out of date
	Failure string        `json:"failure"`    // of a later read; empty: no failure
	At      time.Time     `json:"at,omitzero"`
	Version int           `json:"schema_version"`
	Server  *admin.Server `json:"server"`
}

// status returns the status. The caller holds mu.
func (h *hub) status() shownStatus {
	s := shownStatus{Failure: h.failure, Stale: h.failure != "", Checked: time.Since(h.checked).Milliseconds()}
	if h.last == nil {
		return s
	}
	age := time.Since(h.seen)
	s.Seen = true
	s.Age = age.Milliseconds()
	s.Stale = s.Stale || age > old
	s.At = h.last.At
	s.Version = h.last.Version
	s.Server = &h.last.Server
	return s
}

// poll answers with the parts that differ from those of the page.
func (h *handler) poll(w http.ResponseWriter, r *http.Request) {
	h.hub.asked()
	answer := h.hub.answer(r.URL.Query())
	length := 0
	for _, piece := range answer {
		length += len(piece)
	}
	// If it cannot be set, the server's own holds.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.times.write))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(length))
	for _, piece := range answer { // not joined, because all viewers share the large ones
		if _, err := w.Write(piece); err != nil {
			return // the browser has gone
		}
	}
}

// answer returns the pieces of the answer to a page that shows these versions.
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

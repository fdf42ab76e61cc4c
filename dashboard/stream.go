package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// What all viewers see is made once, by one goroutine that runs while there is a viewer: the hub's topics, each a JSON text with a version.
// A viewer sends those that are newer than what it has sent: who is slow skips versions, and nothing queues. Partitions come as ranges, and
// again only when they changed; what changes with each look, the ages of heartbeats, is a topic of its own.

// A topic is an event's name in the stream.
type topic int

// In the order in which they are sent: leases name clients, and ages are those of clients, one for one.
const (
	clients topic = iota
	leases
	ages
	locks
	events
	wishes
	schedules
	health
	status
	topics
)

var topicNames = [topics]string{"clients", "leases", "ages", "locks", "events", "wishes", "schedules", "health", "status"}

const (
	maxLocks  = 200 // that are shown
	maxEvents = 200 // the latest, that all are sent

	mostEvents = 1000 // the latest, that who looks for some is sent
)

// times are how long things take.
type times struct {
	write     time.Duration // for a viewer to take what is sent, before it is given up
	authorize time.Duration // until a viewer is asked for again
}

var defaultTimes = times{write: 10 * time.Second, authorize: 10 * time.Second}

const (
	beat     = time.Second      // between two words about how old what is shown is
	old      = 4 * time.Second  // from which age on it is said to be stale; a look that fails says so at once
	examined = 30 * time.Second // between two examinations of the health

	defaultAnswers = 15 * time.Second
)

type hub struct {
	admin      *admin.Admin
	maxViewers int
	answers    time.Duration // how long locks and events, and an examination, may take: a connection that hangs keeps nobody from looking on

	mu      sync.Mutex // guards what follows
	viewers int
	stop    context.CancelFunc
	texts   [topics]text
	changed chan struct{} // closed, and made anew, when a text is

	memory // kept while nobody looks, for who comes while the database is away
}

type text struct {
	version int // 0: there is none
	json    []byte
}

// memory is what is known of the looks before.
type memory struct {
	last    *admin.Snapshot // nil: there was no look yet
	seen    time.Time       // when last was
	failure string          // of the look after it; empty: none
	slots   map[string]int
}

func newHub(a *admin.Admin, maxViewers int) *hub {
	return &hub{admin: a, maxViewers: maxViewers, answers: defaultAnswers, changed: make(chan struct{}), memory: memory{slots: make(map[string]int)}}
}

// enter reports whether there is room for one more viewer, who then has to leave.
func (h *hub) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers == h.maxViewers {
		return false
	}
	h.viewers++
	if h.viewers == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		h.stop = cancel
		h.tell(ctx)
		go h.look(ctx)
		go h.examine(ctx)
		go h.count(ctx)
		go h.tick(ctx)
	}
	return true
}

func (h *hub) full() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.viewers == h.maxViewers
}

func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers--; h.viewers == 0 {
		h.stop()
	}
}

// publish has mu. It does nothing where the text is as before, and after the end of ctx, when others may do it.
func (h *hub) publish(ctx context.Context, of topic, content any) {
	encoded, err := json.Marshal(content)
	if err != nil {
		panic(err) // a type that cannot be
	}
	t := &h.texts[of]
	if ctx.Err() != nil || bytes.Equal(t.json, encoded) {
		return
	}
	t.version, t.json = t.version+1, encoded
	close(h.changed)
	h.changed = make(chan struct{})
}

// look sees to what is in the tables.
func (h *hub) look(ctx context.Context) {
	for s, err := range h.admin.Watch(ctx) {
		if err != nil {
			h.failed(ctx, err)
			continue
		}
		h.saw(ctx, s, time.Now())
		limited, cancel := context.WithTimeout(ctx, h.answers)
		held, happened := h.readLocks(limited), h.readEvents(limited, "", maxEvents)
		cancel()
		h.mu.Lock()
		h.publish(ctx, locks, held)
		h.publish(ctx, events, happened)
		h.mu.Unlock()
	}
}

func (h *hub) failed(ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() == nil {
		h.failure = err.Error()
		h.tell(ctx)
	}
}

// A shownClient is a client without what changes with each look, and with the number of its colour, which it keeps while it lives, and for all viewers.
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
	h.publish(ctx, leases, s.Leases)
	h.publish(ctx, ages, silent)
	h.publish(ctx, wishes, s.Wishes)
	h.tell(ctx)
}

// assignSlots gives each ID among clients a number that no other of them has, the lowest that is free. An ID that comes back has its own
// again, if nobody took it.
func assignSlots(slots map[string]int, clients []admin.Client) {
	taken := make(map[int]bool)
	living := make(map[string]bool)
	for _, c := range clients {
		living[c.ID] = true
		if slot, has := slots[c.ID]; has {
			taken[slot] = true
		}
	}
	given := make(map[int]bool)
	next := 0
	for _, c := range clients {
		if _, has := slots[c.ID]; has {
			continue
		}
		for taken[next] {
			next++
		}
		slots[c.ID] = next
		taken[next], given[next] = true, true
	}
	for id, slot := range slots {
		if given[slot] && !living[id] {
			delete(slots, id)
		}
	}
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
func (h *hub) examine(ctx context.Context) {
	for {
		limited, cancel := context.WithTimeout(ctx, h.answers)
		findings := h.admin.Doctor(limited, admin.DoctorOptions{})
		cancel()
		h.mu.Lock()
		h.publish(ctx, health, shownHealth{findings, time.Now()})
		h.mu.Unlock()
		select {
		case <-time.After(examined):
		case <-ctx.Done():
			return
		}
	}
}

// tick says how old what is shown is, also while a look hangs.
func (h *hub) tick(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.mu.Lock()
			h.tell(ctx)
			h.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
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

// tell has mu.
func (h *hub) tell(ctx context.Context) {
	s := shownStatus{Failure: h.failure, Stale: h.failure != ""}
	if h.last != nil {
		age := time.Since(h.seen)
		s.Seen, s.Age, s.Stale = true, age.Milliseconds(), s.Stale || age > old
		s.At, s.Version, s.Server = h.last.At, h.last.Version, &h.last.Server
	}
	h.publish(ctx, status, s)
}

// stream sends what is shown until the viewer goes, is too slow, or may not look any more.
func (h *handler) stream(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	if err := out.SetWriteDeadline(time.Now().Add(h.times.write)); err != nil {
		http.Error(
			w, fmt.Sprintf("The dashboard cannot bound a write: %v. What wraps the ResponseWriter needs a method Unwrap.", err),
			http.StatusInternalServerError,
		)
		return
	}
	look := r.Method == http.MethodGet // or it is only to be known whether one may
	if look && !h.hub.enter() || !look && h.hub.full() {
		w.Header().Set("Retry-After", "15")
		http.Error(w, fmt.Sprintf("%d pages are open, which is the most that are allowed.", h.options.MaxViewers), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold it back
	if !look {
		return
	}
	defer h.hub.leave()
	again := time.NewTicker(h.times.authorize)
	defer again.Stop()
	var sent [topics]int
	for {
		news, changed := h.hub.newer(&sent)
		if len(news) > 0 {
			// A deadline for each write: else who does not read would keep its place, and this goroutine, for ever.
			if out.SetWriteDeadline(time.Now().Add(h.times.write)) != nil {
				return
			}
			if _, err := w.Write(news); err != nil || out.Flush() != nil {
				return
			}
		}
		select {
		case <-changed:
		case <-again.C:
			if access, _ := h.options.Authorize(r); access < ReadOnly {
				return // the page asks why, and is told
			}
		case <-r.Context().Done():
			return
		}
	}
}

// newer returns the events with what is newer than what was sent, and a channel that is closed when there are more.
func (h *hub) newer(sent *[topics]int) (news []byte, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, t := range h.texts {
		if t.version != sent[i] {
			news = fmt.Appendf(news, "event: %s\ndata: %s\n\n", topicNames[i], t.json)
			sent[i] = t.version
		}
	}
	return news, h.changed
}

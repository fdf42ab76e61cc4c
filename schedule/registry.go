package schedule

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A registry has the kinds and schedules that the code registers before Run. It is safe for
// concurrent use.
type registry struct {
	mu       sync.Mutex // guards what follows
	running  bool       // Run was called
	kinds    map[string]*kind
	broken   []error                 // errors of registrations
	declared map[string]*scheduleRow // by Add

	warned sync.Map // unregistered kinds that were logged
}

func newRegistry() registry {
	return registry{kinds: make(map[string]*kind), declared: make(map[string]*scheduleRow)}
}

// register adds a kind.
func (r *registry) register(k *kind, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds[k.name] != nil {
		err = errors.Join(err, errors.New("the name is registered already"))
	}
	if err != nil {
		r.broken = append(r.broken, wrap.Errorf("schedule: register kind %q: %w", k.name, err))
		return
	}
	r.kinds[k.name] = k
}

// registered returns the errors of registrations if the kind is not registered.
func (r *registry) registered(k *kind) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds[k.name] != k {
		return errors.Join(r.broken...)
	}
	return nil
}

// kind returns the kind of a name; nil if it is not registered.
func (r *registry) kind(name string) *kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds[name]
}

// limit returns how many runs of a kind may be under way at once; 0: any number.
func (r *registry) limit(name string) int {
	k := r.kind(name)
	if k != nil && k.limits.limited {
		return k.limits.concurrent
	}
	return 0
}

// stats returns the numbers of all kinds.
func (r *registry) stats() map[string]KindStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	kinds := make(map[string]KindStats)
	for name, k := range r.kinds {
		kinds[name] = k.counts.now()
	}
	return kinds
}

// delays returns how late the calls of each kind were.
func (r *registry) delays() map[string]bridge.Delays {
	r.mu.Lock()
	defer r.mu.Unlock()
	kinds := make(map[string]bridge.Delays)
	for name, k := range r.kinds {
		kinds[name] = k.counts.delays()
	}
	return kinds
}

// names returns the names of all kinds.
func (r *registry) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.kinds))
}

// declare adds a schedule that the code declares.
func (r *registry) declare(s *scheduleRow) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.running:
		return errors.New("Run was called already: call Add before it, or Put")
	case r.declared[s.Name] != nil:
		return errors.New("the name was added already")
	}
	r.declared[s.Name] = s
	return nil
}

// declares reports whether this process's code declares a schedule.
func (r *registry) declares(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.declared[name] != nil
}

// declarations returns the declared schedules by name.
func (r *registry) declarations() (names []string, rows []*scheduleRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names = slices.Sorted(maps.Keys(r.declared))
	for _, name := range names {
		rows = append(rows, r.declared[name])
	}
	return names, rows
}

// start ends registration, and reports whether it was called before.
func (r *registry) start() (again bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again, r.running = r.running, true
	return again, errors.Join(r.broken...)
}

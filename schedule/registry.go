package schedule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// A registry has what the code registers and declares, before Run. It is safe for concurrent use.
type registry struct {
	mu       sync.Mutex // guards what follows
	running  bool       // a Run is under way, or was
	kinds    map[string]*kind
	broken   []error            // of registrations
	declared map[string]*record // what the code declares

	warned sync.Map // kinds that are not registered, of which that was logged
}

func newRegistry() registry {
	return registry{kinds: make(map[string]*kind), declared: make(map[string]*record)}
}

// register takes a kind.
func (r *registry) register(k *kind, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds[k.name] != nil {
		err = errors.Join(err, errors.New("there is one of this name already"))
	}
	if err != nil {
		r.broken = append(r.broken, fmt.Errorf("schedule: register kind %q: %w", k.name, err))
		return
	}
	r.kinds[k.name] = k
}

// registered returns what is wrong with a kind.
func (r *registry) registered(k *kind) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds[k.name] != k {
		return errors.Join(r.broken...)
	}
	return nil
}

// kind returns the kind of a name; nil: this process does not know it.
func (r *registry) kind(name string) *kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds[name]
}

// limit returns how many runs of a kind there may be at once; 0: any number.
func (r *registry) limit(name string) int {
	if k := r.kind(name); k != nil && k.limits.limited {
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

// names returns the names of all kinds.
func (r *registry) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.kinds))
}

// declare takes a schedule that the code declares.
func (r *registry) declare(s *record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.running:
		return errors.New("Run has begun: add before it, or put")
	case r.declared[s.Name] != nil:
		return errors.New("it was added already")
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

// declarations returns what the code declares, in the order of the names.
func (r *registry) declarations() (names []string, rows []*record) {
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

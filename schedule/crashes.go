package schedule

// This file writes down in which partitions this process runs something: an owner that finds that
// not taken back knows that this process crashed.

// noteRuns writes down, before the first run in a partition, that something runs in it.
func (t *transactions) noteRuns(o *ownership) error {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	if !o.opened.IsZero() {
		return nil
	}
	err := t.db.repeat(o.ctx, maxBreaks, passing, func() error {
		return t.guarded(o.ctx, o.Partition, t.db.begin(&o.crashed), nil)
	})
	if err == nil {
		o.opened = t.clock.now()
	}
	return err
}

// noteEnd takes that back, when all runs have ended. If that fails, the next owner is careful for
// nothing.
func (t *transactions) noteEnd(o *ownership) {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	if o.opened.IsZero() {
		return
	}
	_ = t.db.repeat(o.life, maxConflicts, conflict, func() error {
		return t.guarded(o.life, o.Partition, t.db.end(o.counted), nil)
	})
}

// suspects reports whether the run of a schedule or job may kill this process: others crashed while
// it ran, or may have.
func (o *ownership) suspects(it item, r *record) bool {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	return r.Trying.crashes() > 0 || o.crashed && !it.due().After(o.opened)
}

// count notes that a crash is counted of a schedule or job, until its run has ended.
func (o *ownership) count(s subject) {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	o.counted = append(o.counted, s)
}

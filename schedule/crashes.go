package schedule

// crashes writes down in which partitions this process runs something: an owner that finds that not
// taken back knows that this process crashed. It is safe for concurrent use.
type crashes struct{ transactions }

// open writes down, before the first run in a partition, that something runs in it.
func (c *crashes) open(o *ownership) error {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	if !o.opened.IsZero() {
		return nil
	}
	err := c.db.repeat(o.ctx, maxBreaks, passing, func() error {
		return c.guarded(o.ctx, o.Partition, c.db.begin(&o.crashed), nil)
	})
	if err == nil {
		o.opened = c.clock.now()
	}
	return err
}

// close takes that back, when all runs have ended. If that fails, the next owner is careful for
// nothing.
func (c *crashes) close(o *ownership) {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	if o.opened.IsZero() {
		return
	}
	_ = c.db.repeat(o.life, maxConflicts, conflict, func() error {
		return c.guarded(o.life, o.Partition, c.db.end(o.counted), nil)
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

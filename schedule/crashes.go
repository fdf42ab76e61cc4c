package schedule

// This file records the partitions that this process runs something in. A new owner that finds such
// a record of the previous owner knows that the previous owner crashed.

// noteRuns records, before the first run in a partition, that something runs in it.
func (t *transactions) noteRuns(o *ownership) error {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	if !o.opened.IsZero() {
		return nil
	}
	err := t.db.repeat(o.ctx, maxBreaks, passing, func() error {
		crashed := new(bool)
		err := t.forUs(o.ctx, o.Partition, t.db.begin(crashed), nil)
		if err == nil {
			o.crashed = *crashed
		}
		return err
	})
	if err == nil {
		o.opened = t.clock.now()
	}
	return err
}

// noteEnd removes that record when all runs have ended. If it fails, the next owner wrongly assumes
// a crash.
func (t *transactions) noteEnd(o *ownership) {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	if o.opened.IsZero() {
		return
	}
	_ = t.db.repeat(o.life, maxConflicts, conflict, func() error {
		return t.forUs(o.life, o.Partition, t.db.end(o.counted), nil)
	})
}

// suspects reports whether a run may crash this process, because processes crashed while it ran, or
// may have.
func (o *ownership) suspects(it item, r *row) bool {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	return r.Trying.crashes() > 0 || o.crashed && !it.due().After(o.opened)
}

// count records that a crash is counted for a schedule or job until its run has ended.
func (o *ownership) count(s subject) {
	o.crashMu.Lock()
	defer o.crashMu.Unlock()
	o.counted = append(o.counted, s)
}

package schedule

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A record of ends that hangs holds the others for a second, and then one record has all of them.
func TestEndsWaitASecondForARecordThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, hangs := newEnds(), make(chan struct{})
		first := e.join(&ownership{}, func(context.Context, []*ownership, []subject) { <-hangs })
		synctest.Wait()
		var records []int
		write := func(_ context.Context, of []*ownership, _ []subject) { records = append(records, len(of)) }
		began := time.Now()
		second, third := e.join(&ownership{}, write), e.join(&ownership{}, write)
		<-second
		<-third
		if took := time.Since(began); took > time.Second || !slices.Equal(records, []int{2}) {
			t.Errorf("records of %v ends after %v", records, took)
		}
		close(hangs)
		<-first
	})
}

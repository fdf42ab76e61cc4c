package schedule

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var write = flag.Bool("write", false, "write the pictures of docs/schedule.md")

// The pictures of the page are drawn by what decides in a process: so they are what happens.
func TestPicturesOfThePageAreWhatHappens(t *testing.T) {
	t.Parallel()
	for name, p := range pictures {
		text := p.draw(t)
		path := "../docs/schedule-" + name + ".svg"
		if *write {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.ReplaceAll(have, []byte("\r\n"), []byte("\n")), text) {
			t.Errorf("%s is not what happens: go test ./schedule -run Pictures -write, and look at it", path)
		}
	}
}

// A picture is some scenes, one below the other, of a schedule of each hour from midnight on.
type picture struct {
	hours  int
	away   [2]time.Duration // from when to when there is no process, or the schedule is paused; drawn behind all
	what   string           // that is
	scenes []scene
}

type scene struct {
	label  string
	policy policy
	limits limits
	takes  func(hour int) time.Duration  // a run; nil: a little while
	fails  func(hour, attempt int) error // nil: none does
	paused bool                          // while away, instead of without a process
	resume From
	rule   string // from the end of away on; empty: no other
}

var (
	outage  = [2]time.Duration{90 * time.Minute, 5*time.Hour + 20*time.Minute}
	retries = func(n int) limits { return limits{attempts: n, pauses: Backoff(10*time.Minute, time.Hour)} }
	fails   = func(hour, attempt int) error {
		if hour == 2 {
			return errors.New("broken")
		}
		return nil
	}
	long = func(hour int) time.Duration {
		if hour == 2 {
			return 2*time.Hour + 20*time.Minute
		}
		return 0
	}
)

var pictures = map[string]picture{
	"missed": {hours: 8, away: outage, what: "no process", scenes: []scene{
		{label: "MissedLatest, the default"},
		{label: "MissedLatest, Grace(10 * time.Minute)", policy: policy{Grace: 10 * time.Minute}},
		{label: "MissedNone", policy: policy{Missed: MissedNone}},
		{label: "MissedAll", policy: policy{Missed: MissedAll}},
		{label: "MissedAll, Grace(2 * time.Hour)", policy: policy{Missed: MissedAll, Grace: 2 * time.Hour}},
	}},
	"overlap": {hours: 8, scenes: []scene{
		{label: "OverlapSkip, the default", takes: long},
		{label: "OverlapBuffer", policy: policy{Overlap: OverlapBuffer}, takes: long},
		{label: "OverlapBuffer, MissedAll", policy: policy{Overlap: OverlapBuffer, Missed: MissedAll}, takes: long},
		{label: "no Retry, the default", fails: fails},
		{label: "Retry(3, Backoff(10 * time.Minute, …))", limits: retries(3), fails: func(hour, attempt int) error {
			if hour == 2 && attempt < 3 {
				return errors.New("broken")
			}
			return nil
		}},
		{label: "the same, and it is never mended", limits: retries(3), fails: fails},
		{label: "PauseAfter(3)", policy: policy{PauseAfter: 3}, fails: func(hour, _ int) error {
			if hour >= 2 {
				return errors.New("broken")
			}
			return nil
		}},
	}},
	"pause": {hours: 8, away: [2]time.Duration{90 * time.Minute, 4*time.Hour + 20*time.Minute}, what: "paused", scenes: []scene{
		{label: "Resume(…, FromNow)", paused: true},
		{label: "Resume(…, CatchUp)", paused: true, resume: CatchUp},
		{label: "Resume(…, CatchUp), MissedAll", policy: policy{Missed: MissedAll}, paused: true, resume: CatchUp},
		{label: "another rule meanwhile, then CatchUp", paused: true, resume: CatchUp, rule: "CRON_TZ=UTC 30 * * * *"},
	}},
}

// A played scene is the ticks with their fates, and the runs.
type played struct {
	fates []fate
	runs  []playedRun
}

type playedRun struct {
	tick, from, until time.Duration
	failed            bool
}

var midnight = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// play has the schedule decided about as the owner does, with a clock that goes from one instant at which something happens to the next.
func (s scene) play(t *testing.T, p picture) (out played) {
	k := &kind{name: "k", parse: func(json.RawMessage) error { return nil }}
	l := s.limits
	l.attempts = max(1, l.attempts)
	start := midnight.Add(-30 * time.Minute)
	r := &record{Name: "s", Rule: "CRON_TZ=UTC 0 * * * *", Anchor: start, Cursor: start, Policy: s.policy}
	rule, err := Parse(r.Rule)
	if err != nil {
		t.Fatal(err)
	}
	r.Due = r.next(rule)
	now, end := start, midnight.Add(time.Duration(p.hours)*time.Hour)
	from, until := midnight.Add(p.away[0]), midnight.Add(p.away[1])
	resumed := p.away == [2]time.Duration{}
	for {
		if !resumed && (r.Due == nil || !r.Due.Before(from)) {
			resumed, now = true, until
			if s.paused {
				r.PausedAt = &from
				if s.rule != "" { // as put does
					changed := midnight.Add(3*time.Hour + 10*time.Minute)
					fates, err := r.supersede(r, changed)
					if err != nil {
						t.Fatal(err)
					}
					out.fates = append(out.fates, fates...)
					r.Rule, r.Anchor = s.rule, changed
				}
				r.PausedAt = nil
				if s.resume == FromNow {
					fates, err := r.supersede(r, until)
					if err != nil {
						t.Fatal(err)
					}
					out.fates = append(out.fates, fates...)
				}
				r.Due = &until
			}
		}
		if r.Due == nil {
			return out
		}
		if r.Due.After(now) {
			now = *r.Due
		}
		if !now.Before(end) {
			return out
		}
		r.Clock = now
		d := r.decide(k, false, 1, false)
		if d.run != nil {
			takes := 12 * time.Minute
			if s.fails != nil {
				takes = 10 * time.Minute // so that the pauses, which are random, show as the same
			}
			if s.takes != nil && s.takes(d.run.At.Hour()) > 0 {
				takes = s.takes(d.run.At.Hour())
			}
			begins := now
			now = now.Add(takes)
			ended := now
			d.RanUntil = &ended
			var err error
			if s.fails != nil {
				err = s.fails(d.run.At.Hour(), r.attempts()+1)
			}
			run := playedRun{d.run.At.Sub(midnight), begins.Sub(midnight), now.Sub(midnight), err != nil}
			if err == nil {
				d.done()
			} else {
				d.failed(r, l, err, now)
			}
			out.runs = append(out.runs, run)
		}
		out.fates = append(out.fates, d.Fates...)
		r.Cursor, r.CursorLocal, r.Due, r.Trying, r.PausedAt = d.Cursor, d.CursorLocal, d.Due, d.Trying, d.PausedAt
		if d.Failures != nil {
			r.Failures = *d.Failures
		}
		if d.RanFrom != nil {
			r.RanFrom = d.RanFrom
		}
		if d.RanUntil != nil {
			r.RanUntil = d.RanUntil
		}
		if r.PausedAt != nil {
			return out
		}
	}
}

// Sizes of a picture.
const (
	labels = 270
	hour   = 78
	lane   = 46
	top    = 34
)

func xOf(d time.Duration) float64 {
	return labels + 20 + hour*d.Truncate(5*time.Minute).Hours() // the pauses of Backoff are up to a tenth longer, at random
}

func (p picture) draw(t *testing.T) []byte {
	var b bytes.Buffer
	width, height := labels+20+hour*p.hours+20, top+lane*len(p.scenes)+46
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" font-family="sans-serif" font-size="12">
<style>
.ground { fill: #ffffff } .ink { fill: #1f2328 } .dim { fill: #59636e } .grid { stroke: #d1d9e0 } .line { stroke: #818b98; fill: none } .away { fill: #eaeef2 }
.done { fill: #1a7f37 } .dead { fill: #cf222e } .missed { fill: #bf8700 } .skipped { fill: #8250df } .cancelled { fill: #6e7781 } .run { fill: #2da44e } .failed { fill: #fa4549 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #f0f6fc } .dim { fill: #9198a1 } .grid { stroke: #3d444d } .line { stroke: #9198a1; fill: none } .away { fill: #212830 }
.done { fill: #3fb950 } .dead { fill: #f85149 } .missed { fill: #d29922 } .skipped { fill: #ab7df8 } .cancelled { fill: #9198a1 } .run { fill: #238636 } .failed { fill: #da3633 }
}
</style>
<rect class="ground" width="%[1]d" height="%[2]d"/>
`, width, height)
	bottom := top + lane*len(p.scenes)
	if p.what != "" {
		x := xOf(p.away[0])
		fmt.Fprintf(&b, "<rect class=\"away\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n", x, top-4, xOf(p.away[1])-x, bottom-top+8)
		fmt.Fprintf(&b, "<text class=\"dim\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (x+xOf(p.away[1]))/2, bottom+18, p.what)
	}
	for h := range p.hours + 1 {
		x := xOf(time.Duration(h) * time.Hour)
		fmt.Fprintf(&b, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", x, x, top-4, bottom+4)
		fmt.Fprintf(&b, "<text class=\"dim\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d:00</text>\n", x, top-12, h)
	}
	seen := make(map[Fate]bool)
	for i, s := range p.scenes {
		played := s.play(t, p)
		y := top + lane*i
		fmt.Fprintf(&b, "<text class=\"ink\" x=\"12\" y=\"%d\">%s</text>\n", y+26, html.EscapeString(s.label))
		for _, r := range played.runs {
			class, what := "run", "runs"
			if r.failed {
				class, what = "failed", "fails"
			}
			x := xOf(r.from)
			fmt.Fprintf(&b, "<path class=\"line\" d=\"M%.1f %d L%.1f %d\"/>", xOf(r.tick), y+14, x, y+26)
			fmt.Fprintf(&b, "<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"12\" rx=\"3\"><title>the tick of %s %s</title></rect>\n", class, x, y+26, xOf(r.until)-x, clockTime(r.tick), what)
		}
		ticks := p.ticks(t, s, played)
		for _, tick := range ticks {
			seen[tick.fate] = true
			b.WriteString(markOf(tick.fate, xOf(tick.at), float64(y+12), clockTime(tick.at)))
		}
	}
	x := float64(labels + 20)
	for _, f := range []Fate{FateDone, FateDead, FateMissed, FateSkipped, FateCancelled} {
		if seen[f] {
			b.WriteString(markOf(f, x, float64(bottom+32), "a tick"))
			fmt.Fprintf(&b, "<text class=\"ink\" x=\"%.1f\" y=\"%d\">%s</text>\n", x+10, bottom+36, f)
			x += 96
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

type fated struct {
	at   time.Duration
	fate Fate
}

// ticks are those that have a fate, each one.
func (p picture) ticks(t *testing.T, s scene, out played) (all []fated) {
	t.Helper()
	for _, f := range out.fates {
		n := int64(0)
		for d := time.Duration(0); d < time.Duration(p.hours)*time.Hour; d += 30 * time.Minute {
			tick := midnight.Add(d)
			half := tick.Minute() == 30
			if half != (s.rule != "" && d >= 3*time.Hour+10*time.Minute) || !tick.After(f.Since) || tick.After(f.Until) {
				continue
			}
			if slices.ContainsFunc(all, func(other fated) bool { return other.at == d }) {
				t.Errorf("%s: the tick of %v has two fates", s.label, clockTime(d))
			}
			all = append(all, fated{d, f.Fate})
			n++
		}
		if n != f.Ticks {
			t.Errorf("%s: %d ticks have the fate %s, and %d are told", s.label, n, f.Fate, f.Ticks)
		}
	}
	return all
}

func clockTime(d time.Duration) string { return midnight.Add(d).Format("15:04") }

// markOf is a fate's mark, which is told by its form too.
func markOf(f Fate, x, y float64, what string) string {
	form := map[Fate]string{
		FateDone:      `<circle class="%s" cx="%.1f" cy="%.1f" r="5">%s</circle>`,
		FateDead:      `<path class="%s" d="M%.1f %.1f m0 -6 l6 6 l-6 6 l-6 -6 z">%s</path>`,
		FateMissed:    `<path class="%s" d="M%.1f %.1f m-5 -5 h10 v10 h-10 z m2.5 2.5 v5 h5 v-5 z">%s</path>`,
		FateSkipped:   `<path class="%s" d="M%.1f %.1f m0 -6 l6 11 h-12 z">%s</path>`,
		FateCancelled: `<path class="%s" d="M%.1f %.1f m-6 -2 h12 v4 h-12 z">%s</path>`,
	}[f]
	return fmt.Sprintf(form, f, x, y, "<title>"+strings.TrimSpace(what+" "+string(f))+"</title>") + "\n"
}

package schedule

import (
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

var write = flag.Bool("write", false, "write the pictures of docs/schedule.md again")

// The pictures of the page are drawn by what decides in a process, so they show what happens.
func TestPicturesShowWhatHappens(t *testing.T) {
	t.Parallel()
	for name, p := range pictures {
		testkit.SameAsFile(t, "../docs/schedule-"+name+".svg", p.draw(t), *write,
			"it is not what happens: go test ./schedule -run Pictures -args -write, and look at it")
	}
}

// Options and policies that the pictures name are declared in the package.
func TestWordsOfPicturesExist(t *testing.T) {
	t.Parallel()
	code := ""
	for _, file := range []string{"options.go", "missed.go", "manage.go"} {
		code += string(testkit.Must(os.ReadFile(file))(t))
	}
	label := regexp.MustCompile(`<text class="ink"[^>]*>([^<]*)</text>`)
	titled := regexp.MustCompile(`<title>(?:\d\d:\d\d|a tick) (\w+)</title>`)
	named := regexp.MustCompile(`(\w+\.)?\b[A-Z]\w+`)
	found := 0
	for name := range pictures {
		page := string(testkit.Must(os.ReadFile("../docs/schedule-" + name + ".svg"))(t))
		for _, text := range label.FindAllStringSubmatch(page, -1) {
			for _, word := range named.FindAllStringSubmatch(text[1], -1) {
				declared := regexp.MustCompile(`(?m)^(?:func |func \(s \*Scheduler\) |\t)` + word[0] +
					`(?:\(| [A-Za-z]+ = iota|$| +//)`)
				if found++; word[1] == "" && !declared.MatchString(code) {
					t.Errorf("%s: the package declares no %s", name, word[0])
				}
			}
		}
		for _, class := range titled.FindAllStringSubmatch(page, -1) {
			if !slices.Contains(outcomes, Outcome(class[1])) {
				t.Errorf("%s: %s is no outcome", name, class[1])
			}
		}
	}
	if found < 12 {
		t.Errorf("only %d names found", found)
	}
}

var outcomes = []Outcome{OutcomeSucceeded, OutcomeFailed, OutcomeMissed, OutcomeSkipped, OutcomeCanceled}

// A picture has some scenes, one below the other, of a schedule that is due each hour from midnight
// on.
type picture struct {
	away   [2]time.Duration // from when to when no process runs, or the schedule is paused
	what   string           // the name of that time; empty: there is none
	scenes []scene
}

type scene struct {
	label  string
	policy policy
	limits limits
	takes  time.Duration                 // the run of 2:00; 0: as long as the others
	fails  func(hour, attempt int) error // nil: no run fails
	paused bool                          // while away, instead of without a process
	resume ResumeMode
	rule   string // from 3:10 on; empty: no other rule
}

const hoursOfPictures = 8

var pictures = map[string]picture{
	"missed": {away: [2]time.Duration{90 * time.Minute, 320 * time.Minute}, what: "no process", scenes: []scene{
		{label: "MissedLatest, the default"},
		{label: "MissedLatest, WithGrace(10 * time.Minute)", policy: policy{Grace: 10 * time.Minute}},
		{label: "MissedNone", policy: policy{Missed: MissedNone}},
		{label: "MissedAll", policy: policy{Missed: MissedAll}},
		{label: "MissedAll, WithGrace(2 * time.Hour)", policy: policy{Missed: MissedAll, Grace: 2 * time.Hour}},
	}},
	"overlap": {scenes: []scene{
		{label: "OverlapSkip, the default", takes: 140 * time.Minute},
		{label: "OverlapBuffer", policy: policy{Overlap: OverlapBuffer}, takes: 140 * time.Minute},
		{label: "OverlapBuffer, MissedAll", policy: policy{Overlap: OverlapBuffer, Missed: MissedAll},
			takes: 140 * time.Minute},
		{label: "one attempt, the default", fails: always(2)},
		{label: "WithMaxAttempts(3, …), repaired", limits: thrice, fails: untilAttempt(2, 3)},
		{label: "WithMaxAttempts(3, …), not repaired", limits: thrice, fails: always(2)},
		{label: "WithPauseAfter(3)", policy: policy{PauseAfter: 3}, fails: always(2, 3, 4)},
	}},
	"pause": {away: [2]time.Duration{90 * time.Minute, 4*time.Hour + 20*time.Minute}, what: "paused", scenes: []scene{
		{label: "ResumeFromNow", paused: true},
		{label: "ResumeCatchUp", paused: true, resume: ResumeCatchUp},
		{label: "ResumeCatchUp, MissedAll", policy: policy{Missed: MissedAll}, paused: true, resume: ResumeCatchUp},
		{label: "a new rule, then ResumeCatchUp", paused: true, resume: ResumeCatchUp, rule: "CRON_TZ=UTC 30 * * * *"},
	}},
}

var (
	midnight  = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	otherRule = midnight.Add(3*time.Hour + 10*time.Minute)
	errBroken = errors.New("broken")
	thrice    = limits{attempts: 3, backoff: Backoff(10*time.Minute, time.Hour)}
)

// always lets the runs of some hours fail, in each attempt.
func always(hours ...int) func(hour, attempt int) error {
	return func(hour, _ int) error {
		if slices.Contains(hours, hour) {
			return errBroken
		}
		return nil
	}
}

// untilAttempt lets the run of an hour fail in the attempts before one.
func untilAttempt(which, before int) func(hour, attempt int) error {
	return func(hour, attempt int) error {
		if hour == which && attempt < before {
			return errBroken
		}
		return nil
	}
}

// A play is what happens in a scene: the ticks with their outcomes, and the runs.
type play struct {
	scene
	*scheduleRow
	now      time.Time
	outcomes []newEntry
	runs     []playedRun
}

type playedRun struct {
	tick, from, until time.Duration
	failed            bool
}

// play lets the schedule be decided about as its owner does, with a clock that goes from one instant
// at which something happens to the next.
func (s scene) play(t *testing.T, p picture) *play {
	t.Helper()
	start := midnight.Add(-30 * time.Minute)
	r := &scheduleRow{row: row{Name: "s", Rule: "CRON_TZ=UTC 0 * * * *"}, Policy: s.policy}
	r.Anchor, r.Cursor = start, start
	out := &play{scene: s, now: start, scheduleRow: r}
	out.limits.attempts = max(1, s.limits.attempts)
	out.Due = out.next(testkit.Must(Parse(out.Rule))(t))
	from, until := midnight.Add(p.away[0]), midnight.Add(p.away[1])
	returned := p.what == ""
	for {
		if !returned && (out.Due == nil || !out.Due.Before(from)) {
			returned, out.now = true, until
			out.endAway(t, until)
		}
		if out.Due == nil || out.PausedAt != nil {
			return out
		}
		if out.Due.After(out.now) {
			out.now = *out.Due
		}
		if !out.now.Before(midnight.Add(hoursOfPictures * time.Hour)) {
			return out
		}
		out.step()
	}
}

// endAway ends the pause, if it was one, as an operator's edit and Resume do.
func (p *play) endAway(t *testing.T, at time.Time) {
	t.Helper()
	if !p.paused {
		return
	}
	if p.rule != "" {
		p.cancel(testkit.Must(p.supersede(otherRule))(t))
		p.Rule, p.Anchor = p.rule, otherRule
	}
	if p.resume == ResumeFromNow {
		p.cancel(testkit.Must(p.supersede(at))(t))
	}
	p.Due = &at
}

// cancel does what an edit does to the ticks that it cancels.
func (p *play) cancel(c canceled) {
	if c.ticks > 0 {
		entry := newEntry{Since: p.Cursor, Until: c.last, Ticks: c.ticks, Outcome: OutcomeCanceled}
		p.outcomes = append(p.outcomes, entry)
	}
	p.Cursor, p.CursorLocal, p.Trying = c.until, nil, nil
}

// step lets one decision be made, and its run end.
func (p *play) step() {
	p.Clock = p.now
	d := p.decide(&kind{name: "k"}, false, 1, nil)
	if d.run != nil {
		p.run(&d)
	}
	p.outcomes = append(p.outcomes, d.Outcomes...)
	p.Cursor, p.CursorLocal, p.Due, p.Trying, p.PausedAt = d.Cursor, d.CursorLocal, d.Due, d.Trying, d.PausedAt
	if d.Failures != nil {
		p.Failures = *d.Failures
	}
	if d.RanFrom != nil {
		p.RanFrom = d.RanFrom
	}
	if d.RanUntil != nil {
		p.RanUntil = d.RanUntil
	}
}

func (p *play) run(d *decision) {
	takes := 12 * time.Minute
	if p.fails != nil {
		takes = 10 * time.Minute
	}
	if p.takes > 0 && d.run.At.Hour() == 2 {
		takes = p.takes
	}
	begins, ended := p.now, p.now.Add(takes)
	p.now, d.RanUntil = ended, &ended
	var err error
	if p.fails != nil {
		err = p.fails(d.run.At.Hour(), p.attempts()+1)
	}
	p.runs = append(p.runs, playedRun{d.run.At.Sub(midnight), begins.Sub(midnight), ended.Sub(midnight), err != nil})
	if err == nil {
		d.done()
	} else {
		d.failed(p.scheduleRow, p.limits, err, ended)
	}
}

// ticks returns the ticks that have an outcome, each one, as the numbers of the outcomes say.
func (p *play) ticks(t *testing.T) map[time.Duration]Outcome {
	t.Helper()
	all := make(map[time.Duration]Outcome)
	for _, o := range p.outcomes {
		n := int64(0)
		for d := time.Duration(0); d < hoursOfPictures*time.Hour; d += 30 * time.Minute {
			tick := midnight.Add(d)
			half := p.rule != "" && tick.After(otherRule)
			if (tick.Minute() == 30) != half || !tick.After(o.Since) || tick.After(o.Until) {
				continue
			}
			if other, has := all[d]; has {
				t.Errorf("%s: the tick of %v is %s and %s", p.label, clockTime(d), other, o.Outcome)
			}
			all[d] = o.Outcome
			n++
		}
		if n != o.Ticks {
			t.Errorf("%s: %d ticks are %s, and %d are counted", p.label, n, o.Outcome, o.Ticks)
		}
	}
	return all
}

// Sizes of a picture.
const (
	labels = 270
	hour   = 78
	lane   = 46
	top    = 34
)

const headOfPictures = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" ` +
	`font-family="sans-serif" font-size="12">
<style>
.ground { fill: #ffffff } .ink { fill: #1f2328 } .dim { fill: #59636e } .grid { stroke: #d1d9e0 } .line { stroke: #818b98; fill: none }
.away { fill: #eaeef2 } .run { fill: #2da44e } .broken { fill: #fa4549 }
.succeeded { fill: #1a7f37 } .failed { fill: #cf222e } .missed { fill: #bf8700 } .skipped { fill: #8250df } .canceled { fill: #6e7781 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #f0f6fc } .dim { fill: #9198a1 } .grid { stroke: #3d444d } .line { stroke: #9198a1; fill: none }
.away { fill: #212830 } .run { fill: #238636 } .broken { fill: #da3633 }
.succeeded { fill: #3fb950 } .failed { fill: #f85149 } .missed { fill: #d29922 } .skipped { fill: #ab7df8 } .canceled { fill: #9198a1 }
}
</style>
<rect class="ground" width="%[1]d" height="%[2]d"/>
`

// xOf leaves out what pauses between attempts are longer at random.
func xOf(d time.Duration) float64 { return labels + 20 + hour*d.Truncate(5*time.Minute).Hours() }

func clockTime(d time.Duration) string { return midnight.Add(d).Format("15:04") }

func (p picture) draw(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	bottom := top + lane*len(p.scenes)
	fmt.Fprintf(&b, headOfPictures, labels+40+hour*hoursOfPictures, bottom+46)
	if p.what != "" {
		from, until := xOf(p.away[0]), xOf(p.away[1])
		fmt.Fprintf(&b, `<rect class="away" x="%.1f" y="%d" width="%.1f" height="%d"/>`+"\n",
			from, top-4, until-from, bottom-top+8)
		fmt.Fprintf(&b, `<text class="dim" x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			(from+until)/2, bottom+18, p.what)
	}
	for h := range hoursOfPictures + 1 {
		x := xOf(time.Duration(h) * time.Hour)
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, x, x, top-4, bottom+4)
		fmt.Fprintf(&b, `<text class="dim" x="%.1f" y="%d" text-anchor="middle">%d:00</text>`+"\n", x, top-12, h)
	}
	shown := make(map[Outcome]bool)
	for i, s := range p.scenes {
		s.play(t, p).draw(t, &b, top+lane*i, shown)
	}
	legend(&b, bottom+32, shown)
	return b.String() + "</svg>\n"
}

// legend explains the marks of ticks, and the bars of attempts.
func legend(b *strings.Builder, y int, shown map[Outcome]bool) {
	fails := strings.Contains(b.String(), `class="broken"`)
	x := float64(labels + 20)
	next := func(mark, text string) {
		b.WriteString(mark)
		fmt.Fprintf(b, `<text class="ink" x="%.1f" y="%d">%s</text>`+"\n", x+10, y+4, text)
		x += 96
	}
	bar := func(class, text string) {
		next(fmt.Sprintf(`<rect class="%s" x="%.1f" y="%d" width="13" height="12" rx="3"/>`, class, x-6, y-6), text)
	}
	for _, o := range outcomes {
		if shown[o] {
			next(markOf(o, x, float64(y), "a tick"), string(o))
		}
	}
	bar("run", "an attempt")
	if fails {
		bar("broken", "an attempt that fails")
	}
}

// draw draws the lane of one scene: a mark for each tick, and below it a bar for each run.
func (p *play) draw(t *testing.T, b *strings.Builder, y int, shown map[Outcome]bool) {
	t.Helper()
	fmt.Fprintf(b, `<text class="ink" x="12" y="%d">%s</text>`+"\n", y+26, html.EscapeString(p.label))
	for _, r := range p.runs {
		class, what := "run", "runs"
		if r.failed {
			class, what = "broken", "fails"
		}
		from, until := xOf(r.from), xOf(r.until)
		fmt.Fprintf(b, `<path class="line" d="M%.1f %d L%.1f %d"/>`, xOf(r.tick), y+14, from, y+26)
		fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="12" rx="3">`,
			class, from, y+26, until-from)
		fmt.Fprintf(b, "<title>the tick of %s %s</title></rect>\n", clockTime(r.tick), what)
	}
	ticks := p.ticks(t)
	for d := time.Duration(0); d < hoursOfPictures*time.Hour; d += 30 * time.Minute {
		if o, has := ticks[d]; has {
			shown[o] = true
			b.WriteString(markOf(o, xOf(d), float64(y+12), clockTime(d)))
		}
	}
}

// markOf is the mark of an outcome, which has a form of its own, too.
func markOf(o Outcome, x, y float64, what string) string {
	form := map[Outcome]string{
		OutcomeSucceeded: `<circle class="%s" cx="%.1f" cy="%.1f" r="5">`,
		OutcomeFailed:    `<path class="%s" d="M%.1f %.1f m0 -6 l6 6 l-6 6 l-6 -6 z">`,
		OutcomeMissed:    `<path class="%s" d="M%.1f %.1f m-5 -5 h10 v10 h-10 z m2.5 2.5 v5 h5 v-5 z">`,
		OutcomeSkipped:   `<path class="%s" d="M%.1f %.1f m0 -6 l6 11 h-12 z">`,
		OutcomeCanceled:  `<path class="%s" d="M%.1f %.1f m-6 -2 h12 v4 h-12 z">`,
	}[o]
	element, _, _ := strings.Cut(form[1:], " ")
	return fmt.Sprintf(form+"<title>%s %s</title></%s>\n", o, x, y, what, o, element)
}

package main

import (
	"bufio"
	"flag"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

var write = flag.Bool("write", false, "run the program in two processes, and write "+picture+" again")

const picture = "../../docs/first.svg"

// The picture shows a run of this program in two terminals: the second process starts, the first is
// killed, and the second takes over. It shows the texts that the program prints.
func TestPictureShowsWhatTheProgramPrints(t *testing.T) {
	if *write {
		testkit.OK(t, os.WriteFile(picture, []byte(draw(record(t))), 0o644))
	}
	page := string(testkit.Must(os.ReadFile(picture))(t))
	program := string(testkit.Must(os.ReadFile("main.go"))(t))
	owners := make(map[string]string) // by partition
	shown := regexp.MustCompile(`class="(one|two) [^>]*>\d\d:\d\d:\d\d (I [a-z ]+) (\d)<`)
	for _, m := range shown.FindAllStringSubmatch(page, -1) {
		terminal, text, partition := m[1], m[2], m[3]
		if !strings.Contains(program, `log.Printf("`+text+` %d", p.Number)`) {
			t.Errorf("the program does not print %q", text)
		}
		switch text {
		case "I own partition":
			owners[partition] = terminal
		case "I give up partition":
			delete(owners, partition)
		}
	}
	appear := regexp.MustCompile(`opacity: 0 } ([\d.]+)%`).FindAllStringSubmatch(page, -1)
	end := fmt.Sprintf("%.1f", 100*played/repeated)
	if len(appear) == 0 || appear[0][1] != "0.0" || appear[len(appear)-1][1] != end {
		t.Errorf("the lines do not appear over the whole time: %v", appear)
	}
	for number := range 4 {
		if owner := owners[fmt.Sprint(number)]; owner != "two" {
			t.Errorf("at the end partition %d is with terminal %q, and not with the second one", number, owner)
		}
	}
}

// A line is what a terminal shows from a time on.
type line struct {
	terminal string
	at       time.Duration
	text     string
}

// A recorder collects the lines of two terminals.
type recorder struct {
	began time.Time
	more  chan struct{} // gets a value after each line

	mu    sync.Mutex // guards lines
	lines []line
}

func (r *recorder) add(terminal, text string) {
	r.mu.Lock()
	r.lines = append(r.lines, line{terminal, time.Since(r.began), text})
	r.mu.Unlock()
	r.more <- struct{}{}
}

var logged = regexp.MustCompile(`(\d\d:\d\d:\d\d) (I (?:own|give up) partition \d)`)

// start starts the program, and adds the lines that the program itself prints.
func (r *recorder) start(t *testing.T, program, terminal, url string) *exec.Cmd {
	t.Helper()
	r.add(terminal, "$ ./first")
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	output := testkit.Must(cmd.StderrPipe())(t)
	testkit.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go func() {
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			if m := logged.FindStringSubmatch(scanner.Text()); m != nil {
				r.add(terminal, m[1]+" "+m[2])
			}
		}
	}()
	return cmd
}

// until waits until there are so many lines.
func (r *recorder) until(t *testing.T, n int) {
	t.Helper()
	for range n {
		testkit.Receive(t, "the program prints a line", r.more)
	}
}

// record runs the program twice: 4 partitions move to the second process, in two steps.
func record(t *testing.T) []line {
	t.Helper()
	program := filepath.Join(t.TempDir(), "first")
	build := exec.Command("go", "build", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	url := pgtest.MigratedDatabase(t)
	r := &recorder{began: time.Now(), more: make(chan struct{}, 100)}
	first := r.start(t, program, "one", url)
	r.until(t, 1+4)
	pause := func() { <-time.After(1500 * time.Millisecond) } // for the reader of the picture
	pause()
	r.start(t, program, "two", url)
	r.until(t, 1+2+2)
	pause()
	testkit.OK(t, first.Process.Kill())
	r.add("one", "Killed")
	r.until(t, 1+2)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines
}

// The picture repeats a run in 8 seconds, and then shows its end for 3 seconds.
const played, repeated = 8.0, 11.0

const frame = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 230" width="860" height="230"` +
	` font-family="ui-monospace, monospace" font-size="14">
<title>Two terminals: the second process gets two partitions, and takes over the others after the first is killed</title>
<style>
rect { fill: #161b22 } text { fill: #e6edf3 } .name { fill: #9198a1 } .killed { fill: #ff7b72 }
@media (prefers-reduced-motion: no-preference) {
%s}
</style>
<rect width="425" height="230" rx="8"/><rect x="435" width="425" height="230" rx="8"/>
<text class="name" x="16" y="26">terminal 1</text><text class="name" x="451" y="26">terminal 2</text>
%s</svg>
`

// draw lets each line appear when it was printed, in proportion.
func draw(lines []line) string {
	var style, text strings.Builder
	x, y := map[string]int{"one": 16, "two": 451}, map[string]int{"one": 52, "two": 52}
	began, whole := lines[0].at, lines[len(lines)-1].at-lines[0].at
	for i, l := range lines {
		part := float64(l.at-began) / float64(whole)
		percent := 100 * part * played / repeated
		fmt.Fprintf(&style, ".l%d { animation: l%d %.0fs step-end infinite }", i, i, repeated)
		fmt.Fprintf(&style, " @keyframes l%d { 0%% { opacity: 0 } %.1f%% { opacity: 1 } }\n", i, percent)
		class := ""
		if l.text == "Killed" {
			class = " killed"
		}
		fmt.Fprintf(&text, `<text class="%s l%d%s" x="%d" y="%d">%s</text>`+"\n",
			l.terminal, i, class, x[l.terminal], y[l.terminal], html.EscapeString(l.text))
		y[l.terminal] += 21
	}
	return fmt.Sprintf(frame, style.String(), text.String())
}

func TestMain(m *testing.M) { testkit.Main(m) }

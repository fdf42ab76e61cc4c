package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

var write = flag.Bool("write", false, "write the pictures of docs/dashboard.md anew")

const patience = testkit.Patience

// aTest bounds what one tab does in a test. A busy machine draws 150 screens in more than two minutes.
const aTest = 3 * patience

const (
	workerVariable = "PGLEASES_DASHBOARD_WORKER" // the client ID of a process that a test starts, from this binary
	leaseVariable  = "PGLEASES_DASHBOARD_LEASE"
	urlVariable    = "PGLEASES_DASHBOARD_URL"
)

func TestMain(m *testing.M) {
	if id := os.Getenv(workerVariable); id != "" {
		fmt.Fprintln(os.Stderr, work(id, os.Getenv(leaseVariable), os.Getenv(urlVariable)))
		os.Exit(1)
	}
	flag.Parse()
	code := m.Run()
	endBrowser()
	os.Exit(code)
}

// work is a process of the fleet, until it is killed, or its standard input ends with the test's process.
func work(id, lease, url string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	client, err := pgleases.Open(ctx, url, pgleases.WithClientID(id), pgleases.WithTTL(time.Second))
	if err != nil {
		return err
	}
	l, err := client.Lease(ctx, lease, 64, pgleases.WithHandoffDelay(0))
	if err != nil {
		return err
	}
	return l.Run(ctx, func(ctx context.Context, _ pgleases.Partition) error {
		<-ctx.Done()
		return nil
	})
}

// startWorker starts a process, and returns what kills it.
func startWorker(t *testing.T, id, lease, url string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVariable+"="+id, leaseVariable+"="+lease, urlVariable+"="+url)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	testkit.OK(t, err)
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = stdin.Close()
	})
	t.Cleanup(kill)
	return kill
}

func openClient(t *testing.T, pool *pgxpool.Pool, id string) *pgleases.Client {
	t.Helper()
	return clients.New(t, pool, pgleases.WithClientID(id), pgleases.WithMetadata(map[string]string{"of": id}))
}

func join(t *testing.T, c *pgleases.Client, name string, partitions int, opts ...pgleases.LeaseOption) *pgleases.Lease {
	t.Helper()
	return testkit.Must(c.Lease(t.Context(), name, partitions, append(opts, pgleases.WithHandoffDelay(0))...))(t)
}

// newPool returns a pool whose statements go through any pooler.
func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	return testkit.Pool(t, url, new(testkit.Wire).Carry)
}

func must(h http.Handler, err error) http.Handler {
	if err != nil {
		panic(err)
	}
	return h
}

// serve serves the application, and returns its URL.
func serve(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return newServer(t, must(pages(pool, newLogin("secret", "look")))).URL
}

func newServer(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

var browser = sync.OnceValues(func() (context.Context, func()) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.DisableGPU, chromedp.WSURLReadTimeout(patience))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root with it
	}
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocator, chromedp.WithErrorf(func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if !strings.Contains(text, "EventTopLayerElementsUpdated") { // a dialog, which it does not know
			fmt.Fprintln(os.Stderr, text)
		}
	}))
	if err := chromedp.Run(ctx); err != nil {
		const need = "start Chromium, which these tests need (Debian, Ubuntu: apt-get install chromium):"
		fmt.Fprintln(os.Stderr, need, err)
		os.Exit(1)
	}
	return ctx, func() {
		_ = chromedp.Cancel(ctx) // waits for its end
		end()
		endAllocator()
	}
})

var started atomic.Bool

func endBrowser() {
	if started.Load() {
		_, end := browser()
		end()
	}
}

// A tab of the browser, in a profile of its own. What its page says is wrong fails the test.
type tab struct {
	*testing.T
	ctx context.Context
}

func newTab(t *testing.T, width, height int64) tab {
	t.Helper()
	started.Store(true)
	parent, _ := browser()
	id := testkit.Must(newWindow(parent))(t)
	ctx, end := chromedp.NewContext(parent, chromedp.WithTargetID(id))
	ctx, cancel := context.WithTimeout(ctx, aTest)
	t.Cleanup(func() {
		cancel()
		end()
	})
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page has thrown: %v", e.ExceptionDetails)
		case *log.EventEntryAdded:
			if e.Entry.Source == log.SourceSecurity || strings.Contains(e.Entry.Text, "Content Security Policy") {
				t.Errorf("the page has broken its policy: %s", e.Entry.Text)
			}
		}
	})
	x := tab{t, ctx}
	x.run(log.Enable(), chromedp.EmulateViewport(width, height))
	return x
}

// newWindow opens a window in a profile with cookies of its own. A tab behind another one would be hidden, and its page look at nothing.
func newWindow(ctx context.Context) (target.ID, error) {
	to := cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
	profile, err := target.CreateBrowserContext().WithDisposeOnDetach(true).Do(to)
	if err != nil {
		return "", err
	}
	return target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(to)
}

func (x tab) run(actions ...chromedp.Action) {
	x.Helper()
	testkit.OK(x, chromedp.Run(x.ctx, actions...))
}

// eval returns the value of an expression.
func eval[T any](x tab, expression string) (value T) {
	x.Helper()
	x.run(chromedp.Evaluate(expression, &value))
	return value
}

// awaited has an expression's promise be kept first.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

// textOf is an expression for the text of the first element that a selector finds.
func textOf(selector string) string {
	return fmt.Sprintf(`document.querySelector(%q).textContent`, selector)
}

// count is an expression for the number of elements that a selector finds.
func count(selector string) string {
	return fmt.Sprintf(`document.querySelectorAll(%q).length`, selector)
}

// matches says that a text matches a pattern.
func matches(text, pattern string) string { return `/` + pattern + `/.test(` + text + `)` }

// some says that the text of one of the elements that a selector finds matches a pattern.
func some(selector, pattern string) string {
	return rows(selector) + `.some(text => ` + matches("text", pattern) + `)`
}

// every says that the texts of all elements that a selector finds match a pattern.
func every(selector, pattern string) string {
	return rows(selector) + `.every(text => ` + matches("text", pattern) + `)`
}

// click clicks on the first element that a selector finds.
func (x tab) click(selector string) {
	x.Helper()
	x.clickOn(fmt.Sprintf(`document.querySelector(%q)`, selector))
}

// clickOn clicks on the element that an expression returns.
func (x tab) clickOn(element string) {
	x.Helper()
	eval[bool](x, element+`.click() || true`)
}

// choose gives a field a value, as one does who types.
func (x tab) choose(field, value string) {
	x.Helper()
	eval[bool](x, fmt.Sprintf(`(e => {
		e.value = %q;
		return e.dispatchEvent(new Event("input", {bubbles: true}));
	})(document.querySelector(%q))`, value, field))
}

// until waits until expressions are true in the page, all at once. One page may follow another meanwhile.
func (x tab) until(expressions ...string) {
	x.Helper()
	expression := "(" + strings.Join(expressions, ") && (") + ")"
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		var is bool
		err := chromedp.Run(x.ctx, chromedp.Evaluate(expression, &is))
		if err == nil && is {
			return
		}
		select {
		case <-look.C:
		case <-x.ctx.Done():
			var text string
			late, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), 10*time.Second)
			defer cancel()
			_ = chromedp.Run(late, chromedp.Evaluate("document.body.innerText", &text))
			x.Fatalf("never so: %s: %v\n%s", expression, err, text)
		}
	}
}

// signIn goes through the login to an address of the dashboard.
func (x tab) signIn(url, address string) {
	x.Helper()
	x.run(chromedp.Navigate(url+"/login"), chromedp.SendKeys("input", "secret\r", chromedp.ByQuery))
	x.until(`document.querySelector("a")?.href.endsWith("/ops/leases/")`)
	// Not chromedp.Click, whose node may be of the page before.
	x.click("a")
	x.until(isLive)
	if address != "" {
		x.show(address)
	}
}

const (
	isLive    = `document.querySelector("#state-text")?.textContent === "Live"`
	isStale   = `/^Stale since \d\d:\d\d:\d\d$/.test(document.querySelector("#state-text").textContent)`
	hasBanner = `!document.querySelector("#banner").hidden`
	noBanner  = `document.querySelector("#banner").hidden`
)

// bannerSays waits until a banner is shown whose text matches a pattern.
func (x tab) bannerSays(pattern string) {
	x.Helper()
	x.until(hasBanner, matches(textOf("#banner-text"), pattern))
}

// show opens an address anew, as somebody does who was sent it.
func (x tab) show(address string) {
	x.Helper()
	x.run(chromedp.Navigate(eval[string](x, "location.origin") + "/ops/leases/" + address))
	x.until(isLive)
}

// turnTo leads to a screen by its link, without loading the page anew.
func (x tab) turnTo(screen string) {
	x.Helper()
	x.click(fmt.Sprintf(`nav a[data-screen=%q]`, screen))
	x.until(fmt.Sprintf(`document.querySelector("nav a[aria-current]")?.dataset.screen === %q`, screen))
}

func database(t *testing.T) (url string, pool *pgxpool.Pool) {
	t.Helper()
	url = pgtest.MigratedDatabase(t)
	return url, newPool(t, url)
}

// Package dashboard shows owners, live clients, waits and faults in a browser, and updates them as
// they change. It is an http.Handler for an application's own server. Operators can also make
// changes; for other users it never writes to the database.
//
//	leases, err := dashboard.Handler(pool, dashboard.Options{Authorize: operatorsOnly})
//	...
//	mux.Handle("/ops/leases/", http.StripPrefix("/ops/leases", leases))
//
// The number of viewers does not change the number of queries: see poll.go for the present and
// shared.go for the rest. Processes choose the names of clients, leases and locks, so the page shows
// names as text, with escapes for invisible characters.
package dashboard

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/wrap"
)

// Access is what a user may do.
type Access int

// The kinds of access. The zero value is AccessDenied.
const (
	AccessDenied   Access = iota // no access: 403
	AccessReadOnly               // see all
	AccessOperator               // see all, and make changes: all verbs of docs/operations.md
)

// Options configure Handler. With the zero value, everyone who reaches the handler has
// AccessReadOnly.
type Options struct {
	// Authorize decides about each request. It returns the access and the name of the user, which the
	// page shows; with an empty name, it shows no name. Changes are recorded with that name as the
	// actor. An open page polls each second, so Authorize should be fast. If a session can end,
	// Authorize must look it up each time. It is called concurrently. nil: all users have
	// AccessReadOnly.
	Authorize func(*http.Request) (access Access, actor string)

	// Title is the title of the page, such as the name of the environment; default "Leases".
	Title string

	// Schema is the schema of the tables, as pgleases.WithSchema sets it for clients; default
	// "pgleases".
	Schema string
}

const (
	defaultTitle = "Leases"

	// policy allows only code, styles and requests of the handler's own files, not of the page
	// itself.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

//go:embed static
var static embed.FS

// kinds are the kinds of the files that the browser loads in addition to the page.
var kinds = map[string]string{
	".js":  "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// screens are the first parts of the addresses of the page. The rest, which names the thing that is
// shown, is read in the browser.
var screens = []string{"", "leases", "clients", "schedules", "jobs", "consumers", "locks", "events"}

var markup = template.Must(template.ParseFS(static, "static/page.html"))

// modules are the scripts, which the page loads at once and not one after the other. Only operators
// get the dialogs.
var modules, dialogs = scripts()

func scripts() (all, dialogs []string) {
	files, err := static.ReadDir("static")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, file := range files {
		name := file.Name()
		switch {
		case path.Ext(name) != ".js":
		case strings.HasPrefix(name, "operate"):
			dialogs = append(dialogs, name)
		default:
			all = append(all, name)
		}
	}
	return all, dialogs
}

// Handler returns the dashboard of a schema of the pool's database. Mount it at any path that ends
// in a slash, with http.StripPrefix. All its URLs are relative, so a proxy in front may change the
// path. If a viewer does not read an answer within 10 s, the handler closes the connection. For
// that, the server's ResponseWriters must support deadlines, as those of net/http do. Middleware
// that wraps them needs a method Unwrap.
//
// The handler borrows the pool and never closes it, and queries the database only while a page is
// open. It needs the rights that pgleases grants ROLE --for=reader prints, and for operators those
// of --for=operator. Handler returns an error only for a bad option.
func Handler(pool *pgxpool.Pool, o Options) (http.Handler, error) {
	options := []admin.Option{admin.WithPastLimit(defaultTimes.past)}
	if o.Schema != "" {
		options = append(options, admin.WithSchema(o.Schema))
	}
	a, err := admin.New(pool, options...)
	if err != nil {
		return nil, wrap.Errorf("dashboard: %w", err)
	}
	o.Title = cmp.Or(o.Title, defaultTitle)
	if o.Authorize == nil {
		o.Authorize = func(*http.Request) (Access, string) { return AccessReadOnly, "" }
	}
	return newHandler(a, o, defaultTimes).guarded(), nil
}

// guarded refuses changes from other origins before the handler reads them.
func (h *handler) guarded() http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(h.foreign))
	return withPolicy(h.withLimit(origins.Handler(h.sameScheme(h))))
}

// withPolicy forbids browsers what no answer needs, also for an answer that refuses the request.
func withPolicy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Frame-Options", "DENY") // for browsers that do not know frame-ancestors
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// withLimit gives the body of a request a limit, also if the request is refused before it is read:
// the server waits for the rest of it before the next request of the connection.
func (h *handler) withLimit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// If it cannot be set, the server's own limit holds.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.times.write))
		}
		next.ServeHTTP(w, r)
	})
}

// sameScheme refuses a request of a page that has our host and another scheme, which is another
// origin. CrossOriginProtection compares the hosts only, if a browser sends no Sec-Fetch-Site. All
// current browsers send it with HTTPS, also to a proxy, so such a page of HTTPS asks over HTTP.
func (h *handler) sameScheme(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own := "http://"
		if r.TLS != nil {
			own = "https://"
		}
		origin := r.Header.Get("Origin")
		safe := r.Method == http.MethodGet || r.Method == http.MethodHead
		checked := r.Header.Get("Sec-Fetch-Site") != ""
		same := origin == "" || strings.HasPrefix(strings.ToLower(origin), own)
		if !safe && !checked && !same {
			h.foreign(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type handler struct {
	options Options
	hub     *hub
	times   times

	looking, operating chan struct{} // semaphores for one question at a time

	mu      sync.Mutex          // guards the fields below
	answers map[string]answered // by query: see shared

	outcomes []outcome // of the latest changes
}

func newHandler(a *admin.Admin, o Options, t times) *handler {
	return &handler{
		options: o, hub: newHub(a, t), times: t, looking: make(chan struct{}, 1), operating: make(chan struct{}, 1),
		answers: make(map[string]answered),
	}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	access, actor := h.options.Authorize(r)
	if access < AccessReadOnly {
		http.Error(w, "You may not see this.", http.StatusForbidden)
		return
	}
	// Links never escape a slash, so a proxy that decodes the path does not change the address.
	first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	ask, isChange := changes[rest]
	if first == "data" && isChange {
		h.operate(w, r, access, actor, ask)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "This is read-only: it takes GET and HEAD.", http.StatusMethodNotAllowed)
		return
	}
	kind := kinds[path.Ext(rest)]
	_, notFound := fs.Stat(static, "static/"+rest)
	_, isLook := looks[rest]
	switch {
	case len(r.URL.EscapedPath()) > maxText:
		http.Error(w, fmt.Sprintf("The address is longer than %d bytes.", maxText), http.StatusRequestURITooLong)
	case first == "data" && (isLook || rest == "poll"):
		h.look(w, r, actor, rest)
	case first == "static" && kind != "" && notFound == nil:
		w.Header().Set("Content-Type", kind)
		http.ServeFileFS(w, r, static, "static/"+rest)
	case strings.HasPrefix(r.URL.Path, "/") && slices.Contains(screens, first):
		h.page(w, access, actor, strings.Count(r.URL.EscapedPath(), "/")-1)
	default:
		text := fmt.Sprintf("The dashboard has no page %q. "+
			"If this is its own path, mount it with http.StripPrefix, at a path that ends in a slash.", r.URL.Path)
		http.Error(w, text, http.StatusNotFound)
	}
}

// page sends the page, which is the same for all addresses. depth is the number of folders of the
// address, from which relative URLs lead back to the dashboard's own path.
func (h *handler) page(w http.ResponseWriter, access Access, actor string, depth int) {
	scripts := modules
	if access == AccessOperator {
		scripts = slices.Concat(modules, dialogs)
	}
	var text bytes.Buffer
	err := markup.Execute(&text, map[string]any{
		"Title":    h.options.Title,
		"Actor":    actor,
		"Operator": access == AccessOperator,
		"Root":     strings.Repeat("../", depth),
		"Scripts":  scripts,
		"Causes":   admin.Causes,
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // an error is that the browser has gone
}

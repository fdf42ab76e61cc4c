// Package dashboard shows in a browser who owns what, who is alive, what waits and what is wrong,
// as it changes. It is an http.Handler for an application's own server, made of package admin and
// the standard library. Operators make changes from there too; for all others it writes nothing to
// the database.
//
//	a, err := admin.New(pool)
//	...
//	leases, err := dashboard.Handler(a, dashboard.Options{Authorize: operatorsOnly})
//	...
//	mux.Handle("/ops/leases/", http.StripPrefix("/ops/leases", leases))
//
// The database is asked the same however many look: see poll.go. Names of clients, leases and locks
// are what processes choose, so the page shows them as text, and what text can hide as escapes.
package dashboard

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"

	"github.com/pgleases/pgleases/admin"
)

// Access is what somebody may do.
type Access int

// The kinds of access. The zero value is none.
const (
	Denied   Access = iota // nothing: 403
	ReadOnly               // see all
	Operator               // see all, and have it changed: all verbs of package admin
)

// Options are those of Handler. The zero value lets everybody look who reaches the handler.
type Options struct {
	// Authorize decides about each request, and says who it is, for the page to show; empty: it shows
	// nothing. What somebody has changed is written with that name as the actor. An open page polls
	// each second, so it should be quick, and has to look up a session that can end each time. It is
	// called concurrently. nil: everybody has ReadOnly.
	Authorize func(*http.Request) (access Access, actor string)

	// Title stands at the top of the page, to tell one environment from another; default "Leases".
	Title string
}

const (
	defaultTitle = "Leases"

	// policy allows no code, style or target but the handler's own files, and none in the page itself.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

//go:embed static
var static embed.FS

// files are what the browser loads besides the page.
var files = map[string]string{"dashboard.js": "text/javascript; charset=utf-8", "operate.js": "text/javascript; charset=utf-8", "schedules.js": "text/javascript; charset=utf-8",
	"dashboard.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}

var markup = template.Must(template.ParseFS(static, "static/page.html"))

// Handler returns the dashboard of what a sees. Mount it at any path that ends in a slash, with
// http.StripPrefix; all its URLs are relative, so that a proxy in front may add to the path or take
// from it. A viewer that does not take an answer within 10 s is given up if the server's
// ResponseWriters can have deadlines, as those of net/http: what wraps them needs a method Unwrap.
//
// It asks the database only while somebody looks. An error is that of a bad option.
func Handler(a *admin.Admin, o Options) (http.Handler, error) {
	if a == nil {
		return nil, errors.New("dashboard: admin is nil")
	}
	o.Title = cmp.Or(o.Title, defaultTitle)
	if o.Authorize == nil {
		o.Authorize = func(*http.Request) (Access, string) { return ReadOnly, "" }
	}
	// What changes something is refused by where it comes from before it is looked at.
	h := newHandler(a, o, defaultTimes)
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(h.foreign))
	return origins.Handler(h), nil
}

type handler struct {
	options Options
	hub     *hub
	times   times

	looking, operating chan struct{} // have room for the one question that is being answered

	mu    sync.Mutex      // guards what follows
	pages map[string]page // by query: what was answered a moment ago

	outcomes []outcome // of the latest changes
}

func newHandler(a *admin.Admin, o Options, t times) *handler {
	return &handler{
		options: o, hub: newHub(a, t), times: t, looking: make(chan struct{}, 1), operating: make(chan struct{}, 1),
		pages: make(map[string]page),
	}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Frame-Options", "DENY") // for browsers that do not know frame-ancestors
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	access, actor := h.options.Authorize(r)
	if access < ReadOnly {
		http.Error(w, "You may not see this.", http.StatusForbidden)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if ask, is := changes[name]; is {
		h.operate(w, r, access, actor, ask)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "This only shows: it takes GET and HEAD.", http.StatusMethodNotAllowed)
		return
	}
	kind, isFile := files[name]
	ask, isLook := looks[name]
	switch {
	case r.URL.Path == "/":
		h.page(w, access, actor)
	case name == "poll":
		h.poll(w, r)
	case isLook:
		h.answer(w, r, actor, ask, h.looking)
	case isFile:
		head.Set("Content-Type", kind)
		http.ServeFileFS(w, r, static, "static/"+name)
	default:
		http.Error(w, fmt.Sprintf(
			"The dashboard has no page %q. Where this is its own path, mount it with http.StripPrefix, at a path that ends in a slash.", r.URL.Path,
		), http.StatusNotFound)
	}
}

func (h *handler) page(w http.ResponseWriter, access Access, actor string) {
	var text bytes.Buffer
	if err := markup.Execute(&text, map[string]any{"Title": h.options.Title, "Actor": actor, "Operator": access == Operator}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // the browser has gone
}

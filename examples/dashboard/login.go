package main

import (
	"crypto/rand"
	"crypto/subtle"
	"html/template"
	"net/http"
	"sync"
	"time"
)

const (
	cookie  = "session"
	session = 8 * time.Hour
)

// A login knows the passwords of operators and of viewers, and who has given one. A real
// application has its own.
type login struct {
	passwords map[string]string // by user
	mu        sync.Mutex        // guards sessions
	sessions  map[string]signed // by secret
}

// signed is a user who is signed in, and until when.
type signed struct {
	user  string
	until time.Time
}

// newLogin returns a login. Without a password there are no viewers.
func newLogin(operators, viewers string) *login {
	l := &login{passwords: map[string]string{"operator": operators}, sessions: make(map[string]signed)}
	if viewers != "" {
		l.passwords["viewer"] = viewers
	}
	return l
}

// user returns who sent a request: operator, viewer, or empty if it is not signed in.
func (l *login) user(r *http.Request) string {
	c, err := r.Cookie(cookie)
	if err != nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().After(l.sessions[c.Value].until) {
		delete(l.sessions, c.Value)
	}
	return l.sessions[c.Value].user
}

func (l *login) enter(w http.ResponseWriter, r *http.Request) {
	user := ""
	for name, password := range l.passwords {
		if subtle.ConstantTimeCompare([]byte(r.PostFormValue("password")), []byte(password)) == 1 {
			user = name
		}
	}
	if user == "" {
		w.WriteHeader(http.StatusForbidden)
		show(w, form, "That is not the password.")
		return
	}
	secret := rand.Text()
	l.mu.Lock()
	l.sessions[secret] = signed{user, time.Now().Add(session)}
	l.mu.Unlock()
	http.SetCookie(w, &http.Cookie{
		Name:     cookie,
		Value:    secret,
		Path:     "/",
		HttpOnly: true,
		Secure:   r.TLS != nil,
		SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (l *login) leave(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(cookie); err == nil {
		l.mu.Lock()
		delete(l.sessions, c.Value)
		l.mu.Unlock()
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

func show(w http.ResponseWriter, page *template.Template, content string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, content) // the browser has gone
}

const homePage = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Orders</title>
<h1>Orders</h1>
{{if .}}<p>You are {{.}}. See the <a href="ops/leases/">leases</a>.</p><form method="post" action="logout"><button>Sign out</button></form>
{{else}}<p><a href="login">Sign in</a></p>{{end}}`

const formPage = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Sign in</title>
<h1>Sign in</h1>
{{with .}}<p role="alert">{{.}}</p>{{end}}
<form method="post" action="login"><label>Password <input name="password" type="password" autocomplete="current-password" autofocus></label> <button>Sign in</button></form>`

var (
	home = template.Must(template.New("home").Parse(homePage))
	form = template.Must(template.New("login").Parse(formPage))
)

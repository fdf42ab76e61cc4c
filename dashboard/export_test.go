package dashboard

import (
	"net/http"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// HandlerWith is Handler with other times, without the protection against other origins.
func HandlerWith(a *admin.Admin, o Options, write, authorize time.Duration) http.Handler {
	return newHandler(a, o, times{write, authorize})
}

// SetAnswers has the locks and an examination take no longer than d.
func SetAnswers(h http.Handler, d time.Duration) { h.(*handler).hub.answers = d }

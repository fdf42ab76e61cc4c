package dashboard

import (
	"net/http"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// HandlerWith is Handler with other times, without the protection against other origins.
func HandlerWith(a *admin.Admin, o Options, look, answers, write time.Duration) http.Handler {
	return newHandler(a, o, times{look, answers, write})
}

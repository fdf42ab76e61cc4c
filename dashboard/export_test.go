package dashboard

import (
	"net/http"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// HandlerWith is like Handler, with other times and without the check of origins.
func HandlerWith(a *admin.Admin, o Options, look, answers, write time.Duration) http.Handler {
	return newHandler(a, o, times{look, answers, write})
}

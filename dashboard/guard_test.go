package dashboard_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A browser that sends no Sec-Fetch-Site sends the origin. A page of the same host with another
// scheme is of another origin.
func TestOriginOfAnotherSchemeIsForeign(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), asOperator)
	for _, test := range []struct {
		origin, site string
		tls          bool
		foreign      bool
	}{
		{"http://example.com", "", false, false},
		{"https://example.com", "", false, true},
		{"https://example.com", "same-origin", false, false}, // behind a proxy that has HTTPS
		{"https://example.com", "", true, false},
		{"http://example.com", "", true, true},
		{"", "", false, false}, // no browser
	} {
		r := httptest.NewRequest(http.MethodPost, "/data/apply", strings.NewReader("{"))
		r.Header.Set("Content-Type", "application/json")
		for name, value := range map[string]string{"Origin": test.origin, "Sec-Fetch-Site": test.site} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		if test.tls {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); test.foreign != (w.Code == http.StatusForbidden) {
			t.Errorf("%+v: status %d: %s", test, w.Code, w.Body)
		}
	}
}

// The connection of a request whose body does not come is closed, whatever the answer is.
func TestRequestWithoutItsBodyIsClosed(t *testing.T) {
	t.Parallel()
	h := dashboard.HandlerWith(idle(t), asViewer, time.Second, time.Second, 100*time.Millisecond)
	server := httptest.NewServer(h)
	defer server.Close()
	for _, request := range []string{"GET /nowhere", "GET /", "POST /data/apply", "POST /", "PUT /x"} {
		for _, header := range []string{"", "Sec-Fetch-Site: cross-site\r\n"} {
			conn := testkit.Must(net.Dial("tcp", server.Listener.Addr().String()))(t)
			defer conn.Close()
			const rest = " HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
			_ = testkit.Must(io.WriteString(conn, request+rest+header+"\r\n"))(t)
			testkit.OK(t, conn.SetReadDeadline(time.Now().Add(testkit.Patience)))
			if _, err := io.ReadAll(conn); err != nil {
				t.Errorf("%s %q: the connection stays open: %v", request, header, err)
			}
		}
	}
}

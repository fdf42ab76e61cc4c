package testkit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/pgtest"
)

// EncodedDatabase returns the URL of an empty database with another encoding than UTF-8. It is
// reached as its owner, and not through a pooler.
func EncodedDatabase(t testing.TB, encoding string) string {
	t.Helper()
	address := Must(url.Parse(pgtest.OwnerURL(pgtest.EmptyDatabase(t))))(t)
	maker := Must(pgx.Connect(t.Context(), address.String()))(t)
	name := strings.ToLower("encoded_" + rand.Text())
	create := "CREATE DATABASE %s ENCODING '%s' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
	Must(maker.Exec(t.Context(), fmt.Sprintf(create, name, encoding)))(t)
	t.Cleanup(func() {
		_, err := maker.Exec(context.Background(), fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name))
		OK(t, errors.Join(err, maker.Close(context.Background())))
	})
	address.Path = "/" + name
	query := address.Query()
	query.Set("client_encoding", "UTF8")
	address.RawQuery = query.Encode()
	return address.String()
}

package pgserver

import (
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
)

// environmentURL returns the connection string of a foreign server and the variable that it comes from.
func environmentURL() (connString, variable string) {
	for _, name := range []string{EnvDatabaseURL, EnvFallbackURL} {
		if value := os.Getenv(name); value != "" {
			return value, name
		}
	}
	return "", ""
}

// withDatabase returns the connection string, a URL or keywords and values, with another database in it.
func withDatabase(connString, name string) (string, error) {
	if !strings.HasPrefix(connString, "postgres://") && !strings.HasPrefix(connString, "postgresql://") {
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(name)
		return connString + " dbname='" + quoted + "'", nil // the last one counts
	}
	u, err := url.Parse(connString)
	if err != nil {
		return "", err
	}
	u.Path, u.RawPath = "/"+name, ""
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus as it stands
	return u.String(), nil
}

// withUser returns a URL with another user in it, who needs no password.
func withUser(databaseURL, name string) (string, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", err
	}
	u.User = url.User(name)
	return u.String(), nil
}

// sameServer reports whether two connection strings lead to the same host and port.
func sameServer(a, b string) bool {
	one, err1 := pgx.ParseConfig(a)
	other, err2 := pgx.ParseConfig(b)
	return err1 == nil && err2 == nil && one.Host == other.Host && one.Port == other.Port
}

// sameDatabase returns connString with the database that databaseURL names.
func sameDatabase(connString, databaseURL string) (string, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return "", err
	}
	return withDatabase(connString, config.Database)
}

// DirectURL returns the URL of the same database past the pooler, and true, when databaseURL leads through a pooler:
// when PGLEASES_TEST_DIRECT_URL is set and databaseURL is on the host and port of PGLEASES_TEST_DATABASE_URL. Else it
// returns databaseURL itself, and false.
func DirectURL(databaseURL string) (string, bool) {
	direct := os.Getenv(EnvDirectURL)
	if direct == "" || !sameServer(databaseURL, os.Getenv(EnvDatabaseURL)) {
		return databaseURL, false
	}
	config, err := pgx.ParseConfig(databaseURL)
	if err == nil {
		direct, err = withDatabase(direct, config.Database)
	}
	if err == nil && config.User == App {
		direct, err = withUser(direct, App)
	}
	if err != nil {
		return databaseURL, false
	}
	return direct, true
}

package pgserver

import (
	"context"
	"fmt"
	"os"
)

// startPrograms starts a server from the machine's own programs.
func startPrograms(ctx context.Context, o options) (*Server, error) {
	bin, err := findPostgres(os.Getenv(EnvPostgresBin), os.Getenv("PATH"), postgresDirs)
	if err != nil {
		return nil, &unusable{"programs", err}
	}
	return startFrom(ctx, bin, bin, o)
}

// startFrom starts a server from the programs in bin; from is how to call that.
func startFrom(ctx context.Context, bin, from string, o options) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := startOwned(ctx, bin, o)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL from %s: %w", from, err)
	}
	s.describe = fmt.Sprintf("PostgreSQL %s from %s on 127.0.0.1:%d", programVersion(s.program("postgres")), from, s.port)
	return s, nil
}

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// way is one of the ways in which Start comes by a server that the environment does not point to.
type way struct {
	name  string // a value of EnvPostgres
	start func(context.Context, options) (*Server, error)
	owned bool // its servers can be restarted, killed and frozen
}

// ways are tried in this order. Docker first: it gives the same server on every machine. The download last: it is slow
// once, and a network may not allow it.
var ways = []way{
	{"docker", startDocker, false},
	{"programs", startPrograms, true},
	{"embedded", startEmbedded, true},
}

// chooseWays returns the ways to try: all, or the one that is forced by name. A private server needs a way whose servers
// are owned; where another one is forced, for those who share a server, private ones come from any that does.
func chooseWays(forced string, private bool) ([]way, error) {
	index := slices.IndexFunc(ways, func(w way) bool { return w.name == forced })
	switch {
	case index < 0 && forced != "":
		var names []string
		for _, w := range ways {
			names = append(names, w.name)
		}
		return nil, fmt.Errorf("%s=%s: it must be one of %s", EnvPostgres, forced, strings.Join(names, ", "))
	case index >= 0 && (ways[index].owned || !private):
		return ways[index : index+1], nil
	case private:
		return slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return !w.owned }), nil
	}
	return ways, nil
}

// forcedWay returns the name of the way that the environment forces, "" if none: whoever says where the programs are
// wants those.
func forcedWay() string {
	if forced := os.Getenv(EnvPostgres); forced != "" || os.Getenv(EnvPostgresBin) == "" {
		return forced
	}
	return "programs"
}

// provide returns a server of the first way that works, and tells in one line of notices why one did not. Only a way that
// cannot be gone here leads to the next: what is there and does not start is an error, which another server would hide.
func provide(ctx context.Context, ways []way, o options, notices io.Writer) (*Server, error) {
	var reasons []error
	for i, w := range ways {
		s, err := w.start(ctx, o)
		if err == nil {
			return s, nil
		}
		if len(ways) == 1 || !errors.Is(err, ErrNotInstalled) || ctx.Err() != nil {
			return nil, fmt.Errorf("pgtest: %w", err)
		}
		if i < len(ways)-1 {
			fmt.Fprintf(notices, "pgtest: %v; trying %s\n", err, ways[i+1].name)
		}
		reasons = append(reasons, err)
	}
	return nil, fmt.Errorf("pgtest: no PostgreSQL server:\n%w", errors.Join(reasons...))
}

// unusable says, in one line, why a way cannot be gone here. To those who ask what to do about it, it is an
// ErrNotInstalled.
type unusable struct {
	way string
	err error
}

func (u *unusable) Error() string {
	return u.way + ": " + strings.Join(strings.Fields(u.err.Error()), " ")
}
func (u *unusable) Unwrap() error        { return u.err }
func (u *unusable) Is(target error) bool { return target == ErrNotInstalled }

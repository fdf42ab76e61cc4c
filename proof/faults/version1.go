//go:build unix && version1

package faults

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pgleases/pgleases"
)

// What a worker cannot do that is built with version 1 of the library. With the tag version1 this stands in for locks.go, schedules.go and
// present.go, and there is no wire.go, which no worker needs.

func takeLocks(_ context.Context, config Config, _ *pgleases.Client) (func() error, error) {
	if config.Locks > 0 {
		return nil, errors.New("faults: version 1 has no locks")
	}
	return func() error { return nil }, nil
}

func runSchedules(config Config, _ *pgleases.Client, _ *slog.Logger) (func() error, error) {
	if config.Schedules {
		return nil, errors.New("faults: version 1 has no schedules")
	}
	return func() error { return nil }, nil
}

func lostLock(error) bool { return false }

func fastFailover() []pgleases.Option { return nil }

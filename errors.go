package pgleases

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// The errors to test for with errors.Is. A call returns an error that wraps one of them, and whose
// text names the operation and its object.
var (
	// ErrClosed says that the client was closed, or that the lease was left. Client.Err returns it
	// after Close, calls on a closed client or lease return it, and contexts that Close or Leave
	// canceled have it as their cause.
	ErrClosed = errors.New("pgleases: closed")

	// ErrSuperseded says that a newer process has taken over the client's ID. The text names the host,
	// the pid and the start of that process. Give every live process an ID of its own.
	ErrSuperseded = errors.New("pgleases: superseded by a newer process with the same client ID")

	// ErrEvicted says that an operator has evicted the client. The events show who did it, and why. A
	// process that starts later with the same ID is admitted.
	ErrEvicted = errors.New("pgleases: evicted by an operator")

	// ErrNotOwner is returned by Guard and GuardSQL if the partition is not owned under this epoch, or
	// not any longer. Roll back, and leave the work to the new owner.
	ErrNotOwner = worker.Says(worker.NotOwner, errors.New("pgleases: not the owner"))

	// ErrPartitionCount is returned by Client.Lease if the lease exists with another number of
	// partitions, or if it was dropped less than 24 hours ago and may be created again only with
	// another number.
	ErrPartitionCount = errors.New("pgleases: lease has another number of partitions")

	// ErrLeaseReplaced ends a Lease, and is returned by Client.Lease, if an operator has replaced the
	// lease by another one. The text names the successor. Join that one with its number of partitions,
	// or end the process if its code is older than the change.
	ErrLeaseReplaced = errors.New("pgleases: lease was replaced")

	// ErrSchema is returned by NewClient, Open and Migrate if the schema is missing, too old, or too
	// new for this code. The text says what to run.
	ErrSchema = errors.New("pgleases: schema does not fit")
)

// The causes of canceled contexts, for context.Cause.
var (
	// ErrHandoff cancels the context of a Run callback if the partition is to move. Take no new item.
	ErrHandoff = errors.New("pgleases: partition is handed over")

	// ErrTrustLost cancels everything that is owned if no heartbeat succeeded in time, or if the
	// session was evicted. Another client may own the partition now.
	ErrTrustLost = errors.New("pgleases: trust in the ownership was lost")

	// ErrDrainTimeout cancels an ownership if its work did not end within WithDrainTimeout after it
	// was asked to end.
	ErrDrainTimeout = errors.New("pgleases: work did not end within the drain timeout")
)

// The packages whose tables openError knows: what pgleases grants calls the role that uses them, and
// how pgleases migrate creates them.
var parts = map[string]struct{ purpose, migrate string }{
	"pgleases": {"application", "pgleases migrate"},
	"schedule": {"schedules", "pgleases migrate --schedules"},
	"consumer": {"consumers", "pgleases migrate --consumers"},
}

// openError adds the remedy to an error of opening or migrating the tables of a package.
func openError(ctx context.Context, of, doing, schema string, err error) error {
	if err == nil {
		return nil
	}
	var misfit *store.SchemaError
	if errors.As(err, &misfit) {
		return wrap.Errorf("%s: %s: %w: %s; %s", of, doing, ErrSchema, misfit, misfitRemedy(of, schema, misfit))
	}
	if !store.Denied(err) {
		return wrap.Errorf("%s: %s: %w", of, doing, store.Advised(store.Caused(ctx, err)))
	}
	// The role may lack rights although the tables are up to date.
	owner := ""
	if doing == "migrate" {
		owner = "; to create or change the tables, " +
			"run it as the role that owns the schema, or as one that may create it"
	}
	return wrap.Errorf("%s: %s: the role lacks rights: %w; "+
		"give it what pgleases grants ROLE --for=%s prints for schema %q%s",
		of, doing, err, parts[of].purpose, schema, owner)
}

func misfitRemedy(of, schema string, misfit *store.SchemaError) string {
	if misfit.TooNew {
		return "run a newer version of this library"
	}
	command := parts[of].migrate
	if schema != defaultSchema {
		command += " --schema " + shell.Word(schema)
	}
	if misfit.Grant != "" {
		return fmt.Sprintf("run %s as a role that may, or %s", command, misfit.Grant)
	}
	return fmt.Sprintf("run %s, %s.Migrate or the DDL that %[2]s.Schema returns, as a role that may", command, of)
}

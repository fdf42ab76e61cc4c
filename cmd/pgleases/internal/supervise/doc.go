// Package supervise runs a program under a lease: one process of it for each partition that this
// process owns. It is what `pgleases run` does.
//
// In the order of a run: supervise.go opens a client and has Lease.Run call for each partition;
// child.go starts a keeper for the partition, and tells it for how long the ownership can be
// trusted; keep.go is the keeper, a process that starts the program, and kills all that came of it
// in time. tree_linux.go and tree_bsd.go are what differs between systems. [Limits] says when a
// program may still run beside its successor.
package supervise

// Limits is the part of the command's help on what is not covered.
const Limits = `What is not covered. In these cases the program may run for a while beside its successor, or, where it hangs, has none:

  - All is frozen together: a container, a virtual machine, a cgroup, a suspended machine. What is frozen cannot be killed; it is killed
    when it thaws.
  - Neither this command nor the keeper can act, each being stopped or killed: pkill -9 -f with the program's name finds both. Where
    the keeper is killed, the kernel kills the program, but not what it started. (systemd's KillMode=control-group, and the end of a
    container, kill all.)
  - The machine is so busy that what is killed does not run for as long as there is from SIGKILL to the end of the trust: a twentieth of the
    TTL. Give a longer --ttl.
  - A program that hangs: this command watches processes, not their work. It stays the owner. Have the program end itself.
  - What is not a descendant of the program: a container that it starts through a daemon, a job of at or of systemd-run, a session on
    another machine.
  - A process that may not be killed, being of another user (sudo), or cannot be, waiting in the kernel (a hung NFS). A handoff waits
    for it, but trust in an ownership ends all the same.
  - Elsewhere than on Linux: processes that leave the program's process group, and the death of the keeper.`

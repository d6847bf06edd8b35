package jail

import (
	"context"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Process is one process of a jail, as the host sees it. Its strings are controlled by the
// jail.
type Process struct {
	PID        int       // in the jail
	PPID       int       // 0: the parent is outside of the jail
	Started    time.Time // approximate
	StartTicks uint64    // in ticks since the host started
	Comm       string
	Exe        string
	Cwd        string
	Argv       []string
	Env        []string
	Truncated  bool // argv, the environment or sockets are truncated

	Sockets []Socket // TCP and UDP

	// Inherited is set if the process was restored from the snapshot that the jail is based
	// on. The original has the same PID and Began.
	Inherited bool
}

// A Socket is one end of a connection, or a listening socket.
type Socket struct {
	Proto  string `json:"proto"` // tcp, udp
	Local  string `json:"local"`
	Remote string `json:"remote,omitempty"`
	State  string `json:"state"` // listening, established, …; of udp: open
}

// A ProcessLister is an Instance that can list its processes.
type ProcessLister interface {
	// Processes returns the processes of the jail, frozen or not. It does not need their
	// cooperation.
	Processes(ctx context.Context) ([]Process, error)
}

// Processes returns the processes of a jail. It returns none for a jail that is not live.
func (xs *execs) Processes(ctx context.Context, jid id.Jail) ([]Process, error) {
	const op = "jail.Processes"
	e, err := xs.registry.find(jid, op)
	if err != nil {
		return nil, err
	}
	l := e.live.Load()
	if l == nil {
		return nil, nil
	}
	return processes(ctx, l.inst)
}

func processes(ctx context.Context, i Instance) ([]Process, error) {
	lister, ok := i.(ProcessLister)
	if !ok {
		return nil, fault.Cannot("jail.Processes", "this backend cannot list processes", "create the jail with --backend oci")
	}
	return lister.Processes(ctx)
}

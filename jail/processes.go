package jail

import (
	"context"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Process is one process of a jail, as the host sees it. Its strings are the
// jail's bytes.
type Process struct {
	PID   int       // in the jail
	PPID  int       // 0: none of the jail's
	Began time.Time // about
	Start uint64    // in ticks since the host started
	Comm  string
	Exe   string
	Cwd   string
	Argv  []string
	Env   []string
	Cut   bool // there is more of argv, the environment or sockets than is told

	Sockets []Socket // of TCP and UDP

	// Inherited: it was made again from the images of the snapshot that the jail
	// stands on, where it has the same PID, and began when the other did.
	Inherited bool
}

// A Socket is one end of a connection, or where one may come in.
type Socket struct {
	Proto  string `json:"proto"` // tcp, udp
	Local  string `json:"local"`
	Remote string `json:"remote,omitempty"`
	State  string `json:"state"` // listening, established, …; of udp: open
}

// A ProcessLister is an Instance that can tell what runs in it.
type ProcessLister interface {
	// Processes returns the processes of the jail, frozen or not, without a word
	// with any of them.
	Processes(ctx context.Context) ([]Process, error)
}

// Processes returns what runs in a jail. In one that is not live nothing does.
func (m *Manager) Processes(ctx context.Context, jid id.Jail) ([]Process, error) {
	const op = "jail.Processes"
	c, err := m.find(jid, op)
	if err != nil {
		return nil, err
	}
	l := c.live.Load()
	if l == nil {
		return nil, nil
	}
	return processes(ctx, l.inst)
}

func processes(ctx context.Context, i Instance) ([]Process, error) {
	lister, ok := i.(ProcessLister)
	if !ok {
		return nil, fault.Cannot("jail.Processes", "this backend cannot tell what runs in its jails", "make jails with --backend oci")
	}
	return lister.Processes(ctx)
}

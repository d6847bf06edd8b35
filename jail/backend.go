package jail

import (
	"context"

	"glasshouse/id"
)

// A Plan is everything a backend needs to make one jail. It is the same for
// Create, Open and Clean of one jail's life, so a backend keeps no state of its
// own that a restarted daemon would miss: whatever it makes on the host is named
// after ID or lies under Dir.
type Plan struct {
	ID        id.Jail
	Dir       string // {DATA}/jails/{id}, made by the caller with mode 0711; the backend's to fill
	Runtime   string
	Hostname  string
	Lower     []string // read-only layers, topmost first, owned by the ids they have inside
	IDs       IDRange
	Limits    Limits
	Network   Network
	Mounts    []Mount
	Workspace *Workspace
	Init      string // the host's path of the glasshouse-init binary
}

// A Backend isolates. Implementations are safe for concurrent use, also for two
// calls on one jail, though the Manager never makes those.
// backend/backendtest checks the contract written here.
type Backend interface {
	// Probe returns nil if this backend works on this host, or a
	// fault.Unsupported error with reason and remedy.
	Probe(ctx context.Context) error

	// Lacks returns, by name ("disk", "memory", "cpu", "pids", "freeze",
	// "mounts", "full network"), what this backend cannot hold or do on this
	// host, each with the reason. What it names, it does not pretend to do:
	// Create refuses a Plan that depends on it, save for limits, which are
	// left unenforced and reported in Stats.NotMeasured.
	Lacks() map[string]string

	// Create isolates the jail and returns with its init answering on
	// Instance.Control. The writable layer under Dir is made if it is missing
	// and used as it is if not (a stopped jail starting again). If Create
	// fails it leaves nothing behind but what Dir held before.
	Create(ctx context.Context, p Plan) (Instance, error)

	// Open finds the jail that an earlier process created, or returns
	// fault.NotFound if its init is gone.
	Open(ctx context.Context, p Plan) (Instance, error)

	// Clean releases everything the jail holds on the host but its files:
	// processes, mounts, loop devices, cgroups, network. It may be called at
	// any time, also after a crash in the middle of Create and when nothing is
	// left, and it is done when it returns nil.
	Clean(ctx context.Context, p Plan) error

	// Mount shows the files of a jail that is not running in a directory of
	// the host, owned by the ids they have inside, until unmount is called.
	Mount(ctx context.Context, p Plan) (dir string, unmount func() error, err error)
}

// A Remover is a Backend that removes a jail's files itself, because the daemon
// could not: without root they belong to ids that only a user namespace can act
// for. Remove deletes Dir and all below it, after Clean.
type Remover interface {
	Remove(ctx context.Context, p Plan) error
}

// An Instance is a jail's live isolation.
type Instance interface {
	Control() string       // the unix socket its init listens on, as a path of the host
	PID() int              // its init, as a pid of the host
	Done() <-chan struct{} // closed when its init is gone

	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error

	// Kill ends every process of the jail, however stubborn or frozen, and
	// returns when none is left.
	Kill(ctx context.Context) error

	Stats(ctx context.Context) (Stats, error)

	// Sight returns how the host's kernel knows the jail: its cgroup, if it has
	// one. The rest is the Manager's to fill in.
	Sight() Sight

	// Close lets go of the jail without touching it.
	Close() error
}

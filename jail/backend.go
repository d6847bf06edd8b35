package jail

import (
	"context"

	"glasshouse/id"
	"glasshouse/internal/notify"
)

// A Plan has everything that a backend needs to create one jail. It is the same for Create,
// Open and Clean of one jail, so a backend keeps no state that a restarted daemon would miss:
// everything that it creates on the host is named after ID or lies under Dir.
type Plan struct {
	ID        id.Jail
	Dir       string // {DATA}/jails/{id}; the caller creates it with mode 0711, the backend fills it
	Runtime   string
	Hostname  string
	Lower     []string // read-only layers, topmost first, owned by the ids that they have inside the jail
	Sealed    []string // sealed writable layers above Lower, topmost first: files of SealLayer or BeginCopy
	From      *Plan    // the frozen jail whose writable layer is Sealed[0] at the moment, or nil
	IDs       IDRange
	Limits    Limits
	Network   Network
	Group     string // group of a bridged network
	Mounts    []Mount
	Workspace *Workspace
	Init      string // the host's path of the glasshouse-init binary
	Enforce   bool   // a policy decides about exec, file changes and connections of commands

	// SecretFiles makes Create prepare the jail for ShowSecrets, if the backend needs that.
	SecretFiles bool

	// Link is the network link of the jail if it was created for another instance.
	Link *Link

	// LinkDetached means that the link does not belong to this instance, or does not belong to it
	// yet. Restore prepares the instance to receive the link in Link by MoveLink, and Clean does
	// not remove the link.
	LinkDetached bool
}

// A Link is the network link of a jail and its external addresses. It is named after the
// instance for which it was created, and keeps that name as long as the jail uses it.
type Link struct {
	Name id.Jail `json:"name"`
	IDs  IDRange `json:"ids"` // ids of that instance; the address is derived from them
}

// A Backend isolates jails. Implementations are safe for concurrent use. They must also accept
// concurrent calls for one jail, although the Manager does not make such calls. Package
// jail/backend/backendtest tests this contract.
type Backend interface {
	// Probe returns nil if this backend works on this host, or a
	// fault.Unsupported error with reason and remedy.
	Probe(ctx context.Context) error

	// Lacks returns the features that this backend cannot provide on this host, each with the
	// reason. Names are "disk", "memory", "cpu", "pids", "freeze", "mounts", "writable_mounts",
	// "network" and "enforcement". Create refuses a Plan that depends on a missing feature, except for
	// limits, which are not enforced and are reported in Stats.NotMeasured.
	Lacks() map[string]string

	// Create isolates the jail and returns when its init answers on Instance.Control. It
	// creates the writable layer under Dir if that is missing, and otherwise uses the existing
	// one (a stopped jail is started again). If Create fails, Dir has the same content as
	// before and nothing else remains.
	Create(ctx context.Context, p Plan) (Instance, error)

	// Open finds a jail that an earlier process created. It returns fault.NotFound if the
	// jail's init has ended.
	Open(ctx context.Context, p Plan) (Instance, error)

	// Clean releases all host resources of the jail except its files: processes, mounts, loop
	// devices, cgroups, network. It may be called at any time, even after a crash in the middle of
	// Create and if there is nothing to release. All resources are released if it returns nil.
	Clean(ctx context.Context, p Plan) error

	// Mount mounts the files of a jail that is not running on a directory of the host, with
	// the owners that they have in the jail, until the caller calls unmount.
	Mount(ctx context.Context, p Plan) (dir string, unmount func() error, err error)
}

// A Checkpointer is a Backend that can checkpoint and restore live jails (CRIU terms: dump and
// restore). Package jail/backend/backendtest tests this contract.
type Checkpointer interface {
	// CanCheckpoint returns nil if this host supports checkpoints, or a fault.Unsupported
	// error with reason and remedy.
	CanCheckpoint(ctx context.Context) error

	// Dumpable returns nil, or a fault.Unsupported error that names the state of a live jail
	// that cannot be dumped. It does not affect the jail.
	Dumpable(ctx context.Context, p Plan, i Instance) error

	// Stabilize thaws a frozen jail for short periods until none of its processes is in a state
	// that cannot be dumped. The jail is frozen when Stabilize returns.
	Stabilize(ctx context.Context, p Plan, i Instance) error

	// Dump writes the processes of a frozen jail to dir, which is empty. The jail's init has no
	// open connection. The processes stay frozen and unchanged, even if Dump fails.
	Dump(ctx context.Context, p Plan, i Instance, dir string) error

	// Restore is like Create, but with the processes that Dump wrote to dir, from a jail with the
	// same mounts and workspace. The processes are frozen and have not executed an instruction
	// since the dump. Their network connections to the outside of the jail are closed. Restore does
	// not write to dir.
	Restore(ctx context.Context, p Plan, dir string) (Instance, error)

	// BeginCopy starts a copy of the jail's writable layer to the new file to. The copy has
	// steps, so that the jail is paused only during the second one, Copy. The jail keeps its
	// layer. If the layer is too large to copy during the pause and cannot be cloned in one
	// step, BeginCopy or Copy returns fault.TooLarge.
	BeginCopy(ctx context.Context, p Plan, to string) (LayerCopy, error)

	// SealLayer gives the jail's writable layer the additional name to on the same filesystem.
	// The layer is read-only from that moment. Its old name is removed with the jail's other
	// files. The processes of a live jail are frozen and are about to end.
	SealLayer(ctx context.Context, p Plan, to string) error

	// FlushLayer writes the dirty data of a live jail's layer to disk, to allocated blocks.
	// The steps that follow then need no space for it; otherwise a full host disk could damage
	// the layer. Writers in the jail block briefly.
	FlushLayer(ctx context.Context, p Plan) error

	// CleanAndRemoveLayer is like Clean, but also removes the writable layer. The name that
	// SealLayer gave the layer remains.
	CleanAndRemoveLayer(ctx context.Context, p Plan) error
}

// A PreDumper is a Checkpointer that can dump most of a jail's memory before the jail is
// paused.
type PreDumper interface {
	// PreDump writes memory of a running jail to dir, in preparation for the Dump to the same
	// directory. It does nothing and returns false if that is not possible on this host or not
	// worthwhile. After an error, Dump works as without PreDump.
	PreDump(ctx context.Context, p Plan, i Instance, dir string) (did bool, err error)

	// MergeImages merges the images that PreDump and Dump have written to dir. Only CRIU can read
	// them before. Without a PreDump it does nothing.
	MergeImages(dir string) error
}

// A LinkMover is a Checkpointer whose jails can keep their network connections when they are
// rewound.
type LinkMover interface {
	// CanMoveLink returns nil, or a fault.Unsupported error with the reason.
	CanMoveLink(p Plan) error

	// MoveLink moves the network link of old, the frozen instance of plan from, to i, a frozen
	// instance that Restore has created for plan to. If it fails, both instances are
	// unchanged.
	MoveLink(ctx context.Context, from Plan, old Instance, to Plan, i Instance) (MovedLink, error)
}

// A MovedLink is a moved network link with its connections.
type MovedLink interface {
	// KeepConnections keeps each connection that its program has neither read from nor written to
	// since the dump. It closes all other connections and resets them at the remote end. It returns
	// the number of connections that the new processes keep and lose.
	KeepConnections() (kept, closed int, err error)

	// Undo moves the link back to the old processes. After KeepConnections it also closes their
	// connections, because the new processes may have used them.
	Undo() error

	// Close releases the resources that only Undo needs.
	Close() error
}

// An EnforcedInstance is an Instance whose commands are subject to a policy, as for every Plan with
// Enforce. A system call that needs a decision blocks until it is answered.
type EnforcedInstance interface {
	// Listener returns the notification listener of the commands, which the caller closes. It
	// returns os.ErrNotExist if there is no listener, because a daemon died at the wrong
	// moment. System calls that need a decision then fail.
	Listener() (*notify.Listener, error)
}

// A LayerCopy is a copy of a jail's writable layer that is in progress.
type LayerCopy interface {
	// Copy copies the layer. The jail must not write to it meanwhile.
	Copy(ctx context.Context) error

	// Close completes the file if Copy has succeeded, and removes it otherwise.
	Close() error
}

// A Limiter is a Backend that can change the limits of its jails. Package jail/backend/backendtest
// tests this contract.
type Limiter interface {
	// Limit changes the limits of a jail to l. The plan p has the current limits. If the jail
	// is live, i is its instance and either all of l is in force when Limit returns or nothing
	// has changed. If the jail is not live, i is nil and the next Create uses l. Limits that
	// are already in force cause no change.
	//
	// Limit returns fault.Conflict if more memory is in use than l allows and it cannot be
	// reclaimed; it does not end any process. It returns fault.Unsupported with the name of a
	// limit that cannot be changed.
	Limit(ctx context.Context, p Plan, i Instance, l Limits) error
}

// A Usable is a Backend that can say at once that it does not work on this host, as Probe does. Its
// user then does not have to wait for a root filesystem.
type Usable interface {
	Usable() error
}

// A Remover is a Backend that removes a jail's files itself, because the daemon cannot:
// without root, they belong to ids that only a user namespace can access. Remove deletes Dir
// with its contents. The caller calls Clean before.
type Remover interface {
	Remove(ctx context.Context, p Plan) error
}

// A FileServer is a Backend whose Mount is not supported, because the kernel of the host must not
// mount the files of its jails.
type FileServer interface {
	// ServeFiles serves the files of a jail that is not running, as its init would, until the
	// caller calls done. It returns the host path of the unix socket. When done has returned,
	// all that was written is on disk.
	ServeFiles(ctx context.Context, p Plan) (socket string, done func() error, err error)
}

// An Instance is the running incarnation of a jail.
type Instance interface {
	Control() string       // host path of the unix socket of its init
	PID() int              // host pid of its init
	Done() <-chan struct{} // closed when its init has ended

	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error

	// Kill ends every process of the jail, including frozen ones, and returns when all have ended.
	Kill(ctx context.Context) error

	Stats(ctx context.Context) (Stats, error)

	// HostInfo returns the kernel's identifiers of the jail, such as its cgroup. The Manager sets
	// the other fields.
	HostInfo() HostInfo

	// Close releases the Instance. The jail continues to run.
	Close() error
}

// An ExitExplainer is an Instance that may be able to report why its init ended.
type ExitExplainer interface {
	ExitReason() string // "" if unknown
}

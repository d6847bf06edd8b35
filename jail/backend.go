package jail

import (
	"context"

	"glasshouse/id"
	"glasshouse/internal/notify"
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
	Sealed    []string // sealed writable layers above Lower, topmost first: files of SealLayer or BeginCopy
	From      *Plan    // the frozen jail whose writable layer Sealed[0] still is, or nil
	IDs       IDRange
	Limits    Limits
	Network   Network
	Group     string // of a bridged network
	Mounts    []Mount
	Workspace *Workspace
	Init      string // the host's path of the glasshouse-init binary
	Enforce   bool   // commands ask before they start programs, change files and make connections

	// SecretFiles has Create prepare the jail for ShowSecrets, if its backend must.
	SecretFiles bool

	// Wire is the wire to the outside that the jail has, if that was another body's.
	Wire *Wire

	// Unwired says that the wire is not the body's, or not yet: Restore makes it ready
	// to get that of Wire by Rewire, and Clean leaves it to who has it.
	Unwired bool
}

// A Wire is what a jail is reached by from the outside, with its addresses there. It
// is named by the body that it was made for, and stays the same as long as the jail
// keeps it.
type Wire struct {
	Name id.Jail `json:"name"`
	IDs  IDRange `json:"ids"` // of that body: its address follows from them
}

// A Backend isolates. Implementations are safe for concurrent use, also for two
// calls on one jail, though the Manager never makes those.
// backend/backendtest checks the contract written here.
type Backend interface {
	// Probe returns nil if this backend works on this host, or a
	// fault.Unsupported error with reason and remedy.
	Probe(ctx context.Context) error

	// Lacks returns, by name ("disk", "memory", "cpu", "pids", "freeze",
	// "mounts", "network"), what this backend cannot hold or do on this
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

// A Checkpointer is a Backend that can write down a live jail and make it again.
// backend/backendtest checks what is written here.
type Checkpointer interface {
	// CanCheckpoint returns nil if this host can write down what runs, or a
	// fault.Unsupported error with reason and remedy.
	CanCheckpoint(ctx context.Context) error

	// Dumpable returns nil, or a fault.Unsupported error that says what of a
	// live jail cannot be written down. It disturbs nothing.
	Dumpable(ctx context.Context, p Plan, i Instance) error

	// Steady lets a frozen jail run on for moments, until none of its processes
	// is in the middle of what cannot be written down. It is frozen at the end.
	Steady(ctx context.Context, p Plan, i Instance) error

	// Dump writes the processes of a frozen jail, whose init has no connection
	// open, to dir, which is empty. It leaves them frozen and as they were, also
	// if it fails.
	Dump(ctx context.Context, p Plan, i Instance, dir string) error

	// Restore is Create with the processes that a Dump wrote to dir, of a jail
	// with the same mounts and workspace. They are frozen, and none has executed
	// an instruction since. What they had connected over the network outside of
	// the jail is closed. Dir is read only.
	Restore(ctx context.Context, p Plan, dir string) (Instance, error)

	// BeginCopy begins to write the jail's writable layer to the new file to, in
	// steps, so that a jail waits for the second alone. The jail keeps its own. If
	// it is too much to be copied while a jail waits, and cannot be copied in one
	// step, BeginCopy or Take returns fault.TooLarge.
	BeginCopy(ctx context.Context, p Plan, to string) (LayerCopy, error)

	// SealLayer gives the jail's writable layer the name to as well, on the same
	// filesystem, for good: nobody may write to it any more. The name it had
	// goes with the jail's other files. The processes of a live jail are frozen
	// and about to end.
	SealLayer(ctx context.Context, p Plan, to string) error

	// FlushLayer writes what a live jail has written to its layer to its final place on the
	// disk. What follows needs no space for it, or the layer would be damaged if the host's
	// disk is full then. Who writes to the layer waits for moments.
	FlushLayer(ctx context.Context, p Plan) error

	// Shed is Clean, and the writable layer is gone too, but for the name that
	// SealLayer gave it.
	Shed(ctx context.Context, p Plan) error
}

// A PreDumper is a Checkpointer that can write down most of a jail's memory before
// the jail has to wait.
type PreDumper interface {
	// PreDump writes to dir what it can of a jail that runs, for the Dump to the same
	// directory that follows. If that is not possible here, or not worth it, it does
	// nothing and says so. After an error, too, the Dump is as any other.
	PreDump(ctx context.Context, p Plan, i Instance, dir string) (did bool, err error)

	// Whole makes one of what PreDump and Dump have written to dir, which nobody reads
	// before. Without a PreDump it does nothing.
	Whole(dir string) error
}

// A Rewirer is a Checkpointer whose jails can keep what they have connected outside
// when they are taken back.
type Rewirer interface {
	// CanRewire returns nil, or a fault.Unsupported error with the reason.
	CanRewire(p Plan) error

	// Rewire gives i, which Restore has made for the plan to and which is frozen, the
	// wire of old, of the plan from, which is frozen as well. If it fails all is as it
	// was.
	Rewire(ctx context.Context, from Plan, old Instance, to Plan, i Instance) (Rewired, error)
}

// A Rewired is a wire that has changed hands, and what is connected over it.
type Rewired interface {
	// GoOn has what a program of the new processes has connected outside go on where
	// it is, if the program has neither read nor written there since it was written
	// down. All else is closed, and who is at the other end told so. It returns how
	// many the new processes keep and how many they lose.
	GoOn() (kept, closed int, err error)

	// Undo gives the wire back to the old processes, and ends what they had connected
	// if the new ones may have used it: after GoOn.
	Undo() error

	// Close lets go of what only Undo needs.
	Close() error
}

// An Enforced is an Instance whose commands ask, as those of every Plan with
// Enforce do. As long as nobody answers, they wait.
type Enforced interface {
	// Listener returns what they ask on, which the caller closes. If there is none,
	// because a daemon died at a bad moment, it returns os.ErrNotExist; whatever
	// they would ask about then fails.
	Listener() (*notify.Listener, error)
}

// A LayerCopy is a copy of a jail's writable layer on its way to a file.
type LayerCopy interface {
	// Take copies the layer, which nobody is writing to meanwhile.
	Take(ctx context.Context) error

	// End finishes the file if the layer was taken, and else removes it.
	End() error
}

// A Limiter is a Backend that can change the limits of its jails.
// backend/backendtest checks what is written here.
type Limiter interface {
	// Limit has the jail of p, which names the limits that it has, be bounded by l.
	// Of a live one, i, all of l is in force when it returns, or nothing of it; i is
	// nil of one that is not live, which will be made with l. Limits that are in
	// force already do nothing.
	//
	// Less memory than is in use, and than can be taken back, is a fault.Conflict. No
	// process is ended. Which limit cannot be changed a fault.Unsupported says.
	Limit(ctx context.Context, p Plan, i Instance, l Limits) error
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

// A Witness is an Instance that may know why its init ended.
type Witness interface {
	Why() string // "" if it does not
}

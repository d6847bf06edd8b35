// Package observe watches running jails. It declares what a source of events is,
// attaches the sources this host has to each jail, and keeps each jail's log.
package observe

import (
	"context"

	"glasshouse/event"
	"glasshouse/id"
)

// A Target is a running jail as a source sees it.
type Target struct {
	Jail      id.Jail
	Body      id.Jail // what it is on the host has this name; "" is its own
	Dir       string  // {DATA}/jails/{id}
	Runtime   string  // "runc", "crun", "runsc", or "" for bubblewrap
	PID       int     // its init, as a pid of the host
	Cgroup    uint64  // by which the kernel's tracing knows its cgroup; 0 is unknown
	CgroupDir string  // its directory in the second generation's tree; "" is none
	Veth      string  // the host's end of its link; "" is none
	Again     bool    // an earlier daemon let go of it while it ran
	Told      bool    // it has processes beside its init, and what they did is recorded, or said to be missing
	IDs       IDMap   // how its user ids look on the host
	Selection event.Selection

	// Freeze and Thaw stop and continue all its processes. Nil where the
	// backend cannot.
	Freeze, Thaw func(context.Context) error

	// Usage fills in a record of type Usage. Nil where the backend cannot.
	Usage func(context.Context, *event.Event) error
}

// An IDMap is a block of host ids: id n inside is First+n outside, for n < Count.
type IDMap struct{ First, Count uint32 }

// Inside returns the id inside the jail of a host's id, or the overflow id.
func (m IDMap) Inside(host uint32) uint32 {
	if host-m.First < m.Count {
		return host - m.First
	}
	return 65534
}

// A Sink takes what a source has seen. It is an *eventlog.Log; tests have their
// own. It is safe for concurrent use.
type Sink interface {
	// Append gives e its sequence number and keeps it. It never blocks on the
	// disk and keeps no reference to e, which the caller may use again.
	Append(e *event.Event)

	// Room reports whether there is room for more. A source that can hold back
	// should while there is not; one that cannot appends all the same, and what
	// does not fit is counted and said in the log.
	Room() bool

	// Last is the sequence number given last, Written the last whose record the
	// host's kernel has: what it has survives the end of the daemon.
	Last() uint64
	Written() uint64

	// Push has what was appended written soon, rather than when enough is there.
	Push()

	// Kept calls each for every record in the log of one type with NS of since
	// or later, oldest first. A source that takes over from an earlier daemon
	// tells by it what that one had written.
	Kept(since int64, of event.Type, each func(*event.Event)) error
}

// A Source is one way to see what jails do. observe/observetest checks what is
// written here.
type Source interface {
	Name() string // "kernel", "network", "gvisor", "ptrace"

	// Probe returns nil if this source works on this host, or a
	// fault.Unsupported error with reason and remedy.
	Probe(ctx context.Context) error

	// Attach begins to watch a jail: when it returns, nothing of what t's
	// selection names escapes the record. If an earlier daemon left the jail
	// watched, it takes over where that one ended, and says in the log what is
	// missing. Nothing of other jails or of the host is ever recorded.
	Attach(ctx context.Context, t Target, s Sink) (Watch, error)

	// Close lets go of what the source holds for all jails. Watches are closed
	// or released before.
	Close() error
}

// A Watch is one source at one jail.
type Watch interface {
	// Select changes what is recorded from now on.
	Select(event.Selection) error

	// Mute has what the jail's processes do from now on marked as Injected,
	// until Mute(false): a checkpoint makes calls in their name.
	Mute(on bool) error

	// Drain returns when everything that happened before the call is appended.
	Drain(ctx context.Context) error

	Status() Status

	// Close ends the watch after draining it. Nothing of it stays on the host.
	Close() error

	// Release lets go of a jail that goes on. What can keep recording without
	// a daemon does.
	Release() error
}

// A Mover is a Watch that can follow its jail into another body, as a jail that is
// rewound gets one: other processes, in another cgroup, in the same network.
type Mover interface {
	// Move reports whether it has: from then on the watch is of the new target,
	// and nothing was missed. If not, the target is to be attached to.
	Move(ctx context.Context, t Target) (bool, error)
}

// A Collector is a Source that keeps recording without a daemon, so that it has
// something to say of jails that ended meanwhile.
type Collector interface {
	// Collect appends what is left of a jail that does not run, and forgets it.
	Collect(jail id.Jail, s Sink) error
}

// Status is what a source says of one jail.
type Status struct {
	Seen      uint64 `json:"seen"`      // records made since the watch began
	Lost      uint64 `json:"lost"`      // records that were not kept; each is in a gap
	Throttled uint64 `json:"throttled"` // times the jail was held so that nothing is lost
	Err       string `json:"err,omitempty"`
}

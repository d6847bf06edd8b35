// Package observe records events of running jails. It defines the interface of event sources,
// attaches the sources that the host supports to each jail, and keeps each jail's log.
package observe

import (
	"context"
	"io"

	"glasshouse/id"
	"glasshouse/observe/event"
)

// A Target describes a running jail to a source.
type Target struct {
	Jail              id.Jail
	Instance          id.Jail // name of the instance on the host; "" is the jail's ID
	Dir               string  // {DATA}/jails/{id}
	Runtime           string  // "runc", "crun", "runsc", or "" for bubblewrap
	Guest             bool    // its processes are in a virtual machine, which has PID and Cgroup
	PID               int     // host PID of its init
	Cgroup            uint64  // cgroup ID as seen by eBPF programs (bpf_get_current_cgroup_id); 0 if unknown
	CgroupDir         string  // cgroup v2 directory, or ""
	Netns             string  // path of its network namespace; "" is that of PID
	Veth              string  // host end of its veth pair, or ""
	Resumed           bool    // an earlier daemon released the jail while it ran
	ProcessesRecorded bool    // other processes than init exist, and their events are recorded or reported as missing
	IDs               IDMap   // maps its user IDs to host IDs
	Selection         event.Selection

	// Freeze and Thaw freeze and thaw all its processes. They are nil if the backend does not
	// support it.
	Freeze, Thaw func(context.Context) error

	// Events sends a request to the recorder in its virtual machine and returns the answer, which is
	// not trusted. If the machine is frozen, Events waits until it is thawed or, without wait, returns
	// fault.Conflict. If the machine has ended, it returns fault.NotFound. Nil if Guest is not set.
	Events func(ctx context.Context, request []byte, wait bool) (io.ReadCloser, error)

	// Usage fills in an event of type Usage. It is nil if the backend does not support it.
	Usage func(context.Context, *event.Event) error
}

// An IDMap is a block of host IDs: ID n inside is First+n outside, for n < Count.
type IDMap struct{ First, Count uint32 }

// Inside returns the ID inside the jail for a host ID, or the overflow ID.
func (m IDMap) Inside(host uint32) uint32 {
	if host-m.First < m.Count {
		return host - m.First
	}
	return 65534
}

// A Sink receives the events of a source. It is an *eventlog.Log, or a fake in tests. It is
// safe for concurrent use.
type Sink interface {
	// Append assigns e a sequence number and stores it. It never blocks on the disk and
	// retains no reference to e, which the caller may reuse.
	Append(e *event.Event)

	// HasRoom reports whether the sink has room for more events. A source that can throttle the
	// jail should do so while there is no room. Other sources append nevertheless; events that
	// do not fit are counted and reported in a gap.
	HasRoom() bool

	// Last returns the last assigned sequence number. Written returns the last one whose event
	// was passed to the host's kernel, and so survives a crash of the daemon.
	Last() uint64
	Written() uint64

	// FlushSoon requests that appended events are written soon, without waiting for a full buffer.
	FlushSoon()

	// Kept calls each for every event of one type in the log with NS of at least since, oldest
	// first. A source that takes over from an earlier daemon uses it to determine which events
	// that daemon has written.
	Kept(since int64, of event.Type, each func(*event.Event)) error
}

// A Source observes jails. Package observe/observetest tests the contract documented here.
type Source interface {
	Name() string // "kernel", "network", "gvisor", "guest", "ptrace"

	// Probe returns nil if this source works on this host, or a
	// fault.Unsupported error with reason and remedy.
	Probe(ctx context.Context) error

	// Attach begins to observe a jail. After it returns, all events in t's selection are
	// recorded. If an earlier daemon left the jail observed, Attach continues from there and
	// reports missing events in the log. Events of other jails or of the host are never
	// recorded.
	Attach(ctx context.Context, t Target, s Sink) (Watch, error)

	// Close releases the resources that the source holds for all jails. Watches are closed or
	// released before.
	Close() error
}

// A Watch is one source attached to one jail.
type Watch interface {
	// Select changes which events are recorded.
	Select(event.Selection) error

	// Mute marks events of the jail's processes as Injected until Mute(false), because a
	// checkpoint makes system calls in their name.
	Mute(on bool) error

	// Drain waits until all events before the call are appended.
	Drain(ctx context.Context) error

	Status() Status

	// Close ends the watch after draining it. It leaves no resources on the host.
	Close() error

	// Release detaches from a running jail. A source that can record without a daemon
	// continues to record.
	Release() error
}

// A Mover is a Watch that can follow its jail to another instance. A rewound jail gets one:
// other processes in another cgroup with the same network.
type Mover interface {
	// Move reports whether the watch now observes the new target without having missed an
	// event. If not, the caller must attach to the target.
	Move(ctx context.Context, t Target) (bool, error)
}

// A Collector is a Source that records without a daemon, so it may have events of jails that
// ended while no daemon ran.
type Collector interface {
	// Collect appends the remaining events of a stopped jail and removes them.
	Collect(jail id.Jail, s Sink) error
}

// Status is the state of a source for one jail.
type Status struct {
	Seen      uint64 `json:"seen"`      // events since the watch began
	Lost      uint64 `json:"lost"`      // lost events; each is counted in a gap
	Throttled uint64 `json:"throttled"` // number of times the jail was throttled to avoid losses
	Err       string `json:"err,omitempty"`
}

package wire

import (
	"time"

	"glasshouse/id"
)

// TakeSnapshot says what snapshot is taken of a jail. Its body may be left out.
type TakeSnapshot struct {
	Name     string            `json:"name,omitempty" description:"A name for people. Need not be unique."`
	Labels   map[string]string `json:"labels,omitempty"`
	Stop     bool              `json:"stop,omitempty" description:"Leave the jail stopped, instead of having it go on."`
	Layering string            `json:"layering,omitempty" enum:"copied,stacked" description:"How the writable layer is taken. copied: the jail keeps its own. stacked: it goes on over a new one, and what it had connected outside is closed. Default: copied where that is quick."`
}

// Snapshot is a jail as it was at one moment.
type Snapshot struct {
	ID        id.Snapshot       `json:"id" required:"true"`
	Jail      id.Jail           `json:"jail" required:"true" description:"Of which it was taken. It may be gone."`
	JailName  string            `json:"jail_name,omitempty"`
	Parent    id.Snapshot       `json:"parent,omitempty" description:"The snapshot that the jail had been taken to, made from or rewound to last. It may be gone."`
	Name      string            `json:"name,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt time.Time         `json:"created_at" required:"true"`
	Reason    string            `json:"reason" required:"true" enum:"asked,every,before,after,branched,imported,checkpoint" description:"Why it was taken: a client asked; it was time; before or after something; the jail was branched; it comes from another host; for an automatic checkpoint of a run."`
	Trigger   string            `json:"trigger,omitempty" description:"Of an automatic one: what it came before or after."`

	Memory   bool   `json:"memory" description:"Its processes are part of it, not its files alone."`
	Digest   string `json:"digest,omitempty" description:"Of the images of its processes."`
	Seq      uint64 `json:"seq" description:"Of the last record in the jail's log."`
	PausedUS int64  `json:"paused_us" description:"How long the jail waited, in microseconds."`
	Layering string `json:"layering,omitempty" enum:"copied,stacked" description:"How the writable layer of a live jail was taken."`

	Backend     string `json:"backend" required:"true"`
	Runtime     string `json:"runtime,omitempty"`
	Limits      Limits `json:"limits"`
	Network     string `json:"network" required:"true" enum:"isolated,proxy,bridged,full"`
	MemoryBytes int64  `json:"memory_bytes" description:"That the jail used."`
	DiskBytes   int64  `json:"disk_bytes" description:"That the jail had written."`
	PIDs        int64  `json:"pids" description:"Processes and threads that the jail had."`
	Host        Host   `json:"host" description:"Where it was taken."`
	Copies      int    `json:"copies,omitempty" description:"Frozen copies of it that wait to become branches."`

	Usage *SnapshotUsage    `json:"usage,omitempty" description:"What it takes on the disk. When one snapshot is asked for, or a list with usage=true."`
	Links map[string]string `json:"links,omitempty"`
}

// Host is what a snapshot needs of the host that goes on with its processes.
type Host struct {
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
}

// SnapshotUsage is what a snapshot takes on the disk.
type SnapshotUsage struct {
	OwnBytes    int64 `json:"own_bytes" description:"Would be free without it."`
	SharedBytes int64 `json:"shared_bytes" description:"Is there for jails and other snapshots as well."`
}

// Overrides are what may differ in jails made from a snapshot. What is left out
// is as it was, save the name and the labels, which a jail has for itself. Where
// all may be left out, so may the body.
type Overrides struct {
	Name     string            `json:"name,omitempty" description:"A name for people. Of several jails, each has its number at the end."`
	Labels   map[string]string `json:"labels,omitempty"`
	Hostname string            `json:"hostname,omitempty" description:"Default: the jail's id."`
	Limits   Limits            `json:"limits,omitzero"`
	Network  string            `json:"network,omitempty" enum:"isolated,proxy,bridged,full"`

	KeepConnections bool `json:"keep_connections,omitempty" description:"Refused: of a jail and its branches only one could speak on a connection. Rewind the jail instead."`
}

// Branch asks for jails that go on from where one was.
type Branch struct {
	Count int `json:"count" minimum:"1" maximum:"256" description:"Default 1."`
	Overrides
}

// Default sets what a request need not say.
func (b *Branch) Default() { b.Count = 1 }

// Branches are the jails that were made. At least one was, or the answer is a
// problem.
type Branches struct {
	Snapshot *Snapshot     `json:"snapshot,omitempty" description:"That was taken for them, if a jail was branched."`
	Jails    []Jail        `json:"jails" required:"true"`
	Errors   []BranchError `json:"errors,omitempty"`
}

// BranchError is why one of several jails was not made.
type BranchError struct {
	Number  int     `json:"number" required:"true" description:"Of the jail, from 1."`
	Problem Problem `json:"problem" required:"true"`
}

// Rewind says what a jail is taken back to.
type Rewind struct {
	Snapshot id.Snapshot `json:"snapshot" required:"true" description:"Of this jail, or of one that it comes from."`

	KeepConnections *bool `json:"keep_connections,omitempty" description:"What a program has connected outside of the jail goes on if the program has neither read nor written there since the snapshot; all else is closed, as everything is without this. Default: as snapshots.keep_connections of the jail says."`
}

// Warm asks for frozen copies of a snapshot, made ahead of need.
type Warm struct {
	Count int `json:"count" required:"true" minimum:"1" maximum:"256" description:"How many are to wait."`
}

// Warmed says how many frozen copies wait. They are fewer than were asked for if
// there is no memory for more.
type Warmed struct {
	Copies int `json:"copies" required:"true"`
}

// Origin is what a jail was made from.
type Origin struct {
	Snapshot id.Snapshot `json:"snapshot" required:"true"`
	Jail     id.Jail     `json:"jail" required:"true" description:"Of which the snapshot is."`
	Number   int         `json:"number" required:"true" description:"Among those made with it, from 1."`
}

// LineageJail is a jail with what comes from it.
type LineageJail struct {
	ID        id.Jail     `json:"id" required:"true"`
	Name      string      `json:"name,omitempty"`
	State     string      `json:"state" required:"true" description:"A jail's state, or gone: it was deleted, and its snapshots are there."`
	CreatedAt time.Time   `json:"created_at" required:"true"`
	Origin    *Origin     `json:"origin,omitempty"`
	Nearest   id.Snapshot `json:"nearest,omitempty" description:"The snapshot it is nearest to."`

	Snapshots []LineageSnapshot `json:"snapshots,omitempty" description:"Taken of it, oldest first."`
	Jails     []LineageJail     `json:"jails,omitempty" description:"Made from snapshots of it that are gone."`
}

// LineageSnapshot is a snapshot with what comes from it.
type LineageSnapshot struct {
	ID        id.Snapshot `json:"id" required:"true"`
	Name      string      `json:"name,omitempty"`
	Parent    id.Snapshot `json:"parent,omitempty" description:"The snapshot that the jail had been taken to, made from or rewound to last."`
	CreatedAt time.Time   `json:"created_at" required:"true"`
	Reason    string      `json:"reason" required:"true"`
	Trigger   string      `json:"trigger,omitempty"`
	Memory    bool        `json:"memory"`

	Jails []LineageJail `json:"jails,omitempty" description:"Made from it, oldest first."`
}

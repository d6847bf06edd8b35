package wire

import (
	"time"

	"glasshouse/id"
)

// TakeSnapshot configures a snapshot of a jail. The request body is optional.
type TakeSnapshot struct {
	Name     string            `json:"name,omitempty" description:"Name of the snapshot, which no other snapshot has."`
	Labels   map[string]string `json:"labels,omitempty"`
	Stop     bool              `json:"stop,omitempty" description:"Stop the jail after the snapshot."`
	Layering string            `json:"layering,omitempty" enum:"copied,stacked" description:"How the writable layer is saved. copied: it is copied, and the jail keeps its own. stacked: the jail continues on a new layer above it, and its external connections are closed. Default: copied where that is fast."`
}

// Snapshot is the saved state of a jail.
type Snapshot struct {
	ID        id.Snapshot       `json:"id" required:"true"`
	Jail      id.Jail           `json:"jail" required:"true" description:"The source jail of the snapshot. It may have been deleted."`
	JailName  string            `json:"jail_name,omitempty"`
	Parent    id.Snapshot       `json:"parent,omitempty" description:"The previous snapshot of the jail: the one last taken, made from or rewound to. It may have been deleted."`
	Name      string            `json:"name,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt time.Time         `json:"created_at" required:"true"`
	Reason    string            `json:"reason" required:"true" enum:"asked,every,before,after,branched,imported,copied,moved,checkpoint" description:"Why the snapshot was taken. asked: on request. every: by interval. before, after: by a command. branched: the jail was branched. imported: from another host. copied: a copy of a snapshot of another node of the fleet, which is not listed. moved: for a move of the jail to another node. checkpoint: for an automatic checkpoint of a run."`
	Trigger   string            `json:"trigger,omitempty" description:"For an automatic snapshot: the command that triggered it."`

	Memory   bool   `json:"memory" description:"The snapshot includes processes, not only files."`
	Digest   string `json:"digest,omitempty" description:"Digest of the process images."`
	Seq      uint64 `json:"seq" description:"Sequence number of the last event in the jail's log."`
	PausedUS int64  `json:"paused_us" description:"How long the jail was paused, in microseconds."`
	Layering string `json:"layering,omitempty" enum:"copied,stacked" description:"How the writable layer of a running jail was saved."`

	Backend     string `json:"backend" required:"true"`
	Runtime     string `json:"runtime,omitempty"`
	Limits      Limits `json:"limits"`
	Network     string `json:"network" required:"true" enum:"isolated,proxy,bridged,full"`
	MemoryBytes int64  `json:"memory_bytes" description:"Memory usage of the jail."`
	DiskBytes   int64  `json:"disk_bytes" description:"Bytes that the jail had written to disk."`
	PIDs        int64  `json:"pids" description:"Number of processes and threads."`
	Host        Host   `json:"host" description:"The host on which the snapshot was taken."`
	Copies      int    `json:"copies,omitempty" description:"Number of frozen copies that are ready to become branches."`

	Usage *SnapshotUsage    `json:"usage,omitempty" description:"Disk usage. Only in the response for a single snapshot, or with usage=true."`
	Links map[string]string `json:"links,omitempty"`
}

// Host is the properties of a host that are needed to restore processes.
type Host struct {
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu" description:"Model of the CPU."`
}

// SnapshotUsage is the disk usage of a snapshot.
type SnapshotUsage struct {
	OwnBytes    int64 `json:"own_bytes" description:"Bytes that deleting the snapshot would free."`
	SharedBytes int64 `json:"shared_bytes" description:"Bytes shared with jails and other snapshots."`
}

// Overrides are the settings that may differ in jails made from a snapshot. Omitted
// settings are taken from the snapshot, except for the name and the labels. If every
// setting is omitted, the request body is optional.
type Overrides struct {
	Name     string            `json:"name,omitempty" description:"Display name. If several jails are created, a number is appended."`
	Labels   map[string]string `json:"labels,omitempty"`
	Hostname string            `json:"hostname,omitempty" description:"Default: the jail's id."`
	Limits   Limits            `json:"limits,omitzero"`
	Network  string            `json:"network,omitempty" enum:"isolated,proxy,bridged,full"`

	KeepConnections bool `json:"keep_connections,omitempty" description:"Rejected if true: a connection cannot be shared between a jail and its branches. Rewind the jail instead."`
}

// Branch creates (forks) jails from a jail or snapshot.
type Branch struct {
	Count  int  `json:"count" minimum:"1" maximum:"256" description:"Number of jails to create. Default 1."`
	First  int  `json:"first,omitempty" minimum:"1" description:"Number of the first jail. If it is set, the name of a single jail has its number, too."`
	Spread bool `json:"spread,omitempty" description:"Divide the jails evenly among the nodes of the fleet."`
	Overrides
}

// Default sets the default values before a request is decoded.
func (b *Branch) Default() { b.Count = 1 }

// Branches are the created jails. There is at least one; if none could be created, the
// response is a problem.
type Branches struct {
	Snapshot *Snapshot     `json:"snapshot,omitempty" description:"The snapshot that was taken, if a jail was branched."`
	Jails    []Jail        `json:"jails" required:"true"`
	Errors   []BranchError `json:"errors,omitempty" description:"Errors of jails that were not created."`
}

// BranchError reports why one of several jails was not created.
type BranchError struct {
	Number  int     `json:"number" required:"true" description:"Number of the jail, from 1."`
	Problem Problem `json:"problem" required:"true"`
}

// Rewind selects the snapshot to rewind a jail to: one of snapshot and back.
type Rewind struct {
	Snapshot id.Snapshot `json:"snapshot,omitempty" description:"A snapshot of this jail or of an ancestor."`
	Back     int         `json:"back,omitempty" minimum:"1" description:"Go back this number of snapshots in the history of the jail. The newest one counts if the jail may have changed since. Changes are saved first, in a snapshot with the reason before and the trigger undo."`
	Discard  bool        `json:"discard,omitempty" description:"With back: do not save the changes."`

	KeepConnections *bool `json:"keep_connections,omitempty" description:"Keep the external connections on which the program has neither read nor written since the snapshot. All other external connections are closed. Default: snapshots.keep_connections of the jail."`
}

// Warm sets the number of frozen copies of a snapshot to create in advance.
type Warm struct {
	Count int `json:"count" required:"true" minimum:"1" maximum:"256" description:"Number of frozen copies to keep ready."`
}

// Warmed is the number of frozen copies that are ready. It is less than requested if
// there is not enough memory.
type Warmed struct {
	Copies int `json:"copies" required:"true" description:"Number of frozen copies that are ready."`
}

// Origin is the snapshot that a jail was made from.
type Origin struct {
	Snapshot id.Snapshot `json:"snapshot" required:"true"`
	Jail     id.Jail     `json:"jail" required:"true" description:"The source jail of the snapshot."`
	Number   int         `json:"number" required:"true" description:"Number of the jail among those created by the same request, from 1."`
}

// LineageJail is a jail with its descendants.
type LineageJail struct {
	ID        id.Jail     `json:"id" required:"true"`
	Name      string      `json:"name,omitempty"`
	State     string      `json:"state" required:"true" description:"State of the jail, or gone if it was deleted and has snapshots."`
	CreatedAt time.Time   `json:"created_at" required:"true"`
	Origin    *Origin     `json:"origin,omitempty"`
	Nearest   id.Snapshot `json:"nearest,omitempty" description:"The snapshot that was last taken of the jail, that it was made from, or that it was last rewound to."`

	Snapshots []LineageSnapshot `json:"snapshots,omitempty" description:"Snapshots of the jail, oldest first."`
	Jails     []LineageJail     `json:"jails,omitempty" description:"Jails made from deleted snapshots of the jail."`
}

// LineageSnapshot is a snapshot with its descendants.
type LineageSnapshot struct {
	ID        id.Snapshot `json:"id" required:"true"`
	Name      string      `json:"name,omitempty"`
	Parent    id.Snapshot `json:"parent,omitempty" description:"The previous snapshot of the jail: the one last taken, made from or rewound to."`
	CreatedAt time.Time   `json:"created_at" required:"true"`
	Reason    string      `json:"reason" required:"true"`
	Trigger   string      `json:"trigger,omitempty"`
	Memory    bool        `json:"memory" description:"The snapshot includes processes, not only files."`

	Jails []LineageJail `json:"jails,omitempty" description:"Jails made from the snapshot, oldest first."`
}

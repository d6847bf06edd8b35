// Package snapshot saves the state of jails. It takes snapshots, rewinds jails to them,
// creates new jails from them, and records the lineage.
//
// A snapshot is a directory below that of its jail:
//
//	{data}/jails/{jail}/snapshots/{id}/
//	    metadata.json   copy of the record for people and other hosts
//	    fs-upper.img    the sealed writable layer
//	    fs-flat-1.img   this layer and all lower ones merged, once they are many
//	    criu-dump/      the memory images, if it has any, in the image store
//	    processes.json  list of the processes, for comparisons
//
// The record in the database is written last, so a snapshot either exists completely or not at
// all. A layer is kept as long as a jail or another snapshot uses it, even when its own
// snapshot is deleted.
package snapshot

import (
	"context"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
)

// A Snapshot is the saved state of a jail.
type Snapshot struct {
	ID      id.Snapshot       `json:"id"`
	Jail    jail.Jail         `json:"jail"`             // at that time; Sealed begins with the snapshot's own layer
	Parent  id.Snapshot       `json:"parent,omitempty"` // the previous snapshot of the jail, or the one it was created from or rewound to
	Name    string            `json:"name,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created"`
	Reason  Reason            `json:"reason"`
	Trigger string            `json:"trigger,omitempty"` // for an automatic snapshot: the command before or after which it was taken

	Memory   bool          `json:"memory"`             // it contains the processes
	Digest   string        `json:"digest,omitempty"`   // digest of the memory images
	Seq      uint64        `json:"seq"`                // the last record of the jail's event log
	Paused   time.Duration `json:"paused"`             // duration of the pause
	Layering jail.Layering `json:"layering,omitempty"` // how the layer was taken
	Stats    jail.Stats    `json:"stats"`              // resource usage of the jail

	Flattened []string `json:"flattened,omitempty"` // the layers that were merged into its single layer
	Host      Host     `json:"host"`                // where it was taken
}

// Reason is why a snapshot was taken.
type Reason string

const (
	Requested Reason = "asked"    // requested by a user
	Periodic  Reason = "every"    // periodic
	Before    Reason = "before"   // before a command
	After     Reason = "after"    // after a command
	Branched  Reason = "branched" // taken to branch a running jail
	Imported  Reason = "imported" // imported from an archive
	Moved     Reason = "moved"    // taken to move the jail to another node, and then deleted
	Copied    Reason = "copied"   // a copy of a snapshot of another host, which is not listed

	// Checkpoint is an automatic checkpoint of a run. The gateway removes it when there are
	// newer ones, and it is deleted with its jail.
	Checkpoint Reason = "checkpoint"
)

// Host describes the properties of a host that matter for restoring processes.
type Host struct {
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
}

// A Store persists the snapshot records. Put returns when the record would survive a power
// failure.
type Store interface {
	Put(ctx context.Context, s Snapshot) error
	All(ctx context.Context) ([]Snapshot, error)
	Delete(ctx context.Context, sid id.Snapshot) error
}

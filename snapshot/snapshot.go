// Package snapshot keeps jails as they were at one moment: takes snapshots,
// goes back to them, makes new jails from them, and knows which came from which.
//
// A snapshot is a directory below that of the jail it was taken of:
//
//	{data}/jails/{jail}/snapshots/{id}/
//	    metadata.json   the record, a copy for people and for other hosts
//	    fs-upper.img    the sealed writable layer
//	    fs-flat-1.img   it and all below it as one layer, once they are many
//	    criu-dump/      its processes, if it had any, in the store of images
//	    processes.json  what they are, for comparisons
//
// The record in the database is written last: a snapshot is there, complete, or
// it is not. A layer stays as long as a jail or another snapshot stands on it,
// also when its own snapshot is deleted.
package snapshot

import (
	"context"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
)

// A Snapshot is a jail as it was at one moment.
type Snapshot struct {
	ID      id.Snapshot       `json:"id"`
	Jail    jail.Jail         `json:"jail"`             // as it was; Sealed begins with the snapshot's own layer
	Parent  id.Snapshot       `json:"parent,omitempty"` // the snapshot that the jail was taken to, made from or rewound to last
	Name    string            `json:"name,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created"`
	Reason  Reason            `json:"reason"`
	Trigger string            `json:"trigger,omitempty"` // of an automatic one: what it came before or after

	Memory   bool          `json:"memory"`             // its processes are part of it
	Digest   string        `json:"digest,omitempty"`   // of their images
	Seq      uint64        `json:"seq"`                // the last record in the jail's log
	Paused   time.Duration `json:"paused"`             // how long the jail waited
	Layering jail.Layering `json:"layering,omitempty"` // how the layer was taken
	Stats    jail.Stats    `json:"stats"`              // what the jail used

	Flattened []string `json:"flattened,omitempty"` // the layers that its one layer was made of, and stands for
	Host      Host     `json:"host"`                // where it was taken
}

// Reason is why a snapshot was taken.
type Reason string

const (
	Asked    Reason = "asked"    // somebody wanted it
	Every    Reason = "every"    // it was time
	Before   Reason = "before"   // something was about to happen
	After    Reason = "after"    // a command had ended
	Branched Reason = "branched" // a running jail was branched
	Imported Reason = "imported" // it comes from another host

	// Checkpoint is for an automatic checkpoint of a run. The gateway removes it
	// when there are newer ones, and it is deleted with its jail.
	Checkpoint Reason = "checkpoint"
)

// Host is what a snapshot needs of the host that goes on with its processes.
type Host struct {
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
}

// A Store keeps the record of every snapshot. Put returns when the record would
// survive a power cut.
type Store interface {
	Put(ctx context.Context, s Snapshot) error
	All(ctx context.Context) ([]Snapshot, error)
	Delete(ctx context.Context, sid id.Snapshot) error
}

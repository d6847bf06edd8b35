// Package remote copies snapshots of runs to an object store, from which another host restores
// them if theirs is lost.
//
// The copy of a snapshot is an archive as written by snapshot.Export, encrypted with a key that
// only the daemons have. Without the key a user can neither read nor forge it. The archive
// contains its name, so that none can be exchanged for another.
package remote

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/snapshot"
	"glasshouse/object"
)

// A Manager manages the snapshots of this host. *snapshot.Manager implements it.
type Manager interface {
	Get(ctx context.Context, s id.Snapshot) (snapshot.Snapshot, error)
	ExportInBackground(ctx context.Context, s id.Snapshot, w io.Writer) error
	Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Snapshot, error)
}

// Snapshots are the copies of the snapshots of runs in an object store.
type Snapshots struct {
	Objects object.Store
	Local   Manager

	Key *age.X25519Identity // encrypts the copies
}

// prefix is the beginning of the keys of all copies.
const prefix = "runs/"

func key(r id.Run, s id.Snapshot) string { return prefix + string(r) + "/" + string(s) }

// Store copies a snapshot of this host to the object store, unless it is there.
func (ss *Snapshots) Store(ctx context.Context, r id.Run, s id.Snapshot) error {
	k := key(r, s)
	if _, err := ss.Objects.Head(ctx, k); err == nil {
		return nil
	} else if !errors.Is(err, fault.NotFound) {
		return err
	}
	return object.PutSealed(ctx, ss.Objects, k, ss.Key, func(w io.Writer) error { return ss.Local.ExportInBackground(ctx, s, w) })
}

// Load copies a snapshot to this host, unless it is here. sources are the sources of its mounts
// on this host, by target. Concurrent calls must be for different snapshots.
func (ss *Snapshots) Load(ctx context.Context, r id.Run, s id.Snapshot, sources map[string]string) error {
	if _, err := ss.Local.Get(ctx, s); !errors.Is(err, fault.NotFound) {
		return err
	}
	k := key(r, s)
	for n := 1; ; n++ {
		err := object.ReadSealed(ctx, ss.Objects, k, ss.Key, func(r io.Reader) error {
			_, err := ss.Local.Import(ctx, r, snapshot.ImportOptions{Move: true, Trusted: true, Sources: sources})
			return err
		})
		if !errors.Is(err, fault.Invalid) || n == maxLoads {
			return err
		}
	}
}

// maxLoads is how often a copy is read if it appears damaged: the damage may be that of one transfer.
const maxLoads = 3

// Prune deletes the copies of the snapshots of a run, except for one. keep may be "".
func (ss *Snapshots) Prune(ctx context.Context, r id.Run, keep id.Snapshot) error {
	var old []string
	for o, err := range ss.Objects.List(ctx, prefix+string(r)+"/") {
		if err != nil {
			return err
		}
		if keep == "" || o.Key != key(r, keep) {
			old = append(old, o.Key)
		}
	}
	for _, k := range old {
		if err := ss.Objects.Delete(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// minAge is how long a copy exists at least before Runs returns its run.
const minAge = time.Hour

// Runs returns the runs that have copies which are older than an hour.
func (ss *Snapshots) Runs(ctx context.Context) ([]id.Run, error) {
	var all []id.Run
	for o, err := range ss.Objects.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		r, _, ok := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/")
		if ok && time.Since(o.Modified) > minAge {
			all = append(all, id.Run(r))
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

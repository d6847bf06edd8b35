package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/backend/oci"
	"glasshouse/chain"
	"glasshouse/event"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/snapshot"
)

// openSnapshots makes the keeper of snapshots. The jails are open.
func (d *Daemon) openSnapshots(ctx context.Context) error {
	c := d.Config
	hot, err := d.mountHot()
	if err != nil {
		return err
	}
	d.snapshots = snapshot.New(snapshot.Config{
		Dir: filepath.Join(c.Data, "jails"), Pages: filepath.Join(c.Data, "pages"),
		Hot: hot, HotMB: c.Snapshots.MemoryMB,
		Jails: d.jails, Store: d.store.Snapshots(), Log: d.log.With("part", "snapshot"),
		Copies:  snapshot.Copies{Count: c.Snapshots.Copies, MemoryMB: c.Snapshots.CopiesMB},
		Records: d.observers.Log,
		Layers:  oci.Layers{Templates: filepath.Join(c.Data, "templates")},
		Lower:   d.lower,
		DiskMB:  c.Snapshots.DiskMB,
		Inherit: govern.Inherit,
		Told:    d.tellOfSnapshot,
	})
	d.onClose(func() error { return errors.Join(d.snapshots.Close(), dropHot(hot)) })
	if err := d.snapshots.Open(ctx); err != nil {
		return err
	}
	d.keeper.Store(d.snapshots)
	return nil
}

var snapshotKinds = map[snapshot.Op]chain.Kind{
	snapshot.OpTaken: chain.SnapshotTaken, snapshot.OpDeleted: chain.SnapshotDeleted,
	snapshot.OpBranched: chain.JailBranched, snapshot.OpRewound: chain.JailRewound,
}

// tellOfSnapshot has the chain say what happened to a snapshot. It holds the
// digest of what was written down of the jail's memory, and up to which of its
// records that was.
func (d *Daemon) tellOfSnapshot(h snapshot.Happening) {
	s := h.Snapshot
	d.kernel.Note(snapshotKinds[h.Op], policy.Subject{Jail: h.Jail}, 0, struct {
		Snapshot id.Snapshot     `json:"snapshot"`
		Of       id.Jail         `json:"of"`
		Parent   id.Snapshot     `json:"parent,omitempty"`
		Reason   snapshot.Reason `json:"reason,omitempty"`
		Digest   string          `json:"digest,omitempty"`
		Seq      uint64          `json:"seq,omitempty"`
		Number   int             `json:"number,omitempty"`
	}{s.ID, s.Jail.ID, s.Parent, s.Reason, s.Digest, s.Seq, h.Number})
}

// lower returns the layers of a root filesystem that is kept.
func (d *Daemon) lower(_ context.Context, r jail.Rootfs, digest string) ([]string, error) {
	l, err := d.images.Kept(r, digest)
	if err != nil {
		return nil, err
	}
	return []string{l.Dir}, nil
}

// commands tells the keeper of snapshots of the commands that are asked for. It
// is made after the jails are; until it is there none is asked for.
type commands struct{ d *Daemon }

func (c commands) Before(ctx context.Context, jid id.Jail, argv []string) {
	if k := c.d.keeper.Load(); k != nil {
		k.Before(ctx, jid, argv)
	}
}

func (c commands) After(ctx context.Context, jid id.Jail, argv []string) {
	if k := c.d.keeper.Load(); k != nil {
		k.After(ctx, jid, argv)
	}
}

// began tells it of the programs that jails begin.
func (d *Daemon) began(jid id.Jail, e *event.Event) {
	if k := d.keeper.Load(); k != nil {
		k.Began(jid, e)
	}
}

// mountHot returns a directory in memory, with a little more room than is used.
// Without root it is an ordinary one, which nothing will be put into.
func (d *Daemon) mountHot() (string, error) {
	dir := filepath.Join(d.Config.Data, "run", "hot")
	if err := os.MkdirAll(dir, 0o700); err != nil || os.Geteuid() != 0 {
		return dir, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", err
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return dir, nil // an earlier daemon's
	}
	size := fmt.Sprintf("mode=0700,size=%dm", d.Config.Snapshots.MemoryMB+d.Config.Snapshots.MemoryMB/8+64)
	if err := unix.Mount("hot", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, size); err != nil {
		return "", &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return "", &os.PathError{Op: "keep private", Path: dir, Err: err}
	}
	return dir, nil
}

// dropHot gives the memory back. What was in it is on the disk as well.
func dropHot(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return nil
}

package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/event"
	"glasshouse/policy"
	"glasshouse/policy/chain"
)

// newSnapshots creates the snapshots. The jails are opened before them.
func (d *Daemon) newSnapshots() error {
	c := d.Config
	hot, err := d.mountHot()
	if err != nil {
		return fmt.Errorf("mount the memory cache of snapshots: %w", err)
	}
	diskMB, err := c.Snapshots.limitMB(c.Data)
	if err != nil {
		return fmt.Errorf("compute the disk limit of snapshots: %w", err)
	}
	d.onClose(func() error { return dropHot(hot) })
	d.snapshots = snapshot.New(snapshot.Config{
		Dir: filepath.Join(c.Data, "jails"), Pages: filepath.Join(c.Data, "pages"),
		Hot: hot, HotMB: c.Snapshots.MemoryMB,
		Jails: d.jails, Store: d.store.Snapshots(), Log: d.log.With("part", "snapshot"),
		Spares:        snapshot.SpareConfig{Count: c.Snapshots.Copies, MemoryMB: c.Snapshots.CopiesMB},
		Logs:          d.observers.Log,
		Layers:        map[string]snapshot.Layers{"oci": oci.Layers{Templates: filepath.Join(c.Data, "templates")}, "microvm": microvm.Layers{}},
		LowerLayers:   d.lower,
		DiskMB:        diskMB,
		InheritPolicy: govern.Inherit,
		Notify:        d.tellOfSnapshot,
	})
	return nil
}

// limitMB returns the limit of all automatic snapshots in MiB, with the data directory dir; 0 is no
// limit.
func (s Snapshots) limitMB(dir string) (int64, error) {
	if s.DiskMB > 0 || s.Share == 0 {
		return s.DiskMB, nil
	}
	limit, err := shareOf(dir, s.Share)
	return max(1, limit>>20), err // 0 would be no limit
}

var snapshotKinds = map[snapshot.Op]chain.Kind{
	snapshot.OpTaken: chain.SnapshotTaken, snapshot.OpDeleted: chain.SnapshotDeleted,
	snapshot.OpBranched: chain.JailBranched, snapshot.OpRewound: chain.JailRewound,
}

// tellOfSnapshot records a snapshot operation in the audit log. The entry contains the digest
// of the memory dump and the sequence number of the last event included.
func (d *Daemon) tellOfSnapshot(h snapshot.Notification) {
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

// lower returns the layers of a cached root filesystem.
func (d *Daemon) lower(_ context.Context, r jail.Rootfs, digest string) ([]string, error) {
	l, err := d.images.Kept(r, digest)
	if err != nil {
		return nil, err
	}
	return []string{l.Dir}, nil
}

// commands reports requested commands to the snapshots, which are created after the jails.
type commands struct{ d *Daemon }

func (c commands) Before(ctx context.Context, jid id.Jail, argv []string) {
	c.d.snapshots.Before(ctx, jid, argv)
}

func (c commands) After(ctx context.Context, jid id.Jail, argv []string) {
	c.d.snapshots.After(ctx, jid, argv)
}

// programStarted reports started programs to the snapshots.
func (d *Daemon) programStarted(jid id.Jail, e *event.Event) { d.snapshots.ProgramStarted(jid, e) }

// mountHot returns a tmpfs directory slightly larger than the configured cache. Without root
// it is an ordinary directory, which is not used.
func (d *Daemon) mountHot() (string, error) {
	dir := filepath.Join(d.Config.Data, "run", "hot")
	if err := os.MkdirAll(dir, 0o700); err != nil || os.Geteuid() != 0 {
		return dir, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", fmt.Errorf("check whether %s is a tmpfs: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return dir, nil // mounted by an earlier daemon
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

// dropHot unmounts the cache. Its contents are also stored on disk.
func dropHot(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return nil
}

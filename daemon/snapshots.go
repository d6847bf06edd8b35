package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

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
	})
	d.onClose(func() error { return errors.Join(d.snapshots.Close(), dropHot(hot)) })
	return d.snapshots.Open(ctx)
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

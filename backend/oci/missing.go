package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/fault"
	"glasshouse/host/criu"
	"glasshouse/host/pages"
	"glasshouse/jail"
)

// Jails that run without all of their memory. What is missing they are given when
// they touch it, by a server that all jails made from the same images share. As
// long as a jail needs it, a link in the jail's directory leads to its socket; the
// server removes that. So a link that leads to nobody tells that memory is lost.

// lazyFrom is the memory from which on a jail is made without it: below, to read it
// takes no longer than to have it served.
const lazyFrom = 24 << 20

// lazily reports whether a jail is made from images without its memory. The jail's
// seccomp profile keeps what that needs from the jail itself.
func (b *Backend) lazily(images string) bool {
	v, err := os.ReadFile("/proc/sys/vm/unprivileged_userfaultfd")
	return err == nil && len(v) > 0 && v[0] == '1' && b.large(images)
}

func (b *Backend) large(images string) bool {
	entries, err := os.ReadDir(images)
	if err != nil {
		return false
	}
	var total int64
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "pages-") {
			continue
		}
		if fi, err := e.Info(); err == nil {
			total += fi.Size()
		}
	}
	return total >= b.lazyFrom
}

// makeImages makes the images that the jail is made from its own, and has a server wait
// for it if it is to be made without its memory.
func (m *making) makeImages(ctx context.Context) error {
	p, l := m.plan, m.layout
	m.images = m.from + "." + string(p.ID)
	m.undo.Push("remove the copy of the images", func() error { return dropImages(p, l) })
	if err := os.Symlink(m.images, l.images()); err != nil {
		return err
	}
	if err := criu.Adopt(m.from, m.images, criu.Identity{FirstID: p.IDs.First, Hostname: p.Hostname}); err != nil {
		return err
	}
	if !m.backend.lazily(m.images) {
		return nil
	}
	missing, err := criu.MapOf(m.images)
	if err != nil {
		return err
	}
	if err := pages.PutMap(m.images, missing); err != nil {
		return err
	}
	return m.serve(ctx)
}

// serve has the server of the images wait for the jail.
func (m *making) serve(ctx context.Context) error {
	b, p, l := m.backend, m.plan, m.layout
	dir := filepath.Join(b.cfg.RunDir, "pages")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	sock := filepath.Join(dir, filepath.Base(m.from)+".sock")
	m.undo.Push("call the server of memory off", func() error {
		if m.memory != nil {
			m.memory.Close()
		}
		return os.RemoveAll(l.missing())
	})
	if err := os.Symlink(sock, l.missing()); err != nil {
		return err
	}
	b.servers.Lock()
	defer b.servers.Unlock()
	branch := pages.Branch{Name: string(p.ID), Dir: m.images, Marker: l.missing()}
	memory, err := pages.Client{Sock: sock}.Serve(ctx, branch)
	if errors.Is(err, pages.ErrNoServer) {
		if _, err := pages.Start(sock, m.server, "pages"); err != nil {
			return err
		}
		memory, err = pages.Client{Sock: sock}.Serve(ctx, branch)
	}
	m.memory = memory
	return err
}

// watchMemory has the jail end if what it needs of its memory is lost: it would
// find zeros. The Watch is the instance's.
func (i *instance) watchMemory(w *pages.Watch) {
	i.memory = w
	i.watch.Go(func() {
		err := w.Wait()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return
		}
		i.loseMemory(err)
	})
}

func (i *instance) loseMemory(err error) {
	why := "the memory that it had not touched since it was branched is lost: " + err.Error()
	i.why.Store(&why)
	if err := i.cgroup.Kill(context.Background()); err != nil {
		i.backend.log.Error("a jail without its memory is not dead", "jail", i.plan.ID, "err", err)
	}
}

// findMemory watches over the memory of a jail that an earlier daemon made.
func (i *instance) findMemory(ctx context.Context) error {
	marker := i.layout.missing()
	sock, err := os.Readlink(marker)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w, err := pages.Client{Sock: sock}.Watch(ctx, string(i.plan.ID))
	switch {
	case err == nil:
		i.watchMemory(w)
	case errors.Is(err, pages.ErrNone):
		return os.RemoveAll(marker)
	case ctx.Err() != nil:
		return err
	default:
		if _, gone := os.Lstat(marker); errors.Is(gone, fs.ErrNotExist) {
			return nil // it was given all meanwhile
		}
		i.loseMemory(err)
	}
	return nil
}

// Why implements jail.Witness.
func (i *instance) Why() string {
	if why := i.why.Load(); why != nil {
		return *why
	}
	return ""
}

// fill has all of the jail's memory be there: what is missing cannot be written
// down.
func (i *instance) fill(ctx context.Context) error {
	sock, err := os.Readlink(i.layout.missing())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	server := pages.Client{Sock: sock}
	left, err := server.Left(ctx, string(i.plan.ID))
	if err != nil {
		return err
	}
	used, err := i.cgroup.Stats()
	if err != nil {
		return err
	}
	if limit := i.bounds().MemoryMB << 20; limit > 0 && used.MemoryBytes+left > limit {
		return fault.Cannot("snapshot", fmt.Sprintf("the memory limit of %d MiB is too low: %d MiB of lazily restored memory must be loaded before a snapshot",
			i.bounds().MemoryMB, left>>20), "branch with a higher memory limit")
	}
	if err := server.Fill(ctx, string(i.plan.ID)); err != nil {
		return fmt.Errorf("have all memory of %s there: %w", i.plan.ID, err)
	}
	return nil
}

// dropImages removes the jail's own copy of the images that it is made from, which
// a crash may have left.
func dropImages(p jail.Plan, l layout) error {
	images, err := os.Readlink(l.images())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !filepath.IsAbs(images) || filepath.Ext(images) != "."+string(p.ID) {
		return fmt.Errorf("%s leads to %s", l.images(), images)
	}
	return errors.Join(os.RemoveAll(images), os.Remove(l.images()))
}

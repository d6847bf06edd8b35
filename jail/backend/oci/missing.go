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
	"time"

	"glasshouse/fault"
	"glasshouse/host/criu"
	"glasshouse/host/pages"
	"glasshouse/jail"
)

// Lazy memory (on-demand paging). A page server, shared by all jails restored from the same
// images, provides missing memory when a jail touches it (userfaultfd(2)). While a jail needs
// the server, a link in the jail's directory points to the server's socket. The server removes
// the link when all memory is loaded. A link to a socket without a server therefore means that
// memory is lost.

// lazyThreshold is the memory size from which a jail is restored lazily. Reading less takes no
// longer than serving it.
const lazyThreshold = 24 << 20

// useLazyMemory reports whether a jail is restored from images without its memory. CRIU then
// needs userfaultfd in the jail's user namespace. The seccomp profile denies it to the jail
// itself.
func (b *Backend) useLazyMemory(images string) bool {
	// With the value 0, userfaultfd(2) requires CAP_SYS_PTRACE in the initial user namespace, which
	// processes of the jail's user namespace lack.
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
	return total >= b.lazyThreshold
}

// makeImages creates the jail's copy of the images and registers the jail with a page server
// if its memory is loaded lazily.
func (m *builder) makeImages(ctx context.Context) error {
	p, l := m.plan, m.layout
	m.images = m.sourceImages + "." + string(p.ID)
	m.undo.Push("remove the copy of the images", func() error { return dropImages(p, l) })
	// The link exists before the copy: after a crash, dropImages finds the copy by it.
	if err := os.Symlink(m.images, l.images()); err != nil {
		return fmt.Errorf("record the path of the images: %w", err)
	}
	if err := criu.CopyImages(m.sourceImages, m.images, criu.Identity{FirstID: p.IDs.First, Hostname: p.Hostname}); err != nil {
		return fmt.Errorf("copy the images: %w", err)
	}
	if !m.backend.useLazyMemory(m.images) {
		return nil
	}
	missing, err := criu.LazyMap(m.images)
	if err != nil {
		return fmt.Errorf("map the memory to load on demand: %w", err)
	}
	if err := pages.PutMap(m.images, missing); err != nil {
		return fmt.Errorf("write the map of the memory to load on demand: %w", err)
	}
	return m.startPageServer(ctx)
}

// startPageServer registers the jail with the page server of the images and starts the server
// if necessary.
func (m *builder) startPageServer(ctx context.Context) error {
	b, p, l := m.backend, m.plan, m.layout
	dir := filepath.Join(b.cfg.RunDir, "pages")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the page server: %w", err)
	}
	sock := filepath.Join(dir, filepath.Base(m.sourceImages)+".sock")
	m.undo.Push("unregister from the page server", func() error {
		if m.memoryWatch != nil {
			m.memoryWatch.Close()
		}
		return os.RemoveAll(l.missing())
	})
	if err := os.Symlink(sock, l.missing()); err != nil {
		return fmt.Errorf("record the socket of the page server: %w", err)
	}
	b.servers.Lock()
	defer b.servers.Unlock()
	branch := pages.Branch{Name: string(p.ID), Dir: m.images, Marker: l.missing()}
	memory, err := pages.Client{Sock: sock}.Serve(ctx, branch)
	if errors.Is(err, pages.ErrNoServer) {
		if _, err := pages.Start(sock, m.pageServer, "pages"); err != nil {
			return err
		}
		memory, err = pages.Client{Sock: sock}.Serve(ctx, branch)
	}
	m.memoryWatch = memory
	if err != nil {
		return fmt.Errorf("register with the page server: %w", err)
	}
	return nil
}

// watchMemory kills the jail if its missing memory is lost, because it would read zeros. The
// instance owns w.
func (i *instance) watchMemory(w *pages.Watch) {
	i.memory, i.memoryDone = w, make(chan struct{})
	go func() {
		defer close(i.memoryDone)
		err := w.Wait()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return
		}
		i.killWithoutMemory(err)
	}()
}

func (i *instance) killWithoutMemory(err error) {
	why := "lazily loaded memory of the branch is lost: " + err.Error()
	i.killReason.Store(&why)
	if err := i.cgroup.Kill(context.Background()); err != nil {
		i.backend.log.Error("failed to kill a jail that lost its memory", "jail", i.plan.ID, "err", err)
	}
}

// reopenMemory watches the lazily loaded memory of a jail that an earlier daemon created.
func (i *instance) reopenMemory(ctx context.Context) error {
	marker := i.layout.missing()
	sock, err := os.Readlink(marker)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the page server: %w", err)
	}
	w, err := pages.Client{Sock: sock}.Watch(ctx, string(i.plan.ID))
	switch {
	case err == nil:
		i.watchMemory(w)
	case errors.Is(err, pages.ErrUnknownBranch):
		return os.RemoveAll(marker)
	case ctx.Err() != nil:
		return err
	default:
		if _, gone := os.Lstat(marker); errors.Is(gone, fs.ErrNotExist) {
			return nil // all memory is now loaded
		}
		i.killWithoutMemory(err)
	}
	return nil
}

// ExitReason implements jail.ExitExplainer.
func (i *instance) ExitReason() string {
	select {
	case <-i.Done():
		// When the page server dies, the kernel closes its userfaultfds before the connection of
		// the watch. Processes that then read zeros can end before the watch does.
		if i.memoryDone != nil {
			select {
			case <-i.memoryDone:
			case <-time.After(time.Second): // the server lives and has not noticed the end of the jail
			}
		}
	default:
	}
	if why := i.killReason.Load(); why != nil {
		return *why
	}
	return ""
}

// loadMemory loads all missing memory of the jail, because CRIU cannot dump missing pages.
func (i *instance) loadMemory(ctx context.Context) error {
	sock, err := os.Readlink(i.layout.missing())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the page server: %w", err)
	}
	server := pages.Client{Sock: sock}
	left, err := server.Left(ctx, string(i.plan.ID))
	if err != nil {
		return fmt.Errorf("get the amount of missing memory: %w", err)
	}
	used, err := i.cgroup.Stats()
	if err != nil {
		return err
	}
	if limit := i.Limits().MemoryMB << 20; limit > 0 && used.MemoryBytes+left > limit {
		return fault.Cannot("oci.loadMemory", fmt.Sprintf("the memory limit of %d MiB is too low: %d MiB of lazily restored memory must be loaded before a snapshot",
			i.Limits().MemoryMB, left>>20), "branch with a higher memory limit")
	}
	if err := server.Fill(ctx, string(i.plan.ID)); err != nil {
		return fmt.Errorf("load memory of %s: %w", i.plan.ID, err)
	}
	return nil
}

// dropImages removes the jail's copy of the images, including one that remained after a crash.
func dropImages(p jail.Plan, l layout) error {
	images, err := os.Readlink(l.images())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the copy of the images: %w", err)
	}
	if !filepath.IsAbs(images) || filepath.Ext(images) != "."+string(p.ID) {
		return fmt.Errorf("%s points to %s, which is not a copy of images", l.images(), images)
	}
	return errors.Join(os.RemoveAll(images), os.Remove(l.images()))
}

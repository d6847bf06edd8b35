package microvm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/guest/wire"
)

// modules are the kernel modules that a guest needs, in an order in which they can be loaded. Some
// kernels have them built in.
var modules = []string{"virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "virtio_console", "failover", "net_failover",
	"virtio_net", "inet_diag", "tcp_diag", "overlay"}

// A kernel is an installed kernel.
type kernel struct {
	release string
	image   string // file of the boot directory
	modules string // directory of its modules
}

// kernel returns the newest kernel of the first directory that has one.
func (b *Backend) kernel() (kernel, error) {
	for _, dir := range b.cfg.Kernels {
		names, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*-cloud-*"))
		if err != nil {
			return kernel{}, err
		}
		slices.SortFunc(names, func(a, b string) int { return compareReleases(releaseOf(b), releaseOf(a)) })
		for _, name := range names {
			k := kernel{release: releaseOf(name), image: name}
			for _, place := range []string{"usr/lib/modules", "lib/modules"} {
				k.modules = filepath.Join(dir, place, k.release)
				if st, err := os.Stat(k.modules); err == nil && st.IsDir() {
					return k, nil
				}
			}
		}
	}
	return kernel{}, fault.Cannot("microvm.kernel", "no kernel for virtual machines is installed",
		"run make setup WITH=microvm, or install Debian's package linux-image-cloud-amd64")
}

func releaseOf(image string) string { return strings.TrimPrefix(filepath.Base(image), "vmlinuz-") }

// compareReleases compares kernel releases such as 6.1.0-57-cloud-amd64 by their numbers.
func compareReleases(a, b string) int {
	if c := semver.Compare(versionOf(a), versionOf(b)); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

// versionOf returns the numbers of a release as a semantic version: v6.1.0-57.
func versionOf(release string) string {
	parts := strings.SplitN(release, "-", 3)
	return "v" + strings.Join(parts[:min(2, len(parts))], "-")
}

// boot returns open files of the kernel and the initial file system of the jail's machine.
func (b *Backend) boot(init string) (image, initrd *os.File, err error) {
	k, err := b.kernel()
	if err != nil {
		return nil, nil, err
	}
	initrd, err = b.initrd(k, init)
	if err != nil {
		return nil, nil, fmt.Errorf("make the initial file system: %w", err)
	}
	image, err = os.Open(k.image)
	if err != nil {
		return nil, nil, errors.Join(err, initrd.Close())
	}
	return image, initrd, nil
}

// initrd opens the initial file system for a kernel, and makes it if it is missing.
func (b *Backend) initrd(k kernel, init string) (*os.File, error) {
	agent, err := b.cfg.Guest()
	if err != nil {
		return nil, err
	}
	files, err := b.initialFiles(k, agent, init)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, k.release)
	for _, f := range files {
		fmt.Fprintln(sum, f.name, f.from, f.size, f.modified)
	}
	name := filepath.Join(b.cfg.Cache, "initrd-"+hex.EncodeToString(sum.Sum(nil)[:16]))
	return b.cached(name, func(part *os.File) error { return writeInitial(part, files) })
}

// An initialFile is a file of the initial file system.
type initialFile struct {
	name     string
	from     string
	size     int64
	modified int64
}

// initialFiles lists the files of the initial file system.
func (b *Backend) initialFiles(k kernel, agent, init string) ([]initialFile, error) {
	list := []initialFile{{name: wire.AgentPath, from: agent}, {name: wire.InitProgram, from: init}}
	found, err := b.findModules(k.modules)
	if err != nil {
		return nil, err
	}
	for n, name := range b.guestModules() {
		if from := found[name]; from != "" {
			list = append(list, initialFile{name: fmt.Sprintf("%s/%02d-%s", wire.ModulesDir, n, filepath.Base(from)), from: from})
		}
	}
	for n := range list {
		st, err := os.Stat(list[n].from)
		if err != nil {
			return nil, err
		}
		list[n].size, list[n].modified = st.Size(), st.ModTime().UnixNano()
	}
	return list, nil
}

// guestModules returns the names of the modules that a guest needs.
func (b *Backend) guestModules() []string { return slices.Concat(modules, b.vmm.modules()) }

// findModules returns the files of the modules that a guest needs, by name. A kernel has thousands of
// modules, so the directory is read once.
func (b *Backend) findModules(dir string) (map[string]string, error) {
	if known, ok := b.modules.Load(dir); ok {
		return known.(map[string]string), nil
	}
	found, wanted := map[string]string{}, b.guestModules()
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _, module := strings.Cut(filepath.Base(path), ".ko")
		name = strings.ReplaceAll(name, "-", "_")
		if module && slices.Contains(wanted, name) {
			found[name] = path
		}
		return nil
	})
	if err == nil {
		b.modules.Store(dir, found)
	}
	return found, err
}

// writeInitial writes the archive of the initial file system.
func writeInitial(w io.Writer, files []initialFile) error {
	c := newCpioWriter(w)
	c.add(wire.ModulesDir[1:], cpioDir, 0, nil)
	for _, f := range files {
		in, err := os.Open(f.from)
		if err != nil {
			return err
		}
		c.add(f.name[1:], cpioProgram, f.size, in)
		in.Close()
	}
	return c.close()
}

// keepUnused is how long a file of the cache is kept after its last use.
const keepUnused = 7 * 24 * time.Hour

// keepPartial is how long a file that is not complete is kept after its last change. Only templates are
// written without the lock of the cache, which takes seconds.
const keepPartial = time.Hour

// cached opens a file of the cache, and makes it if it is missing. A lock prevents that it is made
// twice at the same time, also by other processes.
func (b *Backend) cached(name string, fill func(part *os.File) error) (_ *os.File, err error) {
	if f, err := os.Open(name); err == nil {
		now := time.Now()
		if err := os.Chtimes(name, now, now); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	if err := os.MkdirAll(b.cfg.Cache, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(b.cfg.Cache)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	for {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err == nil {
			break
		} else if err != unix.EINTR {
			return nil, &os.PathError{Op: "flock", Path: lock.Name(), Err: err}
		}
	}
	if f, err := os.Open(name); err == nil {
		return f, nil
	}
	part, err := os.OpenFile(name+".part", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644) // readable for the user of each machine
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part.Name()))
		}
	}()
	err = errors.Join(part.Chmod(0o644), fill(part))
	if err := errors.Join(err, part.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(part.Name(), name); err != nil {
		return nil, err
	}
	if err := b.trim(time.Now()); err != nil {
		b.cfg.Log.Warn("cannot remove unused files of virtual machines", "err", err)
	}
	return os.Open(name)
}

// trim removes the files of the cache that were not used for a long time, and those that a killed daemon
// has not completed. Machines that run keep theirs open. The caller has locked the cache.
func (b *Backend) trim(now time.Time) error {
	entries, err := os.ReadDir(b.cfg.Cache)
	for _, e := range entries {
		keep := keepUnused
		if strings.Contains(e.Name(), partial) {
			keep = keepPartial
		}
		info, infoErr := e.Info()
		if infoErr == nil && now.Sub(info.ModTime()) > keep {
			err = errors.Join(err, os.RemoveAll(filepath.Join(b.cfg.Cache, e.Name())))
		}
	}
	return err
}

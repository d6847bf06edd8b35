package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"glasshouse/capability/manifest"
	"glasshouse/fault"
)

// Limits on the files of one capability.
const (
	maxFiles = 20_000
	maxBytes = 512 << 20
)

func (r *Registry) dirOf(digest string) string {
	return filepath.Join(r.cfg.Dir, strings.TrimPrefix(digest, "sha256:"))
}

// take copies the files that a manifest names to a read-only directory of the registry. It
// returns the digest of manifest and files, and the digest of the files alone, which names the
// copy: capabilities with the same files share one copy. Files that are copied already are not
// copied again, and files that have not changed since they were read are not read again.
func (r *Registry) take(ctx context.Context, req Request, c *manifest.Capability) (digest, files string, err error) {
	paths := named(c)
	if len(paths) > 0 && req.Dir == "" {
		return "", "", fault.Newf(fault.Invalid, "registry.Register", c.ID, "the manifest names %s, but no directory was given", paths[0])
	}
	key := strings.Join(paths, "\x00")
	listing, have := req.taken[key]
	if !have {
		listing, err = r.takeFiles(ctx, req.Dir, paths, c.ID)
		if err != nil {
			return "", "", err
		}
		if req.taken != nil {
			req.taken[key] = listing
		}
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "manifest %d\n%s\n", len(c.Source), c.Source)
	sum.Write(listing)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), filesDigest(listing), nil
}

func filesDigest(listing []byte) string {
	sum := sha256.Sum256(listing)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// takeFiles copies files and returns a listing of them with their digests.
func (r *Registry) takeFiles(ctx context.Context, dir string, paths []string, cid string) ([]byte, error) {
	if err := os.MkdirAll(r.cfg.Dir, 0o711); err != nil {
		return nil, err
	}
	var from *os.Root
	if len(paths) > 0 {
		var err error
		from, err = os.OpenRoot(dir)
		if err != nil {
			return nil, fault.New(fault.Invalid, "registry.Register", cid, err)
		}
		defer from.Close()
		for _, p := range paths {
			if err := checkPath(from, dir, p, cid); err != nil {
				return nil, err
			}
		}
		known := taking{ctx: ctx, from: from, sums: &r.sums}
		switch err := known.all(paths); {
		case err == nil:
			if _, err := os.Stat(r.dirOf(filesDigest(known.listing.Bytes()))); err == nil {
				return known.listing.Bytes(), nil
			}
		case !errors.Is(err, errUnread):
			return nil, err
		}
	}
	temp, err := os.MkdirTemp(r.cfg.Dir, ".taking-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil { // programs in jails run as other users
		return nil, err
	}
	to, err := os.OpenRoot(temp)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	t := taking{ctx: ctx, from: from, to: to, sums: &r.sums}
	if err := t.all(paths); err != nil {
		return nil, err
	}
	switch err := os.Rename(temp, r.dirOf(filesDigest(t.listing.Bytes()))); {
	case errors.Is(err, fs.ErrExist): // the same was taken before
	case err != nil:
		return nil, err
	}
	return t.listing.Bytes(), nil
}

// checkPath returns an error with a remedy if a path of a manifest cannot be opened below
// from.
func checkPath(from *os.Root, dir, p, cid string) error {
	_, err := from.Stat(p)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &fault.Error{Op: "registry.Register", On: cid, Kind: fault.Invalid,
			Err: fmt.Errorf("the manifest names %s, which is not in %s", p, dir), Remedy: "build the file or copy it to this directory"}
	}
	// os.Root refuses paths that leave its directory, with an unexported error.
	return &fault.Error{Op: "registry.Register", On: cid, Kind: fault.Invalid,
		Err:    fmt.Errorf("the manifest names %s, which cannot be used below %s: %w", p, dir, err),
		Remedy: "name a file or directory inside that directory, without a symbolic link that leaves it"}
}

// named returns the paths that a manifest names, in order, without paths below another one.
func named(c *manifest.Capability) []string {
	var all []string
	for _, m := range c.Filesystem.Mounts {
		all = append(all, path.Clean(m.Host))
	}
	for _, p := range []string{c.Runtime.Module, c.Runtime.Rootfs} {
		if p != "" && p != "debian" {
			all = append(all, path.Clean(p))
		}
	}
	if c.Runtime.Type == manifest.Native && len(c.Runtime.Entrypoint) > 0 && !path.IsAbs(c.Runtime.Entrypoint[0]) {
		all = append(all, path.Clean(c.Runtime.Entrypoint[0]))
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(p string) bool {
		return slices.ContainsFunc(all, func(q string) bool { return q != p && (q == "." || strings.HasPrefix(p, q+"/")) })
	})
}

// A taking is the state of a copy operation. Without a destination it computes the listing from
// known digests and reads no file. It accesses only its two directories.
type taking struct {
	ctx      context.Context
	from, to *os.Root // to is nil: copy nothing; an unknown file is errUnread
	sums     *fileSums
	listing  bytes.Buffer
	files    int
	bytes    int64
}

// errUnread is returned for a file whose digest is not known without reading it.
var errUnread = errors.New("a file must be read")

func (t *taking) all(paths []string) error {
	for _, p := range paths {
		if err := t.tree(p); err != nil {
			return fmt.Errorf("copy %s: %w", p, err)
		}
	}
	return nil
}

func (t *taking) tree(p string) error {
	if parent := path.Dir(p); parent != "." && t.to != nil {
		if err := t.to.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	return fs.WalkDir(t.from.FS(), p, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = t.ctx.Err()
		}
		if err != nil {
			return err
		}
		if t.files++; t.files > maxFiles {
			return fault.Newf(fault.Exhausted, "registry.Register", p, "the capability has more than %d files", maxFiles)
		}
		switch d.Type() {
		case fs.ModeDir:
			fmt.Fprintf(&t.listing, "dir %q\n", name)
			if name == "." || t.to == nil {
				return nil
			}
			return t.to.MkdirAll(name, 0o755)
		case fs.ModeSymlink:
			return t.link(name)
		case 0:
			return t.file(name)
		}
		return fault.Newf(fault.Invalid, "registry.Register", name, "not a file, directory or symbolic link")
	})
}

// link copies a symbolic link whose target is copied as well.
func (t *taking) link(name string) error {
	target, err := t.from.Readlink(name)
	if err != nil {
		return err
	}
	if at := path.Join(path.Dir(name), target); path.IsAbs(target) || at == ".." || strings.HasPrefix(at, "../") {
		return fault.Newf(fault.Invalid, "registry.Register", name, "symbolic link to %s, which is not part of the capability", target)
	}
	fmt.Fprintf(&t.listing, "link %q %q\n", name, target)
	if t.to == nil {
		return nil
	}
	return t.to.Symlink(target, name)
}

func (t *taking) file(name string) error {
	in, err := t.from.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK: do not block on a FIFO (open(2))
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fault.Newf(fault.Invalid, "registry.Register", name, "the file changed while it was read")
	}
	mode := fs.FileMode(0o444)
	if st.Mode()&0o111 != 0 {
		mode = 0o555
	}
	if t.to == nil {
		sum, ok := t.sums.get(st)
		if !ok {
			return errUnread
		}
		return t.list(name, mode, st.Size(), sum)
	}
	began := time.Now()
	out, err := t.to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, h), io.LimitReader(in, maxBytes-t.bytes+1))
	t.sums.read.Add(n)
	sum := [sha256.Size]byte(h.Sum(nil))
	if err == nil {
		err = t.list(name, mode, n, sum)
	}
	if err := errors.Join(err, out.Chmod(mode), out.Sync()); err != nil {
		return err
	}
	if now, err := in.Stat(); err == nil && n == now.Size() && keyOf(now) == keyOf(st) {
		t.sums.put(now, began, sum)
	}
	return nil
}

// list appends a file to the listing.
func (t *taking) list(name string, mode fs.FileMode, n int64, sum [sha256.Size]byte) error {
	if t.bytes += n; t.bytes > maxBytes {
		return fault.Newf(fault.Exhausted, "registry.Register", name, "the capability has more than %d MiB of files", maxBytes>>20)
	}
	fmt.Fprintf(&t.listing, "file %q %v %d %x\n", name, mode, n, sum)
	return nil
}

// fileSums caches the digests of files that this process has read. It is safe for concurrent
// use.
type fileSums struct {
	read atomic.Int64 // bytes read in total

	mu sync.Mutex
	// +checklocks:mu
	sums map[fileKey][sha256.Size]byte
}

// A fileKey identifies the contents of a file: writing to a file changes its ctime, which no
// process can set (inode(7)).
type fileKey struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

func keyOf(st fs.FileInfo) fileKey {
	sys := st.Sys().(*syscall.Stat_t) // os.File.Stat returns this type on Linux
	return fileKey{uint64(sys.Dev), sys.Ino, sys.Size, sys.Mtim, sys.Ctim}
}

const (
	// settledAfter is the minimum age of a file's last change before its digest is cached. Two
	// changes within the granularity of time stamps, which is 2 s on some filesystems, cannot
	// be distinguished.
	settledAfter = 2 * time.Second

	maxFileSums = 10 * maxFiles
)

func (f *fileSums) get(st fs.FileInfo) ([sha256.Size]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum, ok := f.sums[keyOf(st)]
	return sum, ok
}

// put caches the digest of a file that was read starting at began.
func (f *fileSums) put(st fs.FileInfo, began time.Time, sum [sha256.Size]byte) {
	key := keyOf(st)
	if began.Sub(time.Unix(key.ctime.Unix())) < settledAfter {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sums == nil || len(f.sums) >= maxFileSums {
		f.sums = map[fileKey][sha256.Size]byte{}
	}
	f.sums[key] = sum
}

// tidy deletes the files of capabilities that are no longer registered.
func (r *Registry) tidy() error {
	entries, err := os.ReadDir(r.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	keep := map[string]bool{}
	r.mu.RLock()
	for _, versions := range r.known {
		for _, v := range versions {
			keep[filepath.Base(r.dirOf(v.files()))] = true
		}
	}
	keep[r.receiving] = true
	r.mu.RUnlock()
	errs := []error{err}
	for _, e := range entries {
		if !keep[e.Name()] {
			errs = append(errs, os.RemoveAll(filepath.Join(r.cfg.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

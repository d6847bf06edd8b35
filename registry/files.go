package registry

import (
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

	"glasshouse/fault"
	"glasshouse/manifest"
)

// What a capability may bring along.
const (
	maxFiles = 20_000
	maxBytes = 512 << 20
)

func (r *Registry) dirOf(digest string) string {
	return filepath.Join(r.cfg.Dir, strings.TrimPrefix(digest, "sha256:"))
}

// take copies the files that a manifest names to where nobody changes them, and
// returns the digest of both, and that of the files alone, under which their copy lies:
// capabilities that bring the same files share it.
func (r *Registry) take(ctx context.Context, dir string, c *manifest.Capability) (digest, files string, err error) {
	paths := named(c)
	if len(paths) > 0 && dir == "" {
		return "", "", fault.Newf(fault.Invalid, "registry.Register", c.ID, "the manifest names %s, and no directory was given that it is in", paths[0])
	}
	if err := os.MkdirAll(r.cfg.Dir, 0o711); err != nil {
		return "", "", err
	}
	temp, err := os.MkdirTemp(r.cfg.Dir, ".taking-")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil { // programs in jails are other users
		return "", "", err
	}
	sum, alone := sha256.New(), sha256.New()
	fmt.Fprintf(sum, "manifest %d\n%s\n", len(c.Source), c.Source)
	if len(paths) > 0 {
		from, err := os.OpenRoot(dir)
		if err != nil {
			return "", "", fault.New(fault.Invalid, "registry.Register", c.ID, err)
		}
		defer from.Close()
		to, err := os.OpenRoot(temp)
		if err != nil {
			return "", "", err
		}
		defer to.Close()
		t := taking{ctx: ctx, from: from, to: to, sum: io.MultiWriter(sum, alone)}
		for _, p := range paths {
			err := t.tree(p)
			if errors.Is(err, fs.ErrNotExist) {
				return "", "", &fault.Error{Op: "registry.Register", On: c.ID, Kind: fault.Invalid,
					Err: fmt.Errorf("the manifest names %s, which is not in %s", p, dir), Remedy: "build it, or put it there"}
			}
			if err != nil {
				return "", "", fmt.Errorf("take %s: %w", p, err)
			}
		}
	}
	files = "sha256:" + hex.EncodeToString(alone.Sum(nil))
	switch err := os.Rename(temp, r.dirOf(files)); {
	case errors.Is(err, fs.ErrExist): // the same was taken before
	case err != nil:
		return "", "", err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), files, nil
}

// named returns the paths that a manifest names, in their order, none below another.
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

// A taking is a copy in progress. It reads and writes below two directories, and
// nowhere else, whatever symbolic links say.
type taking struct {
	ctx      context.Context
	from, to *os.Root
	sum      io.Writer
	files    int
	bytes    int64
}

func (t *taking) tree(p string) error {
	if parent := path.Dir(p); parent != "." {
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
			return fault.Newf(fault.Exhausted, "registry.Register", p, "more than %d files", maxFiles)
		}
		switch d.Type() {
		case fs.ModeDir:
			fmt.Fprintf(t.sum, "dir %q\n", name)
			if name == "." {
				return nil
			}
			return t.to.MkdirAll(name, 0o755)
		case fs.ModeSymlink:
			return t.link(name)
		case 0:
			return t.file(name)
		}
		return fault.Newf(fault.Invalid, "registry.Register", name, "it is neither a file, a directory nor a symbolic link")
	})
}

// link copies a symbolic link that leads to what is copied too.
func (t *taking) link(name string) error {
	target, err := t.from.Readlink(name)
	if err != nil {
		return err
	}
	if at := path.Join(path.Dir(name), target); path.IsAbs(target) || at == ".." || strings.HasPrefix(at, "../") {
		return fault.Newf(fault.Invalid, "registry.Register", name, "it is a symbolic link to %s, outside of what belongs to the capability", target)
	}
	fmt.Fprintf(t.sum, "link %q %q\n", name, target)
	return t.to.Symlink(target, name)
}

func (t *taking) file(name string) error {
	in, err := t.from.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fault.Newf(fault.Invalid, "registry.Register", name, "it changed while it was read")
	}
	mode := fs.FileMode(0o444)
	if st.Mode()&0o111 != 0 {
		mode = 0o555
	}
	out, err := t.to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), io.LimitReader(in, maxBytes-t.bytes+1))
	if t.bytes += n; err == nil && t.bytes > maxBytes {
		err = fault.Newf(fault.Exhausted, "registry.Register", name, "more than %d MB of files", maxBytes>>20)
	}
	fmt.Fprintf(t.sum, "file %q %v %d %x\n", name, mode, n, sum.Sum(nil))
	return errors.Join(err, out.Chmod(mode), out.Sync())
}

// tidy removes the files of what is not registered any more.
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
	r.mu.RUnlock()
	errs := []error{err}
	for _, e := range entries {
		if !keep[e.Name()] {
			errs = append(errs, os.RemoveAll(filepath.Join(r.cfg.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

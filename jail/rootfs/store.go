package rootfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/jail"
)

// The directory contains sha256-<hex>/{rootfs/,image.json} for each tree, and .tmp-* for trees that
// are being created or removed. A tree is renamed to its final name after it is complete and
// synced to disk, so a tree with a final name is always complete.
const (
	treeName  = "rootfs"
	imageName = "image.json"
	tmpPrefix = ".tmp-"
)

// An Image is a stored tree.
type Image struct {
	Digest  string      `json:"digest"`
	Sources []string    `json:"sources"` // resolved requests for this image
	Keys    []string    `json:"keys"`
	Config  ImageConfig `json:"config,omitzero"`
	Size    int64       `json:"size"` // bytes of the files
	Files   int64       `json:"files"`
	Created time.Time   `json:"created"`
	Skipped []string    `json:"skipped,omitempty"` // entries of the archives that were not extracted, with the reason
	Used    time.Time   `json:"-"`                 // time of the last Resolve
}

// Open creates the directory, removes incomplete trees of earlier processes, and loads the list of
// images.
func (p *Provider) Open() error {
	if !filepath.IsAbs(p.cfg.Dir) {
		return fault.Newf(fault.Invalid, "rootfs.Open", p.cfg.Dir, "the images directory must be an absolute path")
	}
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("create images directory: %w", err)
	}
	// With another mode, local users could run set-user-id programs of images.
	if err := os.Chmod(p.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("set the mode of the images directory: %w", err)
	}
	p.sweep()
	return p.load()
}

// sweep removes the temporary directories of ended processes. A process holds a lock on its
// temporary directory, so sweep skips locked directories.
func (p *Provider) sweep() {
	left, err := filepath.Glob(filepath.Join(p.cfg.Dir, tmpPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		lock, err := lockDir(dir)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = errors.Join(removeTree(dir), lock.Close())
		}
		if err != nil {
			p.log.Warn("cannot remove a temporary directory", "dir", dir, "err", err)
		}
	}
}

// load reads all image.json files. It skips directories without a valid one; put replaces such a
// directory if the same tree is created again.
func (p *Provider) load() error {
	entries, err := os.ReadDir(p.cfg.Dir)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	images, keys := map[string]Image{}, map[string]string{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "sha256-") {
			continue
		}
		img, err := readImage(filepath.Join(p.cfg.Dir, e.Name()))
		if err != nil || dirName(img.Digest) != e.Name() {
			p.log.Warn("ignoring a directory without a valid image.json", "dir", e.Name(), "err", err)
			continue
		}
		images[img.Digest] = img
		for _, k := range img.Keys {
			keys[k] = img.Digest
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.images, p.keys = images, keys
	return nil
}

func readImage(dir string) (Image, error) {
	var img Image
	file := filepath.Join(dir, imageName)
	b, err := os.ReadFile(file)
	if err != nil {
		return img, err
	}
	if err := json.Unmarshal(b, &img); err != nil {
		return img, fmt.Errorf("read %s: %w", file, err)
	}
	fi, err := os.Stat(file)
	if err != nil {
		return img, err
	}
	img.Used = fi.ModTime()
	_, err = os.Stat(filepath.Join(dir, treeName))
	return img, err
}

// dirName returns the name of the directory for a digest.
func dirName(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// layer returns a stored image as a layer and updates the time of its last use.
func (p *Provider) layer(digest string) (Layer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	img, ok := p.images[digest]
	if !ok {
		return Layer{}, fault.Newf(fault.Unavailable, "rootfs.Resolve", digest, "the image was pruned concurrently")
	}
	img.Used = time.Now()
	p.images[digest] = img
	dir := filepath.Join(p.cfg.Dir, dirName(digest))
	// The modification time is the persistent time of the last use. If the change is lost, the
	// image may be pruned early.
	os.Chtimes(filepath.Join(dir, imageName), img.Used, img.Used)
	return Layer{
		Dir:    filepath.Join(dir, treeName),
		Digest: digest,
		Source: img.Sources[len(img.Sources)-1],
		Config: img.Config,
	}, nil
}

// build calls fill to create a tree in a temporary directory. Then it renames the tree to the
// directory for the digest that fill returns, unless that exists.
func (p *Provider) build(ctx context.Context, fill func(tree, scratch string) (Image, error)) (string, error) {
	tmp, err := os.MkdirTemp(p.cfg.Dir, tmpPrefix)
	if err != nil {
		return "", fmt.Errorf("create a temporary directory: %w", err)
	}
	lock, err := lockDir(tmp)
	if err != nil {
		return "", errors.Join(err, os.Remove(tmp))
	}
	defer lock.Close()
	defer removeTree(tmp) // on success, put has moved the tree away

	ready, scratch := filepath.Join(tmp, "ready"), filepath.Join(tmp, "scratch")
	tree := filepath.Join(ready, treeName)
	for _, dir := range []string{ready, tree, scratch} {
		if err := makeDir(dir, 0o755); err != nil {
			return "", err
		}
	}
	img, err := fill(tree, scratch)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return img.Digest, p.put(ready, img)
}

// put renames the complete tree in ready to its final name and adds it to the images.
func (p *Provider) put(ready string, img Image) error {
	img.Created = time.Now().UTC()
	img.Used = img.Created
	if err := writeImage(ready, img); err != nil {
		return fmt.Errorf("record the image: %w", err)
	}
	if err := syncTree(ready); err != nil {
		return err
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.images[img.Digest]; ok {
		return p.learn(old, img.Sources, img.Keys)
	}
	home := filepath.Join(p.cfg.Dir, dirName(img.Digest))
	err := os.Rename(ready, home)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		err = p.replace(ready, home)
	}
	if err != nil {
		return fmt.Errorf("store the tree: %w", err)
	}
	p.remember(img)
	p.log.Info("root filesystem created", "digest", img.Digest, "source", img.Sources, "bytes", img.Size, "files", img.Files)
	return nil
}

// replace handles an existing directory at a tree's final name. It keeps a complete tree, which
// another process has created, and replaces a damaged one.
func (p *Provider) replace(ready, home string) error {
	if _, err := readImage(home); err == nil {
		return nil
	}
	if err := p.discard(home); err != nil {
		return fmt.Errorf("remove the damaged tree: %w", err)
	}
	return os.Rename(ready, home)
}

// learn records more requests that resolve to img. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *Provider) learn(img Image, sources, keys []string) error {
	before := len(img.Sources) + len(img.Keys)
	img.Sources, img.Keys = union(img.Sources, sources), union(img.Keys, keys)
	if len(img.Sources)+len(img.Keys) == before {
		return nil
	}
	p.remember(img)
	return writeImage(filepath.Join(p.cfg.Dir, dirName(img.Digest)), img)
}

// remember adds img to the images in memory. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *Provider) remember(img Image) {
	p.images[img.Digest] = img
	for _, k := range img.Keys {
		p.keys[k] = img.Digest
	}
}

// union returns a new slice with the elements of a, and those of b that are not in a.
func union(a, b []string) []string {
	a = slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// List returns the images, newest first.
func (p *Provider) List() []Image {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Image, 0, len(p.images))
	for _, img := range p.images {
		list = append(list, img)
	}
	slices.SortFunc(list, func(a, b Image) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	return list
}

// Prune removes the images whose digest is not in inUse and that no request has resolved
// within the grace period, so that a jail about to be recorded keeps its layer. It returns the
// removed images.
func (p *Provider) Prune(ctx context.Context, inUse []string) ([]Image, error) {
	var removed []Image
	var errs []error
	for _, img := range p.List() {
		if slices.Contains(inUse, img.Digest) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return removed, errors.Join(append(errs, err)...)
		}
		ok, err := p.prune(img.Digest)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", img.Digest, err))
		}
		if ok {
			removed = append(removed, img)
		}
	}
	return removed, errors.Join(errs...)
}

func (p *Provider) prune(digest string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	img, ok := p.images[digest]
	if !ok || time.Since(img.Used) < p.cfg.Grace {
		return false, nil
	}
	if err := p.discard(filepath.Join(p.cfg.Dir, dirName(digest))); err != nil {
		return false, err
	}
	delete(p.images, digest)
	for k, d := range p.keys {
		if d == digest {
			delete(p.keys, k)
		}
	}
	return true, nil
}

// discard renames dir to a temporary directory before it removes the files, so that no incomplete
// tree is left at dir.
func (p *Provider) discard(dir string) error {
	tmp, err := os.MkdirTemp(p.cfg.Dir, tmpPrefix)
	if err != nil {
		return fmt.Errorf("create a temporary directory: %w", err)
	}
	lock, err := lockDir(tmp)
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	defer lock.Close()
	if err := os.Rename(dir, filepath.Join(tmp, "gone")); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return removeTree(tmp)
}

// removeTree removes dir recursively, but not what is mounted below it. An ordinary user must first
// change the modes of directories that are not writable.
func removeTree(dir string) error {
	if err := overlay.UnmountBelow(dir); err != nil { // what a killed process has mounted
		return err
	}
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) || os.Geteuid() == 0 {
		return err
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// makeDir creates a directory with exactly this mode, independently of the umask.
func makeDir(dir string, mode fs.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, mode)
}

// lockDir locks dir with flock(2) until the returned file is closed. It does not block.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// writeImage writes dir's image.json atomically.
func writeImage(dir string, img Image) error {
	b, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the record of the image: %w", err)
	}
	file := filepath.Join(dir, imageName)
	if err := os.WriteFile(file+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// syncTree syncs the filesystem of dir (syncfs(2)), so that a power failure cannot leave a renamed
// tree with empty files.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// Kept returns the existing layer with a digest: a stored image, or the host directory that r
// names. It creates nothing. It returns fault.NotFound if the layer does not exist.
func (p *Provider) Kept(r jail.Rootfs, digest string) (Layer, error) {
	const op = "rootfs.Kept"
	p.mu.Lock()
	_, there := p.images[digest]
	p.mu.Unlock()
	if there {
		return p.layer(digest)
	}
	if r.Dir != "" {
		l, err := p.dir(r.Dir)
		if err != nil || l.Digest == digest {
			return l, err
		}
		return Layer{}, fault.Newf(fault.NotFound, op, digest, "%s is a different directory or was replaced", r.Dir)
	}
	return Layer{}, &fault.Error{Op: op, On: digest, Kind: fault.NotFound,
		Err: errors.New("no root filesystem with this digest exists on this host"), Remedy: "create it with glasshouse rootfs; it must have the same digest"}
}

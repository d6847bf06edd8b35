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
	"glasshouse/jail"
)

// The directory holds sha256-<hex>/{rootfs/,image.json} for each whole tree and
// .tmp-* for those being made or removed. A tree is complete before it gets its
// name, and on disk before that, so a name is a promise.
const (
	treeName  = "rootfs"
	imageName = "image.json"
	tmpPrefix = ".tmp-"
)

// An Image is a tree that is kept.
type Image struct {
	Digest  string      `json:"digest"`
	Sources []string    `json:"sources"` // every request that led here, resolved
	Keys    []string    `json:"keys"`
	Config  ImageConfig `json:"config,omitzero"`
	Size    int64       `json:"size"` // bytes of the files
	Files   int64       `json:"files"`
	Created time.Time   `json:"created"`
	Skipped []string    `json:"skipped,omitempty"` // what the archive held and the tree does not, with the reason
	Used    time.Time   `json:"-"`                 // when it was resolved last
}

// Open makes the directory, sweeps what an earlier process left half done, and
// learns what is there.
func (p *Provider) Open() error {
	if !filepath.IsAbs(p.cfg.Dir) {
		return fault.Newf(fault.Invalid, "rootfs.Open", p.cfg.Dir, "the images directory must be an absolute path")
	}
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("make images directory: %w", err)
	}
	// An older or careless mode would show set-user-id files to local users.
	if err := os.Chmod(p.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("close images directory: %w", err)
	}
	p.sweep()
	return p.load()
}

// sweep removes the leftovers of processes that are gone. Whoever works in a
// temporary directory holds a lock on it, so a live one is left alone.
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
			p.log.Warn("could not remove a leftover", "dir", dir, "err", err)
		}
	}
}

// load reads every image.json. A directory without a readable one is no image: it is skipped,
// and replaced if its content is ever created again.
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
			p.log.Warn("not an image", "dir", e.Name(), "err", err)
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

// dirName returns the directory that holds digest's tree.
func dirName(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// layer returns a kept image as a layer and notes that it was used.
func (p *Provider) layer(digest string) (Layer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	img, ok := p.images[digest]
	if !ok {
		return Layer{}, fault.Newf(fault.Unavailable, "rootfs.Resolve", digest, "the image was pruned meanwhile")
	}
	img.Used = time.Now()
	p.images[digest] = img
	dir := filepath.Join(p.cfg.Dir, dirName(digest))
	// The file's time outlives the process; losing it costs no more than an early prune.
	os.Chtimes(filepath.Join(dir, imageName), img.Used, img.Used)
	return Layer{
		Dir:    filepath.Join(dir, treeName),
		Digest: digest,
		Source: img.Sources[len(img.Sources)-1],
		Config: img.Config,
	}, nil
}

// build lets fill make a tree in a temporary directory, and moves it to its
// place under the digest that fill returns, unless that is there already.
func (p *Provider) build(ctx context.Context, fill func(tree, scratch string) (Image, error)) (string, error) {
	tmp, err := os.MkdirTemp(p.cfg.Dir, tmpPrefix)
	if err != nil {
		return "", fmt.Errorf("make a place to build: %w", err)
	}
	lock, err := lockDir(tmp)
	if err != nil {
		return "", errors.Join(err, os.Remove(tmp))
	}
	defer lock.Close()
	defer removeTree(tmp) // nothing is left to remove after the move

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

// put gives the finished tree in ready its name.
func (p *Provider) put(ready string, img Image) error {
	img.Created = time.Now().UTC()
	img.Used = img.Created
	if err := writeImage(ready, img); err != nil {
		return err
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
		return fmt.Errorf("keep the finished tree: %w", err)
	}
	p.remember(img)
	p.log.Info("root filesystem made", "digest", img.Digest, "source", img.Sources, "bytes", img.Size, "files", img.Files)
	return nil
}

// replace deals with a directory that has the name of a finished tree already:
// another process was faster, or it is a wreck.
func (p *Provider) replace(ready, home string) error {
	if _, err := readImage(home); err == nil {
		return nil
	}
	if err := p.discard(home); err != nil {
		return err
	}
	return os.Rename(ready, home)
}

// learn records that more requests lead to img. The caller holds p.mu.
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

// remember lists img. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *Provider) remember(img Image) {
	p.images[img.Digest] = img
	for _, k := range img.Keys {
		p.keys[k] = img.Digest
	}
}

// union appends to a what it lacks of b, and shares no memory with either.
func union(a, b []string) []string {
	a = slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// List returns what is kept, the newest first.
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
// within the grace period, so that a jail about to be recorded keeps its layer. It returns
// what it removed.
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

// discard takes dir's name away in one step before it removes it.
func (p *Provider) discard(dir string) error {
	tmp, err := os.MkdirTemp(p.cfg.Dir, tmpPrefix)
	if err != nil {
		return err
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

// removeTree removes dir with everything in it. The modes of an image do not
// bind root, but they do an ordinary user, who must open directories first.
func removeTree(dir string) error {
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

// makeDir makes a directory with exactly this mode, whatever the umask.
func makeDir(dir string, mode fs.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, mode)
}

// lockDir locks dir for as long as the returned file is open.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeImage writes dir's image.json in one step.
func writeImage(dir string, img Image) error {
	b, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, imageName)
	if err := os.WriteFile(file+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// syncTree puts the filesystem that holds dir on disk, so that no power cut
// leaves a named tree with empty files.
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

// Kept returns the layer with a digest, if it is here: what r names if that is a
// directory of the host, else an image. Nothing is made for it. It returns
// fault.NotFound if it is not here.
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
		return Layer{}, fault.Newf(fault.NotFound, op, digest, "%s is another directory, or was changed", r.Dir)
	}
	return Layer{}, &fault.Error{Op: op, On: digest, Kind: fault.NotFound,
		Err: errors.New("this root filesystem is not here"), Remedy: "make it ready with glasshouse rootfs; it must have the same digest"}
}

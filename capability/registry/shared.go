package registry

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
)

// Shared makes several daemons use one Store. Each has its own copy of the files.
type Shared struct {
	Node string // identifies this daemon

	// Own is the store that this daemon used before. Open moves its records to the shared one,
	// except those whose names that has with other contents. It can be nil.
	Own Store

	// Nodes returns the other daemons.
	Nodes func(ctx context.Context) ([]string, error)

	// Fetch returns what Send of another daemon writes.
	Fetch func(ctx context.Context, node string, f Files) (io.ReadCloser, error)
}

// ErrChanged is returned by a Store that another daemon has changed.
var ErrChanged error = fault.Newf(fault.Conflict, "registry.Change", "", "another daemon has changed the capabilities")

// Files identifies files that the daemons copy from each other.
type Files struct {
	Bundle bool   `json:"bundle,omitempty"` // those of a bundle; otherwise of capabilities
	Digest string `json:"digest"`
}

func (r *Registry) node() string {
	if r.cfg.Shared == nil {
		return ""
	}
	return r.cfg.Shared.Node
}

const (
	refreshTimeout = 5 * time.Second
	missTimeout    = 10 * time.Second // of a call of an unknown capability
	fetchTimeout   = 5 * time.Minute
	fetchPause     = 30 * time.Second // after a failure, unless the records change
)

// Refresh reads the changes of other daemons that use the same store, and copies the files that
// this daemon needs for them.
func (r *Registry) Refresh(ctx context.Context) error {
	if r.cfg.Shared == nil {
		return nil
	}
	read, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	r.changeMu.Lock()
	was := r.version.Load()
	err := r.reread(read)
	changed := r.version.Load() != was
	r.changeMu.Unlock()
	return errors.Join(err, r.fetchMissing(ctx, changed))
}

// reread reads the changes of other daemons, and applies them to what this daemon has besides the
// records.
func (r *Registry) reread(ctx context.Context) error {
	if r.cfg.Shared == nil {
		return nil
	}
	number, err := r.cfg.Store.Version(ctx)
	if err != nil || number == r.version.Load() {
		return err
	}
	old, oldBundles := r.stored(), r.Bundles()
	if err := errors.Join(r.cfg.Trust.Refresh(ctx), r.load(ctx)); err != nil {
		return err
	}
	if err := errors.Join(r.applyChanges(ctx, old, oldBundles), r.dropBarred(ctx)); err != nil {
		r.cfg.Log.Warn("could not release what capabilities used that another daemon has changed", "err", err)
	}
	return nil
}

// stored returns all records as they are stored.
func (r *Registry) stored() (all []Record) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, versions := range r.known {
		for _, v := range versions {
			all = append(all, v.Record)
		}
	}
	return all
}

// applyChanges withdraws approval requests of this daemon that another one has made unnecessary,
// and releases what versions used that can no longer be called.
func (r *Registry) applyChanges(ctx context.Context, old []Record, oldBundles []Bundle) error {
	const why = "another daemon of the fleet has changed it"
	var gone []Record
	var errs []error
	for _, was := range old {
		now, in, err := r.findStored(was.ref())
		if err != nil || now.Digest != was.Digest {
			gone = append(gone, was)
		} else if was.State == Approved && now.State != Approved {
			errs = append(errs, r.drop(ctx, in, false))
		}
		if err != nil || !r.waits(now) || now.Digest != was.Digest {
			r.withdraw(ctx, was, why)
		}
	}
	for _, was := range oldBundles {
		now, ok := r.bundle(was.Name)
		if !ok || !now.Next.is(was.Next) {
			r.withdrawBundle(ctx, was, why)
		}
	}
	if len(gone) > 0 {
		errs = append(errs, r.dropAll(ctx, gone))
	}
	return errors.Join(errs...)
}

// Send writes files of this daemon for another one.
func (r *Registry) Send(_ context.Context, f Files, w io.Writer) error {
	dir := r.dirOf(f.Digest)
	if f.Bundle {
		dir = filepath.Join(r.cfg.Bundles, f.Digest)
	}
	if !bundle.IsDigest(strings.TrimPrefix(f.Digest, "sha256:")) {
		return fault.Newf(fault.Invalid, "registry.Send", "", "%.80q is not a digest", f.Digest)
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return fault.Newf(fault.NotFound, "registry.Send", f.Digest, "this daemon does not have the files")
	}
	if err != nil {
		return err
	}
	defer root.Close()
	out := tar.NewWriter(w)
	return errors.Join(out.AddFS(root.FS()), out.Close())
}

// A need is files that this daemon lacks.
type need struct {
	Files
	version *version // nil: a bundle
	name    string
	node    string // the daemon that had them first
}

// missing returns the files that this daemon lacks. Versions that cannot be called need none.
func (r *Registry) missing() (all []need) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, versions := range r.known {
		for _, v := range versions {
			if v.missing && (v.State == Approved || v.State == Pending) {
				all = append(all, need{Files{Digest: v.files()}, v, v.ref(), v.Node})
			}
		}
	}
	for _, b := range r.bundles {
		if b.Now != nil && r.lacks(filepath.Join(r.cfg.Bundles, b.Now.Digest)) {
			all = append(all, need{Files{Bundle: true, Digest: b.Now.Digest}, nil, b.Name, ""})
		}
	}
	return all
}

// fetchMissing copies the files that this daemon lacks from others.
func (r *Registry) fetchMissing(ctx context.Context, changed bool) error {
	list := r.missing()
	if len(list) == 0 {
		return nil
	}
	r.mu.RLock()
	again := r.fetchAgain
	r.mu.RUnlock()
	if !changed && time.Now().Before(again) || !r.fetching.CompareAndSwap(false, true) {
		return nil
	}
	defer r.fetching.Store(false)
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var errs []error
	for _, n := range r.missing() {
		if err := r.fetch(ctx, n); err != nil {
			errs = append(errs, fmt.Errorf("copy the files of %s from another node: %w", n.name, err))
		}
	}
	if len(errs) > 0 {
		r.mu.Lock()
		r.fetchAgain = time.Now().Add(fetchPause)
		r.mu.Unlock()
	}
	return errors.Join(errs...)
}

// fetch copies files from the first daemon that has them.
func (r *Registry) fetch(ctx context.Context, n need) error {
	if n.version != nil && !r.lacks(n.version.installed.Dir) { // registered here again
		r.changeMu.Lock()
		defer r.changeMu.Unlock()
		return r.arrived(n)
	}
	if n.version != nil && len(named(n.version.installed.Capability)) == 0 {
		return r.receive(ctx, n, nil) // an empty directory
	}
	nodes, err := r.cfg.Shared.Nodes(ctx)
	if err != nil {
		return err
	}
	if i := slices.Index(nodes, n.node); i > 0 {
		nodes[0], nodes[i] = nodes[i], nodes[0]
	}
	errs := []error{fault.Newf(fault.Unavailable, "registry.Fetch", n.name, "no other node has the files")}
	for _, node := range nodes {
		err := r.fetchFrom(ctx, node, n)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fault.NotFound) {
			errs = append(errs, fmt.Errorf("node %s: %w", node, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Registry) fetchFrom(ctx context.Context, node string, n need) error {
	body, err := r.cfg.Shared.Fetch(ctx, node, n.Files)
	if err != nil {
		return err
	}
	defer body.Close()
	return r.receive(ctx, n, body)
}

// receive stores the files that Send has written, after it has verified their digest. A nil body has
// no files.
func (r *Registry) receive(ctx context.Context, n need, body io.Reader) error {
	if err := os.MkdirAll(r.cfg.Dir, 0o711); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(r.cfg.Dir, ".receiving-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r.setReceiving(filepath.Base(dir))
	defer r.setReceiving("")
	if body != nil {
		if err := extract(dir, body); err != nil {
			return err
		}
	}
	r.changeMu.Lock()
	defer r.changeMu.Unlock()
	if n.Bundle {
		return r.installer.Receive(dir, n.Digest)
	}
	c := n.version.installed.Capability
	listing, err := r.takeFiles(ctx, dir, named(c), c.ID)
	if err != nil {
		return err
	}
	if got := filesDigest(listing); got != n.Digest {
		return errors.Join(fault.Newf(fault.Conflict, "registry.Fetch", n.name, "the files have the digest %s, want %s", got, n.Digest), r.tidy())
	}
	return r.arrived(n)
}

func (r *Registry) setReceiving(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.receiving = name
}

// arrived makes the versions callable whose files have been copied. It deletes the files if the
// version was removed in the meantime.
func (r *Registry) arrived(n need) error {
	r.mu.Lock()
	for _, versions := range r.known {
		for _, v := range versions {
			if v.missing && v.files() == n.Digest {
				r.insert(&version{Record: v.Record, installed: v.installed})
			}
		}
	}
	r.mu.Unlock()
	return r.tidy()
}

// extract unpacks an archive of Send.
func extract(dir string, from io.Reader) error {
	to, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	files, left := 0, int64(maxBytes)
	for in := tar.NewReader(from); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the files of another node: %w", err)
		}
		files++
		left -= h.Size
		if files > maxFiles || left < 0 {
			return fault.Newf(fault.Exhausted, "registry.Fetch", h.Name, "the files of another node exceed the limits")
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = to.MkdirAll(h.Name, 0o755)
		case tar.TypeSymlink:
			err = to.Symlink(h.Linkname, h.Name)
		case tar.TypeReg:
			err = extractFile(to, h, in)
		default:
			err = fault.Newf(fault.Invalid, "registry.Fetch", h.Name, "not a file, directory or symbolic link")
		}
		if err != nil {
			return err
		}
	}
}

func extractFile(to *os.Root, h *tar.Header, from io.Reader) error {
	f, err := to.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// move moves the records of this daemon's own store to the shared one. The files stay where they are.
// It returns the names of those that stay.
func (r *Registry) move(ctx context.Context, from Store) (left []string, err error) {
	own, err := readAll(ctx, from)
	if err != nil {
		return nil, err
	}
	for _, b := range own.bundles {
		c := Change{Bundle: &b}
		with := func(origin string) bool { return origin != "" && bundleName(origin) == b.Name }
		for _, rec := range own.records {
			if with(rec.Bundle) {
				c.Put = append(c.Put, rec)
			}
		}
		for i := range own.skills {
			if with(own.skills[i].Bundle) {
				c.Skill = &own.skills[i]
			}
		}
		if err := r.moveOne(ctx, from, &own.version, c, &left); err != nil {
			return left, err
		}
	}
	for _, rec := range own.records {
		if rec.Bundle == "" {
			if err := r.moveOne(ctx, from, &own.version, Change{Put: []Record{rec}}, &left); err != nil {
				return left, err
			}
		}
	}
	for _, s := range own.skills {
		if s.Bundle == "" {
			if err := r.moveOne(ctx, from, &own.version, Change{Skill: &s}, &left); err != nil {
				return left, err
			}
		}
	}
	return left, nil
}

// moveOne moves the records of a change, unless the shared store has others of their names. It does
// not move again what an interrupted move has moved.
func (r *Registry) moveOne(ctx context.Context, from Store, number *int64, c Change, left *[]string) error {
	moved := false
	err := r.repeat(ctx, func() error {
		var same bool
		moved, same = r.compare(c)
		if !moved || same {
			return nil
		}
		next := c
		next.Put = slices.Clone(c.Put)
		for i := range next.Put {
			next.Put[i].Node = r.node()
		}
		if c.Bundle != nil && c.Bundle.Next != nil {
			b, n := *c.Bundle, *c.Bundle.Next
			n.Node = r.node()
			b.Next, next.Bundle = &n, &b
		}
		if err := r.write(ctx, next); err != nil {
			return err
		}
		return r.load(ctx)
	})
	if err != nil {
		return err
	}
	gone := Change{Gone: c.Put, Bundle: c.Bundle, Forget: true}
	if c.Skill != nil {
		gone.GoneSkill = c.Skill.Name
	}
	if !moved {
		*left = append(*left, c.names()...)
		return nil
	}
	if err := from.Change(ctx, *number, gone); err != nil {
		return err
	}
	*number++
	return nil
}

// compare reports whether records of another store can be stored here, and whether they were already.
func (r *Registry) compare(c Change) (free, same bool) {
	free, same = true, true
	add := func(exists, equal bool) {
		free = free && (!exists || equal)
		same = same && exists
	}
	for _, rec := range c.Put {
		now, _, err := r.findStored(rec.ref())
		add(err == nil, now.Digest == rec.Digest)
	}
	if c.Skill != nil {
		now, ok := r.skill(c.Skill.Name)
		add(ok, now.Text == c.Skill.Text)
	}
	if c.Bundle != nil {
		now, ok := r.bundle(c.Bundle.Name)
		add(ok, now.digest() == c.Bundle.digest())
	}
	return free, same
}

func (b Bundle) digest() string {
	if b.Now == nil {
		return ""
	}
	return b.Now.Digest
}

func (c Change) names() (all []string) {
	if c.Bundle != nil {
		return []string{"bundle " + c.Bundle.Name}
	}
	for _, rec := range c.Put {
		all = append(all, rec.ref())
	}
	if c.Skill != nil {
		all = append(all, "skill "+c.Skill.Name)
	}
	return all
}

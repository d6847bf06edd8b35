package jailed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
)

// A volume holds files that outlive sandboxes. It belongs to one capability, or to one
// capability in one session. Its size is fixed and is the quota.
//
// Its directory contains the disk image, the mount point and owner.json, which identifies
// the owner.
type volume struct {
	key volumeKey
	dir string

	sem     chan struct{} // capacity 1: the mutex of the volume, see lock
	closed  bool          // it is not in Engine.volumes any longer; guarded by sem, like all fields below
	mounted bool
	used    time.Time // when the last call ended
	ttl     time.Duration
	sandbox *sandbox // the idle sandbox, or nil
}

// A volumeKey identifies the owner of a volume.
type volumeKey struct {
	kind       manifest.Mode
	capability string
	session    string // empty if persistent
}

// name returns the file name of the volume. It is a hash, because session ids come from
// clients.
func (k volumeKey) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", k.kind, k.capability, k.session))
	return hex.EncodeToString(sum[:16])
}

func keyOf(c *engine.Installed, session string) (volumeKey, error) {
	k := volumeKey{kind: c.Filesystem.Mode, capability: ownerOf(c)}
	if k.kind == manifest.Session {
		if session == "" {
			return k, fault.Fieldf("engine.Call", "session", "%s stores its files per session, but the call has no session", k.capability)
		}
		k.session = session
	}
	return k, nil
}

// ownerOf returns the id of the capability that owns the files. The tools of an MCP server
// share the files of the server, whose name is the prefix of their ids.
func ownerOf(c *engine.Installed) string {
	if i := strings.LastIndexByte(c.ID, '.'); i > 0 && c.Runtime.Tool.Name != "" {
		return c.ID[:i]
	}
	return c.ID
}

func (v *volume) image() string { return filepath.Join(v.dir, "disk.img") }
func (v *volume) mount() string { return filepath.Join(v.dir, "fs") }
func (v *volume) data() string  { return filepath.Join(v.mount(), "data") }
func (v *volume) owner() string { return filepath.Join(v.dir, "owner.json") }

func (e *Engine) templates() string { return filepath.Join(e.cfg.Dir, "templates") }

// volumeOf returns the volume of a key. It need not exist on disk.
func (e *Engine) volumeOf(k volumeKey) *volume {
	e.mu.Lock()
	defer e.mu.Unlock()
	dir := filepath.Join(e.volumeDir(), k.name())
	v := e.volumes[dir]
	if v == nil {
		v = &volume{key: k, dir: dir, sem: make(chan struct{}, 1), used: time.Now()}
		if !e.closed {
			e.volumes[dir] = v
		}
	}
	return v
}

// lock locks the volume, or returns an error if ctx ends before.
func (v *volume) lock(ctx context.Context) error {
	select {
	case v.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the files of %s: %w", v.key.capability, context.Cause(ctx))
	}
}

func (v *volume) unlock() { <-v.sem }

// fromVolume locks the volume of a call and returns a sandbox that uses it. It waits while
// another call holds the volume. release unlocks the volume.
func (e *Engine) fromVolume(ctx context.Context, c *engine.Installed, session string) (*sandbox, bool, func(bool), error) {
	k, err := keyOf(c, session)
	if err != nil {
		return nil, false, nil, err
	}
	v := e.volumeOf(k)
	for {
		if err := v.lock(ctx); err != nil {
			return nil, false, nil, err
		}
		if !v.closed {
			break
		}
		v.unlock()
		v = e.volumeOf(k)
	}
	s, warm, err := v.enter(ctx, e, c)
	if err != nil {
		v.unlock()
		return nil, false, nil, err
	}
	return s, warm, func(sound bool) {
		v.used, v.ttl = time.Now(), ttlOf(c)
		switch {
		case !sound:
			s.kill()
		case e.keepIdle(c):
			v.sandbox = s
		default:
			e.wg.Go(func() {
				defer v.unlock()
				s.kill()
			})
			return
		}
		v.unlock()
	}, nil
}

// keepIdle counts one more idle sandbox of a capability. It returns false if the limit of
// the capability is reached.
func (e *Engine) keepIdle(c *engine.Installed) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting[c.ID] >= c.Runtime.Warm.Max {
		return false
	}
	e.waiting[c.ID]++
	return true
}

// take removes and returns the idle sandbox, or returns nil. The caller holds the lock.
func (v *volume) take(e *Engine) *sandbox {
	s := v.sandbox
	if s == nil {
		return nil
	}
	v.sandbox = nil
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting[s.c.ID]--; e.waiting[s.c.ID] == 0 {
		delete(e.waiting, s.c.ID)
	}
	return s
}

// enter returns the idle sandbox if it is sound and of the same version, or a new one. The
// caller holds the lock.
func (v *volume) enter(ctx context.Context, e *Engine, c *engine.Installed) (*sandbox, bool, error) {
	s := v.take(e)
	if s != nil && s.c.Digest == c.Digest && s.sound(ctx) {
		return s, true, nil
	}
	if s != nil {
		s.kill()
	}
	if err := v.prepare(ctx, e, quota(c)); err != nil {
		return nil, false, fmt.Errorf("prepare the files of %s: %w", v.key.capability, err)
	}
	s, err := e.make(ctx, c, &jail.Mount{Source: v.data(), Target: dataDir, Write: true})
	return s, false, err
}

// prepare mounts the volume and creates it if it does not exist.
func (v *volume) prepare(ctx context.Context, e *Engine, mb int) error {
	if err := os.MkdirAll(v.mount(), 0o700); err != nil {
		return err
	}
	o, err := readOwner(v.owner())
	if errors.Is(err, fs.ErrNotExist) {
		o = owner{v.key.kind, v.key.capability, v.key.session, mb}
		var text []byte
		if text, err = json.Marshal(o); err == nil {
			err = atomicfile.Write(v.owner(), text, 0o600)
		}
	}
	if err == nil {
		err = o.checkQuota(mb)
	}
	if err != nil || v.mounted {
		return err
	}
	if err := disk.Make(ctx, v.image(), v.mount(), int64(max(mb, disk.MinMB)), e.templates()); err != nil {
		return err
	}
	v.mounted = true
	return v.layOut(mb)
}

// layOut creates the data directory in a mounted volume. A volume has at least disk.MinMB;
// for a smaller quota, layOut allocates the rest to the file "ballast".
func (v *volume) layOut(mb int) error {
	if err := os.MkdirAll(v.data(), 0o755); err != nil || mb >= disk.MinMB {
		return err
	}
	ballast, err := os.OpenFile(filepath.Join(v.mount(), "ballast"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, free := volumeUse(v.mount())
	over := free - int64(mb)<<20
	if over > 0 {
		err = unix.Fallocate(int(ballast.Fd()), 0, 0, over)
	}
	if err = errors.Join(err, ballast.Close()); err != nil {
		return errors.Join(fmt.Errorf("enforce the quota of %d MiB: %w", mb, err), os.Remove(ballast.Name()))
	}
	return nil
}

// An owner is the content of owner.json: a volumeKey and the quota of the volume.
type owner struct {
	Kind       manifest.Mode `json:"kind"`
	Capability string        `json:"capability"`
	Session    string        `json:"session,omitempty"`
	QuotaMB    int           `json:"quota_mb"`
}

func readOwner(name string) (o owner, err error) {
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	return o, err
}

// checkQuota returns an error if the volume was created with another quota: existing files
// could exceed the new quota, and the size of a volume does not change.
func (o owner) checkQuota(mb int) error {
	if o.QuotaMB == mb {
		return nil
	}
	return &fault.Error{Op: "engine.Call", On: o.Capability, Kind: fault.Conflict, Field: ":filesystem :quota-mb",
		Err: fmt.Errorf("the volume of the capability has a quota of %d MiB, but the manifest sets %d MiB", o.QuotaMB, mb), Remedy: "set the previous quota, or remove the capability with its files and install it again"}
}

// settleVolumes unmounts the volumes of an earlier daemon, and removes incomplete volumes
// and expired sessions.
func (e *Engine) settleVolumes(ctx context.Context) error {
	dirs, err := os.ReadDir(e.volumeDir())
	if err != nil {
		return err
	}
	for _, d := range dirs {
		v := &volume{dir: filepath.Join(e.volumeDir(), d.Name())}
		if err := disk.Unmount(v.mount()); err != nil {
			return err
		}
		if _, err := os.Stat(v.owner()); errors.Is(err, fs.ErrNotExist) {
			if err := os.RemoveAll(v.dir); err != nil {
				return err
			}
		}
	}
	return e.expireSessions(ctx)
}

// expireSessions removes the files of sessions that were not used for sessionRetention.
func (e *Engine) expireSessions(ctx context.Context) error {
	return e.eachVolume(func(k volumeKey) error {
		v := e.volumeOf(k)
		if err := v.lock(ctx); err != nil {
			return err
		}
		defer v.unlock()
		fi, err := os.Stat(v.image())
		if k.kind != manifest.Session || v.mounted || err != nil || time.Since(fi.ModTime()) < sessionRetention {
			return nil
		}
		return v.close(e, true)
	})
}

// eachVolume calls f with the keys of all volumes on disk.
func (e *Engine) eachVolume(f func(volumeKey) error) error {
	dirs, err := os.ReadDir(e.volumeDir())
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dirs {
		v := volume{dir: filepath.Join(e.volumeDir(), d.Name())}
		o, err := readOwner(v.owner())
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being created or removed
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read the owner of %s: %w", v.dir, err))
			continue
		}
		errs = append(errs, f(volumeKey{o.Kind, o.Capability, o.Session}))
	}
	return errors.Join(errs...)
}

// endVolumes closes the volumes that match. With purge, it also removes them.
func (e *Engine) endVolumes(ctx context.Context, match func(volumeKey) bool, purge bool) error {
	return e.eachVolume(func(k volumeKey) error {
		if !match(k) {
			return nil
		}
		return e.volumeOf(k).end(ctx, e, purge)
	})
}

// end waits for the call that uses the volume and then closes the volume.
func (v *volume) end(ctx context.Context, e *Engine, purge bool) error {
	if err := v.lock(ctx); err != nil {
		return err
	}
	defer v.unlock()
	return v.close(e, purge)
}

// close ends the idle sandbox, unmounts the volume and, with purge, removes it. The caller
// holds the lock.
func (v *volume) close(e *Engine, purge bool) error {
	if v.closed {
		return nil
	}
	if s := v.take(e); s != nil {
		s.kill()
	}
	if err := disk.Unmount(v.mount()); err != nil {
		return err
	}
	v.mounted = false
	if purge {
		if err := os.RemoveAll(v.dir); err != nil {
			return err
		}
	}
	v.closed = true
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.volumes[v.dir] == v {
		delete(e.volumes, v.dir)
	}
	return nil
}

// stale reports whether the volume is not in use and its ttl has expired.
func (v *volume) stale(now time.Time) bool {
	select {
	case v.sem <- struct{}{}:
		defer v.unlock()
		return v.expired(now)
	default:
		return false
	}
}

func (v *volume) expired(now time.Time) bool {
	return !v.closed && now.Sub(v.used) > cmp.Or(v.ttl, defaultTTL)
}

// closeIdle closes the volume if its ttl has expired. It removes the volume if the retention
// of its session has expired.
func (v *volume) closeIdle(e *Engine, now time.Time) {
	if err := v.lock(e.ctx); err != nil {
		return
	}
	defer v.unlock()
	if !v.expired(now) {
		return
	}
	if err := v.close(e, v.key.kind == manifest.Session && now.Sub(v.used) > sessionRetention); err != nil {
		e.log.Error("failed to close an idle volume", "capability", v.key.capability, "err", err)
	}
}

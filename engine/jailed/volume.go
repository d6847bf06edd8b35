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

	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
	"glasshouse/manifest"
)

// A volume is files that outlive the sandboxes which see them: of one capability, in
// one session or for good. It is of fixed size, which is the quota.
//
// On disk it is a directory with the volume's image, where that is mounted while it is
// used, and whose it is.
type volume struct {
	key volumeKey
	dir string

	turn    chan struct{} // capacity 1: whoever holds the token uses the volume
	gone    bool          // its directory was removed. guarded by turn, as all below
	mounted bool
	used    time.Time // when the last call ended
	ttl     time.Duration
	sandbox *sandbox // that waits for the next call; nil if none does
}

// A volumeKey says whose files they are.
type volumeKey struct {
	kind       manifest.Mode
	capability string
	session    string // empty of a persistent one
}

// name is a file name that no stranger has chosen.
func (k volumeKey) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", k.kind, k.capability, k.session))
	return hex.EncodeToString(sum[:16])
}

func keyOf(c *engine.Installed, session string) (volumeKey, error) {
	k := volumeKey{kind: c.Filesystem.Mode, capability: ownerOf(c)}
	if k.kind == manifest.Session {
		if session == "" {
			return k, fault.Fieldf("engine.Call", "session", "the files of %s belong to a session, and the call is made in none", k.capability)
		}
		k.session = session
	}
	return k, nil
}

// ownerOf is whose files a capability sees: its own, or, as a tool of a server, those of
// the server, which all of its tools are imported under.
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

// volumeOf returns the volume of a key, which need not have been made yet.
func (e *Engine) volumeOf(k volumeKey) *volume {
	e.mu.Lock()
	defer e.mu.Unlock()
	dir := filepath.Join(e.volumeDir(), k.name())
	v := e.volumes[dir]
	if v == nil {
		v = &volume{key: k, dir: dir, turn: make(chan struct{}, 1), used: time.Now()}
		if !e.closed {
			e.volumes[dir] = v
		}
	}
	return v
}

// lock takes the volume's turn.
func (v *volume) lock(ctx context.Context) error {
	select {
	case v.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the files of %s: %w", v.key.capability, context.Cause(ctx))
	}
}

func (v *volume) unlock() { <-v.turn }

// fromVolume gives a call the sandbox that sees its files, when no other call has it.
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
		if !v.gone {
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
		case e.mayWait(c):
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

// mayWait counts a sandbox of a capability among those that wait, if there is room for
// it.
func (e *Engine) mayWait(c *engine.Installed) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting[c.ID] >= c.Runtime.Warm.Max {
		return false
	}
	e.waiting[c.ID]++
	return true
}

// take returns the sandbox that waits, or nil, and it waits no more. The caller has the
// turn.
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

// enter returns the sandbox that waits, or another one. The caller has the turn.
func (v *volume) enter(ctx context.Context, e *Engine, c *engine.Installed) (*sandbox, bool, error) {
	s := v.take(e)
	if s != nil && s.c.Digest == c.Digest && s.sound(ctx) {
		return s, true, nil
	}
	if s != nil {
		s.kill()
	}
	if err := v.prepare(ctx, e, quota(c)); err != nil {
		return nil, false, fmt.Errorf("the files of %s: %w", v.key.capability, err)
	}
	s, err := e.make(ctx, c, &jail.Mount{Source: v.data(), Target: dataDir, Write: true})
	return s, false, err
}

// prepare mounts the volume, and makes it first if it is missing.
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
		err = o.holds(mb)
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

// layOut prepares a volume that is mounted: the files that stay are in a directory of
// it, and what a small quota leaves of the smallest volume is taken up beside it.
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
		return errors.Join(fmt.Errorf("hold it to %d MiB: %w", mb, err), os.Remove(ballast.Name()))
	}
	return nil
}

// An owner is a volumeKey as it is written down, and the volume's quota.
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

// holds refuses a quota that the volume was not made with: files that are there could
// be more than it allows, and one that is not held would be a lie.
func (o owner) holds(mb int) error {
	if o.QuotaMB == mb {
		return nil
	}
	return &fault.Error{Op: "engine.Call", On: o.Capability, Kind: fault.Conflict, Field: ":filesystem :quota-mb",
		Err: fmt.Errorf("its files lie on a volume of %d MiB, and the manifest says %d", o.QuotaMB, mb), Remedy: "keep the quota, or remove the capability with its files and install it again"}
}

// settleVolumes unmounts what an earlier daemon had mounted, and removes what it did
// not finish, and sessions that are forgotten.
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
	return e.forgetSessions(ctx)
}

// forgetSessions removes the files of sessions that nobody has called in for long.
func (e *Engine) forgetSessions(ctx context.Context) error {
	return e.eachVolume(func(k volumeKey) error {
		v := e.volumeOf(k)
		if err := v.lock(ctx); err != nil {
			return err
		}
		defer v.unlock()
		fi, err := os.Stat(v.image())
		if k.kind != manifest.Session || v.mounted || err != nil || time.Since(fi.ModTime()) < forgotten {
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
			continue // it is being made, or removed
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("whose files are in %s: %w", v.dir, err))
			continue
		}
		errs = append(errs, f(volumeKey{o.Kind, o.Capability, o.Session}))
	}
	return errors.Join(errs...)
}

// endVolumes ends the sandboxes of the volumes that match, and with purge removes
// those with all that is on them.
func (e *Engine) endVolumes(ctx context.Context, match func(volumeKey) bool, purge bool) error {
	return e.eachVolume(func(k volumeKey) error {
		if !match(k) {
			return nil
		}
		return e.volumeOf(k).end(ctx, e, purge)
	})
}

// end waits for the call that uses the volume, ends the sandbox that waits, unmounts
// it, and with purge removes it.
func (v *volume) end(ctx context.Context, e *Engine, purge bool) error {
	if err := v.lock(ctx); err != nil {
		return err
	}
	defer v.unlock()
	return v.close(e, purge)
}

// close is end of a volume whose turn the caller has.
func (v *volume) close(e *Engine, purge bool) error {
	if v.gone {
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
	v.gone = true
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.volumes[v.dir] == v {
		delete(e.volumes, v.dir)
	}
	return nil
}

// stale reports whether nobody uses the volume now, nor has for a while.
func (v *volume) stale(now time.Time) bool {
	select {
	case v.turn <- struct{}{}:
		defer v.unlock()
		return v.resting(now)
	default:
		return false
	}
}

func (v *volume) resting(now time.Time) bool {
	return !v.gone && now.Sub(v.used) > cmp.Or(v.ttl, defaultTTL)
}

// rest ends the sandbox of a volume that nobody uses, and unmounts it.
func (v *volume) rest(e *Engine, now time.Time) {
	if err := v.lock(e.ctx); err != nil {
		return
	}
	defer v.unlock()
	if !v.resting(now) {
		return
	}
	if err := v.close(e, v.key.kind == manifest.Session && now.Sub(v.used) > forgotten); err != nil {
		e.log.Error("a volume was not put away", "capability", v.key.capability, "err", err)
	}
}

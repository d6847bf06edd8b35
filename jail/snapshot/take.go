package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
)

// TakeOptions configure a snapshot.
type TakeOptions struct {
	Name     string
	Labels   map[string]string
	Reason   Reason // default: Asked
	Trigger  string
	Layering jail.Layering // "" selects automatically
	Stop     bool          // leave the jail stopped
	Pause    bool          // leave a running jail paused
	Mark     bool          // record the state of the jail, for jail.Manager.Changed

	stopped *jail.StoppedProcess // a process that is stopped at its position in the snapshot
}

// Take takes a snapshot of a jail. The jail is paused briefly and then continues. When Take
// returns, the snapshot is durable: it survives a power failure.
func (ss *snapshots) Take(ctx context.Context, jid id.Jail, o TakeOptions) (Snapshot, error) {
	s, done, err := ss.take(ctx, jid, o)
	if err != nil {
		return Snapshot{}, err
	}
	done()
	return s, nil
}

// A process with a connection that the server has not accepted yet cannot be dumped. In most
// cases that state is short, so take retries.
const (
	retryTime  = 3 * time.Second // maximum time for retries
	retryDelay = 50 * time.Millisecond
)

// take is Take, except that the snapshot cannot be deleted until done is called.
func (ss *snapshots) take(ctx context.Context, jid id.Jail, o TakeOptions) (_ Snapshot, done func(), err error) {
	if o.Reason == "" {
		o.Reason = Requested
	}
	if err := o.Check(); err != nil {
		return Snapshot{}, nil, err
	}
	end := time.Now().Add(retryTime)
	for wait := retryDelay; ; wait *= 2 { // each attempt pauses the jail briefly
		s, done, err := ss.takeNow(ctx, jid, o)
		// The process that was stopped for the first attempt runs again.
		if !errors.Is(err, fault.Unavailable) || o.stopped != nil || time.Now().Add(wait).After(end) {
			return s, done, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return Snapshot{}, nil, errors.Join(context.Cause(ctx), err)
		}
	}
}

func (ss *snapshots) takeNow(ctx context.Context, jid id.Jail, o TakeOptions) (_ Snapshot, done func(), err error) {
	j, err := ss.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return Snapshot{}, nil, err
	}
	if err := ss.reserveName(o.Name); err != nil {
		return Snapshot{}, nil, err
	}
	defer ss.releaseName(o.Name)
	ss.filesMu.RLock()
	t := &taking{snapshots: ss, ctx: context.WithoutCancel(ctx), s: Snapshot{
		ID: id.NewSnapshot(), Name: o.Name, Labels: o.Labels, Reason: o.Reason, Trigger: o.Trigger, Host: host(),
	}, o: o}
	t.dir = ss.dir(jid, t.s.ID)
	err = fault.Catch(func() error { return t.run(j) })() // automatic snapshots have no caller to recover a panic
	ss.filesMu.RUnlock()
	ss.cache.put(t.s.ID)
	if err != nil {
		ss.cache.drop(t.s.ID)
		return Snapshot{}, nil, errors.Join(fmt.Errorf("take a snapshot of %s: %w", jid, err), ss.sweep(t.ctx))
	}
	switch n := len(t.s.Jail.Sealed); {
	case n > flattenAt:
		ss.flattenSoon()
	case n <= len(j.Sealed): // the jail moved to layers that were merged meanwhile
		ss.sweepSoon()
	}
	return t.s, func() { ss.finish(t.ctx, t.s) }, nil
}

// finish ends the use of a new snapshot. If its jail was deleted while it was stored, JailDeleted
// did not find it yet.
func (ss *snapshots) finish(ctx context.Context, s Snapshot) {
	ss.release(s.ID)
	if !s.Reason.Automatic() && s.Reason != Checkpoint {
		return
	}
	if _, err := ss.cfg.Jails.Get(ctx, s.Jail.ID); !errors.Is(err, fault.NotFound) {
		return
	}
	if err := ss.Delete(ctx, s.ID); err != nil && !errors.Is(err, fault.NotFound) {
		ss.cfg.Log.Warn("cannot remove the snapshot of a deleted jail", "snapshot", s.ID, "err", err)
	}
}

// taking is the state of a snapshot that is being taken.
type taking struct {
	*snapshots
	ctx context.Context
	o   TakeOptions
	s   Snapshot
	dir string
}

func (t *taking) run(j jail.Jail) error {
	ss, sid := t.snapshots, t.s.ID
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	layer := filepath.Join(t.dir, layerFile)
	at, err := t.imageDir(j)
	if err != nil {
		return fmt.Errorf("create the directory of the images: %w", err)
	}
	made, err := ss.cfg.Jails.Checkpoint(t.ctx, j.ID, jail.CheckpointOptions{
		Snapshot: sid, Images: at, Layer: layer, Layering: t.o.Layering, Stop: t.o.Stop, Pause: t.o.Pause, SetMarker: t.o.Mark,
		Stopped: t.o.stopped, ReplaceLayers: ss.shortestStack,
	})
	if err != nil {
		return err
	}
	ss.cache.updateSize(sid)
	t.s.Created = time.Now()
	t.s.Jail, t.s.Seq, t.s.Paused, t.s.Layering, t.s.Stats = made.Jail, made.Seq, made.Paused, made.Layering, made.Stats
	t.s.Memory = made.Images != ""
	ss.mu.Lock()
	t.s.Parent = ss.last[j.ID]
	ss.mu.Unlock()
	if err := t.keepProcesses(made); err != nil {
		return fmt.Errorf("store the process list: %w", err)
	}
	return t.commit(at, layer)
}

// imageDir creates the directory for the process images: in the memory cache, or on disk if
// the jail uses too much memory for that.
func (t *taking) imageDir(j jail.Jail) (string, error) {
	stats, err := t.cfg.Jails.Stats(t.ctx, j.ID)
	if err == nil {
		beside := int64(16 << 20) // init, its program, and kernel state of the processes
		if j.Spec.Backend == "microvm" {
			beside += 208 << 20 // the kernel and the agent in the machine, with its events
		}
		err = t.cache.make(t.s.ID, stats.MemoryBytes+beside)
	}
	if err == nil {
		return t.cache.path(t.s.ID), nil
	}
	// Conflict: the jail is ending. Checkpoint waits for its end and then captures only files.
	if !errors.Is(err, fault.Exhausted) && !errors.Is(err, fault.Conflict) {
		return "", err
	}
	at := filepath.Join(t.dir, "images.part")
	return at, os.Mkdir(at, 0o755)
}

// commit makes the snapshot durable. The jail is running again.
func (t *taking) commit(at, layer string) error {
	ss := t.snapshots
	steps, ctx := errgroup.WithContext(t.ctx)
	if t.s.Memory {
		steps.Go(fault.Catch(func() error {
			sum, err := ss.images.Put(ctx, at, filepath.Join(t.dir, imagesDir))
			t.s.Digest = sum.Digest
			return err
		}))
	}
	steps.Go(fault.Catch(func() error { return syncLayer(layer) }))
	if err := steps.Wait(); err != nil {
		return err
	}
	if err := writeMeta(t.dir, t.s); err != nil {
		return err
	}
	if filepath.Dir(at) == t.dir {
		if err := os.RemoveAll(at); err != nil {
			return err
		}
	}
	if err := ss.cfg.Store.Put(t.ctx, t.s); err != nil {
		return fmt.Errorf("record the snapshot: %w", err)
	}
	s := t.s
	ss.mu.Lock()
	ss.all[s.ID], ss.last[s.Jail.ID] = &s, s.ID
	ss.inUse[s.ID]++
	ss.mu.Unlock()
	ss.notify(Notification{Op: OpTaken, Snapshot: s, Jail: s.Jail.ID})
	return nil
}

// writeMeta writes the readable copy of a snapshot's record.
func writeMeta(dir string, s Snapshot) error {
	meta, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return fmt.Errorf("encode the record of snapshot %s: %w", s.ID, err)
	}
	return atomicfile.Write(filepath.Join(dir, metaFile), meta, 0o600)
}

func (ss *snapshots) release(sid id.Snapshot) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.inUse[sid]--
	if ss.inUse[sid] == 0 {
		delete(ss.inUse, sid)
	}
}

// syncLayer syncs the layer and its parent directories to disk.
func syncLayer(layer string) error {
	f, err := os.Open(layer)
	if err == nil {
		err = errors.Join(f.Chmod(0o400), f.Sync(), f.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a jail that was not started since the last snapshot has no new layer
		return fmt.Errorf("sync the layer: %w", err)
	}
	for dir := filepath.Dir(layer); ; dir = filepath.Dir(dir) { // up to the jail's directory
		if err := dirs.Sync(dir); err != nil || id.Valid('j', filepath.Base(dir)) || dir == "/" {
			return err
		}
	}
}

// ThisHost returns the description of this host.
func ThisHost() Host { return host() }

// host returns the description of this host, which does not change.
var host = sync.OnceValue(func() Host {
	h := Host{Arch: runtime.GOARCH}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				h.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	return h
})

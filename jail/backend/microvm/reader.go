package microvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// A reader is a machine that serves the files of a jail that does not run, because the kernel of the
// host must not mount them. It is a jail without commands, which ends when it was not used for a
// while, when the jail starts or is removed, and with the daemon.
//
// A reader that only reads has an image of its own over the disk of the jail, because a file system
// that was not unmounted has to be repaired first. It has neither the resources of the jail's own
// machine nor the user, so it can run next to a jail that is paused.
type reader struct {
	gate chan struct{} // has an element while the reader is locked; it guards the other fields

	inst   *instance // nil: none
	writes bool      // the disk is that of the jail
	users  int
	used   time.Time // when the last user has ended its use
}

// readers are the readers of all jails.
type readers struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[id.Jail]*reader
}

// lock locks the reader of a jail.
func (rs *readers) lock(ctx context.Context, jid id.Jail) (r *reader, unlock func(), err error) {
	for {
		rs.mu.Lock()
		r = rs.all[jid]
		if r == nil {
			if rs.all == nil {
				rs.all = map[id.Jail]*reader{}
			}
			r = &reader{gate: make(chan struct{}, 1)}
			rs.all[jid] = r
		}
		rs.mu.Unlock()
		select {
		case r.gate <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
		rs.mu.Lock()
		current := rs.all[jid] == r
		rs.mu.Unlock()
		if current {
			return r, func() { rs.unlock(jid, r) }, nil
		}
		<-r.gate
	}
}

func (rs *readers) unlock(jid id.Jail, r *reader) {
	if r.inst == nil {
		rs.mu.Lock()
		delete(rs.all, jid)
		rs.mu.Unlock()
	}
	<-r.gate
}

// A reading is what a machine that serves files has besides that of a jail.
type reading struct {
	other *jail.Plan // has the disk to compare with; nil: none
}

func (r *reading) compares() bool { return r != nil && r.other != nil }

// volumes returns the plans with the writable disks of a machine.
func (r *reading) volumes(p jail.Plan) []jail.Plan {
	if r.compares() {
		return []jail.Plan{p, *r.other}
	}
	return []jail.Plan{p}
}

// readerPlan returns the plan of the reader of a jail. Its disk is an overlay of the images.
func readerPlan(p jail.Plan, images []string) jail.Plan {
	p.Dir = filepath.Join(p.Dir, "files")
	p.ID += "-files"
	p.IDs.First++ // another user than that of the jail's own machine
	p.IDs.Count--
	p.Sealed = images
	p.Mounts, p.Network, p.Link = nil, jail.Isolated, nil // files of a jail do not include those of the host
	return p
}

// images returns the disk of a jail that does not run, and those below it.
func (b *Backend) images(p jail.Plan) ([]string, error) {
	volume := b.volume(p)
	if err := base.RemoveSealedVolume(p, volume); err != nil {
		return nil, err
	}
	_, err := os.Lstat(volume)
	if errors.Is(err, fs.ErrNotExist) {
		return p.Sealed, nil
	}
	return append([]string{volume}, p.Sealed...), err
}

// ServeFiles implements jail.FileServer.
func (b *Backend) ServeFiles(ctx context.Context, p jail.Plan) (string, func() error, error) {
	i, done, err := b.useReader(ctx, p, true)
	if err != nil {
		return "", nil, fmt.Errorf("read the files of jail %s: %w", p.ID, err)
	}
	return i.Control(), done, nil
}

// useReader returns the reader of a jail, which is started if necessary, until the caller calls done.
// Then all that was written is on the disk.
func (b *Backend) useReader(ctx context.Context, p jail.Plan, writes bool) (_ *instance, done func() error, err error) {
	const op = "microvm.ServeFiles"
	if err := b.check(p, op); err != nil {
		return nil, nil, err
	}
	r, unlock, err := b.readers.lock(ctx, p.ID)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	fits := r.inst != nil && !r.inst.ended() && (r.writes || !writes)
	switch {
	case fits:
	case r.inst != nil && r.users > 0 && !r.inst.ended():
		return nil, nil, fault.Newf(fault.Conflict, op, string(p.ID), "the files are in use")
	default:
		if err := b.endLocked(ctx, p, r); err != nil {
			return nil, nil, err
		}
		if err := b.startReader(ctx, p, r, writes); err != nil {
			return nil, nil, err
		}
	}
	r.users++
	i := r.inst
	return i, sync.OnceValue(func() error { return b.unuseReader(context.WithoutCancel(ctx), p, i) }), nil
}

// startReader starts a reader, which the caller has locked.
func (b *Backend) startReader(ctx context.Context, p jail.Plan, r *reader, writes bool) (err error) {
	chain, err := b.images(p)
	if err != nil {
		return err
	}
	if writes {
		if err := b.makeVolume(ctx, p); err != nil {
			return err
		}
		chain = p.Sealed
	}
	q := readerPlan(p, chain)
	if err := makeDir(q.Dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(q.Dir))
		}
	}()
	if err := shareWorkspace(ctx, p, q); err != nil {
		return err
	}
	if writes {
		if err := os.Link(b.volume(p), b.volume(q)); err != nil {
			return err
		}
	}
	return b.launchReader(ctx, q, r, writes, &reading{})
}

// makeDir makes the directory of a reader.
func makeDir(dir string) error { return errors.Join(dirs.Empty(dir), os.Chmod(dir, 0o711)) }

// launchReader starts the machine of a reader.
func (b *Backend) launchReader(ctx context.Context, q jail.Plan, r *reader, writes bool, how *reading) error {
	i, err := b.create(ctx, q, "microvm.ServeFiles", how)
	if err != nil {
		return err
	}
	r.inst, r.writes = i, writes
	return nil
}

// unuseReader ends the use of a reader.
func (b *Backend) unuseReader(ctx context.Context, p jail.Plan, i *instance) error {
	r, unlock, err := b.readers.lock(ctx, p.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if r.inst != i {
		return nil // it was ended meanwhile
	}
	r.users--
	r.used = time.Now()
	time.AfterFunc(b.readerIdle, func() { b.endIdle(p) })
	if r.writes {
		ctx, cancel := context.WithTimeout(ctx, b.patience(freezeTime))
		defer cancel()
		var none struct{}
		if err := i.guest.call(ctx, wire.SyncPath, none, &none); err != nil {
			return fmt.Errorf("write the files of jail %s to its disk: %w", p.ID, err)
		}
	}
	return nil
}

// endIdle ends a reader that was not used for a while.
func (b *Backend) endIdle(p jail.Plan) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	r, unlock, err := b.readers.lock(ctx, p.ID)
	if err == nil {
		defer unlock()
		if r.inst != nil && r.users == 0 && time.Since(r.used) >= b.readerIdle {
			err = b.endLocked(ctx, p, r)
		}
	}
	if err != nil {
		b.cfg.Log.Warn("cannot end the machine that reads the files of a jail", "jail", p.ID, "err", err)
	}
}

// endReader ends the reader of a jail, even if it is used or if an earlier daemon has started it.
func (b *Backend) endReader(ctx context.Context, p jail.Plan) error {
	r, unlock, err := b.readers.lock(ctx, p.ID)
	if err != nil {
		return err
	}
	defer unlock()
	return b.endLocked(ctx, p, r)
}

// endLocked ends a reader that the caller has locked. Its users have written their files to the disk.
func (b *Backend) endLocked(ctx context.Context, p jail.Plan, r *reader) error {
	q := readerPlan(p, nil)
	if r.inst != nil {
		defer r.inst.Close()
	}
	if err := b.release(ctx, q); err != nil {
		return fmt.Errorf("end the machine that reads the files of jail %s: %w", p.ID, err)
	}
	r.inst, r.users = nil, 0
	return os.RemoveAll(q.Dir)
}

package jail

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
	"glasshouse/observe/event"
)

// BranchOptions are the options of Branch.
type BranchOptions struct {
	Spec   Spec      // with defaults filled in
	Number int       // among the jails of one request, from 1
	Op     string    // the operation in the event log: branch or restore
	At     time.Time // time of the request; zero is now
	Spare  bool      // creates a frozen copy for a later Branch or Rewind
}

func (o BranchOptions) at() time.Time {
	if o.At.IsZero() {
		return time.Now()
	}
	return o.At
}

// branches creates jails from snapshots, and rewinds jails to them.
type branches struct {
	*core
	registry    *registry
	observers   *observers
	ids         *idBlocks
	secrets     *secretFiles
	lifecycle   *lifecycle
	checkpoints *checkpoints
}

// Branch creates a jail from an image. The jail runs if the image has processes; otherwise its
// state is Created.
func (br *branches) Branch(ctx context.Context, img Image, o BranchOptions) (Jail, error) {
	const op = "jail.Branch"
	b, err := br.registry.backend(o.Spec)
	if err != nil {
		return Jail{}, err
	}
	cp, ok := b.(Checkpointer)
	if !ok {
		return Jail{}, fault.Cannot(op, "the backend "+o.Spec.Backend+" cannot make jails from snapshots", "use a jail with --backend oci")
	}
	if err := checkSupported(op, b, o.Spec); err != nil {
		return Jail{}, err
	}
	var reserved *reservation
	if o.Spare {
		o.Spec.Creator = "" // of the jail that uses it
	} else {
		if err := br.registry.reserveName(o.Spec.Name, op); err != nil {
			return Jail{}, err
		}
		defer br.registry.releaseName(o.Spec.Name)
		reserved, err = br.registry.reserve(ctx, op, o.Spec)
		if err != nil {
			return Jail{}, err
		}
		defer reserved.release()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	if !o.Spare && img.Images != "" {
		if e := br.registry.takeCopy(img.Snapshot, o.Spec); e != nil {
			reserved.attach(e)
			j, err := br.claimCopy(ctx, b, e, img, o)
			if !errors.Is(err, errSpareGone) {
				return j, err
			}
		}
	}
	ids, err := br.ids.reserveIDs(ctx)
	if err != nil {
		return Jail{}, err
	}
	j := Jail{
		ID: id.NewJail(), Spec: o.Spec, State: Creating, IDs: ids, Created: o.at(), Boot: br.cfg.Boot,
		Lower: img.Jail.Lower, Digest: img.Jail.Digest, BaseEnv: img.Jail.BaseEnv, Sealed: img.Jail.Sealed,
		Origin: &Origin{Snapshot: img.Snapshot, Jail: img.Jail.ID, Number: o.Number},
	}
	from := source{reserved: reserved, lineage: &Lineage{Op: o.Op, Snapshot: img.Snapshot, Parent: img.Jail.ID, ParentSeq: img.Seq}}
	to := Created
	if img.Images != "" {
		to = Running
		from.restore = func(ctx context.Context, p Plan) (Instance, error) { return cp.Restore(ctx, p, img.Images) }
		from.notifyResumed = func(ctx context.Context, j Jail) error { return br.observers.notifyResumed(ctx, j, img) }
		now := time.Now()
		j.Started = &now
	}
	if o.Spare {
		to = Spare
	} else if err := br.secrets.inheritSecrets(ctx, img.Jail.ID, j.ID); err != nil {
		br.secrets.forgetSecrets(ctx, j.ID)
		br.ids.releaseIDs(ids)
		return Jail{}, err
	}
	e, err := br.lifecycle.createJail(ctx, b, j, from, to)
	if err != nil {
		return Jail{}, err
	}
	if to == Running {
		br.notifyBranched(e, img.Snapshot, o.Number)
	}
	return *e.jail.Load(), nil
}

// DropCopies removes the frozen copies of a snapshot.
func (br *branches) DropCopies(ctx context.Context, of id.Snapshot) error {
	var errs []error
	for _, e := range br.registry.takeCopies(of) {
		errs = append(errs, br.dropCopy(ctx, e))
	}
	return errors.Join(errs...)
}

func (br *branches) dropCopy(ctx context.Context, e *entry) error {
	unlock, err := e.lock(ctx, "jail.DropCopies")
	if err != nil {
		return err
	}
	defer unlock()
	b, err := br.registry.backend(e.jail.Load().Spec)
	if err != nil {
		return err
	}
	return br.lifecycle.destroy(ctx, b, e)
}

// claimCopy turns a frozen copy into the branch that was requested, and thaws it.
func (br *branches) claimCopy(ctx context.Context, b Backend, e *entry, img Image, o BranchOptions) (Jail, error) {
	unlock, err := e.lock(ctx, "jail.Branch")
	if err != nil {
		return Jail{}, err
	}
	defer unlock()
	l := e.live.Load()
	if l == nil {
		return Jail{}, errSpareGone
	}
	j, now, origin := *e.jail.Load(), time.Now(), *e.jail.Load().Origin
	origin.Number = o.Number
	j.Spec, j.Created, j.Started, j.State, j.Origin = o.Spec, o.at(), &now, Running, &origin
	err = fault.Catch(func() error {
		if err := br.secrets.inheritSecrets(ctx, img.Jail.ID, j.ID); err != nil {
			return err
		}
		if err := br.secrets.mountSecrets(ctx, j, l.inst); err != nil {
			return err
		}
		if br.cfg.Enforcer != nil && !bytes.Equal(j.Spec.Policy, e.jail.Load().Spec.Policy) {
			if err := br.cfg.Enforcer.SpecChanged(ctx, j); err != nil {
				return fmt.Errorf("govern jail %s: %w", j.ID, err)
			}
		}
		// The jail runs before it is recorded as running. Clients cannot see it before it is
		// recorded.
		if err := l.releaseHold(ctx); err != nil {
			return err
		}
		if err := br.registry.save(ctx, e, j); err != nil {
			return err
		}
		return br.observers.notifyResumed(ctx, j, img)
	})()
	if err != nil {
		return Jail{}, errors.Join(err, br.lifecycle.destroy(ctx, b, e))
	}
	br.notifyBranched(e, img.Snapshot, o.Number)
	return j, nil
}

// noticeTimeout bounds how long a branch is delayed by the write of its notice.
const noticeTimeout = 2 * time.Second

// notifyBranched informs the programs of a jail that other jails have a copy of their memory,
// including the state of random number generators. The notice is written when it returns, so
// that a command in the branch can compare it with the previous one. Hooks and signals follow
// in the background. Errors are logged only, because the jail is a valid branch without them.
func (br *branches) notifyBranched(e *entry, of id.Snapshot, number int) {
	j, l := *e.jail.Load(), e.live.Load()
	if l == nil {
		return
	}
	l.restoreListener()
	b := protocol.Branched{
		Jail: j.ID, Snapshot: of, Hostname: br.registry.plan(j).Hostname, Branch: number, Seed: make([]byte, protocol.SeedSize),
	}
	rand.Read(b.Seed) // never fails
	if err := br.writeNotice(l, b); err != nil {
		br.cfg.Log.Warn("cannot write the notice of a branch", "jail", j.ID, "path", notice, "err", err)
	}
	br.wg.Go(func() {
		ctx, cancel := context.WithTimeout(br.ctx, operationTimeout)
		defer cancel()
		if err := l.ctl.Branched(ctx, b); err != nil {
			br.cfg.Log.Warn("a hook or a signal of a branch failed", "jail", j.ID, "err", err)
		}
	})
}

// branchNotice is the content of the notice.
type branchNotice struct {
	Jail     id.Jail     `json:"jail"`
	Snapshot id.Snapshot `json:"snapshot"`
	Hostname string      `json:"hostname,omitempty"`
	Branch   int         `json:"branch"`
	Time     time.Time   `json:"time"`
	Seed     string      `json:"seed"` // hexadecimal; different in each branch
}

// writeNotice replaces the notice atomically. The jail's init writes it, because paths in the
// jail may be the jail's own mounts. If the write blocks in the jail, writeNotice gives up
// after noticeTimeout.
func (br *branches) writeNotice(l *liveInstance, b protocol.Branched) error {
	text, err := json.MarshalIndent(branchNotice{b.Jail, b.Snapshot, b.Hostname, b.Branch, time.Now().UTC(), hex.EncodeToString(b.Seed)}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the branch notice: %w", err)
	}
	ctx, cancel := context.WithTimeout(br.ctx, noticeTimeout)
	defer cancel()
	if _, err := l.ctl.Write(ctx, notice, strings.NewReader(string(text)+"\n"), protocol.WriteOptions{Mode: 0o644, Parents: true}); err != nil {
		return fmt.Errorf("write the branch notice: %w", err)
	}
	return nil
}

// RewindOptions are the options of Rewind.
type RewindOptions struct {
	// KeepConnections keeps a network connection of the jail if its program has neither read nor
	// written data on it since the snapshot. Nil means the setting in the jail's Snapshots.
	KeepConnections *bool
}

// Rewind returns a jail to the state of img, which may be of another jail. Later changes to
// its files and memory are lost; its event log keeps them.
func (br *branches) Rewind(ctx context.Context, jid id.Jail, img Image, o RewindOptions) (Jail, error) {
	const op = "jail.Rewind"
	return br.registry.withLock(ctx, jid, op, func(ctx context.Context, b Backend, e *entry) error {
		cp, ok := b.(Checkpointer)
		was := *e.jail.Load()
		if !ok || was.Spec.Backend != img.Jail.Spec.Backend || was.Spec.Runtime != img.Jail.Spec.Runtime || was.Digest != img.Jail.Digest {
			return fault.Newf(fault.Conflict, op, string(jid), "the snapshot has another backend, runtime or root filesystem: branch from it instead")
		}
		next := was
		next.Sealed, next.Lower, next.Link = img.Jail.Sealed, img.Jail.Lower, nil
		if img.Images == "" {
			return br.rewindFiles(ctx, b, cp, e, next)
		}
		rewire, err := br.linkMoverFor(b, was, o)
		if err != nil {
			return err
		}
		if e.live.Load() == nil {
			rewire = nil // no process has a connection
		}
		if rewire != nil {
			next.Link = was.Link
			if next.Link == nil {
				next.Link = &Link{Name: was.instanceID(), IDs: was.IDs}
			}
		}
		now := time.Now()
		next.State, next.Started, next.Stopped, next.Reason, next.PriorUsage = Running, &now, nil, "", PriorUsage{}
		reserved, err := br.registry.reserveChange(ctx, op, e, next)
		if err != nil {
			return err
		}
		defer reserved.release()
		l, reconnect := e.live.Load(), func() {}
		if l != nil {
			var err error
			reconnect, err = l.disconnect(ctx)
			if err != nil {
				return err
			}
			defer e.unpark()
			if err := l.holdFrozen(ctx); err != nil {
				reconnect()
				return err
			}
		}
		var inst *hostInstance
		if rewire == nil { // frozen copies have their own link
			inst, err = br.takeCopyInstance(ctx, cp, img.Snapshot, next)
		}
		if inst == nil && err == nil {
			inst, err = br.checkpoints.restoreInstance(ctx, cp, next, img.Images, nil)
		}
		var removeOld func(context.Context) error
		if err == nil {
			if l != nil {
				l.freeze.setPaused(false) // a paused jail that is rewound runs
			}
			removeOld, err = br.checkpoints.switchInstance(ctx, b, e, inst, &Lineage{Op: event.OpRewind, Snapshot: img.Snapshot, Parent: img.Jail.ID, ParentSeq: img.Seq}, rewire)
		}
		if removeOld == nil {
			if l != nil {
				l.freeze.setPaused(was.State == Paused)
				err = errors.Join(err, l.releaseHold(ctx))
			}
			reconnect()
			return err
		}
		e.unpark()
		err = errors.Join(err, br.observers.notifyResumed(ctx, *e.jail.Load(), img))
		br.notifyBranched(e, img.Snapshot, 0)
		e.removeInBackground(br.core, removeOld)
		return err
	})
}

// linkMoverFor returns the LinkMover that keeps the connections of a jail during a rewind. It
// returns nil if connections are not to be kept or cannot exist.
func (br *branches) linkMoverFor(b Backend, j Jail, o RewindOptions) (LinkMover, error) {
	asked := o.KeepConnections != nil && *o.KeepConnections
	if !asked && (o.KeepConnections != nil || !j.Spec.Snapshots.KeepConnections) || j.Spec.Network == Isolated {
		return nil, nil
	}
	r, ok := b.(LinkMover)
	err := error(fault.Cannot("jail.Rewind", "the backend "+j.Spec.Backend+" cannot keep connections", "rewind without keeping them"))
	if ok {
		err = r.CanMoveLink(br.registry.plan(j))
	}
	if err == nil {
		return r, nil
	}
	if !asked { // the jail's setting applies only where it is possible
		return nil, nil
	}
	return nil, err
}

// takeCopyInstance uses a frozen copy of a snapshot as the instance of j, if there is a copy.
// If it fails, the copy has been removed.
func (br *branches) takeCopyInstance(ctx context.Context, cp Checkpointer, of id.Snapshot, j Jail) (*hostInstance, error) {
	e := br.registry.takeCopy(of, j.Spec)
	if e == nil {
		return nil, nil
	}
	unlock, err := e.lock(ctx, "jail.Rewind")
	if err != nil {
		return nil, err
	}
	defer unlock()
	l := e.live.Swap(nil)
	if l == nil {
		return nil, nil
	}
	spare := *e.jail.Load()
	br.registry.drop(spare.ID)
	br.observers.unobserve(ctx, spare.ID)
	j.InstanceID, j.IDs, j.Boot = spare.ID, spare.IDs, spare.Boot
	if br.cfg.Observer != nil {
		err = br.cfg.Observer.CloseLog(spare.ID)
	}
	if err == nil {
		err = br.checkpoints.recordPending(ctx, j)
	}
	if err != nil {
		return nil, errors.Join(err, l.inst.Kill(ctx), l.inst.Close(), br.checkpoints.removePending(ctx, cp, j))
	}
	return &hostInstance{j, l.inst}, nil
}

// rewindFiles rewinds a jail to a snapshot without processes. The jail is stopped.
func (br *branches) rewindFiles(ctx context.Context, b Backend, cp Checkpointer, e *entry, next Jail) error {
	if l := e.live.Load(); l != nil {
		if err := l.inst.Kill(ctx); err != nil {
			return fmt.Errorf("kill the processes: %w", err)
		}
	}
	was := *e.jail.Load()
	br.lifecycle.recordEnded(ctx, b, e, Stopped, "")
	if j := e.jail.Load(); j.State == Failed {
		return errors.New(j.Reason)
	}
	if err := cp.CleanAndRemoveLayer(ctx, br.registry.plan(was)); err != nil {
		return err
	}
	j := *e.jail.Load()
	j.Sealed, j.Lower = next.Sealed, next.Lower
	return br.registry.save(ctx, e, j)
}

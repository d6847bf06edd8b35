package jail

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/protocol"
)

// BranchOptions say how a jail made from an image is to be.
type BranchOptions struct {
	Spec   Spec      // with defaults filled in
	Number int       // among those made with it, from 1
	Op     string    // the word for it in the log: branch or restore
	At     time.Time // when it was asked for; zero is now
	Spare  bool      // frozen, for a Branch or Rewind of the same image to take
}

func (o BranchOptions) at() time.Time {
	if o.At.IsZero() {
		return time.Now()
	}
	return o.At
}

// Branch makes a new jail from an image: running where that one was, if it has
// processes, and else created.
func (m *Manager) Branch(ctx context.Context, img Image, o BranchOptions) (Jail, error) {
	const op = "jail.Branch"
	b, err := m.backend(o.Spec)
	if err != nil {
		return Jail{}, err
	}
	cp, ok := b.(Checkpointer)
	if !ok {
		return Jail{}, fault.Cannot(op, "the backend "+o.Spec.Backend+" cannot make jails from snapshots", "use a jail with --backend oci")
	}
	if err := refuseLacking(op, b, o.Spec); err != nil {
		return Jail{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
	defer cancel()
	if !o.Spare && img.Images != "" {
		if c := m.takeSpare(img.Snapshot, o.Spec); c != nil {
			j, err := m.wake(ctx, b, c, img, o)
			if !errors.Is(err, errSpareGone) {
				return j, err
			}
		}
	}
	ids, err := m.takeIDs(ctx)
	if err != nil {
		return Jail{}, err
	}
	j := Jail{
		ID: id.NewJail(), Spec: o.Spec, State: Creating, IDs: ids, Created: o.at(), Boot: m.cfg.Boot,
		Lower: img.Jail.Lower, Digest: img.Jail.Digest, BaseEnv: img.Jail.BaseEnv, Sealed: img.Jail.Sealed,
		Origin: &Origin{Snapshot: img.Snapshot, Jail: img.Jail.ID, Number: o.Number},
	}
	from := source{lineage: &Lineage{Op: o.Op, Snapshot: img.Snapshot, Parent: img.Jail.ID, Seq: img.Seq}}
	to := Created
	if img.Images != "" {
		to = Running
		from.frozen = func(ctx context.Context, p Plan) (Instance, error) { return cp.Restore(ctx, p, img.Images) }
		from.awoke = func(ctx context.Context, j Jail) error { return m.awoke(ctx, j, img) }
		now := time.Now()
		j.Started = &now
	}
	if o.Spare {
		to = Spare
	} else if err := m.branched(ctx, img.Jail.ID, j.ID); err != nil {
		m.forgetSecrets(ctx, j.ID)
		m.giveIDs(ids)
		return Jail{}, err
	}
	c, err := m.make(ctx, b, j, from, to)
	if err != nil {
		return Jail{}, err
	}
	if to == Running {
		m.announce(c, img.Snapshot, o.Number)
	}
	return *c.jail.Load(), nil
}

// takeSpare returns a frozen copy of a snapshot that fits s, or nil.
func (m *Manager) takeSpare(of id.Snapshot, s Spec) *cell {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, c := range m.frozen[of] {
		j := c.jail.Load()
		if s.Limits == j.Spec.Limits && s.Network == j.Spec.Network && s.Group == j.Spec.Group && s.Hostname == j.Spec.Hostname {
			m.frozen[of] = slices.Delete(m.frozen[of], i, i+1)
			return c
		}
	}
	return nil
}

// Copies returns how many frozen copies of a snapshot wait.
func (m *Manager) Copies(of id.Snapshot) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.frozen[of])
}

// DropCopies removes the frozen copies of a snapshot.
func (m *Manager) DropCopies(ctx context.Context, of id.Snapshot) error {
	m.mu.Lock()
	cells := m.frozen[of]
	delete(m.frozen, of)
	m.mu.Unlock()
	var errs []error
	for _, c := range cells {
		errs = append(errs, m.dropSpare(ctx, c))
	}
	return errors.Join(errs...)
}

func (m *Manager) dropSpare(ctx context.Context, c *cell) error {
	unlock, err := c.lock(ctx, "jail.DropCopies")
	if err != nil {
		return err
	}
	defer unlock()
	b, err := m.backend(c.jail.Load().Spec)
	if err != nil {
		return err
	}
	return m.destroy(ctx, b, c)
}

// wake hands a frozen copy to whoever asked for a branch.
func (m *Manager) wake(ctx context.Context, b Backend, c *cell, img Image, o BranchOptions) (Jail, error) {
	unlock, err := c.lock(ctx, "jail.Branch")
	if err != nil {
		return Jail{}, err
	}
	defer unlock()
	l := c.live.Load()
	if l == nil {
		return Jail{}, errSpareGone
	}
	j, now, origin := *c.jail.Load(), time.Now(), *c.jail.Load().Origin
	origin.Number = o.Number
	j.Spec, j.Created, j.Started, j.State, j.Origin = o.Spec, o.at(), &now, Running, &origin
	err = fault.Catch(func() error {
		if err := m.branched(ctx, img.Jail.ID, j.ID); err != nil {
			return err
		}
		if err := m.giveSecrets(ctx, j, l.inst); err != nil {
			return err
		}
		if m.cfg.Warden != nil && !bytes.Equal(j.Spec.Govern, c.jail.Load().Spec.Govern) {
			if err := m.cfg.Warden.Adapt(ctx, j); err != nil {
				return err
			}
		}
		// The jail runs before its record says so: no client knows of it until then.
		if err := l.letGo(ctx); err != nil {
			return err
		}
		if err := m.save(ctx, c, j); err != nil {
			return err
		}
		return m.awoke(ctx, j, img)
	})()
	if err != nil {
		return Jail{}, errors.Join(err, m.destroy(ctx, b, c))
	}
	m.announce(c, img.Snapshot, o.Number)
	return j, nil
}

// noticeTime bounds how long a branch waits for its notice to be written.
const noticeTime = 2 * time.Second

// announce tells a jail's programs that they are not the only ones with their
// memory: what they know of random numbers, others know as well. When it returns,
// the notice is written, so that a command that is run in the branch can compare it
// with the one that it knows. Hooks and signals follow in the background. Errors are
// logged: the jail is a branch all the same.
func (m *Manager) announce(c *cell, of id.Snapshot, number int) {
	j, l := *c.jail.Load(), c.live.Load()
	if l == nil {
		return
	}
	l.giveBack()
	b := protocol.Branched{
		Jail: j.ID, Snapshot: of, Hostname: m.plan(j).Hostname, Branch: number, Seed: make([]byte, protocol.SeedSize),
	}
	rand.Read(b.Seed) // never fails
	if err := m.writeNotice(l, b); err != nil {
		m.cfg.Log.Warn("cannot write the notice of a branch", "jail", j.ID, "path", notice, "err", err)
	}
	m.wg.Go(func() {
		ctx, cancel := context.WithTimeout(m.ctx, makeTime)
		defer cancel()
		if err := l.ctl.Branched(ctx, b); err != nil {
			m.cfg.Log.Warn("a hook or a signal of a branch failed", "jail", j.ID, "err", err)
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
	Seed     string      `json:"seed"` // hexadecimal; for what must not be the same in two branches
}

// writeNotice replaces the notice in one step. The jail's init writes it, because
// paths in the jail may be the jail's mounts. A jail in which that blocks is not
// waited for longer than noticeTime.
func (m *Manager) writeNotice(l *live, b protocol.Branched) error {
	text, err := json.MarshalIndent(branchNotice{b.Jail, b.Snapshot, b.Hostname, b.Branch, time.Now().UTC(), hex.EncodeToString(b.Seed)}, "", "  ")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.ctx, noticeTime)
	defer cancel()
	_, err = l.ctl.Write(ctx, notice, strings.NewReader(string(text)+"\n"), protocol.WriteOptions{Mode: 0o644, Parents: true})
	return err
}

// Sealed returns the sealed layers that jails stand on, spares included.
func (m *Manager) Sealed() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	used := map[string]bool{}
	for _, c := range m.cells {
		for _, layer := range c.jail.Load().Sealed {
			used[layer] = true
		}
	}
	return used
}

// RewindOptions say how a jail is taken back.
type RewindOptions struct {
	// KeepConnections has the jail go on with what it has connected outside, as far
	// as the program that has it neither read nor wrote there since. Nil: as the
	// jail's Snapshots say.
	KeepConnections *bool
}

// Rewind has a jail go on where it, or another, was when img was taken. What it
// did since is gone from its files and its memory, and stays in its log.
func (m *Manager) Rewind(ctx context.Context, jid id.Jail, img Image, o RewindOptions) (Jail, error) {
	const op = "jail.Rewind"
	return m.change(ctx, jid, op, func(ctx context.Context, b Backend, c *cell) error {
		cp, ok := b.(Checkpointer)
		was := *c.jail.Load()
		if !ok || was.Spec.Backend != img.Jail.Spec.Backend || was.Spec.Runtime != img.Jail.Spec.Runtime || was.Digest != img.Jail.Digest {
			return fault.Newf(fault.Conflict, op, string(jid), "the snapshot is of another kind of jail: branch from it instead")
		}
		next := was
		next.Sealed, next.Lower, next.Wire = img.Jail.Sealed, img.Jail.Lower, nil
		if img.Images == "" {
			return m.rewindFiles(ctx, b, cp, c, next)
		}
		rewire, err := m.rewirer(b, was, o)
		if err != nil {
			return err
		}
		if c.live.Load() == nil {
			rewire = nil // nobody has a connection
		}
		if rewire != nil {
			if next.Wire = was.Wire; next.Wire == nil {
				next.Wire = &Wire{Name: was.body(), IDs: was.IDs}
			}
		}
		now := time.Now()
		next.State, next.Started, next.Stopped, next.Reason, next.Carried = Running, &now, nil, "", Carried{}
		l, stays := c.live.Load(), func() {}
		if l != nil {
			var err error
			if stays, err = l.abandon(ctx); err != nil {
				return err
			}
			defer c.unpark()
			if err := l.hold(ctx); err != nil {
				stays()
				return err
			}
		}
		var body *body
		if rewire == nil { // copies that wait have a wire of their own
			body, err = m.spareBody(ctx, cp, img.Snapshot, next)
		}
		if body == nil && err == nil {
			body, err = m.body(ctx, cp, next, img.Images, nil)
		}
		var leave func(context.Context) error
		if err == nil {
			if l != nil {
				l.ice.setPaused(false) // a paused jail that is rewound runs
			}
			leave, err = m.inhabit(ctx, b, c, body, &Lineage{Op: event.OpRewind, Snapshot: img.Snapshot, Parent: img.Jail.ID, Seq: img.Seq}, rewire)
		}
		if leave == nil {
			if l != nil {
				l.ice.setPaused(was.State == Paused)
				err = errors.Join(err, l.letGo(ctx))
			}
			stays()
			return err
		}
		c.unpark()
		err = errors.Join(err, m.awoke(ctx, *c.jail.Load(), img))
		m.announce(c, img.Snapshot, 0)
		c.leave(m, leave)
		return err
	})
}

// rewirer returns who keeps the connections of a jail that is taken back, or nil if
// nobody is to, or there are none to keep.
func (m *Manager) rewirer(b Backend, j Jail, o RewindOptions) (Rewirer, error) {
	asked := o.KeepConnections != nil && *o.KeepConnections
	if !asked && (o.KeepConnections != nil || !j.Spec.Snapshots.KeepConnections) || j.Spec.Network == Isolated {
		return nil, nil
	}
	r, ok := b.(Rewirer)
	err := error(fault.Cannot("jail.Rewind", "the backend "+j.Spec.Backend+" cannot keep connections", "rewind without keeping them"))
	if ok {
		err = r.CanRewire(m.plan(j))
	}
	if err == nil {
		return r, nil
	}
	if !asked { // it is a wish for all that it is possible for
		return nil, nil
	}
	return nil, err
}

// spareBody makes a frozen copy of a snapshot, if one waits, the body of j. If that
// fails the copy is gone.
func (m *Manager) spareBody(ctx context.Context, cp Checkpointer, of id.Snapshot, j Jail) (*body, error) {
	c := m.takeSpare(of, j.Spec)
	if c == nil {
		return nil, nil
	}
	unlock, err := c.lock(ctx, "jail.Rewind")
	if err != nil {
		return nil, err
	}
	defer unlock()
	l := c.live.Swap(nil)
	if l == nil {
		return nil, nil
	}
	spare := *c.jail.Load()
	m.mu.Lock()
	delete(m.cells, spare.ID)
	m.mu.Unlock()
	m.unobserve(ctx, spare.ID)
	j.Body, j.IDs, j.Boot = spare.ID, spare.IDs, spare.Boot
	if m.cfg.Observer != nil {
		err = m.cfg.Observer.Forget(spare.ID)
	}
	if err == nil {
		err = m.recordHalf(ctx, j)
	}
	if err != nil {
		return nil, errors.Join(err, l.inst.Kill(ctx), l.inst.Close(), m.dropBody(ctx, cp, j))
	}
	return &body{j, l.inst}, nil
}

// rewindFiles takes a jail back to a snapshot that has files alone. It stops.
func (m *Manager) rewindFiles(ctx context.Context, b Backend, cp Checkpointer, c *cell, next Jail) error {
	if l := c.live.Load(); l != nil {
		if err := l.inst.Kill(ctx); err != nil {
			return err
		}
	}
	was := *c.jail.Load()
	m.settle(ctx, b, c, Stopped, "")
	if j := c.jail.Load(); j.State == Failed {
		return errors.New(j.Reason)
	}
	if err := cp.Shed(ctx, m.plan(was)); err != nil {
		return err
	}
	j := *c.jail.Load()
	j.Sealed, j.Lower = next.Sealed, next.Lower
	return m.save(ctx, c, j)
}

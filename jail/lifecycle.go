package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
)

// Create creates a jail with an idle init, or with Spec.Start a running one. Once begun,
// Create finishes even if the caller's context ends. A jail that cannot be started is removed.
func (m *Manager) Create(ctx context.Context, s Spec) (Jail, error) {
	const op = "jail.Create"
	s, err := m.check(s)
	if err != nil {
		return Jail{}, err
	}
	b, err := m.backend(s)
	if err != nil {
		return Jail{}, err
	}
	if err := checkSupported(op, b, s); err != nil {
		return Jail{}, err
	}
	layers, err := m.cfg.Rootfs.Resolve(ctx, s.Rootfs)
	if err != nil {
		return Jail{}, err
	}
	if len(layers.Dirs) == 0 && s.Backend != "bwrap" {
		return Jail{}, fault.Fieldf(op, "rootfs", "only the bwrap backend can use the host's root filesystem")
	}
	if s.Cwd == "" {
		s.Cwd = layers.Cwd
	}
	if s.User == "" {
		s.User = layers.User
	}
	s.Policy, err = m.checkGovern(ctx, s)
	if err != nil {
		return Jail{}, err
	}

	if e := m.pool.take(s, layers); e != nil {
		j, err := m.claim(ctx, b, e, s)
		if !errors.Is(err, errSpareGone) {
			return j, err
		} // the spare has ended: create a jail without the pool
	}
	j, err := m.newJail(ctx, s, layers)
	if err != nil {
		return Jail{}, err
	}
	e, err := m.createJail(ctx, b, j, source{}, Created)
	if err != nil {
		return Jail{}, err
	}
	m.pool.learn(s, layers)
	j = *e.jail.Load()
	if !s.Start {
		return j, nil
	}
	started, err := m.Start(ctx, j.ID)
	if err != nil {
		return Jail{}, errors.Join(err, m.Delete(context.WithoutCancel(ctx), j.ID))
	}
	return started, nil
}

// checkSupported returns an error if the backend does not support a feature that the spec asks
// for.
func checkSupported(op string, b Backend, s Spec) error {
	lacks := b.Lacks()
	if why, lacking := lacks["network"]; lacking && s.Network != Isolated {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "network", Err: errors.New(why)}
	}
	if why, lacking := lacks["enforcement"]; lacking && s.Enforce {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "enforce", Err: errors.New(why), Remedy: "create the jail with runtime runc or crun, or with backend bwrap"}
	}
	if why, lacking := lacks["mounts"]; lacking && len(s.Mounts) > 0 {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "mounts", Err: errors.New(why)}
	}
	if _, ok := b.(Checkpointer); !ok && s.Snapshots.Any() {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "snapshots",
			Err: errors.New("jails of the backend " + s.Backend + " cannot be snapshotted"), Remedy: "create the jail with --backend oci"}
	}
	return nil
}

// A source describes the origin of a new jail other than its root filesystem.
type source struct {
	restore       func(context.Context, Plan) (Instance, error) // restores its processes, frozen; nil: none
	notifyResumed func(context.Context, Jail) error             // called when they run; set with restore
	lineage       *Lineage                                      // first event of its log; nil: none
}

// createJail creates the new jail j and leaves it in the given state. It records the jail
// before it touches the host, so that after a crash the next daemon knows what to remove. A
// spare with processes stays frozen.
func (m *Manager) createJail(ctx context.Context, b Backend, j Jail, from source, to State) (_ *entry, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	e := newEntry(j)
	unlock, err := e.lock(ctx, "jail.Create")
	if err != nil {
		return nil, err
	}
	defer unlock()
	m.mu.Lock()
	m.entries[j.ID] = e
	m.mu.Unlock()

	var unowned Instance // created, but not attached to the entry yet
	defer func() {
		if err == nil {
			return
		}
		if unowned != nil {
			err = errors.Join(err, unowned.Close())
		}
		err = errors.Join(err, m.destroy(ctx, b, e))
	}()
	defer fault.Recover(&err)
	inst, err := m.createInstance(ctx, b, e, from)
	if err != nil {
		return nil, err
	}
	unowned = inst
	if from.lineage != nil {
		_, err = m.lineage(ctx, j.ID, *from.lineage)
	}
	if err == nil {
		j.State = to
		err = m.save(ctx, e, j)
	}
	if err != nil {
		return nil, err
	}
	l := m.attach(e, inst)
	unowned = nil
	l.freeze.setHeld(from.restore != nil)
	l.restored = from.restore != nil
	err = m.observe(ctx, b, e, false)
	if err == nil && to == Running {
		err = m.mountSecrets(ctx, j, inst)
	}
	if err == nil && to != Spare {
		err = l.releaseHold(ctx)
	}
	if err == nil && to == Running {
		err = from.notifyResumed(ctx, j)
	}
	if err != nil {
		return nil, err
	}
	if to == Spare && from.restore != nil {
		m.mu.Lock()
		m.frozenCopies[j.Origin.Snapshot] = append(m.frozenCopies[j.Origin.Snapshot], e)
		m.mu.Unlock()
	}
	return e, nil
}

// newJail returns the record of a new jail over a root filesystem.
func (m *Manager) newJail(ctx context.Context, s Spec, layers Layers) (Jail, error) {
	ids, err := m.reserveIDs(ctx)
	if err != nil {
		return Jail{}, err
	}
	return Jail{
		ID: id.NewJail(), Spec: s, State: Creating, IDs: ids, Created: time.Now(),
		Lower: layers.Dirs, Digest: layers.Digest, BaseEnv: layers.Env, Boot: m.cfg.Boot,
	}, nil
}

func (m *Manager) createInstance(ctx context.Context, b Backend, e *entry, from source) (Instance, error) {
	j := *e.jail.Load()
	if err := m.cfg.Store.Put(ctx, j); err != nil {
		return nil, fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	if err := os.Mkdir(m.dir(j.ID), 0o711); err != nil {
		return nil, err
	}
	if from.restore != nil {
		return from.restore(ctx, m.plan(j))
	}
	return createRecovered(ctx, b, m.plan(j))
}

// createRecovered calls the backend's Create and returns a panic as an error, so that the
// failure is recorded.
func createRecovered(ctx context.Context, b Backend, p Plan) (inst Instance, err error) {
	defer fault.Recover(&err)
	return b.Create(ctx, p)
}

var errSpareGone = errors.New("the spare has ended")

// claim turns a spare into the jail of spec s, and starts it if s.Start is set. Both take one
// write of the record.
func (m *Manager) claim(ctx context.Context, b Backend, e *entry, s Spec) (Jail, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	unlock, err := e.lock(ctx, "jail.Create")
	if err != nil {
		return Jail{}, err
	}
	defer unlock()
	j := *e.jail.Load()
	if e.live.Load() == nil {
		return Jail{}, errSpareGone
	}
	if err := j.move(Created, "jail.Create"); err != nil {
		return Jail{}, errSpareGone
	}
	j.Spec, j.Created = s, time.Now()
	err = fault.Catch(func() error {
		if err := m.notifySpecChanged(ctx, j); err != nil {
			return err
		}
		if s.Start {
			return m.beginRunning(ctx, b, e, j)
		}
		return m.save(ctx, e, j)
	})()
	if err != nil {
		return Jail{}, errors.Join(err, m.destroy(ctx, b, e))
	}
	return *e.jail.Load(), nil
}

// withLock calls f with the lock of a visible jail. The caller can give up while it waits for
// the lock, but f runs to its end.
func (m *Manager) withLock(ctx context.Context, jid id.Jail, op string, f func(context.Context, Backend, *entry) error) (Jail, error) {
	e, unlock, err := m.lock(ctx, jid, op)
	if err != nil {
		return Jail{}, err
	}
	defer unlock()
	b, err := m.backend(e.jail.Load().Spec)
	if err != nil {
		return Jail{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	if err := f(ctx, b, e); err != nil {
		return Jail{}, err
	}
	return e.withConditions(), nil
}

// Start starts a created, stopped or failed jail, and its command if it has one.
func (m *Manager) Start(ctx context.Context, jid id.Jail) (Jail, error) {
	return m.withLock(ctx, jid, "jail.Start", m.start)
}

func (m *Manager) start(ctx context.Context, b Backend, e *entry) error {
	j := *e.jail.Load()
	if j.State != Created {
		if err := m.recreateInstance(ctx, b, e); err != nil {
			return err
		}
		j = *e.jail.Load()
	}
	return m.beginRunning(ctx, b, e, j)
}

// beginRunning records j, whose init is idle, as running, and starts its command if it has
// one. The caller holds the jail's lock.
func (m *Manager) beginRunning(ctx context.Context, b Backend, e *entry, j Jail) error {
	now := time.Now()
	if err := j.move(Running, "jail.Start"); err != nil {
		return err
	}
	if l := e.live.Load(); l != nil {
		if err := m.mountSecrets(ctx, j, l.inst); err != nil {
			m.recordEnded(ctx, b, e, Failed, "its secrets could not be mounted: "+err.Error())
			return err
		}
	}
	j.Started, j.Stopped, j.Reason, j.Boot = &now, nil, "", m.cfg.Boot
	if err := m.save(ctx, e, j); err != nil {
		return err
	}
	if len(j.Spec.Command) == 0 {
		return nil
	}
	if _, _, err := m.exec(ctx, e, ExecRequest{Argv: j.Spec.Command}, nil); err != nil {
		m.recordEnded(ctx, b, e, Failed, "its command could not be started: "+err.Error())
		return err
	}
	return nil
}

// recreateInstance creates a new instance of a stopped jail.
func (m *Manager) recreateInstance(ctx context.Context, b Backend, e *entry) error {
	j := *e.jail.Load()
	if err := j.move(Starting, "jail.Start"); err != nil {
		return err
	}
	j.Boot, j.PriorUsage = m.cfg.Boot, PriorUsage{}
	j = j.foldUsage()
	was := j
	j.Link = nil
	if was.Link != nil { // the link could not be released when the jail ended
		if err := b.Clean(ctx, m.plan(was)); err != nil {
			return err
		}
	}
	if err := m.replaceLostIDs(ctx, &j); err != nil {
		return err
	}
	if err := m.save(ctx, e, j); err != nil {
		m.releaseUnusedIDs(j, was)
		return err
	}
	m.releaseUnusedIDs(was, j)
	inst, err := createRecovered(ctx, b, m.plan(j))
	if err != nil {
		m.recordEnded(ctx, b, e, Failed, "it could not be started: "+err.Error())
		return err
	}
	m.attach(e, inst)
	if err := m.observe(ctx, b, e, false); err != nil {
		if kill := inst.Kill(ctx); kill != nil {
			m.cfg.Log.Warn("cannot kill the processes of a jail", "jail", j.ID, "err", kill) // Clean kills again
		}
		m.recordEnded(ctx, b, e, Failed, "it could not be observed: "+err.Error())
		return err
	}
	return nil
}

// StopOptions are the options of Stop.
type StopOptions struct {
	// Grace is the time between SIGTERM and SIGKILL. Zero means SIGKILL without SIGTERM.
	Grace time.Duration
}

// MaxGrace bounds StopOptions.Grace, because Stop holds the jail's lock.
const MaxGrace = time.Minute

// Stop ends every process of a jail. Its files stay. Stopping a stopped jail does nothing, so
// concurrent stops succeed.
func (m *Manager) Stop(ctx context.Context, jid id.Jail, o StopOptions) (Jail, error) {
	if o.Grace < 0 || o.Grace > MaxGrace {
		return Jail{}, fault.Fieldf("jail.Stop", "grace_ms", "%v is not between 0 and %v", o.Grace, MaxGrace)
	}
	return m.withLock(ctx, jid, "jail.Stop", func(ctx context.Context, b Backend, e *entry) error {
		j := *e.jail.Load()
		if j.State == Stopped {
			return nil
		}
		l := e.live.Load()
		if l != nil {
			if err := l.unthrottle(ctx); err != nil {
				return fmt.Errorf("thaw %s for its stop: %w", jid, err)
			}
		}
		if l != nil && j.State == Running {
			terminate(ctx, l.ctl, o.Grace)
		}
		if l != nil && j.State != Paused { // a frozen init cannot answer
			m.archive(ctx, e, l)
		}
		if l != nil {
			if err := l.inst.Kill(ctx); err != nil {
				return fmt.Errorf("kill the processes of %s: %w", jid, err)
			}
		}
		m.recordEnded(ctx, b, e, Stopped, "")
		if j := e.jail.Load(); j.State == Failed {
			return errors.New(j.Reason)
		}
		return nil
	})
}

// terminate sends SIGTERM to every process and waits up to grace for their end.
func terminate(ctx context.Context, ctl *control.Client, grace time.Duration) {
	if grace == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	left, err := ctl.Terminate(ctx, "TERM")
	for wait := time.Millisecond; err == nil && left > 0; wait = min(2*wait, 100*time.Millisecond) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		left, err = ctl.Terminate(ctx, "0")
	}
}

// Pause freezes every process of a running jail.
func (m *Manager) Pause(ctx context.Context, jid id.Jail) (Jail, error) {
	return m.freeze(ctx, jid, "jail.Pause", Running, Paused, (*liveInstance).pause, (*liveInstance).resume)
}

// Resume continues a paused jail.
func (m *Manager) Resume(ctx context.Context, jid id.Jail) (Jail, error) {
	return m.freeze(ctx, jid, "jail.Resume", Paused, Running, (*liveInstance).resume, (*liveInstance).pause)
}

func (m *Manager) freeze(ctx context.Context, jid id.Jail, op string, from, to State, do, undo func(*liveInstance, context.Context) error) (Jail, error) {
	return m.withLock(ctx, jid, op, func(ctx context.Context, b Backend, e *entry) error {
		j := *e.jail.Load()
		if why, lacking := b.Lacks()["freeze"]; lacking {
			return &fault.Error{Op: op, On: string(jid), Kind: fault.Unsupported, Err: errors.New(why)}
		}
		l := e.live.Load()
		if j.State != from || l == nil {
			return fault.Newf(fault.Conflict, op, string(jid), "the jail is %s, not %s", j.State, from)
		}
		if err := do(l, ctx); err != nil {
			return err
		}
		j.State = to
		if err := m.save(ctx, e, j); err != nil {
			return errors.Join(err, undo(l, ctx))
		}
		return nil
	})
}

// Delete stops a jail in any state and removes it with its files.
func (m *Manager) Delete(ctx context.Context, jid id.Jail) error {
	_, err := m.withLock(ctx, jid, "jail.Delete", m.destroy)
	return err
}

// destroy removes a jail from the host and then its record. The caller holds the jail's lock,
// or is its only user.
func (m *Manager) destroy(ctx context.Context, b Backend, e *entry) error {
	j := *e.jail.Load()
	if j.State.visible() { // jails in other states are removed by the next daemon anyway
		j.State = Deleting
		if err := m.save(ctx, e, j); err != nil {
			return err
		}
	}
	if l := e.live.Swap(nil); l != nil {
		if err := l.inst.Kill(ctx); err != nil {
			m.cfg.Log.Warn("cannot kill the processes of a jail", "jail", j.ID, "err", err) // Clean kills again
		}
		l.close()
	}
	m.unobserve(ctx, j.ID)
	if err := b.Clean(ctx, m.plan(j)); err != nil {
		return fmt.Errorf("release jail %s: %w", j.ID, err)
	}
	e.file.Lock()
	e.removed = true
	e.file.Unlock()
	if m.cfg.Observer != nil {
		if err := m.cfg.Observer.CloseLog(j.ID); err != nil {
			m.cfg.Log.Warn("cannot close the event log of a jail", "jail", j.ID, "err", err)
		}
	}
	if err := m.remove(ctx, b, j); err != nil {
		return err
	}
	if err := m.cfg.Store.Delete(ctx, j.ID); err != nil {
		return err
	}
	m.forgetSecrets(ctx, j.ID)
	m.mu.Lock()
	delete(m.entries, j.ID)
	m.deleted = append(m.deleted[max(0, len(m.deleted)+1-maxDeleted):], listKey{j.Created, j.ID})
	m.mu.Unlock()
	m.releaseUnusedIDs(j, Jail{})
	return nil
}

// environment returns the environment of a command in the jail. Precedence, from low to high:
// defaults, image, Enforcer, Spec.Env, extra.
func (m *Manager) environment(j Jail, extra map[string]string) []string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG": "C.UTF-8",
	}
	set := func(kv []string) {
		for _, s := range kv {
			for i := range s {
				if s[i] == '=' {
					env[s[:i]] = s[i+1:]
					break
				}
			}
		}
	}
	set(j.BaseEnv)
	var governed map[string]string
	if m.cfg.Enforcer != nil {
		governed = m.cfg.Enforcer.Env(j)
	}
	for _, more := range []map[string]string{governed, j.Spec.Env, extra} {
		for k, v := range more {
			env[k] = v
		}
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

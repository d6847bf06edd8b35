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
	"glasshouse/jailinit/control"
)

// Create makes a jail whose init waits, or with Spec.Start one that runs. Once
// it has begun it finishes, also when the caller goes away. A jail that cannot be
// started is not kept.
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
	if err := refuseLacking(op, b, s); err != nil {
		return Jail{}, err
	}
	layers, err := m.cfg.Rootfs.Resolve(ctx, s.Rootfs)
	if err != nil {
		return Jail{}, err
	}
	if len(layers.Dirs) == 0 && s.Backend != "bwrap" {
		return Jail{}, fault.Fieldf(op, "rootfs", "only the bwrap backend can use the host's own tree")
	}
	if s.Cwd == "" {
		s.Cwd = layers.Cwd
	}
	if s.User == "" {
		s.User = layers.User
	}
	if s.Govern, err = m.checkGovern(ctx, s); err != nil {
		return Jail{}, err
	}

	if c := m.pool.take(s, layers); c != nil {
		j, err := m.claim(ctx, b, c, s)
		if !errors.Is(err, errSpareGone) {
			return j, err
		} // a spare that died is no reason to refuse
	}
	j, err := m.fresh(ctx, s, layers)
	if err != nil {
		return Jail{}, err
	}
	c, err := m.make(ctx, b, j, source{}, Created)
	if err != nil {
		return Jail{}, err
	}
	m.pool.wanted(s, layers)
	j = *c.jail.Load()
	if !s.Start {
		return j, nil
	}
	started, err := m.Start(ctx, j.ID)
	if err != nil {
		return Jail{}, errors.Join(err, m.Delete(context.WithoutCancel(ctx), j.ID))
	}
	return started, nil
}

// refuseLacking refuses what the jail would silently not get.
func refuseLacking(op string, b Backend, s Spec) error {
	lacks := b.Lacks()
	if why, lacking := lacks["network"]; lacking && s.Network != Isolated {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "network", Err: errors.New(why)}
	}
	if why, lacking := lacks["enforcement"]; lacking && s.Enforce {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "enforce", Err: errors.New(why), Remedy: "make the jail with the runtime runc or crun, or the backend bwrap"}
	}
	if why, lacking := lacks["mounts"]; lacking && len(s.Mounts) > 0 {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "mounts", Err: errors.New(why)}
	}
	if _, ok := b.(Checkpointer); !ok && s.Snapshots.Any() {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "snapshots",
			Err: errors.New("jails of the backend " + s.Backend + " cannot be snapshotted"), Remedy: "make jails with --backend oci"}
	}
	return nil
}

// A source is what a jail is made from, if not from its root filesystem alone.
type source struct {
	frozen  func(context.Context, Plan) (Instance, error) // its processes, frozen
	awoke   func(context.Context, Jail) error             // who is told when they run; set with frozen
	lineage *Lineage                                      // what its log begins with
}

// make isolates the new jail j and leaves it in the given state. It records the
// jail before it touches the host, so that whatever happens the next daemon
// knows what to remove. A spare with processes stays frozen.
func (m *Manager) make(ctx context.Context, b Backend, j Jail, from source, to State) (_ *cell, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
	defer cancel()
	c := newCell(j)
	unlock, err := c.lock(ctx, "jail.Create")
	if err != nil {
		return nil, err
	}
	defer unlock()
	m.mu.Lock()
	m.cells[j.ID] = c
	m.mu.Unlock()

	var loose Instance // made, but not the cell's yet
	defer func() {
		if err == nil {
			return
		}
		if loose != nil {
			err = errors.Join(err, loose.Close())
		}
		err = errors.Join(err, m.destroy(ctx, b, c))
	}()
	defer fault.Recover(&err)
	inst, err := m.isolate(ctx, b, c, from)
	if err != nil {
		return nil, err
	}
	loose = inst
	if from.lineage != nil {
		_, err = m.lineage(ctx, j.ID, *from.lineage)
	}
	if err == nil {
		j.State = to
		err = m.save(ctx, c, j)
	}
	if err != nil {
		return nil, err
	}
	l := m.attach(c, inst)
	loose = nil
	l.ice.setHeld(from.frozen != nil)
	l.restored = from.frozen != nil
	if err = m.observe(ctx, b, c, false); err == nil && to == Running {
		err = m.giveSecrets(ctx, j, inst)
	}
	if err == nil && to != Spare {
		err = l.letGo(ctx)
	}
	if err == nil && to == Running {
		err = from.awoke(ctx, j)
	}
	if err != nil {
		return nil, err
	}
	if to == Spare && from.frozen != nil {
		m.mu.Lock()
		m.frozen[j.Origin.Snapshot] = append(m.frozen[j.Origin.Snapshot], c)
		m.mu.Unlock()
	}
	return c, nil
}

// fresh is a new jail over a root filesystem.
func (m *Manager) fresh(ctx context.Context, s Spec, layers Layers) (Jail, error) {
	ids, err := m.takeIDs(ctx)
	if err != nil {
		return Jail{}, err
	}
	return Jail{
		ID: id.NewJail(), Spec: s, State: Creating, IDs: ids, Created: time.Now(),
		Lower: layers.Dirs, Digest: layers.Digest, BaseEnv: layers.Env, Boot: m.cfg.Boot,
	}, nil
}

func (m *Manager) isolate(ctx context.Context, b Backend, c *cell, from source) (Instance, error) {
	j := *c.jail.Load()
	if err := m.cfg.Store.Put(ctx, j); err != nil {
		return nil, fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	if err := os.Mkdir(m.dir(j.ID), 0o711); err != nil {
		return nil, err
	}
	if from.frozen != nil {
		return from.frozen(ctx, m.plan(j))
	}
	return create(ctx, b, m.plan(j))
}

// create is Create of the backend, with a panic returned as an error: the jail's
// record has to tell that it failed.
func create(ctx context.Context, b Backend, p Plan) (inst Instance, err error) {
	defer fault.Recover(&err)
	return b.Create(ctx, p)
}

var errSpareGone = errors.New("the spare is gone")

// claim hands a spare to the caller, started if it is to be: one write to the
// record does for both.
func (m *Manager) claim(ctx context.Context, b Backend, c *cell, s Spec) (Jail, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
	defer cancel()
	unlock, err := c.lock(ctx, "jail.Create")
	if err != nil {
		return Jail{}, err
	}
	defer unlock()
	j := *c.jail.Load()
	if c.live.Load() == nil {
		return Jail{}, errSpareGone
	}
	if err := j.move(Created, "jail.Create"); err != nil {
		return Jail{}, errSpareGone
	}
	j.Spec, j.Created = s, time.Now()
	err = fault.Catch(func() error {
		if err := m.adapt(ctx, j); err != nil {
			return err
		}
		if s.Start {
			return m.begin(ctx, b, c, j)
		}
		return m.save(ctx, c, j)
	})()
	if err != nil {
		return Jail{}, errors.Join(err, m.destroy(ctx, b, c))
	}
	return *c.jail.Load(), nil
}

// change runs f on a visible jail while it is the only one to change it. The
// caller may give up waiting for its turn, but not in the middle.
func (m *Manager) change(ctx context.Context, jid id.Jail, op string, f func(context.Context, Backend, *cell) error) (Jail, error) {
	c, unlock, err := m.lock(ctx, jid, op)
	if err != nil {
		return Jail{}, err
	}
	defer unlock()
	b, err := m.backend(c.jail.Load().Spec)
	if err != nil {
		return Jail{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
	defer cancel()
	if err := f(ctx, b, c); err != nil {
		return Jail{}, err
	}
	return c.shown(), nil
}

// Start runs a created, stopped or failed jail, and its command if it has one.
func (m *Manager) Start(ctx context.Context, jid id.Jail) (Jail, error) {
	return m.change(ctx, jid, "jail.Start", m.start)
}

func (m *Manager) start(ctx context.Context, b Backend, c *cell) error {
	j := *c.jail.Load()
	if j.State != Created {
		if err := m.again(ctx, b, c); err != nil {
			return err
		}
		j = *c.jail.Load()
	}
	return m.begin(ctx, b, c, j)
}

// begin records j, whose init waits, as running, and runs its command if it has
// one. The caller holds the cell's turn.
func (m *Manager) begin(ctx context.Context, b Backend, c *cell, j Jail) error {
	now := time.Now()
	if err := j.move(Running, "jail.Start"); err != nil {
		return err
	}
	if l := c.live.Load(); l != nil {
		if err := m.giveSecrets(ctx, j, l.inst); err != nil {
			m.settle(ctx, b, c, Failed, "it was not given its secrets: "+err.Error())
			return err
		}
	}
	j.Started, j.Stopped, j.Reason, j.Boot = &now, nil, "", m.cfg.Boot
	if err := m.save(ctx, c, j); err != nil {
		return err
	}
	if len(j.Spec.Command) == 0 {
		return nil
	}
	if _, _, err := m.exec(ctx, c, ExecRequest{Argv: j.Spec.Command}, nil); err != nil {
		m.settle(ctx, b, c, Failed, "its command could not be started: "+err.Error())
		return err
	}
	return nil
}

// again isolates a jail that has stopped.
func (m *Manager) again(ctx context.Context, b Backend, c *cell) error {
	j := *c.jail.Load()
	if err := j.move(Starting, "jail.Start"); err != nil {
		return err
	}
	j.Boot, j.Carried = m.cfg.Boot, Carried{}
	j = j.anew()
	was := j
	j.Wire = nil
	if was.Wire != nil { // it could not be released when the jail ended
		if err := b.Clean(ctx, m.plan(was)); err != nil {
			return err
		}
	}
	if err := m.replaceLostIDs(ctx, &j); err != nil {
		return err
	}
	if err := m.save(ctx, c, j); err != nil {
		m.giveIDsOf(j, was)
		return err
	}
	m.giveIDsOf(was, j)
	inst, err := create(ctx, b, m.plan(j))
	if err != nil {
		m.settle(ctx, b, c, Failed, "it could not be started: "+err.Error())
		return err
	}
	m.attach(c, inst)
	if err := m.observe(ctx, b, c, false); err != nil {
		if kill := inst.Kill(ctx); kill != nil {
			m.cfg.Log.Warn("kill", "jail", j.ID, "err", kill) // Clean tries again, harder
		}
		m.settle(ctx, b, c, Failed, "it could not be observed: "+err.Error())
		return err
	}
	return nil
}

// StopOptions say how a jail is stopped.
type StopOptions struct {
	// Grace is how long processes may take to end after SIGTERM, before
	// SIGKILL. Zero means none.
	Grace time.Duration
}

// MaxGrace bounds StopOptions.Grace: a stop holds the jail's turn.
const MaxGrace = time.Minute

// Stop ends every process of a jail. Its files stay. Stopping a stopped jail
// does nothing, so that two who stop it at once both succeed.
func (m *Manager) Stop(ctx context.Context, jid id.Jail, o StopOptions) (Jail, error) {
	if o.Grace < 0 || o.Grace > MaxGrace {
		return Jail{}, fault.Fieldf("jail.Stop", "grace_ms", "%v is not between 0 and %v", o.Grace, MaxGrace)
	}
	return m.change(ctx, jid, "jail.Stop", func(ctx context.Context, b Backend, c *cell) error {
		j := *c.jail.Load()
		if j.State == Stopped {
			return nil
		}
		l := c.live.Load()
		if l != nil {
			if err := l.relent(ctx); err != nil {
				return fmt.Errorf("let %s go on to its end: %w", jid, err)
			}
		}
		if l != nil && j.State == Running {
			terminate(ctx, l.ctl, o.Grace)
		}
		if l != nil && j.State != Paused { // a frozen init cannot answer
			m.archive(ctx, c, l)
		}
		if l != nil {
			if err := l.inst.Kill(ctx); err != nil {
				return fmt.Errorf("kill the processes of %s: %w", jid, err)
			}
		}
		m.settle(ctx, b, c, Stopped, "")
		if j := c.jail.Load(); j.State == Failed {
			return errors.New(j.Reason)
		}
		return nil
	})
}

// terminate asks every process to end and waits up to grace for that.
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
	return m.freeze(ctx, jid, "jail.Pause", Running, Paused, (*live).pause, (*live).resume)
}

// Resume lets a paused jail go on.
func (m *Manager) Resume(ctx context.Context, jid id.Jail) (Jail, error) {
	return m.freeze(ctx, jid, "jail.Resume", Paused, Running, (*live).resume, (*live).pause)
}

func (m *Manager) freeze(ctx context.Context, jid id.Jail, op string, from, to State, do, undo func(*live, context.Context) error) (Jail, error) {
	return m.change(ctx, jid, op, func(ctx context.Context, b Backend, c *cell) error {
		j := *c.jail.Load()
		if why, lacking := b.Lacks()["freeze"]; lacking {
			return &fault.Error{Op: op, On: string(jid), Kind: fault.Unsupported, Err: errors.New(why)}
		}
		l := c.live.Load()
		if j.State != from || l == nil {
			return fault.Newf(fault.Conflict, op, string(jid), "the jail is %s, not %s", j.State, from)
		}
		if err := do(l, ctx); err != nil {
			return err
		}
		j.State = to
		if err := m.save(ctx, c, j); err != nil {
			return errors.Join(err, undo(l, ctx))
		}
		return nil
	})
}

// Delete ends a jail, whatever its state, and removes it with its files.
func (m *Manager) Delete(ctx context.Context, jid id.Jail) error {
	_, err := m.change(ctx, jid, "jail.Delete", m.destroy)
	return err
}

// destroy removes a jail from the host and then from the record. The caller
// holds the cell's turn, or is alone.
func (m *Manager) destroy(ctx context.Context, b Backend, c *cell) error {
	j := *c.jail.Load()
	if j.State.visible() { // the others are removed by the next daemon anyway
		j.State = Deleting
		if err := m.save(ctx, c, j); err != nil {
			return err
		}
	}
	if l := c.live.Swap(nil); l != nil {
		if err := l.inst.Kill(ctx); err != nil {
			m.cfg.Log.Warn("kill", "jail", j.ID, "err", err) // Clean tries again, harder
		}
		l.close()
	}
	m.unobserve(ctx, j.ID)
	if err := b.Clean(ctx, m.plan(j)); err != nil {
		return fmt.Errorf("release jail %s: %w", j.ID, err)
	}
	c.file.Lock()
	c.gone = true
	c.file.Unlock()
	if m.cfg.Observer != nil {
		if err := m.cfg.Observer.Forget(j.ID); err != nil {
			m.cfg.Log.Warn("log not closed", "jail", j.ID, "err", err)
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
	delete(m.cells, j.ID)
	m.gone = append(m.gone[max(0, len(m.gone)+1-maxGone):], place{j.Created, j.ID})
	m.mu.Unlock()
	m.giveIDsOf(j, Jail{})
	return nil
}

// environment is what every process of the jail starts with, later words
// winning over earlier ones.
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
	if m.cfg.Warden != nil {
		governed = m.cfg.Warden.Env(j)
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

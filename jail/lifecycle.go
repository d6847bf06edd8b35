package jail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
)

// lifecycle creates, starts, stops and deletes jails.
type lifecycle struct {
	*core
	registry  *registry
	observers *observers
	ids       *idBlocks
	secrets   *secretFiles
	usages    *usages
	execs     *execs
	checks    *checks
	pool      *pool
}

// Create creates a jail with an idle init, or with Spec.Start a running one. Once begun,
// Create finishes even if the caller's context ends. A jail that cannot be started is removed.
func (lc *lifecycle) Create(ctx context.Context, s Spec) (Jail, error) {
	b, s, err := lc.validate(s)
	if err != nil {
		return Jail{}, err
	}
	name := s.Name
	if err := lc.registry.reserveName(name, "jail.Create"); err != nil {
		return Jail{}, err
	}
	defer lc.registry.releaseName(name)
	r, err := lc.registry.reserve(ctx, "jail.Create", s)
	if err != nil {
		return Jail{}, err
	}
	defer r.release()
	s, layers, err := lc.prepare(ctx, s)
	if err != nil {
		return Jail{}, err
	}
	if e := lc.pool.take(s, layers); e != nil {
		r.attach(e)
		j, err := lc.claim(ctx, b, e, s)
		if !errors.Is(err, errSpareGone) {
			return j, err
		} // the spare has ended: create a jail without the pool
	}
	j, err := lc.createCold(ctx, b, s, layers, r)
	if err != nil || !s.Start {
		return j, err
	}
	r.release() // the record counts
	return lc.startNew(ctx, j.ID)
}

// validate checks a spec, sets its defaults and selects the backend.
func (lc *lifecycle) validate(s Spec) (Backend, Spec, error) {
	s, err := lc.checks.check(s)
	if err != nil {
		return nil, s, err
	}
	b, err := lc.registry.backend(s)
	if err != nil {
		return nil, s, err
	}
	return b, s, checkSupported("jail.Create", b, s)
}

// prepare finds or creates the root filesystem, and sets what depends on it and the policy.
func (lc *lifecycle) prepare(ctx context.Context, s Spec) (Spec, Layers, error) {
	layers, err := lc.cfg.Rootfs.Resolve(ctx, s.Rootfs)
	if err != nil {
		return s, layers, err
	}
	if len(layers.Dirs) == 0 && s.Backend != "bwrap" {
		return s, layers, fault.Fieldf("jail.Create", "rootfs", "only the bwrap backend can use the host's root filesystem")
	}
	s.Cwd, s.User = cmp.Or(s.Cwd, layers.Cwd), cmp.Or(s.User, layers.User)
	s.Policy, err = lc.observers.checkGovern(ctx, s)
	return s, layers, err
}

// createCold creates a jail without a spare, and teaches the pool its shape.
func (lc *lifecycle) createCold(ctx context.Context, b Backend, s Spec, layers Layers, r *reservation) (Jail, error) {
	j, err := lc.newJail(ctx, s, layers)
	if err != nil {
		return Jail{}, err
	}
	e, err := lc.createJail(ctx, b, j, source{reserved: r}, Created)
	if err != nil {
		return Jail{}, err
	}
	lc.pool.learn(s, layers)
	return *e.jail.Load(), nil
}

// startNew starts a jail that was just created, or deletes it.
func (lc *lifecycle) startNew(ctx context.Context, jid id.Jail) (Jail, error) {
	j, err := lc.Start(ctx, jid)
	if err != nil {
		return Jail{}, errors.Join(err, lc.Delete(context.WithoutCancel(ctx), jid))
	}
	return j, nil
}

// checkSupported returns an error if the backend does not support a feature that the spec asks
// for.
func checkSupported(op string, b Backend, s Spec) error {
	if u, ok := b.(Usable); ok {
		if err := u.Usable(); err != nil {
			return err
		}
	}
	lacks := b.Lacks()
	if why, lacking := lacks["network"]; lacking && s.Network != Isolated {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "network", Err: errors.New(why)}
	}
	if why, lacking := lacks["enforcement"]; lacking && s.Enforce {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "enforce", Err: errors.New(why), Remedy: "create the jail with runtime runc or crun, or with backend bwrap"}
	}
	if why, lacking := lacks["writable_mounts"]; lacking && slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Write }) {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: "mounts", Err: errors.New("a mount is writable: " + why), Remedy: "mount it read-only, or use the backend oci"}
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
	reserved      *reservation                                  // of its demand; nil: none

	// Of a jail that moves here from another node.
	events string                          // directory with its event log; "": none
	commit func(ctx context.Context) error // called before it is recorded as created; nil: nothing
}

// createJail creates the new jail j and leaves it in the given state. It records the jail
// before it touches the host, so that after a crash the next daemon knows what to remove. A
// spare with processes stays frozen.
func (lc *lifecycle) createJail(ctx context.Context, b Backend, j Jail, from source, to State) (_ *entry, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	e := newEntry(j)
	unlock, err := e.lock(ctx, "jail.Create")
	if err != nil {
		return nil, err
	}
	defer unlock()
	e.arriving = from.commit != nil
	lc.registry.add(e, from.reserved)

	var unowned Instance // created, but not attached to the entry yet
	defer func() {
		if err == nil {
			return
		}
		if unowned != nil {
			err = errors.Join(err, unowned.Close())
		}
		err = errors.Join(err, lc.destroy(ctx, b, e))
	}()
	defer fault.Recover(&err)
	inst, err := lc.createInstance(ctx, b, e, from)
	if err != nil {
		return nil, err
	}
	unowned = inst
	if from.lineage != nil {
		_, err = lc.observers.lineage(ctx, j.ID, *from.lineage)
	}
	if err == nil && from.commit != nil {
		err = from.commit(ctx)
	}
	if err == nil {
		j.State, j.Departure = to, nil
		err = lc.registry.save(ctx, e, j)
	}
	if err != nil {
		return nil, err
	}
	l := lc.attach(e, inst)
	unowned = nil
	l.freeze.setHeld(from.restore != nil)
	l.restored = from.restore != nil
	l.freeze.setPaused(to == Paused)
	err = lc.observers.observe(ctx, b, e, false)
	if err == nil && (to == Running || to == Paused) {
		err = lc.secrets.mountSecrets(ctx, j, inst)
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
	e.arriving = false
	if to == Spare && from.restore != nil {
		lc.registry.addCopy(j.Origin.Snapshot, e)
	}
	return e, nil
}

// newJail returns the record of a new jail over a root filesystem.
func (lc *lifecycle) newJail(ctx context.Context, s Spec, layers Layers) (Jail, error) {
	ids, err := lc.ids.reserveIDs(ctx)
	if err != nil {
		return Jail{}, err
	}
	return Jail{
		ID: id.NewJail(), Spec: s, State: Creating, IDs: ids, Created: time.Now(),
		Lower: layers.Dirs, Digest: layers.Digest, BaseEnv: layers.Env, Boot: lc.cfg.Boot,
	}, nil
}

func (lc *lifecycle) createInstance(ctx context.Context, b Backend, e *entry, from source) (Instance, error) {
	j := *e.jail.Load()
	if err := lc.cfg.Store.Put(ctx, j); err != nil {
		return nil, fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	if err := lc.createDirs(j, from); err != nil {
		return nil, err
	}
	if from.restore != nil {
		return from.restore(ctx, lc.registry.plan(j))
	}
	return createRecovered(ctx, b, lc.registry.plan(j))
}

// createDirs creates the directory of a new jail. That of one which moves here has its snapshot.
func (lc *lifecycle) createDirs(j Jail, from source) error {
	dir := lc.registry.dir(j.ID)
	if from.commit == nil {
		return os.Mkdir(dir, 0o711)
	}
	err := os.MkdirAll(dir, 0o711)
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o711), os.Mkdir(lc.registry.dir(j.instanceID()), 0o711))
	}
	if err == nil && from.events != "" {
		err = os.Rename(from.events, filepath.Join(dir, "events"))
	}
	return err
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
func (lc *lifecycle) claim(ctx context.Context, b Backend, e *entry, s Spec) (Jail, error) {
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
		if err := lc.observers.notifySpecChanged(ctx, j); err != nil {
			return err
		}
		if s.Start {
			return lc.beginRunning(ctx, b, e, j)
		}
		return lc.registry.save(ctx, e, j)
	})()
	if err != nil {
		return Jail{}, errors.Join(err, lc.destroy(ctx, b, e))
	}
	return *e.jail.Load(), nil
}

// Start starts a created, stopped or failed jail, and its command if it has one.
func (lc *lifecycle) Start(ctx context.Context, jid id.Jail) (Jail, error) {
	return lc.registry.withLock(ctx, jid, "jail.Start", lc.start)
}

func (lc *lifecycle) start(ctx context.Context, b Backend, e *entry) error {
	j := *e.jail.Load()
	if j.State != Created {
		next := j
		next.State = Running
		r, err := lc.registry.reserveChange(ctx, "jail.Start", e, next)
		if err != nil {
			return err
		}
		defer r.release()
		if err := lc.recreateInstance(ctx, b, e); err != nil {
			return err
		}
		j = *e.jail.Load()
	}
	return lc.beginRunning(ctx, b, e, j)
}

// beginRunning records j, whose init is idle, as running, and starts its command if it has
// one. The caller holds the jail's lock.
func (lc *lifecycle) beginRunning(ctx context.Context, b Backend, e *entry, j Jail) error {
	now := time.Now()
	if err := j.move(Running, "jail.Start"); err != nil {
		return err
	}
	if l := e.live.Load(); l != nil {
		if err := lc.secrets.mountSecrets(ctx, j, l.inst); err != nil {
			lc.recordEnded(ctx, b, e, Failed, "its secrets could not be mounted: "+err.Error())
			return err
		}
	}
	j.Started, j.Stopped, j.Reason, j.PausedBy, j.Boot = &now, nil, "", "", lc.cfg.Boot
	if err := lc.registry.save(ctx, e, j); err != nil {
		return err
	}
	if len(j.Spec.Command) == 0 {
		return nil
	}
	if _, _, err := lc.execs.exec(ctx, e, ExecRequest{Argv: j.Spec.Command}, nil); err != nil {
		lc.recordEnded(ctx, b, e, Failed, "its command could not be started: "+err.Error())
		return err
	}
	return nil
}

// recreateInstance creates a new instance of a stopped jail.
func (lc *lifecycle) recreateInstance(ctx context.Context, b Backend, e *entry) error {
	j := *e.jail.Load()
	if err := j.move(Starting, "jail.Start"); err != nil {
		return err
	}
	j.Boot, j.PriorUsage = lc.cfg.Boot, PriorUsage{}
	j = j.foldUsage()
	was := j
	j.Link = nil
	if was.Link != nil { // the link could not be released when the jail ended
		if err := b.Clean(ctx, lc.registry.plan(was)); err != nil {
			return err
		}
	}
	if err := lc.ids.replaceLostIDs(ctx, &j); err != nil {
		return err
	}
	if err := lc.registry.save(ctx, e, j); err != nil {
		lc.ids.releaseUnusedIDs(j, was)
		return err
	}
	lc.ids.releaseUnusedIDs(was, j)
	inst, err := createRecovered(ctx, b, lc.registry.plan(j))
	if err != nil {
		lc.recordEnded(ctx, b, e, Failed, "it could not be started: "+err.Error())
		return err
	}
	lc.attach(e, inst)
	if err := lc.observers.observe(ctx, b, e, false); err != nil {
		if kill := inst.Kill(ctx); kill != nil {
			lc.cfg.Log.Warn("cannot kill the processes of a jail", "jail", j.ID, "err", kill) // Clean kills again
		}
		lc.recordEnded(ctx, b, e, Failed, "it could not be observed: "+err.Error())
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
func (lc *lifecycle) Stop(ctx context.Context, jid id.Jail, o StopOptions) (Jail, error) {
	if o.Grace < 0 || o.Grace > MaxGrace {
		return Jail{}, fault.Fieldf("jail.Stop", "grace_ms", "%v is not between 0 and %v", o.Grace, MaxGrace)
	}
	return lc.registry.withLock(ctx, jid, "jail.Stop", func(ctx context.Context, b Backend, e *entry) error {
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
			lc.execs.archive(ctx, e, l)
		}
		if l != nil {
			if err := l.inst.Kill(ctx); err != nil {
				return fmt.Errorf("kill the processes of %s: %w", jid, err)
			}
		}
		lc.recordEnded(ctx, b, e, Stopped, "")
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
func (lc *lifecycle) Pause(ctx context.Context, jid id.Jail) (Jail, error) {
	return lc.freeze(ctx, jid, "jail.Pause", Running, Paused, "", (*liveInstance).pause, (*liveInstance).resume)
}

// PauseBy is like Pause, for a person who wants the jail to stay paused.
func (lc *lifecycle) PauseBy(ctx context.Context, jid id.Jail, by string) (Jail, error) {
	return lc.freeze(ctx, jid, "jail.Pause", Running, Paused, by, (*liveInstance).pause, (*liveInstance).resume)
}

// Resume continues a paused jail.
func (lc *lifecycle) Resume(ctx context.Context, jid id.Jail) (Jail, error) {
	return lc.freeze(ctx, jid, "jail.Resume", Paused, Running, "", (*liveInstance).resume, (*liveInstance).pause)
}

func (lc *lifecycle) freeze(ctx context.Context, jid id.Jail, op string, from, to State, by string, do, undo func(*liveInstance, context.Context) error) (Jail, error) {
	return lc.registry.withLock(ctx, jid, op, func(ctx context.Context, b Backend, e *entry) error {
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
		j.State, j.PausedBy = to, by
		if err := lc.registry.save(ctx, e, j); err != nil {
			return errors.Join(err, undo(l, ctx))
		}
		return nil
	})
}

// Delete stops a jail in any state and removes it with its files.
func (lc *lifecycle) Delete(ctx context.Context, jid id.Jail) error {
	_, err := lc.registry.withLock(ctx, jid, "jail.Delete", lc.destroy)
	return err
}

// destroy removes a jail from the host and then its record. The caller holds the jail's lock,
// or is its only user.
func (lc *lifecycle) destroy(ctx context.Context, b Backend, e *entry) error {
	j := *e.jail.Load()
	if j.State.visible() { // jails in other states are removed by the next daemon anyway
		j.State = Deleting
		if err := lc.registry.save(ctx, e, j); err != nil {
			return err
		}
	}
	if l := e.live.Swap(nil); l != nil {
		if err := l.inst.Kill(ctx); err != nil {
			lc.cfg.Log.Warn("cannot kill the processes of a jail", "jail", j.ID, "err", err) // Clean kills again
		}
		l.close()
	}
	lc.observers.unobserve(ctx, j.ID)
	if err := b.Clean(ctx, lc.registry.plan(j)); err != nil {
		return fmt.Errorf("release jail %s: %w", j.ID, err)
	}
	e.file.Lock()
	e.removed = true
	e.file.Unlock()
	if lc.cfg.Observer != nil {
		if err := lc.cfg.Observer.CloseLog(j.ID); err != nil {
			lc.cfg.Log.Warn("cannot close the event log of a jail", "jail", j.ID, "err", err)
		}
	}
	if err := lc.registry.remove(ctx, b, j); err != nil {
		return fmt.Errorf("remove the files of jail %s: %w", j.ID, err)
	}
	if err := lc.cfg.Store.Delete(ctx, j.ID); err != nil {
		return fmt.Errorf("delete the record of jail %s: %w", j.ID, err)
	}
	if j.Departure == nil && !e.arriving { // otherwise another node has it
		lc.secrets.forgetSecrets(ctx, j.ID)
	}
	lc.registry.dropDeleted(j)
	lc.ids.releaseUnusedIDs(j, Jail{})
	return nil
}

// environment returns the environment of a command in the jail. Precedence, from low to high:
// defaults, image, Enforcer, Spec.Env, extra.
func (co *core) environment(j Jail, extra map[string]string) []string {
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
	if co.cfg.Enforcer != nil {
		governed = co.cfg.Enforcer.Env(j)
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

// recordEnded releases the host resources of a jail whose processes have ended, and records
// its final state. The caller holds the jail's lock, or is its only user.
func (lc *lifecycle) recordEnded(ctx context.Context, b Backend, e *entry, to State, reason string) {
	l := e.live.Load()
	lc.usages.recordUsage(ctx, b, e, l)
	e.live.Store(nil)
	if l != nil {
		l.close()
	}
	j := *e.jail.Load()
	lc.observers.unobserve(ctx, j.ID)
	if err := b.Clean(ctx, lc.registry.plan(j)); err != nil {
		to, reason = Failed, fmt.Sprintf("%s; its resources could not be released: %v", reason, err)
	}
	if to != Failed && j.Link != nil {
		lc.ids.releaseIDs(j.Link.IDs)
		j.Link = nil // removed by Clean; the next start creates a new link
	}
	now := time.Now()
	j.State, j.Reason, j.Stopped = to, reason, &now
	lc.cfg.Log.Info("jail ended", "jail", j.ID, "state", to, "reason", reason)
	if err := lc.registry.save(ctx, e, j); err != nil {
		lc.cfg.Log.Error("cannot record the state of a jail", "jail", j.ID, "err", err)
	}
}

// attach makes inst the live instance of the entry and watches for its end.
func (lc *lifecycle) attach(e *entry, inst Instance) *liveInstance {
	l := &liveInstance{inst: inst, ctl: control.Dial(inst.Control()), prior: e.jail.Load().PriorUsage}
	l.ctl.SetFrozenFunc(l.freeze.isFrozen)
	e.live.Store(l)
	lc.wg.Go(func() { lc.watch(e, l) })
	return l
}

// watch waits for the unexpected end of an init.
func (lc *lifecycle) watch(e *entry, l *liveInstance) {
	select {
	case <-l.inst.Done():
	case <-lc.ctx.Done():
		return
	}
	unlock, err := e.lock(lc.ctx, "jail.watch")
	if err != nil {
		return
	}
	defer unlock()
	if e.live.Load() != l {
		return // a stop or delete was first
	}
	ctx, cancel := context.WithTimeout(lc.ctx, operationTimeout)
	defer cancel()
	j := *e.jail.Load()
	b, err := lc.registry.backend(j.Spec)
	if err != nil {
		return
	}
	if j.State == Spare {
		lc.destroy(ctx, b, e)
		return
	}
	reason := "its init ended unexpectedly" + oomNote(l)
	if w, ok := l.inst.(ExitExplainer); ok && w.ExitReason() != "" {
		reason = w.ExitReason()
	}
	lc.recordEnded(ctx, b, e, Failed, reason)
}

// oomNote returns a suffix for the reason if the kernel's OOM killer has ended a process of
// the jail and the counter can still be read.
func oomNote(l *liveInstance) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if st, err := l.inst.Stats(ctx); err == nil && st.OOMKills > 0 {
		return outOfMemory
	}
	return ""
}

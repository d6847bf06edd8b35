package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/fstest"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// fakeRemote stores copies of fake snapshots.
type fakeRemote struct {
	local *fakeSnapshots

	mu      sync.Mutex
	copies  map[id.Run]map[id.Snapshot]remoteCopy // guarded by mu, like the fields below
	fail    map[string]error                      // by method
	sources map[string]string                     // of the last Load
}

type remoteCopy struct {
	snap  snapshot.Snapshot
	files map[string]string
}

func (f *fakeRemote) Store(_ context.Context, r id.Run, s id.Snapshot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["Store"]; err != nil {
		return err
	}
	f.local.mu.Lock()
	defer f.local.mu.Unlock()
	snap, ok := f.local.all[s]
	if !ok {
		return fault.Newf(fault.NotFound, "snapshot.Export", string(s), "no such snapshot")
	}
	if f.copies[r] == nil {
		f.copies[r] = map[id.Snapshot]remoteCopy{}
	}
	f.copies[r][s] = remoteCopy{snap, maps.Clone(f.local.files[s])}
	return nil
}

func (f *fakeRemote) Load(_ context.Context, r id.Run, s id.Snapshot, sources map[string]string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sources = sources
	if err := f.fail["Load"]; err != nil {
		return err
	}
	c, ok := f.copies[r][s]
	if !ok {
		return fault.Newf(fault.NotFound, "remote.Load", string(s), "no such object")
	}
	f.local.mu.Lock()
	defer f.local.mu.Unlock()
	f.local.all[s], f.local.files[s] = c.snap, maps.Clone(c.files)
	return nil
}

func (f *fakeRemote) Prune(_ context.Context, r id.Run, keep id.Snapshot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.copies[r], func(s id.Snapshot, _ remoteCopy) bool { return s != keep })
	if len(f.copies[r]) == 0 {
		delete(f.copies, r)
	}
	return nil
}

func (f *fakeRemote) Runs(context.Context) ([]id.Run, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.copies)), nil
}

func (f *fakeRemote) wasLoaded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sources != nil
}

func (f *fakeRemote) failWith(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[method] = err
}

// withRemote returns an environment whose gateway has an object store.
func withRemote(t *testing.T) (*testEnv, *fakeRemote) {
	env := newTestEnv(t)
	remote := &fakeRemote{local: env.snapshots, copies: map[id.Run]map[id.Snapshot]remoteCopy{}, fail: map[string]error{}}
	env.cfg.Remote = remote
	env.cfg.Root = func(context.Context, jail.Rootfs) (fs.FS, error) { return fstest.MapFS{"bin/bash": {Mode: 0o755}}, nil }
	return env, remote
}

// checkpoint takes a checkpoint and waits until the object store has its snapshot.
func (env *testEnv) checkpoint(r id.Run) run.Checkpoint {
	env.Helper()
	c, err := env.g.Checkpoint(env.Context(), r, "test", "ann", false)
	if err != nil || c.Snapshot == "" {
		env.Fatalf("Checkpoint = %+v, %v, want one with a snapshot", c, err)
	}
	env.await("the checkpoint is in the object store", func() bool { return env.run(r).Remote == c.ID })
	return c
}

// loseHost removes the jails and snapshots of this host, and restarts the gateway, as if another
// daemon continued the runs.
func (env *testEnv) loseHost(also func()) {
	env.Helper()
	if err := env.g.Close(); err != nil {
		env.Fatal(err)
	}
	env.jails.mu.Lock()
	for _, p := range env.jails.execs {
		p.cancel()
	}
	for j := range env.jails.all {
		env.kernel.Release(j)
	}
	clear(env.jails.all)
	clear(env.jails.execs)
	env.jails.mu.Unlock()
	env.snapshots.mu.Lock()
	clear(env.snapshots.all)
	clear(env.snapshots.files)
	env.snapshots.mu.Unlock()
	if also != nil {
		also()
	}
	env.open()
}

// awaitJail waits until a run has a jail other than old.
func (env *testEnv) awaitNewJail(r id.Run, old Caller) Caller {
	env.Helper()
	env.await("the run has a new jail", func() bool {
		now := env.run(r)
		return now.Jail != "" && now.Jail != old.Jail && now.Recovery == nil
	})
	old.Jail = env.run(r).Jail
	return old
}

func (env *testEnv) tasks() int {
	env.Helper()
	all, err := env.cfg.Tasks.List(env.Context(), autonomy.TaskFilter{})
	if err != nil {
		env.Fatal(err)
	}
	return len(all)
}

func TestLostJailIsRestoredFromObjectStore(t *testing.T) {
	env, remote := withRemote(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.call(c, "1", "write_file", `{"path": "a", "text": "before"}`)
	cp := env.checkpoint(r.ID)
	env.call(c, "2", "write_file", `{"path": "a", "text": "after"}`)
	env.call(c, "3", "create_task", `{"title": "once"}`)
	env.loseHost(nil)
	now := env.awaitNewJail(r.ID, c)
	if text, _ := env.jails.file(now.Jail, "/workspace/a"); text != "before" {
		t.Errorf("file = %q, want that of the checkpoint", text)
	}
	got := env.run(r.ID)
	if !slices.Equal(got.Rewound, []run.Rewind{{Steps: 1, Lost: true}}) || got.Checkpoint != cp.ID {
		t.Errorf("run has rewinds %+v and checkpoint %s, want a lost jail after 1 step and %s", got.Rewound, got.Checkpoint, cp.ID)
	}
	if remote.sources[agentPath] != "/programs/glasshouse-agent" {
		t.Errorf("mounts of the restored jail: %v, want the program of this host", remote.sources)
	}
	// The agent repeats its steps.
	env.call(now, "1", "write_file", `{"path": "a", "text": "before"}`)
	if text, _ := env.jails.file(now.Jail, "/workspace/a"); text != "before" {
		t.Errorf("file = %q: a step before the checkpoint was repeated", text)
	}
	env.jails.put(now.Jail, "/workspace/a", "not written again")
	env.call(now, "2", "write_file", `{"path": "a", "text": "after"}`)
	if text, _ := env.jails.file(now.Jail, "/workspace/a"); text != "after" {
		t.Errorf("file = %q, want after: the step in the lost jail must be repeated", text)
	}
	if u := env.call(now, "3", "create_task", `{"title": "once"}`); u.State != run.StepDone || env.tasks() != 1 {
		t.Errorf("create_task = %+v, and there are %d tasks, want the recorded result and 1 task", u, env.tasks())
	}
	// Once repeated, the step has a result.
	env.jails.put(now.Jail, "/workspace/a", "changed")
	env.call(now, "2", "write_file", `{"path": "a", "text": "after"}`)
	if text, _ := env.jails.file(now.Jail, "/workspace/a"); text != "changed" {
		t.Errorf("file = %q, want changed: the repeated step was executed twice", text)
	}
}

// TestObjectStoreIsAwaited restores a run that has no restarts left: failures of the object store
// are not those of the agent.
func TestObjectStoreIsAwaited(t *testing.T) {
	for name, kind := range map[string]fault.Kind{"does not answer": fault.Unavailable, "hangs": fault.Timeout, "full disk": fault.NoSpace} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, remote := withRemote(t)
			r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
			env.call(c, "1", "write_file", `{"path": "a", "text": "before"}`)
			env.checkpoint(r.ID)
			if _, err := env.runs.Update(t.Context(), r.ID, func(d *run.Details) { d.Restarts = maxRestarts }); err != nil {
				t.Fatal(err)
			}
			env.loseHost(func() { remote.failWith("Load", fault.Newf(kind, "remote.Load", "", "%s", name)) })
			env.await("the object store was asked", remote.wasLoaded)
			remote.failWith("Load", nil)
			now := env.awaitNewJail(r.ID, c)
			if text, _ := env.jails.file(now.Jail, "/workspace/a"); text != "before" {
				t.Errorf("file = %q, want that of the checkpoint", text)
			}
			if got := env.run(r.ID); got.State != run.Active || got.Restarts != maxRestarts {
				t.Errorf("the run is %s with %d restarts, want active with %d", got.State, got.Restarts, maxRestarts)
			}
		})
	}
}

func TestLostJailWithoutCopyIsEmpty(t *testing.T) {
	for name, fail := range map[string]error{
		"no checkpoint":         nil,
		"other processor":       fault.Cannot("snapshot.Import", "another CPU", ""),
		"copy was deleted":      fault.Newf(fault.NotFound, "remote.Load", "", "no such object"),
		"copy with another key": fault.Newf(fault.Invalid, "remote.Load", "", "another key"),
	} {
		t.Run(name, func(t *testing.T) {
			env, remote := withRemote(t)
			r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
			env.call(c, "1", "write_file", `{"path": "a", "text": "one"}`)
			env.call(c, "2", "create_task", `{"title": "once"}`)
			if _, err := env.g.SaveState(t.Context(), c, "", json.RawMessage(`{"step": 2}`)); err != nil {
				t.Fatal(err)
			}
			if fail != nil {
				env.checkpoint(r.ID)
				remote.failWith("Load", fail)
			}
			env.loseHost(nil)
			now := env.awaitNewJail(r.ID, c)
			if text, ok := env.jails.file(now.Jail, "/workspace/a"); ok {
				t.Fatalf("file = %q, want an empty jail", text)
			}
			if task, err := env.g.Task(t.Context(), now); err != nil || task.Checkpoint.State != nil {
				t.Errorf("the agent continues from %s, %v, want from the beginning, because its files are lost", task.Checkpoint.State, err)
			}
			env.call(now, "1", "write_file", `{"path": "a", "text": "one"}`)
			if text, _ := env.jails.file(now.Jail, "/workspace/a"); text != "one" {
				t.Errorf("file = %q, want one: the step in the lost jail must be repeated", text)
			}
			env.call(now, "2", "create_task", `{"title": "once"}`)
			if n := env.tasks(); n != 1 {
				t.Errorf("there are %d tasks, want 1", n)
			}
		})
	}
}

// A branch whose jail is lost starts over as well, and not from the state of its origin.
func TestLostJailOfBranchIsEmpty(t *testing.T) {
	env, _ := withRemote(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	if _, err := env.g.SaveState(t.Context(), c, "", json.RawMessage(`{"step": 1}`)); err != nil {
		t.Fatal(err)
	}
	cp := env.checkpoint(r.ID)
	all, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Run = all[0].ID
	env.await("the branch has a jail", func() bool { return env.run(c.Run).Jail != "" && env.run(c.Run).Exec != "" })
	c.Jail = env.run(c.Run).Jail
	state := func(c Caller) string {
		t.Helper()
		task, err := env.g.Task(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return string(task.Checkpoint.State)
	}
	if got := state(c); got != `{"step": 1}` {
		t.Errorf("the agent of the branch starts from %q, want the state of its origin", got)
	}
	env.loseHost(nil)
	if got := state(env.awaitNewJail(c.Run, c)); got != "" {
		t.Errorf("the agent in the empty jail starts from %s, want from the beginning", got)
	}
}

// TestInterruptedRecoveryContinues restarts the gateway when the object store fails, and when the
// new jail exists but is not stored with the run.
func TestInterruptedRecoveryContinues(t *testing.T) {
	env, remote := withRemote(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.call(c, "1", "write_file", `{"path": "a", "text": "before"}`)
	cp := env.checkpoint(r.ID)
	env.loseHost(func() { remote.failWith("Load", fault.Newf(fault.Unavailable, "remote.Load", "", "no connection")) })
	env.await("the recovery has begun", func() bool { return env.run(r.ID).Recovery != nil })
	if err := env.g.Close(); err != nil {
		t.Fatal(err)
	}
	remote.failWith("Load", nil)
	n := env.run(r.ID).Recovery.N
	if err := remote.Load(t.Context(), r.ID, cp.Snapshot, nil); err != nil {
		t.Fatal(err)
	}
	made, err := env.snapshots.Branch(t.Context(), cp.Snapshot, 1, snapshot.Overrides{Labels: map[string]string{LabelRun: string(r.ID), LabelSession: "s", labelRecovery: fmt.Sprint(n)}})
	if err != nil || made[0].Err != nil {
		t.Fatal(err, made)
	}
	env.open()
	now := env.awaitNewJail(r.ID, c)
	if now.Jail != made[0].Jail.ID {
		t.Errorf("the run has jail %s, want %s, which an earlier gateway made", now.Jail, made[0].Jail.ID)
	}
	if got := env.run(r.ID).Rewound; len(got) != 1 {
		t.Errorf("rewinds = %+v, want one", got)
	}
}

// TestStaleJailIsNotUsedAgain loses the host of a run that an earlier daemon on this host had
// executed before.
func TestStaleJailIsNotUsedAgain(t *testing.T) {
	env, _ := withRemote(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.call(c, "1", "write_file", `{"path": "a", "text": "before"}`)
	env.checkpoint(r.ID)
	var stale jail.Jail
	env.loseHost(func() {
		var err error
		stale, err = env.jails.Create(t.Context(), jail.Spec{Labels: map[string]string{LabelRun: string(r.ID), LabelSession: "s"}})
		if err != nil {
			t.Fatal(err)
		}
	})
	now := env.awaitNewJail(r.ID, c)
	if text, _ := env.jails.file(now.Jail, "/workspace/a"); now.Jail == stale.ID || text != "before" {
		t.Errorf("the run continues in jail %s with file %q, want a restored one", now.Jail, text)
	}
}

func TestUndoneCheckpointsAreNotCopied(t *testing.T) {
	env, remote := withRemote(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.call(c, "1", "write_file", `{"path": "a", "text": "one"}`)
	first := env.checkpoint(r.ID)
	env.call(c, "2", "write_file", `{"path": "a", "text": "two"}`)
	undone := env.checkpoint(r.ID)
	remote.failWith("Store", fault.Newf(fault.Unavailable, "object.Put", "", "no connection"))
	if _, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: first.ID, By: "ann"}, 0); err != nil {
		t.Fatal(err)
	}
	if got := env.run(r.ID).Remote; got == undone.ID {
		t.Errorf("the run would be continued from checkpoint %s, which the rewind has undone", got)
	}
	remote.failWith("Store", nil)
	env.await("the checkpoint that was resumed is in the object store", func() bool { return env.run(r.ID).Remote == first.ID })
	env.await("the copy of the undone checkpoint is deleted", func() bool {
		remote.mu.Lock()
		defer remote.mu.Unlock()
		_, ok := remote.copies[r.ID][first.Snapshot]
		return ok && len(remote.copies[r.ID]) == 1
	})
}

func TestCopiesOfEndedRunsAreDeleted(t *testing.T) {
	env, remote := withRemote(t)
	r, _ := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.checkpoint(r.ID)
	if err := env.g.collectRemote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runs, _ := remote.Runs(t.Context()); len(runs) != 1 {
		t.Fatalf("runs with copies = %v, want that of the active run", runs)
	}
	if _, err := env.g.Cancel(t.Context(), r.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if err := env.g.collectRemote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runs, _ := remote.Runs(t.Context()); len(runs) != 0 {
		t.Errorf("runs with copies = %v, want none after the end of the run", runs)
	}
}

func TestFailedCopyIsRepeated(t *testing.T) {
	env, remote := withRemote(t)
	r, _ := env.open().startBuiltin(Agent{Jail: permissive(t)})
	remote.failWith("Store", fault.Newf(fault.Unavailable, "object.Put", "", "no connection"))
	c, err := env.g.Checkpoint(t.Context(), r.ID, "test", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := env.g.storeNewest(t.Context(), r.ID); err == nil || env.run(r.ID).Remote != "" {
		t.Errorf("storeNewest = %v and the copy is %q, want an error and no copy", err, env.run(r.ID).Remote)
	}
	env.await("the snapshot counts as unshipped", func() bool { return env.g.Unshipped() == 1000 })
	remote.failWith("Store", nil)
	env.await("the checkpoint is in the object store", func() bool { return env.run(r.ID).Remote == c.ID })
	env.await("no snapshot is unshipped", func() bool { return env.g.Unshipped() == 0 })
}

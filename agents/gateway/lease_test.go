package gateway

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/agent/spawn"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A fakeNode is the lease of this daemon.
type fakeNode struct {
	mu   sync.Mutex
	term context.Context
	end  context.CancelFunc
}

func newFakeNode() *fakeNode {
	n := &fakeNode{}
	n.begin()
	return n
}

func (n *fakeNode) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.term, n.end = context.WithCancel(context.Background())
}

func (n *fakeNode) Term() (context.Context, int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.term, 0
}

func (n *fakeNode) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end()
}

func (n *fakeNode) Now() time.Time { return time.Now() }

func (env *testEnv) awaitJail(j id.Jail, want jail.State) {
	env.Helper()
	env.await("jail "+string(j)+" is "+string(want), func() bool {
		got, err := env.jails.Get(env.Context(), j)
		return err == nil && got.State == want
	})
}

// freezeBuiltin starts a run of the reference agent, and ends the lease.
func (env *testEnv) freezeBuiltin() (run.Run, Caller) {
	env.Helper()
	r, c := env.startBuiltin(Agent{})
	r = env.run(r.ID)
	env.node.lose()
	env.awaitJail(r.Jail, jail.Paused)
	return r, c
}

// Without a lease, another daemon may soon continue the run.
func TestJailIsFrozenWithoutLease(t *testing.T) {
	env := newTestEnv(t).open()
	r, c := env.freezeBuiltin()
	jid := r.Jail
	if _, err := env.g.Call(t.Context(), c, ToolUse{Key: "k", Tool: "bash", Input: []byte(`{"command":"true"}`)}); err == nil {
		t.Error("a tool was called without a lease")
	}
	if got := env.run(r.ID); got.State != run.Active || got.Steps != 0 || got.Restarts != 0 {
		t.Errorf("run = %s with %d steps and %d restarts, want active without any", got.State, got.Steps, got.Restarts)
	}
	time.Sleep(2 * scanInterval) // a scan does not resume it
	if j, err := env.jails.Get(t.Context(), jid); err != nil || j.State != jail.Paused {
		t.Errorf("jail = %s, %v, want paused", j.State, err)
	}
	env.node.begin()
	env.awaitJail(jid, jail.Running)
	env.await("the run is supervised", func() bool { return env.g.supervisions.of(r.ID) != nil })
	if n := len(env.jails.processes()); n != 1 {
		t.Errorf("%d agents were started, want that the first continues", n)
	}
}

// A jail that cannot be paused at first is paused later.
func TestFreezeIsRepeated(t *testing.T) {
	env := newTestEnv(t).open()
	r, _ := env.startBuiltin(Agent{})
	jid := env.run(r.ID).Jail
	env.jails.failWith("Pause", errors.New("the freezer is busy"))
	env.node.lose()
	time.Sleep(300 * time.Millisecond)
	env.jails.failWith("Pause", nil)
	env.awaitJail(jid, jail.Paused)
}

// A waitingSpawner starts no agent. It waits, as for a busy host.
type waitingSpawner struct{ spawn.Spawner }

func (waitingSpawner) Probe(context.Context) error         { return nil }
func (waitingSpawner) UnenforcedLimits() map[string]string { return nil }
func (waitingSpawner) Agent() string                       { return "glasshouse-agent" }

func (waitingSpawner) Start(ctx context.Context, _ spawn.Start) (*spawn.Process, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// orderInShared starts a run whose agent is outside of jails, and uses a jail. It returns when the run
// uses the jail.
func (env *testEnv) orderInShared(j id.Jail) run.Run {
	env.Helper()
	agent := mustJSON(env.T, Agent{Preset: "builtin", Spawner: InBwrap})
	r, err := env.g.CreateRun(env.Context(), RunOrder{Request: run.Request{Session: "s", Goal: "work", Agent: agent, Jail: j, By: "ann"}})
	if err != nil {
		env.Fatal(err)
	}
	env.await("the run uses the jail", func() bool { return env.uses(r.ID, j) })
	return r
}

// uses reports whether a run is supervised and uses a jail.
func (env *testEnv) uses(r id.Run, j id.Jail) bool {
	sup := env.g.supervisions.of(r)
	return sup != nil && sup.mayUse(j)
}

// The commands of an agent outside of jails would wait forever.
func TestSharedJailOfAgentOutsideIsResumed(t *testing.T) {
	env := newTestEnv(t)
	env.cfg.Spawners = map[string]spawn.Spawner{InBwrap: waitingSpawner{}}
	env.open()
	j, err := env.jails.Create(t.Context(), jail.Spec{Start: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		env.orderInShared(j.ID)
	}
	env.node.lose()
	env.awaitJail(j.ID, jail.Paused)
	env.node.begin()
	env.awaitJail(j.ID, jail.Running)
}

// A jail that a person has paused stays paused when the daemon has its lease back, and the run
// continues when that person resumes the jail.
func TestJailPausedByPersonStaysPaused(t *testing.T) {
	env := newTestEnv(t)
	env.cfg.Spawners = map[string]spawn.Spawner{InBwrap: waitingSpawner{}}
	env.open()
	shared, err := env.jails.Create(t.Context(), jail.Spec{Start: true})
	if err != nil {
		t.Fatal(err)
	}
	outside := env.orderInShared(shared.ID)
	inside, _ := env.startBuiltin(Agent{})
	own := env.run(inside.ID).Jail
	for r, j := range map[id.Run]id.Jail{outside.ID: shared.ID, inside.ID: own} {
		env.await("the run uses the jail", func() bool { return env.uses(r, j) })
		if _, err := env.jails.Pause(t.Context(), j); err != nil {
			t.Fatal(err)
		}
		env.jails.setPausedBy(j, "ann")
	}
	env.node.lose()
	env.await("the runs are not supervised", func() bool { return !env.uses(outside.ID, shared.ID) && !env.uses(inside.ID, own) })
	env.node.begin()
	env.await("the runs are supervised again", func() bool { return env.uses(outside.ID, shared.ID) && env.uses(inside.ID, own) })
	time.Sleep(300 * time.Millisecond) // the supervisors would resume the jails at once
	for _, j := range []id.Jail{shared.ID, own} {
		if now, err := env.jails.Get(t.Context(), j); err != nil || now.State != jail.Paused {
			t.Errorf("jail %s is %s, %v, want it paused", j, now.State, err)
		}
		if _, err := env.jails.Resume(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []id.Run{outside.ID, inside.ID} {
		if now, err := env.runs.Get(t.Context(), r); err != nil || now.State != run.Active || now.Restarts > 0 {
			t.Errorf("run %s is %s with %d restarts, %v, want it active without restarts", r, now.State, now.Restarts, err)
		}
	}
}

// A socketSpawner starts an agent when its socket is removed.
type socketSpawner struct {
	waitingSpawner
	starting chan<- struct{}
	failed   chan<- struct{}
}

func (s socketSpawner) Start(ctx context.Context, start spawn.Start) (*spawn.Process, error) {
	defer func() { s.failed <- struct{}{} }()
	s.starting <- struct{}{}
	for {
		if _, err := os.Stat(start.Socket); err != nil {
			return nil, fault.New(fault.Invalid, "spawn.Start", start.Socket, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// A daemon that stops removes the sockets of agents that are just being started.
func TestAgentWhoseSocketIsClosedDoesNotFail(t *testing.T) {
	env := newTestEnv(t)
	starting, failed, end := make(chan struct{}, 10), make(chan struct{}, 10), make(chan struct{})
	env.cfg.Spawners = map[string]spawn.Spawner{InBwrap: socketSpawner{starting: starting, failed: failed}}
	env.cfg.Serve = func(l net.Listener, _ func(context.Context) (Caller, error)) error {
		<-starting
		err := l.Close()
		<-end // the server waits for its requests
		return err
	}
	env.open()
	r := env.order("s", "work", Agent{Preset: "builtin", Spawner: InBwrap})
	<-failed
	close(end)
	select {
	case <-failed:
	case <-time.After(20 * time.Second):
		t.Error("the agent is not started again")
	}
	if got := env.run(r.ID); got.State != run.Active || got.Restarts != 0 {
		t.Errorf("run = %s, %s with %d restarts, want active without any", got.State, got.Error, got.Restarts)
	}
}

// Two runs share a jail, and the daemon gets its lease back between their pauses.
func TestLateFreezeLeavesJailOfOtherRun(t *testing.T) {
	env := newTestEnv(t).open()
	r, _ := env.startBuiltin(Agent{})
	jid := env.run(r.ID).Jail
	if err := env.g.supervisor.freezeJail(t.Context(), jid); err != nil {
		t.Fatal(err)
	}
	if j, err := env.jails.Get(t.Context(), jid); err != nil || j.State != jail.Running {
		t.Errorf("jail = %s, %v, want running", j.State, err)
	}
}

// The agent starts only after its jail is fenced. If that fails, it is tried again.
func TestJailIsFencedBeforeAgentStarts(t *testing.T) {
	env := newTestEnv(t)
	var mu sync.Mutex
	var fenced []id.Jail
	env.cfg.Fence = func(j id.Jail) error {
		mu.Lock()
		defer mu.Unlock()
		fenced = append(fenced, j)
		if len(fenced) == 1 {
			return errors.New("the firewall cannot be changed")
		}
		return nil
	}
	env.open()
	r, _ := env.startBuiltin(Agent{})
	r = env.run(r.ID)
	mu.Lock()
	defer mu.Unlock()
	if len(fenced) < 2 || slices.ContainsFunc(fenced, func(j id.Jail) bool { return j != r.Jail }) {
		t.Errorf("fenced jails %q before the agent started, want %s, and again after the error", fenced, r.Jail)
	}
	if n := len(env.jails.processes()); n != 1 {
		t.Errorf("%d agents were started, want 1", n)
	}
}

// Another daemon has continued the run in another jail. The processes of the first must not run
// again, even for a moment.
func TestFrozenJailOfContinuedRunIsStopped(t *testing.T) {
	env := newTestEnv(t).open()
	r, _ := env.freezeBuiltin()
	jid := r.Jail
	env.await("the run is not supervised", func() bool { return env.g.supervisions.of(r.ID) == nil })
	env.jails.failWith("Resume", errors.New("a jail was resumed"))
	other, err := run.New(t.Context(), run.Config{Store: env.store.Runs(), Chain: env.chain, Holder: "daemon-2"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := env.store.Runs().Release(t.Context(), r.Session, "daemon-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Claim(t.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Update(t.Context(), r.ID, func(d *run.Details) { d.Jail = "j-aaaaaaaaaaaa" }); err != nil {
		t.Fatal(err)
	}
	env.node.begin()
	// The gateway tries to claim the run meanwhile, and sweep leaves the jails of supervised runs.
	env.await("the jail is stopped", func() bool {
		if err := env.g.sweep(t.Context()); err != nil {
			t.Fatalf("sweep = %v", err)
		}
		j, err := env.jails.Get(t.Context(), jid)
		return err == nil && j.State == jail.Stopped
	})
}

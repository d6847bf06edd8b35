package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/agents/schedule"
	"glasshouse/capability/engine"
	"glasshouse/capability/skill"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/snapshot"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A testEnv is a gateway with all its dependencies. The database, the audit log, the policy
// engine, the approval queue, the runs, the schedules and the broker are real; jails,
// snapshots and installed capabilities are fakes.
type testEnv struct {
	*testing.T
	dir       string
	store     *store.Store
	chain     *chain.Chain
	kernel    *govern.Engine
	approvals *approval.Queue
	runs      *run.Manager
	schedules *schedule.Manager
	broker    *autonomy.Broker
	resources *autonomy.Resources
	node      *fakeNode
	jails     *fakeJails
	snapshots *fakeSnapshots
	caps      *fakeCaps
	memory    *fakeMemory
	cfg       Config
	g         *Gateway
}

// newTestEnv returns an environment whose gateway is not open yet. Tests may change env.cfg
// before they call env.open.
func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	env := &testEnv{T: t, dir: t.TempDir(), node: newFakeNode()}
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	env.store, err = storetest.Open(t, filepath.Join(env.dir, "g.db"))
	must(err)
	t.Cleanup(func() { env.store.Close() })
	key, err := chain.LoadKey(env.dir)
	must(err)
	log := slog.New(slog.DiscardHandler)
	env.chain, err = chain.Open(t.Context(), chain.Config{Store: env.store.Chain(), Key: key, Log: log})
	must(err)
	t.Cleanup(func() { env.chain.Close() })
	env.kernel = govern.New(govern.Config{Chain: env.chain, Dir: filepath.Join(env.dir, "ca")})
	t.Cleanup(func() { env.kernel.Close() })
	env.approvals, err = approval.New(t.Context(), env.store.Approvals(), approval.Config{Record: env.kernel.RecordApproval})
	must(err)
	t.Cleanup(func() { env.approvals.Close() })
	env.kernel.Approvals(env.approvals)
	env.runs, err = run.New(t.Context(), run.Config{Store: env.store.Runs(), Chain: env.chain, Holder: "daemon-1", Node: env.node})
	must(err)
	t.Cleanup(func() { env.runs.Close() })
	env.jails = newFakeJails(env)
	env.snapshots = &fakeSnapshots{jails: env.jails, all: map[id.Snapshot]snapshot.Snapshot{}}
	env.caps = &fakeCaps{skills: map[string][]string{}}
	env.memory = &fakeMemory{of: map[id.Run]string{}}
	siblings := gatewaySiblings{env}
	env.broker, err = autonomy.NewBroker(env.store.Autonomy(), autonomy.BrokerConfig{
		Siblings: siblings, Deliverer: siblings, Poll: 20 * time.Millisecond,
		Policy: func(ctx context.Context, from, to autonomy.Member, action, text string) (bool, string, error) {
			return env.g.EvaluateRequest(ctx, from, to, action, text)
		},
		Ready: func(ctx context.Context, to autonomy.Member) (*autonomy.Refusal, error) { return env.g.Ready(ctx, to) },
	})
	must(err)
	t.Cleanup(func() { env.broker.Close() })
	bounds := &ResourceLimiter{Jails: env.jails}
	env.resources, err = autonomy.NewResources(t.Context(), env.store.Autonomy(), autonomy.ResourceConfig{
		Applier: bounds, Sampler: bounds, Host: "host-1",
		Ceilings: autonomy.Ceilings{Capacity: autonomy.Limits{CPU: 8000, Memory: 16384, Disk: 1 << 20}},
		Approve: func(ctx context.Context, m autonomy.Member, have, want autonomy.Limits, reason string) (bool, string, string, error) {
			return env.g.ApproveResources(ctx, m, have, want, reason)
		},
	})
	must(err)
	t.Cleanup(func() { env.resources.Close() })
	env.schedules = schedule.New(schedule.Config{
		Store: env.store.Schedules(), Log: log,
		Fire:    func(ctx context.Context, f schedule.Firing) error { return env.g.Fire(ctx, f) },
		Running: func(ctx context.Context, h id.Schedule) (bool, error) { return env.g.Running(ctx, h) },
	})
	env.cfg = Config{
		Runs: env.runs, Jails: env.jails, Snapshots: env.snapshots, Policy: env.kernel, Caps: env.caps, Memory: env.memory,
		Tasks:      autonomy.NewTasks(env.store.Autonomy(), Workspaces{Jails: env.jails}),
		Serve:      serveCallers,
		Program:    "/programs/glasshouse-agent",
		Root:       func(context.Context, jail.Rootfs) (fs.FS, error) { return nil, fs.ErrNotExist },
		Dir:        filepath.Join(env.dir, "agents"),
		Connectors: func(string) []string { return nil },
		Default:    Agent{Preset: "shell", Model: "default", Spawner: InJail},
	}
	return env
}

// open opens the gateway.
func (env *testEnv) open() *testEnv {
	env.Helper()
	env.newGateway()
	if err := env.g.Open(env.Context()); err != nil {
		env.Fatal(err)
	}
	return env
}

// withoutLoop creates a gateway that starts no agents: its loop is not started.
func (env *testEnv) withoutLoop() *testEnv {
	env.newGateway()
	return env
}

func (env *testEnv) newGateway() {
	env.g = New(env.cfg)
	env.g.SetServices(Services{Schedules: env.schedules, Broker: env.broker, Resources: env.resources})
	env.Cleanup(func() { env.g.Close() })
}

// serveCallers answers each connection with the caller as JSON, and closes it.
func serveCallers(l net.Listener, identify func(context.Context) (Caller, error)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		caller, err := identify(context.Background())
		if err != nil {
			fmt.Fprintln(c, err)
		} else if err := json.NewEncoder(c).Encode(caller); err != nil {
			return err
		}
		c.Close()
	}
}

// gatewaySiblings forwards to the gateway, which is created after the broker.
type gatewaySiblings struct{ env *testEnv }

func (s gatewaySiblings) Members(ctx context.Context, group string) ([]autonomy.Member, error) {
	if s.env.g == nil {
		return nil, nil
	}
	return s.env.g.Members(ctx, group)
}

func (s gatewaySiblings) Deliver(ctx context.Context, r autonomy.Request) error {
	return s.env.g.Deliver(ctx, r)
}

// await waits until a condition holds.
func (env *testEnv) await(what string, cond func() bool) {
	env.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			env.Fatalf("timed out after 20 s: waiting until %s", what)
		}
	}
}

// order starts a run of an agent.
func (env *testEnv) order(session, goal string, a Agent) run.Run {
	env.Helper()
	raw, err := json.Marshal(a)
	if err != nil {
		env.Fatal(err)
	}
	r, err := env.g.CreateRun(env.Context(), RunOrder{Request: run.Request{Session: session, Goal: goal, Agent: raw, By: "ann", Creator: "t-ann"}})
	if err != nil {
		env.Fatalf("Order(%q) = %v, want a run", goal, err)
	}
	return r
}

func (env *testEnv) run(rid id.Run) run.Run {
	env.Helper()
	r, err := env.runs.Get(env.Context(), rid)
	if err != nil {
		env.Fatal(err)
	}
	return r
}

// awaitState waits until a run is in a state.
func (env *testEnv) awaitState(rid id.Run, want run.State) run.Run {
	env.Helper()
	var r run.Run
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		r = env.run(rid)
		if r.State == want {
			return r
		}
		if time.Now().After(end) || r.State.Ended() {
			env.Fatalf("run %s is %s (%s %s %s), want %s", rid, r.State, r.Why, r.Reason, r.Error, want)
		}
	}
}

// decisions returns the decisions in the audit log, oldest first, as "action: resource [tag]".
func (env *testEnv) decisions() []string {
	env.Helper()
	var all []string
	for _, e := range env.entries(chain.Decided) {
		var d govern.DecisionRecord
		if err := json.Unmarshal(e.Body, &d); err != nil {
			env.Fatal(err)
		}
		all = append(all, d.Line())
	}
	return all
}

// entries returns the entries of a kind in the audit log, oldest first.
func (env *testEnv) entries(kind chain.Kind) []chain.Entry {
	env.Helper()
	if err := env.kernel.Flush(env.Context()); err != nil {
		env.Fatal(err)
	}
	all, err := env.chain.Entries(env.Context(), chain.Query{Kinds: []chain.Kind{kind}, Limit: 1000})
	if err != nil {
		env.Fatal(err)
	}
	return all
}

// policyOf returns a policy of one permission file.
func policyOf(t *testing.T, text, agent string, level policy.Level) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(govern.Spec{Policy: &govern.Policy{
		Files: []govern.File{{Name: "opencode.json", Text: text}}, Agent: agent, Level: level, Match: policy.Last,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A script runs in a fake jail instead of a command.
type script func(p *process) (code int)

// A process is a command that runs in a fake jail.
type process struct {
	jail    id.Jail
	req     jail.ExecRequest
	ctx     context.Context // done when the process is signalled or its jail stops
	cancel  context.CancelFunc
	ended   chan struct{}
	mu      sync.Mutex
	out     []protocol.Chunk // guarded by mu
	status  protocol.ExecStatus
	signals []string
}

func (p *process) print(s protocol.Stream, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = append(p.out, protocol.Chunk{Stream: s, Offset: p.status.Next, Data: []byte(text)})
	p.status.Next += int64(len(text))
	if s == protocol.Stderr {
		p.status.Stderr += int64(len(text))
	} else {
		p.status.Stdout += int64(len(text))
	}
}

func (p *process) now() protocol.ExecStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// fakeJails implements Jails in memory and runs scripts of the test.
type fakeJails struct {
	env *testEnv

	mu       sync.Mutex
	all      map[id.Jail]*jail.Jail
	order    []id.Jail
	files    map[id.Jail]map[string]string
	execs    map[id.Exec]*process
	started  []*process // oldest first
	ports    map[id.Jail]net.Listener
	sockets  map[id.Jail]net.Listener
	stats    map[id.Jail]jail.Stats
	changed  map[id.Jail]bool
	limits   []jail.LimitChange
	fail     map[string]error // by method
	programs map[string]script
	noNotify bool // the gateway is not notified when a jail starts
}

func newFakeJails(env *testEnv) *fakeJails {
	return &fakeJails{
		env: env, all: map[id.Jail]*jail.Jail{}, files: map[id.Jail]map[string]string{}, execs: map[id.Exec]*process{},
		ports: map[id.Jail]net.Listener{}, sockets: map[id.Jail]net.Listener{}, stats: map[id.Jail]jail.Stats{}, changed: map[id.Jail]bool{},
		fail: map[string]error{}, programs: map[string]script{},
	}
}

// script sets the script for commands that contain text.
func (f *fakeJails) script(text string, p script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.programs[text] = p
}

func (f *fakeJails) failWith(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[method] = err
}

// find returns a jail, or the error that method is set to fail with. f.mu must be held.
//
// +checklocks:f.mu
func (f *fakeJails) find(method string, j id.Jail) (*jail.Jail, error) {
	if err := f.fail[method]; err != nil {
		return nil, err
	}
	found := f.all[j]
	if found == nil {
		return nil, fault.Newf(fault.NotFound, "jail."+method, string(j), "no such jail")
	}
	return found, nil
}

func (f *fakeJails) Create(ctx context.Context, s jail.Spec) (jail.Jail, error) {
	f.mu.Lock()
	if err := f.fail["Create"]; err != nil {
		f.mu.Unlock()
		return jail.Jail{}, err
	}
	for _, j := range f.all {
		if j.Spec.Name == s.Name && s.Name != "" {
			f.mu.Unlock()
			return jail.Jail{}, &fault.Error{Op: "jail.Create", Kind: fault.Conflict, Field: "name", Err: errors.New("the name is taken")}
		}
	}
	if s.Limits == (jail.Limits{}) {
		s.Limits = jail.DefaultLimits
	}
	j := &jail.Jail{ID: id.NewJail(), Spec: s, State: jail.Created, Created: time.Now()}
	f.all[j.ID], f.files[j.ID] = j, map[string]string{"/bin/bash": "", "/usr/bin/bash": "", "/usr/local/bin/glasshouse-agent": "", "/bin/echo": ""}
	f.order = append(f.order, j.ID)
	got := *j
	f.mu.Unlock()
	if !s.Start {
		return got, nil
	}
	return f.Start(ctx, j.ID)
}

func (f *fakeJails) Get(_ context.Context, jid id.Jail) (jail.Jail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find("Get", jid)
	if err != nil {
		return jail.Jail{}, err
	}
	return *j, nil
}

func (f *fakeJails) List(_ context.Context, o jail.ListOptions) ([]jail.Jail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["List"]; err != nil {
		return nil, err
	}
	var list []jail.Jail
	for _, jid := range f.order {
		j := f.all[jid]
		if j == nil || o.State != "" && j.State != o.State {
			continue
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(o.Label)), func(k string) bool { return j.Spec.Labels[k] != o.Label[k] }) {
			continue
		}
		list = append(list, *j)
	}
	return list, nil
}

func (f *fakeJails) Start(ctx context.Context, jid id.Jail) (jail.Jail, error) {
	f.mu.Lock()
	j, err := f.find("Start", jid)
	if err != nil {
		f.mu.Unlock()
		return jail.Jail{}, err
	}
	j.State = jail.Running
	got, silent := *j, f.noNotify
	f.mu.Unlock()
	if err := f.env.kernel.Guard(ctx, jid, govern.Guard{Spec: got.Spec.Policy, Workspace: got.Spec.Project()}); err != nil {
		return got, err
	}
	if f.env.g != nil && !silent {
		f.env.g.JailStarted(got)
	}
	return got, nil
}

// Subscribe does nothing: Start and Stop notify the gateway of the environment.
func (f *fakeJails) Subscribe(jail.Listener) (cancel func()) { return func() {} }

func (f *fakeJails) Stop(_ context.Context, jid id.Jail, _ jail.StopOptions) (jail.Jail, error) {
	f.mu.Lock()
	j, err := f.find("Stop", jid)
	if err != nil {
		f.mu.Unlock()
		return jail.Jail{}, err
	}
	j.State = jail.Stopped
	got := *j
	var mine []*process
	for _, p := range f.execs {
		if p.jail == jid {
			mine = append(mine, p)
		}
	}
	f.mu.Unlock()
	for _, p := range mine {
		p.cancel()
	}
	if f.env.g != nil {
		f.env.g.JailStopped(jid)
	}
	f.env.kernel.Release(jid)
	return got, nil
}

func (f *fakeJails) move(method string, jid id.Jail, from, to jail.State) (jail.Jail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find(method, jid)
	if err != nil {
		return jail.Jail{}, err
	}
	if j.State != from {
		return *j, fault.Newf(fault.Conflict, "jail."+method, string(jid), "it is %s", j.State)
	}
	j.State = to
	return *j, nil
}

func (f *fakeJails) Pause(_ context.Context, jid id.Jail) (jail.Jail, error) {
	return f.move("Pause", jid, jail.Running, jail.Paused)
}

func (f *fakeJails) Resume(_ context.Context, jid id.Jail) (jail.Jail, error) {
	j, err := f.move("Resume", jid, jail.Paused, jail.Running)
	if err == nil {
		f.setPausedBy(jid, "")
	}
	return j, err
}

// setPausedBy records the person who has paused a jail.
func (f *fakeJails) setPausedBy(jid id.Jail, by string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[jid].PausedBy = by
}

func (f *fakeJails) Delete(_ context.Context, jid id.Jail) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find("Delete", jid); err != nil {
		return err
	}
	delete(f.all, jid)
	return nil
}

func (f *fakeJails) Changed(_ context.Context, jid id.Jail) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.find("Changed", jid)
	return f.changed[jid], err
}

func (f *fakeJails) Limit(_ context.Context, jid id.Jail, q jail.LimitChange) (jail.Jail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find("Limit", jid)
	if err != nil {
		return jail.Jail{}, err
	}
	f.limits = append(f.limits, q)
	own := j.Own()
	l := jail.Limits{
		CPUShares: cmp.Or(q.Limits.CPUShares, j.Spec.Limits.CPUShares), MemoryMB: cmp.Or(q.Limits.MemoryMB, j.Spec.Limits.MemoryMB),
		DiskMB: cmp.Or(q.Limits.DiskMB, j.Spec.Limits.DiskMB), MaxPIDs: cmp.Or(q.Limits.MaxPIDs, j.Spec.Limits.MaxPIDs),
	}
	j.Spec.Limits, j.OwnLimits = l, nil
	if q.Temporary && l != own {
		j.OwnLimits = &own
	}
	return *j, nil
}

func (f *fakeJails) Stats(_ context.Context, jid id.Jail) (jail.Stats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.find("Stats", jid)
	return f.stats[jid], err
}

func (f *fakeJails) Usage(_ context.Context, jid id.Jail) (jail.Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.find("Usage", jid)
	s := f.stats[jid]
	return jail.Usage{Used: jail.Used{CPU: s.CPU, RxBytes: s.RxBytes, TxBytes: s.TxBytes}, DiskBytes: s.DiskBytes}, err
}

func (f *fakeJails) InitStarted(_ context.Context, jid id.Jail) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Unix(1, 0), f.checkRunning("InitStarted", jid)
}

// checkRunning returns an error unless a jail runs. The caller holds mu.
//
// +checklocks:f.mu
func (f *fakeJails) checkRunning(method string, jid id.Jail) error {
	j, err := f.find(method, jid)
	if err == nil && j.State != jail.Running {
		err = fault.Newf(fault.Conflict, "jail."+method, string(jid), "it is %s", j.State)
	}
	return err
}

func (f *fakeJails) Exec(_ context.Context, jid id.Jail, r jail.ExecRequest, _ *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.checkRunning("Exec", jid); err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	r.ID = cmp.Or(r.ID, id.NewExec())
	if f.execs[r.ID] != nil {
		return nil, protocol.ExecStatus{}, fault.Newf(fault.Conflict, "jail.Exec", string(r.ID), "the command exists")
	}
	argv := r.Argv
	if r.Cmd != "" {
		argv = []string{"/bin/sh", "-c", r.Cmd}
	}
	p := &process{jail: jid, req: r, ended: make(chan struct{}), status: protocol.ExecStatus{ID: r.ID, Argv: argv, Started: time.Now()}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	f.execs[r.ID] = p
	f.started = append(f.started, p)
	do := func(*process) int { return 0 }
	line := strings.Join(argv, " ")
	for _, text := range slices.Sorted(maps.Keys(f.programs)) {
		if strings.Contains(line, text) {
			do = f.programs[text]
		}
	}
	go func() {
		code := do(p)
		p.mu.Lock()
		now := time.Now()
		p.status.Ended, p.status.Code = &now, code
		if n := len(p.signals); n > 0 {
			p.status.Signal = p.signals[n-1]
		}
		p.mu.Unlock()
		close(p.ended)
	}()
	return nil, p.now(), nil
}

func (f *fakeJails) process(jid id.Jail, x id.Exec) (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find("Process", jid); err != nil {
		return nil, err
	}
	p := f.execs[x]
	if p == nil {
		return nil, fault.Newf(fault.NotFound, "jail", string(x), "no such command")
	}
	return p, nil
}

func (f *fakeJails) processes() []*process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.started)
}

// Attach fails, since only a real init supports it. The gateway then reads Output, which
// blocks here until the command has ended.
func (f *fakeJails) Attach(context.Context, id.Jail, id.Exec, control.AttachOptions) (*control.Stream, error) {
	return nil, fault.Newf(fault.Unavailable, "jail.Attach", "", "the fake has no init")
}

func (f *fakeJails) Output(ctx context.Context, jid id.Jail, x id.Exec, each func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	p, err := f.process(jid, x)
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return protocol.ExecStatus{}, context.Cause(ctx)
	}
	p.mu.Lock()
	out, status := slices.Clone(p.out), p.status
	p.mu.Unlock()
	for _, c := range out {
		if err := each(c); err != nil {
			return status, err
		}
	}
	return status, nil
}

func (f *fakeJails) ExecStatus(_ context.Context, jid id.Jail, x id.Exec) (protocol.ExecStatus, error) {
	p, err := f.process(jid, x)
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	return p.now(), nil
}

func (f *fakeJails) Signal(_ context.Context, jid id.Jail, x id.Exec, sig string) error {
	p, err := f.process(jid, x)
	if err != nil {
		return err
	}
	p.mu.Lock()
	over := p.status.Ended != nil
	if !over {
		p.signals = append(p.signals, sig)
	}
	p.mu.Unlock()
	if over {
		return fault.Newf(fault.Conflict, "jail.Signal", string(x), "it has ended")
	}
	p.cancel()
	return nil
}

func (f *fakeJails) Stdin(_ context.Context, jid id.Jail, x id.Exec) (io.WriteCloser, error) {
	p, err := f.process(jid, x)
	if err != nil {
		return nil, err
	}
	return fakeStdin{p}, nil
}

type fakeStdin struct{ p *process }

func (s fakeStdin) Write(b []byte) (int, error) { return len(b), nil }
func (s fakeStdin) Close() error                { return nil }

func (f *fakeJails) Files(_ context.Context, jid id.Jail) (jail.Files, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find("Files", jid); err != nil {
		return nil, err
	}
	return &fakeFiles{f, jid}, nil
}

func (f *fakeJails) file(jid id.Jail, name string) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, ok := f.files[jid][name]
	return text, ok
}

func (f *fakeJails) put(jid id.Jail, name, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[jid][name] = text
}

func (f *fakeJails) listen(jid id.Jail, into map[id.Jail]net.Listener) (net.Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find("Listen", jid)
	if err != nil {
		return nil, err
	}
	if j.State != jail.Running && j.State != jail.Paused {
		return nil, fault.Newf(fault.Conflict, "jail.Listen", string(jid), "it is %s", j.State)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		into[jid] = l
	}
	return l, err
}

func (f *fakeJails) Listen(_ context.Context, jid id.Jail, _ string) (net.Listener, error) {
	return f.listen(jid, f.sockets)
}

func (f *fakeJails) ListenTCP(_ context.Context, jid id.Jail, _ int) (net.Listener, error) {
	return f.listen(jid, f.ports)
}

// dialEndpoint connects to the agent endpoint of a jail and returns the caller that it
// reports.
func (env *testEnv) dialEndpoint(jid id.Jail) (Caller, error) {
	env.Helper()
	var l net.Listener
	env.await("the agent endpoint of "+string(jid)+" is open", func() bool {
		env.jails.mu.Lock()
		defer env.jails.mu.Unlock()
		l = env.jails.ports[jid]
		return l != nil
	})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return Caller{}, err
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	if err != nil {
		return Caller{}, err
	}
	var caller Caller
	if err := json.Unmarshal(text, &caller); err != nil {
		return Caller{}, fmt.Errorf("%s", bytes.TrimSpace(text))
	}
	return caller, nil
}

// fakeFiles are the files of a fake jail: regular files, and the directories above them.
type fakeFiles struct {
	f   *fakeJails
	jid id.Jail
}

func (s *fakeFiles) Stat(_ context.Context, name string) (protocol.FileInfo, error) {
	text, ok := s.f.file(s.jid, name)
	if !ok {
		return protocol.FileInfo{}, fault.Newf(fault.NotFound, "fs.Stat", name, "no such file")
	}
	return protocol.FileInfo{Path: name, Name: path.Base(name), Type: "file", Mode: 0o755, Size: int64(len(text))}, nil
}

func (s *fakeFiles) List(_ context.Context, dir, _ string, _ int) (list []protocol.FileInfo, more bool, err error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.f.files[s.jid])) {
		if path.Dir(name) == dir {
			list = append(list, protocol.FileInfo{Path: name, Name: path.Base(name), Type: "file", Size: int64(len(s.f.files[s.jid][name]))})
		}
	}
	return list, false, nil
}

func (s *fakeFiles) Read(ctx context.Context, name string, offset, limit int64) (io.ReadCloser, protocol.FileInfo, error) {
	info, err := s.Stat(ctx, name)
	if err != nil {
		return nil, info, err
	}
	text, _ := s.f.file(s.jid, name)
	text = text[min(offset, int64(len(text))):]
	if limit > 0 {
		text = text[:min(limit, int64(len(text)))]
	}
	return io.NopCloser(strings.NewReader(text)), info, nil
}

func (s *fakeFiles) Write(ctx context.Context, name string, r io.Reader, _ protocol.WriteOptions) (protocol.FileInfo, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return protocol.FileInfo{}, err
	}
	s.f.put(s.jid, name, string(text))
	return s.Stat(ctx, name)
}

func (s *fakeFiles) Remove(_ context.Context, name string, _ bool) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	delete(s.f.files[s.jid], name)
	return nil
}

func (s *fakeFiles) Mkdir(context.Context, string, fs.FileMode, bool) error { return nil }
func (s *fakeFiles) MkdirFor(context.Context, string, protocol.Owner) error { return nil }
func (s *fakeFiles) Move(context.Context, string, string, bool) error       { return errNotFaked }
func (s *fakeFiles) Tar(context.Context, string) (io.ReadCloser, error)     { return nil, errNotFaked }
func (s *fakeFiles) Untar(context.Context, string, io.Reader) error         { return errNotFaked }
func (s *fakeFiles) Close() error                                           { return nil }

var errNotFaked = fault.Cannot("fake", "the gateway does not use this", "")

// fakeSnapshots stores the files of fake jails.
type fakeSnapshots struct {
	jails *fakeJails

	mu      sync.Mutex
	all     map[id.Snapshot]snapshot.Snapshot // guarded by mu, like the fields below
	files   map[id.Snapshot]map[string]string
	options []snapshot.TakeOptions
	rewound []id.Snapshot
	fail    map[string]error // by method
}

func (s *fakeSnapshots) failWith(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		s.fail = map[string]error{}
	}
	s.fail[method] = err
}

func (s *fakeSnapshots) Take(ctx context.Context, jid id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error) {
	j, err := s.jails.Get(ctx, jid)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fail["Take"]; err != nil {
		return snapshot.Snapshot{}, err
	}
	s.jails.mu.Lock()
	defer s.jails.mu.Unlock()
	snap := snapshot.Snapshot{ID: id.NewSnapshot(), Jail: j, Name: o.Name, Labels: o.Labels, Reason: cmp.Or(o.Reason, snapshot.Requested), Created: time.Now()}
	s.all[snap.ID] = snap
	if s.files == nil {
		s.files = map[id.Snapshot]map[string]string{}
	}
	s.files[snap.ID] = maps.Clone(s.jails.files[jid])
	s.options = append(s.options, o)
	return snap, nil
}

func (s *fakeSnapshots) Branch(ctx context.Context, sid id.Snapshot, count int, o snapshot.Overrides) ([]snapshot.BranchResult, error) {
	s.mu.Lock()
	snap, ok := s.all[sid]
	err := s.fail["Branch"]
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.Newf(fault.NotFound, "snapshot.Branch", string(sid), "no such snapshot")
	}
	var all []snapshot.BranchResult
	for n := range count {
		spec := snap.Jail.Spec
		if o.Labels != nil {
			spec.Labels = o.Labels
		}
		spec.Start = true
		spec.Name = o.Name
		j, err := s.jails.Create(ctx, spec)
		s.jails.mu.Lock()
		if err == nil {
			s.jails.files[j.ID] = maps.Clone(s.files[sid])
			s.jails.all[j.ID].Origin = &jail.Origin{Snapshot: sid, Jail: snap.Jail.ID, Number: n + 1}
			j = *s.jails.all[j.ID]
		}
		s.jails.mu.Unlock()
		all = append(all, snapshot.BranchResult{Jail: j, Err: err})
	}
	return all, nil
}

func (s *fakeSnapshots) Rewind(ctx context.Context, jid id.Jail, sid id.Snapshot, _ jail.RewindOptions) (jail.Jail, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fail["Rewind"]; err != nil {
		return jail.Jail{}, err
	}
	if _, ok := s.all[sid]; !ok {
		return jail.Jail{}, fault.Newf(fault.NotFound, "snapshot.Rewind", string(sid), "no such snapshot")
	}
	s.rewound = append(s.rewound, sid)
	s.jails.mu.Lock()
	s.jails.files[jid] = maps.Clone(s.files[sid])
	j := s.jails.all[jid]
	j.State = jail.Running
	got := *j
	s.jails.mu.Unlock()
	return got, nil
}

func (s *fakeSnapshots) Delete(_ context.Context, sid id.Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.all[sid]; !ok {
		return fault.Newf(fault.NotFound, "snapshot.Delete", string(sid), "no such snapshot")
	}
	delete(s.all, sid)
	return nil
}

// Usage returns a size.
func (s *fakeSnapshots) Usage(context.Context, id.Snapshot) (snapshot.Usage, error) {
	return snapshot.Usage{Own: 700, Shared: 300}, nil
}

// JailDeleted removes the snapshots of automatic checkpoints, like snapshot.Manager.
func (s *fakeSnapshots) JailDeleted(_ context.Context, j id.Jail) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(_ id.Snapshot, snap snapshot.Snapshot) bool {
		return snap.Jail.ID == j && snap.Reason == snapshot.Checkpoint
	})
	return nil
}

// ids returns the ids of the existing snapshots.
func (s *fakeSnapshots) ids() []id.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.all))
}

// fakeCaps lists the installed capabilities and skills.
type fakeCaps struct {
	all    []*engine.Installed
	skills map[string][]string // capability ids by skill
}

func (c *fakeCaps) Approved() []*engine.Installed { return slices.Clone(c.all) }

func (c *fakeCaps) Skill(name string) (*skill.Rendered, []string, error) {
	ids, ok := c.skills[name]
	if !ok {
		return nil, nil, fault.Newf(fault.NotFound, "registry.Skill", name, "no such skill")
	}
	return &skill.Rendered{Text: "How to " + name + "."}, ids, nil
}

// fakeMemory stores the working memory of runs.
type fakeMemory struct {
	mu sync.Mutex
	of map[id.Run]string // guarded by mu
}

func (m *fakeMemory) set(r id.Run, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[r] = text
}

func (m *fakeMemory) get(r id.Run) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[r]
}

// runs returns the number of runs that have memory.
func (m *fakeMemory) runs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.of)
}

func (m *fakeMemory) Capture(_ context.Context, r id.Run) (json.RawMessage, error) {
	text, err := json.Marshal(m.get(r))
	return text, err
}

func (m *fakeMemory) Restore(_ context.Context, r id.Run, memory json.RawMessage) error {
	var text string
	if err := json.Unmarshal(memory, &text); err != nil {
		return err
	}
	m.set(r, text)
	return nil
}

func (m *fakeMemory) Forget(_ context.Context, r id.Run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, r)
	return nil
}

func mustJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

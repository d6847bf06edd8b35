// Package gateway supervises agent runs. It starts the agents of runs, in jails or under weaker
// isolation, and serves the agent endpoint, which is an agent's only access to models, tools,
// siblings and the state of its own run.
//
//	people, schedules ──▶ run.Manager ◀── Gateway ──▶ agents ──▶ agent endpoint ──┐
//	                                          ▲                                   │
//	                                          └─────── tools, models, policy ◀────┘
//
// Each jail has its own listener. The listener that accepts a request identifies the caller.
// Every tool call and model call of a run is recorded as a step of the run's journal. A repeated
// request gets the recorded result, so the agent and the daemon may be killed at any time.
package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"glasshouse/agents/agent/spawn"
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
)

// Jails manages the jails that agents work in. *jail.Manager implements it.
type Jails interface {
	Create(ctx context.Context, s jail.Spec) (jail.Jail, error)
	Get(ctx context.Context, j id.Jail) (jail.Jail, error)
	List(ctx context.Context, o jail.ListOptions) ([]jail.Jail, error)
	Start(ctx context.Context, j id.Jail) (jail.Jail, error)
	Stop(ctx context.Context, j id.Jail, o jail.StopOptions) (jail.Jail, error)
	Pause(ctx context.Context, j id.Jail) (jail.Jail, error)
	Resume(ctx context.Context, j id.Jail) (jail.Jail, error)
	Delete(ctx context.Context, j id.Jail) error
	Changed(ctx context.Context, j id.Jail) (bool, error)
	Limit(ctx context.Context, j id.Jail, q jail.LimitChange) (jail.Jail, error)
	Stats(ctx context.Context, j id.Jail) (jail.Stats, error)
	Usage(ctx context.Context, j id.Jail) (jail.Usage, error)

	Exec(ctx context.Context, j id.Jail, r jail.ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	InitStarted(ctx context.Context, j id.Jail) (time.Time, error)
	Attach(ctx context.Context, j id.Jail, x id.Exec, o control.AttachOptions) (*control.Stream, error)
	ExecStatus(ctx context.Context, j id.Jail, x id.Exec) (protocol.ExecStatus, error)
	Output(ctx context.Context, j id.Jail, x id.Exec, f func(protocol.Chunk) error) (protocol.ExecStatus, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
	Stdin(ctx context.Context, j id.Jail, x id.Exec) (io.WriteCloser, error)
	Files(ctx context.Context, j id.Jail) (jail.Files, error)

	Listen(ctx context.Context, j id.Jail, path string) (net.Listener, error)
	ListenTCP(ctx context.Context, j id.Jail, port int) (net.Listener, error)

	Subscribe(l jail.Listener) (cancel func())
}

// Snapshots takes and restores snapshots of jails. *snapshot.Manager implements it.
type Snapshots interface {
	Take(ctx context.Context, j id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error)
	Branch(ctx context.Context, s id.Snapshot, count int, o snapshot.Overrides) ([]snapshot.BranchResult, error)
	Rewind(ctx context.Context, j id.Jail, s id.Snapshot, o jail.RewindOptions) (jail.Jail, error)
	Delete(ctx context.Context, s id.Snapshot) error
	Usage(ctx context.Context, s id.Snapshot) (snapshot.Usage, error)

	// JailDeleted removes the automatic snapshots of a jail that was deleted.
	JailDeleted(ctx context.Context, j id.Jail) error
}

// PolicyEngine is the policy engine: it evaluates decisions and calls capabilities. *govern.Engine
// implements it.
type PolicyEngine interface {
	Decide(q policy.Question) policy.Decision
	Evaluate(ctx context.Context, a govern.Ask) (govern.Verdict, error)
	RecordAction(q policy.Question) govern.Verdict
	Call(ctx context.Context, r govern.Request) (govern.Outcome, error)
	EndSession(ctx context.Context, session string) error
	GovernRun(ctx context.Context, r id.Run, spec json.RawMessage, workspace string) error
	ReleaseRun(r id.Run)
	ProxyBytes(j id.Jail) (n int64, kernel string)
}

// Capabilities lists the installed capabilities and skills.
type Capabilities interface {
	// Approved returns the capabilities that may be called, ordered by id.
	Approved() []*engine.Installed
	// Skill returns a skill as rendered for agents, and the ids of its capabilities.
	Skill(name string) (*skill.Rendered, []string, error)
}

// Memory saves and restores the working memory of runs for checkpoints.
type Memory interface {
	Capture(ctx context.Context, run id.Run) (json.RawMessage, error)
	Restore(ctx context.Context, run id.Run, memory json.RawMessage) error
	Forget(ctx context.Context, run id.Run) error
}

// Config holds the dependencies and settings of a Gateway.
type Config struct {
	Runs      *run.Manager
	Jails     Jails
	Snapshots Snapshots
	Remote    Remote // nil: snapshots are lost with the host

	// Scan is the interval between scans for runs, besides those that Wake starts. 0: one second.
	Scan time.Duration

	// MayStart reports whether this daemon starts runs that no other daemon executes, besides those whose
	// jails it has. nil: it does.
	MayStart func(context.Context) bool
	Policy   PolicyEngine
	Caps     Capabilities
	Memory   Memory // nil: checkpoints do not contain memory
	Tasks    *autonomy.Tasks

	// Serve serves requests on l until l is closed. It calls who for each request to identify
	// the caller.
	Serve func(l net.Listener, identify func(context.Context) (Caller, error)) error

	Spawners map[string]spawn.Spawner // for agents outside of jails, by name
	Program  string                   // path of the reference agent on the host
	Layers   string                   // directory of the installed programs of other agents

	// Root opens a root filesystem, to look for an agent's program in it.
	Root func(ctx context.Context, r jail.Rootfs) (fs.FS, error)

	Dir string // holds the sockets of agents outside of jails

	// Connectors returns the connectors that receive the messages of agents in a session.
	Connectors func(session string) []string

	// Fence makes the host drop the packets of a jail while this daemon has no lease, until the
	// jail stops. nil: this daemon needs no lease.
	Fence func(j id.Jail) error

	Default Agent // supplies the agent settings that a run leaves empty

	// Timers are the watchdog's time limits by autonomy level. Missing and zero values default
	// to those of autonomy.TimersOf.
	Timers map[policy.Level]autonomy.Timers

	Autosave AutosaveSettings // default intervals of automatic checkpoints

	Keep    int           // number of newest jails of ended runs to keep; 0 is 20
	KeepAge time.Duration // time after the end of a run for which its jail is kept in any case
	Log     *slog.Logger
}

// Services are the components that a Gateway uses and that call its methods: Fire and Running,
// those of autonomy.Siblings and autonomy.Deliverer, EvaluateRequest and Ready, ApproveResources.
type Services struct {
	Schedules *schedule.Manager
	Broker    *autonomy.Broker    // nil: peer messaging is disabled
	Resources *autonomy.Resources // nil: the limits of jails do not change
}

// A Gateway supervises runs and serves their agents. It is safe for concurrent use. New creates
// its parts; each uses only those created before it.
type Gateway struct {
	*core
	*endpoints
	*checkpoints
	*decisions
	*siblings
	*toolCalls
	*agentAPI
	*supervisor
	*orders

	supervisions *supervisions
	watcher      *watcher
	watchdog     *autonomy.Watchdog // nil before Open
	unsubscribe  []func()           // from the events of jails and runs
}

// core holds what all parts of a Gateway share.
type core struct {
	cfg      Config
	services Services
	ctx      context.Context // canceled by Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	wake     chan struct{} // starts a scan for runs
}

// New returns a Gateway. Call SetServices and Open to start it.
func New(cfg Config) *Gateway {
	if cfg.Fence == nil {
		cfg.Fence = func(id.Jail) error { return nil }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 20
	}
	co := &core{cfg: cfg, wake: make(chan struct{}, 1)}
	co.ctx, co.cancel = context.WithCancel(context.Background())
	su := &supervisions{core: co, byRun: map[id.Run]*supervision{}, leaving: map[id.Run]bool{}}
	cp := &checkpoints{core: co, supervisions: su, stored: make(chan struct{}, 1)}
	ds := &decisions{core: co, checkpoints: cp, harnessDecisions: map[id.Jail][]harnessDecision{}, pendingApprovals: map[approvalKey][]*pendingApproval{}}
	ep := &endpoints{core: co, decisions: ds, open: map[id.Jail]*agentEndpoint{}, runByJail: map[id.Jail]id.Run{}}
	sb := &siblings{core: co, supervisions: su, decisions: ds}
	wa := &watcher{core: co, supervisions: su, checkpoints: cp, decisions: ds}
	tc := &toolCalls{core: co, supervisions: su, decisions: ds, watcher: wa}
	tc.tools = slices.Concat(tc.jailTools(), tc.clientTools(), tc.eventTools(), sb.tools())
	ap := &agentAPI{core: co, supervisions: su, siblings: sb}
	sv := &supervisor{
		core: co, supervisions: su, endpoints: ep, checkpoints: cp, decisions: ds, siblings: sb, calls: tc, api: ap,
		startSlots: make(chan struct{}, 2*runtime.NumCPU()),
	}
	return &Gateway{
		core: co, endpoints: ep, checkpoints: cp, decisions: ds, siblings: sb, toolCalls: tc, agentAPI: ap, supervisor: sv,
		orders: &orders{core: co, supervisions: su, supervisor: sv}, supervisions: su, watcher: wa,
	}
}

// SetServices sets the services, which are created with the methods of g. Call it before Open.
func (g *Gateway) SetServices(s Services) { g.services = s }

// Open opens the agent endpoints of all jails that run or are paused, and starts to supervise
// runs that no daemon supervises.
func (g *Gateway) Open(ctx context.Context) error {
	g.unsubscribe = []func(){g.cfg.Jails.Subscribe(g), g.cfg.Runs.Subscribe(g.handleRunEvent)}
	all, err := g.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the jails: %w", err)
	}
	for _, j := range all {
		if j.State == jail.Running || j.State == jail.Paused {
			g.JailStarted(j)
		}
	}
	g.wg.Go(g.loop)
	if g.cfg.Remote != nil && g.cfg.Snapshots != nil {
		g.wg.Go(g.storeSnapshots)
	}
	g.watchdog = autonomy.NewWatchdog(g.watcher, 0, g.cfg.Log)
	if g.cfg.Tasks != nil {
		g.wg.Go(func() { // retries task files that an earlier daemon could not write
			if err := g.cfg.Tasks.Sync(g.ctx, ""); err != nil && g.ctx.Err() == nil {
				g.cfg.Log.Warn("could not write some backlog tasks to their workspaces", "err", err)
			}
		})
	}
	return nil
}

// Close closes all agent endpoints and waits for the supervision of all runs to end. Agents in
// jails keep running. Their connections block until the next daemon opens the endpoints.
func (g *Gateway) Close() error {
	for _, cancel := range g.unsubscribe {
		cancel()
	}
	g.cancel()
	errs := []error{g.closeAll()}
	if g.watchdog != nil {
		errs = append(errs, g.watchdog.Close())
	}
	g.wg.Wait()
	return errors.Join(errs...)
}

// scanInterval is the default interval between scans for scheduled runs that are due, and for runs
// that no daemon supervises because theirs was killed.
const scanInterval = time.Second

// recoverInterval is the interval between scans for runs that were paused for an approval by a
// daemon that has been killed. They are part of the scans for runs, so it is shorter than 30 seconds, the
// longest interval between these.
const recoverInterval = 25 * time.Second

// recoverPausedRuns resumes runs that are paused for an approval that no daemon waits for.
// Their agents repeat the request and join the same approval. It also finishes interrupted
// rewinds.
func (g *Gateway) recoverPausedRuns() {
	paused := func(r run.Run) bool { return r.State == run.Paused }
	runs, err := g.cfg.Runs.Unsupervised(g.ctx, maxRecovered, paused)
	if err != nil {
		if g.ctx.Err() == nil {
			g.cfg.Log.Error("could not list the runs that wait for an approval", "err", err)
		}
		return
	}
	for _, r := range runs {
		g.recoverPausedRun(r)
	}
}

func (g *Gateway) recoverPausedRun(r run.Run) {
	if g.supervisions.of(r.ID) != nil {
		return
	}
	if r.RewindTarget != "" {
		if err := g.finishRewind(g.ctx, r); err != nil && g.ctx.Err() == nil {
			g.cfg.Log.Warn("could not finish the rewind of a run", "run", r.ID, "checkpoint", r.RewindTarget, "err", err)
		}
		return
	}
	if _, err := g.cfg.Runs.Claim(g.ctx, r.ID); err != nil {
		return // another daemon supervises it
	}
	_, err := g.cfg.Runs.Move(g.ctx, r.ID, run.Move{To: run.Active, By: "gateway", Reason: "request the approval again after a restart of the daemon", Version: r.Version})
	err = errors.Join(err, g.cfg.Runs.Release(g.ctx, r.ID))
	if err != nil && g.ctx.Err() == nil {
		g.cfg.Log.Warn("could not resume a run that waits for an approval", "run", r.ID, "err", err)
	}
}

// maxRecovered limits how many paused runs are continued at a time.
const maxRecovered = 1000

// maxSupervised limits the runs that one daemon supervises.
const maxSupervised = 256

// loop scans for runs until the gateway is closed. It also takes automatic checkpoints and
// cleans up after other daemons.
func (g *Gateway) loop() {
	tick := time.NewTicker(cmp.Or(g.cfg.Scan, scanInterval))
	defer tick.Stop()
	var lastRecovery time.Time
	for {
		if now := time.Now(); now.Sub(lastRecovery) > recoverInterval {
			lastRecovery = now
			g.recoverPausedRuns()
			if err := g.sweep(g.ctx); err != nil && g.ctx.Err() == nil {
				g.cfg.Log.Warn("could not clean up the jails of unsupervised runs", "err", err)
			}
		}
		g.saveDue()
		if err := g.scan(); err != nil && g.ctx.Err() == nil {
			g.cfg.Log.Error("could not scan for runs to supervise", "err", err)
		}
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
		case <-g.wake:
		}
	}
}

// Supervised returns the number of runs that this daemon supervises.
func (g *Gateway) Supervised() int { return g.supervisions.count() }

// Wake starts a scan for runs without waiting for the next tick.
func (co *core) Wake() {
	select {
	case co.wake <- struct{}{}:
	default:
	}
}

// scan activates due runs and starts to supervise runs without a supervisor.
func (g *Gateway) scan() error {
	due, err := g.cfg.Runs.Due(g.ctx, g.cfg.Runs.Now(), 100)
	if err != nil {
		return fmt.Errorf("list the due runs: %w", err)
	}
	var errs []error // errors of single runs; they do not delay other runs
	for _, r := range due {
		if waitsForSchedule(r) {
			errs = append(errs, g.updateNextRun(g.ctx, r))
			continue
		}
		_, err := g.cfg.Runs.Move(g.ctx, r.ID, run.Move{To: run.Active, By: "schedule", Version: r.Version})
		if err != nil && !errors.Is(err, fault.Conflict) {
			errs = append(errs, fmt.Errorf("start the due run %s: %w", r.ID, err))
		}
	}
	room := maxSupervised - g.supervisions.count()
	if room <= 0 {
		return errors.Join(errs...)
	}
	runs, err := g.unsupervised(g.ctx, room)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, r := range runs {
		g.startSupervision(r)
	}
	return errors.Join(errs...)
}

// Package gateway puts agents to work. It starts the agents of runs, in jails or under
// lighter walls, and is the door through which they reach all else: models, tools,
// siblings, the record of what they have done.
//
//	people, schedules ──▶ run.Manager ◀── Gateway ──▶ agents ──▶ door ──┐
//	                                          ▲                         │
//	                                          └── tools, models, rules ◀┘
//
// An agent is known by the listener that its request came in by: each jail has its own.
// What a run has asked for once is answered from its journal when it is asked for again,
// so that an agent, the daemon or both may be killed at any moment.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"glasshouse/agent/spawn"
	"glasshouse/autonomy"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
	"glasshouse/policy"
	"glasshouse/run"
	"glasshouse/schedule"
	"glasshouse/skill"
	"glasshouse/snapshot"
)

// Jails is where agents work. *jail.Manager is one.
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
	Attach(ctx context.Context, j id.Jail, x id.Exec, o control.AttachOptions) (*control.Stream, error)
	ExecStatus(ctx context.Context, j id.Jail, x id.Exec) (protocol.ExecStatus, error)
	Output(ctx context.Context, j id.Jail, x id.Exec, f func(protocol.Chunk) error) (protocol.ExecStatus, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
	Stdin(ctx context.Context, j id.Jail, x id.Exec) (io.WriteCloser, error)
	Files(ctx context.Context, j id.Jail) (jail.Files, error)

	Listen(ctx context.Context, j id.Jail, path string) (net.Listener, error)
	ListenTCP(ctx context.Context, j id.Jail, port int) (net.Listener, error)
}

// Snapshots is what writes jails down. *snapshot.Keeper is one.
type Snapshots interface {
	Take(ctx context.Context, j id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error)
	Branch(ctx context.Context, s id.Snapshot, count int, o snapshot.Overrides) ([]snapshot.Child, error)
	Rewind(ctx context.Context, j id.Jail, s id.Snapshot, o jail.RewindOptions) (jail.Jail, error)
	Delete(ctx context.Context, s id.Snapshot) error

	// Abandoned removes the automatic snapshots of a jail that was deleted.
	Abandoned(ctx context.Context, j id.Jail) error
}

// Kernel decides, and calls capabilities. *govern.Kernel is one.
type Kernel interface {
	Decide(q policy.Question) policy.Decision
	Judge(ctx context.Context, a govern.Ask) (govern.Verdict, error)
	Said(q policy.Question) govern.Verdict
	Call(ctx context.Context, r govern.Request) (govern.Outcome, error)
	EndSession(ctx context.Context, session string) error
	GovernRun(ctx context.Context, r id.Run, spec json.RawMessage, workspace string) error
	ReleaseRun(r id.Run)
	Carried(j id.Jail) (n int64, kernel string)
}

// Capabilities is what is installed.
type Capabilities interface {
	// Approved returns the capabilities that may be called, by id.
	Approved() []*engine.Installed
	// Skill returns a skill as agents read it, with its capabilities.
	Skill(name string) (*skill.Rendered, []string, error)
}

// Memory is what runs remember, for their checkpoints.
type Memory interface {
	Capture(ctx context.Context, run id.Run) (json.RawMessage, error)
	Restore(ctx context.Context, run id.Run, memory json.RawMessage) error
	Forget(ctx context.Context, run id.Run) error
}

// Config is what a Gateway works with.
type Config struct {
	Runs      *run.Manager
	Schedules *schedule.Manager
	Jails     Jails
	Snapshots Snapshots
	Kernel    Kernel
	Caps      Capabilities
	Memory    Memory           // nil: nothing is kept of it in checkpoints
	Broker    *autonomy.Broker // nil: siblings do not talk
	Resources *autonomy.Resources
	Tasks     *autonomy.Tasks

	// Serve answers requests at a door until the listener is closed. Who knocks is
	// who it says, at the time of each request.
	Serve func(l net.Listener, who func(context.Context) (Caller, error)) error

	Spawners map[string]spawn.Spawner // of agents that are not in jails, by name
	Program  string                   // the agent of the gateway's own, on the host
	Layers   string                   // where the programs of other agents are installed

	// Root is the files of a root filesystem, which may have an agent's program.
	Root func(ctx context.Context, r jail.Rootfs) (fs.FS, error)

	Dir string // for sockets of agents that are not in jails

	Connectors func(session string) []string // to which what agents say there is delivered

	Default Agent // what an agent is that does not say

	// Timers are how long runs may take for things, by their level. What is 0, or not
	// there, is as autonomy.TimersOf has it.
	Timers map[policy.Level]autonomy.Timers

	Saves Saves // when runs are kept as they are without being asked

	Keep int // jails of runs that have ended, the newest; 0 is 20
	Log  *slog.Logger
}

// A Gateway supervises runs, and serves their agents. It is safe for concurrent use.
type Gateway struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{}
	startSlots chan struct{}      // has room for the agents that are started at once
	watchdog    *autonomy.Watchdog // nil: not open

	mu sync.Mutex
	// +checklocks:mu
	endpoints map[id.Jail]*agentEndpoint
	// +checklocks:mu
	supervisions map[id.Run]*supervision // runs that are supervised here
	// +checklocks:mu
	runByJail map[id.Jail]id.Run // the run that an agent in a jail is at

	// +checklocks:mu
	harnessDecisions map[id.Jail][]harnessDecision // that harnesses were given, oldest first
	// +checklocks:mu
	pendingApprovals map[approvalKey][]*pendingApproval
	foreignSince   map[id.Run]time.Time // for the loop alone: since when it knows unsupervised runs whose jail is another daemon's
}

// New returns a Gateway that does nothing before Open.
func New(cfg Config) *Gateway {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 20
	}
	g := &Gateway{
		cfg: cfg, wake: make(chan struct{}, 1), startSlots: make(chan struct{}, 2*runtime.NumCPU()),
		endpoints: map[id.Jail]*agentEndpoint{}, supervisions: map[id.Run]*supervision{}, runByJail: map[id.Jail]id.Run{},
		harnessDecisions: map[id.Jail][]harnessDecision{}, pendingApprovals: map[approvalKey][]*pendingApproval{}, foreignSince: map[id.Run]time.Time{},
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Open opens the doors of jails that run already, and takes up the runs that nobody is
// at.
func (g *Gateway) Open(ctx context.Context) error {
	all, err := g.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return err
	}
	for _, j := range all {
		if j.State == jail.Running || j.State == jail.Paused {
			g.Arrived(j)
		}
	}
	g.wg.Go(g.loop)
	g.watchdog = autonomy.NewWatchdog(g, 0, g.cfg.Log)
	if g.cfg.Tasks != nil {
		g.wg.Go(func() { // files of tasks that could not be written before
			if err := g.cfg.Tasks.Sync(g.ctx, ""); err != nil && g.ctx.Err() == nil {
				g.cfg.Log.Warn("some tasks are in the backlog, and not in their workspace", "err", err)
			}
		})
	}
	return nil
}

// Close lets go of all agents: those in jails work on, and wait at their doors for
// whoever opens them next.
func (g *Gateway) Close() error {
	g.cancel()
	g.mu.Lock()
	doors := slices.Collect(maps.Values(g.endpoints))
	clear(g.endpoints)
	g.mu.Unlock()
	var errs []error
	for _, d := range doors { // without the lock, which each takes when it ends
		errs = append(errs, d.close())
	}
	if g.watchdog != nil {
		errs = append(errs, g.watchdog.Close())
	}
	g.wg.Wait()
	return errors.Join(errs...)
}

// scanInterval is how often it is looked for runs that nobody is at: those of daemons that
// were killed, and those whose time has come.
const scanInterval = time.Second

// recoverInterval is how often it is looked for runs that wait for an answer nobody here waits
// for: their daemon was killed.
const recoverInterval = 30 * time.Second

// recoverPausedRuns has such runs go on: their agents ask again, and wait for the same answer.
func (g *Gateway) recoverPausedRuns() {
	err := g.eachRun(g.ctx, run.Filter{States: []run.State{run.Paused}}, func(r run.Run) bool {
		at := g.supervisionOf(r.ID)
		if at == nil && r.GoesTo != "" {
			if err := g.finishRewind(g.ctx, r); err != nil && g.ctx.Err() == nil {
				g.cfg.Log.Warn("a run is not taken back to its checkpoint", "run", r.ID, "checkpoint", r.GoesTo, "err", err)
			}
			return true
		}
		if r.Why != run.ForApproval || at != nil {
			return true
		}
		if _, err := g.cfg.Runs.Claim(g.ctx, r.ID); err != nil {
			return true // somebody is at it elsewhere
		}
		_, err := g.cfg.Runs.Move(g.ctx, r.ID, run.Move{To: run.Active, By: "gateway", Reason: "what it had asked is asked again", Version: r.Version})
		if err = errors.Join(err, g.cfg.Runs.Release(g.ctx, r.ID)); err != nil && g.ctx.Err() == nil {
			g.cfg.Log.Warn("a run that waits for an answer does not go on", "run", r.ID, "err", err)
		}
		return true
	})
	if err != nil && g.ctx.Err() == nil {
		g.cfg.Log.Error("runs that wait for an answer could not be looked for", "err", err)
	}
}

// maxSupervised bounds the runs that are supervised at once.
const maxSupervised = 256

func (g *Gateway) loop() {
	tick := time.NewTicker(scanInterval)
	defer tick.Stop()
	var asked time.Time
	for {
		if now := time.Now(); now.Sub(asked) > recoverInterval {
			asked = now
			g.recoverPausedRuns()
			if err := g.sweep(g.ctx); err != nil && g.ctx.Err() == nil {
				g.cfg.Log.Warn("jails of runs that nobody is at could not be seen to", "err", err)
			}
		}
		g.saveDue()
		if err := g.scan(); err != nil && g.ctx.Err() == nil {
			g.cfg.Log.Error("runs that nobody is at could not be looked for", "err", err)
		}
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
		case <-g.wake:
		}
	}
}

// Poke has runs looked for at once.
func (g *Gateway) Poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *Gateway) scan() error {
	due, err := g.cfg.Runs.Due(g.ctx, time.Now(), 100)
	if err != nil {
		return err
	}
	var errs []error // of one run, which do not hold up the others
	for _, r := range due {
		if waitsForSchedule(r) {
			errs = append(errs, g.updateNextRun(g.ctx, r))
			continue
		}
		_, err := g.cfg.Runs.Move(g.ctx, r.ID, run.Move{To: run.Active, By: "schedule", Version: r.Version})
		if err != nil && !errors.Is(err, fault.Conflict) {
			errs = append(errs, err)
		}
	}
	g.mu.Lock()
	room := maxSupervised - len(g.supervisions)
	g.mu.Unlock()
	if room <= 0 {
		return errors.Join(errs...)
	}
	free, err := g.unsupervised(g.ctx, room)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, r := range free {
		g.startSupervision(r)
	}
	return errors.Join(errs...)
}

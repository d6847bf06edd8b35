package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
)

// An activity tracks the agent of a supervised run for the watchdog.
type activity struct {
	mu sync.Mutex
	// +checklocks:mu
	since time.Time // start of the supervision; before it, the agent could not act
	// +checklocks:mu
	lastAction time.Time // time of the last action
	// +checklocks:mu
	lastBeat time.Time // time of the last heartbeat; zero: the agent sends none
	// +checklocks:mu
	lastID int
	// +checklocks:mu
	operations map[int]operation

	// +checklocks:mu
	cpuUsed time.Duration // CPU time of its jail at cpuReadAt
	// +checklocks:mu
	cpuReadAt time.Time
}

// An operation is a request of an agent that has not ended.
type operation struct {
	name    string
	started time.Time
	waiting bool // it waits for a person or a sibling: neither idle nor slow
}

// newActivity returns the activity of a run whose supervision starts now.
func newActivity() *activity { return &activity{since: time.Now(), operations: map[int]operation{}} }

// begin records an operation that lasts until end is called.
func (act *activity) begin(what string, waits bool) (end func()) {
	act.mu.Lock()
	defer act.mu.Unlock()
	act.lastID++
	n := act.lastID
	act.operations[n] = operation{what, time.Now(), waits}
	return func() {
		act.mu.Lock()
		defer act.mu.Unlock()
		delete(act.operations, n)
		act.lastAction = time.Now()
	}
}

// recordAction records that an agent has acted.
func (act *activity) recordAction() {
	act.mu.Lock()
	defer act.mu.Unlock()
	act.lastAction = time.Now()
}

// recordHeartbeat records a heartbeat of an agent.
func (act *activity) recordHeartbeat() {
	act.mu.Lock()
	defer act.mu.Unlock()
	act.lastBeat = time.Now()
}

// fillView copies the activity to the view of a watchdog.
func (act *activity) fillView(v *autonomy.RunView) {
	act.mu.Lock()
	defer act.mu.Unlock()
	if act.since.After(v.Resumed) {
		v.Resumed = act.since
	}
	v.LastBeat, v.LastStep = act.lastBeat, act.lastAction
	for _, d := range act.operations {
		if d.waiting {
			v.LastStep = time.Now()
		} else if v.StepFrom.IsZero() || d.started.Before(v.StepFrom) {
			v.StepOf, v.StepFrom = d.name, d.started
		}
	}
}

// busyShare is the CPU use, as a share of one processor, from which a jail counts as busy.
const busyShare = 0.02

// recordCPU records the CPU time of a jail. A busy jail counts as an action: third-party
// agents work on their own without calling the gateway.
func (act *activity) recordCPU(used time.Duration) {
	act.mu.Lock()
	defer act.mu.Unlock()
	now := time.Now()
	if !act.cpuReadAt.IsZero() && float64(used-act.cpuUsed) > busyShare*float64(now.Sub(act.cpuReadAt)) {
		act.lastAction = now
	}
	act.cpuUsed, act.cpuReadAt = used, now
}

// A watcher applies the time limits of autonomy to the runs of this daemon. It implements
// autonomy.Runs.
type watcher struct {
	*core
	supervisions *supervisions
	checkpoints  *checkpoints
	decisions    *decisions
}

// Views implements autonomy.Runs. It returns the runs that this daemon supervises.
func (wa *watcher) Views(ctx context.Context) ([]autonomy.RunView, error) {
	var views []autonomy.RunView
	for _, sup := range wa.supervisions.list() {
		r, err := wa.cfg.Runs.Get(ctx, sup.run)
		if err != nil {
			return nil, err
		}
		if r.State.Ended() {
			continue
		}
		ahead := time.Since(wa.cfg.Runs.Now()) // of this host's clock, by which the activity is measured
		for _, t := range []*time.Time{&r.Started, &r.Since} {
			if !t.IsZero() {
				*t = t.Add(ahead)
			}
		}
		if ag, err := wa.agentOf(r.Agent); err == nil { // otherwise the run fails when it is started
			views = append(views, wa.view(ctx, r, ag, sup.activity))
		}
	}
	return views, nil
}

func (wa *watcher) view(ctx context.Context, r run.Run, ag Agent, act *activity) autonomy.RunView {
	v := autonomy.RunView{
		Run: r.ID, Level: levelOf(ag), Timers: wa.timersOf(ag), Started: r.Started, Waited: r.Waited,
		Waiting: r.State != run.Active, Resumed: r.Since,
	}
	if v.Waiting {
		return v
	}
	if ag.Preset != "builtin" && ag.Spawner == InJail && r.Jail != "" {
		if s, err := wa.cfg.Jails.Stats(ctx, r.Jail); err == nil {
			act.recordCPU(s.CPU)
		}
	}
	act.fillView(&v)
	// The actions of a shell command and of a third-party agent outside of jails are not
	// observable.
	if ag.Preset == "shell" || ag.Preset != "builtin" && ag.Spawner != InJail {
		v.Timers.Idle = 0
	}
	if ag.Preset != "builtin" {
		v.LastBeat = time.Time{} // it sends no heartbeats
	}
	return v
}

// timersOf returns the time limits of an agent: its own, or those of its level.
func (wa *watcher) timersOf(a Agent) autonomy.Timers {
	l := levelOf(a)
	t := wa.cfg.Timers[l].WithDefaults(autonomy.TimersOf[l])
	if a.Timers != nil {
		t = a.Timers.WithDefaults(t)
	}
	return t
}

// Act implements autonomy.Runs. It does not block: approvals and restarts continue after it
// returns.
func (wa *watcher) Act(ctx context.Context, v autonomy.RunView, a autonomy.Action) error {
	r, err := wa.cfg.Runs.Get(ctx, v.Run)
	if err != nil || r.State != run.Active {
		return err
	}
	wa.cfg.Log.Info("a run exceeded a time limit", "run", r.ID, "cause", a.Cause, "act", a.Act, "text", a.Text)
	switch a.Act {
	case autonomy.ActWarn:
		return wa.warn(ctx, r.ID, string(a.Cause), a.Text)
	case autonomy.ActAsk:
		wa.wg.Go(func() { wa.askAboutLateRun(r, a) })
	case autonomy.ActRestart:
		sup := wa.supervisions.of(r.ID)
		if sup != nil {
			select {
			case sup.restart <- a.Text:
			default:
			}
		}
	case autonomy.ActStop:
		return wa.stopRun(ctx, r, a.Text)
	}
	return nil
}

// warn adds a warning to the agent's next result and publishes it to the followers of its
// session.
func (wa *watcher) warn(ctx context.Context, r id.Run, cause, text string) error {
	sup := wa.supervisions.of(r)
	if sup != nil {
		sup.loops.mu.Lock()
		sup.loops.warnings = append(sup.loops.warnings, text)
		sup.loops.mu.Unlock()
	}
	return wa.cfg.Runs.Warn(ctx, r, cause, text)
}

// stopRun pauses a run for a person, and then takes a checkpoint.
func (wa *watcher) stopRun(ctx context.Context, r run.Run, text string) error {
	_, err := wa.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByWatchdog, Reason: text, By: "gateway"})
	if errors.Is(err, fault.Conflict) { // it is not active
		return nil
	}
	if err != nil {
		return err
	}
	wa.wg.Go(func() { // in the background: the current step must end first
		if _, err := wa.checkpoints.checkpoint(wa.ctx, r.ID, "before the run was stopped: "+text, "gateway", nil); err != nil && wa.ctx.Err() == nil {
			wa.cfg.Log.Warn("could not take a checkpoint of a stopped run", "run", r.ID, "err", err)
		}
	})
	return nil
}

// actionLate is the action of approval requests about runs that exceed a time limit.
const actionLate = "watchdog"

// askAboutLateRun asks a person whether a run that exceeds a time limit may continue, regardless of
// its policy. If not, it stops the run.
func (wa *watcher) askAboutLateRun(r run.Run, a autonomy.Action) {
	subject, err := wa.subjectOf(wa.ctx, autonomy.Member{Jail: r.Jail, Session: r.Session, Run: r.ID})
	if err != nil && wa.ctx.Err() == nil {
		wa.cfg.Log.Error("could not read the agent of a run; the default agent of the policy applies", "run", r.ID, "err", err)
	}
	q := policy.Question{Subject: subject, Action: actionLate, Resource: string(a.Cause)}
	var v govern.Verdict
	err = wa.decisions.pausedFor(wa.ctx, r, a.Text, func() (err error) {
		v, err = wa.cfg.Policy.Evaluate(wa.ctx, govern.Ask{Question: q, Parent: r.Entry, AskReason: a.Text})
		// The wall time starts again before the run resumes. Otherwise the run would exceed the
		// limit again.
		if err == nil && v.Allow && a.Cause == autonomy.Wall {
			_, err = wa.cfg.Runs.RestartTime(wa.ctx, r.ID)
		}
		return err
	})
	switch {
	case wa.ctx.Err() != nil: // the next daemon asks again
		return
	case err == nil && v.Allow:
		return
	default: // denied, or no approval could be requested
		err = errors.Join(err, wa.stopRun(wa.ctx, r, a.Text))
	}
	if err != nil && !errors.Is(err, fault.Conflict) {
		wa.cfg.Log.Error("could not handle a run that exceeded a time limit", "run", r.ID, "cause", a.Cause, "err", err)
	}
}

var _ autonomy.Runs = (*watcher)(nil)

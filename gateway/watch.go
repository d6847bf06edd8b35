package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"glasshouse/autonomy"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/run"
)

// A activity is what is seen of the agent of a run while it is supervised here.
type activity struct {
	mu sync.Mutex
	// +checklocks:mu
	since time.Time // when supervision began; before, it could do nothing
	// +checklocks:mu
	lastAction time.Time // when it did something last
	// +checklocks:mu
	lastBeat time.Time // when it was heard last; zero: it does not say that it lives
	// +checklocks:mu
	lastID int
	// +checklocks:mu
	operations map[int]operation

	// +checklocks:mu
	cpuUsed time.Duration // by the processors of its jail, when it was looked at last
	// +checklocks:mu
	cpuReadAt time.Time
}

// A operation is something that an agent has asked for and that has not ended.
type operation struct {
	name  string
	started  time.Time
	waiting bool // for a person or a sibling: it is neither idle nor slow
}

// newActivity is the pulse of a run that is supervised from now on.
func newActivity() *activity { return &activity{since: time.Now(), operations: map[int]operation{}} }

// begin notes that something is being done until end is called.
func (p *activity) begin(what string, waits bool) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastID++
	n := p.lastID
	p.operations[n] = operation{what, time.Now(), waits}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.operations, n)
		p.lastAction = time.Now()
	}
}

// recordAction notes that an agent has done something.
func (p *activity) recordAction() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastAction = time.Now()
}

// recordHeartbeat notes that an agent lives that says so.
func (p *activity) recordHeartbeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastBeat = time.Now()
}

// fillView tells a watchdog what is seen.
func (p *activity) fillView(v *autonomy.RunView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.After(v.Resumed) {
		v.Resumed = p.since
	}
	v.LastBeat, v.LastStep = p.lastBeat, p.lastAction
	for _, d := range p.operations {
		if d.waiting {
			v.LastStep = time.Now()
		} else if v.StepFrom.IsZero() || d.started.Before(v.StepFrom) {
			v.StepOf, v.StepFrom = d.name, d.started
		}
	}
}

// busyShare is the share of one processor at which a jail is busy.
const busyShare = 0.02

// recordCPU notes what the processors of a jail have done for it: an agent of others works
// there by itself, and asks for nothing meanwhile.
func (p *activity) recordCPU(used time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.cpuReadAt.IsZero() && float64(used-p.cpuUsed) > busyShare*float64(now.Sub(p.cpuReadAt)) {
		p.lastAction = now
	}
	p.cpuUsed, p.cpuReadAt = used, now
}

// activityOf is the pulse of a run; of one that is supervised elsewhere nobody looks at it.
func (g *Gateway) activityOf(r id.Run) *activity {
	if a := g.supervisionOf(r); a != nil {
		return a.activity
	}
	return newActivity()
}

// Views implements autonomy.Runs: the runs that are supervised here.
func (g *Gateway) Views(ctx context.Context) ([]autonomy.RunView, error) {
	var views []autonomy.RunView
	for _, a := range g.listSupervisions() {
		r, err := g.cfg.Runs.Get(ctx, a.run)
		if err != nil {
			return nil, err
		}
		if r.State.Ended() {
			continue
		}
		if ag, err := g.agentOf(r.Agent); err == nil { // else it fails by itself
			views = append(views, g.view(ctx, r, ag, a.activity))
		}
	}
	return views, nil
}

func (g *Gateway) view(ctx context.Context, r run.Run, ag Agent, p *activity) autonomy.RunView {
	v := autonomy.RunView{
		Run: r.ID, Level: levelOf(ag), Timers: g.timersOf(ag), Started: r.Started, Waited: r.Waited,
		Waiting: r.State != run.Active, Resumed: r.Since,
	}
	if v.Waiting {
		return v
	}
	if ag.Preset != "builtin" && ag.Spawner == InJail && r.Jail != "" {
		if s, err := g.cfg.Jails.Stats(ctx, r.Jail); err == nil {
			p.recordCPU(s.CPU)
		}
	}
	p.fillView(&v)
	// Of a command, and of an agent of others that is in no jail, it is not known what
	// it does.
	if ag.Preset == "shell" || ag.Preset != "builtin" && ag.Spawner != InJail {
		v.Timers.Idle = 0
	}
	if ag.Preset != "builtin" {
		v.LastBeat = time.Time{} // it does not say that it lives
	}
	return v
}

// timersOf are those of an agent: its own, or what its level has here.
func (g *Gateway) timersOf(a Agent) autonomy.Timers {
	l := levelOf(a)
	t := g.cfg.Timers[l].Over(autonomy.TimersOf[l])
	if a.Timers != nil {
		t = a.Timers.Over(t)
	}
	return t
}

// Act implements autonomy.Runs. What takes long goes on when it returns.
func (g *Gateway) Act(ctx context.Context, v autonomy.RunView, a autonomy.Action) error {
	r, err := g.cfg.Runs.Get(ctx, v.Run)
	if err != nil || r.State != run.Active {
		return err
	}
	g.cfg.Log.Info("a run is late", "run", r.ID, "cause", a.Cause, "act", a.Act, "text", a.Text)
	switch a.Act {
	case autonomy.ActWarn:
		return g.warn(ctx, r.ID, string(a.Cause), a.Text)
	case autonomy.ActAsk:
		g.wg.Go(func() { g.askAboutLateRun(r, a) })
	case autonomy.ActRestart:
		at := g.supervisionOf(r.ID)
		if at != nil {
			select {
			case at.restart <- a.Text:
			default:
			}
		}
	case autonomy.ActStop:
		return g.stopRun(ctx, r, a.Text)
	}
	return nil
}

// warn tells an agent with its next result, and whoever follows its session now.
func (g *Gateway) warn(ctx context.Context, r id.Run, cause, text string) error {
	a := g.supervisionOf(r)
	if a != nil {
		a.loops.mu.Lock()
		a.loops.warnings = append(a.loops.warnings, text)
		a.loops.mu.Unlock()
	}
	return g.cfg.Runs.Warn(ctx, r, cause, text)
}

// stopRun has a run wait for a person, and then keeps it as it is.
func (g *Gateway) stopRun(ctx context.Context, r run.Run, text string) error {
	_, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByWatchdog, Reason: text, By: "gateway"})
	if errors.Is(err, fault.Conflict) { // it has stopped already
		return nil
	}
	if err != nil {
		return err
	}
	g.wg.Go(func() { // not in a step, which has to end before
		if _, err := g.checkpoint(g.ctx, r.ID, "before it was stopped: "+text, "gateway", nil); err != nil && g.ctx.Err() == nil {
			g.cfg.Log.Warn("no checkpoint of a run that was stopped", "run", r.ID, "err", err)
		}
	})
	return nil
}

// actionLate is what a person is asked about a run that takes too long.
const actionLate = "watchdog"

// askAboutLateRun asks a person whether a run goes on that is late, whatever its rules say, and
// stops it if it may not.
func (g *Gateway) askAboutLateRun(r run.Run, a autonomy.Action) {
	who, err := g.subjectOf(g.ctx, autonomy.Member{Jail: r.Jail, Session: r.Session, Run: r.ID})
	if err != nil && g.ctx.Err() == nil {
		g.cfg.Log.Error("the agent of a run cannot be read; the default agent of the policy is asked about it", "run", r.ID, "err", err)
	}
	q := policy.Question{Subject: who, Action: actionLate, Resource: string(a.Cause)}
	var v govern.Verdict
	err = g.pausedFor(g.ctx, r, a.Text, func() (err error) {
		v, err = g.cfg.Kernel.Judge(g.ctx, govern.Ask{Question: q, Parent: r.Entry, Always: a.Text})
		if err == nil && v.Allow && a.Cause == autonomy.Wall { // before it goes on, or it is late again
			_, err = g.cfg.Runs.Renew(g.ctx, r.ID)
		}
		return err
	})
	switch {
	case g.ctx.Err() != nil: // the next daemon asks again
		return
	case err == nil && v.Allow:
		return
	default: // nobody could be asked, either
		err = errors.Join(err, g.stopRun(g.ctx, r, a.Text))
	}
	if err != nil && !errors.Is(err, fault.Conflict) {
		g.cfg.Log.Error("a run that is late is not dealt with", "run", r.ID, "cause", a.Cause, "err", err)
	}
}

var _ autonomy.Runs = (*Gateway)(nil)

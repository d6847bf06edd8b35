package autonomy

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy"
)

// A RunView is the state of an active run that the Watchdog checks.
type RunView struct {
	Run    id.Run
	Level  policy.Level
	Timers Timers // zero: the timers of the level

	Started time.Time     // time of the first activation
	Waited  time.Duration // total time spent waiting for approvals, without the current wait
	Waiting bool          // waiting for an approval or paused; no timer runs
	Resumed time.Time     // end of the last wait; zero: none

	LastStep time.Time // end of the last step; zero: none
	StepOf   string    // description of the current step
	StepFrom time.Time // start of the current step; zero: none
	LastBeat time.Time // last heartbeat; zero: the agent sends none
}

// A Cause is the reason of an Action.
type Cause string

const (
	Wall      Cause = "wall"      // the run exceeds its total time
	Idle      Cause = "idle"      // no step within the idle time
	SlowStep  Cause = "step"      // a step exceeds its time
	Heartbeat Cause = "heartbeat" // heartbeats are missing: the agent has likely died
)

// An Act is a response of the Watchdog.
type Act string

const (
	ActWarn    Act = "warn"    // warn the agent
	ActAsk     Act = "ask"     // request approval to continue
	ActRestart Act = "restart" // restart the agent from its last checkpoint
	ActStop    Act = "stop"    // snapshot the jail and stop the run
)

// An Action is a response to one run with its reason.
type Action struct {
	Act   Act    `json:"act"`
	Cause Cause  `json:"cause"`
	Text  string `json:"text"`
}

// Check returns the actions due for a run. It is a pure function and repeats an action as long
// as its condition holds; the Watchdog performs each once.
//
// While a run waits for an approval, no timer runs: it is not idle, and its agent may be
// frozen and send no heartbeats.
func Check(now time.Time, v RunView) []Action {
	if v.Waiting {
		return nil
	}
	t := v.Timers
	if t == (Timers{}) {
		t = TimersOf[validLevel(v.Level)]
	}
	var list []Action
	add := func(act Act, cause Cause, format string, args ...any) {
		list = append(list, Action{act, cause, fmt.Sprintf(format, args...)})
	}
	if t.Wall > 0 && !v.Started.IsZero() {
		switch took := now.Sub(v.Started) - v.Waited; {
		case took >= t.Wall:
			add(finalAct(v.Level), Wall, "the run has reached its time limit after %s", took.Round(time.Second))
		case took >= t.Wall-t.Wall/5:
			add(ActWarn, Wall, "%s of %s remain for this run: finish the important work", (t.Wall - took).Round(time.Second), t.Wall)
		}
	}
	if t.Beat > 0 && t.Missed > 0 && !v.LastBeat.IsZero() {
		if silent := now.Sub(latest(v.LastBeat, v.Resumed)); silent >= t.Beat*time.Duration(t.Missed) {
			add(ActRestart, Heartbeat, "the agent has sent no heartbeat for %s", silent.Round(time.Second))
		}
	}
	if !v.StepFrom.IsZero() {
		if took := now.Sub(latest(v.StepFrom, v.Resumed)); t.Step > 0 && took >= t.Step {
			add(lateAct(took, t.Step, v.Level), SlowStep, "%s has been running for %s", text.Visible(text.Clip(v.StepOf, 60)), took.Round(time.Second))
		}
		return list // a step is running, so the run is not idle
	}
	if idle := now.Sub(latest(v.Started, v.LastStep, v.Resumed)); t.Idle > 0 && idle >= t.Idle {
		add(lateAct(idle, t.Idle, v.Level), Idle, "the run has been idle for %s", idle.Round(time.Second))
	}
	return list
}

// lateAct returns a warning, and at twice the allowed time the final act.
func lateAct(took, allowed time.Duration, l policy.Level) Act {
	if took < 2*allowed {
		return ActWarn
	}
	return finalAct(l)
}

// finalAct returns how a run ends that has used its time: level 1 requests approval.
func finalAct(l policy.Level) Act {
	if validLevel(l) == policy.Guided {
		return ActAsk
	}
	return ActStop
}

func latest(ts ...time.Time) time.Time {
	var last time.Time
	for _, t := range ts {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// Runs provides the runs that the Watchdog supervises.
type Runs interface {
	// Views returns the active runs.
	Views(ctx context.Context) ([]RunView, error)

	// Act performs an action. If it fails, the Watchdog calls it again.
	Act(ctx context.Context, v RunView, a Action) error
}

// A Watchdog acts on runs that exceed their timers.
type Watchdog struct {
	runs   Runs
	log    *slog.Logger
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// NewWatchdog starts a Watchdog that checks at an interval; 0 is 5 seconds.
func NewWatchdog(runs Runs, every time.Duration, log *slog.Logger) *Watchdog {
	w := &Watchdog{runs: runs, log: logOrDiscard(log)}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.wg.Go(func() { w.loop(ctx, positiveOr(every, 5*time.Second)) })
	return w
}

// Close stops the Watchdog. It may be called twice.
func (w *Watchdog) Close() error {
	w.cancel()
	w.wg.Wait()
	return nil
}

// A performedAct identifies an action that is not repeated while its condition lasts.
type performedAct struct {
	run   id.Run
	act   Act
	cause Cause
	term  time.Duration // for ActAsk: an approval to continue starts a new term
}

func (w *Watchdog) loop(ctx context.Context, every time.Duration) {
	done := map[performedAct]bool{}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		views, err := w.runs.Views(ctx)
		if err != nil {
			if ctx.Err() == nil {
				w.log.Error("could not list runs for the watchdog", "error", err)
			}
			continue // keep done
		}
		done = w.round(ctx, views, done)
	}
}

// round performs the due actions and returns the performed ones whose condition lasts.
func (w *Watchdog) round(ctx context.Context, views []RunView, before map[performedAct]bool) map[performedAct]bool {
	done := map[performedAct]bool{}
	for _, v := range views {
		for d := range before {
			if v.Waiting && d.run == v.Run {
				done[d] = true // do not repeat a request that was approved
			}
		}
		for _, a := range Check(time.Now(), v) {
			d := performedAct{run: v.Run, act: a.Act, cause: a.Cause}
			if a.Act == ActAsk && a.Cause == Wall {
				d.term = v.Waited
			}
			if before[d] {
				done[d] = true
				continue
			}
			if err := w.runs.Act(ctx, v, a); err != nil {
				if ctx.Err() == nil {
					w.log.Error("watchdog action failed", "run", v.Run, "act", a.Act, "cause", a.Cause, "error", err)
				}
				continue
			}
			done[d] = true
		}
	}
	return done
}

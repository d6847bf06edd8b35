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

// A RunView is what the Watchdog looks at of a run that is under way.
type RunView struct {
	Run    id.Run
	Level  policy.Level
	Timers Timers // zero: those of the level

	Started time.Time     // when it became active first
	Waited  time.Duration // how long it has waited for people since, this time not counted
	Waiting bool          // it waits for a person now, or is paused: nothing is late
	Resumed time.Time     // when it last stopped waiting; zero: never

	LastStep time.Time // when the last step ended; zero: none did
	StepOf   string    // what the step under way is, for messages
	StepFrom time.Time // when it began; zero: none is under way
	LastBeat time.Time // zero: its agent sends none
}

// A Cause is why the Watchdog acts.
type Cause string

const (
	Wall      Cause = "wall"      // the run takes too long
	Idle      Cause = "idle"      // it does nothing
	SlowStep  Cause = "step"      // one step takes too long
	Heartbeat Cause = "heartbeat" // its agent is silent, and likely dead
)

// An Act is what the Watchdog wants done.
type Act string

const (
	ActWarn    Act = "warn"    // tell the agent
	ActAsk     Act = "ask"     // ask a person whether it goes on
	ActRestart Act = "restart" // restart the agent from its last checkpoint
	ActStop    Act = "stop"    // snapshot the jail and stop the run
)

// An Action is what is to be done about a run, and why.
type Action struct {
	Act   Act    `json:"act"`
	Cause Cause  `json:"cause"`
	Text  string `json:"text"`
}

// Check says what is to be done about a run now. It is pure, and says the same
// as long as the same is true; the Watchdog does each once.
//
// A run that waits for a person is not idle, and its agent, which may be frozen,
// need not beat. Wall time does not run then either.
func Check(now time.Time, v RunView) []Action {
	if v.Waiting {
		return nil
	}
	t := v.Timers
	if t == (Timers{}) {
		t = TimersOf[levelOr(v.Level)]
	}
	var list []Action
	add := func(act Act, cause Cause, format string, args ...any) {
		list = append(list, Action{act, cause, fmt.Sprintf(format, args...)})
	}
	if t.Wall > 0 && !v.Started.IsZero() {
		switch took := now.Sub(v.Started) - v.Waited; {
		case took >= t.Wall:
			add(endOf(v.Level), Wall, "the run has taken %s, which is all it has", took.Round(time.Second))
		case took >= t.Wall-t.Wall/5:
			add(ActWarn, Wall, "%s are left of the %s of this run: finish what matters", (t.Wall - took).Round(time.Second), t.Wall)
		}
	}
	if t.Beat > 0 && t.Missed > 0 && !v.LastBeat.IsZero() {
		if silent := now.Sub(latest(v.LastBeat, v.Resumed)); silent >= t.Beat*time.Duration(t.Missed) {
			add(ActRestart, Heartbeat, "the agent has sent no heartbeat for %s", silent.Round(time.Second))
		}
	}
	if !v.StepFrom.IsZero() {
		if took := now.Sub(latest(v.StepFrom, v.Resumed)); t.Step > 0 && took >= t.Step {
			add(late(took, t.Step, v.Level), SlowStep, "%s has taken %s", text.Visible(text.Clip(v.StepOf, 60)), took.Round(time.Second))
		}
		return list // it does something
	}
	if idle := now.Sub(latest(v.Started, v.LastStep, v.Resumed)); t.Idle > 0 && idle >= t.Idle {
		add(late(idle, t.Idle, v.Level), Idle, "the run has done nothing for %s", idle.Round(time.Second))
	}
	return list
}

// late is what is done when something takes too long: a word, and at twice the
// time the end.
func late(took, allowed time.Duration, l policy.Level) Act {
	if took < 2*allowed {
		return ActWarn
	}
	return endOf(l)
}

// endOf is how a run ends that has had its time: at level 1 a person is asked.
func endOf(l policy.Level) Act {
	if levelOr(l) == policy.Guided {
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

// Runs is what the Watchdog watches.
type Runs interface {
	// Views returns the runs that are under way.
	Views(ctx context.Context) ([]RunView, error)

	// Act does what is to be done about a run. What fails is done again.
	Act(ctx context.Context, v RunView, a Action) error
}

// A Watchdog acts on runs that are late or silent.
type Watchdog struct {
	runs   Runs
	log    *slog.Logger
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// NewWatchdog returns a Watchdog that looks every so often; 0 is 5 seconds.
func NewWatchdog(runs Runs, every time.Duration, log *slog.Logger) *Watchdog {
	w := &Watchdog{runs: runs, log: logOr(log)}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.wg.Go(func() { w.loop(ctx, or(every, 5*time.Second)) })
	return w
}

// Close ends what runs. It may be called twice.
func (w *Watchdog) Close() error {
	w.cancel()
	w.wg.Wait()
	return nil
}

// A deed is something that was done about a run, and need not be done again
// while its reason lasts.
type deed struct {
	run   id.Run
	act   Act
	cause Cause
	term  time.Duration // of ActAsk: who is let go on has its time anew, and another term
}

func (w *Watchdog) loop(ctx context.Context, every time.Duration) {
	done := map[deed]bool{}
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
				w.log.Error("runs cannot be watched", "error", err)
			}
			continue // what was done stays done
		}
		done = w.round(ctx, views, done)
	}
}

// round does what is to be done now, and returns what then is done.
func (w *Watchdog) round(ctx context.Context, views []RunView, before map[deed]bool) map[deed]bool {
	done := map[deed]bool{}
	for _, v := range views {
		for d := range before {
			if v.Waiting && d.run == v.Run {
				done[d] = true // a person who let it go on is not asked the same again
			}
		}
		for _, a := range Check(time.Now(), v) {
			d := deed{run: v.Run, act: a.Act, cause: a.Cause}
			if a.Act == ActAsk && a.Cause == Wall {
				d.term = v.Waited
			}
			if before[d] {
				done[d] = true
				continue
			}
			if err := w.runs.Act(ctx, v, a); err != nil {
				if ctx.Err() == nil {
					w.log.Error("nothing could be done about a run", "run", v.Run, "act", a.Act, "cause", a.Cause, "error", err)
				}
				continue
			}
			done[d] = true
		}
	}
	return done
}

package gateway

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/policy"
)

// watchdogActions returns the actions of a watchdog for a run of level 2 that started at
// began.
func watchdogActions(act *activity, began time.Time) string {
	v := autonomy.RunView{Level: policy.Intelligent, Started: began, Resumed: began}
	act.fillView(&v)
	list := []string{}
	for _, a := range autonomy.Check(time.Now(), v) {
		list = append(list, fmt.Sprint(a.Act, " ", a.Cause))
	}
	return fmt.Sprint(list)
}

func TestActivityAndWatchdog(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(act *activity)
		want string
	}{
		"waits for a sibling": {func(act *activity) {
			act.begin("coordinate_sibling", true)
			time.Sleep(100 * time.Minute)
		}, "[]"},
		"has waited for a sibling": {func(act *activity) {
			end := act.begin("coordinate_sibling", true)
			time.Sleep(100 * time.Minute)
			end()
			time.Sleep(14 * time.Minute)
		}, "[]"},
		"polls": {func(act *activity) {
			for range 60 {
				act.begin("inbox", true)()
				time.Sleep(2 * time.Minute)
			}
		}, "[]"},
		"does nothing": {func(*activity) { time.Sleep(16 * time.Minute) }, "[warn idle]"},
		"has become inactive": {func(act *activity) {
			act.begin("bash", false)()
			time.Sleep(31 * time.Minute)
		}, "[stop idle]"},
		"executes a long step": {func(act *activity) {
			act.begin("bash", false)
			time.Sleep(31 * time.Minute)
		}, "[warn step]"},
		"executes a long step while it waits for a sibling": {func(act *activity) {
			act.begin("coordinate_sibling", true)
			act.begin("bash", false)
			time.Sleep(61 * time.Minute)
		}, "[stop step]"},
		"works by itself": {func(act *activity) {
			for n := range 120 {
				act.recordCPU(time.Duration(n) * 10 * time.Second)
				time.Sleep(time.Minute)
			}
		}, "[]"},
		"uses almost no CPU time": {func(act *activity) {
			for n := range 40 {
				act.recordCPU(time.Duration(n) * 100 * time.Millisecond)
				time.Sleep(time.Minute)
			}
		}, "[stop idle]"},
		"only sends heartbeats": {func(act *activity) {
			for range 400 {
				act.recordHeartbeat()
				time.Sleep(5 * time.Second)
			}
		}, "[stop idle]"},
		"stops its heartbeats": {func(act *activity) {
			act.recordHeartbeat()
			time.Sleep(time.Minute)
		}, "[restart heartbeat]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, act := time.Now(), newActivity()
			tt.do(act)
			if got := watchdogActions(act, began); got != tt.want {
				t.Errorf("agent that %s: actions = %s, want %s", name, got, tt.want)
			}
		})
	}
}

// The other time limits start again with the daemon, since the agent could not act without
// one.
func TestWallTimeSurvivesDaemonRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		time.Sleep(2 * time.Hour)
		if got := watchdogActions(newActivity(), began); got != "[]" {
			t.Errorf("actions for a run that a new daemon finds after two hours = %s, want []", got)
		}
		time.Sleep(2 * time.Hour)
		if got := watchdogActions(newActivity(), began); got != "[stop wall]" {
			t.Errorf("actions after four hours = %s, want [stop wall]", got)
		}
	})
}

func TestTimersOfCommandAndAgents(t *testing.T) {
	g := New(Config{
		Default: Agent{Preset: "builtin", Spawner: InProcess},
		Timers:  map[policy.Level]autonomy.Timers{policy.Intelligent: {Idle: time.Minute}, policy.Guided: {Wall: time.Hour}},
	})
	r := run.Run{State: run.Active, Started: time.Now()}
	for _, tt := range []struct {
		agent Agent
		want  autonomy.Timers
	}{
		{Agent{}, autonomy.Timers{Wall: 4 * time.Hour, Idle: time.Minute, Step: 30 * time.Minute, Beat: 5 * time.Second, Missed: 6}},
		{Agent{Level: 1}, autonomy.Timers{Wall: time.Hour, Idle: 10 * time.Minute, Step: 20 * time.Minute, Beat: 5 * time.Second, Missed: 6}},
		{Agent{Timers: &autonomy.Timers{Step: time.Second}}, autonomy.Timers{Wall: 4 * time.Hour, Idle: time.Minute, Step: time.Second, Beat: 5 * time.Second, Missed: 6}},
		{Agent{Preset: "shell"}, autonomy.Timers{Wall: 4 * time.Hour, Step: 30 * time.Minute, Beat: 5 * time.Second, Missed: 6}},
		{Agent{Preset: "codex"}, autonomy.Timers{Wall: 4 * time.Hour, Step: 30 * time.Minute, Beat: 5 * time.Second, Missed: 6}},
	} {
		act := newActivity()
		act.recordHeartbeat()
		a := tt.agent.withDefaults(g.cfg.Default)
		v := g.watcher.view(t.Context(), r, a, act)
		if v.Timers != tt.want || v.LastBeat.IsZero() != (a.Preset != "builtin") {
			t.Errorf("view of %+v = %+v, want timers %+v", tt.agent, v, tt.want)
		}
	}
}

func TestSaverIsDueAfterStepsOrTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &saver{at: time.Now(), steps: 10}
		want := AutosaveSettings{Steps: 5, Every: time.Minute}
		due := func(steps int64) bool {
			_, is := s.due(want, steps, time.Now())
			return is
		}
		if due(14) {
			t.Error("due after 4 steps, want not due before 5")
		}
		if !due(15) || due(30) {
			t.Error("not due after 5 steps, or due twice, want due once")
		}
		s.done(15, time.Now())
		time.Sleep(59 * time.Second)
		if due(16) {
			t.Error("due after 59 seconds, want not due before 1 minute")
		}
		time.Sleep(time.Second)
		if !due(16) {
			t.Error("not due after 1 minute, want due")
		}
		s.done(16, time.Now())
		want = AutosaveSettings{Steps: -1, Every: -1}
		time.Sleep(time.Hour)
		if due(1000) {
			t.Error("due although automatic checkpoints are disabled")
		}
	})
	if got := (AutosaveSettings{Steps: 3}).withDefaults(AutosaveSettings{Steps: 5, Every: -1}.withDefaults(defaultSaves)); got != (AutosaveSettings{Steps: 3, Every: -1, Keep: 20}) {
		t.Errorf("merged settings = %+v, want 3 steps, no interval and 20 kept", got)
	}
}

package autonomy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/policy"
)

func TestCheck(t *testing.T) {
	now := time.Unix(1e9, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	timers := autonomy.Timers{Wall: time.Hour, Idle: 10 * time.Minute, Step: 20 * time.Minute, Beat: 5 * time.Second, Missed: 6}
	fresh := autonomy.RunView{Run: "r-1", Level: policy.Full, Timers: timers, Started: ago(time.Minute)}
	with := func(f func(v *autonomy.RunView)) autonomy.RunView {
		v := fresh
		f(&v)
		return v
	}
	tests := []struct {
		name string
		view autonomy.RunView
		want string
	}{
		{"on time", fresh, "[]"},
		{"little wall time left", with(func(v *autonomy.RunView) { v.Started, v.LastStep = ago(50*time.Minute), now }), "[warn wall]"},
		{"wall time reached", with(func(v *autonomy.RunView) { v.Started, v.LastStep = ago(time.Hour), now }), "[stop wall]"},
		{"wall time reached at level 1", with(func(v *autonomy.RunView) { v.Level, v.Started, v.LastStep = 1, ago(time.Hour), now }), "[ask wall]"},
		{"half of the wall time waiting for approval", with(func(v *autonomy.RunView) { v.Started, v.Waited, v.LastStep = ago(time.Hour), 30*time.Minute, now }), "[]"},
		{"idle", with(func(v *autonomy.RunView) { v.Started, v.LastStep = ago(30*time.Minute), ago(11*time.Minute) }), "[warn idle]"},
		{"idle for twice the time", with(func(v *autonomy.RunView) { v.Started, v.LastStep = ago(30*time.Minute), ago(21*time.Minute) }), "[stop idle]"},
		{"idle without any step", with(func(v *autonomy.RunView) { v.Started = ago(15 * time.Minute) }), "[warn idle]"},
		{"long step is not idle", with(func(v *autonomy.RunView) {
			v.Started, v.LastStep, v.StepFrom = ago(30*time.Minute), ago(19*time.Minute), ago(19*time.Minute)
		}), "[]"},
		{"slow step", with(func(v *autonomy.RunView) {
			v.Started, v.StepFrom, v.StepOf = ago(45*time.Minute), ago(25*time.Minute), "bash"
		}), "[warn step]"},
		{"step of twice the time", with(func(v *autonomy.RunView) { v.Started, v.StepFrom = ago(45*time.Minute), ago(41*time.Minute) }), "[stop step]"},
		{"waiting for approval", with(func(v *autonomy.RunView) {
			v.Waiting, v.Started, v.LastStep, v.LastBeat = true, ago(24*time.Hour), ago(23*time.Hour), ago(23*time.Hour)
		}), "[]"},
		{"just resumed after approval", with(func(v *autonomy.RunView) {
			v.Started, v.Waited, v.LastStep, v.LastBeat, v.Resumed = ago(24*time.Hour), 23*time.Hour+30*time.Minute, ago(23*time.Hour), ago(23*time.Hour), ago(time.Second)
		}), "[]"},
		{"heartbeats missing", with(func(v *autonomy.RunView) { v.LastBeat = ago(31 * time.Second) }), "[restart heartbeat]"},
		{"heartbeat slightly late", with(func(v *autonomy.RunView) { v.LastBeat = ago(29 * time.Second) }), "[]"},
		{"agent without heartbeats", with(func(v *autonomy.RunView) { v.LastStep = ago(time.Second) }), "[]"},
		{"heartbeats missing during a step", with(func(v *autonomy.RunView) { v.LastBeat, v.StepFrom = ago(time.Minute), ago(time.Minute) }), "[restart heartbeat]"},
		{"timers disabled", autonomy.RunView{Timers: autonomy.Timers{Missed: 1}, Started: ago(1000 * time.Hour)}, "[]"},
		{"default timers of the level", autonomy.RunView{Level: policy.Guided, Started: ago(3 * time.Hour), LastStep: now}, "[ask wall]"},
	}
	for _, tt := range tests {
		got := []string{}
		for _, a := range autonomy.Check(now, tt.view) {
			got = append(got, fmt.Sprint(a.Act, " ", a.Cause))
			if a.Text == "" {
				t.Errorf("%s: %s has no text", tt.name, a.Act)
			}
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: Check = %v, want %s", tt.name, got, tt.want)
		}
	}
}

// fakeRuns has one run. Act fails the given number of times.
type fakeRuns struct {
	mu    sync.Mutex
	view  autonomy.RunView
	done  []string
	fails int
}

func (k *fakeRuns) Views(context.Context) ([]autonomy.RunView, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []autonomy.RunView{k.view}, nil
}

func (k *fakeRuns) Act(_ context.Context, _ autonomy.RunView, a autonomy.Action) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails > 0 {
		k.fails--
		return errors.New("not now")
	}
	k.done = append(k.done, fmt.Sprint(a.Act, " ", a.Cause))
	return nil
}

func (k *fakeRuns) change(f func(v *autonomy.RunView)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.view)
}

func TestWatchdogActsOnceAndRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeRuns{fails: 3, view: autonomy.RunView{
			Run: "r-1", Level: policy.Guided, Started: time.Now(), Timers: autonomy.Timers{Wall: 24 * time.Hour, Idle: 10 * time.Minute},
		}}
		w := autonomy.NewWatchdog(k, 0, nil)
		defer w.Close()
		time.Sleep(15 * time.Minute)
		expect := func(want ...string) {
			t.Helper()
			k.mu.Lock()
			defer k.mu.Unlock()
			if !slices.Equal(k.done, want) {
				t.Errorf("actions = %q, want %q", k.done, want)
			}
		}
		expect("warn idle")
		time.Sleep(10 * time.Minute)
		expect("warn idle", "ask idle")
		k.change(func(v *autonomy.RunView) { v.Waiting = true })
		time.Sleep(time.Hour)
		k.change(func(v *autonomy.RunView) { v.Waiting, v.Resumed, v.Waited = false, time.Now(), time.Hour })
		time.Sleep(time.Minute)
		expect("warn idle", "ask idle")
		time.Sleep(10 * time.Minute) // idle again
		expect("warn idle", "ask idle", "warn idle")
	})
}

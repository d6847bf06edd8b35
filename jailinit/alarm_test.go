package jailinit

import (
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/id"
)

func TestAlarmCountsNoTimeWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rang := make(chan time.Duration, 2)
		ring := func() { rang <- time.Since(began) }
		var a alarm
		a.set(time.Second, ring)
		time.Sleep(400 * time.Millisecond)
		a.hold()
		a.hold()
		time.Sleep(time.Hour)
		a.goOn()
		if at := <-rang; at != time.Hour+time.Second {
			t.Errorf("it rang after %v, want an hour and a second", at)
		}
		a.hold() // what has rung does not ring again
		a.goOn()
		a.hold()
		a.set(time.Second, ring) // what is set meanwhile has all its time
		time.Sleep(time.Minute)
		began = time.Now()
		a.goOn()
		if at := <-rang; at != time.Second {
			t.Errorf("it rang after %v, want a second", at)
		}
		a.set(time.Second, ring)
		a.hold()
		a.stop()
		a.goOn()
		time.Sleep(time.Minute)
		if len(rang) > 0 {
			t.Error("an alarm that was stopped rang")
		}
	})
}

// A jail that is parked, but neither dumped nor talked to, because the daemon
// died, does not stay so.
func TestTimeGoesOnWhenNobodyComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timedOut := make(chan struct{})
		p := &process{readers: map[*reader]struct{}{}}
		in := &Init{execs: map[id.Exec]*process{"x": p, "starting": nil}}
		p.in = in
		p.alarm.set(time.Minute, func() { close(timedOut) })
		reader := &reader{lossless: true, gone: time.Now()}
		p.readers[reader] = struct{}{}
		began := time.Now()
		in.standStill(false)
		time.Sleep(time.Second)
		in.overslept(time.Now().Add(-time.Hour)) // it was frozen meanwhile: whoever restored it has all the time again
		in.mu.Lock()
		still := in.parked
		in.mu.Unlock()
		if !still {
			t.Fatal("a jail that was frozen is not parked any more when it wakes")
		}
		<-timedOut
		if took := time.Since(began); took < time.Minute+parkedAtMost || took > time.Minute+2*parkedAtMost {
			t.Errorf("the timeout of a minute was over after %v", took)
		}
		if !reader.gone.After(began) {
			t.Error("a reader's grace has not begun anew")
		}
	})
}

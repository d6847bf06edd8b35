package jailinit

import (
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/id"
)

func TestPausableTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rang := make(chan time.Duration, 2)
		ring := func() { rang <- time.Since(began) }
		var a pausableTimer
		a.set(time.Second, ring)
		time.Sleep(400 * time.Millisecond)
		a.pause()
		a.pause()
		time.Sleep(time.Hour)
		a.resume()
		if at := <-rang; at != time.Hour+time.Second {
			t.Errorf("called after %v, want an hour and a second", at)
		}
		a.pause() // no second call
		a.resume()
		a.pause()
		a.set(time.Second, ring) // a time that is set while paused does not run
		time.Sleep(time.Minute)
		began = time.Now()
		a.resume()
		if at := <-rang; at != time.Second {
			t.Errorf("called after %v, want a second", at)
		}
		a.set(time.Second, ring)
		a.pause()
		a.stop()
		a.resume()
		time.Sleep(time.Minute)
		if len(rang) > 0 {
			t.Error("a stopped timer has called")
		}
	})
}

// A parked jail unparks after some time if it is not dumped and no client connects, because
// the daemon died.
func TestParkedInitUnparksAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timedOut := make(chan struct{})
		p := &process{readers: map[*reader]struct{}{}}
		in := &Init{execs: map[id.Exec]*process{"x": p, "starting": nil}}
		p.in = in
		p.timer.set(time.Minute, func() { close(timedOut) })
		reader := &reader{lossless: true, lostAt: time.Now()}
		p.readers[reader] = struct{}{}
		began := time.Now()
		in.stopTimers(false)
		time.Sleep(time.Second)
		in.unparkTimeout(time.Now().Add(-time.Hour)) // the jail was frozen meanwhile, so the time starts again
		in.mu.Lock()
		still := in.parked
		in.mu.Unlock()
		if !still {
			t.Fatal("a jail that was frozen is unparked immediately, want parked")
		}
		<-timedOut
		if took := time.Since(began); took < time.Minute+maxParked || took > time.Minute+2*maxParked {
			t.Errorf("the timeout of a minute ended after %v", took)
		}
		if !reader.lostAt.After(began) {
			t.Error("the grace time of the reader was not restarted")
		}
	})
}

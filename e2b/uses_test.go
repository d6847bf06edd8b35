package e2b

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestUsesClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u uses
		first, in := u.enter(false)
		if !in {
			t.Fatal("a new sandbox admits no request")
		}
		quiet := u.close()
		if quiet == nil {
			t.Fatal("close closed it while a request is in progress")
		}
		second, in := u.enter(false)
		if !in {
			t.Fatal("it admits no request before it is closed")
		}
		first()
		first() // a second call has no effect
		select {
		case <-quiet:
			t.Fatal("quiet is closed while a request is in progress")
		default:
		}
		stream, _ := u.enter(true)
		second()
		<-quiet // does not wait for streams
		if u.close() != nil {
			t.Error("it is not closed after quiet")
		}
		if _, in := u.enter(true); in {
			t.Error("it admits a request while it is closed")
		}
		u.open()
		if !u.since(time.Now()) {
			t.Error("a stream does not count as use")
		}
		stream()
		left := time.Now()
		time.Sleep(time.Second)
		if u.since(left) || !u.since(left.Add(-1)) {
			t.Error("the time of the last leave is not recorded")
		}
	})
}

func TestUsesCloseNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u uses
		leave, _ := u.enter(false)
		var closing sync.WaitGroup
		began := time.Now()
		closing.Go(func() { u.closeNow(t.Context()) })
		synctest.Wait()
		if _, in := u.enter(false); in {
			t.Error("it admits a request while closeNow waits")
		}
		time.Sleep(3 * time.Second)
		leave()
		closing.Wait()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("closeNow returned after %s, want 3 s", took)
		}
		u.open()
		leave, _ = u.enter(false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		u.closeNow(ctx)
		if _, in := u.enter(false); in {
			t.Error("it admits a request after closeNow")
		}
		leave()
	})
}

func TestIdleness(t *testing.T) {
	at := time.Unix(1000, 0)
	var i idleness
	for n, look := range []struct {
		cpu  time.Duration // CPU time until then
		used bool
		idle bool
	}{
		{cpu: time.Second}, // earlier use is unknown
		{cpu: time.Second, idle: true},
		{cpu: time.Second + 40*time.Millisecond, idle: true}, // a process that polls
		{cpu: 2 * time.Second},
		{cpu: 2 * time.Second, used: true},
		{cpu: 2 * time.Second, idle: true},
		{cpu: time.Millisecond}, // it was restarted
		{cpu: time.Millisecond, idle: true},
	} {
		at = at.Add(5 * time.Second)
		i.note(at, look.cpu, look.used)
		if idle := !i.since.IsZero(); idle != look.idle {
			t.Errorf("sample %d: idle %t, want %t", n, idle, look.idle)
		}
	}
	if want := at; !i.since.Equal(want) {
		t.Errorf("idle since %s, want %s", i.since, want)
	}
}

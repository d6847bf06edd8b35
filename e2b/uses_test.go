package e2b

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestASandboxIsShutOnceItHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u uses
		first, in := u.enter(false)
		if !in {
			t.Fatal("nobody is let in")
		}
		quiet := u.close()
		if quiet == nil {
			t.Fatal("it is shut while a request waits for its answer")
		}
		second, in := u.enter(false)
		if !in {
			t.Fatal("nobody is let in before it is shut")
		}
		first()
		first() // who is in leaves once
		select {
		case <-quiet:
			t.Fatal("it is quiet while a request waits for its answer")
		default:
		}
		stream, _ := u.enter(true)
		second()
		<-quiet // a stream is not waited for
		if u.close() != nil {
			t.Error("it is not shut though it is quiet")
		}
		if _, in := u.enter(true); in {
			t.Error("somebody is let in while it is shut")
		}
		u.open()
		if !u.since(time.Now()) {
			t.Error("a stream does not use it")
		}
		stream()
		left := time.Now()
		time.Sleep(time.Second)
		if u.since(left) || !u.since(left.Add(-1)) {
			t.Error("it is not remembered when somebody left")
		}
	})
}

func TestWhoShutsASandboxWaitsForAnswersAndNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u uses
		leave, _ := u.enter(false)
		var closing sync.WaitGroup
		began := time.Now()
		closing.Go(func() { u.closeNow(t.Context()) })
		synctest.Wait()
		if _, in := u.enter(false); in {
			t.Error("somebody is let in while it is being shut")
		}
		time.Sleep(3 * time.Second)
		leave()
		closing.Wait()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("it was shut after %s, want 3 s", took)
		}
		u.open()
		leave, _ = u.enter(false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		u.closeNow(ctx)
		if _, in := u.enter(false); in {
			t.Error("somebody is let in after that")
		}
		leave()
	})
}

func TestASandboxIsIdleSinceItDidNothing(t *testing.T) {
	at := time.Unix(1000, 0)
	var i idleness
	for n, look := range []struct {
		cpu  time.Duration // used till then
		used bool
		idle bool
	}{
		{cpu: time.Second}, // what was before is not known
		{cpu: time.Second, idle: true},
		{cpu: time.Second + 40*time.Millisecond, idle: true}, // a process that looks whether there is something to do
		{cpu: 2 * time.Second},
		{cpu: 2 * time.Second, used: true},
		{cpu: 2 * time.Second, idle: true},
		{cpu: time.Millisecond}, // it began anew
		{cpu: time.Millisecond, idle: true},
	} {
		at = at.Add(5 * time.Second)
		i.note(at, look.cpu, look.used)
		if idle := !i.since.IsZero(); idle != look.idle {
			t.Errorf("look %d: idle %t, want %t", n, idle, look.idle)
		}
	}
	if want := at; !i.since.Equal(want) {
		t.Errorf("idle since %s, want %s", i.since, want)
	}
}

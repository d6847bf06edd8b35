package jail

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/fault"
)

// The Freeze of a slowInstance blocks until resume is closed.
type slowInstance struct {
	Instance
	resume chan struct{}
}

func (i *slowInstance) Freeze(context.Context) error { <-i.resume; return nil }
func (i *slowInstance) Thaw(context.Context) error   { return nil }

// A jail that the observers hold has a condition after unwrittenAfter. While the jail is being
// frozen, readers neither block nor see an earlier time.
func TestEventsNotWrittenAfterThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := &slowInstance{resume: make(chan struct{})}
		l := &liveInstance{inst: inst}
		held := func() bool { return errors.Is(l.checkHeld("test", Jail{}), fault.NoSpace) }
		check := func(when string, want bool) {
			t.Helper()
			if got := held(); got != want {
				t.Errorf("held %s = %v, want %v", when, got, want)
			}
		}
		ctx := t.Context()
		throttled := make(chan error, 1)
		throttle := func() { throttled <- l.throttle(ctx) }

		go throttle()
		time.Sleep(2 * unwrittenAfter)
		check("while it is being frozen", false)
		close(inst.resume)
		if err := <-throttled; err != nil {
			t.Fatal(err)
		}
		check("once it is frozen", false)
		time.Sleep(unwrittenAfter + time.Second)
		check("later", true)

		if err := l.throttle(ctx); err != nil { // a second observer
			t.Fatal(err)
		}
		check("by a second observer", true)
		if err := l.unthrottle(ctx); err != nil {
			t.Fatal(err)
		}
		check("once it is thawed", false)

		inst.resume = make(chan struct{})
		go throttle()
		time.Sleep(2 * unwrittenAfter)
		check("while it is being frozen again", false)
		close(inst.resume)
		if err := <-throttled; err != nil {
			t.Fatal(err)
		}
		check("once it is frozen again", false)
	})
}

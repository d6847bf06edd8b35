package e2b

import (
	"context"
	"sync"
	"time"
)

// uses count who is using a sandbox from outside. Its zero value lets everybody in.
type uses struct {
	mu sync.Mutex
	// +checklocks:mu
	asked int // requests that wait for their answer
	// +checklocks:mu
	lasting int // streams and connections, which end when their clients want
	// +checklocks:mu
	last time.Time // when the last user entered or left
	// +checklocks:mu
	shut bool // enter refuses
	// +checklocks:mu
	quiet chan struct{} // closed when asked becomes 0; nil without a waiter
}

// enter counts a user, unless the sandbox is shut. Each user calls leave once.
func (u *uses) enter(lasts bool) (leave func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shut {
		return nil, false
	}
	n := &u.asked
	if lasts {
		n = &u.lasting
	}
	*n++
	u.last = time.Now()
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		*n--
		u.last = time.Now()
		if u.asked == 0 && u.quiet != nil {
			close(u.quiet)
			u.quiet = nil
		}
	}), true
}

// close shuts the sandbox if no request waits for its answer. If one does it returns
// what is closed when none does any more, and lets others in until then.
func (u *uses) close() (quiet <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked == 0 {
		u.shut = true
		return nil
	}
	if u.quiet == nil {
		u.quiet = make(chan struct{})
	}
	return u.quiet
}

// closeNow shuts the sandbox and waits until the requests that are in it have been
// answered, or for ctx.
func (u *uses) closeNow(ctx context.Context) {
	u.mu.Lock()
	u.shut = true
	if u.asked == 0 {
		u.mu.Unlock()
		return
	}
	if u.quiet == nil {
		u.quiet = make(chan struct{})
	}
	quiet := u.quiet
	u.mu.Unlock()
	select {
	case <-quiet:
	case <-ctx.Done():
	}
}

func (u *uses) open() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shut = false
}

// since reports whether somebody was in the sandbox after a moment.
func (u *uses) since(when time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked+u.lasting > 0 || u.last.After(when)
}

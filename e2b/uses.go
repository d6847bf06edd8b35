package e2b

import (
	"context"
	"sync"
	"time"
)

// uses counts the requests and connections to a sandbox. The zero value accepts all.
type uses struct {
	mu sync.Mutex
	// +checklocks:mu
	asked int // requests in progress
	// +checklocks:mu
	lasting int // streams and connections, which the client ends
	// +checklocks:mu
	last time.Time // when the last user entered or left
	// +checklocks:mu
	closed bool // enter fails
	// +checklocks:mu
	quiet chan struct{} // closed when asked becomes 0; nil without a waiter
}

// enter counts a user, unless the sandbox is closed. Each user calls leave once.
func (u *uses) enter(lasts bool) (leave func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
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

// close closes the sandbox if no request is in progress. Otherwise it returns a channel that is
// closed when no request is in progress any longer, and accepts more users until then.
func (u *uses) close() (quiet <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked == 0 {
		u.closed = true
		return nil
	}
	if u.quiet == nil {
		u.quiet = make(chan struct{})
	}
	return u.quiet
}

// closeNow closes the sandbox and waits until the requests in progress have ended, or until ctx
// ends.
func (u *uses) closeNow(ctx context.Context) {
	u.mu.Lock()
	u.closed = true
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
	u.closed = false
}

// since reports whether the sandbox was in use after a moment.
func (u *uses) since(when time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked+u.lasting > 0 || u.last.After(when)
}

package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// errParked means that init closed a connection before it started the operation.
var errParked = errors.New("the jail's init is parked")

// interruptible are the operations that Park does not wait for: init interrupts them, and
// their clients retry them.
var interruptible = map[protocol.Op]bool{protocol.OpAttach: true, protocol.OpStdin: true, protocol.OpWait: true, protocol.OpWatch: true, protocol.OpAccept: true}

// A gate blocks new operations between Park and Unpark.
type gate struct {
	parking sync.Mutex // held during Park and Unpark

	mu sync.Mutex
	// +checklocks:mu
	path string // path of the socket
	// +checklocks:mu
	closed chan struct{} // closed when the gate opens; nil while it is open
	// +checklocks:mu
	generation int // number of close calls
	// +checklocks:mu
	busy int // connections that Park waits for
	// +checklocks:mu
	idle chan struct{} // closed when busy becomes 0; nil without a waiter
	// +checklocks:mu
	conns map[*conn]struct{} // connections that are open or being opened
}

// enter waits until the gate is open and registers c as a connection that Park waits for. It
// returns the path of the socket.
func (g *gate) enter(c *conn) (path string, err error) {
	for {
		g.mu.Lock()
		shut := g.closed
		if shut == nil {
			defer g.mu.Unlock()
			// This holds the lock that close takes, so that Park either waits for this connection
			// or blocks it.
			g.conns[c] = struct{}{}
			c.generation, c.busy = g.generation, true
			g.busy++
			return g.path, nil
		}
		g.mu.Unlock()
		select {
		case <-shut:
		case <-c.ctx.Done():
			return "", ended(c.ctx, errParked)
		}
	}
}

// leave removes c.
func (g *gate) leave(c *conn) {
	g.markInterruptible(c)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// markInterruptible declares that init can interrupt c, so that Park does not wait for it.
func (g *gate) markInterruptible(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.busy {
		return
	}
	c.busy = false
	g.busy--
	if g.busy == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// close closes the gate. It returns a channel that is closed when no operation is in progress
// that Park must wait for.
func (g *gate) close() (idle <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = make(chan struct{})
	g.generation++
	done := make(chan struct{})
	if g.busy == 0 {
		close(done)
	} else {
		g.idle = done
	}
	return done
}

// open opens the gate and wakes all waiters.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed, g.idle = nil, nil
	}
}

// closedSince reports whether the gate was closed after the given generation. Then this client
// has parked a connection of that generation, and a retry waits at the gate.
func (g *gate) closedSince(generation int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.generation != generation
}

// all returns the registered connections.
func (g *gate) all() (conns []*conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		conns = append(conns, c)
	}
	return conns
}

// Backoff for a connection that another client has parked. An early retry would make the dump
// fail, because it would be an open connection. After maxRetries init is considered broken.
var firstBackoff = 250 * time.Millisecond

const (
	maxRetries = 5
	retryReset = time.Second // a connection of this age was not rejected, so retries start again
)

// backOff waits before the given retry.
func backOff(ctx context.Context, retry int) error {
	// The waits double from 250 ms and take 7.75 s in total.
	if retry > maxRetries {
		return fault.Newf(fault.Unavailable, "control.backOff", "", "the jail's init closes every connection")
	}
	select {
	case <-time.After(firstBackoff << (retry - 1)):
		return nil
	case <-ctx.Done():
		return ended(ctx, errParked)
	}
}

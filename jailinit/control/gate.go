package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

// errParked means that init gave up a connection before it had begun what was
// asked.
var errParked = errors.New("the jail's init is parked")

// waits is the operations that Park does not wait for: init gives them up, and
// their clients take them up again.
var waits = map[protocol.Op]bool{protocol.OpAttach: true, protocol.OpStdin: true, protocol.OpWait: true, protocol.OpWatch: true, protocol.OpAccept: true}

// A gate lets operations through, but for the time between Park and Unpark.
type gate struct {
	parking sync.Mutex // held while Park or Unpark is under way

	mu sync.Mutex
	// +checklocks:mu
	path string // of the socket
	// +checklocks:mu
	shut chan struct{} // closed when the gate opens; nil while it is open
	// +checklocks:mu
	era int // how often it was shut
	// +checklocks:mu
	busy int // connections that Park waits for
	// +checklocks:mu
	idle chan struct{} // closed when busy becomes 0; nil without a waiter
	// +checklocks:mu
	conns map[*conn]struct{} // connections that are open, or being made
}

// enter waits until the gate is open and records c, as one that Park waits for.
// It returns where to connect to.
func (g *gate) enter(c *conn) (path string, err error) {
	for {
		g.mu.Lock()
		shut := g.shut
		if shut == nil {
			defer g.mu.Unlock()
			g.conns[c] = struct{}{}
			c.era, c.busy = g.era, true
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

// leave forgets c.
func (g *gate) leave(c *conn) {
	g.rest(c)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// rest says that init can give c up from now on: Park need not wait for it.
func (g *gate) rest(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.busy {
		return
	}
	c.busy = false
	if g.busy--; g.busy == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// close shuts the gate. It returns what is closed when no operation that has
// to be waited for is under way.
func (g *gate) close() (idle <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
	g.era++
	done := make(chan struct{})
	if g.busy == 0 {
		close(done)
	} else {
		g.idle = done
	}
	return done
}

// open lets everybody through who waits.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut, g.idle = nil, nil
	}
}

// shutSince tells whether the gate was shut after the era given: a connection
// of that era which ended was parked by this client, and the gate is what to
// wait for.
func (g *gate) shutSince(era int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.era != era
}

// all is the connections that there are.
func (g *gate) all() (conns []*conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		conns = append(conns, c)
	}
	return conns
}

// A connection that somebody else parked is made again a little later, since a
// dump that finds one fails. An init that goes on like that is given up.
var awayAtFirst = 250 * time.Millisecond

const (
	awayTurns = 5
	lasting   = time.Second // a connection that lasted so long was not just turned away
)

// stayAway waits, for the turnth time in a row.
func stayAway(ctx context.Context, turn int) error {
	if turn > awayTurns {
		return fault.Newf(fault.Unavailable, "control", "", "the jail's init gives up every connection")
	}
	select {
	case <-time.After(awayAtFirst << (turn - 1)):
		return nil
	case <-ctx.Done():
		return ended(ctx, errParked)
	}
}

package microvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/jail/guest/wire"
)

// A gate lets requests for events pass while a machine runs. A frozen machine does not answer, and a
// connection that waits for it would delay the snapshot.
type gate struct {
	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	ctx context.Context // ends when closed changes
	// +checklocks:mu
	end context.CancelFunc
}

// set closes or opens the gate. Requests in progress end when it is closed.
func (g *gate) set(closed bool) {
	g.state()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != closed {
		g.end()
		g.closed, g.ctx = closed, nil
	}
}

// state reports whether the gate is closed, and returns a context that ends when that changes.
func (g *gate) state() (closed bool, ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		g.ctx, g.end = context.WithCancel(context.Background())
	}
	return g.closed, g.ctx
}

var errFrozen = fault.Newf(fault.Conflict, "microvm.Events", "", "the virtual machine is frozen")

// answerTime limits a request for events. The longest one waits for events for some seconds.
const answerTime = 30 * time.Second

// events sends a request to the recorder of events in the guest: see jail.HostInfo.
func (i *instance) events(ctx context.Context, request []byte, wait bool) (io.ReadCloser, error) {
	for {
		if i.ended() {
			return nil, fault.Newf(fault.NotFound, "microvm.Events", string(i.plan.ID), "the virtual machine has ended")
		}
		closed, current := i.gate.state()
		if !closed {
			ctx, cancel := context.WithTimeout(ctx, answerTime)
			stop := context.AfterFunc(current, cancel)
			body, err := i.guest.events(ctx, request)
			if err == nil {
				return &eventStream{body, func() { stop(); cancel() }}, nil
			}
			stop()
			cancel()
			if current.Err() != nil {
				err = errFrozen
			}
			return nil, err
		}
		if !wait {
			return nil, errFrozen
		}
		select {
		case <-current.Done():
		case <-i.Done():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// An eventStream is the answer to a request for events.
type eventStream struct {
	io.ReadCloser
	done func()
}

func (s *eventStream) Close() error {
	defer s.done()
	return s.ReadCloser.Close()
}

func (l *link) events(ctx context.Context, request []byte) (io.ReadCloser, error) {
	answer, err := l.post(ctx, wire.EventsPath, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, errors.Join(unreachable(wire.EventsPath, fmt.Errorf("status %d", answer.StatusCode)), answer.Body.Close())
	}
	return answer.Body, nil
}

package microvm

import (
	"bytes"
	"context"
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
	opened chan struct{} // closed when the gate opens; nil while it is open
	// +checklocks:mu
	passing map[*context.CancelCauseFunc]struct{} // requests in progress
}

var errFrozen = fault.Newf(fault.Conflict, "microvm.Events", "", "the virtual machine is frozen")

// close ends all requests, and lets no other ones pass.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
	for cancel := range g.passing {
		(*cancel)(errFrozen)
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// pass returns a context that ends when the gate is closed, or the channel to wait for.
func (g *gate) pass(ctx context.Context) (_ context.Context, done func(), opened <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		return nil, nil, g.opened
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if g.passing == nil {
		g.passing = map[*context.CancelCauseFunc]struct{}{}
	}
	g.passing[&cancel] = struct{}{}
	return ctx, func() {
		cancel(nil)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.passing, &cancel)
	}, nil
}

// events sends a request to the recorder of events in the guest: see jail.HostInfo.
func (i *instance) events(ctx context.Context, request []byte, wait bool) (io.ReadCloser, error) {
	for {
		select {
		case <-i.Done():
			return nil, fault.Newf(fault.NotFound, "microvm.Events", string(i.plan.ID), "the virtual machine has ended")
		default:
		}
		passing, done, opened := i.gate.pass(ctx)
		if opened == nil {
			body, err := i.guest.events(passing, request)
			if err != nil {
				if cause := context.Cause(passing); cause == errFrozen {
					err = errFrozen
				}
				done()
				return nil, err
			}
			return &eventStream{body, done}, nil
		}
		if !wait {
			return nil, errFrozen
		}
		select {
		case <-opened:
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

// answerTime limits the wait for an answer. The longest request waits for events for some seconds.
const answerTime = 30 * time.Second

// events sends a request to the recorder and returns its answer.
func (l *link) events(ctx context.Context, request []byte) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	waiting := time.AfterFunc(answerTime, cancel)
	answer, err := l.post(ctx, wire.EventsPath, bytes.NewReader(request))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = unreachable(wire.EventsPath, fmt.Errorf("status %d", answer.StatusCode))
		answer.Body.Close()
	}
	if err != nil {
		waiting.Stop()
		cancel()
		return nil, err
	}
	return &eventStream{answer.Body, func() { // the time limits the answer as well
		waiting.Stop()
		cancel()
	}}, nil
}

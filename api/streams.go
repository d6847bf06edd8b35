package api

import (
	"context"
	"net/http"
	"sync"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
)

// streams are the long connections of clients: event streams, terminals, and waiting requests.
type streams struct {
	closing context.Context // canceled at the start of Shutdown, which streams would block
	logins  presence
	open    sync.WaitGroup // hijacked connections, which http.Server does not track

	mu sync.Mutex
	// +checklocks:mu
	closed bool
}

// context returns the context of r. It is also canceled when the server closes, or when
// the login of r ends.
func (st *streams) context(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(st.closing, cancel)
	leave := st.logins.enter(access.CallerOf(ctx).Login, cancel)
	return ctx, func() { stop(); leave(); cancel() }
}

// enter registers a connection that Shutdown waits for.
func (st *streams) enter() (leave func(), err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil, fault.New(fault.Unavailable, "api.enter", "", errClosing)
	}
	st.open.Add(1)
	return st.open.Done, nil
}

// close refuses new connections.
func (st *streams) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
}

// presence maps logins to their open streams, which end with the login.
type presence struct {
	mu sync.Mutex
	// +checklocks:mu
	m map[id.Login]map[*context.CancelFunc]struct{}
}

// enter registers cancel, to be called when l ends. The caller calls leave at the end of the
// stream.
func (p *presence) enter(l id.Login, cancel context.CancelFunc) (leave func()) {
	if l == "" {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		p.m = map[id.Login]map[*context.CancelFunc]struct{}{}
	}
	if p.m[l] == nil {
		p.m[l] = map[*context.CancelFunc]struct{}{}
	}
	p.m[l][&cancel] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.m[l], &cancel)
		if len(p.m[l]) == 0 {
			delete(p.m, l)
		}
	}
}

func (p *presence) end(l id.Login) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for cancel := range p.m[l] {
		(*cancel)()
	}
}

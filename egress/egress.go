// Package egress is the only way out of a jail whose network mode is proxy. In
// such a jail no wire leads anywhere: its own rules lead every TCP connection to
// a listener of this package and every DNS query to another, and the package
// dials what may be reached from the host's side.
//
//	jail                                  host
//	any program ── redirect ──▶ Serve ────┐
//	HTTP_PROXY ───────────────▶ ServeHTTP ┼─▶ rules ▸ Authority ▸ rate ▸ bytes ▸ secrets ─▶ guarded dial
//	resolver ── redirect ─────▶ ServeDNS ─┘                                      └▶ Recorder
//
// There is one Proxy for one jail: who asks follows from which listener was
// reached, never from what was said there.
//
// What is reached is decided by name. The name is what the program says first,
// in its TLS hello or in the head of every HTTP request; where it says none, it
// is the one name for which the DNS of this package gave out the address. The
// address that a program chose counts for nothing: what is dialled is an address
// that the host's resolver gives for the name, and it is looked at again when it
// is dialled. Addresses of the host, of private networks and the like are
// reached only if a rule lists them as addresses.
//
// A message that may be read in two ways is refused, and what is carried is
// written anew from what was understood: nothing of HTTP is passed on as it came.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"glasshouse/fault"
)

// Config says for whom a Proxy works and what it works with.
type Config struct {
	Jail string // whose proxy it is, for records and questions

	Rules     Rules
	Authority Authority // asked about what no rule settles; nil: refused
	Recorder  Recorder  // told of everything carried or refused; nil: nobody
	Resolver  Resolver  // of the host; nil: net.DefaultResolver

	// Secret returns the value of a secret at the moment it is used, for the host
	// that it is sent to. It is needed if a rule injects one. The bytes are not
	// kept.
	Secret func(ctx context.Context, name, host string) ([]byte, error)

	// Owned does the same for a Transform, whose secrets are its owner's alone.
	Owned func(ctx context.Context, owner, name, host string) ([]byte, error)

	CA    *CA            // needed if a rule looks into TLS
	Roots *x509.CertPool // who vouches for servers where TLS is looked into; nil: the system's

	// Own returns the host's own addresses, which are never dialled unless
	// listed. Nil: those of the interfaces of the process's network namespace.
	Own func() ([]netip.Addr, error)

	Connections int  // at once; 0 means 1000
	KeepQuery   bool // paths are recorded with their query, which may hold what is private
}

// times are how long a Proxy waits for what.
type times struct {
	silence time.Duration // for a client to speak, before its server is given the word
	head    time.Duration // for the whole of a hello or a head
	idle    time.Duration // between two requests of a connection
	dial    time.Duration // to be connected
	ask     time.Duration // for the Authority
	gone    time.Duration // that a client, having said its last word, waits for an answer
}

var defaultTimes = times{
	silence: 300 * time.Millisecond,
	head:    10 * time.Second,
	idle:    2 * time.Minute,
	dial:    10 * time.Second,
	ask:     15 * time.Minute,
	gone:    10 * time.Second,
}

// A Proxy carries what one jail may send. It is safe for concurrent use.
type Proxy struct {
	conf  Config
	times times
	ctx   context.Context // ends when everything is to be cut
	cut   context.CancelCauseFunc

	rules atomic.Pointer[ruleset] // changed under mu

	upstream *http.Transport
	h2       *streams
	lookups  singleflight.Group
	known    names
	own      ownAddrs
	count    counters
	ledger   ledger

	open  atomic.Int64   // connections of the jail
	wg    sync.WaitGroup // what runs
	sweep sync.Once

	mu sync.Mutex
	// +checklocks:mu
	closing   bool // no more is taken
	listeners map[interface{ Close() error }]struct{}
	visits    map[*visit]struct{}
	flows     map[*flow]struct{}
	drained   chan struct{} // closed when closing and flows are empty
}

var errClosed = errors.New("the proxy is closed")

// New returns a proxy that nobody has reached yet.
func New(conf Config) (*Proxy, error) {
	if conf.Connections == 0 {
		conf.Connections = 1000
	}
	if conf.Resolver == nil {
		conf.Resolver = net.DefaultResolver
	}
	p := &Proxy{
		conf:      conf,
		times:     defaultTimes,
		listeners: map[interface{ Close() error }]struct{}{},
		visits:    map[*visit]struct{}{},
		flows:     map[*flow]struct{}{},
		drained:   make(chan struct{}),
	}
	p.ctx, p.cut = context.WithCancelCause(context.Background())
	p.own.list = conf.Own
	p.upstream = p.transport()
	p.h2 = newStreams(p)
	if err := p.SetRules(conf.Rules); err != nil {
		return nil, err
	}
	return p, nil
}

// Serve carries the connections that the jail's own rules lead to l, until Close
// or an error of l's. Where each was meant to go is asked of the kernel
// (SO_ORIGINAL_DST), so l must listen in the jail's network namespace. Serve
// closes l.
func (p *Proxy) Serve(l net.Listener) error { return p.accept(l, (*visit).transparent) }

// ServeHTTP is an HTTP proxy for programs that know of proxies: it takes CONNECT
// and requests for whole URLs. It returns as Serve does, and closes l.
func (p *Proxy) ServeHTTP(l net.Listener) error { return p.accept(l, (*visit).explicit) }

func (p *Proxy) accept(l net.Listener, handle func(*visit)) error {
	if !p.begin(l) {
		l.Close()
		return nil
	}
	defer p.wg.Done()
	defer p.forget(l)
	for {
		c, err := l.Accept()
		if err != nil {
			if p.isClosing() {
				return nil
			}
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || isScarce(err) {
				time.Sleep(10 * time.Millisecond) // the process is short of something; what waits is not lost
				continue
			}
			return err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			c.Close()
			return fault.Newf(fault.Invalid, "egress.Serve", l.Addr().String(), "it does not listen for TCP")
		}
		if p.open.Add(1) > int64(p.conf.Connections) {
			p.open.Add(-1)
			reset(tcp)
			p.refused(Request{Kind: KindConnect}, refuse(ReasonLimit, "", "more than %d connections at once", p.conf.Connections).with("close connections that are not used"))
			continue
		}
		v := &visit{p: p, client: tcp}
		if !p.enter(v) {
			p.open.Add(-1)
			tcp.Close()
			return nil
		}
		p.count.connections.Add(1)
		go func() {
			defer p.wg.Done()
			defer p.open.Add(-1)
			defer p.leave(v)
			handle(v)
		}()
	}
}

// begin registers a listener, unless the proxy is closing.
func (p *Proxy) begin(l interface{ Close() error }) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	p.listeners[l] = struct{}{}
	p.wg.Add(1)
	p.sweep.Do(func() { p.wg.Go(p.sweeper) })
	return true
}

func (p *Proxy) forget(l interface{ Close() error }) {
	l.Close()
	p.mu.Lock()
	delete(p.listeners, l)
	p.mu.Unlock()
}

func (p *Proxy) isClosing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing
}

func (p *Proxy) enter(v *visit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	p.visits[v] = struct{}{}
	p.wg.Add(1)
	return true
}

func (p *Proxy) leave(v *visit) {
	v.client.Close()
	p.mu.Lock()
	delete(p.visits, v)
	p.mu.Unlock()
}

// Close takes nothing more, lets what is being carried come to its end until ctx
// does, cuts what is left, and waits until nothing of the proxy runs any more.
func (p *Proxy) Close(ctx context.Context) error {
	p.mu.Lock()
	first := !p.closing
	p.closing = true
	for l := range p.listeners {
		l.Close()
	}
	busy := map[*visit]bool{}
	for f := range p.flows {
		busy[f.visit] = true
	}
	for v := range p.visits {
		if !busy[v] {
			v.client.Close() // it waits for a request that nobody would take
		}
	}
	if first && len(p.flows) == 0 {
		close(p.drained)
	}
	p.mu.Unlock()

	select {
	case <-p.drained:
		p.h2.drain(ctx)
	case <-ctx.Done():
	}
	p.cut(errClosed)
	p.mu.Lock()
	for f := range p.flows {
		f.stop(refuse(ReasonClosed, "", "the jail's proxy is closed"))
	}
	for v := range p.visits {
		v.client.Close()
	}
	p.mu.Unlock()
	p.h2.close()
	p.wg.Wait()
	p.upstream.CloseIdleConnections()
	p.flushLedger()
	return nil
}

// sweeper does once a second what need not be done at once.
func (p *Proxy) sweeper() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-t.C:
			p.dropGone()
			p.flushLedger()
		}
	}
}

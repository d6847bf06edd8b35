// Package egress implements the egress proxy of a jail (a sandbox) in network mode proxy. The
// network namespace of such a jail has no uplink. It is connected only to a second network
// namespace, which processes in the jail cannot enter. Firewall rules in that namespace redirect
// each TCP connection and each DNS query to listeners of this package, and the proxy dials
// permitted destinations from the host's network namespace.
//
//	jail                                  host
//	any program ── redirect ──▶ Serve ────┐
//	HTTP_PROXY ───────────────▶ ServeHTTP ┼─▶ rules ▸ Authority ▸ rate ▸ bytes ▸ secrets ─▶ guarded dial
//	resolver ── redirect ─────▶ ServeDNS ─┘                                      └▶ Recorder
//
// Each jail has its own Proxy. The listener that accepted a connection identifies the jail;
// the protocol data does not.
//
// The proxy decides by host name. The name comes from the server name (SNI) of the TLS
// ClientHello or from the head of each HTTP request. If a client sends neither, the proxy uses
// the single allowed name for which its DNS server returned the destination address. The
// destination address of the client is not trusted: the proxy dials an address that the host's
// resolver returns for the name, and checks that address again when it dials. Addresses of the
// host, of private networks and other special-purpose addresses are reachable only if a rule
// lists them as addresses.
//
// The proxy refuses an ambiguous message. It parses and re-serializes HTTP instead of
// forwarding the client's bytes, which prevents request smuggling.
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

// Config configures a Proxy.
type Config struct {
	Jail string // jail id, for records and for requests to Authority

	Rules     Rules
	Authority Authority // decides requests that no rule allows; nil: they are refused
	Recorder  Recorder  // receives a record of each flow and refusal; nil: none are kept
	Resolver  Resolver  // resolver of the host; nil: net.DefaultResolver

	// Secret returns the current value of a secret that is sent to the given host. It is
	// required if a rule injects a secret. The proxy does not retain the bytes.
	Secret func(ctx context.Context, name, host string) ([]byte, error)

	// OwnerSecret does the same for a Transform, which can use only secrets of its owner.
	OwnerSecret func(ctx context.Context, owner, name, host string) ([]byte, error)

	CA    *CA            // required if a rule needs TLS interception
	Roots *x509.CertPool // roots that verify servers of intercepted connections; nil: the system's roots

	// OwnAddrs returns the host's own addresses, which are dialed only if a rule lists them. Nil:
	// the addresses of all interfaces in the network namespace of the process.
	OwnAddrs func() ([]netip.Addr, error)

	Connections int  // maximum number of open connections; 0 means 1000
	KeepQuery   bool // record paths with their query, which may contain private data
}

// times are the timeouts of a Proxy.
type times struct {
	silence    time.Duration // for the first bytes of a client, before the server may speak first
	head       time.Duration // for a complete ClientHello or request head
	idle       time.Duration // between two requests on a connection
	dial       time.Duration // to connect to a server
	ask        time.Duration // for a decision of the Authority
	halfClosed time.Duration // how long a half-closed client may wait for a response
}

var defaultTimes = times{
	silence:    300 * time.Millisecond,
	head:       10 * time.Second,
	idle:       2 * time.Minute,
	dial:       10 * time.Second,
	ask:        15 * time.Minute,
	halfClosed: 10 * time.Second,
}

// A Proxy is the egress proxy of one jail. It is safe for concurrent use.
type Proxy struct {
	conf  Config
	times times
	ctx   context.Context // canceled by Close to abort all flows
	cut   context.CancelCauseFunc

	rules atomic.Pointer[ruleset] // stored with mu held

	upstream *http.Transport
	h2       *streams
	lookups  singleflight.Group
	known    names
	own      ownAddrs
	count    counters
	ledger   ledger

	open  atomic.Int64   // open connections from the jail
	wg    sync.WaitGroup // goroutines of the proxy
	sweep sync.Once

	mu sync.Mutex
	// +checklocks:mu
	closing   bool // no new connections or flows are accepted
	listeners map[interface{ Close() error }]struct{}
	visits    map[*visit]struct{}
	flows     map[*flow]struct{}
	drained   chan struct{} // closed when closing and flows are empty
}

var errClosed = errors.New("the proxy is closed")

// New returns a proxy without listeners.
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
	p.own.list = conf.OwnAddrs
	p.upstream = p.transport()
	p.h2 = newStreams(p)
	if err := p.SetRules(conf.Rules); err != nil {
		return nil, err
	}
	return p, nil
}

// Serve proxies the jail's connections that firewall rules redirect to l. It returns after
// Close, or when l fails. Serve obtains the original destination of each connection from the
// kernel (SO_ORIGINAL_DST), so l must listen in the network namespace of these rules. Serve
// closes l.
func (p *Proxy) Serve(l net.Listener) error { return p.accept(l, (*visit).transparent) }

// ServeHTTP serves an HTTP proxy for clients with proxy settings. It accepts CONNECT and
// requests with an absolute-form target. It returns under the same conditions as Serve, and
// closes l.
func (p *Proxy) ServeHTTP(l net.Listener) error { return p.accept(l, (*visit).explicit) }

func (p *Proxy) accept(l net.Listener, handle func(*visit)) error {
	if !p.begin(l) {
		l.Close()
		return nil
	}
	defer p.wg.Done()
	defer p.removeListener(l)
	for {
		c, err := l.Accept()
		if err != nil {
			if p.isClosing() {
				return nil
			}
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || isTemporary(err) {
				time.Sleep(10 * time.Millisecond) // a temporary shortage, such as EMFILE; the connection stays in the backlog
				continue
			}
			return err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			c.Close()
			return fault.Newf(fault.Invalid, "egress.Serve", l.Addr().String(), "not a TCP listener")
		}
		if p.open.Add(1) > int64(p.conf.Connections) {
			p.open.Add(-1)
			// A connection in the backlog is established for the client (listen(2)), which would
			// wait for data instead of reporting an error.
			reset(tcp)
			p.refused(Request{Kind: KindConnect}, refuse(ReasonLimit, "", "more than %d open connections", p.conf.Connections).with("close unused connections"))
			continue
		}
		v := &visit{p: p, client: tcp}
		if !p.addVisit(v) {
			p.open.Add(-1)
			tcp.Close()
			return nil
		}
		p.count.connections.Add(1)
		go func() {
			defer p.wg.Done()
			defer p.open.Add(-1)
			defer p.removeVisit(v)
			handle(v)
		}()
	}
}

// begin registers a listener. It reports false if the proxy is closing.
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

func (p *Proxy) removeListener(l interface{ Close() error }) {
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

func (p *Proxy) addVisit(v *visit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	p.visits[v] = struct{}{}
	p.wg.Add(1)
	return true
}

func (p *Proxy) removeVisit(v *visit) {
	v.client.Close()
	p.mu.Lock()
	delete(p.visits, v)
	p.mu.Unlock()
}

// Close stops accepting connections and waits for active flows until ctx ends. It then aborts
// the remaining flows and waits for all goroutines of the proxy.
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
			v.client.Close() // idle: it waits for a request that would be refused
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

// sweeper does periodic work once per second.
func (p *Proxy) sweeper() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-t.C:
			p.abortClosed()
			p.flushLedger()
		}
	}
}

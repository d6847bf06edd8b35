// Package route passes requests between the nodes of a fleet: it finds the node that has an
// object, and forwards to it. Nodes identify themselves with certificates of the fleet (package
// pki), which say nothing about the user: the receiving node checks the user's token itself.
package route

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"sync"
	"syscall"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/fleet/pki"
)

// Config configures a Router. All fields are required, except Secret and Wait.
type Config struct {
	Self     string // this node
	Identity *pki.Identity
	Store    fleet.Store
	Index    fleet.Index
	Log      *slog.Logger

	// Secret returns what a node that joins gets with its certificate; nil: nothing.
	Secret func() ([]byte, error)

	// Wait is how long a request of a user waits for a daemon that restarts; 0: 20 s.
	Wait time.Duration
}

// A Router forwards requests to other nodes, and accepts theirs. It is safe for concurrent use.
type Router struct {
	cfg   Config
	nodes nodeList // for requests of users
	peers nodeList // for the calls of daemons among themselves, without counts

	mu sync.Mutex
	// +checklocks:mu
	expected map[string]expectation // by node
	// +checklocks:mu
	owners map[fleet.Key]owner
	// +checklocks:mu
	links map[string]link // by node
}

// An expectation is how many jails a node has as soon as those that this node has placed exist.
type expectation struct {
	jails int
	at    time.Time // of the last placement
}

// An owner is the result of a lookup.
type owner struct {
	node string
	read time.Time
}

// A link has the connections to a node.
type link struct {
	addr string
	*http.Transport
}

const (
	nodesAge  = time.Second     // how long the list of nodes is used
	ownersAge = 5 * time.Second // how long the owner of an object is used

	rowsPerSecond = 50 // of the list of nodes; see peersAge
	maxOwners     = 10_000

	// placedAge is how long placed jails are expected in the list of nodes. Until then they can be
	// missing: the creation takes time, and the list can be read before.
	placedAge = 5 * time.Second
)

// New returns a Router.
func New(cfg Config) *Router {
	return &Router{
		cfg:      cfg,
		nodes:    nodeList{from: cfg.Store.Nodes, age: func(int) time.Duration { return nodesAge }},
		peers:    nodeList{from: cfg.Store.Peers, age: peersAge},
		expected: map[string]expectation{}, owners: map[fleet.Key]owner{}, links: map[string]link{},
	}
}

// Self returns the ID of this node.
func (rt *Router) Self() string { return rt.cfg.Self }

// Nodes returns all nodes. The list can be a second old.
func (rt *Router) Nodes(ctx context.Context) ([]fleet.Node, error) { return rt.nodes.get(ctx) }

// Peers is like Nodes, without the numbers of sessions, runs and jails. In a large fleet the list can
// be older, because its size is the load of the database.
func (rt *Router) Peers(ctx context.Context) ([]fleet.Node, error) { return rt.peers.get(ctx) }

// peersAge is the age of a list of nodes by which daemons find and admit each other.
func peersAge(nodes int) time.Duration {
	return max(nodesAge, time.Duration(nodes)*time.Second/rowsPerSecond)
}

// A nodeList is a list of nodes, which is read from the store when it is old.
type nodeList struct {
	from func(ctx context.Context) ([]fleet.Node, error)
	age  func(nodes int) time.Duration // how long a list of that length is used

	reading sync.Mutex // held while the list is read because it is old; locked before mu

	mu sync.Mutex
	// +checklocks:mu
	nodes []fleet.Node
	// +checklocks:mu
	at time.Time // when nodes was read
}

func (l *nodeList) get(ctx context.Context) ([]fleet.Node, error) {
	if nodes, fresh := l.last(); fresh {
		return nodes, nil
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	if nodes, fresh := l.last(); fresh { // another request has read it
		return nodes, nil
	}
	return l.read(ctx)
}

// last returns the list that was read last, and whether it can be used.
func (l *nodeList) last() ([]fleet.Node, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes, time.Since(l.at) < l.age(len(l.nodes))
}

const readTimeout = 5 * time.Second // others wait for a read

// read reads the list although it may not be old.
func (l *nodeList) read(ctx context.Context) ([]fleet.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	nodes, err := l.from(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes, l.at = nodes, time.Now()
	return nodes, nil
}

// Node returns the node with an ID or a name.
func (rt *Router) Node(ctx context.Context, name string) (fleet.Node, error) {
	return rt.nodes.find(ctx, name)
}

// find returns the node of a list with an ID or a name.
func (l *nodeList) find(ctx context.Context, name string) (fleet.Node, error) {
	const op = "route.Node"
	nodes, err := l.get(ctx)
	if err != nil {
		return fleet.Node{}, err
	}
	found := named(nodes, name)
	if len(found) == 0 { // it may be new
		nodes, err = l.read(ctx)
		if err != nil {
			return fleet.Node{}, err
		}
		found = named(nodes, name)
	}
	switch len(found) {
	case 0:
		return fleet.Node{}, &fault.Error{Op: op, Kind: fault.NotFound, On: name, Err: errors.New("no such node"), Remedy: "glasshouse node ls"}
	case 1:
		return found[0], nil
	}
	return fleet.Node{}, &fault.Error{Op: op, Kind: fault.Conflict, On: name, Err: fmt.Errorf("%d nodes have this name", len(found)), Remedy: "use the ID of the node; glasshouse node ls"}
}

// named returns the node with an ID, or the nodes with a name.
func named(nodes []fleet.Node, name string) (found []fleet.Node) {
	for _, n := range nodes {
		if n.ID == name {
			return []fleet.Node{n}
		}
		if n.Name == name {
			found = append(found, n)
		}
	}
	return found
}

// Owner returns the node that has an object, or "" if none is known.
func (rt *Router) Owner(ctx context.Context, k fleet.Key) (string, error) {
	rt.mu.Lock()
	o := rt.owners[k]
	rt.mu.Unlock()
	if o.node != "" && k.Kind != fleet.Alias && time.Since(o.read) < ownersAge { // an alias can move
		return o.node, nil
	}
	node, err := rt.cfg.Index.Owner(ctx, k)
	if err != nil || node == "" {
		return "", err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if len(rt.owners) >= maxOwners {
		clear(rt.owners)
	}
	rt.owners[k] = owner{node, time.Now()}
	return node, nil
}

func (rt *Router) forget(k fleet.Key) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.owners, k)
}

// Draining reports whether this node gets no new jails and sessions.
func (rt *Router) Draining(ctx context.Context) bool {
	n, err := rt.Node(ctx, rt.cfg.Self)
	return err == nil && n.Draining
}

// Drain sets whether a node gets new jails and sessions; see fleet.Store.
func (rt *Router) Drain(ctx context.Context, node string, on bool) error {
	return rt.cfg.Store.Drain(ctx, node, on)
}

// Remove removes a node from the fleet; see fleet.Store.
func (rt *Router) Remove(ctx context.Context, node string, lost bool) error {
	return rt.cfg.Store.Remove(ctx, node, lost)
}

// Objects returns objects of all nodes; see fleet.Index.
func (rt *Router) Objects(ctx context.Context, kind fleet.Kind, tenant, after string, limit int) ([]fleet.Object, error) {
	return rt.cfg.Index.Objects(ctx, kind, tenant, after, limit)
}

// Place returns the node for a new jail. Jails that this node has placed in the last seconds count
// also if they are not in the list of nodes yet.
func (rt *Router) Place(ctx context.Context) (fleet.Node, error) {
	nodes, err := rt.Nodes(ctx)
	if err != nil {
		return fleet.Node{}, err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	jails := map[string]int{}
	for _, n := range nodes {
		jails[n.ID] = n.Jails
		if e := rt.expected[n.ID]; time.Since(e.at) < placedAge {
			jails[n.ID] = max(n.Jails, e.jails)
		}
	}
	best, err := fleet.Best(nodes, func(n *fleet.Node) int { return jails[n.ID] })
	if err != nil {
		return best, err
	}
	rt.expected[best.ID] = expectation{jails[best.ID] + 1, time.Now()}
	return best, nil
}

// keyAge is how long the node of a key is stored. Responses are stored for as long.
const keyAge = 24 * time.Hour

// PlaceOnce returns the node for a new jail of a request that can be repeated with a key. It is the
// same for all requests with the key, at all nodes.
func (rt *Router) PlaceOnce(ctx context.Context, key string) (fleet.Node, error) {
	instead := ""
	for {
		n, err := rt.Place(ctx)
		if err != nil {
			return n, err
		}
		bound, err := rt.cfg.Index.Bind(ctx, key, n.ID, instead, keyAge)
		if err != nil || bound == n.ID {
			return n, err
		}
		n, err = rt.Node(ctx, bound)
		if !errors.Is(err, fault.NotFound) || bound == instead {
			return n, err
		}
		instead = bound // it was removed, with its jails
	}
}

// Forward passes a request to a node, and its response to the client. It returns an error if
// there is no response. k is the object of the request, if any. If the object has moved to another
// node, the request is passed there. If the daemon of the node is restarting, Forward waits for it.
func (rt *Router) Forward(w http.ResponseWriter, r *http.Request, node string, k fleet.Key) error {
	r = r.WithContext(context.WithValue(r.Context(), waits{}, true))
	var body []byte
	repeatable := k.ID != "" && r.ContentLength >= 0 && r.ContentLength <= maxMessage
	if repeatable {
		var err error
		body, err = io.ReadAll(r.Body)
		if err != nil {
			return fault.New(fault.Invalid, "route.Forward", "", fmt.Errorf("read the body: %w", err))
		}
	}
	for {
		if repeatable {
			// With GetBody the transport repeats requests that a stopping daemon has not begun to serve.
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
			r.Body, _ = r.GetBody()
		}
		moved, err := rt.forward(w, r, node, k)
		switch {
		case moved == "":
			return err
		case !repeatable:
			return &fault.Error{Op: "route.Forward", On: k.ID, Kind: fault.Unavailable, Err: fmt.Errorf("the %s has just moved to another node", k.Kind), Remedy: "send the request again"}
		}
		node = moved
	}
}

// errMoved is why the response of a node is not passed to the client.
var errMoved = errors.New("the object has moved")

// forward is Forward to one node. If the object has moved, there is no response yet, and forward
// returns its node.
func (rt *Router) forward(w http.ResponseWriter, r *http.Request, node string, k fleet.Key) (moved string, failed error) {
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", "node", p.In.Host
		},
		Transport:     rt.Transport(node),
		FlushInterval: -1, // streams
		ErrorLog:      slog.NewLogLogger(rt.cfg.Log.Handler(), slog.LevelDebug),
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode != http.StatusNotFound || k.ID == "" {
				return nil
			}
			rt.forget(k)
			owner, err := rt.Owner(r.Context(), k)
			if err == nil && owner != "" && owner != node && owner != rt.cfg.Self {
				moved = owner
				return errMoved
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	proxy.ServeHTTP(w, r)
	if failed != nil {
		rt.forget(k)
	}
	return moved, failed
}

// reachable returns a node that accepts connections.
func (rt *Router) reachable(ctx context.Context, node string) (fleet.Node, error) {
	n, err := rt.Node(ctx, node)
	switch {
	case err != nil:
		return n, err
	case n.Addr == "":
		return n, unavailable(n, errors.New("the node accepts no connections of other nodes"), "set fleet.listen in its configuration")
	case n.State != fleet.Up:
		return n, unavailable(n, errors.New("the node is lost"), "start its daemon, or remove it: glasshouse node rm --lost")
	}
	return n, nil
}

// reachablePeer is reachable for a call of this node.
func (rt *Router) reachablePeer(ctx context.Context, node string) (fleet.Node, error) {
	n, err := rt.peers.find(ctx, node)
	if err != nil || n.Addr != "" && n.State == fleet.Up {
		return n, err
	}
	return rt.reachable(ctx, node) // it may have changed
}

func unavailable(n fleet.Node, err error, remedy string) error {
	return &fault.Error{Op: "route.unavailable", Kind: fault.Unavailable, On: cmp.Or(n.Name, n.ID), Err: err, Remedy: remedy}
}

// Transport returns a transport for requests of users to a node, whatever host they name.
func (rt *Router) Transport(node string) http.RoundTripper { return transport{rt, node} }

type transport struct {
	rt   *Router
	node string
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	n, err := t.rt.reachable(r.Context(), t.node)
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	host := cmp.Or(r.Host, r.URL.Host)
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host, r.Host = "https", n.Addr, host
	r.Header.Del(callHeader)
	response, err := t.rt.exchange(n, r)
	switch {
	case err != nil && r.Context().Err() != nil:
		return nil, err
	case err != nil:
		return nil, unavailable(n, fmt.Errorf("the node does not answer: %w", err), cmp.Or(fault.RemedyOf(err), "glasshouse node ls shows its state"))
	case response.Header.Get(refusedHeader) == "":
		return response, nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	if err == nil {
		err = readRefusal(response.Status, body)
	}
	return nil, unavailable(n, fmt.Errorf("the node does not accept the request: %w", err), fault.RemedyOf(err))
}

const (
	dialTimeout = 3 * time.Second
	defaultWait = 20 * time.Second // shorter than a lease
)

// waits is the context key of requests that wait for a daemon to restart.
type waits struct{}

// exchange sends a request to a node. If it has a body that can be repeated, it waits for a daemon that
// restarts also if there was a connection, which the daemon has not accepted.
func (rt *Router) exchange(n fleet.Node, r *http.Request) (*http.Response, error) {
	connected := false // since the last attempt of the transport, which repeats no request that may have been served
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { connected = false },
		GotConn: func(httptrace.GotConnInfo) { connected = true },
	}))
	again := rt.patience(r.Context())
	for {
		response, err := rt.link(n).RoundTrip(r)
		if err == nil || connected || !notAccepted(err) || r.Body != nil && r.GetBody == nil || !again() {
			return response, err
		}
		if r.GetBody != nil {
			r.Body, err = r.GetBody()
			if err != nil {
				return nil, err
			}
		}
	}
}

// dial connects to a node. If its host refuses the connection, a request of a user waits for the
// daemon, which keeps its jails when it restarts.
func (rt *Router) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	again := rt.patience(ctx)
	for {
		conn, err := d.DialContext(ctx, network, addr)
		if err == nil || !notAccepted(err) || !again() {
			return conn, err
		}
	}
}

// notAccepted reports whether no daemon has accepted a connection, if it failed before it could be used.
// Those that a daemon has not accepted when it exits are reset.
func notAccepted(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
}

// patience returns a function that waits before the next attempt to reach a daemon. It returns false if
// there should be none.
func (rt *Router) patience(ctx context.Context) (again func() bool) {
	end := time.Now().Add(cmp.Or(rt.cfg.Wait, defaultWait))
	return func() bool {
		if ctx.Value(waits{}) == nil || time.Now().After(end) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	}
}

// link returns the connections to a node.
func (rt *Router) link(n fleet.Node) *http.Transport {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if l := rt.links[n.ID]; l.addr == n.Addr {
		return l.Transport
	} else if l.Transport != nil {
		defer l.CloseIdleConnections()
	}
	t := &http.Transport{
		TLSClientConfig: rt.cfg.Identity.Client(n.ID), TLSHandshakeTimeout: dialTimeout,
		DialContext:       rt.dial,
		ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{
			SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second,
			MaxReadFrameSize: 1 << 20, MaxReceiveBufferPerStream: 16 << 20, // for snapshots
		},
		DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
	}
	rt.links[n.ID] = link{n.Addr, t}
	return t
}

// Close closes idle connections.
func (rt *Router) Close() error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, l := range rt.links {
		l.CloseIdleConnections()
	}
	return nil
}

package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/internal/linger"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/access"
)

// Fleet reaches the other daemons of a fleet. *route.Router implements it.
type Fleet interface {
	Self() string
	Node(ctx context.Context, name string) (fleet.Node, error)
	Owner(ctx context.Context, k fleet.Key) (node string, err error) // "": unknown
	Place(ctx context.Context) (fleet.Node, error)                   // for a new jail
	PlaceOnce(ctx context.Context, key string) (fleet.Node, error)   // the same for the same key
	Forward(w http.ResponseWriter, r *http.Request, node string, k fleet.Key) error
	Transport(node string) http.RoundTripper // for further requests of a user
	Nodes(ctx context.Context) ([]fleet.Node, error)
	Objects(ctx context.Context, kind fleet.Kind, tenant, after string, limit int) ([]fleet.Object, error)

	Invite(ctx context.Context) (token, fingerprint string, err error)
	Drain(ctx context.Context, node string, on bool) error
	Remove(ctx context.Context, node string, lost bool) error
}

// nodeHeader selects the daemon that answers a request, by the name or ID of its node.
const nodeHeader = "Glasshouse-Node"

// An ownership is which object of one daemon a route is about.
type ownership struct {
	kind  fleet.Kind
	param string // of the path, with the ID of the object
}

// ownershipOf returns whose daemon must serve the route with a pattern. Without a kind, each
// daemon can.
func ownershipOf(pattern string) ownership {
	switch {
	case strings.Contains(pattern, "/jails/{id}"), strings.Contains(pattern, "/sandbox/{id}"):
		return ownership{fleet.Jail, "id"}
	case strings.Contains(pattern, "{sid}"):
		return ownership{fleet.Snapshot, "sid"}
	case strings.Contains(pattern, "{approval}"):
		return ownership{fleet.Approval, "approval"}
	}
	return ownership{}
}

// placed are the routes that create jails. A daemon without jails passes them to another one.
var placed = map[string]bool{"createJail": true, "startRun": true}

// forward passes a request to the daemon that must serve it, if that is not this one.
func (s *Server) forward(rt route, owned ownership, rec *recorder, r *http.Request) (bool, error) {
	ctx := r.Context()
	name := r.Header.Get(nodeHeader)
	if name == "" && rt.id == "getMetrics" { // the configuration of Prometheus cannot set a header for each target
		name = r.URL.Query().Get("node")
	}
	switch {
	case rt.role == access.Agent:
		return false, nil
	case connOf(ctx).peer:
		return s.forwardMoved(owned, rec, r) // this daemon was chosen
	case s.o.Fleet == nil && name != "":
		return false, fault.Cannot("api.forward", "this daemon is not in a fleet", "omit "+nodeHeader+", or create a fleet: glasshouse fleet init")
	case s.o.Fleet == nil:
		return false, nil
	}
	node, k, err := s.nodeFor(ctx, rt, owned, r, name)
	if err != nil || node == "" || node == s.o.Fleet.Self() {
		return false, err
	}
	if err := mayForward(ctx, node); err != nil {
		return false, err
	}
	r.Header.Del(fleet.E2BHeader) // only the listener for clients of E2B sets it
	return true, s.o.Fleet.Forward(rec, r, node, k)
}

// forwardMoved passes a request of another daemon for a jail that has just moved to the daemon that
// has it.
func (s *Server) forwardMoved(owned ownership, rec *recorder, r *http.Request) (bool, error) {
	if s.o.Moved == nil || owned.kind != fleet.Jail || r.Header.Get(nodeHeader) != "" { // the user has chosen this daemon
		return false, nil
	}
	k := fleet.Key{Kind: fleet.Jail, ID: r.PathValue(owned.param)}
	node := s.o.Moved(r.Context(), id.Jail(k.ID))
	if node == "" {
		return false, nil
	}
	return true, s.o.Fleet.Forward(rec, r, node, k)
}

// mayForward returns an error for a user whose rights end at this node.
func mayForward(ctx context.Context, node string) error {
	if c := access.CallerOf(ctx); c.Token != "" || c.Login != "" {
		return nil
	}
	return &fault.Error{Op: "api.forward", Kind: fault.Denied, On: node,
		Err:    errors.New("access by the local socket is limited to this node, and the request is for another one"),
		Remedy: "set GLASSHOUSE_TOKEN to a token, for example that in the file token in the data directory, or one of glasshouse token create"}
}

// requestKey is the context key of the request that a handler serves.
type requestKey struct{}

// clientOf returns a client of another node with the rights of the user of ctx.
func clientOf(ctx context.Context, f Fleet, node string) (*client.Client, error) {
	if err := mayForward(ctx, node); err != nil {
		return nil, err
	}
	user := ctx.Value(requestKey{}).(*http.Request)
	return client.New(client.Options{Addr: "http://" + node, HTTP: &http.Client{Transport: asUser{f.Transport(node), user.Header}}})
}

// asUser sends requests with the credentials of a user.
type asUser struct {
	http.RoundTripper
	user http.Header
}

func (t asUser) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for _, name := range []string{"Authorization", "Cookie"} {
		r.Header[name] = t.user.Values(name) // without credentials, too
	}
	return t.RoundTripper.RoundTrip(r)
}

// nodeFor returns the node for a request, and the object that the request is about. "" is this
// node.
func (s *Server) nodeFor(ctx context.Context, rt route, owned ownership, r *http.Request, name string) (string, fleet.Key, error) {
	if name != "" {
		n, err := s.o.Fleet.Node(ctx, name)
		return n.ID, fleet.Key{}, err
	}
	if s.o.Front && placed[rt.id] {
		n, err := s.place(r)
		return n.ID, fleet.Key{}, err
	}
	if owned.kind == "" {
		return "", fleet.Key{}, nil
	}
	k := fleet.Key{Kind: owned.kind, ID: r.PathValue(owned.param)}
	if s.has(ctx, k) {
		if k.Kind == fleet.Jail && s.o.Moved != nil {
			return s.o.Moved(ctx, id.Jail(k.ID)), k, nil
		}
		return "", k, nil
	}
	node, err := s.o.Fleet.Owner(ctx, k)
	if err != nil { // the object may be unknown everywhere
		return "", k, fault.New(fault.Unavailable, "api.forward", k.ID, err)
	}
	return node, k, nil
}

// place returns the node for a request that creates a jail. A repeated request with an idempotency
// key must reach the node that has stored the first response.
func (s *Server) place(r *http.Request) (fleet.Node, error) {
	key := r.Header.Get(keyHeader)
	if key == "" {
		return s.o.Fleet.Place(r.Context())
	}
	k, err := replayKey(r, key)
	if err != nil {
		return fleet.Node{}, err
	}
	sum := sha256.Sum256([]byte(k.Scope + "\x00" + k.Key))
	return s.o.Fleet.PlaceOnce(r.Context(), hex.EncodeToString(sum[:]))
}

// has reports whether this daemon has an object.
func (s *Server) has(ctx context.Context, k fleet.Key) bool {
	var err error
	switch {
	case k.Kind == fleet.Jail:
		_, err = s.o.Jails.Get(ctx, id.Jail(k.ID))
	case k.Kind == fleet.Snapshot && s.o.Snapshots != nil:
		one, err := s.o.Snapshots.Get(ctx, id.Snapshot(k.ID))
		return !errors.Is(err, fault.NotFound) && one.Reason != snapshot.Copied
	case k.Kind == fleet.Approval && s.o.Approvals != nil:
		_, err = s.o.Approvals.Get(ctx, id.Approval(k.ID))
	}
	return !errors.Is(err, fault.NotFound)
}

// ServeNodes serves the connections of other daemons of the fleet. around identifies the daemons
// before it calls the handler, which has checked neither their hosts nor their users.
func (s *Server) ServeNodes(l net.Listener, around func(http.Handler) http.Handler) error {
	return s.serve(l, linger.Handler(around(s.Handler())), func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, connection{peer: true})
	})
}

// Owned returns the objects that belong to this daemon, for the index of the fleet.
func (s *Server) Owned(ctx context.Context) ([]fleet.Object, error) {
	ctx = access.WithCaller(ctx, access.Caller{}) // of the request after which the index is updated
	var all []fleet.Object
	add := func(kind fleet.Kind, id string, created time.Time, summary any) error {
		data, err := json.Marshal(summary)
		all = append(all, fleet.Object{Kind: kind, ID: id, Created: created.UTC(), Summary: string(data)})
		return err
	}
	jails, err := s.o.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, j := range jails {
		// Without a caller, the summary has no environment variables.
		if err := add(fleet.Jail, string(j.ID), j.Created, jailOf(ctx, j, s.o.Snapshots)); err != nil {
			return nil, err
		}
	}
	if s.o.Snapshots != nil {
		taken, err := s.o.Snapshots.List(ctx, snapshot.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, t := range taken {
			if err := add(fleet.Snapshot, string(t.ID), t.Created, struct{}{}); err != nil {
				return nil, err
			}
		}
	}
	if s.o.Approvals != nil {
		for _, a := range s.o.Approvals.Pending() {
			if err := add(fleet.Approval, string(a.ID), a.Created, summaryOf(a)); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// allNodes reports whether a list is that of all nodes. front is whether this is the default.
func allNodes(op, nodes string, f Fleet, front bool) (bool, error) {
	switch {
	case nodes == "all" && f == nil:
		return false, fault.Fieldf(op, "nodes", "this daemon is not in a fleet")
	case nodes != "" && nodes != "all" && nodes != "self":
		return false, fault.Fieldf(op, "nodes", "%q is neither all nor self", nodes)
	}
	return nodes == "all" || nodes == "" && front, nil
}

// nodeNames finds the names of nodes for a list.
type nodeNames struct {
	fleet Fleet
	known map[string]string // by ID
}

// of returns the name of a node, or its ID if it was removed.
func (n *nodeNames) of(ctx context.Context, node string) (string, error) {
	if name, ok := n.known[node]; ok {
		return name, nil
	}
	found, err := n.fleet.Node(ctx, node)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return "", err
	}
	if n.known == nil {
		n.known = map[string]string{}
	}
	n.known[node] = cmp.Or(found.Name, node)
	return n.known[node], nil
}

// listAll lists the jails of all nodes.
func (h *jailHandler) listAll(ctx context.Context, p listJails, o jail.ListOptions) (wire.Page[wire.Jail], error) {
	var page wire.Page[wire.Jail]
	size, err := limit(p.Limit)
	if err != nil {
		return page, err
	}
	names := nodeNames{fleet: h.fleet}
	match := func(w wire.Jail) bool {
		if o.State != "" && w.State != string(o.State) || o.Name != "" && w.Name != o.Name {
			return false
		}
		for k, v := range o.Label {
			if w.Labels[k] != v {
				return false
			}
		}
		return true
	}
	page.Items = []wire.Jail{}
	last := "" // cursor of the last item
	for after := p.After; ; {
		list, err := h.fleet.Objects(ctx, fleet.Jail, "", after, 1000)
		if err != nil {
			return page, err
		}
		for _, o := range list {
			var w wire.Jail
			if err := json.Unmarshal([]byte(o.Summary), &w); err != nil {
				return page, fmt.Errorf("read the summary of jail %s: %w", o.ID, err)
			}
			if !match(w) {
				continue
			}
			if len(page.Items) == size {
				page.Next = last
				return page, nil
			}
			w.Node, err = names.of(ctx, o.Node)
			if err != nil {
				return page, err
			}
			page.Items, last = append(page.Items, w), o.Cursor()
		}
		if len(list) < 1000 {
			return page, nil
		}
		after = list[len(list)-1].Cursor()
	}
}

// fleetHandler serves the routes that change the fleet.
type fleetHandler struct {
	fleet Fleet // nil: this daemon is not in a fleet
	nodes func(ctx context.Context) ([]wire.Node, error)
	move  func(ctx context.Context, j id.Jail, node string) (fleet.Node, error)
}

func (h *fleetHandler) check() error {
	if h.fleet == nil {
		return fault.Cannot("api.fleet", "this daemon is not in a fleet", "glasshouse fleet init")
	}
	return nil
}

func (h *fleetHandler) createNodeToken(ctx context.Context, _, _ none) (wire.NodeToken, error) {
	if err := h.check(); err != nil {
		return wire.NodeToken{}, err
	}
	self, err := h.fleet.Node(ctx, h.fleet.Self())
	if err != nil {
		return wire.NodeToken{}, err
	}
	token, fingerprint, err := h.fleet.Invite(ctx)
	return wire.NodeToken{Token: token, Address: self.Addr, Authority: fingerprint}, err
}

type oneNode struct {
	Node string `path:"node"`
}

func (h *fleetHandler) updateNode(ctx context.Context, p oneNode, b wire.UpdateNode) (wire.Node, error) {
	if err := h.check(); err != nil {
		return wire.Node{}, err
	}
	n, err := h.fleet.Node(ctx, p.Node)
	if err != nil {
		return wire.Node{}, err
	}
	if b.Draining != nil {
		if err := h.fleet.Drain(ctx, n.ID, *b.Draining); err != nil {
			return wire.Node{}, err
		}
	}
	all, err := h.nodes(ctx)
	for _, w := range all {
		if w.ID == n.ID {
			return w, err
		}
	}
	return wire.Node{}, cmp.Or(err, fault.Newf(fault.NotFound, "api.updateNode", p.Node, "no such node"))
}

func (h *fleetHandler) moveJail(ctx context.Context, p oneJail, b wire.MoveJail) (wire.MovedJail, error) {
	if err := h.check(); err != nil {
		return wire.MovedJail{}, err
	}
	n, err := h.move(ctx, p.ID, b.Node)
	return wire.MovedJail{ID: p.ID, Node: n.ID, Name: n.Name}, err
}

type removedNode struct {
	Node string `path:"node"`
	Lost bool   `query:"lost" description:"Remove a node that does not come back, with its jails and sessions. Other nodes continue its runs."`
}

func (h *fleetHandler) removeNode(ctx context.Context, p removedNode, _ none) (none, error) {
	if err := h.check(); err != nil {
		return none{}, err
	}
	n, err := h.fleet.Node(ctx, p.Node)
	if err != nil {
		return none{}, err
	}
	if n.ID == h.fleet.Self() {
		return none{}, &fault.Error{Op: "api.removeNode", Kind: fault.Conflict, On: p.Node, Err: errors.New("a node cannot remove itself"), Remedy: "send the request to another node"}
	}
	return none{}, h.fleet.Remove(ctx, n.ID, p.Lost)
}

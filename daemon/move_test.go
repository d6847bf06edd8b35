package daemon

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"glasshouse/agents/gateway"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

const moving = id.Jail("j-aaaaaaaaaaaa")

// A moveWorld has the nodes a and b, and their index. Each call of a dependency is a point at which
// something can fail.
type moveWorld struct {
	*testing.T
	nodes map[string]*moveNode
	fleet.Index

	mu            sync.Mutex
	owner, ticket string
	taken         string // ticket of the last Take
	calls         int
	failAt        int
	how           string // before, after: the call fails without or with its effect; crash before, crash after: its node fails until it restarts
	done          []string
}

// A moveNode is the fake of all dependencies of a node.
type moveNode struct {
	*mover
	w         *moveWorld
	name      string
	dead      bool
	jail      *jail.Jail
	snapshots map[id.Snapshot]snapshot.Snapshot
}

func newMoveWorld(t *testing.T, state jail.State) *moveWorld {
	w := &moveWorld{T: t, nodes: map[string]*moveNode{}, owner: "a"}
	for _, name := range []string{"a", "b"} {
		n := &moveNode{w: w, name: name, snapshots: map[id.Snapshot]snapshot.Snapshot{}}
		n.mover = &mover{
			self: name, fleet: n, index: moveIndex{w, n}, jails: n, snapshots: moveImages{n}, dir: t.TempDir(), log: slog.New(slog.DiscardHandler),
			busy: func(context.Context, jail.Jail) error { return nil }, publish: func(context.Context) {}, flush: func(context.Context, id.Jail) error { return nil }, refresh: func(context.Context) error { return n.do("refresh", func() error { return nil }) },
			record: func(id.Jail, string, string) {}, active: map[id.Jail]bool{}, gone: map[id.Jail]departed{},
		}
		w.nodes[name] = n
	}
	w.nodes["a"].jail = &jail.Jail{ID: moving, State: state}
	events := w.nodes["a"].eventsOf(moving)
	if err := os.MkdirAll(events, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(events, "processes.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// point is called before and after the effect of a call.
func (n *moveNode) point(what string) (after func() error, err error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	broken := fault.Newf(fault.Unavailable, "test", what, "failed at call %d", n.w.calls)
	if n.dead {
		return nil, broken
	}
	n.w.calls++
	n.w.done = append(n.w.done, n.name+"."+what)
	if n.w.calls != n.w.failAt {
		return func() error { return nil }, nil
	}
	n.dead = strings.HasPrefix(n.w.how, "crash")
	if strings.HasSuffix(n.w.how, "before") {
		return nil, broken
	}
	return func() error { return broken }, nil
}

// do is a call with an effect.
func (n *moveNode) do(what string, effect func() error) error {
	after, err := n.point(what)
	if err != nil {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	return after()
}

// run sets the state of the jail of a node. Never do two nodes run it.
func (n *moveNode) run(state jail.State) {
	n.jail.State = state
	for _, o := range n.w.nodes {
		if o != n && o.runs() && n.runs() {
			n.w.Errorf("two nodes run the jail after %v", n.w.done)
		}
	}
}

// runs reports whether a node runs the jail, or will when a user resumes it.
func (n *moveNode) runs() bool {
	return n.jail != nil && (n.jail.State == jail.Running || n.jail.State == jail.Paused && n.jail.Departure == nil)
}

func (n *moveNode) Node(_ context.Context, name string) (fleet.Node, error) {
	return fleet.Node{ID: name, Name: name, State: fleet.Up, Addr: "x:1"}, nil
}

func (n *moveNode) Nodes(context.Context) ([]fleet.Node, error) {
	return []fleet.Node{{ID: "a", State: fleet.Up, Addr: "x:1"}, {ID: "b", State: fleet.Up, Addr: "x:1"}}, nil
}

func (n *moveNode) Call(ctx context.Context, node, path string, in, out any) error {
	return n.do("call "+path, func() (err error) {
		other := n.w.nodes[node]
		if other.dead {
			return fault.Newf(fault.Unavailable, "call", node, "down")
		}
		*out.(*bool), err = other.has(ctx, in.(moveQuestion))
		return err
	})
}

func (n *moveNode) Open(ctx context.Context, node, path string, in any) (body io.ReadCloser, err error) {
	err = n.do("open "+path, func() error {
		other, b := n.w.nodes[node], &bytes.Buffer{}
		var err error
		switch {
		case other.dead:
			err = fault.Newf(fault.Unavailable, "open", node, "down")
		case path == receivePath:
			_, err = other.receive(ctx, in.(arrival))
			b.WriteString("true\n")
		case path == eventsPath:
			err = other.sendEvents(ctx, in.(id.Jail), b)
		case path == snapshotPath:
			b.WriteString(string(in.(id.Snapshot)))
		}
		body = io.NopCloser(b)
		return err
	})
	return body, err
}

// A moveIndex is the index as a node uses it.
type moveIndex struct {
	*moveWorld
	n *moveNode
}

func (x moveIndex) Offer(_ context.Context, _ fleet.Key, node, ticket string) error {
	return x.n.do("offer "+ticket, func() error {
		if x.owner != node {
			return fault.Newf(fault.Conflict, "offer", node, "%s has it", x.owner)
		}
		x.ticket = ticket
		return nil
	})
}

func (x moveIndex) Owner(context.Context, fleet.Key) (string, error) { return x.owner, nil }

func (x moveIndex) Take(_ context.Context, _ fleet.Key, from, to, ticket string) error {
	return x.n.do("take", func() error {
		if x.owner == from && x.ticket == ticket {
			x.owner, x.ticket, x.taken = to, "", ticket
		} else if x.owner != to || x.taken != ticket {
			return fault.Newf(fault.Conflict, "take", to, "not offered")
		}
		return nil
	})
}

func (n *moveNode) Get(context.Context, id.Jail) (jail.Jail, error) {
	if n.jail == nil {
		return jail.Jail{}, fault.Newf(fault.NotFound, "get", "", "no such jail")
	}
	return *n.jail, nil
}

func (n *moveNode) List(context.Context, jail.ListOptions) ([]jail.Jail, error) {
	if n.jail == nil {
		return nil, nil
	}
	return []jail.Jail{*n.jail}, nil
}

func (n *moveNode) Depart(_ context.Context, _ id.Jail, to string) (got jail.Jail, err error) {
	err = n.do("depart", func() error {
		n.jail.Departure = &jail.Departure{To: to, State: n.jail.State}
		got = *n.jail
		return nil
	})
	return got, err
}

func (n *moveNode) EndMove(_ context.Context, _ id.Jail, moved bool) error {
	return n.do("end", func() error {
		if moved {
			n.jail = nil
			return os.RemoveAll(n.eventsOf(moving))
		}
		was := n.jail.Departure.State
		n.jail.Departure = nil
		n.run(was)
		return nil
	})
}

// moveImages are the snapshots of a node.
type moveImages struct{ *moveNode }

func (n moveImages) Take(_ context.Context, _ id.Jail, o snapshot.TakeOptions) (s snapshot.Snapshot, err error) {
	return s, n.do("snapshot", func() error {
		s = snapshot.Snapshot{ID: id.NewSnapshot(), Reason: snapshot.Moved, Jail: jail.Jail{ID: moving}}
		n.snapshots[s.ID] = s
		if o.Pause {
			n.jail.State = jail.Paused
		}
		return nil
	})
}

func (n moveImages) List(context.Context, snapshot.ListOptions) (all []snapshot.Snapshot, _ error) {
	for _, s := range n.snapshots {
		all = append(all, s)
	}
	return all, nil
}

func (n moveImages) Delete(_ context.Context, s id.Snapshot) error {
	return n.do("delete", func() error { delete(n.snapshots, s); return nil })
}

func (n moveImages) Rewind(context.Context, id.Jail, id.Snapshot, jail.RewindOptions) (got jail.Jail, err error) {
	err = n.do("rewind", func() error {
		n.run(jail.Running)
		got = *n.jail
		return nil
	})
	return got, err
}

func (n moveImages) Import(_ context.Context, r io.Reader, _ snapshot.ImportOptions) (s snapshot.Snapshot, err error) {
	return s, n.do("import", func() error {
		data, err := io.ReadAll(r)
		s = snapshot.Snapshot{ID: id.Snapshot(data), Reason: snapshot.Moved, Jail: jail.Jail{ID: moving}}
		n.snapshots[s.ID] = s
		return err
	})
}

func (n moveImages) Arrive(ctx context.Context, _ id.Snapshot, a jail.Arrival, commit func(context.Context) error) (jail.Jail, error) {
	if _, err := n.point("restore"); err != nil {
		return jail.Jail{}, err
	}
	if err := commit(ctx); err != nil {
		return jail.Jail{}, err
	}
	err := n.do("record", func() error {
		n.jail = &jail.Jail{ID: moving}
		n.run(a.State)
		return errors.Join(os.MkdirAll(filepath.Join(n.dir, string(moving)), 0o700), os.Rename(a.Events, n.eventsOf(moving)))
	})
	if err != nil && !n.dead { // as jail.Manager does
		n.jail = nil
		os.RemoveAll(n.eventsOf(moving))
	}
	return jail.Jail{}, err
}

// restart ends crashes, and lets the nodes settle what was interrupted.
func (w *moveWorld) restart() {
	for range 4 {
		for _, n := range w.nodes {
			n.dead = false
			n.mu.Lock()
			n.active = map[id.Jail]bool{}
			n.mu.Unlock()
		}
		for _, name := range []string{"b", "a"} {
			w.nodes[name].settleAll(w.Context())
		}
	}
}

// TestMoveSurvivesFailures lets each call of a move fail, in each way.
func TestMoveSurvivesFailures(t *testing.T) {
	for _, state := range []jail.State{jail.Running, jail.Paused, jail.Stopped} {
		for _, how := range []string{"before", "after", "crash before", "crash after"} {
			moved := 0
			for at := 1; ; at++ {
				w := newMoveWorld(t, state)
				w.failAt, w.how = at, how
				_, err := w.nodes["a"].Move(t.Context(), moving, "b")
				// Until the move is settled, requests are passed to the node that the index names.
				for name, n := range w.nodes {
					want := ""
					if n.jail != nil && n.jail.Departure != nil && w.owner != name || name == "a" && n.jail == nil {
						want = w.owner
					}
					if got := n.Moved(t.Context(), moving); got != want {
						t.Errorf("%s jail, %s of call %d of %v: node %s passes requests to %q, want %q", state, how, at, w.done, name, got, want)
					}
				}
				w.restart()
				what := fmt.Sprintf("%s jail, %s of call %d of %v", state, how, at, w.done)
				a, b := w.nodes["a"].jail, w.nodes["b"].jail
				switch {
				case (a == nil) == (b == nil):
					t.Fatalf("%s: node a has %+v, node b %+v, want one", what, a, b)
				case a != nil && (w.owner != "a" || a.State != state || a.Departure != nil):
					t.Errorf("%s: the index names %s, and node a has %+v", what, w.owner, a)
				case b != nil && (w.owner != "b" || b.State != state):
					t.Errorf("%s: the index names %s, and node b has %+v", what, w.owner, b)
				case err == nil && b == nil:
					t.Errorf("%s: Move has succeeded, and node b has no jail", what)
				}
				for name, n := range w.nodes {
					_, err := os.Stat(n.eventsOf(moving))
					if has := n.jail != nil; has != (err == nil) && !strings.HasPrefix(how, "crash") { // the next start of a daemon removes them
						t.Errorf("%s: node %s has the jail: %t; its events: %v", what, name, has, err)
					}
				}
				if len(w.nodes["a"].snapshots)+len(w.nodes["b"].snapshots) > 0 {
					t.Errorf("%s: snapshots are left: %v and %v", what, w.nodes["a"].snapshots, w.nodes["b"].snapshots)
				}
				if b != nil {
					moved++
				}
				if w.calls < at { // nothing failed
					if err != nil || b == nil || len(w.nodes["a"].snapshots)+len(w.nodes["b"].snapshots) > 0 || at < 12 {
						t.Errorf("Move without a failure = %v after %d calls, with snapshots %v and %v", err, w.calls, w.nodes["a"].snapshots, w.nodes["b"].snapshots)
					}
					break
				}
			}
			if moved < 3 {
				t.Errorf("%s jail, %s: %d moves have succeeded, want some", state, how, moved)
			}
		}
	}
}

func TestMoveToUnusableNodes(t *testing.T) {
	w := newMoveWorld(t, jail.Running)
	a := w.nodes["a"]
	if _, err := a.Move(t.Context(), moving, "a"); !errors.Is(err, fault.Conflict) {
		t.Errorf("Move to the same node = %v, want conflict", err)
	}
	a.busy = func(context.Context, jail.Jail) error {
		return fault.Cannot("busy", "a template is being built in the jail", "")
	}
	if _, err := a.Move(t.Context(), moving, ""); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Move of a busy jail = %v, want unsupported", err)
	}
	a.busy = func(context.Context, jail.Jail) error { return nil }
	handed := ""
	a.handOver = func(_ context.Context, session, node string) error {
		handed = session + " to " + node
		return nil
	}
	a.jail.Spec.Labels = map[string]string{gateway.LabelSession: "s-1"}
	if n, err := a.Move(t.Context(), moving, ""); err != nil || n.ID != "b" || handed != "s-1 to b" || a.jail == nil {
		t.Errorf("Move of a jail of an agent = %+v, %v, handed over: %q; want its session handed to b", n, err, handed)
	}
	a.jail.Spec.Labels = nil
	end, err := a.begin(moving)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Move(t.Context(), moving, ""); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Move at the same time = %v, want conflict", err)
	}
	end()
	if n, err := a.Move(t.Context(), moving, ""); err != nil || n.ID != "b" || a.Moved(t.Context(), moving) != "b" || a.Moved(t.Context(), "j-bbbbbbbbbbbb") != "" {
		t.Errorf("Move to any node = %+v, %v, want b", n, err)
	}
	if _, err := a.Move(t.Context(), moving, ""); !errors.Is(err, fault.NotFound) {
		t.Errorf("Move of a jail that has moved = %v, want not found", err)
	}
}

// A node that sends anything but the files of an event log gets no file outside of its directory.
func TestHostileEventLogs(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"parent":    {Name: "../x", Typeflag: tar.TypeReg},
		"absolute":  {Name: "/tmp/x", Typeflag: tar.TypeReg},
		"nested":    {Name: "a/b", Typeflag: tar.TypeReg},
		"hidden":    {Name: ".x", Typeflag: tar.TypeReg},
		"link":      {Name: "x", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		"directory": {Name: "x", Typeflag: tar.TypeDir},
	} {
		w := newMoveWorld(t, jail.Running)
		b := w.nodes["b"]
		var data bytes.Buffer
		out := tar.NewWriter(&data)
		if err := errors.Join(out.WriteHeader(&h), out.Close()); err != nil {
			t.Fatal(err)
		}
		b.mover.fleet = hostileNode{b, data.Bytes()}
		_, err := b.receive(t.Context(), arrival{From: "a", Jail: moving, Snapshot: "s-aaaaaaaaaaaa", State: jail.Running})
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: receive = %v, want invalid", name, err)
		}
		if left, _ := filepath.Glob(filepath.Join(b.dir, "*")); len(left) > 0 || b.jail != nil {
			t.Errorf("%s: files %v are left", name, left)
		}
	}
	w := newMoveWorld(t, jail.Running)
	for _, a := range []arrival{{From: "a", Jail: "../x", Snapshot: "s-aaaaaaaaaaaa"}, {From: "a", Jail: moving, Snapshot: "../../x"}} {
		if _, err := w.nodes["b"].receive(t.Context(), a); !errors.Is(err, fault.Invalid) {
			t.Errorf("receive of %+v = %v, want invalid", a, err)
		}
	}
	if err := w.nodes["a"].sendEvents(t.Context(), moving, io.Discard); !errors.Is(err, fault.Conflict) {
		t.Errorf("events of a jail that is not moving: %v, want conflict", err)
	}
}

type hostileNode struct {
	*moveNode
	events []byte
}

func (n hostileNode) Open(context.Context, string, string, any) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(n.events)), nil
}

package daemon

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/agents/gateway"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/policy"
	"glasshouse/policy/chain"
)

const (
	receivePath = "/fleet/receive"
	eventsPath  = "/fleet/events" // the event log of a jail
	hasJailPath = "/fleet/has-jail"
)

// A mover moves jails between this node and others.
//
// The node that has a jail pauses it with a snapshot, offers it in the index of the fleet, and asks
// the other node to receive it. That one copies the event log and the snapshot, restores the
// processes without running them, and takes the jail in the index: this is the moment at which the
// jail changes its node. Only the node that the index names runs the jail. After any failure, the
// first node withdraws its offer. If that succeeds, the jail continues there. Otherwise the other
// node has taken it: it is removed here once that node confirms that it has it.
type mover struct {
	self      string
	fleet     moveFleet
	index     fleet.Index
	jails     moveJails
	snapshots moveSnapshots
	busy      func(ctx context.Context, j jail.Jail) error // why a jail cannot move now; nil: it can
	handOver  func(ctx context.Context, session, node string) error
	publish   func(ctx context.Context)
	flush     func(ctx context.Context, j id.Jail) error // writes the event log of a jail
	refresh   func(ctx context.Context) error            // reads the grants of all jails
	record    func(j id.Jail, what, node string)         // in the audit log
	dir       string                                     // of the jails
	log       *slog.Logger
	retry     time.Duration // between attempts to take a jail

	mu sync.Mutex
	// +checklocks:mu
	active map[id.Jail]bool // being moved from or to this node
	// +checklocks:mu
	gone map[id.Jail]departed // jails that have moved recently
}

type departed struct {
	node string
	at   time.Time
}

// moveFleet reaches other nodes. *route.Router implements it.
type moveFleet interface {
	Node(ctx context.Context, name string) (fleet.Node, error)
	Nodes(ctx context.Context) ([]fleet.Node, error)
	Call(ctx context.Context, node, path string, in, out any) error
	Open(ctx context.Context, node, path string, in any) (io.ReadCloser, error)
}

// moveJails manages the jails of this node. *jail.Manager implements it.
type moveJails interface {
	Get(ctx context.Context, j id.Jail) (jail.Jail, error)
	List(ctx context.Context, o jail.ListOptions) ([]jail.Jail, error)
	Depart(ctx context.Context, j id.Jail, to string) (jail.Jail, error)
	EndMove(ctx context.Context, j id.Jail, moved bool) error
}

// moveSnapshots manages the snapshots of this node. *snapshot.Manager implements it.
type moveSnapshots interface {
	Take(ctx context.Context, j id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error)
	List(ctx context.Context, o snapshot.ListOptions) ([]snapshot.Snapshot, error)
	Delete(ctx context.Context, s id.Snapshot) error
	Rewind(ctx context.Context, j id.Jail, s id.Snapshot, o jail.RewindOptions) (jail.Jail, error)
	Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Snapshot, error)
	Arrive(ctx context.Context, s id.Snapshot, a jail.Arrival, commit func(ctx context.Context) error) (jail.Jail, error)
}

// An arrival asks a node to receive a jail.
type arrival struct {
	From     string      `json:"from"` // ID of the node
	Jail     id.Jail     `json:"jail"`
	Snapshot id.Snapshot `json:"snapshot"` // also the ticket of the offer
	State    jail.State  `json:"state"`
	Used     jail.Used   `json:"used"`
}

// newMover returns the mover of this node.
func (d *Daemon) newMover(node string, log *slog.Logger) *mover {
	return &mover{
		self: node, fleet: d.router, index: d.work.Owners(), jails: d.jails, snapshots: d.snapshots, busy: d.movable, publish: d.published,
		handOver: func(ctx context.Context, session, node string) error { return d.gateway.HandOver(ctx, session, node) },
		flush: func(ctx context.Context, j id.Jail) error {
			events, err := d.observers.Log(ctx, j)
			if err != nil {
				return err
			}
			return events.Flush(ctx)
		},
		refresh: func(ctx context.Context) error { return d.secrets.Refresh(ctx) },
		record: func(j id.Jail, what, node string) {
			d.kernel.Note(chain.OperatorActed, policy.Subject{Jail: j}, 0, map[string]string{"what": what, "node": node})
		},
		dir: filepath.Join(d.Config.Data, "jails"), log: log, retry: time.Second, active: map[id.Jail]bool{}, gone: map[id.Jail]departed{},
	}
}

func jailKey(j id.Jail) fleet.Key { return fleet.Key{Kind: fleet.Jail, ID: string(j)} }

// begin returns fault.Conflict if the jail is being moved already.
func (m *mover) begin(j id.Jail) (end func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.active[j] {
		return nil, fault.Newf(fault.Conflict, "mover.begin", string(j), "the jail is being moved")
	}
	m.active[j] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.active, j)
	}, nil
}

// Move moves a jail to a node. "" selects the one with the fewest jails. It returns the node.
func (m *mover) Move(ctx context.Context, jid id.Jail, to string) (fleet.Node, error) {
	j, err := m.jails.Get(ctx, jid)
	if err != nil {
		return fleet.Node{}, err
	}
	n, err := m.target(ctx, to, j.State == jail.Running || j.State == jail.Paused)
	if err != nil {
		return n, err
	}
	if session := j.Spec.Labels[gateway.LabelSession]; session != "" { // its run continues in another jail
		return n, m.handOver(ctx, session, n.ID)
	}
	if err := cmp.Or(jail.CanMove(j), m.busy(ctx, j)); err != nil {
		return n, err
	}
	end, err := m.begin(jid)
	if err != nil {
		return n, err
	}
	defer end()
	ctx = context.WithoutCancel(ctx)
	m.publish(ctx)
	j, err = m.jails.Depart(ctx, jid, n.ID)
	if err != nil {
		return n, err
	}
	taken, err := m.snapshots.Take(ctx, jid, snapshot.TakeOptions{Reason: snapshot.Moved, Pause: j.State == jail.Running, Stop: j.State == jail.Created})
	if err == nil {
		err = m.send(ctx, n, arrival{m.self, jid, taken.ID, j.Departure.State, j.Used})
	}
	return n, m.settle(ctx, j, err)
}

// target returns the node for a jail that leaves this one, with or without processes.
func (m *mover) target(ctx context.Context, to string, processes bool) (fleet.Node, error) {
	const op = "mover.target"
	if to == "" {
		nodes, err := m.fleet.Nodes(ctx)
		if err != nil {
			return fleet.Node{}, err
		}
		return bestFor(nodes, m.self, processes)
	}
	n, err := m.fleet.Node(ctx, to)
	switch {
	case err != nil:
		return n, err
	case n.ID == m.self:
		return n, fault.Newf(fault.Conflict, op, to, "the jail is on this node")
	case !n.Accepts():
		return n, &fault.Error{Op: op, On: to, Kind: fault.Exhausted, Err: errors.New("the node does not accept jails"), Remedy: "glasshouse node ls shows its state"}
	}
	return n, suits(n, processes)
}

// bestFor returns the node for a jail that leaves the node self. If none suits, the error says why.
func bestFor(nodes []fleet.Node, self string, processes bool) (fleet.Node, error) {
	var others []fleet.Node
	var why error
	for _, n := range nodes {
		if n.ID == self || !n.Accepts() {
			continue
		}
		if err := suits(n, processes); err != nil {
			why = err
			continue
		}
		others = append(others, n)
	}
	best, err := fleet.Best(others, func(n *fleet.Node) int { return n.Jails })
	if err != nil {
		err = cmp.Or(why, err)
	}
	return best, err
}

// suits returns why a jail of this host cannot continue on a node, or nil. If the node has not
// described its host, it decides itself when it receives the jail.
func suits(n fleet.Node, processes bool) error {
	if n.Facts.Arch == "" {
		return nil
	}
	if err := snapshot.CheckHost(snapshot.ThisHost(), snapshot.Host{Arch: n.Facts.Arch, CPU: n.Facts.CPU, Kernel: n.Facts.Kernel}, processes); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	return nil
}

// send lets another node receive a jail.
func (m *mover) send(ctx context.Context, n fleet.Node, a arrival) error {
	if err := m.flush(ctx, a.Jail); err != nil {
		return err
	}
	if err := m.index.Offer(ctx, jailKey(a.Jail), m.self, string(a.Snapshot)); err != nil {
		return err
	}
	body, err := m.fleet.Open(ctx, n.ID, receivePath, a)
	if err != nil {
		return err
	}
	defer body.Close()
	var done bool
	if err := json.NewDecoder(body).Decode(&done); err != nil {
		return fault.New(fault.Unavailable, "mover.send", n.ID, err)
	}
	return nil
}

// settle ends the departure of a jail: the other node has it, or it continues here. failure is why
// it was not sent, or nil.
func (m *mover) settle(ctx context.Context, j jail.Jail, failure error) error {
	k := jailKey(j.ID)
	err := m.index.Offer(ctx, k, m.self, "")
	if errors.Is(err, fault.Conflict) { // another node has it
		var has bool
		err := m.fleet.Call(ctx, j.Departure.To, hasJailPath, moveQuestion{m.self, j.ID}, &has)
		switch {
		case err != nil:
			return fmt.Errorf("ask the other node whether it has the jail: %w", errors.Join(err, failure))
		case has:
			return m.leave(ctx, j)
		}
		err = m.index.Offer(ctx, k, m.self, "") // the other node has given it back
		if err != nil {
			return errors.Join(err, failure)
		}
	} else if err != nil && !errors.Is(err, fault.NotFound) {
		return errors.Join(err, failure)
	}
	if failure == nil {
		failure = fault.Newf(fault.Unavailable, "mover.settle", string(j.ID), "the jail was not moved")
	}
	return errors.Join(failure, m.stay(ctx, j))
}

// leave removes a jail that has moved.
func (m *mover) leave(ctx context.Context, j jail.Jail) error {
	taken, err := m.taken(ctx, j.ID)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.gone[j.ID] = departed{j.Departure.To, time.Now()} // before the jail is removed: requests can follow at once
	m.mu.Unlock()
	if err := m.jails.EndMove(ctx, j.ID, true); err != nil {
		return err
	}
	m.record(j.ID, "jail moved to another node", j.Departure.To)
	m.publish(ctx)
	for _, s := range taken {
		err = errors.Join(err, m.snapshots.Delete(ctx, s.ID))
	}
	return err
}

// stay continues a jail that was not moved.
func (m *mover) stay(ctx context.Context, j jail.Jail) error {
	taken, err := m.taken(ctx, j.ID)
	if err != nil {
		return err
	}
	now, err := m.jails.Get(ctx, j.ID)
	if err != nil {
		return err
	}
	ran := j.Departure.State == jail.Running || j.Departure.State == jail.Paused
	// With enforcement, processes that were dumped cannot be enforced again by another daemon.
	if ran && len(taken) > 0 && (now.State == jail.Stopped || now.Spec.Enforce) {
		if _, err := m.snapshots.Rewind(ctx, j.ID, taken[len(taken)-1].ID, jail.RewindOptions{}); err != nil {
			return fmt.Errorf("continue the jail on this node: %w", err)
		}
	}
	err = m.jails.EndMove(ctx, j.ID, false)
	for _, s := range taken {
		err = errors.Join(err, m.snapshots.Delete(ctx, s.ID))
	}
	return err
}

// taken returns the snapshots with which a jail is moving. "" are all jails.
func (m *mover) taken(ctx context.Context, j id.Jail) ([]snapshot.Snapshot, error) {
	list, err := m.snapshots.List(ctx, snapshot.ListOptions{Jail: j})
	return slices.DeleteFunc(list, func(s snapshot.Snapshot) bool { return s.Reason != snapshot.Moved }), err
}

// clean removes what a daemon that was killed has left of jails that have not arrived.
func (m *mover) clean() error {
	leftovers, err := filepath.Glob(filepath.Join(m.dir, arrivingPrefix+"*"))
	for _, dir := range leftovers {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// Run settles interrupted moves until ctx ends.
func (m *mover) Run(ctx context.Context) {
	const interval = 2 * time.Second
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		m.settleAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

var errInterrupted = fault.Newf(fault.Unavailable, "mover.Run", "", "the daemon was restarted")

func (m *mover) settleAll(ctx context.Context) {
	if err := m.trim(ctx); err != nil && ctx.Err() == nil {
		m.log.Warn("could not delete a snapshot with which a jail has moved", "err", err)
	}
	list, err := m.jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return
	}
	for _, j := range list {
		if j.Departure == nil {
			continue
		}
		end, err := m.begin(j.ID)
		if err != nil {
			continue // Move is at work
		}
		if now, err := m.jails.Get(ctx, j.ID); err == nil && now.Departure != nil {
			if err := m.settle(ctx, now, errInterrupted); err != nil && ctx.Err() == nil {
				m.log.Warn("a move of a jail was interrupted", "jail", j.ID, "node", j.Departure.To, "err", err)
			}
		}
		end()
	}
}

// trim deletes the snapshots of moves that have ended, and whose daemon was killed before it did.
func (m *mover) trim(ctx context.Context) error {
	taken, err := m.taken(ctx, "")
	if err != nil {
		return err
	}
	for _, s := range taken {
		end, err := m.begin(s.Jail.ID)
		if err != nil {
			continue // it is moving
		}
		j, err := m.jails.Get(ctx, s.Jail.ID)
		if errors.Is(err, fault.NotFound) || err == nil && j.Departure == nil {
			err = m.snapshots.Delete(ctx, s.ID)
		}
		end()
		if err != nil {
			return err
		}
	}
	return nil
}

// Moved returns the node to which a jail has moved from this one: within the last minute, or while
// this node still has it, because the other one has not confirmed the move. Otherwise it returns "".
func (m *mover) Moved(ctx context.Context, j id.Jail) string {
	here, err := m.jails.Get(ctx, j)
	if err == nil && here.Departure == nil {
		return ""
	}
	if err == nil {
		node, err := m.index.Owner(ctx, jailKey(j))
		if err != nil || node == m.self { // without the index, this node refuses the request
			return ""
		}
		return node
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, d := range m.gone {
		if time.Since(d.at) > time.Minute {
			delete(m.gone, k)
		}
	}
	return m.gone[j].node
}

// receive continues a jail of another node on this one.
func (m *mover) receive(ctx context.Context, a arrival) (bool, error) {
	const op = "mover.receive"
	if !id.Valid('j', string(a.Jail)) || !id.Valid('s', string(a.Snapshot)) {
		return false, fault.Newf(fault.Invalid, op, "", "not a jail and its snapshot")
	}
	self, err := m.fleet.Node(ctx, m.self)
	switch {
	case err != nil:
		return false, err
	case !self.Accepts():
		return false, fault.Newf(fault.Exhausted, op, cmp.Or(self.Name, m.self), "the node does not accept jails")
	}
	if _, err := m.jails.Get(ctx, a.Jail); !errors.Is(err, fault.NotFound) {
		return false, cmp.Or(err, fault.Newf(fault.Conflict, op, string(a.Jail), "the node has the jail"))
	}
	end, err := m.begin(a.Jail)
	if err != nil {
		return false, err
	}
	defer end()
	ctx = context.WithoutCancel(ctx)
	began := time.Now()
	if err := m.refresh(ctx); err != nil { // a grant of the jail can be new
		return false, fmt.Errorf("read the grants of the jail: %w", err)
	}
	events := filepath.Join(m.dir, arrivingPrefix+string(a.Jail))
	defer os.RemoveAll(events)
	if err := m.copyEvents(ctx, a, events); err != nil {
		return false, fmt.Errorf("copy the event log: %w", err)
	}
	if err := m.copySnapshot(ctx, a); err != nil {
		return false, fmt.Errorf("copy the state of the jail: %w", err)
	}
	_, err = m.snapshots.Arrive(ctx, a.Snapshot, jail.Arrival{State: a.State, Used: a.Used, Events: events}, func(ctx context.Context) error { return m.take(ctx, a) })
	if err != nil { // if it was taken, it is given back when the other node asks for it
		return false, errors.Join(err, m.snapshots.Delete(ctx, a.Snapshot))
	}
	m.record(a.Jail, "jail moved from another node", a.From)
	m.publish(ctx)
	m.log.Info("received a jail of another node", "jail", a.Jail, "node", a.From, "duration", time.Since(began))
	if err := m.snapshots.Delete(ctx, a.Snapshot); err != nil {
		m.log.Warn("could not delete the snapshot with which a jail has moved", "jail", a.Jail, "snapshot", a.Snapshot, "err", err)
	}
	return true, nil
}

// take takes a jail in the index. The database may not answer at first.
func (m *mover) take(ctx context.Context, a arrival) error {
	k := jailKey(a.Jail)
	for try := 0; ; try++ {
		err := m.index.Take(ctx, k, a.From, m.self, string(a.Snapshot))
		if err == nil || errors.Is(err, fault.Conflict) || try == 3 {
			return err
		}
		select {
		case <-time.After(m.retry):
		case <-ctx.Done():
			return err
		}
	}
}

// giveBack returns a jail that this node has taken, but does not have, to another one.
func (m *mover) giveBack(ctx context.Context, j id.Jail, to string) error {
	const ticket = "back"
	k := jailKey(j)
	err := m.index.Offer(ctx, k, m.self, ticket)
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) { // it was not taken
		return nil
	}
	if err != nil {
		return err
	}
	return m.index.Take(ctx, k, m.self, to, ticket)
}

// A moveQuestion asks whether a node has a jail of another one.
type moveQuestion struct {
	From string  `json:"from"` // ID of the node
	Jail id.Jail `json:"jail"`
}

// has reports whether this node has a jail. If it has taken the jail and does not have it, it gives
// it back.
func (m *mover) has(ctx context.Context, q moveQuestion) (bool, error) {
	end, err := m.begin(q.Jail)
	if err != nil {
		return false, fault.New(fault.Unavailable, "mover.has", string(q.Jail), err)
	}
	defer end()
	_, err = m.jails.Get(ctx, q.Jail)
	if errors.Is(err, fault.NotFound) {
		return false, m.giveBack(ctx, q.Jail, q.From)
	}
	return err == nil, err
}

// copySnapshot copies the snapshot with which a jail moves.
func (m *mover) copySnapshot(ctx context.Context, a arrival) error {
	body, err := m.fleet.Open(ctx, a.From, snapshotPath, a.Snapshot)
	if err != nil {
		return err
	}
	defer body.Close()
	s, err := m.snapshots.Import(ctx, body, snapshot.ImportOptions{Move: true})
	if err == nil && (s.ID != a.Snapshot || s.Jail.ID != a.Jail || s.Reason != snapshot.Moved) {
		err = errors.Join(fault.Newf(fault.Invalid, "mover.copySnapshot", string(s.ID), "it is another snapshot"), m.snapshots.Delete(ctx, s.ID))
	}
	return err
}

func (m *mover) eventsOf(j id.Jail) string { return filepath.Join(m.dir, string(j), "events") }

// arrivingPrefix begins the names of directories for the event logs of jails that arrive.
const arrivingPrefix = "arriving-"

// copyEvents copies the event log of a jail to a directory.
func (m *mover) copyEvents(ctx context.Context, a arrival, dir string) error {
	body, err := m.fleet.Open(ctx, a.From, eventsPath, a.Jail)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for in := tar.NewReader(body); ; {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault.New(fault.Unavailable, "mover.copyEvents", string(a.Jail), err)
		}
		if h.Typeflag != tar.TypeReg || h.Name != filepath.Base(h.Name) || strings.HasPrefix(h.Name, ".") {
			return fault.Newf(fault.Invalid, "mover.copyEvents", string(a.Jail), "%.100q is not a file of an event log", h.Name)
		}
		if err := writeFile(filepath.Join(dir, h.Name), in); err != nil {
			return err
		}
	}
}

func writeFile(name string, from io.Reader) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// sendEvents writes the event log of a jail that is leaving this node.
func (m *mover) sendEvents(ctx context.Context, jid id.Jail, w io.Writer) error {
	j, err := m.jails.Get(ctx, jid)
	if err != nil {
		return err
	}
	if j.Departure == nil {
		return fault.Newf(fault.Conflict, "mover.sendEvents", string(jid), "the jail is not moving")
	}
	entries, err := os.ReadDir(m.eventsOf(jid))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out := tar.NewWriter(w)
	for _, e := range entries {
		if e.Type().IsRegular() {
			if err := addFile(out, filepath.Join(m.eventsOf(jid), e.Name())); err != nil {
				return err
			}
		}
	}
	return out.Close()
}

func addFile(out *tar.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(name), Size: fi.Size(), Mode: 0o600}); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, fi.Size())
	return err
}

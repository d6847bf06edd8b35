package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/agents/run"
	"glasshouse/api"
	"glasshouse/api/wire"
	"glasshouse/e2b"
	"glasshouse/e2b/template"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/fleet/pki"
	"glasshouse/fleet/route"
	"glasshouse/host/netns"
	"glasshouse/id"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/chain/witness"
)

// Fleet configures how the daemons that share gateway.db reach each other.
type Fleet struct {
	Listen  string `yaml:"listen"`  // TCP address for the other daemons; "" means that they share runs only
	Address string `yaml:"address"` // host:port, or an IP address with the port of listen, where the other daemons reach it; default listen
	Name    string `yaml:"name"`    // default the name of the host
	Jails   string `yaml:"jails"`   // local, none: jails are created on the other daemons; default local
	Keys    string `yaml:"keys"`    // directory with the keys of the fleet: this daemon joins without a token
}

func (c Fleet) front() bool { return c.Jails == "none" }

// address returns where the other daemons reach this one, or "".
func (c Fleet) address() string {
	if c.Listen == "" {
		return ""
	}
	if c.Address == "" {
		return c.Listen
	}
	if _, err := netip.ParseAddr(c.Address); err != nil {
		return c.Address
	}
	_, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return c.Address
	}
	return net.JoinHostPort(c.Address, port)
}

func (c Fleet) validate(g Gateway) error {
	const op = "config"
	switch c.Jails {
	case "", "local":
	case "none":
		if c.Listen == "" {
			return fault.Fieldf(op, "fleet.jails", "none requires fleet.listen, so that other daemons are reached")
		}
	default:
		return fault.Fieldf(op, "fleet.jails", "%q is neither local nor none", c.Jails)
	}
	if c.Listen == "" {
		for field, value := range map[string]string{"fleet.address": c.Address, "fleet.keys": c.Keys} {
			if value != "" {
				return fault.Fieldf(op, field, "requires fleet.listen")
			}
		}
		return nil
	}
	if g.DB == "" {
		return &fault.Error{Op: op, Kind: fault.Invalid, Field: "fleet.listen", Err: errors.New("the daemons of a fleet share a database"), Remedy: "set gateway.db as well"}
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fault.Fieldf(op, "fleet.listen", "%q is not host:port", c.Listen)
	}
	host, port, err := net.SplitHostPort(c.address())
	if err != nil || port == "0" {
		return fault.Fieldf(op, "fleet.address", "%q is not host:port", c.address())
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return &fault.Error{Op: op, Kind: fault.Invalid, Field: "fleet.address", Err: fmt.Errorf("other daemons cannot reach %s", c.address()),
			Remedy: "set fleet.address to an address of this host"}
	}
	return nil
}

// FleetDir returns the directory of the certificates of a fleet, in a data directory.
func FleetDir(data string) string { return filepath.Join(data, "fleet") }

// openRouter reads the certificate of this node.
func (d *Daemon) openRouter(node string, log *slog.Logger) error {
	if d.Config.Fleet.Listen == "" {
		return nil
	}
	identity, err := pki.Open(FleetDir(d.Config.Data))
	if err != nil {
		return err
	}
	if _, err := pki.Verify(identity.Certificate(), identity.Authority(), time.Now(), pki.Grace); err != nil {
		return err
	}
	d.identity = identity
	d.router = route.New(route.Config{
		Self: node, Identity: identity, Store: d.work.Nodes(), Index: d.work.Owners(), Log: log,
		Secret: func() ([]byte, error) { return os.ReadFile(d.Config.sharedKeyFile()) },
	})
	d.copies = &copies{fleet: d.router, snapshots: d.snapshots, jails: d.jails, log: log, copying: map[id.Snapshot]chan struct{}{}, used: map[id.Snapshot]time.Time{}}
	d.mover = d.newMover(node, log)
	d.onClose(d.router.Close)
	return nil
}

// joinFleet gives this daemon a lease among those that share the database of runs. It returns nil
// if no other daemon can use that database.
func (d *Daemon) joinFleet(ctx context.Context, id string) (run.Node, error) {
	table := netns.NewFence(id)
	if d.Config.Gateway.DB == "" {
		if os.Geteuid() != 0 {
			return nil, nil
		}
		// The rules of a previous daemon with another configuration. There are none on a host whose
		// kernel has no nftables.
		if err := table.Renew(nil, 0); err != nil {
			d.log.Debug("could not look for firewall rules of an earlier daemon", "err", err)
		}
		return nil, nil
	}
	host, err := d.hostIdentity()
	if err != nil {
		return nil, err
	}
	log := d.log.With("part", "fleet")
	c := d.Config.Fleet
	if c.Name == "" {
		c.Name, err = os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("read the name of the host: %w", err)
		}
	}
	if err := d.openRouter(id, log); err != nil {
		return nil, err
	}
	m, err := fleet.Join(ctx, fleet.Config{
		Store: d.work.Nodes(), ID: id, Name: c.Name, Version: d.Version.Version, Addr: c.address(), Front: c.front(), Host: host, Facts: d.facts, Log: log,
		Renewed: func() {
			if err := d.fences.renew(); err != nil {
				log.Error("could not renew the firewall rules of runs with full network access", "err", err)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	d.onClose(m.Close)
	d.nodes = func(ctx context.Context) ([]wire.Node, error) {
		list, err := d.work.Nodes().Nodes(ctx)
		return wireNodes(list, id), err
	}
	if os.Geteuid() != 0 {
		return m, nil // jails have no links
	}
	if err := d.fences.open(table, m.Valid); err != nil {
		log.Warn("runs in jails with full network access cannot be started: the firewall rules cannot be changed", "err", err)
	}
	d.onClose(d.fences.renew) // removes the rules of jails that have ended
	return m, nil
}

// wireNodes converts nodes for the API. self is the ID of this daemon.
func wireNodes(list []fleet.Node, self string) []wire.Node {
	var all []wire.Node
	for _, n := range list {
		all = append(all, wire.Node{
			ID: n.ID, Name: n.Name, Version: n.Version, Address: n.Addr, Front: n.Front, Draining: n.Draining, Jails: n.Jails, State: string(n.State), Self: n.ID == self,
			Arch: n.Facts.Arch, CPU: n.Facts.CPU, Kernel: n.Facts.Kernel, CPUs: n.Facts.CPUs,
			Memory: n.Facts.Memory, FreeMemory: n.Facts.FreeMemory, Disk: n.Facts.Disk, FreeDisk: n.Facts.FreeDisk, UnshippedBytes: n.Facts.Unshipped,
			LeaseMS: n.Until.Sub(n.Now).Milliseconds(), Epoch: n.Epoch, Sessions: n.Sessions, Runs: n.Runs,
		})
	}
	return all
}

// hostIdentity identifies the boot of this host, and the data directory, which is locked, among
// all its copies.
func (d *Daemon) hostIdentity() (string, error) {
	boot, err := procstat.BootID()
	if err != nil {
		return "", fmt.Errorf("read the boot ID of the host: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.lock.Fd()), &st); err != nil {
		return "", fmt.Errorf("identify the data directory: %w", err)
	}
	return fmt.Sprintf("%s.%x.%x", boot, st.Dev, st.Ino), nil
}

// reachFleet sets the options by which the API reaches the other daemons of the fleet.
func (d *Daemon) reachFleet(o *api.Options) {
	if d.router == nil {
		return
	}
	o.Fleet, o.Front, o.Facts = d.router, d.Config.Fleet.front(), d.facts
	o.Created = d.published
	o.Witnessed = d.store.Witness().Seen
	o.Fetch = d.copies.Fetch
	o.Move, o.Moved = d.mover.Move, d.mover.Moved
}

// published updates the index of the fleet after an object of this node has changed.
func (d *Daemon) published(ctx context.Context) {
	if d.router == nil {
		return
	}
	if err := d.publisher.Sync(context.WithoutCancel(ctx)); err != nil {
		d.log.Warn("other daemons do not see a new object yet", "err", err)
	}
}

// objectsOf returns a function that lists the objects of this node for the index of the fleet.
func (d *Daemon) objectsOf(server *api.Server) func(context.Context) ([]fleet.Object, error) {
	return func(ctx context.Context) ([]fleet.Object, error) {
		all, err := server.Owned(ctx)
		if err != nil {
			return nil, err
		}
		more, err := d.owned(ctx)
		return append(all, more...), err
	}
}

// e2bFleet returns how the server for clients of E2B reaches the other nodes, or nil.
func (d *Daemon) e2bFleet() e2b.Fleet {
	if d.router == nil {
		return nil
	}
	return d.router
}

// nodeHandler returns the handler of requests that other nodes pass on.
func (d *Daemon) nodeHandler(requests http.Handler) http.Handler {
	return d.router.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fleet.E2BHeader) != "" {
			d.forNodes.ServeHTTP(w, r)
			return
		}
		requests.ServeHTTP(w, r)
	}), map[string]http.Handler{
		headPath: route.Answer(func(ctx context.Context, q witness.Question) (witness.Answer, error) {
			return witness.Reply(ctx, d.chain, q)
		}),
		receivePath: route.Answer(d.mover.receive),
		hasJailPath: route.Answer(d.mover.has),
		filesPath:   route.Stream(d.registry.Send),
		eventsPath:  route.Stream(d.mover.sendEvents),
		hasPath: route.Answer(func(ctx context.Context, s id.Snapshot) (bool, error) {
			one, err := d.snapshots.Get(ctx, s)
			return err == nil && one.Reason != snapshot.Copied, nil
		}),
		snapshotPath: route.Stream(func(ctx context.Context, s id.Snapshot, w io.Writer) error {
			return d.snapshots.Export(ctx, s, w)
		}),
	})
}

const headPath = "/fleet/head"

// newWitness returns the witness of the audit logs of other nodes.
func (d *Daemon) newWitness() *witness.Witness {
	return &witness.Witness{
		Store: d.store.Witness(),
		Nodes: func(ctx context.Context) ([]string, error) {
			list, err := d.router.Peers(ctx)
			var ids []string
			for _, n := range list {
				ids = append(ids, n.ID)
			}
			return witness.Predecessors(d.router.Self(), ids), err
		},
		Ask: func(ctx context.Context, node string, q witness.Question) (a witness.Answer, err error) {
			return a, d.router.Call(ctx, node, headPath, q, &a)
		},
		Log: d.log.With("part", "fleet"),
	}
}

// listenNodes serves the other daemons of the fleet, and keeps the index of objects and the
// certificate of this node up to date.
func (d *Daemon) listenNodes(ctx context.Context) error {
	if d.router == nil {
		if err := (&copies{snapshots: d.snapshots, jails: d.jails}).Leave(ctx); err != nil {
			d.log.Warn("could not remove copies of snapshots of the fleet that this daemon has left", "err", err)
		}
		return nil
	}
	l, err := net.Listen("tcp", d.Config.Fleet.Listen)
	if err != nil {
		return fmt.Errorf("open the listener for the other daemons of the fleet: %w", err)
	}
	if err := d.mover.clean(); err != nil {
		return errors.Join(fmt.Errorf("remove the files of jails that have not arrived: %w", err), l.Close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.onClose(func() error { cancel(); return nil })
	d.every(copySweepInterval, d.copies.sweep)
	d.every(demandInterval, d.quotas.sync)
	d.log.Info("listening for the other daemons of the fleet", "addr", l.Addr())
	for _, serve := range []func(){
		func() { d.router.KeepCertificate(ctx) },
		func() { d.publisher.Run(ctx) },
		func() { d.newWitness().Run(ctx) },
		func() { d.mover.Run(ctx) },
		func() {
			if err := d.server.ServeNodes(tls.NewListener(l, d.identity.Server()), d.nodeHandler); err != nil {
				d.serveErr <- err
			}
		},
	} {
		d.wg.Go(serve)
	}
	return nil
}

// movable returns why a jail cannot move to another node, or nil.
func (d *Daemon) movable(ctx context.Context, j jail.Jail) error {
	cannot := func(why string) error { return fault.Cannot("daemon.movable", why, "leave the jail on its node") }
	switch {
	case j.Spec.Labels[e2b.LabelSandbox] != "":
		return cannot("the jail is a sandbox of a client of E2B")
	case j.Spec.Labels[template.LabelBuild] != "":
		return cannot("a template is being built in the jail")
	}
	for after := ""; ; {
		list, err := d.work.Runs().Sessions(ctx, run.SessionFilter{State: run.Open, After: after, Limit: 1000})
		if err != nil {
			return err
		}
		for _, s := range list {
			if s.Jail == j.ID {
				return cannot("the jail belongs to session " + s.ID)
			}
			after = s.ID
		}
		if len(list) < 1000 {
			return nil
		}
	}
}

// mayStartRuns reports whether this daemon starts runs that no other daemon executes.
func (d *Daemon) mayStartRuns(ctx context.Context) bool {
	return d.router == nil || !d.Config.Fleet.front() && !d.router.Draining(ctx)
}

// shareTokens moves the tokens of this daemon to the database of the fleet, whose daemons all
// accept them.
func (d *Daemon) shareTokens(ctx context.Context) error {
	own, shared := d.store.Tokens(), d.work.Tokens()
	list, err := own.List(ctx)
	if err != nil {
		return err
	}
	for _, t := range list {
		if err := shared.Add(ctx, t); err != nil && !errors.Is(err, fault.Conflict) { // a copy of an interrupted move
			return err
		}
		if err := own.Delete(ctx, t.ID); err != nil {
			return err
		}
	}
	return nil
}

package daemon

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"glasshouse/api"
	"glasshouse/fleet"
	"glasshouse/jail"
	"glasshouse/jail/backend/bwrap"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/backend/oci"
	"glasshouse/policy/access"
	"glasshouse/web"
)

// runtimes returns all backends that a jail can name. Their Probe method reports whether they
// work on this host.
func (d *Daemon) runtimes() []jail.Runtime {
	c, prefix := d.Config, d.cgroups
	templates, base := filepath.Join(c.Data, "templates"), filepath.Join(c.Data, "base")
	var rs []jail.Runtime
	for _, name := range []string{"runc", "crun", "runsc"} {
		rs = append(rs, jail.Runtime{Name: "oci", Runtime: name, Backend: oci.New(oci.Config{
			Runtime: name, Path: d.Config.tool(name),
			CgroupPrefix: prefix, Templates: templates, Base: base,
			CRIU:     d.Config.tool("criu"),
			RunDir:   filepath.Join(c.Data, "run", name),
			NetnsDir: filepath.Join(c.Data, "run", "netns"),
			Transit:  c.Network.transit,
			Log:      d.log.With("part", name),
		})})
	}
	vm := c.virtualMachines()
	vm.CgroupPrefix, vm.Templates, vm.Base, vm.Log = prefix, templates, base, d.log.With("part", "microvm")
	vm.NetnsDir, vm.Transit = filepath.Join(c.Data, "run", "netns"), c.Network.transit
	vm.Guest = sync.OnceValues(func() (string, error) { return d.install("bin", "glasshouse-guest") })
	rs = append(rs, jail.Runtime{Name: "microvm", Backend: microvm.New(vm)})
	return append(rs, jail.Runtime{Name: "bwrap", Backend: bwrap.New(bwrap.Config{
		Path: d.Config.tool("bwrap"), CgroupPrefix: prefix, Templates: templates, Base: base, Log: d.log.With("part", "bwrap"),
	})})
}

// virtualMachines returns the configuration of the backend microvm, without what depends on a daemon.
func (c Config) virtualMachines() microvm.Config {
	return microvm.Config{
		QEMU: c.MicroVM.QEMU, Firecracker: c.MicroVM.Firecracker, Kernels: c.MicroVM.kernels(c.Data), Emulate: c.MicroVM.Emulate,
		CgroupPrefix: "glasshouse", Cache: filepath.Join(c.Data, "microvm"),
	}
}

// tool returns the path of a program: the private one if make up installed it, otherwise its
// name.
func (c Config) tool(name string) string {
	private := filepath.Join(c.Tools, name)
	if _, err := exec.LookPath(private); err == nil {
		return private
	}
	return name
}

// listen opens the listeners and serves them until Close.
func (d *Daemon) listen(ctx context.Context) error {
	tools := &toolServers{d: d}
	d.onClose(tools.Close)
	d.storage = newStorage(d.Config.Data, d.Config.Pool.Size, d.jails.Pool)
	d.storage.shares = shares{d.Config.Events.Share, d.Config.Snapshots.Share}
	options := api.Options{
		Jails: d.jails, Images: images{d.images, d.jails, d.snapshots}, Tokens: d.tokens, IdempotencyStore: d.store.Replays(),
		Observed:  observed{d.observers},
		Snapshots: d.snapshots,
		Governor:  d.kernel,
		Chain:     d.chain,
		Approvals: d.approvals,
		Secrets:   d.secrets,

		Capabilities: d.registry, Caller: d.kernel, Publishers: d.trust, Markets: d.markets, Importer: d,

		Runs: d.runs, Gateway: d.gateway, Schedules: d.schedules, Connectors: d.connectors, MCP: tools.handler,
		UI: web.Handler(), Logins: d.logins, Addresses: d.addresses, E2B: d.e2b,

		Hosts:   slices.Concat(d.Config.Hosts, d.Config.Approvals.hosts(), d.Config.Gateway.Connectors.hosts()),
		Peers:   access.Peers{Group: d.Config.Socket.Group},
		Doctor:  d.doctor,
		Storage: d.storage.now,
		Demand:  d.quotas.used,
		Nodes:   d.nodes,
		Ready:   newReadiness(d.checkReady).now,
		Version: d.Version,
		Models:  d.models,
		Log:     d.log.With("part", "api"),
	}
	if d.archive != nil {
		options.Stored = d.archive
	}
	d.reachFleet(&options)
	server := api.New(options)
	d.server = server
	if d.router != nil {
		d.publisher = &fleet.Publisher{Index: d.work.Owners(), Node: d.router.Self(), List: d.objectsOf(server), Log: d.log.With("part", "fleet")}
	}
	if err := d.startGateway(ctx); err != nil {
		return err
	}
	local, err := d.listenUnix()
	if err != nil {
		return err
	}
	listeners := []apiListener{{local, true}}
	if d.Config.Listen != "" {
		tcp, err := d.listenTCP()
		if err != nil {
			return errors.Join(err, local.Close())
		}
		listeners = append(listeners, apiListener{tcp, false})
		d.reached = tcp.Addr().String()
	}
	d.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceful)
		defer cancel()
		err := server.Shutdown(ctx)
		return errors.Join(err, ignoreMissing(os.Remove(d.Config.Socket.Path)))
	})
	if err := d.listenNodes(ctx); err != nil {
		return err
	}
	if d.serveE2B != nil {
		d.wg.Go(func() {
			if err := d.serveE2B(); err != nil {
				d.serveErr <- err
			}
		})
	}
	for _, l := range listeners {
		d.log.Info("listening", "addr", l.Addr(), "local", l.local)
		d.wg.Go(func() {
			if err := server.Serve(l.Listener, l.local); err != nil {
				d.serveErr <- err
			}
		})
	}
	return nil
}

// addresses returns the URLs at which browsers reach the daemon: on this machine and, if
// configured, from other machines.
func (d *Daemon) addresses() []string {
	host, port, err := net.SplitHostPort(d.reached)
	if err != nil {
		return nil // only the Unix socket is configured
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if d.Config.TLS.Cert != "" {
		scheme = "https"
	}
	list := []string{scheme + "://" + net.JoinHostPort(host, port)}
	if u, err := url.Parse(d.Config.Approvals.Links); err == nil && u.Host != "" {
		list = append(list, u.Scheme+"://"+u.Host)
	}
	return list
}

type apiListener struct {
	net.Listener
	local bool
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

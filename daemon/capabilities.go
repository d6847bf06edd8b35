package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/bundle"
	"glasshouse/capability/engine"
	"glasshouse/capability/engine/builtin"
	"glasshouse/capability/engine/jailed"
	"glasshouse/capability/engine/native"
	"glasshouse/capability/engine/pure"
	"glasshouse/capability/engine/wasm"
	"glasshouse/capability/manifest"
	"glasshouse/capability/mcp"
	"glasshouse/capability/memory"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/internal/redact"
	"glasshouse/policy"
	"glasshouse/policy/egress"
	"glasshouse/policy/secret"
)

// openCapabilities opens the engines and the registry of capabilities. The policy engine, the
// jails and the approval queue must be open.
func (d *Daemon) openCapabilities(ctx context.Context) error {
	engines, err := d.openEngines(ctx)
	if err != nil {
		return err
	}
	own, err := bundle.OpenTrust(filepath.Join(d.Config.Data, bundle.TrustFile))
	if err != nil {
		return err
	}
	d.trust = own
	if d.markets, err = d.openMarkets(); err != nil {
		return err
	}
	config := registry.Config{
		Store: d.store.Capabilities(), Approvals: d.approvals, Trust: d.trust,
		Dir: filepath.Join(d.Config.Data, "capabilities"), Bundles: filepath.Join(d.Config.Data, "bundles"),
		Prepare: engines.prepare, Dropped: engines.drop, Changed: d.notes().noteCapability, Installed: d.notes().noteBundle, Log: d.log.With("part", "registry"),
	}
	if d.Config.Fleet.Listen != "" {
		if err := d.shareCapabilities(ctx, &config, own); err != nil {
			return err
		}
	}
	d.registry, err = registry.Open(ctx, config)
	if err != nil {
		return fmt.Errorf("open the registry of capabilities: %w", err)
	}
	d.onClose(d.registry.Close)
	d.memory = memory.New(d.work.Memory(), memory.Limits{})
	engines[manifest.Builtin] = builtins{d.memory, builtin.New(d.hostFunctions())}
	d.kernel.Serve(newWithMemory(d.registry), engines)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var checks sync.WaitGroup
	checks.Go(func() { d.warnOfIsolation(ctx) })
	d.onClose(func() error { cancel(); checks.Wait(); return nil })
	return nil
}

// warnOfIsolation logs the approved capabilities that this host cannot isolate as they demand. It
// tries the runtimes of jails, which would delay the start of the daemon.
func (d *Daemon) warnOfIsolation(ctx context.Context) {
	for _, c := range (taught{d.registry}).Approved() {
		if err := d.sandboxes.CheckRuntime(ctx, c); err != nil && ctx.Err() == nil {
			d.log.Warn("a capability cannot be called on this host", "capability", c.ID, "err", err, "remedy", fault.RemedyOf(err))
		}
	}
}

const filesPath = "/fleet/files" // of capabilities and bundles

// shareCapabilities makes the daemons of a fleet use the same capabilities and trusted publishers.
func (d *Daemon) shareCapabilities(ctx context.Context, c *registry.Config, own *bundle.Trust) error {
	shared := d.work.Capabilities()
	trust, err := bundle.ShareTrust(ctx, shared)
	if err == nil {
		err = trust.Take(ctx, own)
	}
	if err != nil {
		return fmt.Errorf("share the trusted publishers with the other daemons: %w", err)
	}
	node, err := readInstanceID(d.Config.Data)
	if err != nil {
		return err
	}
	d.trust, c.Trust, c.Store = trust, trust, shared
	c.Shared = &registry.Shared{
		Node: node, Own: d.store.Capabilities(),
		Nodes: func(ctx context.Context) ([]string, error) {
			list, err := d.router.Nodes(ctx)
			var ids []string
			for _, n := range list {
				if n.ID != node && n.State == fleet.Up {
					ids = append(ids, n.ID)
				}
			}
			return ids, err
		},
		Fetch: func(ctx context.Context, node string, f registry.Files) (io.ReadCloser, error) {
			return d.router.Open(ctx, node, filesPath, f)
		},
	}
	return nil
}

// engines maps runtimes to the engines that run their capabilities.
type engines map[manifest.Runtime]engine.Engine

func (d *Daemon) openEngines(ctx context.Context) (engines, error) {
	all := engines{}
	add := func(e engine.Engine, runtimes ...manifest.Runtime) {
		for _, r := range runtimes {
			all[r] = e
		}
		d.onClose(e.Close)
	}
	add(pure.New(), manifest.RTFS)
	out := &fetches{d: d}
	d.onClose(out.Close)
	modules, err := wasm.New(ctx, wasm.Config{Dir: filepath.Join(d.Config.Data, "wasm"), Egress: out})
	if err != nil {
		return nil, fmt.Errorf("create the WebAssembly engine: %w", err)
	}
	add(fetching{modules, out}, manifest.WASM)
	host, err := native.New(ctx, native.Config{CgroupPrefix: d.cgroups + "-native", Log: d.log.With("part", "native")})
	if err != nil {
		return nil, fmt.Errorf("create the engine of native capabilities: %w", err)
	}
	add(host, manifest.Native)
	jails := jailed.New(jailed.Config{
		Jails: d.jails, Images: layers{d.images}, Dir: filepath.Join(d.Config.Data, "sandboxes"), MicroVM: d.Config.Capabilities.MicroVM,
		Govern: governCapability, Grant: d.grantSandbox, Serving: d.serving, Meter: d.traffic, Log: d.log.With("part", "jailed"),
	})
	if err := jails.Open(ctx); err != nil {
		return nil, fmt.Errorf("open the engine of jailed capabilities: %w", err)
	}
	d.sandboxes = jails
	d.onClose(jails.Close)
	servers := mcp.NewEngine(d.Version.Version, speakers{jails})
	add(spoken{jails, servers}, manifest.Container, manifest.GVisor, manifest.MicroVM)
	return all, nil
}

// spoken selects the engine for capabilities that run in jails: the MCP engine for servers of
// the Model Context Protocol, otherwise plain.
type spoken struct {
	plain runtimeChecker
	mcp   engine.Engine
}

// A runtimeChecker is an engine that knows how this host can isolate capabilities. *jailed.Engine
// implements it.
type runtimeChecker interface {
	engine.Engine
	CheckRuntime(ctx context.Context, c *engine.Installed) error
}

func (s spoken) of(c *engine.Installed) engine.Engine {
	if c.Runtime.Stdio == manifest.MCPStdio {
		return s.mcp
	}
	return s.plain
}

func (s spoken) Prepare(ctx context.Context, c *engine.Installed) error {
	if c.Runtime.Stdio == manifest.MCPStdio { // its engine does not know the jails
		if err := s.plain.CheckRuntime(ctx, c); err != nil {
			return err
		}
	}
	return s.of(c).Prepare(ctx, c)
}

func (s spoken) Call(ctx context.Context, c *engine.Call) (engine.Result, error) {
	return s.of(c.Capability).Call(ctx, c)
}

func (s spoken) Drop(ctx context.Context, c *engine.Installed, purge bool) error {
	return s.of(c).Drop(ctx, c, purge)
}

func (s spoken) EndSession(ctx context.Context, session string) error {
	return errors.Join(s.mcp.EndSession(ctx, session), s.plain.EndSession(ctx, session))
}

// Close ends the MCP connections. The plain engine owns the jails and ends them.
func (s spoken) Close() error { return s.mcp.Close() }

// speakers starts the jails of MCP servers.
type speakers struct{ *jailed.Engine }

func (s speakers) Start(ctx context.Context, c *engine.Installed, session string) (mcp.Process, error) {
	p, err := s.Engine.Start(ctx, c, session)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s speakers) Forget(ctx context.Context, c *engine.Installed, session string) error {
	if c == nil {
		return s.EndSession(ctx, session)
	}
	return s.Drop(ctx, c, true)
}

// ImportServer implements api.Importer. It starts an MCP server in a jail, as described by a
// manifest, and creates capabilities from its tools.
func (d *Daemon) ImportServer(ctx context.Context, file string, text []byte, dir string) (*mcp.Imported, error) {
	server, err := manifest.ReadServer(file, text)
	if err != nil {
		return nil, err
	}
	like := &engine.Installed{Capability: server, Dir: dir, Digest: "import"}
	session := id.NewSession() // a session of its own, which is deleted with its files
	p, err := speakers{d.sandboxes}.Start(ctx, like, session)
	if err != nil {
		return nil, err
	}
	im, err := mcp.Import(ctx, like.Capability, p)
	return im, errors.Join(err, p.Close(), d.sandboxes.EndSession(context.WithoutCancel(ctx), session))
}

func (e engines) prepare(ctx context.Context, c *engine.Installed) error {
	return e[c.Runtime.Type].Prepare(ctx, c)
}

func (e engines) drop(ctx context.Context, c *engine.Installed, purge bool) error {
	return e[c.Runtime.Type].Drop(ctx, c, purge)
}

// governCapability returns the policy of a capability's jails: only the egress that its
// manifest declares is allowed.
func governCapability(_ context.Context, c *engine.Installed) (json.RawMessage, error) {
	e := egressOf(c)
	if e == nil {
		return nil, nil
	}
	return json.Marshal(govern.Spec{Egress: e})
}

// egressOf returns the egress rules of a capability; nil denies all egress.
func egressOf(c *engine.Installed) *govern.Egress {
	n := c.Network
	if c.NoEgress || n.Mode != manifest.ModeProxy || len(n.Hosts) == 0 {
		return nil
	}
	e := &govern.Egress{}
	if n.Rate > 0 {
		e.Limit.Requests, e.Limit.PerMS = n.Rate, time.Minute.Milliseconds()
	}
	for _, h := range n.Hosts {
		rule := govern.Rule{Name: c.ID, Host: h, Ports: n.Ports, Capability: c.ID}
		for _, in := range n.Inject {
			if in.Host == "" || in.Host == h {
				rule.Inject = append(rule.Inject, govern.Inject{Secret: in.Secret, As: egress.As(in.As), Name: in.Name})
			}
		}
		e.Allow = append(e.Allow, rule)
	}
	if c.Filesystem.Mode == manifest.Ephemeral && c.Runtime.Type != manifest.WASM {
		e.Limit.Bytes = c.Resources.NetworkBytes // the sandbox serves one call
	}
	return e
}

// grantSandbox grants a sandbox the secrets that were approved for its capability.
func (d *Daemon) grantSandbox(ctx context.Context, jid id.Jail, c *engine.Installed) error {
	by := fmt.Sprintf("capability %s@%s", c.ID, c.Version)
	for _, name := range c.SecretFiles() {
		if _, err := d.secrets.Grant(inTurn(ctx), secret.Grant{Secret: name, To: secret.Scope{Jail: jid}, Delivery: secret.File, By: by}); err != nil {
			return fmt.Errorf("grant secret %s as a file: %w", name, err)
		}
	}
	for _, in := range c.Network.Inject {
		hosts := []string{in.Host}
		if in.Host == "" {
			hosts = c.Network.Hosts
		}
		if _, err := d.secrets.Grant(inTurn(ctx), secret.Grant{Secret: in.Secret, To: secret.Scope{Jail: jid}, Delivery: secret.Inject, Hosts: hosts, By: by}); err != nil {
			return fmt.Errorf("grant secret %s for injection: %w", in.Secret, err)
		}
	}
	return nil
}

// serving attributes the sandbox's egress records to the call that it serves.
func (d *Daemon) serving(jid id.Jail, call *engine.Call) (done func()) {
	return d.kernel.Serving(jid, call.Entry)
}

// traffic returns the traffic counters of a sandbox's egress proxy.
func (d *Daemon) traffic(jid id.Jail) jailed.Traffic {
	s, ok := d.kernel.Egress(jid)
	if !ok {
		return jailed.Traffic{}
	}
	return jailed.Traffic{Sent: s.Sent, Received: s.Received}
}

// fetching is an engine of capabilities without a jail. Dropping a capability closes its
// proxy.
type fetching struct {
	engine.Engine
	out *fetches
}

func (f fetching) Drop(ctx context.Context, c *engine.Installed, purge bool) error {
	return errors.Join(f.Engine.Drop(ctx, c, purge), f.out.end(c))
}

// fetches sends the HTTP requests of capabilities without a jail.
type fetches struct {
	d *Daemon

	mu sync.Mutex
	// +checklocks:mu
	fetchers map[string]*govern.Fetcher // by digest of the capability
}

// Do implements wasm.Egress.
func (f *fetches) Do(ctx context.Context, call *engine.Call, r *http.Request) (*http.Response, error) {
	c := call.Capability
	e := egressOf(c)
	if e == nil {
		return nil, fault.Newf(fault.Denied, "daemon.Fetch", c.ID, "the manifest allows no egress")
	}
	if _, err := f.d.registry.Resolve(c.ID + "@" + c.Version); err != nil {
		return nil, err // it was revoked during the call
	}
	fetcher, err := f.of(c, e)
	if err != nil {
		return nil, err
	}
	return fetcher.Do(ctx, r)
}

// end closes the proxy of a capability and aborts its requests.
func (f *fetches) end(c *engine.Installed) error {
	f.mu.Lock()
	fetcher := f.fetchers[c.Digest]
	delete(f.fetchers, c.Digest)
	f.mu.Unlock()
	if fetcher == nil {
		return nil
	}
	return fetcher.Close()
}

func (f *fetches) of(c *engine.Installed, e *govern.Egress) (*govern.Fetcher, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fetcher := f.fetchers[c.Digest]; fetcher != nil {
		return fetcher, nil
	}
	fetcher, err := f.d.kernel.NewFetcher(c, e, func(ctx context.Context, name, host string) ([]byte, error) {
		return credentials{f.d.secrets}.lend(ctx, c, name, host)
	})
	if err != nil {
		return nil, fmt.Errorf("create the egress proxy of capability %s: %w", c.ID, err)
	}
	if f.fetchers == nil {
		f.fetchers = map[string]*govern.Fetcher{}
	}
	f.fetchers[c.Digest] = fetcher
	return fetcher, nil
}

func (f *fetches) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, fetcher := range f.fetchers {
		errs = append(errs, fetcher.Close())
	}
	f.fetchers = nil
	return errors.Join(errs...)
}

// Missing implements govern.Secrets. Approving a capability also grants the secrets that its
// manifest names.
func (s injected) Missing(_ string, names []string) (missing []string) {
	have := s.k.List()
	for _, name := range names {
		if !slices.ContainsFunc(have, func(i secret.Info) bool { return i.Name == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// Mask implements govern.Secrets.
func (s injected) Mask(ctx context.Context, who policy.Subject, names []string) *redact.Mask {
	return s.k.Mask(ctx, secret.Scope{Jail: who.Jail, Session: who.Session, Run: string(who.Run)}, names)
}

// maskRuns returns the mask for the output of a session's runs.
func (d *Daemon) maskRuns(ctx context.Context, session string, runs []run.Run) *redact.Mask {
	who := []secret.Scope{{Session: session}}
	for _, r := range runs {
		who = append(who, secret.Scope{Session: session, Run: string(r.ID), Jail: r.Jail})
	}
	return d.secrets.MaskAll(ctx, who, nil)
}

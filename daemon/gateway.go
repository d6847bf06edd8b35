package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/agents/agent"
	"glasshouse/agents/agent/spawn"
	"glasshouse/agents/autonomy"
	"glasshouse/agents/gateway"
	"glasshouse/agents/llm"
	"glasshouse/agents/run"
	"glasshouse/agents/schedule"
	"glasshouse/capability/engine"
	"glasshouse/capability/engine/builtin"
	"glasshouse/capability/mcp"
	"glasshouse/capability/memory"
	"glasshouse/capability/registry"
	"glasshouse/capability/skill"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/policy/secret"
)

// Gateway configures how agents are run.
type Gateway struct {
	Jail    string `yaml:"jail"`     // spawner: jail, bwrap, process; default jail, without root bwrap
	Agent   string `yaml:"agent"`    // default agent; default builtin
	Model   string `yaml:"model"`    // the model that "default" refers to
	Level   int    `yaml:"level"`    // default autonomy level; default 2
	Keep    int    `yaml:"keep"`     // number of ended runs whose jails are kept; default 20
	DB      string `yaml:"db"`       // database of sessions, runs and schedules, if several daemons share them: postgres://…
	Objects string `yaml:"objects"`  // object store for audit logs and for the snapshots of runs, which another daemon restores if this host is lost: file:///DIR, s3://BUCKET
	KeyFile string `yaml:"key_file"` // key for sealing personal data, the same for all daemons that share a database; default {data}/quarantine.key
	Models  Models `yaml:"models"`

	KeepAge time.Duration `yaml:"keep_age"` // time for which the jail of an ended run is kept in any case

	Watchdog    map[int]Timers    `yaml:"watchdog"` // by autonomy level
	Checkpoints Saves             `yaml:"checkpoints"`
	Ceiling     map[string]string `yaml:"ceiling"` // limits up to which resources are granted without approval: cpu, memory, disk, pids

	Connectors Connectors `yaml:"connectors"`
}

// Timers are the timeouts of runs that the watchdog enforces.
type Timers struct {
	Wall time.Duration `yaml:"wall"` // total time, excluding time waiting for approvals
	Idle time.Duration `yaml:"idle"` // time without any activity
	Step time.Duration `yaml:"step"` // time of one step
}

// Saves configures automatic checkpoints of runs.
type Saves struct {
	Steps int           `yaml:"steps"` // number of steps between checkpoints; default 25, negative: never
	Every time.Duration `yaml:"every"` // interval between checkpoints; default 10m, negative: never
	Keep  int           `yaml:"keep"`  // number of newest checkpoints kept; default 20
}

// Models configures access to language models.
type Models struct {
	Providers    []Provider   `yaml:"providers"`
	Aliases      []ModelAlias `yaml:"aliases"`
	Prices       []ModelPrice `yaml:"prices"`
	RecordBodies int          `yaml:"record_bodies"` // bytes of requests and responses in the audit log; 0: only digests
	Requests     int          `yaml:"requests"`      // requests per minute and agent; 0: unlimited
	Concurrent   int          `yaml:"concurrent"`    // concurrent requests per agent

	server []Provider // GLASSHOUSE_MODELS
}

// Provider is a provider of language models.
type Provider struct {
	Name       string            `yaml:"name"`
	API        string            `yaml:"api"` // openai, anthropic, gemini
	BaseURL    string            `yaml:"base_url"`
	Secret     string            `yaml:"secret"` // name of the secret that holds the API key; "": no key
	Models     []string          `yaml:"models"` // names, or patterns with *
	Headers    map[string]string `yaml:"headers"`
	Timeout    time.Duration     `yaml:"timeout"`
	Requests   int               `yaml:"requests"` // per minute
	Tokens     int64             `yaml:"tokens"`   // per minute
	Concurrent int               `yaml:"concurrent"`
}

// ModelAlias is an alias of a model.
type ModelAlias struct {
	Name     string `yaml:"name"`
	Provider string `yaml:"provider"`
	Model    string `yaml:"model"`
}

// ModelPrice is the price of a million tokens in millionths of the currency unit.
type ModelPrice struct {
	Model      string `yaml:"model"`
	Input      int64  `yaml:"input"`
	Output     int64  `yaml:"output"`
	CacheRead  int64  `yaml:"cache_read"`
	CacheWrite int64  `yaml:"cache_write"`
}

func (g *Gateway) validate(uid int) error {
	if g.Jail == "" {
		g.Jail = gateway.InJail
		if uid != 0 {
			g.Jail = gateway.InBwrap
		}
	}
	if !slices.Contains([]string{gateway.InJail, gateway.InBwrap, gateway.InProcess}, g.Jail) {
		return fault.Fieldf("config", "gateway.jail", "%q is not one of jail, bwrap, process", g.Jail)
	}
	g.Agent = cmp.Or(g.Agent, "builtin")
	if _, err := agent.Find(g.Agent); err != nil {
		return fault.Fieldf("config", "gateway.agent", "%w", err)
	}
	if g.Level < 0 || g.Level > 3 {
		return fault.Fieldf("config", "gateway.level", "%d is not 1, 2 or 3", g.Level)
	}
	if g.KeepAge < 0 {
		return fault.Fieldf("config", "gateway.keep_age", "%s is negative", g.KeepAge)
	}
	if _, err := g.ceiling(); err != nil {
		return err
	}
	for level, t := range g.Watchdog {
		field := fmt.Sprintf("gateway.watchdog.%d", level)
		if !policy.Level(level).Valid() {
			return fault.Fieldf("config", field, "%d is not 1, 2 or 3", level)
		}
		if t.Wall < 0 || t.Idle < 0 || t.Step < 0 {
			return fault.Fieldf("config", field, "a duration must not be negative")
		}
	}
	return g.Connectors.validate()
}

func (g *Gateway) timers() map[policy.Level]autonomy.Timers {
	all := map[policy.Level]autonomy.Timers{}
	for level, t := range g.Watchdog {
		all[policy.Level(level)] = autonomy.Timers{Wall: t.Wall, Idle: t.Idle, Step: t.Step}
	}
	return all
}

// readEnv reads the settings of agents from the environment.
func (g *Gateway) readEnv(getenv func(string) string) {
	if jailed := getenv("CCOS_GATEWAY_JAIL_AGENTS"); strings.EqualFold(jailed, "true") || jailed == "1" {
		g.Jail = gateway.InBwrap
	}
	if at := getenv("GLASSHOUSE_MODELS"); at != "" {
		g.Models.server = allAPIs(at)
	}
	if db := getenv("GLASSHOUSE_GATEWAY_DB"); db != "" {
		g.DB = db
	}
}

// A ModelVendor is a provider of models that needs no configuration: it is used as soon as a
// secret with its key is granted to it.
type ModelVendor struct {
	Name, API, BaseURL string
	Models             []string
}

// ModelVendors are the vendors whose own APIs the model gateway supports.
var ModelVendors = []ModelVendor{
	{"anthropic", "anthropic", "https://api.anthropic.com", []string{"claude-*"}},
	{"openai", "openai", "https://api.openai.com/v1", []string{"gpt-*", "o1*", "o3*", "o4*", "codex-*", "text-embedding-*"}},
	{"gemini", "gemini", "https://generativelanguage.googleapis.com", []string{"gemini-*"}},
}

// Scope returns the scope that the vendor's key is granted to.
func (v ModelVendor) Scope() secret.Scope { return modelScope(v.Name) }

// Host returns the host that receives the key.
func (v ModelVendor) Host() string {
	at, _ := url.Parse(v.BaseURL)
	return at.Hostname()
}

// modelScope is the scope of the key of a provider of models.
func modelScope(provider string) secret.Scope { return secret.Scope{Capability: "models." + provider} }

// vendors returns the providers that need no configuration.
func (d *Daemon) vendors() (all []llm.Provider) {
	for _, v := range ModelVendors {
		use := secret.Use{Delivery: secret.Inject, Host: v.Host()}
		all = append(all, llm.Provider{
			Name: v.Name, API: llm.API(v.API), BaseURL: v.BaseURL, Models: v.Models,
			Ready: func() bool { return d.secrets.Granted(v.Scope(), use) != "" },
			Key: func(ctx context.Context) ([]byte, error) {
				key, err := d.secrets.Resolve(ctx, v.Scope(), d.secrets.Granted(v.Scope(), use), use)
				if err != nil {
					return nil, err
				}
				return key.Bytes(), nil
			},
		})
	}
	return all
}

// allAPIs returns the providers for one server that implements all supported APIs and needs no
// key.
func allAPIs(at string) []Provider {
	at = strings.TrimRight(at, "/")
	return []Provider{
		{Name: "models-openai", API: "openai", BaseURL: at + "/v1", Models: []string{"*"}},
		{Name: "models-anthropic", API: "anthropic", BaseURL: at, Models: []string{"*"}},
		{Name: "models-gemini", API: "gemini", BaseURL: at, Models: []string{"*"}},
	}
}

// openGateway creates the gateway. All components that it uses must be open. It does not serve
// agents yet.
func (d *Daemon) openGateway(ctx context.Context) error {
	c := d.Config.Gateway
	program, err := d.install("agent", "glasshouse-agent")
	if err != nil {
		return err
	}
	key, err := d.readRunsKey()
	if err != nil {
		return err
	}
	holder, err := readInstanceID(d.Config.Data)
	if err != nil {
		return err
	}
	node, err := d.joinFleet(ctx, holder)
	if err != nil {
		return err
	}
	d.runs, err = run.New(ctx, run.Config{
		Store: d.work.Runs(), Chain: d.chain, Key: key, Holder: holder, Node: node,
		Mask: d.maskRuns, Log: d.log.With("part", "run"),
	})
	if err != nil {
		return fmt.Errorf("open the runs: %w", err)
	}
	d.onClose(d.runs.Close)
	if err := d.openConnectors(); err != nil {
		return err
	}
	spawners, err := d.openSpawners(ctx, program)
	if err != nil {
		return err
	}
	d.gateway = gateway.New(gateway.Config{
		Runs: d.runs, Jails: d.jails, Snapshots: d.snapshots, Remote: d.remoteSnapshots(key), Scan: idleScan, MayStart: d.mayStartRuns, Policy: d.kernel, Caps: taught{d.registry},
		Memory: remembered{d.memory}, Tasks: autonomy.NewTasks(d.work.Autonomy(), gateway.Workspaces{Jails: d.jails}),
		Serve: func(l net.Listener, who func(context.Context) (gateway.Caller, error)) error {
			return d.server.ServeAgent(l, who)
		},
		Spawners: spawners, Program: program, Layers: filepath.Join(d.Config.Data, "agents"), Dir: filepath.Join(d.Config.Data, "run", "agents"),
		Root:   d.rootFiles,
		Timers: c.timers(), Autosave: gateway.AutosaveSettings(c.Checkpoints),
		Default: gateway.Agent{Preset: c.Agent, Model: "default", Spawner: c.Jail, Level: c.Level}, Keep: c.Keep, KeepAge: c.KeepAge,
		Connectors: d.connectors.For, Fence: d.fences.fence,
		Log: d.log.With("part", "gateway"),
	})
	d.reports.Store(d.gateway)
	if err := d.openGatewayServices(ctx, holder); err != nil {
		return err
	}
	if err := d.openModels(); err != nil {
		return err
	}
	d.shareModels(holder)
	return nil
}

// openGatewayServices creates the components that the gateway uses and that call it.
func (d *Daemon) openGatewayServices(ctx context.Context, holder string) error {
	broker, err := autonomy.NewBroker(d.work.Autonomy(), autonomy.BrokerConfig{
		Siblings: d.gateway, Deliverer: d.gateway, Policy: d.gateway.EvaluateRequest, Ready: d.gateway.Ready, Scan: idleScan,
		Record: d.notes().recordRequest, Now: d.runs.Now, Log: d.log.With("part", "siblings"),
	})
	if err != nil {
		return fmt.Errorf("create the broker of requests between siblings: %w", err)
	}
	d.onClose(broker.Close)
	d.broker = broker
	resources, err := d.openResources(ctx, holder)
	if err != nil {
		return fmt.Errorf("open the resource grants: %w", err)
	}
	d.schedules = schedule.New(schedule.Config{
		Store: d.work.Schedules(), Fire: d.gateway.Fire, Running: d.gateway.Running, Now: d.runs.Now, Log: d.log.With("part", "schedule"),
	})
	d.gateway.SetServices(gateway.Services{Schedules: d.schedules, Broker: broker, Resources: resources})
	return nil
}

// rootFiles returns the files of a root filesystem without changes made by jails.
func (d *Daemon) rootFiles(ctx context.Context, r jail.Rootfs) (fs.FS, error) {
	layer, err := d.images.Resolve(ctx, r)
	if err != nil {
		return nil, err
	}
	return os.DirFS(cmp.Or(layer.Dir, "/")), nil
}

// startGateway starts the gateway, then schedules and connectors, which start runs
// through it. The agent endpoints must be ready.
func (d *Daemon) startGateway(ctx context.Context) error {
	if err := d.gateway.Open(ctx); err != nil {
		return fmt.Errorf("open the gateway: %w", err)
	}
	d.onClose(d.gateway.Close)
	if err := d.schedules.Open(ctx); err != nil {
		return fmt.Errorf("open the schedules: %w", err)
	}
	d.onClose(d.schedules.Close)
	d.connectors.Open()
	d.onClose(d.connectors.Close)
	d.watch()
	return nil
}

func (d *Daemon) openSpawners(ctx context.Context, program string) (map[string]spawn.Spawner, error) {
	dir := filepath.Join(d.Config.Data, "run", "spawn")
	conf := func(name string) spawn.Config {
		return spawn.Config{
			Agent: program, Dir: filepath.Join(dir, name), CgroupPrefix: d.cgroups + "-" + name,
			Bwrap: d.Config.tool("bwrap"), Log: d.log.With("part", name),
		}
	}
	process, err := spawn.NewUnjailed(ctx, conf("process"))
	if err != nil {
		return nil, fmt.Errorf("create the spawner of processes: %w", err)
	}
	d.onClose(process.Close)
	bwrap, err := spawn.NewBwrap(ctx, conf("bwrap"))
	if err != nil {
		return nil, fmt.Errorf("create the spawner of bubblewrap: %w", err)
	}
	d.onClose(bwrap.Close)
	return map[string]spawn.Spawner{process.Name(): process, bwrap.Name(): bwrap}, nil
}

// shareInterval is how often a daemon computes its share of the limits of model providers.
const shareInterval = 5 * time.Second

// shareModels divides the limits of the model providers among the daemons that share the runs.
func (d *Daemon) shareModels(self string) {
	if d.Config.Gateway.DB == "" {
		return
	}
	known := false
	d.every(shareInterval, func(ctx context.Context) {
		if known && d.gateway.Supervised() == 0 { // nothing uses the share
			return
		}
		list, err := d.work.Nodes().Nodes(ctx)
		if err != nil {
			return // the last share stays; the lease cannot be renewed either, which is logged
		}
		d.models.SetShare(fleet.RunShare(list, self))
		known = true
	})
}

// openModels creates the model gateway. Without configured providers it uses the vendors whose
// keys are granted.
func (d *Daemon) openModels() (err error) {
	c := d.Config.Gateway
	conf := llm.Config{
		Caller: d.gateway.ModelCaller, Exceeded: d.gateway.HandleOverBudget, RecordBodies: c.Models.RecordBodies,
		Limit: llm.Limit{Requests: c.Models.Requests, Concurrent: c.Models.Concurrent},
		Record: func(ctx context.Context, call llm.Call) error {
			if _, err := d.chain.Append(context.WithoutCancel(ctx), call.Entry()); err != nil {
				return fmt.Errorf("record the model call: %w", err)
			}
			return d.gateway.RecordModelCall(ctx, call)
		},
		Log: d.log.With("part", "models"),
	}
	if len(c.Models.Providers) == 0 {
		conf.Providers = d.vendors()
	}
	for _, p := range slices.Concat(c.Models.Providers, c.Models.server) {
		provider := llm.Provider{
			Name: p.Name, API: llm.API(p.API), BaseURL: p.BaseURL, Models: p.Models, Headers: p.Headers, Timeout: p.Timeout,
			Limit: llm.Limit{Requests: p.Requests, Tokens: p.Tokens, Concurrent: p.Concurrent},
		}
		if p.Secret != "" {
			provider.Key = func(ctx context.Context) ([]byte, error) { return credentials{d.secrets}.modelKey(ctx, p) }
		}
		conf.Providers = append(conf.Providers, provider)
	}
	for _, a := range c.Models.Aliases {
		conf.Aliases = append(conf.Aliases, llm.Alias(a))
	}
	if c.Model != "" {
		conf.Aliases = append(conf.Aliases, llm.Alias{Name: "default", Model: c.Model})
	}
	if len(c.Models.Prices) > 0 {
		conf.Prices = llm.DefaultPrices()
		for _, p := range slices.Backward(c.Models.Prices) { // configured prices precede built-in prices
			conf.Prices = slices.Insert(conf.Prices, 0, llm.Price{Model: p.Model, Input: p.Input, Output: p.Output, CacheRead: p.CacheRead, CacheWrite: p.CacheWrite, Source: "configured"})
		}
	}
	d.models, err = llm.New(conf)
	return err
}

// taught provides the approved capabilities and skills to agents.
type taught struct{ r *registry.Registry }

func (t taught) Approved() []*engine.Installed {
	all := memory.Installed()
	seen := map[string]bool{}
	for _, rec := range t.r.List() {
		if seen[rec.ID] || rec.State != registry.Approved {
			continue
		}
		seen[rec.ID] = true
		if in, err := t.r.Resolve(rec.ID); err == nil {
			all = append(all, in)
		}
	}
	return all
}

func (t taught) Skill(name string) (*skill.Rendered, []string, error) {
	_, s, k, err := t.r.Skill(name)
	if err != nil {
		return nil, nil, err
	}
	shown, err := skill.Render(s, k.Capabilities)
	if err != nil {
		return nil, nil, err
	}
	var ids []string
	for _, c := range k.Capabilities {
		ids = append(ids, c.ID)
	}
	return shown, ids, nil
}

// remembered provides the working memory of runs for their checkpoints.
type remembered struct{ m *memory.Engine }

func (r remembered) Capture(ctx context.Context, rid id.Run) (json.RawMessage, error) {
	return r.m.Capture(ctx, memory.RunScope(string(rid)))
}

func (r remembered) Restore(ctx context.Context, rid id.Run, text json.RawMessage) error {
	return r.m.Restore(ctx, memory.RunScope(string(rid)), text)
}

func (r remembered) Forget(ctx context.Context, rid id.Run) error {
	return r.m.Delete(ctx, memory.RunScope(string(rid)))
}

// withMemory resolves installed and built-in capabilities.
type withMemory struct {
	*registry.Registry
	own map[string]*engine.Installed
}

func newWithMemory(r *registry.Registry) withMemory {
	w := withMemory{r, map[string]*engine.Installed{}}
	for _, in := range slices.Concat(memory.Installed(), builtin.Installed()) {
		w.own[in.ID] = in
	}
	return w
}

// Resolve implements govern.Capabilities.
func (w withMemory) Resolve(ref string) (*engine.Installed, error) {
	if in := w.own[ref]; in != nil {
		return in, nil
	}
	return w.Registry.Resolve(ref)
}

// toolServers holds an MCP server for each agent.
type toolServers struct {
	d *Daemon

	mu sync.Mutex
	// +checklocks:mu
	all map[string]*mcp.Server
	// +checklocks:mu
	old []string // keys of all, oldest first
}

// maxToolServers bounds the kept servers: ended agents are not removed otherwise.
const maxToolServers = 256

func (t *toolServers) handler(c gateway.Caller) http.Handler {
	key := string(c.Jail) + "/" + string(c.Run)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[key]; s != nil {
		return s.Stateless()
	}
	if t.all == nil {
		t.all = map[string]*mcp.Server{}
	}
	if len(t.old) >= maxToolServers {
		t.all[t.old[0]].Close()
		delete(t.all, t.old[0])
		t.old = t.old[1:]
	}
	s := mcp.NewServer(t.d.Version.Version, agentTools{t.d.gateway, c}, nil)
	s.OfferSource(mcp.Of(string(c.Jail), agentSource{t.d, c}))
	t.all[key], t.old = s, append(t.old, key)
	return s.Stateless() // agents outlive daemons
}

func (t *toolServers) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, s := range t.all {
		errs = append(errs, s.Close())
	}
	t.all, t.old = nil, nil
	return errors.Join(errs...)
}

// agentTools are the gateway's tools that agents do not have themselves.
type agentTools struct {
	g *gateway.Gateway
	c gateway.Caller
}

func (a agentTools) List(ctx context.Context) ([]mcp.Tool, error) {
	all, err := a.g.Tools(ctx, a.c)
	var out []mcp.Tool
	for _, t := range all {
		if t.Kind == "exec" || t.Kind == "file" {
			continue
		}
		name := t.Name
		if real, err := skill.CapabilityID(t.Name); err == nil && t.Kind == "capability" {
			name = real
		}
		out = append(out, mcp.Tool{ID: name, Description: t.Description, Input: t.InputSchema})
	}
	return out, err
}

func (a agentTools) Call(ctx context.Context, tool string, input json.RawMessage) (json.RawMessage, error) {
	u, err := a.g.Call(ctx, a.c, gateway.ToolUse{Key: "mcp-" + string(id.NewCall()), Tool: tool, Input: input})
	if err != nil {
		return nil, err
	}
	if u.Error != nil {
		return nil, fault.Newf(fault.Kind(u.Error.Kind), "gateway.Call", tool, "%s", u.Error.Message)
	}
	return u.Output, nil
}

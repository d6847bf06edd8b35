// Package daemon assembles Glasshouse: it opens the components in dependency order and closes
// them in reverse order.
package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/connector"
	"glasshouse/agents/gateway"
	"glasshouse/agents/llm"
	"glasshouse/agents/run"
	"glasshouse/agents/schedule"
	"glasshouse/api"
	"glasshouse/api/wire"
	"glasshouse/capability/bundle"
	"glasshouse/capability/engine/jailed"
	"glasshouse/capability/memory"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/fleet/pki"
	"glasshouse/fleet/route"
	"glasshouse/govern"
	"glasshouse/host/claims"
	"glasshouse/host/netns"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
	"glasshouse/jail/rootfs"
	"glasshouse/jail/snapshot"
	"glasshouse/object"
	"glasshouse/observe"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
	"glasshouse/policy/chain/archive"
	"glasshouse/policy/secret"
	"glasshouse/store"
)

// A Daemon owns one data directory.
type Daemon struct {
	Config Config
	// Programs contains glasshouse-init, glasshouse-guest, and glasshouse-agent, which is the
	// builtin agent and the shim of jailed agents. Missing programs are read from the directory of the
	// executable.
	Programs fs.FS
	Version  wire.Version
	LogTo    io.Writer

	log     *slog.Logger
	lock    *os.File
	cgroups string         // parent cgroup of this data directory's jails
	claims  *claims.Claims // nil if the host has no cgroups
	store   *store.Store
	images  *rootfs.Provider
	jails   *jail.Manager
	tokens  *access.Tokens
	quotas  *quotas
	logins  *access.Logins
	storage *storage

	chain     *chain.Chain
	kernel    *govern.Engine
	approvals *approval.Queue
	secrets   *secret.Manager
	groups    *groups
	fences    *fences
	nodes     func(context.Context) ([]wire.Node, error) // nil: this daemon needs no lease
	registry  *registry.Registry
	trust     *bundle.Trust
	markets   *markets
	sandboxes *jailed.Engine
	work      *store.Store // database of sessions, runs and schedules
	memory    *memory.Engine
	runs      *run.Manager
	schedules *schedule.Manager
	gateway   *gateway.Gateway
	broker    *autonomy.Broker
	reports   atomic.Pointer[gateway.Gateway] // as gateway, for facts, which is called before it exists
	objects   object.Store                    // nil: none is configured
	archive   *archive.Archive                // audit logs in objects; nil: none is configured
	identity  *pki.Identity
	router    *route.Router // nil: this daemon reaches no others
	publisher *fleet.Publisher
	copies    *copies
	mover     *mover
	owned     func(context.Context) ([]fleet.Object, error) // objects of clients of E2B
	forNodes  http.Handler                                  // serves requests of clients of E2B that other nodes pass on
	serveE2B  func() error                                  // nil: there are no clients of E2B
	models    *llm.Gateway
	server    *api.Server
	e2b       api.E2B // the listener for E2B clients
	reached   string  // address of the TCP listener, or ""

	connectors *connector.Connectors

	observers *observe.Observers
	snapshots *snapshot.Manager
	closers   []func() error // newest last

	wg       sync.WaitGroup
	serveErr chan error
	stopping func() bool // reports whether the host is shutting down; nil before Open
}

// Open locks the data directory, adopts the jails of an earlier daemon, and listens. When it
// returns, the daemon serves requests.
func (d *Daemon) Open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if err := d.Config.Validate(); err != nil {
		return err
	}
	d.log = newLogger(d.LogTo, d.Config.Log)
	d.serveErr = make(chan error, 4)
	d.stopping = hostStops
	// Logs are compressed by a low-priority thread. While it waits for a CPU it occupies a Go
	// processor (P). The additional Ps keep it from delaying the goroutines that read and
	// write logs.
	runtime.GOMAXPROCS(runtime.NumCPU() + 4)

	if err := d.takeData(); err != nil {
		return err
	}
	if d.cgroups, err = d.nameCgroups(); err != nil {
		return err
	}
	if err := d.openStore(ctx); err != nil {
		return err
	}
	if err := d.enroll(); err != nil {
		return err
	}
	// The secrets, the policy engine, the jails and the snapshots call each other, so all are
	// created before the first is opened.
	if err := d.newGovernance(ctx); err != nil {
		return err
	}
	if err := d.newJails(ctx); err != nil {
		return err
	}
	if err := d.newSnapshots(); err != nil {
		return err
	}
	if err := d.openSecrets(ctx); err != nil {
		return err
	}
	if err := d.openApprovals(ctx); err != nil {
		return err
	}
	if err := d.openJails(ctx); err != nil {
		return err
	}
	d.sweepKeys(ctx)
	if err := d.openCapabilities(ctx); err != nil {
		return err
	}
	if err := d.openGateway(ctx); err != nil {
		return err
	}
	if err := d.openE2B(ctx); err != nil {
		return err
	}
	return d.listen(ctx)
}

// takeData creates the data directory and locks it: two daemons on one directory would clean
// up each other's jails.
func (d *Daemon) takeData() error {
	dir := d.Config.Data
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := passable(dir); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock of the data directory: %w", err)
	}
	if err := lockData(f); err != nil {
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock the data directory: %w", err)
		}
		return &fault.Error{Op: "daemon.Open", On: dir, Kind: fault.Conflict,
			Err: errors.New("another daemon uses this data directory"), Remedy: "stop the other daemon, or set --data to another directory"}
	}
	d.lock = f
	d.onClose(f.Close)
	return nil
}

// lockData locks the data directory. It waits for up to one second, because a child forked by
// a killed daemon holds a duplicate of the lock until it calls execve (flock(2)).
func lockData(f *os.File) error {
	end := time.Now().Add(time.Second)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// passable returns an error if other users cannot traverse a directory on the path to dir.
// Root in a jail is such a user on the host, and its root filesystem is below dir.
func passable(dir string) error {
	for at := dir; at != "/"; at = filepath.Dir(at) {
		fi, err := os.Stat(at)
		if err != nil {
			return fmt.Errorf("check who can traverse the data directory: %w", err)
		}
		if fi.Mode().Perm()&0o001 == 0 {
			return &fault.Error{Op: "daemon.Open", On: dir, Kind: fault.Invalid,
				Err:    fmt.Errorf("jails run as unprivileged users, which cannot traverse %s, mode %v", at, fi.Mode().Perm()),
				Remedy: fmt.Sprintf("chmod o+x %s, or set --data to another directory", at)}
		}
	}
	return nil
}

func (d *Daemon) onClose(f func() error) { d.closers = append(d.closers, f) }

func (d *Daemon) openStore(ctx context.Context) (err error) {
	where := d.Config.DB
	if where == "" {
		where = filepath.Join(d.Config.Data, "glasshouse.db")
	}
	if d.store, err = store.Open(ctx, where); err != nil {
		return err
	}
	d.onClose(d.store.Close)
	if err := d.bindDatabase(ctx); err != nil {
		return err
	}
	d.work = d.store
	if at := d.Config.Gateway.DB; at != "" {
		if d.work, err = store.Open(ctx, at); err != nil {
			return fmt.Errorf("open the database of runs: %w", err)
		}
		d.onClose(d.work.Close)
	}

	if d.Config.Fleet.Listen == "" {
		d.tokens = &access.Tokens{Store: d.store.Tokens()}
		d.logins = &access.Logins{Store: d.store.Logins()}
	} else {
		if err := d.shareTokens(ctx); err != nil {
			return fmt.Errorf("share the tokens with the other daemons: %w", err)
		}
		d.tokens = &access.Tokens{Store: d.work.Tokens(), Remember: 2 * time.Second}
		d.logins = &access.Logins{Store: d.work.Logins()}
	}
	_, err = d.tokens.First(ctx, filepath.Join(d.Config.Data, "token"))
	if err != nil {
		return fmt.Errorf("create the first token: %w", err)
	}
	return nil
}

// newJails creates the root filesystems, the observers and the jails.
func (d *Daemon) newJails(ctx context.Context) error {
	c := d.Config
	init, err := d.install("bin", "glasshouse-init")
	if err != nil {
		return err
	}
	allow := c.Rootfs.Allow
	if dir := c.Rootfs.Default.Dir; dir != "" {
		allow = append(slices.Clone(allow), dir) // the configured default is always allowed
	}
	allow = append(slices.Clone(allow), filepath.Join(c.Data, "capabilities")) // registered files are copies
	d.images = rootfs.New(rootfs.Config{
		Dir: filepath.Join(c.Data, "images"), Default: c.Rootfs.Default,
		Allow: allow, Mirror: c.Rootfs.Mirror, Log: d.log.With("part", "rootfs"),
	})
	if err := d.images.Open(); err != nil {
		return fmt.Errorf("open the images: %w", err)
	}
	boot, err := procstat.BootID()
	if err != nil {
		return fmt.Errorf("read the boot ID of the host: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := d.claimHost(ctx); err != nil {
			return err
		}
	}
	var ids jail.HostIDs
	if d.claims != nil {
		ids = hostIDs{d.claims}
	}
	d.quotas = &quotas{tokens: d.tokens, log: d.log.With("part", "fleet")}
	if c.Fleet.Listen != "" { // then the nodes share the tokens
		d.quotas.shared = d.work.Demands()
		d.quotas.node, err = readInstanceID(c.Data)
		if err != nil {
			return err
		}
	}
	d.newObservers()
	d.jails = jail.NewManager(jail.Config{
		Dir: filepath.Join(c.Data, "jails"), Store: d.store.Jails(), Rootfs: layers{d.images},
		Runtimes: d.runtimes(), Init: init, Boot: boot,
		Log:     d.log.With("part", "jail"),
		Backend: c.Backend, Runtime: c.Runtime, DefaultRootfs: c.Rootfs.Default,
		AllowMounts: c.Mounts.Allow, AllowWorkspaces: c.Workspaces.Allow,
		Enforcer: jailEnforcer{d.kernel, d.groups, d.fences},
		Secrets:  jailSecrets{d.secrets},
		Observer: watcher{d.observers}, Observe: c.Observe.selection(), Commands: commands{d}, Quotas: d.quotas,
		IDs: ids, FirstID: c.FirstID, Pool: jail.PoolConfig{Size: c.Pool.Size, TTL: c.Pool.TTL},
	})
	d.quotas.jails = d.jails
	return nil
}

// openJails opens the observers, the jails and their snapshots, and puts the rules of
// approvals that an earlier daemon did not apply into force.
func (d *Daemon) openJails(ctx context.Context) error {
	if err := d.observers.Open(); err != nil {
		return err
	}
	d.onClose(d.jails.Close)
	if err := d.jails.Open(ctx); err != nil {
		return fmt.Errorf("open the jails: %w", err)
	}
	if err := d.approvals.RememberOwed(ctx); err != nil {
		return fmt.Errorf("apply the rules of earlier approvals: %w", err)
	}
	if os.Geteuid() == 0 {
		d.guardNetwork()
	}
	d.limitLogs()
	d.onClose(d.snapshots.Close)
	return d.snapshots.Open(ctx)
}

// guardTime is how often the firewall rules for jails with full network access are checked.
// Until the next check, a reloaded host firewall may lack them.
const guardTime = 10 * time.Second

// guardNetwork maintains the host's firewall rules for jails with full network access. On
// close it removes them if no such jail exists.
func (d *Daemon) guardNetwork() {
	d.onClose(netns.Release) // after the loop
	d.every(guardTime, func(context.Context) {
		if err := netns.EnsureRules(); err != nil {
			d.log.Error("cannot check the firewall rules for jails with full network access", "err", err)
		}
	})
}

// every calls f in intervals until the daemon closes, which ends the context of f.
func (d *Daemon) every(interval time.Duration, f func(context.Context)) {
	d.everyOrWhen(interval, nil, f)
}

// everyOrWhen is like every, and also calls f when there is something in wake.
func (d *Daemon) everyOrWhen(interval time.Duration, wake <-chan struct{}, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-wake:
			}
			f(ctx)
		}
	})
	d.onClose(func() error {
		cancel()
		loop.Wait()
		return nil
	})
}

// images adapts the rootfs provider to the API.
type images struct {
	*rootfs.Provider
	jails     *jail.Manager
	snapshots *snapshot.Manager
}

func (i images) Prepare(ctx context.Context, r jail.Rootfs) (rootfs.Layer, error) {
	return i.Resolve(ctx, r)
}

func (i images) Prune(ctx context.Context) ([]rootfs.Image, error) {
	return i.Provider.Prune(ctx, append(i.jails.Digests(), i.snapshots.Digests()...))
}

// layers adapts the rootfs provider to the jail manager.
type layers struct{ p *rootfs.Provider }

func (l layers) Resolve(ctx context.Context, r jail.Rootfs) (jail.Layers, error) {
	layer, err := l.p.Resolve(ctx, r)
	if err != nil {
		return jail.Layers{}, err
	}
	got := jail.Layers{Digest: layer.Digest, Env: layer.Config.Env, Cwd: layer.Config.WorkingDir, User: layer.Config.User}
	if layer.Dir != "" {
		got.Dirs = []string{layer.Dir}
	}
	return got, nil
}

// install copies a program to a directory where jails can execute it. The file name contains a
// digest, so that a restarted jail gets the init of the daemon that starts it.
func (d *Daemon) install(kind, name string) (string, error) {
	program, err := d.program(name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(program)
	dir := filepath.Join(d.Config.Data, kind)
	as := filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:6]))
	if have, err := os.ReadFile(as); err == nil && bytes.Equal(have, program) {
		return as, nil
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", fmt.Errorf("create the directory of the program %s: %w", name, err)
	}
	return as, atomicfile.Write(as, program, 0o755)
}

// program reads a program from d.Programs or from the directory of the executable.
func (d *Daemon) program(name string) ([]byte, error) {
	if d.Programs != nil {
		if program, err := fs.ReadFile(d.Programs, name); err == nil {
			return program, nil
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program %s: %w", name, err)
	}
	program, err := os.ReadFile(filepath.Join(filepath.Dir(exe), name))
	if err != nil {
		return nil, &fault.Error{Op: "daemon.Open", Kind: fault.Unsupported, Err: errors.New("this binary was built without " + name), Remedy: "build it with make build"}
	}
	return program, nil
}

func newLogger(w io.Writer, c Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Run serves until ctx ends or a listener fails. Then it closes all components.
func (d *Daemon) Run(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
		if d.Config.StopJails {
			d.log.Info("stopping, with all jails")
			err = d.stopJails()
		} else {
			d.log.Info("stopping; jails keep running")
		}
	case err = <-d.serveErr:
		d.log.Error("a listener failed", "err", err)
	}
	err = errors.Join(err, d.Close())
	if ctx.Err() != nil && d.stopping != nil && d.stopping() {
		d.log.Info("the host shuts down, and all jails with it")
		err = errors.Join(err, d.endJails())
	}
	return err
}

// jailsTime is the grace period of jails when the daemon stops. It is shorter than the 10
// seconds after which container runtimes send SIGKILL.
const jailsTime = 5 * time.Second

// stopJails stops all running jails concurrently.
func (d *Daemon) stopJails() error {
	ctx := context.Background()
	all, err := d.jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the jails to stop: %w", err)
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, j := range all {
		if j.State != jail.Created && j.State != jail.Running && j.State != jail.Paused {
			continue
		}
		wg.Go(func() {
			if _, err := d.jails.Stop(ctx, j.ID, jail.StopOptions{Grace: jailsTime}); err != nil && fault.KindOf(err) != fault.NotFound {
				errs[i] = fmt.Errorf("stop jail %s: %w", j.ID, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close closes all components in reverse order of opening. A second call has no effect.
func (d *Daemon) Close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers = nil
	d.wg.Wait()
	return errors.Join(errs...)
}

// listenTCP opens the TCP listener.
func (d *Daemon) listenTCP() (net.Listener, error) {
	c := d.Config
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("open the listener of the API: %w", err)
	}
	if c.TLS.Cert == "" {
		return l, nil
	}
	cert, err := tls.LoadX509KeyPair(c.TLS.Cert, c.TLS.Key)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("read the TLS certificate: %w", err)
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}), nil
}

// listenUnix opens the Unix socket. Every local user may connect; access is decided by the
// peer credentials (SO_PEERCRED, unix(7)).
func (d *Daemon) listenUnix() (net.Listener, error) {
	path := d.Config.Socket.Path
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier daemon: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the socket of the API: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("allow users to connect to the socket: %w", err)
	}
	return l, nil
}

// graceful is how long requests may take to complete when the daemon stops.
const graceful = 5 * time.Second

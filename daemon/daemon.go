// Package daemon joins the parts of Glasshouse: it opens them in the order they
// need each other and closes them in reverse.
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
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/access"
	"glasshouse/api"
	"glasshouse/api/wire"
	"glasshouse/approval"
	"glasshouse/bundle"
	"glasshouse/chain"
	"glasshouse/connector"
	"glasshouse/engine/jailed"
	"glasshouse/fault"
	"glasshouse/gateway"
	"glasshouse/govern"
	"glasshouse/host/claims"
	"glasshouse/host/netns"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
	"glasshouse/llm"
	"glasshouse/memory"
	"glasshouse/observe"
	"glasshouse/registry"
	"glasshouse/rootfs"
	"glasshouse/run"
	"glasshouse/schedule"
	"glasshouse/secret"
	"glasshouse/snapshot"
	"glasshouse/store"

	"golang.org/x/sys/unix"
)

// A Daemon owns one data directory.
type Daemon struct {
	Config Config
	// Programs has glasshouse-init, and glasshouse-agent: the builtin agent, and the shim
	// of jailed ones. Others are read from the directory of the executable.
	Programs fs.FS
	Version  wire.Version
	LogTo    io.Writer

	log     *slog.Logger
	lock    *os.File
	cgroups string         // the cgroup that holds those of this data directory's jails
	claims  *claims.Claims // nil: the host has no cgroups
	store   *store.Store
	images  *rootfs.Provider
	jails   *jail.Manager
	tokens  *access.Tokens

	chain     *chain.Chain
	kernel    *govern.Kernel
	approvals *approval.Queue
	secrets   *secret.Keeper
	groups    *groups
	registry  *registry.Registry
	trust     *bundle.Trust
	markets   *markets
	sandboxes *jailed.Engine
	work      *store.Store // where sessions, runs and schedules are kept
	memory    *memory.Engine
	runs      *run.Manager
	schedules *schedule.Manager
	gateway   *gateway.Gateway
	models    *llm.Gateway // nil: there are none
	server    *api.Server
	e2b       api.E2B                         // where clients of E2B are served
	reached   string                          // address of the TCP listener; "" is none
	opened    atomic.Pointer[jail.Manager]    // jails, once they are open
	agents    atomic.Pointer[gateway.Gateway] // the gateway, once it is open

	connectors atomic.Pointer[connector.Connectors] // once they are made

	observers *observe.Observers
	snapshots *snapshot.Keeper
	keeper    atomic.Pointer[snapshot.Keeper] // snapshots, once they are open
	closers   []func() error                  // newest last

	wg       sync.WaitGroup
	serveErr chan error
	stopping func() bool // whether the host shuts down; nil before Open
}

// Open takes the data directory, finds the jails an earlier daemon left, and
// listens. When it returns the daemon can be spoken to.
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
	// Logs are compressed by a thread that gives way to all others. While it
	// waits for a processor it must not keep Go's own right to one from those
	// that read and write the record.
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
	if err := d.openGovernance(ctx); err != nil {
		return err
	}
	if err := d.openJails(ctx); err != nil {
		return err
	}
	if err := d.openSnapshots(ctx); err != nil {
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

// takeData makes the data directory and locks it: two daemons on one directory
// would each clean up the other's jails.
func (d *Daemon) takeData() error {
	dir := d.Config.Data
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := passable(dir); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := lockData(f); err != nil {
		f.Close()
		return &fault.Error{Op: "daemon.Open", On: dir, Kind: fault.Conflict,
			Err: errors.New("another daemon owns this data directory"), Remedy: "stop it, or give --data another directory"}
	}
	d.lock = f
	d.onClose(f.Close)
	return nil
}

// lockData locks the data directory. It waits for up to a second: a process that
// a killed daemon had forked holds a copy of the lock until it executes its program.
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

// passable returns an error if a directory on the way to dir is closed to other
// users. Root in a jail is one, and its root filesystem lies below dir.
func passable(dir string) error {
	for at := dir; at != "/"; at = filepath.Dir(at) {
		fi, err := os.Stat(at)
		if err != nil {
			return err
		}
		if fi.Mode().Perm()&0o001 == 0 {
			return &fault.Error{Op: "daemon.Open", On: dir, Kind: fault.Invalid,
				Err:    fmt.Errorf("jails run as users of their own, who may not pass through %s, mode %v", at, fi.Mode().Perm()),
				Remedy: fmt.Sprintf("chmod o+x %s, or give --data another directory", at)}
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
			return fmt.Errorf("the database of runs: %w", err)
		}
		d.onClose(d.work.Close)
	}

	d.tokens = &access.Tokens{Store: d.store.Tokens()}
	_, err = d.tokens.First(ctx, filepath.Join(d.Config.Data, "token"))
	return err
}

func (d *Daemon) openJails(ctx context.Context) error {
	c := d.Config
	init, err := d.install("bin", "glasshouse-init")
	if err != nil {
		return err
	}
	allow := c.Rootfs.Allow
	if dir := c.Rootfs.Default.Dir; dir != "" {
		allow = append(slices.Clone(allow), dir) // what the configuration names it allows
	}
	allow = append(slices.Clone(allow), filepath.Join(c.Data, "capabilities")) // what is registered is a copy
	d.images = rootfs.New(rootfs.Config{
		Dir: filepath.Join(c.Data, "images"), Default: c.Rootfs.Default,
		Allow: allow, Mirror: c.Rootfs.Mirror, Log: d.log.With("part", "rootfs"),
	})
	if err := d.images.Open(); err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
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
	if err := d.openObservers(); err != nil {
		return err
	}
	d.jails = jail.NewManager(jail.Config{
		Dir: filepath.Join(c.Data, "jails"), Store: d.store.Jails(), Rootfs: layers{d.images},
		Runtimes: d.runtimes(), Init: init, Boot: strings.TrimSpace(string(boot)),
		Log:     d.log.With("part", "jail"),
		Backend: c.Backend, Runtime: c.Runtime, DefaultRootfs: c.Rootfs.Default,
		AllowMounts: c.Mounts.Allow, AllowWorkspaces: c.Workspaces.Allow,
		Warden:   warden{d.kernel, d.groups, &d.agents},
		Secrets:  jailSecrets{d.secrets},
		Observer: watcher{d.observers}, Observe: c.Observe.selection(), Commands: commands{d},
		IDs: ids, FirstID: c.FirstID, Pool: jail.PoolConfig{Size: c.Pool.Size, TTL: c.Pool.TTL},
	})
	d.onClose(d.jails.Close)
	if err := d.jails.Open(ctx); err != nil {
		return err
	}
	d.opened.Store(d.jails)
	if err := d.approvals.RememberOwed(ctx); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		d.guardNetwork()
	}
	return nil
}

// guardTime is how often the host's rules for jails with full network are looked
// at: until then a firewall that was reloaded stands alone between them and the
// host.
const guardTime = 10 * time.Second

// guardNetwork keeps the host's rules for jails with full network in place, and
// removes them at the end if no such jail is left.
func (d *Daemon) guardNetwork() {
	stop := make(chan struct{})
	var loop sync.WaitGroup
	loop.Go(func() {
		tick := time.NewTicker(guardTime)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if err := netns.Uphold(); err != nil {
					d.log.Error("the host's rules for jails with full network could not be checked", "err", err)
				}
			}
		}
	})
	d.onClose(func() error {
		close(stop)
		loop.Wait()
		return netns.Release()
	})
}

// images is the rootfs provider as the API wants it.
type images struct {
	*rootfs.Provider
	jails     *jail.Manager
	snapshots *snapshot.Keeper
}

func (i images) Prepare(ctx context.Context, r jail.Rootfs) (rootfs.Layer, error) {
	return i.Resolve(ctx, r)
}

func (i images) Prune(ctx context.Context) ([]rootfs.Image, error) {
	return i.Provider.Prune(ctx, append(i.jails.Digests(), i.snapshots.Digests()...))
}

// layers is the rootfs provider as the jails want it.
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

// install puts a program where jails can get it, in a directory of its kind, under a name
// that tells builds apart: a jail that is started again gets the init of the daemon that
// starts it.
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
		return "", err
	}
	return as, atomicfile.Write(as, program, 0o755)
}

// program reads one of d.Programs.
func (d *Daemon) program(name string) ([]byte, error) {
	if d.Programs != nil {
		if program, err := fs.ReadFile(d.Programs, name); err == nil {
			return program, nil
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
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

// Run serves until ctx ends or a listener fails, then closes everything.
func (d *Daemon) Run(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
		if d.Config.StopJails {
			d.log.Info("stopping, with all jails")
			err = d.stopJails()
		} else {
			d.log.Info("stopping; jails go on")
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

// jailsTime is how long jails may take to end with the daemon: what stops containers
// waits ten seconds, and then kills.
const jailsTime = 5 * time.Second

// stopJails stops all jails that run, at once.
func (d *Daemon) stopJails() error {
	ctx := context.Background()
	all, err := d.jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return err
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

// Close lets go of everything, newest first. It can be called twice.
func (d *Daemon) Close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers = nil
	d.wg.Wait()
	return errors.Join(errs...)
}

// listenTCP opens the network's door.
func (d *Daemon) listenTCP() (net.Listener, error) {
	c := d.Config
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, err
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

// listenUnix opens the local door. Everybody may knock: who may come in is
// decided by the credentials the kernel tells.
func (d *Daemon) listenUnix() (net.Listener, error) {
	path := d.Config.Socket.Path
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// graceful bounds how long requests may take to end when the daemon stops.
const graceful = 5 * time.Second

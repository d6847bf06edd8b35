package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/criu"
	"glasshouse/host/disk"
	"glasshouse/host/netns"
	"glasshouse/host/overlay"
	"glasshouse/host/pages"
	"glasshouse/internal/dirs"
	"glasshouse/internal/undo"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/rootfs"
)

// Create implements jail.Backend.
func (b *Backend) Create(ctx context.Context, p jail.Plan) (_ jail.Instance, err error) {
	const op = "oci.Create"
	if err := b.check(p, op); err != nil {
		return nil, err
	}
	if err := b.checkAlone(p, op); err != nil {
		return nil, err
	}
	defer b.hurry.Begin()() // its processes will be moved
	m := &making{backend: b, plan: p, layout: layout{p.Dir}}
	m.ownNet = p.Network == jail.Isolated && b.kind.sentry && b.sentryCan(op) == nil
	defer m.undoOnError(&err, "create")
	defer fault.Recover(&err)
	if err := m.prepare(ctx); err != nil {
		return nil, err
	}
	if err := m.step("bundle", m.makeBundle); err != nil {
		return nil, err
	}
	return m.start(ctx)
}

// making is one jail on its way. Steps that do not need each other are taken at
// once; each pushes its inverse before it begins, for a step that fails half-way
// has to be undone too.
type making struct {
	backend *Backend
	plan    jail.Plan
	layout  layout
	undo    undo.Stack

	ownNet    bool         // gVisor has a network of its own for the jail
	restoring bool         // by CRIU
	worker    *criu.Worker // that will
	from      string       // images
	images    string       // its own, of those
	memory    *pages.Watch // of what it is made without, if it is
	server    string       // the program that gives that

	cgroup *cgroup.Cgroup // once prepared, as all below
	netns  string         // path of the network namespace
	binds  []bind         // the workspace and mounts
}

// undoOnError undoes what was done so far if *err is set, which it wraps in the
// operation and the jail.
func (m *making) undoOnError(err *error, operation string) {
	if *err == nil {
		return
	}
	*err = fmt.Errorf("%s jail %s: %w", operation, m.plan.ID, disk.WriteError(m.layout.image(), *err))
	if more := m.undo.Run(); more != nil {
		m.backend.log.Error("a jail that could not be made left something behind", "jail", m.plan.ID, "err", more)
		*err = errors.Join(*err, more)
	}
}

// prepare makes everything a jail consists of but its processes. The volume
// takes longest and what follows needs it: that is the line this goroutine
// takes, while others make the rest.
func (m *making) prepare(ctx context.Context) (err error) {
	l := m.layout
	m.undo.Push("remove the bundle", func() error {
		return removeAll(l.control(), l.identity(), l.bundle(), l.record())
	})
	caller := ctx
	steps, ctx := errgroup.WithContext(ctx)
	defer func() { err = errors.Join(err, steps.Wait()) }()

	networked, identified := make(chan struct{}), make(chan struct{})
	steps.Go(func() error {
		defer close(networked)
		return m.step("network", func() error { return m.makeNetwork(ctx) })
	})
	grouped := make(chan struct{})
	steps.Go(func() error {
		defer close(grouped)
		return m.step("cgroup", m.makeCgroup)
	})
	if m.restoring {
		steps.Go(func() error { return m.step("images", func() error { return m.makeImages(ctx) }) })
		steps.Go(func() error { // it takes as long to load as the volume to be made
			<-networked
			<-grouped
			if ctx.Err() != nil { // the caller gave up, or a step failed that the worker needs
				return context.Cause(ctx)
			}
			return m.step("worker", m.startWorker)
		})
	}
	var ids *os.File
	defer func() { <-identified; ids.Close() }()
	steps.Go(func() (err error) {
		defer close(identified)
		if err := m.step("control", m.makeControl); err != nil {
			return err
		}
		if err := m.step("identity", m.makeIdentity); err != nil {
			return err
		}
		return m.step("idmap", func() error {
			ids, err = overlay.IDMapFD(m.plan.IDs.First, m.plan.IDs.Count)
			return err
		})
	})

	if err := m.step("volume", func() error { return m.makeVolume(ctx) }); err != nil {
		return err
	}
	<-identified
	if ctx.Err() != nil {
		return context.Cause(caller) // nil if a step failed: Wait returns the error of that
	}
	var binds []bind
	err = m.step("layers", func() (err error) {
		if err = m.makeRoot(ids); err == nil {
			binds, err = stageBinds(m.plan, l, ids)
		}
		if err != nil {
			return err
		}
		secrets, err := m.stageSecrets()
		binds = append(binds, secrets...)
		return err
	})
	if err != nil {
		return err
	}
	<-networked
	if ctx.Err() != nil {
		return context.Cause(caller)
	}
	m.binds = binds
	return m.step("devices", func() error {
		return errors.Join(netns.MountSysfs(m.netns, l.sysfs()), makeDevices(m.plan, l))
	})
}

// step takes one step and reports how long it took to the backend's trace. Steps
// run in goroutines of their own, so a panic in one is returned as its error.
func (m *making) step(name string, f func() error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	defer fault.Recover(&err)
	began := time.Now()
	err = f()
	if trace := m.backend.trace; trace != nil {
		trace(name, time.Since(began))
	}
	return err
}

// makeVolume mounts the jail's disk and makes the directories on it.
func (m *making) makeVolume(ctx context.Context) error {
	l := m.layout
	if err := dropSealed(m.plan, l); err != nil {
		return err
	}
	if _, err := os.Lstat(l.image()); errors.Is(err, os.ErrNotExist) {
		m.undo.Push("remove the volume", func() error { return removeAll(l.image(), l.volume()) })
	}
	if err := dirs.Make(l.volume()); err != nil {
		return err
	}
	m.undo.Push("unmount", func() error { return errors.Join(dropStaged(l), releaseVolume(l)) })
	if err := disk.Make(ctx, l.image(), l.volume(), m.plan.Limits.DiskMB, m.backend.cfg.Templates); err != nil {
		return err
	}
	if err := dirs.Make(l.upper(), l.staged(""), l.staged("volume"), l.staged("control"), l.sysfs(), l.merged()); err != nil {
		return err
	}
	return dirs.Empty(l.work())
}

func (m *making) makeCgroup() error {
	tree, err := m.backend.tree()
	if err != nil {
		return err
	}
	name := string(m.plan.ID)
	m.undo.Push("remove the cgroup", func() error { return tree.Destroy(context.Background(), name) })
	limits := m.backend.kind.limits(m.plan.Limits)
	if m.restoring { // CRIU needs a little beside the jail, at first
		limits.PIDs, limits.MemoryBytes = limits.PIDs+restorers, limits.MemoryBytes+restorerMemory
	}
	m.cgroup, err = tree.Create(name, limits)
	return err
}

// checkAlone refuses to make a jail that runs: undoing would end it.
func (b *Backend) checkAlone(p jail.Plan, op string) error {
	tree, err := b.tree()
	if err != nil {
		return err
	}
	cg, err := tree.Open(string(p.ID))
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if busy, err := cg.Populated(); err != nil || busy {
		return errors.Join(err, fault.Newf(fault.Conflict, op, string(p.ID), "the jail is running"))
	}
	return nil
}

// makeControl makes the directory that init's socket is to be in. Until init has
// made it the directory belongs to the jail's root. Where a door takes the
// socket's place it never does.
func (m *making) makeControl() error {
	dir := m.layout.control()
	if err := dirs.Empty(dir); err != nil {
		return err
	}
	if err := installInit(m.plan.Init, filepath.Join(dir, "init")); err != nil {
		return fmt.Errorf("install init: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil || m.backend.kind.sentry {
		return err
	}
	first := int(m.plan.IDs.First)
	return os.Chown(dir, first, first)
}

// installInit puts the init binary where the jail finds it: the same file if it
// can be had there under a second name, else a copy.
func installInit(src, dst string) error {
	src, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	st, err := os.Stat(src)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Mode()&0o005 != 0o005 {
		return fault.Newf(fault.Invalid, "oci.Create", src, "not a program that everybody may read and run")
	}
	if os.Link(src, dst) == nil {
		return nil
	}
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return errors.Join(out.Chmod(0o755), out.Close())
}

// sealControl takes the directory of init's socket away from the jail: it can
// neither put another socket there, or a link to one of the host's, for the
// daemon to talk to, nor fill the host's disk, nor talk to its init itself. Its
// processes can still be sent a descriptor.
func sealControl(l layout) error {
	if err := os.Lchown(l.control(), 0, 0); err != nil {
		return err
	}
	st, err := os.Lstat(l.socket())
	if err != nil {
		return err
	}
	if st.Mode().Type() != os.ModeSocket {
		return fault.Newf(fault.Denied, "oci.Create", l.socket(), "what init made is no socket")
	}
	return errors.Join(os.Lchown(l.socket(), 0, 0), os.Chmod(l.socket(), 0o600))
}

// makeIdentity makes the layer that is this jail's alone.
func (m *making) makeIdentity() error {
	if err := m.backend.base(); err != nil {
		return err
	}
	resolv := ""
	switch m.plan.Network {
	case jail.Full:
		resolv = hostResolv()
	case jail.Proxied, jail.Bridged: // the daemon answers for names
		resolv = "nameserver " + netns.Gateway.String() + "\n"
	}
	return rootfs.Identity(m.layout.identity(), m.plan.Hostname, resolv)
}

// makeRoot stacks the root filesystem, each layer shown with the jail's ids.
func (m *making) makeRoot(ids *os.File) error {
	l := m.layout
	readOnly := overlay.CloneOptions{IDMap: ids, Options: overlay.Options{ReadOnly: true, NoDev: true}}
	var lower []string
	layers := append([]string{l.identity()}, sealedLayers(m.plan, l)...)
	layers = append(append(layers, m.plan.Lower...), m.backend.cfg.Base)
	if err := mountSealed(m.plan, l); err != nil {
		return err
	}
	for i, layer := range layers {
		at := l.layer(i)
		if err := dirs.Make(at); err != nil {
			return err
		}
		if err := overlay.Clone(layer, at, readOnly); err != nil {
			return err
		}
		lower = append(lower, at)
	}
	mapped := l.staged("volume")
	if err := overlay.Clone(l.volume(), mapped, overlay.CloneOptions{IDMap: ids, Options: noPrivilege}); err != nil {
		return err
	}
	upper, work := filepath.Join(mapped, filepath.Base(l.upper())), filepath.Join(mapped, filepath.Base(l.work()))
	// Set-user-id programs are void in the jail by no_new_privs; here the mount
	// is also seen by the host.
	if err := overlay.Mount(l.merged(), lower, upper, work, noPrivilege); err != nil {
		return err
	}
	return overlay.Clone(l.control(), l.staged("control"), overlay.CloneOptions{Options: noPrivilege})
}

// makeBundle writes what the runtime is told.
func (m *making) makeBundle() error {
	l := m.layout
	if err := dirs.Empty(l.bundle()); err != nil {
		return err
	}
	path := filepath.Join("/", m.backend.cfg.CgroupPrefix, string(m.plan.ID))
	spec := newSpec(m.plan, m.backend.kind, l, m.netns, path, m.binds)
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.bundle(), "config.json"), b, 0o600)
}

// start starts init, waits for its answer, and takes away what only starting
// needed.
func (m *making) start(ctx context.Context) (*instance, error) {
	b, p, l := m.backend, m.plan, m.layout
	if err := os.MkdirAll(b.state(), 0o700); err != nil {
		return nil, err
	}
	m.undo.Push("remove the runtime's notes", func() error { return b.forget(p) })
	m.undo.Push("kill its processes", func() error { return m.cgroup.Kill(context.Background()) })
	if err := m.step("runtime", func() error { return b.run(ctx, p, l, m.sentryFlags(os.DevNull), "run") }); err != nil {
		return nil, err
	}
	return m.adopt(ctx, "")
}

// adopt takes over from the runtime, which has ended. A jail that is still does not
// answer.
func (m *making) adopt(ctx context.Context, how string) (*instance, error) {
	b, p, l := m.backend, m.plan, m.layout
	pid, err := readPID(l.pidFile())
	if err != nil {
		return nil, err
	}
	pidfd, err := openPID(pid)
	if err != nil {
		return nil, fmt.Errorf("init ended at once: %w", err)
	}
	i := b.newInstance(p, m.cgroup, pid, pidfd)
	m.undo.Push("let go of init", i.Close)
	r, err := newRecord(pid)
	if err != nil {
		return nil, err
	}
	r.Still, r.OwnNet = how, m.ownNet
	i.still.Store(how == still)
	if err := r.write(l.record()); err != nil {
		return nil, err
	}
	var meanwhile errgroup.Group
	meanwhile.Go(func() error { return m.step("unmount", func() error { return dropStaged(l, l.secrets()) }) })
	err = nil
	if how != still {
		err = m.step("answer", func() error { return i.answer(ctx) })
	}
	if err := errors.Join(err, meanwhile.Wait()); err != nil {
		return nil, err
	}
	if err := sealControl(l); err != nil {
		return nil, err
	}
	if p.Enforce {
		if err := m.step("enforce", func() error { return i.enforce(ctx) }); err != nil {
			return nil, err
		}
	}
	m.undo.Keep()
	return i, nil
}

// answer waits until init answers, or is gone.
func (i *instance) answer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ctx, gone := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer gone(nil)
	watch.Go(func() {
		select {
		case <-i.done:
			gone(errors.New("init ended at once"))
		case <-ctx.Done():
		}
	})
	_, err := control.Dial(i.layout.socket()).WaitReady(ctx)
	if err != nil && context.Cause(ctx) != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

func readPID(name string) (int, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("%s holds %.20q, not a pid", name, b)
	}
	return pid, nil
}

// openHybrid opens the jail's directory in the second generation of cgroups
// where that is beside the first, or returns nil.
func (b *Backend) openHybrid(p jail.Plan) (*os.File, error) {
	if b.hybrid == "" {
		return nil, nil
	}
	return os.OpenFile(filepath.Join(b.hybrid, b.cfg.CgroupPrefix, string(p.ID)), unix.O_PATH|unix.O_DIRECTORY, 0)
}

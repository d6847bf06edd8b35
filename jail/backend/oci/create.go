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
	"glasshouse/internal/procstat"
	"glasshouse/internal/undo"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/rootfs"
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
	defer b.hurry.Begin()() // the runtime will move processes between cgroups
	m := &builder{backend: b, plan: p, layout: layout{p.Dir}}
	m.ownNet = p.Network == jail.Isolated && b.kind.sentry && b.checkSentry(op) == nil
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

// A builder creates or restores one jail. Independent steps run concurrently. Each step pushes
// its inverse before it starts, because a step that fails midway must be undone as well.
type builder struct {
	backend *Backend
	plan    jail.Plan
	layout  layout
	undo    undo.Stack

	ownNet       bool         // gVisor provides its own network stack for the jail
	restoring    bool         // the jail is restored by CRIU
	worker       *criu.Worker // the CRIU worker
	sourceImages string       // directory of the snapshot's images
	images       string       // directory of the jail's copy of the images
	memoryWatch  *pages.Watch // watches the lazily loaded memory, or nil
	pageServer   string       // program of the page server

	cgroup *cgroup.Cgroup // this and the following fields are set by prepare
	netns  string         // path of the network namespace
	binds  []bind         // the workspace and mounts
}

// undoOnError undoes the completed steps if *err is set and wraps *err.
func (m *builder) undoOnError(err *error, operation string) {
	if *err == nil {
		return
	}
	*err = fmt.Errorf("%s jail %s: %w", operation, m.plan.ID, disk.WriteError(m.layout.image(), *err))
	if more := m.undo.Run(); more != nil {
		m.backend.log.Error("failed to undo the creation of a jail", "jail", m.plan.ID, "err", more)
		*err = errors.Join(*err, more)
	}
}

// prepare creates everything except the processes. The volume takes longest and later steps
// need it, so this goroutine creates the volume while other goroutines do the rest.
func (m *builder) prepare(ctx context.Context) (err error) {
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
		steps.Go(func() error { // starting CRIU takes as long as creating the volume
			<-networked
			<-grouped
			if ctx.Err() != nil { // the caller cancelled, or a required step failed
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
		return errors.Join(netns.MountSysfs(m.netns, l.sysfs()), base.MakeDevices(m.plan.IDs, m.plan.Limits.MemoryMB<<20, l.dev(), l.shm()))
	})
}

// step runs one step and reports its duration to the backend's trace. Steps run in their own
// goroutines, so a panic is returned as an error.
func (m *builder) step(name string, f func() error) (err error) {
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

// makeVolume mounts the jail's disk and creates its directories.
func (m *builder) makeVolume(ctx context.Context) error {
	l := m.layout
	if err := base.RemoveSealedVolume(m.plan, l.image()); err != nil {
		return fmt.Errorf("remove the sealed volume: %w", err)
	}
	if _, err := os.Lstat(l.image()); errors.Is(err, os.ErrNotExist) {
		m.undo.Push("remove the volume", func() error { return removeAll(l.image(), l.volume()) })
	}
	if err := dirs.Make(l.volume()); err != nil {
		return fmt.Errorf("make the mount point of the volume: %w", err)
	}
	m.undo.Push("unmount", func() error { return errors.Join(unmountStaged(l), releaseVolume(l)) })
	if err := disk.Make(ctx, l.image(), l.volume(), m.plan.Limits.DiskMB, m.backend.cfg.Templates); err != nil {
		return err
	}
	if err := dirs.Make(l.upper(), l.staged(""), l.staged("volume"), l.staged("control"), l.sysfs(), l.merged()); err != nil {
		return fmt.Errorf("make the directories on the volume: %w", err)
	}
	return dirs.Empty(l.work())
}

func (m *builder) makeNetwork(ctx context.Context) error {
	networks, p := m.backend.networks, m.plan
	m.undo.Push("remove the network", func() error { return networks.Remove(p) })
	n, err := networks.Create(ctx, p)
	if err != nil {
		return err
	}
	m.netns = n.Path
	return nil
}

func (m *builder) makeCgroup() error {
	tree, err := m.backend.tree()
	if err != nil {
		return err
	}
	name := string(m.plan.ID)
	m.undo.Push("remove the cgroup", func() error { return tree.Destroy(context.Background(), name) })
	limits := m.backend.kind.limits(m.plan.Limits)
	if m.restoring { // until the restore is complete CRIU runs in the cgroup, too
		limits.PIDs, limits.MemoryBytes = limits.PIDs+criuTasks, limits.MemoryBytes+criuMemory
	}
	m.cgroup, err = tree.Create(name, limits)
	return err
}

// checkAlone returns an error if the jail is running.
func (b *Backend) checkAlone(p jail.Plan, op string) error {
	tree, err := b.tree()
	if err != nil {
		return err
	}
	return base.CheckAlone(tree, p, op)
}

// makeControl creates the directory of init's socket. The directory belongs to root in the
// jail until init has created the socket. With gVisor it always belongs to the host's root,
// because the daemon creates the socket.
func (m *builder) makeControl() error {
	dir := m.layout.control()
	if err := dirs.Empty(dir); err != nil {
		return fmt.Errorf("empty the control directory: %w", err)
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

// installInit hard-links the init binary into the jail's control directory, or copies it if it
// is on another filesystem.
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
		return fault.Newf(fault.Invalid, "oci.Create", src, "init must be a regular file that all users may read and execute")
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

// makeIdentity creates the layer with the files that are unique to this jail.
func (m *builder) makeIdentity() error {
	if err := m.backend.base(); err != nil {
		return err
	}
	return rootfs.Identity(m.layout.identity(), m.plan.Hostname, base.Resolv(m.plan))
}

// makeRoot mounts the root filesystem as an overlay of layers that are idmapped to the jail's
// ids.
func (m *builder) makeRoot(ids *os.File) error {
	l := m.layout
	readOnly := overlay.CloneOptions{IDMap: ids, Options: overlay.Options{ReadOnly: true, NoDev: true}}
	var lower []string
	layers := append([]string{l.identity()}, sealedLayers(m.plan, l)...)
	layers = append(append(layers, m.plan.Lower...), m.backend.cfg.Base)
	if err := mountSealed(m.plan, l); err != nil {
		return fmt.Errorf("mount the sealed layers: %w", err)
	}
	for i, layer := range layers {
		at := l.layer(i)
		if err := dirs.Make(at); err != nil {
			return fmt.Errorf("make the mount point of layer %d: %w", i, err)
		}
		if err := overlay.Clone(layer, at, readOnly); err != nil {
			return err
		}
		lower = append(lower, at)
	}
	mapped := l.staged("volume")
	if err := overlay.Clone(l.volume(), mapped, overlay.CloneOptions{IDMap: ids, Options: base.NoPrivilege}); err != nil {
		return err
	}
	upper, work := filepath.Join(mapped, filepath.Base(l.upper())), filepath.Join(mapped, filepath.Base(l.work()))
	// no_new_privs disables set-user-id programs in the jail. The nosuid flag protects the
	// host, which sees this mount as well.
	if err := overlay.Mount(l.merged(), lower, upper, work, base.NoPrivilege); err != nil {
		return err
	}
	return overlay.Clone(l.control(), l.staged("control"), overlay.CloneOptions{Options: base.NoPrivilege})
}

// makeBundle writes the OCI bundle.
func (m *builder) makeBundle() error {
	l := m.layout
	if err := dirs.Empty(l.bundle()); err != nil {
		return fmt.Errorf("empty the bundle directory: %w", err)
	}
	path := filepath.Join("/", m.backend.cfg.CgroupPrefix, string(m.plan.ID))
	spec := newSpec(m.plan, m.backend.kind, l, m.netns, path, m.binds)
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the OCI specification: %w", err)
	}
	return os.WriteFile(filepath.Join(l.bundle(), "config.json"), b, 0o600)
}

// start starts init, waits until it responds, and removes the files that only the start needed.
func (m *builder) start(ctx context.Context) (*instance, error) {
	b, p, l := m.backend, m.plan, m.layout
	if err := os.MkdirAll(b.state(), 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory of the runtime: %w", err)
	}
	m.undo.Push("remove the runtime's state", func() error { return b.removeRuntimeState(p) })
	m.undo.Push("kill its processes", func() error { return m.cgroup.Kill(context.Background()) })
	if err := m.step("runtime", func() error { return b.run(ctx, p, l, m.sentryFlags(os.DevNull), "run") }); err != nil {
		return nil, err
	}
	return m.adopt(ctx, "")
}

// adopt creates the instance after the runtime has exited. state is statePaused for a restored
// gVisor jail, whose init does not respond yet.
func (m *builder) adopt(ctx context.Context, how string) (*instance, error) {
	b, p, l := m.backend, m.plan, m.layout
	pid, err := readPID(l.pidFile())
	if err != nil {
		return nil, fmt.Errorf("read the pid of init: %w", err)
	}
	pidfd, err := base.OpenProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("init exited immediately: %w", err)
	}
	i := b.newInstance(p, m.cgroup, pid, pidfd)
	m.undo.Push("close the pidfd of init", i.Close)
	r := record{SentryState: how, OwnNet: m.ownNet}
	r.Identity, err = procstat.Identify(pid)
	if err != nil {
		return nil, fmt.Errorf("identify init: %w", err)
	}
	i.sentryPaused.Store(how == statePaused)
	// The record exists before init answers. If the daemon is killed in between, Open finds the
	// jail by it and completes the creation.
	if err := base.WriteRecord(l.record(), r); err != nil {
		return nil, err
	}
	var meanwhile errgroup.Group
	meanwhile.Go(func() error { return m.step("unmount", func() error { return unmountStaged(l, l.secrets()) }) })
	err = nil
	if how != statePaused {
		err = m.step("answer", func() error { return i.WaitReady(ctx) })
	}
	if err := errors.Join(err, meanwhile.Wait()); err != nil {
		return nil, err
	}
	if err := base.SealControl(l.socket(), "oci.Create"); err != nil {
		return nil, err
	}
	if p.Enforce {
		if err := m.step("enforce", func() error { return i.Enforce(ctx) }); err != nil {
			return nil, err
		}
	}
	m.undo.Keep()
	return i, nil
}

func readPID(name string) (int, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("%s contains %.20q, want a pid", name, b)
	}
	return pid, nil
}

// openHybrid opens the jail's cgroup v2 directory on a hybrid host, or returns nil on others.
func (b *Backend) openHybrid(p jail.Plan) (*os.File, error) {
	if b.hybrid == "" {
		return nil, nil
	}
	return os.OpenFile(filepath.Join(b.hybrid, b.cfg.CgroupPrefix, string(p.ID)), unix.O_PATH|unix.O_DIRECTORY, 0)
}

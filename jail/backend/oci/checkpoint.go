package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/criu"
	"glasshouse/host/netns"
	"glasshouse/host/process"
	"glasshouse/host/seccomp"
	"glasshouse/host/secretfs"
	"glasshouse/internal/dirs"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

var _ jail.Checkpointer = (*Backend)(nil)

const (
	notesFile = "jail.json" // data that the images do not contain
	initFile  = "init"      // the init binary of the jail, which can differ from a newer daemon's
)

// notes are stored with the images of a jail.
type notes struct {
	External map[string]externalMount `json:"lent"` // external mounts, by mount point
	Init     string                   `json:"init"` // digest of the init binary
	Net      jail.Network             `json:"net"`  // network of the sockets in the images

	OwnNet bool             `json:"own_net,omitempty"` // the sockets belong to gVisor's own network stack
	Sizes  map[string]int64 `json:"sizes,omitempty"`   // sizes of gVisor's images: runsc would wait for truncated data
}

// An externalMount is a mount that the host provides.
type externalMount struct {
	Dir   bool   `json:"dir"`   // a directory, otherwise a file
	Flags string `json:"flags"` // as in mountinfo (proc(5)): "ro,nosuid"
}

// CanCheckpoint implements jail.Checkpointer.
func (b *Backend) CanCheckpoint(ctx context.Context) error {
	if why, lacking := b.Lacks()["freeze"]; lacking {
		return fault.Cannot("oci.CanCheckpoint", why, "mount the cgroup2 filesystem")
	}
	if b.kind.sentry {
		return b.checkSentry("oci.CanCheckpoint")
	}
	return b.checkpoints.Of(func() error { return b.criu.Probe(ctx) })
}

// Dump implements jail.Checkpointer.
func (b *Backend) Dump(ctx context.Context, p jail.Plan, i jail.Instance, dir string) (err error) {
	inst, ok := i.(*instance)
	if !ok {
		return fault.Newf(fault.Invalid, "oci.Dump", string(p.ID), "not a jail of this backend")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint jail %s: %w", p.ID, err)
		}
	}()
	if b.kind.sentry {
		return b.dumpSentry(ctx, p, inst, dir)
	}
	if err := inst.loadMemory(ctx); err != nil {
		return err
	}
	n := notes{External: map[string]externalMount{}, Net: p.Network}
	mounts, err := externalMounts(inst.PID())
	if err != nil {
		return err
	}
	d := criu.Dump{PID: inst.PID(), Netns: b.networks.Path(p), Cgroup: inst.cgroup, Dir: dir}
	d.OnLinks = func(names []string) error { return saveLinks(inst.PID(), names, dir) }
	if watched := inst.watched.Load(); watched != nil {
		d.Watched = *watched
	}
	for at, flags := range mounts {
		st, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", inst.PID(), at))
		if err != nil {
			return fmt.Errorf("inspect the external mount at %s: %w", at, err)
		}
		n.External[at], d.External = externalMount{st.IsDir(), flags}, append(d.External, at)
	}
	// CRIU restores a socket with its owner, who must have an id in the jail.
	first := int(p.IDs.First)
	if err := os.Lchown(inst.layout.socket(), first, first); err != nil {
		return fmt.Errorf("give init's socket to root of the jail: %w", err)
	}
	defer func() { err = errors.Join(err, base.SealControl(inst.layout.socket(), "oci.Dump")) }()
	d.Worker = inst.worker.Swap(nil)
	// Do the rest concurrently with CRIU, because the jail is paused.
	steps, stepCtx := errgroup.WithContext(ctx)
	steps.Go(fault.Catch(func() error { return b.criu.Dump(stepCtx, d) }))
	steps.Go(fault.Catch(func() (err error) {
		n.Init, err = copyInit(filepath.Join(inst.layout.control(), "init"), filepath.Join(dir, initFile))
		if err != nil {
			return fmt.Errorf("copy init: %w", err)
		}
		b, err := json.Marshal(n)
		if err != nil {
			return fmt.Errorf("encode the notes of the checkpoint: %w", err)
		}
		return os.WriteFile(filepath.Join(dir, notesFile), b, 0o600)
	}))
	steps.Go(fault.Catch(func() error { return packMemory(inst.PID(), p.IDs, dir) }))
	return steps.Wait()
}

// externalMounts returns the mount points that CRIU must not dump, with their flags: all
// except the root and kernel filesystems that belong to the jail's namespaces.
func externalMounts(pid int) (map[string]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, fmt.Errorf("list the mounts of the jail: %w", err)
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("parse the mounts of process %d: %w", pid, err)
	}
	at := map[string]string{}
	for _, m := range infos {
		switch {
		case m.Mountpoint == "/", m.FSType == "proc", m.FSType == "devpts", m.FSType == "mqueue":
		case m.Source == secretfs.Source:
			return nil, fault.Newf(fault.Conflict, "oci.Dump", "", "the jail's secrets are still mounted")
		default:
			at[m.Mountpoint] = m.Options
		}
	}
	return at, nil
}

// copyInit copies the init binary and returns its digest.
func copyInit(src, dst string) (string, error) {
	in, err := os.Open(src)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), in)
	return hex.EncodeToString(sum.Sum(nil)), errors.Join(err, out.Chmod(0o755), out.Close())
}

// digestOf returns the digest of a file. It caches the digest, so the file must not change.
func (b *Backend) digestOf(name string) (string, error) {
	if d, ok := b.digests.Load(name); ok {
		return d.(string), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	d := hex.EncodeToString(sum.Sum(nil))
	b.digests.Store(name, d)
	return d, nil
}

// Restore implements jail.Checkpointer.
func (b *Backend) Restore(ctx context.Context, p jail.Plan, dir string) (_ jail.Instance, err error) {
	const op = "oci.Restore"
	if b.kind.sentry {
		if err := b.checkSentry(op); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(b.check(p, op), b.checkAlone(p, op)); err != nil {
		return nil, err
	}
	n, err := readNotes(dir)
	if err != nil {
		return nil, fmt.Errorf("prepare the images in %s: %w", dir, err)
	}
	defer b.hurry.Begin()()
	m := &builder{backend: b, plan: p, layout: layout{p.Dir}, restoring: !b.kind.sentry, sourceImages: dir, pageServer: p.Init}
	defer m.undoOnError(&err, "restore")
	defer fault.Recover(&err)
	if digest, err := b.digestOf(p.Init); err != nil || digest != n.Init {
		m.plan.Init = filepath.Join(dir, initFile) // the images are from an older daemon
		if err := os.Chmod(m.plan.Init, 0o755); err != nil {
			return nil, fmt.Errorf("make the init of the snapshot executable: %w", err)
		}
	}
	if err := m.prepare(ctx); err != nil {
		return nil, err
	}
	if b.kind.sentry {
		m.ownNet = n.OwnNet
		if err := checkSizes(dir, n.Sizes); err != nil {
			return nil, err
		}
		if err := m.step("bundle", m.makeBundle); err != nil {
			return nil, err
		}
		return m.restoreSentry(ctx, dir)
	}
	return m.restore(ctx, dir, n)
}

func readNotes(dir string) (n notes, err error) {
	b, err := os.ReadFile(filepath.Join(dir, notesFile))
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(b, &n); err != nil {
		return n, fmt.Errorf("decode %s: %w", notesFile, err)
	}
	return n, nil
}

// restore restores the processes and removes the files that only the restore needed.
func (m *builder) restore(ctx context.Context, dir string, n notes) (*instance, error) {
	b, p, l := m.backend, m.plan, m.layout
	sources, err := m.externalSources(n)
	if err != nil {
		return nil, err
	}
	if err := unpackMemory(dir, p.IDs, l); err != nil {
		return nil, fmt.Errorf("restore the content of /dev: %w", err)
	}
	if err := m.restoreLinks(dir); err != nil {
		return nil, fmt.Errorf("restore the links to removed files: %w", err)
	}
	if err := m.worker.AttachMount(l.volume()); err != nil {
		return nil, fmt.Errorf("attach the volume to CRIU: %w", err)
	}
	if n.Net != p.Network { // sockets may be bound to addresses that do not exist here
		if err := netns.AllowNonlocalBind(m.netns); err != nil {
			return nil, fmt.Errorf("allow sockets to bind to nonlocal addresses: %w", err)
		}
	}
	m.undo.Push("kill its processes", func() error { return m.cgroup.Kill(context.Background()) })
	var pid int
	var outward *criu.Connections
	if p.LinkDetached {
		outward = &criu.Connections{}
		m.undo.Push("close its connections", func() error { outward.Close(); return nil })
	}
	err = m.step("criu", func() (err error) {
		pid, err = b.criu.Restore(ctx, criu.Restore{
			Dir: m.images, Root: l.merged(), External: sources, Netns: m.netns, Cgroup: m.cgroup, Worker: m.worker,
			CloseConnections: n.Net != p.Network, Lazy: m.memoryWatch != nil, KeepConnections: outward,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	pidfd, err := base.OpenProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("init exited immediately: %w", err)
	}
	i := b.newInstance(p, m.cgroup, pid, pidfd)
	i.SetListener(m.worker.Listener())
	i.outward = outward
	m.undo.Push("let go of init", i.Close)
	if m.memoryWatch != nil {
		i.watchMemory(m.memoryWatch)
	}
	r := record{Restored: process.Now()} // the processes are still frozen
	r.Identity, err = procstat.Identify(pid)
	if err != nil {
		return nil, fmt.Errorf("identify init: %w", err)
	}
	err = m.step("settle", func() error {
		var steps errgroup.Group
		steps.Go(fault.Catch(func() error { return base.WriteRecord(l.record(), r) }))
		steps.Go(fault.Catch(func() error { return unmountStaged(l) }))
		steps.Go(fault.Catch(func() error { return dropImages(p, l) }))
		steps.Go(fault.Catch(func() error {
			if p.LinkDetached {
				return nil // MoveLink closes connections
			}
			return netns.CloseExternalConns(m.netns)
		}))
		err := errors.Join(m.cgroup.Change(b.kind.limits(p.Limits)), base.SealControl(l.socket(), "oci.Restore"))
		return errors.Join(err, steps.Wait())
	})
	if err != nil {
		return nil, err
	}
	m.undo.Keep()
	return i, nil
}

const (
	criuTasks  = 16       // tasks of CRIU during a restore
	criuMemory = 64 << 20 // memory of those tasks
)

// startWorker starts the CRIU worker for the restore.
func (m *builder) startWorker() (err error) {
	var asking *criu.NotifyFilter
	if m.plan.Enforce {
		filter, err := seccomp.Notify(runtime.GOARCH)
		if err != nil {
			return err
		}
		asking = &criu.NotifyFilter{Init: m.pageServer, Filter: filter} // the filter in the image may be older
	}
	if m.worker, err = m.backend.criu.ToRestore(m.netns, m.cgroup, asking); err != nil {
		return err
	}
	m.undo.Push("stop the worker", m.worker.Close)
	return nil
}

// externalSources returns the prepared mount for each external mount point.
func (m *builder) externalSources(n notes) (map[string]string, error) {
	l := m.layout
	sources := map[string]string{
		"/dev": l.dev(), "/dev/shm": l.shm(), "/sys": l.sysfs(), controlDir: l.staged("control"),
	}
	for _, b := range m.binds {
		sources[b.target] = b.source
	}
	lent := map[string]string{}
	covers := map[string]string{} // by flags
	for at, loan := range n.External {
		source, ok := sources[at]
		if !ok && !slices.Contains(base.Masked, at) {
			return nil, fault.Newf(fault.Invalid, "oci.Restore", at, "the snapshot has a mount here that the new jail does not have")
		}
		if !ok {
			cover := covers[loan.Flags]
			if cover == "" {
				cover = l.staged(fmt.Sprintf("cover-%d", len(covers)))
				if err := mountMask(cover, loan.Flags); err != nil {
					return nil, fmt.Errorf("prepare the cover of %s: %w", at, err)
				}
				covers[loan.Flags] = cover
			}
			source = filepath.Join(cover, "null")
			if loan.Dir {
				source = filepath.Join(cover, "empty")
			}
		}
		lent[at] = source
	}
	return lent, nil
}

// mountMask mounts an empty directory and a null device that cover masked paths of /proc and
// /sys. The flags are those of the runtime's own masks. They differ between runtimes, and CRIU
// can neither add all missing flags nor remove any.
func mountMask(at, flags string) error {
	var bits uintptr
	for flag := range strings.SplitSeq(flags, ",") {
		bits |= mountFlags[flag]
	}
	empty, null := filepath.Join(at, "empty"), filepath.Join(at, "null")
	if err := errors.Join(dirs.Make(at), base.MountTmpfs(at, bits&^unix.MS_RDONLY, "mode=755,size=16k"), dirs.Make(empty)); err != nil {
		return err
	}
	if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return &os.PathError{Op: "mknod", Path: null, Err: err}
	}
	if err := os.Chmod(null, 0o666); err != nil { // undo the umask
		return err
	}
	if bits&unix.MS_RDONLY == 0 {
		return nil
	}
	if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|bits, ""); err != nil {
		return &os.PathError{Op: "remount read-only", Path: at, Err: err}
	}
	return nil
}

var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

// Dumpable implements jail.Checkpointer.
func (b *Backend) Dumpable(ctx context.Context, p jail.Plan, i jail.Instance) error {
	if err := b.CanCheckpoint(ctx); err != nil {
		return err
	}
	inst, ok := i.(*instance)
	if !ok {
		return fault.Newf(fault.Invalid, "oci.Dumpable", string(p.ID), "not a jail of this backend")
	}
	if b.kind.sentry {
		return inst.checkNoSecrets("oci.Dumpable") // other obstacles are visible only to gVisor's kernel
	}
	pids, err := inst.cgroup.PIDs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if what := undumpable(pid); what != "" {
			return cannotDump(pid, "holds "+what)
		}
		if slices.Contains(pids, tracerPID(pid)) {
			return cannotDump(pid, "is traced by a debugger")
		}
	}
	if err := inst.loadMemory(ctx); err != nil {
		return err
	}
	if inst.worker.Load() == nil { // start CRIU while the jail still runs
		w, err := b.criu.ToDump(b.networks.Path(p))
		if err != nil {
			return fmt.Errorf("prepare CRIU for the checkpoint: %w", err)
		}
		inst.worker.Store(w)
	}
	watched := watchedBy(pids)
	if len(watched) == 0 {
		inst.watched.Store(nil)
		return nil
	}
	paths, err := pathsOf(inst.PID(), watched, maxSearched)
	if err != nil {
		for _, pid := range watched {
			return cannotDump(pid, "watches a file whose path cannot be found: it was deleted or is too deep in the tree")
		}
	}
	inst.watched.Store(&paths)
	return nil
}

func cannotDump(pid int, what string) error {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return fault.Cannot("oci.cannotDump", fmt.Sprintf("process %d (%s) %s, which cannot be checkpointed", pid, bytes.TrimSpace(comm), what),
		"end the process or stop using the feature, and try again")
}

// tracerPID returns the process that traces a task, or 0.
func tracerPID(tid int) int {
	tracer := statusNumber(tid, "TracerPid")
	if tracer == 0 {
		return 0
	}
	return statusNumber(tracer, "Tgid") // the tracer can be any thread of the process
}

// statusNumber returns a number from the status file of a task, or 0 if the task has exited.
func statusNumber(tid int, name string) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	_, after, _ := bytes.Cut(status, []byte("\n"+name+":"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	n, _ := strconv.Atoi(string(bytes.TrimSpace(line)))
	return n
}

// undumpable returns an open file of a process that CRIU cannot restore, or "".
func undumpable(pid int) string {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "" // it has ended
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		switch {
		case to == "anon_inode:[io_uring]":
			return "an io_uring"
		case to == "anon_inode:[userfaultfd]":
			return "a userfaultfd"
		case to == "anon_inode:[perf_event]":
			return "a perf event"
		case strings.HasPrefix(to, "anon_inode:bpf"), strings.HasPrefix(to, "anon_inode:kvm"), strings.HasPrefix(to, "anon_inode:[fanotify"):
			return "a descriptor of kind " + strings.TrimPrefix(to, "anon_inode:")
		case to == "anon_inode:[eventfd]":
			info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, e.Name()))
			if bytes.Contains(info, []byte("eventfd-semaphore: 1")) {
				return "an eventfd that counts as a semaphore" // CRIU does not restore that flag
			}
		case to == "/dev/tty":
			// CRIU assumes that the first process it finds on a terminal owns the session.
			// That can be the process at the other end.
			return "/dev/tty open, rather than the terminal itself"
		case strings.HasPrefix(to, "/dev/nvidia"), strings.HasPrefix(to, "/dev/dri/"), to == "/dev/kvm", to == "/dev/fuse":
			return "the device " + to
		}
	}
	return ""
}

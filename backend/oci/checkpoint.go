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
	"glasshouse/jail"
)

var _ jail.Checkpointer = (*Backend)(nil)

const (
	notesFile = "jail.json" // what the images themselves do not say
	initFile  = "init"      // the program that init is, which a newer daemon's may not be
)

// notes are kept with the images of a jail.
type notes struct {
	Lent map[string]loan `json:"lent"` // what the host lends, by mount point
	Init string          `json:"init"` // digest of init's program
	Net  jail.Network    `json:"net"`  // of which the sockets are

	OwnNet bool             `json:"own_net,omitempty"` // they are of gVisor's own
	Sizes  map[string]int64 `json:"sizes,omitempty"`   // of gVisor's images: it would wait for what was cut off
}

// A loan is a mount that is the host's.
type loan struct {
	Dir   bool   `json:"dir"`   // or else a file
	Flags string `json:"flags"` // as mountinfo names them: "ro,nosuid"
}

// CanCheckpoint implements jail.Checkpointer.
func (b *Backend) CanCheckpoint(ctx context.Context) error {
	if why, lacking := b.Lacks()["freeze"]; lacking {
		return fault.Cannot("oci.CanCheckpoint", why, "mount the cgroup2 filesystem")
	}
	if b.kind.sentry {
		return b.sentryCan("oci.CanCheckpoint")
	}
	return b.checkpoints.of(func() error { return b.criu.Probe(ctx) })
}

// Dump implements jail.Checkpointer.
func (b *Backend) Dump(ctx context.Context, p jail.Plan, i jail.Instance, dir string) (err error) {
	inst, ok := i.(*instance)
	if !ok {
		return fault.Newf(fault.Invalid, "oci.Dump", string(p.ID), "not a jail of this backend")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write down jail %s: %w", p.ID, err)
		}
	}()
	if b.kind.sentry {
		return b.dumpSentry(ctx, p, inst, dir)
	}
	if err := inst.fill(ctx); err != nil {
		return err
	}
	n := notes{Lent: map[string]loan{}, Net: p.Network}
	mounts, err := lent(inst.pid)
	if err != nil {
		return err
	}
	d := criu.Dump{PID: inst.pid, Netns: b.netnsPath(p), Cgroup: inst.cgroup, Dir: dir}
	d.Linked = func(names []string) error { return keepLinks(inst.pid, names, dir) }
	if watched := inst.watched.Load(); watched != nil {
		d.Watched = *watched
	}
	for at, flags := range mounts {
		st, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", inst.pid, at))
		if err != nil {
			return err
		}
		n.Lent[at], d.Lent = loan{st.IsDir(), flags}, append(d.Lent, at)
	}
	// A socket is made again with the owner it had, who must be one of the jail.
	first := int(p.IDs.First)
	if err := os.Lchown(inst.layout.socket(), first, first); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sealControl(inst.layout)) }()
	d.Worker = inst.worker.Swap(nil)
	// What CRIU is not asked to do is done beside it: the jail waits.
	steps, stepCtx := errgroup.WithContext(ctx)
	steps.Go(fault.Catch(func() error { return b.criu.Dump(stepCtx, d) }))
	steps.Go(fault.Catch(func() (err error) {
		if n.Init, err = keepInit(filepath.Join(inst.layout.control(), "init"), filepath.Join(dir, initFile)); err != nil {
			return err
		}
		b, err := json.Marshal(n)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, notesFile), b, 0o600)
	}))
	steps.Go(fault.Catch(func() error { return packMemory(inst.pid, p.IDs, dir) }))
	return steps.Wait()
}

// lent returns the mount points of what CRIU is not to write down, with their
// flags: all but the root and what has no meaning outside of the jail.
func lent(pid int) (map[string]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, err
	}
	at := map[string]string{}
	for _, m := range infos {
		switch {
		case m.Mountpoint == "/", m.FSType == "proc", m.FSType == "devpts", m.FSType == "mqueue":
		case m.Source == secretfs.Source:
			return nil, fault.Newf(fault.Conflict, "oci.Dump", "", "the jail still sees its secrets")
		default:
			at[m.Mountpoint] = m.Options
		}
	}
	return at, nil
}

// keepInit copies the program and returns its digest.
func keepInit(src, dst string) (string, error) {
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

// digestOf returns the digest of a file that does not change while it is there.
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
		if err := b.sentryCan(op); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(b.check(p, op), b.checkAlone(p, op)); err != nil {
		return nil, err
	}
	n, err := readNotes(dir)
	if err != nil {
		return nil, fmt.Errorf("images in %s: %w", dir, err)
	}
	defer b.hurry.Begin()()
	m := &making{backend: b, plan: p, layout: layout{p.Dir}, restoring: !b.kind.sentry, from: dir, server: p.Init}
	defer m.undoOnError(&err, "restore")
	defer fault.Recover(&err)
	if digest, err := b.digestOf(p.Init); err != nil || digest != n.Init {
		m.plan.Init = filepath.Join(dir, initFile) // an older daemon's
		if err := os.Chmod(m.plan.Init, 0o755); err != nil {
			return nil, err
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
	return n, json.Unmarshal(b, &n)
}

// restore makes the processes again and takes away what only that needed.
func (m *making) restore(ctx context.Context, dir string, n notes) (*instance, error) {
	b, p, l := m.backend, m.plan, m.layout
	sources, err := m.lend(n)
	if err != nil {
		return nil, err
	}
	if err := unpackMemory(dir, p.IDs, l); err != nil {
		return nil, err
	}
	if err := m.giveLinks(dir); err != nil {
		return nil, err
	}
	if err := m.worker.Bring(l.volume()); err != nil {
		return nil, err
	}
	if n.Net != p.Network { // what is bound to an address that is not there stays bound
		if err := netns.BindAnything(m.netns); err != nil {
			return nil, err
		}
	}
	m.undo.Push("kill its processes", func() error { return m.cgroup.Kill(context.Background()) })
	var pid int
	var outward *criu.Connections
	if p.Unwired {
		outward = &criu.Connections{}
		m.undo.Push("let go of its connections", func() error { outward.Close(); return nil })
	}
	err = m.step("criu", func() (err error) {
		pid, err = b.criu.Restore(ctx, criu.Restore{
			Dir: m.images, Root: l.merged(), Lent: sources, Netns: m.netns, Cgroup: m.cgroup, Worker: m.worker,
			Close: n.Net != p.Network, Lazy: m.memory != nil, Keep: outward,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	pidfd, err := openPID(pid)
	if err != nil {
		return nil, fmt.Errorf("init ended at once: %w", err)
	}
	i := b.newInstance(p, m.cgroup, pid, pidfd)
	// The instance is not shared yet.
	i.listener, i.outward = m.worker.Listener(), outward // +checklocksignore
	m.undo.Push("let go of init", i.Close)
	if m.memory != nil {
		i.watchMemory(m.memory)
	}
	r, err := newRecord(pid)
	if err != nil {
		return nil, err
	}
	r.Restored = process.Now() // they are frozen
	err = m.step("settle", func() error {
		var steps errgroup.Group
		steps.Go(fault.Catch(func() error { return r.write(l.record()) }))
		steps.Go(fault.Catch(func() error { return dropStaged(l) }))
		steps.Go(fault.Catch(func() error { return dropImages(p, l) }))
		steps.Go(fault.Catch(func() error {
			if p.Unwired {
				return nil // it is Rewire that knows which
			}
			return netns.CloseOutward(m.netns)
		}))
		err := errors.Join(m.cgroup.Change(b.kind.limits(p.Limits)), sealControl(l))
		return errors.Join(err, steps.Wait())
	})
	if err != nil {
		return nil, err
	}
	m.undo.Keep()
	return i, nil
}

const (
	restorers      = 16       // processes and threads of CRIU's own
	restorerMemory = 64 << 20 // and their memory
)

// startWorker starts the CRIU that will make the processes again.
func (m *making) startWorker() (err error) {
	var asking *criu.Asking
	if m.plan.Enforce {
		filter, err := seccomp.Notify(runtime.GOARCH)
		if err != nil {
			return err
		}
		asking = &criu.Asking{Init: m.server, Filter: filter} // not that of the image, which may be older
	}
	if m.worker, err = m.backend.criu.ToRestore(m.netns, m.cgroup, asking); err != nil {
		return err
	}
	m.undo.Push("end the worker", m.worker.Close)
	return nil
}

// lend returns what the host lends the jail: by mount point, the mount prepared
// for it.
func (m *making) lend(n notes) (map[string]string, error) {
	l := m.layout
	sources := map[string]string{
		"/dev": l.dev(), "/dev/shm": l.shm(), "/sys": l.sysfs(), controlDir: l.staged("control"),
	}
	for _, b := range m.binds {
		sources[b.target] = b.source
	}
	lent := map[string]string{}
	covers := map[string]string{} // by flags
	for at, loan := range n.Lent {
		source, ok := sources[at]
		if !ok && !slices.Contains(masked, at) {
			return nil, fault.Newf(fault.Invalid, "oci.Restore", at, "the jail had something mounted there that this one is not given")
		}
		if !ok {
			cover := covers[loan.Flags]
			if cover == "" {
				cover = l.staged(fmt.Sprintf("cover-%d", len(covers)))
				if err := makeCover(cover, loan.Flags); err != nil {
					return nil, err
				}
				covers[loan.Flags] = cover
			}
			if source = filepath.Join(cover, "null"); loan.Dir {
				source = filepath.Join(cover, "empty")
			}
		}
		lent[at] = source
	}
	return lent, nil
}

// makeCover mounts what covers a jail's view of what is none of its business: an
// empty directory, and a device that holds nothing. The flags are those that the
// runtime's own covers have. They differ between runtimes, and CRIU neither adds
// all that are missing nor can take any away.
func makeCover(at, flags string) error {
	var bits uintptr
	for flag := range strings.SplitSeq(flags, ",") {
		bits |= mountFlags[flag]
	}
	empty, null := filepath.Join(at, "empty"), filepath.Join(at, "null")
	if err := errors.Join(dirs.Make(at), memory(at, bits&^unix.MS_RDONLY, "mode=755,size=16k"), dirs.Make(empty)); err != nil {
		return err
	}
	if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return &os.PathError{Op: "mknod", Path: null, Err: err}
	}
	if err := os.Chmod(null, 0o666); err != nil { // what the umask has left
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
		return inst.checkNoSecrets("oci.Dumpable") // what else cannot be dumped, only its kernel knows
	}
	pids, err := inst.cgroup.PIDs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if what := undumpable(pid); what != "" {
			return cannotDump(pid, "holds "+what)
		}
		if slices.Contains(pids, tracerOf(pid)) {
			return cannotDump(pid, "is held by a debugger")
		}
	}
	if err := inst.fill(ctx); err != nil {
		return err
	}
	if inst.worker.Load() == nil { // it is loaded while the jail still runs
		w, err := b.criu.ToDump(b.netnsPath(p))
		if err != nil {
			return err
		}
		inst.worker.Store(w)
	}
	watched := watchedBy(pids)
	if len(watched) == 0 {
		inst.watched.Store(nil)
		return nil
	}
	paths, err := pathsOf(inst.pid, watched)
	if err != nil {
		for _, pid := range watched {
			return cannotDump(pid, "watches files of which at least one cannot be found: it was deleted, or lies deep")
		}
	}
	inst.watched.Store(&paths)
	return nil
}

func cannotDump(pid int, what string) error {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return fault.Cannot("snapshot", fmt.Sprintf("process %d, %s, %s, which cannot be written down", pid, bytes.TrimSpace(comm), what),
		"end it, or have it do without, and try again")
}

// tracerOf returns the process that traces a task, or 0.
func tracerOf(tid int) int {
	tracer := statusOf(tid, "TracerPid")
	if tracer == 0 {
		return 0
	}
	return statusOf(tracer, "Tgid") // who traces is one of its threads
}

// statusOf returns a number that the kernel tells of a task, or 0 if it has ended.
func statusOf(tid int, name string) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	_, after, _ := bytes.Cut(status, []byte("\n"+name+":"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	n, _ := strconv.Atoi(string(bytes.TrimSpace(line)))
	return n
}

// undumpable returns what a process holds that CRIU cannot make again, or "".
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
				return "an eventfd that counts as a semaphore" // which CRIU forgets
			}
		case to == "/dev/tty":
			// CRIU takes the first process it meets on a terminal for the owner of
			// its session, and that is whoever has the other end.
			return "/dev/tty open, rather than the terminal itself"
		case strings.HasPrefix(to, "/dev/nvidia"), strings.HasPrefix(to, "/dev/dri/"), to == "/dev/kvm", to == "/dev/fuse":
			return "the device " + to
		}
	}
	return ""
}

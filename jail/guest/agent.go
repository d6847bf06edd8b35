package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/netns"
	"glasshouse/host/overlay"
	"glasshouse/host/process"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
	"glasshouse/observe/guest"
)

// ids are the ids of the jail in the guest. The host gives each jail other ones, but here is only one.
var ids = jail.IDRange{First: 100_000, Count: 65_536}

// Paths of the jail's parts.
const (
	layersDir   = "/run/layers" // the disks with read-only layers
	volumeDir   = "/run/volume" // the disk with the writable layer
	stackDir    = "/run/stack"  // the same, with the ids of the jail
	writableDir = stackDir + "/volume"
	identityDir = "/run/identity" // the topmost layer
	baseDir     = "/run/base"     // the lowest layer
	ctlDir      = "/run/ctl"      // controlDir of the jail
	rootDir     = "/run/jail"     // the root of the jail

	// The disk that Changes compares with, and the same with the ids of the jail.
	otherVolumeDir = "/run/other"
	otherDir       = stackDir + "/other"
)

// An agent serves the requests of the daemon.
type agent struct {
	recorder *guest.Recorder

	mu sync.Mutex
	// +checklocks:mu
	box *box // the jail; nil before Setup
	// +checklocks:mu
	delivery *delivery // of secrets; nil is none
}

// A box is the running jail.
type box struct {
	group   *cgroup.Cgroup
	freezer freezer
	init    *exec.Cmd
	ended   chan struct{} // closed when init has exited
	setup   wire.Setup    // without files
}

func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.SetupPath, answer(a.setup))
	mux.HandleFunc("POST "+wire.StatsPath, answer(a.stats))
	mux.HandleFunc("POST "+wire.NetworkPath, answer(a.reconnect))
	mux.HandleFunc("POST "+wire.FreezePath, answer(a.freeze))
	mux.HandleFunc("POST "+wire.ThawPath, answer(a.thaw))
	mux.HandleFunc("POST "+wire.StopPath, answer(a.stop))
	mux.HandleFunc("POST "+wire.InitPath, a.connect)
	mux.Handle("POST "+wire.EventsPath, a.recorder)
	mux.HandleFunc("POST "+wire.SyncPath, answer(func(context.Context, none) (none, error) { return none{}, syncVolume() }))
	mux.HandleFunc("POST "+wire.ChangesPath, answer(a.changes))
	mux.HandleFunc("POST "+wire.SecretKeyPath, answer(a.secretKey))
	mux.HandleFunc("POST "+wire.SecretsPath, answer(a.secrets))
	mux.HandleFunc("POST "+wire.HideSecretsPath, answer(a.hideSecrets))
	mux.HandleFunc("POST "+wire.AccountPath, answer(a.account))
	return mux
}

type none struct{}

// maxRequest bounds a request of the daemon.
const maxRequest = 16 << 20

// answer decodes a request, calls do, and encodes its result.
func answer[In, Out any](do func(ctx context.Context, in In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&in)
		if err != nil {
			err = fault.New(fault.Invalid, "guest.answer", r.URL.Path, err)
		}
		var out Out
		if err == nil {
			err = fault.Catch(func() error {
				var err error
				out, err = do(r.Context(), in)
				return err
			})()
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			json.NewEncoder(w).Encode(wire.FailureOf(err))
			return
		}
		json.NewEncoder(w).Encode(out)
	}
}

// running returns the jail.
func (a *agent) running() (*box, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.box == nil {
		return nil, fault.Newf(fault.Conflict, "guest.running", "", "the jail is not set up")
	}
	return a.box, nil
}

// setup mounts the disks of the jail and starts it.
func (a *agent) setup(ctx context.Context, s wire.Setup) (none, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.box != nil {
		return none{}, fault.Newf(fault.Conflict, "guest.setup", "", "the jail is set up")
	}
	if err := errors.Join(a.resume(s.Resume), nameDisks(s.Disks)); err != nil {
		return none{}, err
	}
	if err := writeLayer(baseDir, s.Base); err != nil {
		return none{}, fmt.Errorf("make the lowest layer: %w", err)
	}
	if err := mountRoot(s); err != nil {
		return none{}, fmt.Errorf("mount the root of the jail: %w", err)
	}
	if s.Workspace != "" {
		if err := mountWorkspace(s.Workspace); err != nil {
			return none{}, fmt.Errorf("mount the workspace: %w", err)
		}
	}
	if err := mountCopies(s); err != nil {
		return none{}, err
	}
	if err := mountDevices(s.Limits.MemoryBytes); err != nil {
		return none{}, fmt.Errorf("make the devices: %w", err)
	}
	if err := makeNetwork(ctx, s.Network); err != nil {
		return none{}, fmt.Errorf("make the network: %w", err)
	}
	if err := makeControl(); err != nil {
		return none{}, fmt.Errorf("make the control directory: %w", err)
	}
	var err error
	a.box, err = start(s)
	if err != nil {
		return none{}, fmt.Errorf("start init of the jail: %w", err)
	}
	a.recorder.SetTarget(a.box.target())
	go func(b *box) { // the machine ends with the jail
		<-b.ended
		report(a.recorder.End(context.Background()))
		unmountRoot()
		powerOff()
	}(a.box)
	return none{}, nil
}

// setClock sets the clock of the guest to that of the host.
func setClock(now time.Time) {
	tv := unix.NsecToTimeval(now.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		fmt.Fprintln(os.Stderr, "glasshouse-guest: set the clock:", err)
	}
}

// mountRoot mounts the layers of the jail as its root.
func mountRoot(s wire.Setup) error {
	idmap, err := overlay.IDMapFD(ids.First, ids.Count)
	if err != nil {
		return err
	}
	defer idmap.Close()
	for n, serial := range s.Layers {
		name := fmt.Sprintf("%d", n)
		if err := mountDisk(serial, filepath.Join(layersDir, name), unix.MS_RDONLY, "noload"); err != nil {
			return err
		}
		at := filepath.Join(stackDir, name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := overlay.Clone(filepath.Join(layersDir, name), at, overlay.CloneOptions{IDMap: idmap, Options: overlay.Options{ReadOnly: true, NoDev: true}}); err != nil {
			return err
		}
	}
	if err := mountVolume(s.Volume, volumeDir, writableDir, idmap); err != nil {
		return err
	}
	if s.Other != "" {
		if err := mountVolume(s.Other, otherVolumeDir, otherDir, idmap); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(rootDir, 0o755); err != nil {
		return err
	}
	return overlay.Mount(rootDir, lowerLayers(len(s.Layers)), writableDir+"/upper", writableDir+"/work", overlay.Options{NoDev: true, NoSuid: true})
}

// mountCopies mounts the disks with copies of files of the host.
func mountCopies(s wire.Setup) error {
	idmap, err := overlay.IDMapFD(ids.First, ids.Count)
	if err != nil {
		return err
	}
	defer idmap.Close()
	for _, m := range s.Mounts {
		if err := mountCopy(m, idmap); err != nil {
			return fmt.Errorf("mount on %s: %w", m.Target, err)
		}
	}
	return nil
}

// lowerLayers returns the layers below the writable one, topmost first.
func lowerLayers(disks int) []string {
	lower := []string{identityDir}
	for n := range disks {
		lower = append(lower, filepath.Join(stackDir, fmt.Sprintf("%d", n)))
	}
	return append(lower, baseDir)
}

// mountVolume mounts a disk with a writable layer, and the same with the ids of the jail on mapped.
func mountVolume(serial, at, mapped string, idmap *os.File) error {
	if err := mountDisk(serial, at, 0, "discard,commit=1"); err != nil {
		return err
	}
	for _, dir := range []string{"upper", "work", "ws-upper", "ws-work"} {
		if err := os.Mkdir(filepath.Join(at, dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := os.MkdirAll(mapped, 0o755); err != nil {
		return err
	}
	return overlay.Clone(at, mapped, overlay.CloneOptions{IDMap: idmap})
}

// mountDisk mounts a disk of the machine.
func mountDisk(serial, at string, flags uintptr, options string) error {
	device, err := findDisk(serial)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := forgetBlocks(device); err != nil {
		return err
	}
	if err := unix.Mount(device, at, "ext4", flags|unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return &os.PathError{Op: "mount disk", Path: serial, Err: err}
	}
	return nil
}

// forgetBlocks removes blocks of a disk from memory. The kernel may have read them before the machine
// was saved as a template, and restored with another disk.
func forgetBlocks(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.BLKFLSBUF, 0); err != nil {
		return &os.PathError{Op: "flush the cache of", Path: device, Err: err}
	}
	return nil
}

// writeLayer writes the files of a layer that is not a disk. tmpfs cannot be mounted with other ids
// before Linux 6.3, so they get those of the jail.
func writeLayer(dir string, files []wire.File) error {
	first := int(ids.First)
	for _, f := range append([]wire.File{{Name: ".", Mode: uint32(fs.ModeDir | 0o755)}}, files...) {
		at := filepath.Join(dir, f.Name)
		mode := fs.FileMode(f.Mode)
		var err error
		if mode.IsDir() {
			err = os.MkdirAll(at, 0o700)
		} else {
			err = os.WriteFile(at, f.Data, 0o600)
		}
		if err := errors.Join(err, os.Lchown(at, first, first), os.Chmod(at, mode)); err != nil {
			return err
		}
	}
	return nil
}

// mountDevices mounts /dev and /dev/shm of the jail.
func mountDevices(memory int64) error {
	const dev, shm = "/run/dev", "/run/shm"
	if err := base.MakeDevices(ids, memory, dev, shm); err != nil {
		return err
	}
	for _, m := range [][2]string{{dev, rootDir + "/dev"}, {shm, rootDir + "/dev/shm"}} {
		if err := unix.Mount(m[0], m[1], "", unix.MS_MOVE, ""); err != nil {
			return &os.PathError{Op: "move mount", Path: m[1], Err: err}
		}
	}
	return nil
}

// makeControl mounts the directory of init's socket.
func makeControl() error {
	if err := os.Mkdir(ctlDir, 0o711); err != nil {
		return err
	}
	if err := move(wire.InitProgram, ctlDir+"/init"); err != nil {
		return err
	}
	if err := os.Chown(ctlDir, int(ids.First), int(ids.First)); err != nil {
		return err
	}
	at := rootDir + controlDir
	if err := unix.Mount(ctlDir, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, "")
}

// start starts the jail's init, and returns when its socket exists.
func start(s wire.Setup) (_ *box, err error) {
	tree, err := cgroup.New("glasshouse")
	if err != nil {
		return nil, err
	}
	b := &box{ended: make(chan struct{}), setup: wire.Setup{Layers: s.Layers, Other: s.Other, Workspace: s.Workspace}}
	b.group, err = tree.Create("jail", cgroup.Limits{MemoryBytes: s.Limits.MemoryBytes, PIDs: s.Limits.PIDs})
	if err != nil {
		return nil, err
	}
	b.freezer.group = b.group
	order, err := json.Marshal(confinement{Root: rootDir, Hostname: s.Hostname})
	if err != nil {
		return nil, err
	}
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(ids.First), Size: int(ids.Count)}}
	b.init = &exec.Cmd{
		Path: wire.AgentPath, Args: []string{wire.AgentPath, confineArg}, Dir: "/",
		Stdin: bytes.NewReader(order), Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:      true,
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
			UidMappings: mapping, GidMappings: mapping, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{Uid: 0, Gid: 0},
		},
	}
	if err := netns.Do(networkPath, func() error { return b.group.StartIn(b.init.SysProcAttr, b.init.Start) }); err != nil {
		return nil, err
	}
	go func() {
		b.init.Wait()
		close(b.ended)
	}()
	return b, b.await()
}

// await waits until init listens, and takes its socket from the jail.
func (b *box) await() error {
	const socket = ctlDir + "/init.sock"
	for {
		if st, err := os.Lstat(socket); err == nil && st.Mode().Type() == fs.ModeSocket {
			if c, err := net.Dial("unix", socket); err == nil {
				c.Close()
				return base.SealControl(socket, "guest.setup")
			}
		}
		select {
		case <-b.ended:
			return fmt.Errorf("init exited: %s", b.init.ProcessState)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// connect connects the daemon to the jail's init.
func (a *agent) connect(w http.ResponseWriter, r *http.Request) {
	if _, err := a.running(); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	c, err := net.Dial("unix", ctlDir+"/init.sock")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer c.Close()
	out := http.NewResponseController(w)
	if err := out.Flush(); err != nil {
		return
	}
	go func() {
		_, err := io.Copy(c, r.Body)
		if err == nil {
			c.(*net.UnixConn).CloseWrite()
		} else {
			c.Close() // the daemon is gone
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			if err := out.Flush(); err != nil {
				return
			}
		}
		if err != nil { // also if init has closed a connection with unread data (ECONNRESET)
			return
		}
	}
}

func (a *agent) stats(context.Context, none) (s wire.Stats, err error) {
	b, err := a.running()
	if err != nil {
		return s, err
	}
	cg, err := b.group.Stats()
	if err != nil {
		return s, err
	}
	counted := base.Stats(cg, process.Threads(b.init.Process.Pid))
	var st unix.Statfs_t
	if err := unix.Statfs(volumeDir, &st); err != nil {
		return s, &os.PathError{Op: "statfs", Path: volumeDir, Err: err}
	}
	return wire.Stats{
		MemoryBytes: counted.MemoryBytes, CacheBytes: counted.CacheBytes, MemoryPeak: counted.MemoryPeak,
		PIDs: counted.PIDs, OOMKills: counted.OOMKills, DiskBytes: int64(st.Blocks-st.Bfree) * st.Bsize,
	}, nil
}

// freeze freezes the jail and writes its files to the disk, so that nothing of them is lost if the
// frozen machine is killed.
func (a *agent) freeze(ctx context.Context, _ none) (none, error) {
	b, err := a.running()
	if err != nil {
		return none{}, err
	}
	if err := b.freezer.hold(ctx, true); err != nil {
		return none{}, err
	}
	report(a.recorder.Freeze(ctx))
	return none{}, syncVolume()
}

func (a *agent) thaw(ctx context.Context, r wire.Resume) (none, error) {
	b, err := a.running()
	if err != nil {
		return none{}, err
	}
	if err := errors.Join(a.resume(r), b.rename(r.Hostname)); err != nil {
		return none{}, err
	}
	a.recorder.Thaw()
	return none{}, b.freezer.hold(ctx, false)
}

// resume sets the clock of the guest and the files with its name, and makes its random numbers differ
// from those of all machines that were restored from the same state.
func (a *agent) resume(r wire.Resume) error {
	setClock(r.Clock)
	a.recorder.SetClock(r.Uptime)
	if err := reseed(r.Seed); err != nil {
		return fmt.Errorf("seed the random numbers: %w", err)
	}
	if err := writeLayer(identityDir, r.Identity); err != nil {
		return fmt.Errorf("write the files with the host name: %w", err)
	}
	return nil
}

// rename sets the host name of the jail.
func (b *box) rename(hostname string) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/uts", b.init.Process.Pid))
	if err != nil {
		return err
	}
	defer namespace.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, because its namespace is another one
		err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWUTS)
		if err == nil {
			err = unix.Sethostname([]byte(hostname))
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("set the host name of the jail: %w", err)
	}
	return nil
}

// reseed adds a seed to the random numbers of the kernel.
func reseed(seed []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// struct rand_pool_info (linux/random.h): bits of entropy, size, and data.
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed)))
	info = binary.NativeEndian.AppendUint32(info, uint32(len(seed)))
	info = append(info, seed...)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0]))); errno != 0 {
		return os.NewSyscallError("ioctl RNDADDENTROPY", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDRESEEDCRNG, 0); errno != 0 {
		return os.NewSyscallError("ioctl RNDRESEEDCRNG", errno)
	}
	return nil
}

// stop ends the jail. The machine then ends as well.
func (a *agent) stop(ctx context.Context, _ none) (none, error) {
	b, err := a.running()
	if err != nil {
		return none{}, err
	}
	if err := b.group.Kill(ctx); err != nil {
		return none{}, err
	}
	report(a.recorder.End(ctx))
	return none{}, syncVolume()
}

func syncVolume() error {
	f, err := os.Open(volumeDir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write the files to the disk: %w", err)
	}
	return nil
}

// unmountRoot unmounts the jail's files. Each mount may be in use only for a moment, by a process
// that is being removed.
func unmountRoot() {
	unix.Unmount(rootDir+controlDir, unix.MNT_DETACH)
	unix.Unmount(rootDir, unix.MNT_DETACH)
	unix.Unmount(writableDir, unix.MNT_DETACH)
	for range 100 {
		if err := unix.Unmount(volumeDir, 0); err == nil || err == unix.EINVAL {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

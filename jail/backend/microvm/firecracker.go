package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/mod/semver"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/netns"
	"glasshouse/host/overlay"
	"glasshouse/host/qcow2"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// firecracker runs machines with Firecracker, which needs KVM.
//
// It opens the files of its machine by path. A path is that of an open file that it inherits, such as
// /proc/self/fd/4, so it needs no access to directories of the host. It is the same in each
// machine with the same disks, and a saved machine can be restored with the files of another jail. Files that many
// machines read belong to root, and are shown to Firecracker as its own, through a read-only clone of their mount that
// maps the owner. The writable layer belongs to the user of the machine.
type firecracker struct {
	b *Backend
	v *programVersion
}

// programVersion says whether the program can be used. It is examined once.
type programVersion struct {
	once sync.Once
	err  error
}

// minFirecracker is the first version that announces its devices by ACPI, which Debian's kernels need.
const minFirecracker = "v1.8.0"

func (f firecracker) usable() error {
	f.v.once.Do(func() { f.v.err = f.check() })
	return f.v.err
}

func (f firecracker) check() error {
	const op, remedy = "microvm.Probe", "install Firecracker " + minFirecracker + " or later, or remove microvm.firecracker from the configuration"
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, f.b.cfg.Firecracker, "--version").Output()
	if err != nil {
		return fault.Cannot(op, fmt.Sprintf("%s --version: %v", f.b.cfg.Firecracker, err), remedy)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	release, ok := strings.CutPrefix(strings.TrimSpace(first), "Firecracker ")
	if !ok || !semver.IsValid(release) {
		return fault.Cannot(op, fmt.Sprintf("%s --version prints %q", f.b.cfg.Firecracker, text.Clip(first, 100)), remedy)
	}
	if semver.Compare(release, minFirecracker) < 0 {
		return fault.Cannot(op, fmt.Sprintf("Firecracker %s is too old", release), remedy)
	}
	if err := f.b.kvm(); err != nil && !f.b.double {
		return fault.Cannot(op, "Firecracker needs KVM: "+base.Reason(err), "use a host with KVM, or QEMU with microvm.emulate")
	}
	return nil
}

func (firecracker) name() string { return "Firecracker" }

// A machine has 19 interrupts for devices: vsock, the network, a workspace, the writable layer and one that it is
// compared with need others.
func (firecracker) maxDisks() int { return 14 }

func (f firecracker) program() (string, []string) {
	return f.b.cfg.Firecracker, []string{"/dev/net/tun", "/dev/userfaultfd"}
}

func (firecracker) modules() []string {
	return []string{"vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"}
}

// shared is the directory in which Firecracker makes its sockets and the files of snapshots. What is in it
// is untrusted.
func (l layout) shared() string { return filepath.Join(l.sockets(), "machine") }

// Names in the shared directory.
const (
	apiSocket   = "api.sock"
	portSocket  = "port.sock"
	savedState  = "state"
	savedMemory = "memory"
)

// sharedFD is the descriptor of the shared directory in Firecracker.
const sharedFD = 3

func inShared(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", sharedFD, name) }

func (f firecracker) begin(m *machine, p jail.Plan) error {
	dir := layout{p.Dir}.shared()
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = os.Chown(dir, int(p.IDs.First), int(p.IDs.First))
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	m.give(d) // the first one, sharedFD
	m.add("--api-sock", inShared(apiSocket), "--id", string(p.ID), "--level", "Error")
	return nil
}

func (firecracker) addDisk(m *machine, p jail.Plan, name string, f *os.File) error {
	return m.addDrive(p, name, f, true)
}

func (f firecracker) addVolume(m *machine, p jail.Plan, name string, of jail.Plan) error {
	volume, err := os.OpenFile(f.b.volume(of), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return m.addDrive(p, name, volume, false)
}

// addDrive adds a disk. The kernel of the guest names them in the order in which they are added.
func (m *machine) addDrive(p jail.Plan, name string, f *os.File, readOnly bool) error {
	cache := "Writeback" // the guest can write to the disk
	var err error
	if readOnly {
		cache = "Unsafe"
		shared := f
		f, err = asOwner(shared, p.IDs.First)
		err = errors.Join(err, shared.Close())
	} else {
		// The owner can change the mode as well, so the file must not belong to root.
		err = f.Chown(int(p.IDs.First), int(p.IDs.First))
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("prepare the disk %s: %w", name, err)
	}
	m.call("/drives/"+name, map[string]any{
		"drive_id": name, "path_on_host": m.path(f), "is_root_device": false, "is_read_only": readOnly, "cache_type": cache,
	})
	m.disks = append(m.disks, name)
	return nil
}

// asOwner opens a file of root again, read-only, as one that a process of the user can open by its descriptor.
func asOwner(f *os.File, user uint32) (*os.File, error) {
	owner := []overlay.Mapping{{Disk: 0, Host: user, Count: 1}}
	ids, err := overlay.IDMap(owner, owner)
	if err != nil {
		return nil, err
	}
	defer ids.Close()
	return overlay.OpenReadOnly(f, ids)
}

func (f firecracker) addBoot(m *machine, p jail.Plan) error {
	image, initrd, err := f.b.boot(p.Init)
	if err != nil {
		return err
	}
	initrdPath := m.path(initrd)
	kernel, err := f.b.vmlinux(image)
	if err := errors.Join(err, image.Close()); err != nil {
		return err
	}
	// There is no keyboard controller with ports, and no PCI.
	options := append(f.b.kernelOptions(), "pci=off", "i8042.noaux", "i8042.nomux", "i8042.dumbkbd")
	boot := []call{
		{"/machine-config", map[string]any{"vcpu_count": 1, "mem_size_mib": ramSize(p) >> 20, "smt": false}},
		{"/boot-source", map[string]any{"kernel_image_path": m.path(kernel), "initrd_path": initrdPath, "boot_args": strings.Join(options, " ")}},
	}
	m.calls = append(boot, m.calls...)
	m.call("/network-interfaces/net", map[string]any{"iface_id": "net", "guest_mac": netns.GuestMAC, "host_dev_name": netns.TapName})
	m.call("/vsock", map[string]any{"guest_cid": guestCID, "uds_path": inShared(portSocket)})
	m.call("/actions", map[string]any{"action_type": "InstanceStart"})
	return nil
}

// guestCID is the address of each guest, which only its Firecracker sees.
const guestCID = 3

// openMemory opens the file in a snapshot. Firecracker maps it privately, so all machines that are restored from it
// share the pages that they do not change, and the kernel can read them again.
func (firecracker) openMemory(image string, size int64) (*os.File, func(), error) {
	f, err := openImage(image, size)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { f.Close() }, nil
}

// addSource makes the calls those of a restore. The configuration of the devices is in the state.
func (firecracker) addSource(m *machine, p jail.Plan, from *source) error {
	ram, err := asOwner(from.ram, p.IDs.First)
	if err != nil {
		return fmt.Errorf("prepare the memory: %w", err)
	}
	fd, err := base.Memfd("state", nil)
	if err != nil {
		return errors.Join(err, ram.Close())
	}
	state := os.NewFile(uintptr(fd), "state")
	m.calls = []call{{"/snapshot/load", map[string]any{
		"snapshot_path": m.path(state), "mem_backend": map[string]any{"backend_type": "File", "backend_path": m.path(ram)}, "resume_vm": false,
	}}}
	_, err = state.Write(from.devices)
	return err
}

// start configures the machine. Its tap is made in the network namespace of the process, because
// Firecracker opens it by name, and then moved to that of the jail.
func (f firecracker) start(ctx context.Context, i *instance, m *machine, from *source) error {
	home := fmt.Sprintf("/proc/%d/ns/net", i.PID())
	if err := netns.MakeTap(home, i.plan.IDs.First); err != nil {
		return err
	}
	c, err := f.connect(ctx, layout{i.plan.Dir})
	if err != nil {
		return err
	}
	defer c.close()
	if from != nil {
		if err := from.checkMonitor(c.version()); err != nil {
			return err
		}
	}
	for n, call := range m.calls {
		if n == len(m.calls)-1 && from == nil { // the last one starts the machine
			err = netns.MoveTap(home, f.b.networks.Path(i.plan))
		}
		if err == nil {
			err = c.put(call)
		}
		if err != nil {
			return err
		}
	}
	if from != nil {
		return netns.MoveTap(home, f.b.networks.Path(i.plan))
	}
	return nil
}

// connect waits until Firecracker listens.
func (f firecracker) connect(ctx context.Context, l layout) (*fcClient, error) {
	for {
		c, err := openFirecracker(ctx, l)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(time.Millisecond):
		}
	}
}

func (f firecracker) control(ctx context.Context, l layout) (monitor, error) {
	c, err := openFirecracker(ctx, l)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dial connects to the agent through the socket of Firecracker (docs/vsock.md in its repository).
func (firecracker) dial(ctx context.Context, l layout) (_ net.Conn, err error) {
	c, err := dialShared(ctx, l, portSocket)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := fmt.Fprintf(c, "CONNECT %d\n", wire.VsockPort); err != nil {
		return nil, notListening(err)
	}
	const longest = len("OK 4294967295\n")
	var answer []byte
	for len(answer) < longest && !strings.HasSuffix(string(answer), "\n") {
		var b [1]byte // what follows is of the agent
		if _, err := c.Read(b[:]); err != nil {
			return nil, notListening(err)
		}
		answer = append(answer, b[0])
	}
	if !strings.HasPrefix(string(answer), "OK ") || !strings.HasSuffix(string(answer), "\n") {
		return nil, unresponsive("CONNECT", fmt.Errorf("it answers %q", answer))
	}
	return c, nil
}

// notListening returns the error of a connection that Firecracker closes because the guest refuses it.
func notListening(err error) error { return fmt.Errorf("%w: %w", errNotListening, err) }

// dialShared connects to a socket in the shared directory. Firecracker could replace it by a link to
// another one, which no other process may have made there.
func dialShared(ctx context.Context, l layout, name string) (net.Conn, error) {
	f, err := openShared(l, name, unix.O_PATH, unix.S_IFSOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// openShared opens a file of a type in the shared directory. It follows no links.
func openShared(l layout, name string, flags int, kind uint32) (*os.File, error) {
	path := filepath.Join(l.shared(), name)
	fd, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != kind || st.Nlink != 1) {
		err = syscall.EINVAL
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: path, Err: err}, f.Close())
	}
	return f, nil
}

// vmlinux opens the kernel that is in a file as Debian installs it, and unpacks it if it is missing in
// the cache. Firecracker before 1.17 cannot load the packed one.
func (b *Backend) vmlinux(image *os.File) (*os.File, error) {
	st, err := image.Stat()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(fmt.Appendln(nil, image.Name(), st.Size(), st.ModTime().UnixNano()))
	f, err := b.cached(filepath.Join(b.cfg.Cache, "vmlinux-"+hex.EncodeToString(sum[:16])), func(part *os.File) error { return unpackKernel(part, image) })
	if err != nil {
		return nil, fmt.Errorf("unpack the kernel %s: %w", image.Name(), err)
	}
	return f, nil
}

// volume has another name than that of QEMU, because the file has no mark of its format.
func (firecracker) volume(l layout) string { return filepath.Join(l.dir, "disk"+rawDisk) }

const rawDisk = ".raw"

func (f firecracker) createVolume(ctx context.Context, to *os.File, p jail.Plan) error {
	if len(p.Sealed) == 0 {
		from, err := f.b.emptyVolume(ctx, "raw", p.Limits.DiskMB, disk.CopySparse)
		if err != nil {
			return err
		}
		defer from.Close()
		return disk.CopySparse(to, from)
	}
	var layers []*os.File
	defer func() {
		for _, l := range layers {
			l.Close()
		}
	}()
	for _, name := range p.Sealed {
		l, err := os.Open(name)
		if err != nil {
			return err
		}
		layers = append(layers, l)
	}
	if filepath.Ext(p.Sealed[0]) == rawDisk { // of a jail whose files are read
		return disk.CopySparse(to, layers[0])
	}
	return qcow2.ToRaw(ctx, to, layers)
}

func (firecracker) volumeSize(f *os.File) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (f firecracker) sealVolume(ctx context.Context, p jail.Plan, to string) (err error) {
	from, err := os.Open(f.volume(layout{p.Dir}))
	if err != nil {
		return err
	}
	defer from.Close()
	sealed, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = f.copyVolume(ctx, sealed, from)
	if err := errors.Join(err, sealed.Close()); err != nil {
		return errors.Join(disk.WriteError(to, err), os.Remove(to))
	}
	return nil
}

// copyVolume writes an image with all clusters of the disk: those of zeros hide the layers below it.
func (firecracker) copyVolume(ctx context.Context, to, from *os.File) error {
	return qcow2.FromRaw(ctx, to, from, qcow2.HideBelow)
}

func (firecracker) clones(string) bool { return false }

package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/netns"
	"glasshouse/host/qcow2"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// qemu runs machines with QEMU's machine type microvm.
type qemu struct{ b *Backend }

func (q qemu) usable() error {
	if _, err := exec.LookPath(q.b.cfg.QEMU); err != nil {
		return fault.Cannot("microvm.Probe", "QEMU is not installed", "install the package qemu-system-x86")
	}
	return nil
}

func (qemu) name() string { return "QEMU" }

// A machine has room for 24 devices: the port, the network, a workspace, the writable layer and one that it is
// compared with are others.
func (qemu) maxDisks() int { return 19 }

func (q qemu) program() (string, []string) { return q.b.cfg.QEMU, nil }
func (qemu) modules() []string             { return nil }

// quiet keeps QEMU from asking a restored guest to announce its network address, which no other host has
// to learn. Linux 6.12 hangs if a network device is brought down while it handles that request:
// virtnet_close waits, with the lock for configurations, for a work that takes this lock.
const quiet = "migration.announce-rounds=0"

// begin adds what all machines have: the port, the monitor and the network.
func (q qemu) begin(m *machine, p jail.Plan) error {
	m.add("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-name", string(p.ID),
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", "microvm,acpi=on,rtc=on,memory-backend=ram,suppress-vmdesc=on", "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-mon", "chardev=monitor,mode=control", "-global", "migration.send-configuration=off", "-global", quiet)
	if q.b.emulates() {
		m.add("-accel", "tcg,tb-size=64", "-cpu", "max")
	} else {
		m.add("-accel", "kvm", "-cpu", "host")
	}
	l := layout{p.Dir}
	if err := errors.Join(m.addSocket("port", l.port()), m.addSocket("monitor", l.monitor())); err != nil {
		return fmt.Errorf("make the sockets: %w", err)
	}
	m.add("-device", "virtio-serial-device", "-device", "virtserialport,chardev=port,name="+wire.Port)
	// The network device is behind a tap in the network namespace of the jail. QEMU itself has no network.
	tap, err := netns.OpenTap(q.b.networks.Path(p))
	if err != nil {
		return err
	}
	m.add("-netdev", fmt.Sprintf("tap,id=net,fd=%d", m.give(tap)), "-device", "virtio-net-device,netdev=net,mac="+netns.GuestMAC)
	return nil
}

func (qemu) addDisk(m *machine, _ jail.Plan, serial string, f *os.File) error {
	m.addNode(map[string]any{"driver": "raw", "node-name": serial, "read-only": true}, f)
	m.addDevice(serial)
	return nil
}

// addNode adds an image of a disk.
func (m *machine) addNode(node map[string]any, f *os.File) {
	n := m.give(f)
	node["discard"] = "unmap"
	node["file"] = map[string]any{"driver": "file", "filename": fmt.Sprintf("/dev/fdset/%d", n), "locking": "off", "discard": "unmap"}
	text, err := json.Marshal(node)
	if err != nil {
		panic(err) // strings and booleans
	}
	m.add("-add-fd", fmt.Sprintf("fd=%d,set=%d", n, n), "-blockdev", string(text))
}

// addDevice adds a disk with the image in node, whose name is its serial number.
func (m *machine) addDevice(node string) {
	m.add("-device", fmt.Sprintf("virtio-blk-device,drive=%s,serial=%s", node, node))
}

// addVolume adds the disk with a writable layer. QEMU would follow names of other files in the
// images, which an earlier QEMU may have written on behalf of a guest, so they are checked.
func (q qemu) addVolume(m *machine, _ jail.Plan, serial string, of jail.Plan) error {
	var backing any
	size := int64(0)
	for n := len(of.Sealed) - 1; n >= -1; n-- {
		name, node, mode := q.volume(layout{of.Dir}), serial, os.O_RDWR
		if n >= 0 {
			name, node, mode = of.Sealed[n], fmt.Sprintf("%s-sealed%d", serial, n), os.O_RDONLY
		}
		f, err := os.OpenFile(name, mode, 0)
		if err != nil {
			return err
		}
		its, err := qcow2.Size(f)
		if err == nil && size != 0 && its != size {
			err = fmt.Errorf("it has %d bytes, and the layer below it has %d", its, size)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("check %s: %w", name, err), f.Close())
		}
		size = its
		m.addNode(map[string]any{"driver": "qcow2", "node-name": node, "read-only": mode == os.O_RDONLY, "backing": backing}, f)
		backing = node
	}
	m.addDevice(serial)
	return nil
}

// addRAM adds the memory of a machine.
func (m *machine) addRAM(f *os.File, size int64, shared bool) {
	share := "off"
	if shared {
		share = "on"
	}
	m.add("-m", strconv.FormatInt(size>>20, 10)+"M",
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%d,share=%s,mem-path=%s", size, share, m.path(f)))
}

// addSocket adds a character device with a socket on which QEMU listens for the daemon.
func (m *machine) addSocket(name, socket string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		f.Close()
		return err
	}
	m.add("-chardev", fmt.Sprintf("socket,id=%s,fd=%d,server=on,wait=off", name, m.give(f)))
	return nil
}

func (q qemu) addBoot(m *machine, p jail.Plan) error {
	image, initrd, err := q.b.boot(p.Init)
	if err != nil {
		return err
	}
	m.add("-kernel", m.path(image), "-initrd", m.path(initrd), "-append", strings.Join(q.b.kernelOptions(), " "))
	ram, err := newRAM(ramSize(p))
	if err != nil {
		return fmt.Errorf("make the memory: %w", err)
	}
	m.addRAM(ram, ramSize(p), true)
	return nil
}

func (q qemu) openMemory(image string, size int64) (*os.File, func(), error) {
	return q.b.rams.get(image, size)
}

// addSource adds the memory and the state from which a machine is restored. Its processors do not
// run before the daemon lets them.
func (qemu) addSource(m *machine, p jail.Plan, from *source) error {
	ram, err := unix.FcntlInt(from.ram.Fd(), unix.F_DUPFD_CLOEXEC, 3) // other restores use it as well
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	m.addRAM(os.NewFile(uintptr(ram), ramName), ramSize(p), false)
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	m.state = out
	m.add("-S", "-incoming", fmt.Sprintf("fd:%d", m.give(in)))
	return nil
}

// start waits until QEMU has loaded the state of the devices.
func (q qemu) start(ctx context.Context, i *instance, m *machine, from *source) error {
	if from == nil {
		return nil
	}
	written := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { m.state.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	go func() {
		_, err := m.state.Write(from.devices)
		written <- errors.Join(err, m.state.Close())
	}()
	err := i.withMonitor(ctx, func(m monitor) error {
		if err := from.checkMonitor(m.version()); err != nil {
			return err
		}
		return m.(*qmp).awaitLoaded(ctx)
	})
	return errors.Join(<-written, err)
}

// awaitLoaded waits until the state of a restored machine is loaded. QEMU exits if it is damaged.
func (m *qmp) awaitLoaded(ctx context.Context) error {
	for {
		status, err := m.status()
		if err != nil {
			return err
		}
		switch status {
		case "inmigrate":
		case "paused", "prelaunch":
			return nil
		default:
			return unresponsive("query-status", fmt.Errorf("a restored machine is %.40q", status))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

func (qemu) dial(ctx context.Context, l layout) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", l.port())
}

func (qemu) control(ctx context.Context, l layout) (monitor, error) {
	m, err := openMonitor(ctx, l.monitor())
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *qmp) paused() (bool, error) {
	status, err := m.status()
	return status == "paused", err
}

func (m *qmp) stop() error { return m.run("stop", nil, nil) }
func (m *qmp) cont() error { return m.run("cont", nil, nil) }

func (m *qmp) save(ctx context.Context, pid int, size int64, devices, memory string) error {
	if err := m.saveDevices(ctx, devices); err != nil {
		return fmt.Errorf("save the state of the devices: %w", err)
	}
	f, err := os.OpenFile(memory, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = saveRAM(pid, size, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("save the memory: %w", err)
	}
	return nil
}

// saveDevices stops the processors of the machine and writes the state of its devices to a file.
func (m *qmp) saveDevices(ctx context.Context, to string) error {
	fd, err := base.Memfd("devices", nil) // not the file itself, which QEMU could write to later
	if err != nil {
		return err
	}
	state := os.NewFile(uintptr(fd), "devices")
	defer state.Close()
	// QEMU uses only a descriptor with exactly the access that it needs.
	out, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	err = errors.Join(m.stop(), m.awaitDisconnected(ctx, "port"))
	if err != nil {
		return err
	}
	path, err := m.passFile(out)
	if err != nil {
		return err
	}
	if err := m.run("xen-save-devices-state", map[string]any{"filename": path, "live": false}, nil); err != nil {
		return err
	}
	return saveState(to, state)
}

// awaitDisconnected waits until QEMU has noticed that the daemon has closed its connection to the
// port, and so has read all that the daemon has sent.
func (m *qmp) awaitDisconnected(ctx context.Context, port string) error {
	for {
		var devices []struct {
			Label    string `json:"label"`
			Filename string `json:"filename"`
		}
		if err := m.run("query-chardev", nil, &devices); err != nil {
			return err
		}
		for _, d := range devices {
			if d.Label == port && strings.HasPrefix(d.Filename, "disconnected:") {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

func (qemu) volume(l layout) string { return filepath.Join(l.dir, "disk.img") }

// createVolume writes an overlay of the topmost sealed layer, or a whole file system.
func (q qemu) createVolume(ctx context.Context, f *os.File, p jail.Plan) error {
	if len(p.Sealed) == 0 {
		from, err := q.b.emptyVolume(ctx, "volume", p.Limits.DiskMB, func(part, raw *os.File) error {
			return qcow2.FromRaw(ctx, part, raw, qcow2.Omit)
		})
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = io.Copy(f, from)
		return err
	}
	below, err := os.Open(p.Sealed[0])
	if err != nil {
		return err
	}
	defer below.Close()
	size, err := qcow2.Size(below)
	if err != nil {
		return fmt.Errorf("read %s: %w", below.Name(), err)
	}
	return qcow2.Create(f, size)
}

func (qemu) volumeSize(f *os.File) (int64, error) { return qcow2.Size(f) }

// sealVolume gives the layer another name. The old one remains until the jail's record names the
// layer. base.RemoveSealedVolume removes it after a crash.
func (q qemu) sealVolume(_ context.Context, p jail.Plan, to string) error {
	return os.Link(q.volume(layout{p.Dir}), to)
}

func (qemu) copyVolume(_ context.Context, to, from *os.File) error {
	_, err := io.Copy(to, from) // with copy_file_range(2), which shares blocks
	return err
}

func (qemu) clones(dir string) bool { return disk.CanClone(dir) }

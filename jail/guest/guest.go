// Package guest is the agent in a virtual machine with one jail, and process 1 of the machine.
//
// The jail is as separate from the agent as other jails are from their host: root in it is another
// user, in other namespaces, with few capabilities and a filter for system calls. So the jail has
// to break two walls to reach the host, its kernel's and that of the machine. Before it has broken
// the first one it cannot reach the agent, which tells the host what the jail does.
//
// The machine has nothing but an initial file system with the agent, the jail's init and kernel
// modules. The disks of the jail, its limits and its name come with the first request of the daemon.
package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// Main is the main function of the agent, and of the processes that it starts from its own program.
// It returns the exit status.
func Main(args []string) int {
	if len(args) > 1 && args[1] == confineArg {
		console, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3) // confine replaces the standard streams
		if err == nil {
			err = confine()
		}
		fmt.Fprintln(os.NewFile(uintptr(console), "console"), "glasshouse-guest: start init of the jail:", err)
		return 1
	}
	if len(args) > 1 && args[1] == secretsArg {
		return showSecrets(args[2:])
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "glasshouse-guest runs as process 1 of a virtual machine of Glasshouse")
		return 1
	}
	err := run()
	fmt.Fprintln(os.Stderr, "glasshouse-guest:", err) // on the console, which the daemon reads
	powerOff()
	return 1
}

func run() error {
	if err := boot(); err != nil {
		return err
	}
	recorder, err := newRecorder()
	if err != nil {
		return err
	}
	a := &agent{recorder: recorder}
	vsock, err := hasVsock()
	if err != nil {
		return err
	}
	if vsock {
		return a.listen()
	}
	port, err := findPort(10 * time.Second)
	if err != nil {
		return err
	}
	for {
		// The end of a connection is the end of a daemon. The jail runs on.
		if err := a.serve(port); err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// boot mounts the kernel's file systems, leaves the initial file system, and loads the modules.
func boot() error {
	if err := mountKernel(); err != nil {
		return err
	}
	openConsole()
	if err := leaveInitial(); err != nil {
		return fmt.Errorf("leave the initial file system: %w", err)
	}
	// Processes of the jail get this limit, and only root of the machine may raise it.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: base.MaxFiles, Max: base.MaxFiles}); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return loadModules(wire.ModulesDir)
}

// mountKernel mounts the file systems of the kernel.
func mountKernel() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"cgroup2", "/sys/fs/cgroup"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
			return &os.PathError{Op: "mount " + m.kind, Path: m.at, Err: err}
		}
	}
	return nil
}

// openConsole makes the console the standard streams. The kernel opens it before devtmpfs is
// mounted, and without a device node has no console.
func openConsole() {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	for stream := range 3 {
		unix.Dup2(fd, stream)
	}
	if fd > 2 {
		unix.Close(fd)
	}
}

// leaveInitial makes a tmpfs with the same files the root of all processes. The initial file system
// cannot be pivoted away from (pivot_root(2)), which the jail's init does.
func leaveInitial() error {
	const root = "/run/root"
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, name := range []string{wire.AgentPath, wire.InitProgram, wire.ModulesDir} {
		if err := move(name, root+name); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run"} {
		if err := os.Mkdir(root+dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(dir, root+dir, "", unix.MS_MOVE, ""); err != nil {
			return &os.PathError{Op: "move mount", Path: dir, Err: err}
		}
	}
	if err := unix.Mount("tmpfs", root+"/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=711"); err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(root, "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// move copies a file or directory to another file system and removes it, because both are in memory.
func move(from, to string) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := to + strings.TrimPrefix(name, from)
		if e.IsDir() {
			return os.Mkdir(target, 0o755)
		}
		in, err := os.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close(), os.Remove(name))
	})
}

// loadModules loads kernel modules. A module can need others that come later, so it is tried again
// after these.
func loadModules(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for {
		var later []string
		var errs []error
		for _, name := range names {
			if err := loadModule(name); err != nil {
				later, errs = append(later, name), append(errs, err)
			}
		}
		if len(later) == 0 {
			return os.RemoveAll(dir)
		}
		if len(later) == len(names) {
			return errors.Join(errs...)
		}
		names = later
	}
}

func loadModule(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if filepath.Ext(name) != ".ko" {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && err != unix.EEXIST {
		return &os.PathError{Op: "load module", Path: filepath.Base(name), Err: err}
	}
	return nil
}

// findPort returns the device of the control port.
func findPort(patience time.Duration) (string, error) {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, name := range names {
			if text, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(text)) == wire.Port {
				return "/dev/" + filepath.Base(filepath.Dir(name)), nil
			}
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the machine has no port %s", wire.Port)
		}
	}
}

// disksDir has the names of disks that have no serial numbers.
const disksDir = "/run/disks"

// nameDisks gives names to the disks of the machine, in the order of the devices.
func nameDisks(names []string) error {
	if err := os.MkdirAll(disksDir, 0o700); err != nil {
		return err
	}
	for n, name := range names {
		if err := os.Symlink(fmt.Sprintf("/dev/vd%c", 'a'+n), filepath.Join(disksDir, name)); err != nil {
			return err
		}
	}
	return nil
}

// findDisk returns the device of the disk with a serial number or name.
func findDisk(serial string) (string, error) {
	if device, err := os.Readlink(filepath.Join(disksDir, serial)); err == nil {
		return device, nil
	}
	names, err := filepath.Glob("/sys/block/*/serial")
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(text)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(name)), nil
		}
	}
	return "", errors.Join(err, fmt.Errorf("the machine has no disk %s", serial))
}

// serve serves the connections to the port, one after the other.
func (a *agent) serve(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	port := wire.NewGuestPort(f)
	return a.serveStream(port)
}

// serveStream serves the connections over a stream of bytes until it ends.
func (a *agent) serveStream(port *wire.GuestPort) error {
	for {
		c, err := port.Await()
		if err != nil {
			return err
		}
		err = a.serveConn(c)
		if !port.Greeted() {
			return err
		}
	}
}

func (a *agent) serveConn(c io.ReadWriteCloser) error {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	listener := newSingleListener(&portConn{ReadWriteCloser: c})
	server := &http.Server{Handler: a.handler(), Protocols: protocols, HTTP2: &http.HTTP2Config{
		MaxConcurrentStreams: 512, MaxReceiveBufferPerStream: 1 << 20, MaxReceiveBufferPerConnection: 8 << 20,
	}}
	err := server.Serve(listener)
	server.Close()
	listener.wait()
	return err
}

// A singleListener returns one connection, and an error when that is closed.
type singleListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newSingleListener(c *portConn) *singleListener {
	l := &singleListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	c.closed = l.closed
	l.conns <- c
	return l
}

func (l *singleListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, io.EOF
	}
}

func (l *singleListener) wait()          { <-l.closed }
func (l *singleListener) Close() error   { return nil }
func (l *singleListener) Addr() net.Addr { return portAddr{} }

type portAddr struct{}

func (portAddr) Network() string { return "virtio" }
func (portAddr) String() string  { return wire.Port }

func powerOff() {
	unix.Sync()
	// The monitor ends with the restart. Switching off would need a power button, and without one the kernel
	// halts for ever (kernel/reboot.c).
	unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// Command attack attempts to escape from its sandbox. It prints the result of each attack and
// exits with code 1 if one succeeded.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Targets on the host, from the environment.
var (
	port     = os.Getenv("BAIT_PORT")     // port of a listener on all addresses of the host
	address  = os.Getenv("BAIT_ADDRESS")  // address of the host
	abstract = os.Getenv("BAIT_ABSTRACT") // name of an abstract socket of the host
	socket   = os.Getenv("BAIT_SOCKET")   // path of a socket of the host
	secret   = os.Getenv("BAIT_SECRET")   // path of a file of the daemon
	process  = os.Getenv("BAIT_PID")      // pid of a process of the host
	daemon   = os.Getenv("BAIT_DAEMON")   // pid of the daemon
)

// Concatenated, so that a search for the token does not find it in this program.
var token = "tok-3Zq81" + "-secret"

type attack struct {
	name string
	try  func() error // returns nil if the attack succeeded
}

var attacks = []attack{
	{"connect to a machine outside", func() error { return dial("tcp", "192.0.2.1:80") }},
	{"send a packet to a machine outside", func() error { return dial("udp", "192.0.2.1:53") }},
	{"connect by IPv6", func() error { return dial("tcp", "[2001:db8::1]:80") }},
	{"connect to the host's loopback", func() error { return dial("tcp", "127.0.0.1:"+port) }},
	{"connect to the host's loopback by IPv6", func() error { return dial("tcp", "[::1]:"+port) }},
	{"connect to an address of the host", func() error { return dial("tcp", net.JoinHostPort(address, port)) }},
	{"resolve a name", lookup},
	{"connect to an abstract socket of the host", func() error { return dial("unix", "@"+abstract) }},
	{"connect to a socket of the host by its path", func() error { return dial("unix", socket) }},
	{"connect to the D-Bus of the host", func() error { return dial("unix", "/run/dbus/system_bus_socket") }},
	{"connect to the Docker daemon of the host", func() error { return dial("unix", "/var/run/docker.sock") }},
	{"create a packet socket", func() error { return socketOf(unix.AF_PACKET, unix.SOCK_RAW) }},
	{"create a raw socket", func() error { return socketOf(unix.AF_INET, unix.SOCK_RAW) }},
	{"create a vsock socket", func() error { return socketOf(unix.AF_VSOCK, unix.SOCK_STREAM) }},
	{"create an AF_ALG socket", func() error { return socketOf(unix.AF_ALG, unix.SOCK_SEQPACKET) }},
	{"create a network device", func() error { return run("ip", "link", "add", "x", "type", "dummy") }},

	{"read the host's passwords", func() error { return read("/etc/shadow") }},
	{"read the host's users", func() error { return contains("/etc/passwd", "daemon:") }},
	{"read the daemon's data", func() error { return read(secret) }},
	{"list root's home", func() error { return list("/root") }},
	{"find another home", func() error { return others("/home", "agent") }},
	{"find anything in /var", func() error { return others("/var", "tmp") }},
	{"find anything in /run", func() error { return others("/run") }},
	{"find anything in /tmp", func() error { return others("/tmp", strings.Split(os.Args[0], "/")[2]) }},
	{"list /sys", func() error { return list("/sys") }},
	{"list /boot", func() error { return list("/boot") }},
	{"open the machine's memory", func() error { return read("/dev/mem") }},
	{"open the kernel's log", func() error { return read("/dev/kmsg") }},
	{"open a disk", func() error { return first(read("/dev/sda"), read("/dev/vda"), read("/dev/nvme0n1")) }},
	{"read the kernel's memory", func() error { return nonempty("/proc/kcore") }},
	{"read the kernel's keys", func() error { return nonempty("/proc/keys") }},
	{"trigger SysRq", func() error { return write("/proc/sysrq-trigger") }},
	{"set kernel.core_pattern", func() error { return write("/proc/sys/kernel/core_pattern") }},
	{"set net.ipv4.ip_forward", func() error { return write("/proc/sys/net/ipv4/ip_forward") }},
	{"list the root of the first process", func() error { return list("/proc/1/root/") }},
	{"list the working directory of the first process", func() error { return list("/proc/1/cwd/") }},
	{"read the environment of the first process", func() error { return read("/proc/1/environ") }},
	{"read the memory of the first process", func() error { return read("/proc/1/mem") }},
	{"list the files of the first process", func() error { return list("/proc/1/fd") }},
	{"see a process of the host", func() error { return list("/proc/" + daemon) }},
	{"see other processes", func() error { return strangers() }},

	{"kill a process of the host", func() error { return kill(process) }},
	{"kill the daemon", func() error { return kill(daemon) }},
	{"trace a process of the host", func() error { return trace(process) }},
	{"trace the first process", func() error { return trace("1") }},
	{"read the memory of the first process with process_vm_readv", func() error { return readMemory(1) }},
	{"take a descriptor of the first process", takeDescriptor},
	{"kill the first process", killFirst},

	{"find the token", findToken},
	{"find the daemon's environment", func() error { return anywhere("DAEMON_SECRET_VALUE") }},
	{"send the gateway a forged token", forge},

	{"become root", func() error { return errno(unix.SYS_SETUID, 0, 0, 0) }},
	{"become root with setresuid", func() error { return errno(unix.SYS_SETRESUID, 0, 0, 0) }},
	{"set the group id to root", func() error { return errno(unix.SYS_SETGID, 0, 0, 0) }},
	{"acquire a capability", capability},
	{"run a set-user-ID program as root", suid},
	{"create a set-user-ID file with fchmod", func() error { return makeSUID(func(f *os.File) error { return f.Chmod(0o755 | os.ModeSetuid) }) }},
	{"create it with chmod", func() error { return makeSUID(func(f *os.File) error { return unix.Chmod(f.Name(), 0o4755) }) }},
	{"create a set-group-ID file with fchmodat", func() error {
		return makeSUID(func(f *os.File) error { return unix.Fchmodat(unix.AT_FDCWD, f.Name(), 0o2755, 0) })
	}},
	{"create it with open", func() error {
		return makeNew(func(n string) (int, error) { return unix.Open(n, unix.O_CREAT|unix.O_WRONLY, 0o6755) })
	}},
	{"create it with mknod", func() error {
		return makeNew(func(n string) (int, error) { return -1, unix.Mknod(n, unix.S_IFREG|0o4755, 0) })
	}},
	{"create it with openat2", func() error {
		return makeNew(func(n string) (int, error) {
			return unix.Openat2(unix.AT_FDCWD, n, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o4755})
		})
	}},
	{"create a device", func() error { return unix.Mknod("/tmp/disk", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))) }},

	{"mount", func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") }},
	{"remount /usr writable", func() error { return unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"unmount", func() error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) }},
	{"mount with fsopen", func() error { _, err := unix.Fsopen("proc", 0); return err }},
	{"clone a mount", func() error { _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); return err }},
	{"change its root", func() error { return unix.Chroot("/tmp") }},
	{"create a user namespace", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"create a mount namespace", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
	{"start a process in a user namespace", newUser},
	{"enter a namespace", func() error { return enter("/proc/1/ns/net") }},
	{"open a file by its handle", func() error { return errno(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0) }},
	{"load a BPF program", func() error { return errno(unix.SYS_BPF, 0, 0, 0) }},
	{"load a kernel module", func() error { return errno(unix.SYS_INIT_MODULE, 0, 0, 0) }},
	{"use a keyring", func() error { return errno(unix.SYS_KEYCTL, 0, 0, 0) }},
	{"use io_uring", func() error { return errno(unix.SYS_IO_URING_SETUP, 1, 0, 0) }},
	{"use userfaultfd", func() error { return errno(unix.SYS_USERFAULTFD, 0, 0, 0) }},
	{"open a perf event", func() error { return errno(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0) }},
	{"set the clock", func() error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) }},
	{"set the host name", func() error { return unix.Sethostname([]byte("x")) }},
	{"restart the machine", func() error { return errno(unix.SYS_REBOOT, 0, 0, 0) }},

	{"write into /usr", func() error { return create("/usr/x") }},
	{"write into /usr/bin", func() error { return overwrite("/usr/bin/env") }},
	{"write into /etc", func() error { return create("/etc/x") }},
	{"write /etc/passwd", func() error { return overwrite("/etc/passwd") }},
	{"write into the root", func() error { return create("/x") }},
	{"write into /dev", func() error { return create("/dev/x") }},
	{"write into a read-only directory", func() error { return create(filepath.Dir(os.Args[0]) + "/x") }},
	{"change glasshouse-agent", func() error { return overwrite("/.glasshouse/agent") }},
	{"replace the socket of the gateway", func() error { return first(os.Remove("/.glasshouse/gateway.sock"), create("/.glasshouse/x")) }},
	{"change the mode of a program", func() error { return os.Chmod("/usr/bin/env", 0o777) }},
	{"take over a file of root", func() error { return os.Chown("/usr/bin/env", os.Getuid(), os.Getgid()) }},
	{"give its own file to root", func() error { return own(func(n string) error { return os.Chown(n, 0, 0) }) }},
	{"enable core dumps", func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 30, Max: 1 << 30}) }},
}

func main() {
	succeeded := 0
	for _, a := range attacks {
		err := a.try()
		if err == nil {
			succeeded++
			fmt.Printf("SUCCEEDED  %s\n", a.name)
			continue
		}
		fmt.Printf("failed     %s: %v\n", a.name, err)
	}
	fmt.Printf("%d attacks, %d succeeded\n", len(attacks), succeeded)
	if succeeded > 0 {
		os.Exit(1)
	}
}

func first(errs ...error) error {
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errs[0]
}

func dial(network, to string) error {
	if to == "" || to == "@" {
		return nil // the target is missing, which fails the test
	}
	c, err := net.DialTimeout(network, to, 5*time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func lookup() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(ctx, "example.com")
	return err
}

func socketOf(family, kind int) error {
	fd, err := unix.Socket(family, kind, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func read(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.Read(make([]byte, 1)); err == io.EOF {
		err = nil
	}
	return err
}

func nonempty(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 1))
	return err
}

func contains(name, text string) error {
	b, err := os.ReadFile(name)
	if err == nil && !bytes.Contains(b, []byte(text)) {
		err = errors.New("the file is not the host's")
	}
	return err
}

func list(dir string) error {
	_, err := os.ReadDir(dir)
	return err
}

// others looks for entries of a directory other than names.
func others(dir string, names ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			return nil
		}
	}
	return errors.New("no other entries")
}

func write(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err == nil {
		f.Close()
	}
	return err
}

func overwrite(name string) error {
	return first(write(name), os.Remove(name), os.Rename(name, name+"x"))
}

func create(name string) error {
	f, err := os.Create(name)
	if err == nil {
		f.Close()
	}
	return err
}

func strangers() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	if n > 3 { // glasshouse-agent and this program
		return nil
	}
	return fmt.Errorf("only %d processes are visible", n)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic("invalid pid: " + s)
	}
	return n
}

func kill(pid string) error { return unix.Kill(number(pid), unix.SIGKILL) }

func trace(pid string) error { return unix.PtraceAttach(number(pid)) }

func readMemory(pid int) error {
	b := make([]byte, 8)
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	return err
}

func takeDescriptor() error {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.PidfdGetfd(fd, 5, 0)
	return err
}

// killFirst would kill all processes of the sandbox. If this program still runs and the gateway
// still responds, the attack has failed.
func killFirst() error {
	err := unix.Kill(1, unix.SIGKILL)
	resp, get := http.Get("http://localhost:4097/alive")
	if get != nil {
		return nil
	}
	resp.Body.Close()
	return fmt.Errorf("the first process still runs (%v)", err)
}

// findToken searches all readable data of processes for the token.
func findToken() error { return anywhere(token) }

func anywhere(what string) error {
	var files []string
	for _, pattern := range []string{"/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/[0-9]*/fd/*", "/proc/[0-9]*/mem", "/.glasshouse/*", "/tmp/*", "/dev/shm/*", os.Getenv("HOME") + "/*"} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	for _, p := range files {
		if st, err := os.Stat(p); err != nil || !st.Mode().IsRegular() {
			continue
		}
		b, _ := os.ReadFile(p)
		if bytes.Contains(b, []byte(what)) {
			return nil
		}
	}
	for _, kv := range os.Environ() {
		if strings.Contains(kv, what) {
			return nil
		}
	}
	return fmt.Errorf("not found in %d files", len(files))
}

// forge sends a request with a forged token. The test checks the tokens that arrived.
func forge() error {
	req, err := http.NewRequest("GET", "http://localhost:4097/forged", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Glasshouse-Token", "forged")
	req.Header.Set("glasshouse-token", "forged")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	return errors.New("the test checks whether the token arrived")
}

func errno(nr, a, b, c uintptr) error {
	if _, _, e := unix.Syscall(nr, a, b, c); e != 0 {
		return e
	}
	return nil
}

func capability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
	return errno(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
}

func suid() error {
	for _, name := range []string{"su", "mount", "passwd", "chsh", "newgrp"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		cmd := exec.Command(path, "--help")
		if err := cmd.Start(); err != nil {
			continue
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		cmd.Wait()
		if bytes.Contains(status, []byte("\nUid:\t1000\t0\t")) {
			return nil
		}
	}
	if err := run("su", "-c", "true"); err == nil {
		return nil
	}
	return errors.New("no program runs as root")
}

func makeSUID(change func(*os.File) error) error {
	return own(func(n string) error {
		f, err := os.Open(n)
		if err != nil {
			return err
		}
		defer f.Close()
		return change(f)
	})
}

// own calls do with a new file in the workspace.
func own(do func(name string) error) error {
	n := "own"
	if err := create(n); err != nil {
		panic(err)
	}
	defer os.Remove(n)
	return do(n)
}

func makeNew(make func(string) (int, error)) error {
	fd, err := make("new")
	if fd >= 0 {
		unix.Close(fd)
	}
	os.Remove("new")
	return err
}

func newUser() error {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return cmd.Run()
}

func enter(ns string) error {
	fd, err := unix.Open(ns, unix.O_RDONLY, 0)
	if err != nil {
		return first(err, unix.Setns(0, unix.CLONE_NEWNET))
	}
	defer unix.Close(fd)
	return unix.Setns(fd, 0)
}

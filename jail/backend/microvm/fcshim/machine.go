package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/host/disk"
)

// A machine is the machine of this process.
type machine struct {
	id     string
	state  string
	config config
	tap    int // descriptor

	ram, saved *os.File // memory, and the file that QEMU saves the state of the devices to
	qmp        net.Conn
	replies    *bufio.Reader
	vsock      *vsock

	starts chan *start
	ends   chan error // ends the process
}

// A start asks the main thread to start QEMU.
type start struct {
	args []string
	done chan error
}

func newMachine(id string) *machine {
	return &machine{id: id, state: notStarted, tap: -1, starts: make(chan *start), ends: make(chan error, 2)}
}

func checkID(id, inPath string) error {
	if id != inPath {
		return errors.New("The id from the path does not match the id from the body!")
	}
	return nil
}

func (m *machine) configure(_ string, c machineConfig) error {
	if c.VCPUs < 1 || c.VCPUs > 32 {
		return errors.New("The vCPU number is invalid! The vCPU number can only be 1 or an even number when SMT is enabled.")
	}
	if c.MemMiB < 1 {
		return errors.New("The memory size (MiB) is invalid.")
	}
	if err := oneOf("cpu_template", c.Template, "C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"); err != nil {
		return err
	}
	if err := oneOf("huge_pages", c.HugePages, "None", "2M"); err != nil {
		return err
	}
	m.config.Machine = &c
	return nil
}

func (m *machine) setBoot(_ string, c bootSource) error {
	f, err := os.Open(c.Kernel)
	if err != nil {
		return fmt.Errorf("The kernel file cannot be opened: %w.", err)
	}
	defer f.Close()
	if c.Initrd != "" {
		i, err := os.Open(c.Initrd)
		if err != nil {
			return fmt.Errorf("The initrd file cannot be opened due to invalid path or invalid permissions: %w.", err)
		}
		i.Close()
	}
	m.config.Boot = &c
	return nil
}

// openDrive checks that a drive can be opened, with the rights that Firecracker needs.
func openDrive(d drive) error {
	mode := os.O_RDWR
	if d.ReadOnly {
		mode = os.O_RDONLY
	}
	f, err := os.OpenFile(d.Path, mode, 0)
	if err != nil {
		return fmt.Errorf("Unable to create the block device: BackingFile(%w).", err)
	}
	return f.Close()
}

func (m *machine) addDrive(id string, d drive) error {
	err := errors.Join(checkID(d.ID, id), oneOf("cache_type", d.Cache, "Unsafe", "Writeback"), oneOf("io_engine", d.Engine, "Sync", "Async"))
	if err == nil && (d.Path == "" || strings.Trim(d.ID, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "") {
		err = errors.New("Invalid block device configuration.")
	}
	if err == nil {
		err = openDrive(d)
	}
	if err != nil {
		return err
	}
	for n, other := range m.config.Drives {
		if other.ID == d.ID {
			m.config.Drives[n] = d
			return nil
		}
	}
	m.config.Drives = append(m.config.Drives, d)
	return nil
}

// addNetwork opens the tap at once, as a user without rights over the network.
func (m *machine) addNetwork(id string, c networkInterface) error {
	if err := checkID(c.ID, id); err != nil {
		return err
	}
	if m.config.Net != nil {
		return errors.New("the double has one network interface")
	}
	if _, err := net.ParseMAC(c.MAC); c.MAC != "" && err != nil {
		return err
	}
	tap, err := openTap(c.Host)
	if err != nil {
		return fmt.Errorf("Cannot create network device: Open tap device failed: %w.", err)
	}
	m.tap, m.config.Net = tap, &c
	return nil
}

func openTap(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK, 0) // QEMU inherits it
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return -1, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	return fd, os.NewSyscallError("ioctl", unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
}

func (m *machine) setVsock(_ string, c vsockDevice) error {
	if c.CID < 3 || c.CID > 0xffffffff {
		return errors.New("Cannot create vsock device: invalid CID.")
	}
	v, err := newVsock(c)
	if err != nil {
		return fmt.Errorf("Cannot create backend for vsock device: UnixBind(%w).", err)
	}
	m.vsock, m.config.Vsock = v, &c
	return nil
}

func (m *machine) act(_ string, a action) error {
	if err := oneOf("action_type", a.Type, "InstanceStart", "FlushMetrics", "SendCtrlAltDel"); err != nil {
		return err
	}
	switch {
	case a.Type != "InstanceStart":
		return errBeforeStart
	case m.config.Boot == nil:
		return errors.New("Cannot start microvm without kernel configuration.")
	case m.config.Machine == nil:
		m.config.Machine = &machineConfig{VCPUs: 1, MemMiB: 128}
	}
	image, err := elf.Open(m.config.Boot.Kernel)
	if err != nil {
		return fmt.Errorf("Cannot load kernel due to invalid memory configuration or invalid kernel image: %w.", err)
	}
	image.Close()
	if err := m.makeRAM(); err != nil {
		return err
	}
	boot := []string{"-kernel", m.config.Boot.Kernel, "-append", m.config.Boot.Args}
	if m.config.Boot.Initrd != "" {
		boot = append(boot, "-initrd", m.config.Boot.Initrd)
	}
	if err := m.start(boot...); err != nil {
		return err
	}
	m.state = running
	return nil
}

func (m *machine) ramSize() int64 { return m.config.Machine.MemMiB << 20 }

func inherited(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, 0)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (m *machine) makeRAM() (err error) {
	m.ram, err = inherited("glasshouse-ram")
	if err != nil {
		return err
	}
	return m.ram.Truncate(m.ramSize())
}

func pathOf(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// start starts QEMU and connects to its monitor.
func (m *machine) start(args ...string) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	unix.CloseOnExec(fds[0])
	own := os.NewFile(uintptr(fds[0]), "qmp")
	m.qmp, err = net.FileConn(own)
	own.Close()
	if err != nil {
		return err
	}
	m.replies = bufio.NewReader(m.qmp)
	m.saved, err = inherited("state")
	if err != nil {
		return err
	}
	c := m.config
	list := []string{"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-name", m.id,
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", "microvm,acpi=on,rtc=on,memory-backend=ram,suppress-vmdesc=on", "-accel", "tcg,tb-size=64", "-cpu", "max",
		"-global", "migration.send-configuration=off", "-global", "migration.announce-rounds=0", // as Firecracker does
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=monitor,fd=%d", fds[1]), "-mon", "chardev=monitor,mode=control",
		"-m", fmt.Sprintf("%dM", c.Machine.MemMiB),
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%d,share=on,mem-path=%s", m.ramSize(), pathOf(m.ram)),
	}
	for _, d := range c.Drives {
		node, err := json.Marshal(map[string]any{"driver": "raw", "node-name": d.ID, "read-only": d.ReadOnly,
			"file": map[string]any{"driver": "file", "filename": d.Path, "locking": "off"}})
		if err != nil {
			return err
		}
		list = append(list, "-blockdev", string(node), "-device", "virtio-blk-device,drive="+d.ID) // without a serial number
	}
	if c.Net != nil {
		list = append(list, "-netdev", fmt.Sprintf("tap,id=net,fd=%d", m.tap), "-device", "virtio-net-device,netdev=net,mac="+c.Net.MAC)
	}
	if c.Vsock != nil {
		// The descriptor is of any file: all requests for it are executed by this process, which knows only the
		// basic form of queues.
		list = append(list, "-device", fmt.Sprintf("vhost-vsock-device,guest-cid=%d,vhostfd=%d,event_idx=off,indirect_desc=off", c.Vsock.CID, m.saved.Fd()))
	}
	s := &start{args: append(list, args...), done: make(chan error, 1)}
	m.starts <- s
	if err := <-s.done; err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	unix.Close(fds[1])
	if _, err := m.replies.ReadBytes('\n'); err != nil { // the greeting
		return fmt.Errorf("QEMU has ended: %w", err)
	}
	return m.run("qmp_capabilities", nil, nil)
}

// startQEMU starts the process, which inherits the files of this one that are not closed on exec. It ends
// with the calling thread.
func (m *machine) startQEMU(s *start) error {
	program, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	unix.CloseOnExec(pair[0])
	self, err := os.Executable()
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(self, append([]string{filtered, strconv.Itoa(pair[1]), program}, s.args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: inheritable(null.Fd()), Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	unix.Close(pair[1])
	if err != nil {
		return os.NewSyscallError("fork", err)
	}
	if err := m.connectDevice(pair[0], pid); err != nil {
		return err
	}
	go func() {
		var status syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
				break
			}
		}
		m.ends <- errors.New("QEMU has ended")
	}()
	return nil
}

// inheritable returns the descriptors of a child: standard input, the output of this process, and all that are not
// closed on exec, under their own numbers. ForkExec may use the number of a descriptor that is not in the list.
func inheritable(input uintptr) []uintptr {
	files := []uintptr{input, 1, 1}
	const most = 256
	for n := len(files); n < most; n++ {
		flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			files = append(files, ^uintptr(0))
			continue
		}
		files = append(files, uintptr(n))
	}
	return files
}

// connectDevice makes this process execute QEMU's requests for the vsock device.
func (m *machine) connectDevice(socket, pid int) error {
	f := os.NewFile(uintptr(socket), "listener")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return err
	}
	defer c.Close()
	listener, err := receiveListener(c.(*net.UnixConn))
	if err != nil {
		return err
	}
	if m.vsock == nil {
		return nil
	}
	d := &device{v: m.vsock, pid: pid}
	d.pidf, err = unix.PidfdOpen(pid, 0)
	if err == nil {
		d.ram, err = unix.Mmap(int(m.ram.Fd()), 0, int(m.ramSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return err
	}
	m.vsock.mu.Lock()
	m.vsock.device = d
	m.vsock.mu.Unlock()
	go d.listen(listener)
	return nil
}

// run runs a command of QEMU's monitor.
func (m *machine) run(command string, args, result any) error {
	request, err := json.Marshal(map[string]any{"execute": command, "arguments": args})
	if args == nil {
		request, err = json.Marshal(map[string]any{"execute": command})
	}
	if err != nil {
		return err
	}
	if _, err := m.qmp.Write(request); err != nil {
		return err
	}
	for {
		line, err := m.replies.ReadBytes('\n')
		if err != nil {
			return err
		}
		var reply struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(line, &reply); err != nil {
			return err
		}
		switch {
		case reply.Error != nil:
			return fmt.Errorf("%s: %s", command, reply.Error.Desc)
		case reply.Return != nil && result != nil:
			return json.Unmarshal(reply.Return, result)
		case reply.Return != nil:
			return nil
		}
	}
}

func (m *machine) setState(_ string, s vmState) (err error) {
	if err := oneOf("state", s.State, "Paused", "Resumed"); err != nil {
		return err
	}
	switch {
	case s.State == "Paused" && m.state == running:
		err = m.run("stop", nil, nil)
		m.state = paused
	case s.State == "Resumed" && m.state == paused:
		err = m.run("cont", nil, nil)
		m.state = running
	}
	return err
}

// mark begins the file with a saved state.
const mark = "fcshim 1\n"

func (m *machine) create(_ string, c snapshotCreate) error {
	if err := oneOf("snapshot_type", c.Type, "Full", "Diff"); err != nil {
		return err
	}
	if c.Type == "Diff" {
		return errors.New("Diff snapshots are not allowed on uVMs with dirty page tracking disabled.")
	}
	if m.state != paused {
		return errors.New("Cannot save the microVM state: the microVM is not paused.")
	}
	if m.vsock != nil {
		m.vsock.reset()
	}
	if err := m.run("xen-save-devices-state", map[string]any{"filename": pathOf(m.saved), "live": false}, nil); err != nil {
		return err
	}
	text, err := json.Marshal(m.config)
	if err != nil {
		return err
	}
	state, err := io.ReadAll(io.NewSectionReader(m.saved, 0, 1<<30))
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Path, append(append([]byte(mark), append(text, '\n')...), state...), 0o600); err != nil {
		return err
	}
	memory, err := os.OpenFile(c.Memory, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(disk.CopySparse(memory, m.ram), memory.Close())
}

func (m *machine) load(_ string, l snapshotLoad) error {
	c := m.config
	if c.Machine != nil || c.Boot != nil || len(c.Drives) > 0 || c.Net != nil || c.Vsock != nil {
		return errConfigured
	}
	if err := oneOf("backend_type", l.Backend.Type, "File", "Uffd"); err != nil {
		return err
	}
	text, err := os.ReadFile(l.Path)
	if err != nil {
		return fmt.Errorf("Load snapshot error: Failed to restore from snapshot: Failed to get snapshot state from file: %w.", err)
	}
	text, ok := bytes.CutPrefix(text, []byte(mark))
	first, state, found := bytes.Cut(text, []byte("\n"))
	if !ok || !found || json.Unmarshal(first, &c) != nil || len(state) == 0 {
		return errors.New("Load snapshot error: Failed to restore from snapshot: Failed to get snapshot state from file: invalid magic.")
	}
	for _, d := range c.Drives {
		if err := openDrive(d); err != nil {
			return fmt.Errorf("Load snapshot error: %w", err)
		}
	}
	m.config = config{Machine: c.Machine, Drives: c.Drives}
	if n := c.Net; n != nil {
		for _, o := range l.Networks {
			if o.ID != n.ID {
				return fmt.Errorf("Load snapshot error: unknown network interface %s.", o.ID)
			}
			n.Host = o.Host
		}
		if err := m.addNetwork(n.ID, *n); err != nil {
			return err
		}
	}
	if c.Vsock != nil {
		if err := m.setVsock("", *c.Vsock); err != nil {
			return err
		}
	}
	if err := m.makeRAM(); err != nil {
		return err
	}
	if err := m.loadMemory(l.Backend.Type, l.Backend.Path); err != nil {
		return fmt.Errorf("Load snapshot error: Failed to restore from snapshot: guest memory: %w.", err)
	}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		return os.NewSyscallError("pipe", err)
	}
	unix.CloseOnExec(pipe[1])
	in := os.NewFile(uintptr(pipe[1]), "incoming")
	go func() {
		in.Write(state)
		in.Close()
	}()
	if err := m.start("-S", "-incoming", fmt.Sprintf("fd:%d", pipe[0])); err != nil {
		return err
	}
	unix.Close(pipe[0])
	for {
		var s struct{ Status string }
		if err := m.run("query-status", nil, &s); err != nil {
			return err
		}
		if s.Status != "inmigrate" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	m.state = paused
	if l.Resume {
		return m.setState("", vmState{"Resumed"})
	}
	return nil
}

func (m *machine) loadMemory(kind, name string) error {
	if kind == "Uffd" {
		return errors.New("the double does not support Uffd")
	}
	f, err := os.Open(path.Clean(name))
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() != m.ramSize() {
		return fmt.Errorf("the memory file has %d bytes, and the memory %d", st.Size(), m.ramSize())
	}
	return disk.CopySparse(m.ram, f)
}

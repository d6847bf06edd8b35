package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/host/cgroup"
	"glasshouse/internal/thread"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// Memory of a machine besides that of its jail.
const (
	guestMemory   = 192 << 20 // the guest's kernel, agent and initial file system
	machineMemory = 256 << 20 // QEMU, with the translated code of an emulated processor
	machineTasks  = 64        // threads of QEMU
)

// consoleSize is the size of the output of a machine that is kept: of its kernel and of QEMU.
const consoleSize = 64 << 10

// A machine is a process of QEMU that is about to start.
type machine struct {
	args  []string
	files []*os.File // inherited, from descriptor 3 on
	state *os.File   // from which QEMU reads the state of the devices; nil if it boots
}

// give passes an open file to QEMU and returns its descriptor there.
func (m *machine) give(f *os.File) int {
	m.files = append(m.files, f)
	return 2 + len(m.files)
}

func (m *machine) add(args ...string) { m.args = append(m.args, args...) }

// close closes the files, which QEMU has inherited.
func (m *machine) close() {
	m.state.Close()
	for _, f := range m.files {
		f.Close()
	}
}

// path returns the path of an open file for an option that takes no descriptor. It needs no access
// to the directories of the file.
func (m *machine) path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", m.give(f)) }

// addDisk adds a read-only disk.
func (m *machine) addDisk(serial string, f *os.File) {
	m.addNode(map[string]any{"driver": "raw", "node-name": serial, "read-only": true}, f)
	m.addDevice(serial)
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

// ramSize returns the size of the memory of a machine.
func ramSize(p jail.Plan) int64 { return p.Limits.MemoryMB<<20 + guestMemory }

// newMachine returns the machine of a jail and, if it boots, what the guest needs to set it up. The
// devices of a machine with a source must equal those of the machine in the snapshot.
func (b *Backend) newMachine(ctx context.Context, p jail.Plan, from *source, r *reading) (_ *machine, _ wire.Setup, err error) {
	m := &machine{}
	s := wire.Setup{
		Volume: "volume", Network: b.network(p),
		Limits: wire.Limits{MemoryBytes: p.Limits.MemoryMB << 20, PIDs: p.Limits.MaxPIDs + jail.InitThreads},
	}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	m.add("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-name", string(p.ID),
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", "microvm,acpi=on,rtc=on,memory-backend=ram,suppress-vmdesc=on", "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-mon", "chardev=monitor,mode=control", "-global", "migration.send-configuration=off")
	if b.emulates() {
		m.add("-accel", "tcg,tb-size=64", "-cpu", "max")
	} else {
		m.add("-accel", "kvm", "-cpu", "host")
	}
	if from != nil {
		err = m.addSource(p, from)
	} else {
		err = m.addBoot(b, p)
	}
	if err == nil {
		err = b.base()
	}
	if err == nil {
		s.Base, err = inline(b.cfg.Base)
	}
	if err != nil {
		return nil, s, err
	}
	l := layout{p.Dir}
	if err := errors.Join(m.addSocket("port", l.port()), m.addSocket("monitor", l.monitor())); err != nil {
		return nil, s, fmt.Errorf("make the sockets: %w", err)
	}
	m.add("-device", "virtio-serial-device", "-device", "virtserialport,chardev=port,name="+wire.Port)
	if err := m.addNetwork(b, p); err != nil {
		return nil, s, err
	}
	for n, dir := range p.Lower {
		f, err := b.layerDisk(ctx, dir)
		if err != nil {
			return nil, s, err
		}
		serial := fmt.Sprintf("layer%d", n)
		m.addDisk(serial, f)
		s.Layers = append(s.Layers, serial)
	}
	s.Workspace, err = m.addWorkspace(p)
	if err == nil {
		err = m.addVolume(s.Volume, p)
	}
	if err == nil {
		err = m.addMounts(p)
	}
	if err != nil {
		return nil, s, err
	}
	if r.compares() {
		s.Other = "other"
		return m, s, m.addVolume(s.Other, *r.other)
	}
	return m, s, nil
}

// addBoot adds what a machine needs to boot.
func (m *machine) addBoot(b *Backend, p jail.Plan) error {
	image, initrd, err := b.boot(p.Init)
	if err != nil {
		return err
	}
	m.add("-kernel", m.path(image), "-initrd", m.path(initrd))
	// After a panic the kernel would start a BIOS, which this machine has only while it boots, and run through
	// empty memory (machine_real_restart in arch/x86/kernel/reboot.c). A triple fault ends QEMU.
	options := []string{"console=ttyS0", "quiet", "panic=-1", "reboot=t"}
	if b.emulates() {
		// The kernel cannot measure the time stamp counter, because the machine has no other clock.
		// After cmpxchg16b, QEMU 7.2 may save wrong flags for an interrupt, which ends the kernel: its helper
		// reads a state that the translated code has not written (target/i386/tcg/mem_helper.c). So the
		// kernel does without this instruction. Programs still find it.
		options = append(options, "tsc=reliable", fmt.Sprintf("tsc_early_khz=%d", tscKHz()), "clearcpuid=cx16")
	}
	m.add("-append", strings.Join(options, " "))
	ram, err := newRAM(ramSize(p))
	if err != nil {
		return fmt.Errorf("make the memory: %w", err)
	}
	m.addRAM(ram, ramSize(p), true)
	return nil
}

// addSource adds the memory and the state from which a machine is restored. Its processors do not
// run before the daemon lets them.
func (m *machine) addSource(p jail.Plan, from *source) error {
	ram, err := unix.FcntlInt(from.ram.Fd(), unix.F_DUPFD_CLOEXEC, 3) // from.ram is used by other restores
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

// start starts the machine in a cgroup, as the first user of the jail's ids. It returns the process
// and its output. A machine that is bound ends with the daemon.
func (b *Backend) start(m *machine, p jail.Plan, group *cgroup.Cgroup, bound bool) (*exec.Cmd, *os.File, error) {
	program, err := exec.LookPath(b.cfg.QEMU)
	if err != nil {
		return nil, nil, err
	}
	output, err := base.OutputFile(consoleSize)
	if err != nil {
		return nil, nil, err
	}
	cmd := &exec.Cmd{
		Path: program, Args: append([]string{program}, m.args...), Dir: "/", Env: []string{"PATH=/usr/bin:/bin"},
		Stdout: output, Stderr: output, ExtraFiles: m.files,
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			Credential: &syscall.Credential{Uid: p.IDs.First, Gid: p.IDs.First},
		},
	}
	if bound {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	v, err := b.views.get(program)
	if err != nil {
		output.Close()
		return nil, nil, err
	}
	started := make(chan error, 2)
	go func() {
		started <- thread.Alone(func() error {
			err := group.StartIn(cmd.SysProcAttr, func() error { return v.in(cmd.Start) })
			started <- err
			if err == nil {
				// The process is watched by its pidfd; this removes it when it has exited. A bound one ends
				// with this thread (PR_SET_PDEATHSIG in prctl(2)).
				cmd.Wait()
			}
			return err
		})
	}()
	if err := <-started; err != nil {
		output.Close()
		return nil, nil, fmt.Errorf("start QEMU: %w", err)
	}
	return cmd, output, nil
}

// tscKHz measures the frequency of the time stamp counter, which an emulated processor passes on.
func tscKHz() uint64 {
	const period = 20 * time.Millisecond
	began, first := time.Now(), readTSC()
	time.Sleep(period)
	took, ticks := time.Since(began), readTSC()-first
	return ticks * uint64(time.Millisecond) / uint64(took)
}

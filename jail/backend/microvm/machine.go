package microvm

import (
	"context"
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
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// Memory of a machine besides that of its jail.
const (
	guestMemory   = 160 << 20 // the guest's kernel, agent and initial file system
	machineMemory = 256 << 20 // QEMU, with the translated code of an emulated processor
	machineTasks  = 64        // threads of QEMU
)

// consoleSize is the size of the output of a machine that is kept: of its kernel and of QEMU.
const consoleSize = 64 << 10

// A machine is a process of QEMU that is about to start.
type machine struct {
	args  []string
	files []*os.File // inherited, from descriptor 3 on
}

// give passes an open file to QEMU and returns its descriptor there.
func (m *machine) give(f *os.File) int {
	m.files = append(m.files, f)
	return 2 + len(m.files)
}

func (m *machine) add(args ...string) { m.args = append(m.args, args...) }

// close closes the files, which QEMU has inherited.
func (m *machine) close() {
	for _, f := range m.files {
		f.Close()
	}
}

// path returns the path of an open file for an option that takes no descriptor. It needs no access
// to the directories of the file.
func (m *machine) path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", m.give(f)) }

// addDisk adds a disk.
func (m *machine) addDisk(serial string, f *os.File, readOnly bool) {
	n := m.give(f)
	access := "off"
	if readOnly {
		access = "on"
	}
	m.add(
		"-add-fd", fmt.Sprintf("fd=%d,set=%d", n, n),
		"-blockdev", fmt.Sprintf("driver=raw,node-name=%s,read-only=%s,discard=unmap,file.driver=file,file.filename=/dev/fdset/%d,file.locking=off", serial, access, n),
		"-device", fmt.Sprintf("virtio-blk-device,drive=%s,serial=%s", serial, serial),
	)
}

// addPort adds the control port, and listens for the daemon.
func (m *machine) addPort(socket string) error {
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
	m.add(
		"-chardev", fmt.Sprintf("socket,id=port,fd=%d,server=on,wait=off", m.give(f)),
		"-device", "virtio-serial-device",
		"-device", "virtserialport,chardev=port,name="+wire.Port,
	)
	return nil
}

// newMachine returns the machine of a jail.
func (b *Backend) newMachine(ctx context.Context, p jail.Plan) (_ *machine, _ wire.Setup, err error) {
	m := &machine{}
	s := wire.Setup{
		Hostname: p.Hostname, Volume: "volume",
		Limits: wire.Limits{MemoryBytes: p.Limits.MemoryMB << 20, PIDs: p.Limits.MaxPIDs + jail.InitThreads},
	}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	image, initrd, err := b.boot(p.Init)
	if err != nil {
		return nil, s, err
	}
	options := []string{"console=ttyS0", "quiet", "panic=-1"}
	m.add("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-name", string(p.ID),
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-m", strconv.FormatInt(p.Limits.MemoryMB+guestMemory>>20, 10)+"M",
		"-machine", "microvm,acpi=on,rtc=on", "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-kernel", m.path(image), "-initrd", m.path(initrd))
	if b.emulates() {
		// The kernel cannot measure the time stamp counter, because the machine has no other clock.
		// After cmpxchg16b, QEMU 7.2 may save wrong flags for an interrupt, which ends the kernel: its helper
		// reads a state that the translated code has not written (target/i386/tcg/mem_helper.c). So the
		// kernel does without this instruction. Programs still find it.
		options = append(options, "tsc=reliable", fmt.Sprintf("tsc_early_khz=%d", tscKHz()), "clearcpuid=cx16")
		m.add("-accel", "tcg,tb-size=64", "-cpu", "max")
	} else {
		m.add("-accel", "kvm", "-cpu", "host")
	}
	m.add("-append", strings.Join(options, " "))
	if err := m.addPort(layout{p.Dir}.port()); err != nil {
		return nil, s, fmt.Errorf("make the control port: %w", err)
	}
	for n, dir := range p.Lower {
		f, err := b.layerDisk(ctx, dir)
		if err != nil {
			return nil, s, err
		}
		serial := fmt.Sprintf("layer%d", n)
		m.addDisk(serial, f, true)
		s.Layers = append(s.Layers, serial)
	}
	volume, err := os.OpenFile(layout{p.Dir}.volume(), os.O_RDWR, 0)
	if err != nil {
		return nil, s, err
	}
	m.addDisk(s.Volume, volume, false)
	return m, s, nil
}

// start starts the machine in a cgroup, as the first user of the jail's ids. It returns the process
// and its output.
func (b *Backend) start(m *machine, p jail.Plan, group *cgroup.Cgroup) (*exec.Cmd, *os.File, error) {
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
	if err := group.StartIn(cmd.SysProcAttr, cmd.Start); err != nil {
		output.Close()
		return nil, nil, fmt.Errorf("start QEMU: %w", err)
	}
	go cmd.Wait() // the process is watched by its pidfd; this removes it when it has exited
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

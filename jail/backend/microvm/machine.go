package microvm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
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
	machineMemory = 256 << 20 // the monitor; QEMU has the translated code of an emulated processor
	machineTasks  = 64        // threads of the monitor
)

// consoleSize is the size of the output of a machine that is kept: of its kernel and of its monitor.
const consoleSize = 64 << 10

// A machine is a process of a monitor that is about to start.
type machine struct {
	args  []string
	files []*os.File // inherited, from descriptor 3 on
	state *os.File   // from which QEMU reads the state of the devices; nil if it boots
	calls []call     // that configure Firecracker and start the machine
	disks []string   // their names, in the order of the devices
}

// give passes an open file to the monitor and returns its descriptor there.
func (m *machine) give(f *os.File) int {
	m.files = append(m.files, f)
	return 2 + len(m.files)
}

func (m *machine) add(args ...string) { m.args = append(m.args, args...) }

// close closes the files, which the monitor has inherited.
func (m *machine) close() {
	m.state.Close()
	for _, f := range m.files {
		f.Close()
	}
}

// path returns the path of an open file for an option that takes no descriptor. It needs no access
// to the directories of the file.
func (m *machine) path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", m.give(f)) }

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
	if err := b.base(); err != nil {
		return nil, s, err
	}
	s.Base, err = inline(b.cfg.Base)
	if err == nil {
		err = b.vmm.begin(m, p)
	}
	if err != nil {
		return nil, s, err
	}
	for n, dir := range p.Lower {
		f, err := b.layerDisk(ctx, dir)
		if err != nil {
			return nil, s, err
		}
		serial := fmt.Sprintf("layer%d", n)
		if err := b.vmm.addDisk(m, p, serial, f); err != nil {
			return nil, s, err
		}
		s.Layers = append(s.Layers, serial)
	}
	s.Workspace, err = b.addWorkspace(m, p)
	if err == nil {
		err = b.vmm.addVolume(m, p, s.Volume, p)
	}
	if err == nil {
		err = b.addMounts(m, p)
	}
	if err == nil && r.compares() {
		s.Other = "other"
		err = b.vmm.addVolume(m, p, s.Other, *r.other)
	}
	if err != nil {
		return nil, s, err
	}
	if from != nil {
		err = b.vmm.addSource(m, p, from)
	} else {
		err = b.vmm.addBoot(m, p)
	}
	s.Disks = m.disks
	return m, s, err
}

// kernelOptions are the options of the kernel, for all monitors.
func (b *Backend) kernelOptions() []string {
	// After a panic the kernel would start a BIOS, which this machine has only while it boots, and run through
	// empty memory (machine_real_restart in arch/x86/kernel/reboot.c). A triple fault ends the monitor.
	// Free memory contains no secret that a snapshot could save.
	options := []string{"console=ttyS0", "quiet", "panic=-1", "reboot=t", "init_on_free=1"}
	if b.emulates() {
		// The kernel cannot measure the time stamp counter, because the machine has no other clock.
		// After cmpxchg16b, QEMU 7.2 may save wrong flags for an interrupt, which ends the kernel: its helper
		// reads a state that the translated code has not written (target/i386/tcg/mem_helper.c). So the
		// kernel does without this instruction. Programs still find it.
		options = append(options, "tsc=reliable", fmt.Sprintf("tsc_early_khz=%d", tscKHz()), "clearcpuid=cx16")
	}
	return options
}

// A process is that of the monitor of a new machine.
type process struct {
	pid    int
	output *os.File
	exited chan struct{} // closed when killed is known
	killed bool          // with SIGKILL, by someone else
}

// wasKilled reports whether a process that may have ended was killed.
func (p *process) wasKilled(ended bool) bool {
	if !ended {
		return false
	}
	<-p.exited
	return p.killed
}

// start starts the machine in a cgroup, as the first user of the jail's ids. A machine that is bound ends
// with the daemon.
func (b *Backend) start(m *machine, p jail.Plan, group *cgroup.Cgroup, bound bool) (*process, error) {
	program, devices := b.vmm.program()
	program, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	output, err := base.OutputFile(consoleSize)
	if err != nil {
		return nil, err
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
	v, err := b.views.get(program, devices)
	if err != nil {
		output.Close()
		return nil, err
	}
	made := &process{output: output, exited: make(chan struct{})}
	started := make(chan error, 2)
	go func() {
		started <- thread.Alone(func() error {
			err := group.StartIn(cmd.SysProcAttr, func() error { return v.in(cmd.Start) })
			started <- err
			if err == nil {
				// The process is watched by its pidfd; this removes it when it has exited. A bound one ends
				// with this thread (PR_SET_PDEATHSIG in prctl(2)).
				cmd.Wait()
				status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
				made.killed = ok && status.Signaled() && status.Signal() == syscall.SIGKILL
				close(made.exited)
			}
			return err
		})
	}()
	if err := <-started; err != nil {
		output.Close()
		return nil, fmt.Errorf("start the monitor of the virtual machine: %w", err)
	}
	made.pid = cmd.Process.Pid
	return made, nil
}

// tscKHz measures the frequency of the time stamp counter, which an emulated processor passes on.
func tscKHz() uint64 {
	const period = 20 * time.Millisecond
	began, first := time.Now(), readTSC()
	time.Sleep(period)
	took, ticks := time.Since(began), readTSC()-first
	return ticks * uint64(time.Millisecond) / uint64(took)
}

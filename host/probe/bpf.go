package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"glasshouse/internal/thread"
)

const bpfRemedy = "use Linux 5.8 or later with CONFIG_BPF_SYSCALL, and give the daemon CAP_BPF and CAP_PERFMON"

// noBPF returns a conclusive negative result if the kernel or the library reports that it does
// not support the feature.
func noBPF(what string, err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return cannot("this kernel has no "+what, bpfRemedy)
	}
	return refused(what, firstLine(err), bpfRemedy)
}

// bpf creates the map and loads the type of program that observe system calls. Only loading a
// program distinguishes a missing privilege from a missing kernel feature.
func bpf(context.Context, Host) (string, error) {
	// The size must be a power of two and a multiple of the page size (commit 517bbe1994a3).
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		return "", noBPF("ring buffers of BPF", err)
	}
	defer m.Close()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.TracePoint, License: "GPL", Instructions: returns(0)})
	if err != nil {
		return "", noBPF("tracepoint programs of BPF", err)
	}
	defer p.Close()
	return "ring buffers and tracepoint programs", nil
}

func returns(v int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, v), asm.Return()}
}

func btf(context.Context, Host) (string, error) {
	const file = "/sys/kernel/btf/vmlinux"
	fi, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", cannot("the kernel has no type information: missing "+file, "use a kernel with CONFIG_DEBUG_INFO_BTF, as distributions ship")
	}
	if err != nil {
		return "", fmt.Errorf("find the kernel's type information: %w", err)
	}
	if err := unix.Access(file, unix.R_OK); err != nil {
		return "", refused("the kernel's type information", err, "make "+file+" readable")
	}
	return fmt.Sprintf("%d KiB", fi.Size()>>10), nil
}

// bpfTracing loads a program on a raw tracepoint with types (tp_btf), which observers prefer, and
// then one on a function (fentry).
func bpfTracing(context.Context, Host) (string, error) {
	if err := loadTracing("sys_enter", ebpf.AttachTraceRawTp); err != nil {
		return "", noBPF("typed tracepoint programs of BPF", err)
	}
	if err := loadTracing("do_exit", ebpf.AttachTraceFEntry); err != nil {
		return "tracepoints, but not functions: " + err.Error(), nil
	}
	return "tracepoints and functions", nil
}

func loadTracing(to string, how ebpf.AttachType) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: how, AttachTo: to, License: "GPL", Instructions: returns(0),
	})
	if err != nil {
		return firstLine(err)
	}
	return p.Close()
}

// firstLine returns err without the library's advice and the verifier's log.
func firstLine(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}

// bpfLSM distinguishes a kernel on which the bpf security module is inactive from one on which it
// is active but rejects such programs.
func bpfLSM(context.Context, Host) (string, error) {
	active, listErr := activeLSMs()
	if listErr == nil && !strings.Contains(","+active+",", ",bpf,") {
		return "", cannot("bpf is not among the active security modules ("+active+")", "boot with lsm="+active+",bpf")
	}
	// The program is loaded and never attached, so it runs for no process. Its license must be
	// GPL (bpf_lsm_verify_prog in kernel/bpf/bpf_lsm.c).
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.LSM, AttachType: ebpf.AttachLSMMac, AttachTo: "file_open", License: "GPL", Instructions: returns(0),
	})
	if err != nil {
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = unix.EOPNOTSUPP
		}
		return "", refused("programs of the bpf security module", firstLine(err),
			"use a kernel with CONFIG_BPF_LSM and trampolines for BPF, as distributions ship; jails work without it")
	}
	defer p.Close()
	return active, nil
}

// activeLSMs reads the list from securityfs. If the host has not mounted securityfs, it is
// mounted in a mount namespace of this thread.
func activeLSMs() (string, error) {
	const file = "/sys/kernel/security/lsm"
	if b, err := os.ReadFile(file); err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	var list string
	err := thread.Alone(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		// Mounts of a new namespace stay in the peer groups of the host's
		// (mount_namespaces(7)). Without this, securityfs would be mounted on the host, too.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("securityfs", "/sys/kernel/security", "securityfs", 0, ""); err != nil {
			return err
		}
		b, err := os.ReadFile(file)
		list = strings.TrimSpace(string(b))
		return err
	})
	return list, err
}

// tcx attaches a program to the loopback interface of a network namespace that ends with the
// thread.
func tcx(context.Context, Host) (string, error) {
	const remedy = "use Linux 6.6 or later; older ones count traffic through classic tc"
	err := thread.Alone(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		// -1 is TCX_NEXT of linux/bpf.h, which leaves a packet to the next program.
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: returns(-1)})
		if err != nil {
			return fmt.Errorf("load a program: %w", err)
		}
		defer p.Close()
		const loopback = 1 // LOOPBACK_IFINDEX of include/net/flow.h
		l, err := link.AttachTCX(link.TCXOptions{Interface: loopback, Program: p, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("attach a program: %w", err)
		}
		return l.Close()
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return "", cannot("this kernel does not support tcx", remedy)
	}
	return "", refused("tcx", err, remedy)
}

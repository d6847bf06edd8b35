package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// initThreads returns the threads of the jail's init.
func initThreads() ([]int, error) {
	targets := []int{1}
	threads, err := filepath.Glob("/proc/1/task/*")
	if err != nil {
		return nil, err
	}
	for _, dir := range threads {
		if tid, err := strconv.Atoi(filepath.Base(dir)); err == nil && tid != 1 {
			targets = append(targets, tid)
		}
	}
	if len(threads) == 0 { // gVisor shows none
		for tid := 2; tid < 16; tid++ {
			targets = append(targets, tid)
		}
	}
	return targets, nil
}

// sendSignals sends every signal, or with the argument stop SIGSTOP alone, to init and
// to each of its threads, by every call that can.
func sendSignals(args []string) error {
	targets, err := initThreads()
	if err != nil {
		return err
	}
	var pidfds []int // a directory of /proc serves as one (pidfd_send_signal(2))
	if fd, err := unix.PidfdOpen(1, 0); err == nil {
		pidfds = append(pidfds, fd)
	}
	if fd, err := unix.Open("/proc/1", unix.O_DIRECTORY, 0); err == nil {
		pidfds = append(pidfds, fd)
	}
	for n := range 64 {
		sig := unix.Signal(n + 1)
		if len(args) > 0 && args[0] == "stop" && sig != unix.SIGSTOP {
			continue
		}
		for _, tid := range targets {
			unix.Tgkill(1, tid, sig)
			unix.Kill(tid, sig)
			call(unix.SYS_TKILL, uintptr(tid), uintptr(sig))
		}
		for _, fd := range pidfds {
			unix.PidfdSendSignal(fd, sig, nil, 0)
		}
	}
	return nil
}

// reach tries every call by which root in a jail could slow, starve, stop or change
// the jail's init, on init and on each of its threads. It prints one line for each
// call that the kernel carried out.
func reach([]string) error {
	targets, err := initThreads()
	if err != nil {
		return err
	}
	for _, tid := range targets {
		for name, attempt := range reaches {
			if attempt(tid) == 0 {
				fmt.Printf("%s %d\n", name, tid)
			}
		}
	}
	if fd, err := unix.PidfdOpen(1, 0); err == nil {
		if call(unix.SYS_PIDFD_GETFD, uintptr(fd), 0, 0) == 0 {
			fmt.Println("pidfd_getfd 1")
		}
		iov := [2]uintptr{0x400000, 4096} // struct iovec, in init's memory
		if call(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_COLD, 0) == 0 {
			fmt.Println("process_madvise 1")
		}
		if call(unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWNET|unix.CLONE_NEWUTS) == 0 {
			fmt.Println("setns 1")
		}
	}
	for _, who := range []struct {
		name  string
		which uintptr
	}{{"ioprio_set-user", 3}, {"ioprio_set-group", 2}} {
		if call(unix.SYS_IOPRIO_SET, who.which, 1, 3<<13) == 0 {
			fmt.Println(who.name, 1)
		}
	}
	for _, name := range []string{"mem", "clear_refs", "timerslack_ns", "comm", "make-it-fail", "uid_map", "setgroups"} {
		if fd, err := unix.Open("/proc/1/"+name, unix.O_RDWR|unix.O_TRUNC, 0); err == nil {
			if _, err := unix.Write(fd, []byte("19")); err == nil {
				fmt.Println("write-"+name, 1)
			}
			unix.Close(fd)
		}
	}
	for _, link := range []string{"fd/0", "root/etc", "cwd/etc", "ns/net"} {
		if fd, err := unix.Open("/proc/1/"+link, unix.O_PATH, 0); err == nil {
			fmt.Println("open-"+link, 1)
			unix.Close(fd)
		}
	}
	return nil
}

// reaches are the calls that name a thread, in the order of /proc.
var reaches = map[string]func(tid int) unix.Errno{
	"prlimit64": func(tid int) unix.Errno {
		var last unix.Errno = unix.EPERM
		for resource := range 16 {
			limit := unix.Rlimit{Cur: 1, Max: 1}
			if call(unix.SYS_PRLIMIT64, uintptr(tid), uintptr(resource), uintptr(unsafe.Pointer(&limit)), 0) == 0 {
				last = 0
			}
		}
		return last
	},
	"setpriority": func(tid int) unix.Errno {
		return call(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, uintptr(tid), 19)
	},
	"sched_setscheduler": func(tid int) unix.Errno {
		var param int32
		return call(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), 5 /* SCHED_IDLE */, uintptr(unsafe.Pointer(&param)))
	},
	"sched_setparam": func(tid int) unix.Errno {
		var param int32
		return call(unix.SYS_SCHED_SETPARAM, uintptr(tid), uintptr(unsafe.Pointer(&param)))
	},
	"sched_setattr": func(tid int) unix.Errno {
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH, Nice: 19}
		return call(unix.SYS_SCHED_SETATTR, uintptr(tid), uintptr(unsafe.Pointer(&attr)), 0)
	},
	"sched_setaffinity": func(tid int) unix.Errno {
		var cpus unix.CPUSet
		cpus.Set(0)
		return call(unix.SYS_SCHED_SETAFFINITY, uintptr(tid), unsafe.Sizeof(cpus), uintptr(unsafe.Pointer(&cpus)))
	},
	"ioprio_set": func(tid int) unix.Errno {
		return call(unix.SYS_IOPRIO_SET, 1, uintptr(tid), 3<<13 /* idle */)
	},
	"ptrace-attach": func(tid int) unix.Errno { return call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(tid), 0, 0) },
	"ptrace-seize":  func(tid int) unix.Errno { return call(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, 0) },
	"process_vm_readv": func(tid int) unix.Errno {
		return vm(unix.SYS_PROCESS_VM_READV, tid)
	},
	"process_vm_writev": func(tid int) unix.Errno {
		return vm(unix.SYS_PROCESS_VM_WRITEV, tid)
	},
	"kcmp": func(tid int) unix.Errno {
		return call(unix.SYS_KCMP, uintptr(tid), uintptr(os.Getpid()), 2, 0, 0)
	},
	"migrate_pages": func(tid int) unix.Errno {
		nodes := uint64(1)
		return call(unix.SYS_MIGRATE_PAGES, uintptr(tid), 64, uintptr(unsafe.Pointer(&nodes)), uintptr(unsafe.Pointer(&nodes)))
	},
	"move_pages": func(tid int) unix.Errno {
		return call(unix.SYS_MOVE_PAGES, uintptr(tid), 0, 0, 0, 0, 0)
	},
}

// vm copies one byte of another process, at the address where the linker places Go's text.
func vm(nr uintptr, tid int) unix.Errno {
	var b byte
	local := unix.Iovec{Base: &b, Len: 1}
	remote := [2]uintptr{0x401000, 1}
	return call(nr, uintptr(tid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
}

package enforce_test

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attackMain runs one attack inside the jail and prints the error of the kernel.
func attackMain(args []string) int {
	f, ok := map[string]func(args []string) error{
		"memfd": memfd, "memfd-path": memfdPath, "open": open, "openat2": openat2, "openat2-read": openat2Read, "creat": creat, "parent-fd": parentFD,
		"race-exec": raceExec, "race-open": raceOpen, "race-unlink": raceUnlink, "connect": connect, "sendto": sendTo, "sendmmsg": sendBatch,
		"ptrace": tracing, "mem": writeMemory, "steal": steal, "nothing": func([]string) error { return nil },
	}[args[0]]
	if !ok {
		fmt.Println("no such attack")
		return 2
	}
	if err := f(args[1:]); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// inMemory copies a program to a memfd, which has no path.
func inMemory(program string) (int, error) {
	b, err := os.ReadFile(program)
	if err != nil {
		return -1, err
	}
	fd, err := unix.MemfdCreate("ls", 0)
	if err != nil {
		return -1, err
	}
	_, err = unix.Write(fd, b)
	return fd, err
}

func memfd(args []string) error {
	fd, err := inMemory(args[0])
	if err != nil {
		return err
	}
	empty, argv, env := cstring(""), vector(args), vector(nil)
	_, _, e := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(empty)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH, 0)
	return e
}

func memfdPath(args []string) error {
	fd, err := inMemory(args[0])
	if err != nil {
		return err
	}
	return unix.Exec("/proc/self/fd/"+strconv.Itoa(fd), append([]string{"ls"}, args[1:]...), nil)
}

func cstring(s string) *byte { p, _ := unix.BytePtrFromString(s); return p }

func vector(words []string) []*byte {
	v, _ := syscall.SlicePtrFromStrings(words)
	return v
}

func written(fd int, err error) error {
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("attacked\n"))
	return err
}

// open opens a file with numeric flags.
func open(args []string) error {
	flags, _ := strconv.Atoi(args[1])
	fd, err := unix.Open(args[0], flags, 0o644)
	if err != nil || flags&unix.O_ACCMODE == 0 {
		return err
	}
	return written(fd, err)
}

func openat2(args []string) error {
	return written(unix.Openat2(unix.AT_FDCWD, args[0], &unix.OpenHow{Flags: unix.O_WRONLY}))
}

func openat2Read(args []string) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, args[0], &unix.OpenHow{Flags: unix.O_RDONLY})
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func creat(args []string) error { return written(unix.Creat(args[0], 0o644)) }

// parentFD writes to a file through the procfs path of a descriptor that is open for reading.
func parentFD(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return written(unix.Open(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), unix.O_WRONLY, 0))
}

// flip alternately writes two strings of the same length to b.
func flip(b *[64]byte, one, other string) (stop func()) {
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !ended.Load() {
			copy(b[:], one+"\x00")
			for range 50 {
				runtime.KeepAlive(b)
			}
			copy(b[:], other+"\x00")
		}
	}()
	return func() { ended.Store(true); <-done }
}

// raceExec executes a program while another goroutine changes its name.
func raceExec(args []string) error {
	rounds, _ := strconv.Atoi(args[2])
	if rounds > 1 {
		for range rounds {
			pid, err := syscall.ForkExec("/usr/bin/attack", []string{"attack", "race-exec", args[0], args[1], "1"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
			if err != nil {
				return err
			}
			var ws syscall.WaitStatus
			syscall.Wait4(pid, &ws, 0, nil)
		}
		return nil
	}
	var name [64]byte
	copy(name[:], args[0]+"\x00")
	flip(&name, args[0], args[1])
	argv, env := vector([]string{"x"}), vector(nil)
	_, _, e := syscall.Syscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])))
	return e
}

// raceOpen opens a file for writing while another goroutine changes its name.
func raceOpen(args []string) error {
	rounds, _ := strconv.Atoi(args[2])
	var name [64]byte
	copy(name[:], args[0]+"\x00")
	stop := flip(&name, args[0], args[1])
	defer stop()
	for range rounds {
		fd, _, e := unix.Syscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(&name)), unix.O_WRONLY|unix.O_CLOEXEC, 0, 0, 0)
		if e == 0 {
			unix.Write(int(fd), []byte("attacked\n"))
			unix.Close(int(fd))
		}
	}
	return nil
}

// raceUnlink removes a file while another goroutine changes its name.
func raceUnlink(args []string) error {
	rounds, _ := strconv.Atoi(args[2])
	var name [64]byte
	copy(name[:], args[0]+"\x00")
	stop := flip(&name, args[0], args[1])
	defer stop()
	for range rounds {
		os.WriteFile(args[0], nil, 0o644)
		unix.Syscall6(unix.SYS_UNLINKAT, ^uintptr(99), uintptr(unsafe.Pointer(&name)), 0, 0, 0, 0)
	}
	return nil
}

func connect(args []string) error {
	c, err := net.DialTimeout(args[0], args[1], 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if args[0] == "udp" {
		_, err = c.Write([]byte("x"))
	}
	return err
}

func datagrams(to string) (int, *unix.SockaddrInet4, error) {
	addr, err := net.ResolveUDPAddr("udp4", to)
	if err != nil {
		return -1, nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	return fd, &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}, err
}

func sendTo(args []string) error {
	fd, to, err := datagrams(args[0])
	if err != nil {
		return err
	}
	return unix.Sendto(fd, []byte("datagram"), 0, to)
}

// sendBatch sends two messages in one call and prints the counts that the kernel returns.
func sendBatch(args []string) error {
	fd, to, err := datagrams(args[0])
	if err != nil {
		return err
	}
	raw := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr, Port: uint16(to.Port>>8 | to.Port<<8&0xff00)}
	type header struct {
		unix.Msghdr
		n uint32
		_ uint32
	}
	data := []byte("datagram")
	iov := unix.Iovec{Base: &data[0], Len: uint64(len(data))}
	var h [2]header
	for i := range h {
		h[i].Name, h[i].Namelen = (*byte)(unsafe.Pointer(&raw)), unix.SizeofSockaddrInet4
		h[i].Iov, h[i].Iovlen = &iov, 1
	}
	n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&h[0])), 2, 0, 0, 0)
	if e != 0 {
		return e
	}
	fmt.Println(n, h[0].n, h[1].n)
	return nil
}

// tracing and writeMemory try to change the arguments of calls of other processes.
func tracing([]string) error { return unix.PtraceAttach(os.Getppid()) }

func writeMemory([]string) error {
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// steal tries to take descriptors of init. With the seccomp listener the jail could answer its
// own calls.
func steal([]string) error {
	pidfd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	for fd := range 64 {
		if _, err := unix.PidfdGetfd(pidfd, fd, 0); err == nil {
			return fmt.Errorf("taken: %d", fd)
		}
		if _, err := unix.Open(fmt.Sprintf("/proc/1/fd/%d", fd), unix.O_RDWR, 0); err == nil {
			return fmt.Errorf("taken: %d", fd)
		}
		if to, err := os.Readlink(fmt.Sprintf("/proc/1/fd/%d", fd)); err == nil {
			return fmt.Errorf("seen: %s", to)
		}
	}
	if _, err := unix.Open("/proc/1/mem", unix.O_RDONLY, 0); err == nil {
		return fmt.Errorf("taken: its memory")
	}
	fmt.Println("nothing")
	return nil
}

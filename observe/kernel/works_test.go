package kernel_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/observe/observetest"
)

func init() {
	for name, work := range map[string]func([]string){
		"refused": refused, "fault": faulting, "open": openOne, "race": race, "exec-in-thread": execInThread, "vfork": vfork,
		"int80": int80, "restarted": restarted, "chroot": chroot, "mmap": mmap, "exchange": exchange, "connect": connect, "copy": copyAll,
	} {
		observetest.Works[name] = work
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "work:", err)
		os.Exit(1)
	}
}

// refused installs a seccomp filter that denies two calls, and makes them.
func refused(args []string) {
	runtime.LockOSThread()
	check(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPGID, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_UNLINKAT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	check(unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0))
	n, _ := strconv.Atoi(args[0])
	for range n {
		unix.RawSyscall(unix.SYS_GETPGID, 0, 0, 0)
	}
	name := []byte("/of-a-refused-call\x00")
	here := unix.AT_FDCWD
	unix.RawSyscall(unix.SYS_UNLINKAT, uintptr(here), uintptr(unsafe.Pointer(&name[0])), unix.AT_REMOVEDIR)
}

// faulting opens a path in memory that is not paged in.
func faulting(args []string) {
	f, err := os.Open(args[0])
	check(err)
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	check(err)
	unix.Syscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(&mem[0])), 0, 0, 0, 0)
}

func openOne(args []string) {
	if fd, err := unix.Open(args[0], unix.O_RDONLY, 0); err == nil {
		unix.Close(fd)
	}
}

// race opens a path that another thread changes, and prints the opened files.
func race(args []string) {
	good, evil := []byte(args[0]+"/good\x00"), []byte(args[0]+"/evil\x00")
	path := append([]byte(nil), good...)
	at := (*uint32)(unsafe.Pointer(&path[len(args[0])+1]))
	g, e := *(*uint32)(unsafe.Pointer(&good[len(args[0])+1])), *(*uint32)(unsafe.Pointer(&evil[len(args[0])+1]))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			atomic.StoreUint32(at, e)
			atomic.StoreUint32(at, g)
		}
	}()
	n, _ := strconv.Atoi(args[1])
	for range n {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(&path[0])), 0, 0, 0, 0)
		if errno != 0 {
			continue
		}
		b := make([]byte, 4)
		unix.Read(int(fd), b)
		unix.Close(int(fd))
		fmt.Println(string(b))
	}
	stop.Store(true)
	<-done
}

// execInThread executes a program from a thread other than the first.
func execInThread(args []string) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		for unix.Gettid() == os.Getpid() { // this is the first thread: use another one
			ready := make(chan struct{})
			go func() {
				runtime.LockOSThread()
				close(ready)
				check(syscall.Exec(args[0], args, nil))
			}()
			<-ready
			select {}
		}
		check(syscall.Exec(args[0], args, nil))
	}()
	<-done
}

// vfork starts a program as the standard library does, but with the call vfork.
func vfork(args []string) {
	out, err := exec.Command("python3", "-c", "import ctypes,os\nl=ctypes.CDLL(None)\np=l.vfork()\nif p==0: l._exit(0)\nos.waitpid(p,0)").CombinedOutput()
	if err != nil {
		fmt.Fprintln(os.Stderr, string(out), err)
	}
}

// restarted waits for a child and is interrupted by a signal whose handler makes the kernel
// restart the call.
func restarted([]string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGUSR1)
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	check(err)
	check(cmd.Start())
	type thread struct {
		tid int
		dir string // directory of the process in /proc, which may belong to another pid namespace
	}
	ready := make(chan thread)
	go func() {
		t := <-ready
		waits := func() {
			for {
				// For a thread that runs or is about to run, the file contains "running".
				b, err := os.ReadFile("/proc/" + t.dir + "/syscall")
				check(err)
				if strings.HasPrefix(string(b), fmt.Sprint(unix.SYS_WAIT4, " ")) {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
		waits()
		check(unix.Tgkill(os.Getpid(), t.tid, unix.SIGUSR1))
		waits()
		in.Close() // ends the child
	}()
	runtime.LockOSThread()
	dir, err := os.Readlink("/proc/thread-self")
	check(err)
	ready <- thread{unix.Gettid(), dir}
	unix.Wait4(-1, nil, 0, nil)
}

func chroot(args []string) {
	check(unix.Chroot(args[0]))
	check(unix.Chdir("/"))
	fd, err := unix.Open("/inner", unix.O_RDONLY, 0)
	check(err)
	unix.Close(fd)
	check(unix.Mkdir("made", 0o755))
	check(unix.Rmdir("/made"))
}

func mmap(args []string) {
	f, err := os.Create(args[0])
	check(err)
	check(f.Truncate(8192))
	mem, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(err)
	mem[0] = 1
	_, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE) // does not change the file
	check(err)
}

func connect([]string) {
	net.Dial("tcp", "127.0.0.1:1")
	net.Dial("tcp", "[::1]:1")
	net.Dial("unix", "/tmp/nobody-listens-here")
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	check(err)
	to := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
	unix.Sendto(s, []byte("x"), 0, to)
	unix.Sendmsg(s, []byte("x"), nil, to, 0)
}

func copyAll(args []string) {
	from, err := os.Create(args[0] + "/from")
	check(err)
	to, err := os.Create(args[0] + "/to")
	check(err)
	_, err = unix.Write(int(from.Fd()), make([]byte, 5000))
	check(err)
	_, err = from.Seek(0, io.SeekStart)
	check(err)
	_, err = unix.CopyFileRange(int(from.Fd()), nil, int(to.Fd()), nil, 3000, 0)
	check(err)
	_, err = unix.Sendfile(int(to.Fd()), int(from.Fd()), nil, 2000)
	check(err)
	check(unix.Ftruncate(int(to.Fd()), 100))
	check(unix.Fallocate(int(to.Fd()), 0, 0, 8192))
}

// exchange exchanges two files, then one with a file that does not exist, and renames one.
func exchange(args []string) {
	a, b, c := args[0]+"/a", args[0]+"/b", args[0]+"/c"
	check(os.WriteFile(a, nil, 0o644))
	check(os.WriteFile(b, nil, 0o644))
	rename := func(from, to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	}
	check(rename(a, b, unix.RENAME_EXCHANGE))
	if err := rename(a, c, unix.RENAME_EXCHANGE); err != unix.ENOENT {
		check(fmt.Errorf("exchange with a file that does not exist: %v", err))
	}
	check(rename(a, c, unix.RENAME_NOREPLACE))
}

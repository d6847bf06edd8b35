package ptrace_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/ptrace"
)

// acts are the programs that the test binary can be, in a jail or as its daemon.
var acts = map[string]func(args []string){
	"getppid":     getppid,
	"threads":     threads,
	"threadexec":  threadExec,
	"threadsexit": threadsExit,
	"vfork":       vfork,
	"refused":     refused,
	"untraced":    untraced,
	"untraced3":   untraced3,
	"handled":     handled,
	"nameself":    nameSelf,
	"opens":       opensFiles,
	"tracer":      tracer,
	"debugger":    debugger,
	"race":        race,
	"mapped":      mapped,
	"vforkwait":   vforkWait,
	"serve":       serve,
	"ask":         ask,
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func must(err error) {
	if err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
}

func mustCall(r, _ uintptr, errno syscall.Errno) uintptr {
	if errno != 0 {
		must(errno)
	}
	return r
}

// getppid makes the given number of calls.
func getppid(args []string) {
	for range number(args[0]) {
		unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	}
}

// threads makes the given number of calls in each of the given number of threads.
func threads(args []string) {
	var all sync.WaitGroup
	for range number(args[0]) {
		all.Go(func() {
			runtime.LockOSThread() // so the thread ends too
			getppid(args[1:])
		})
	}
	all.Wait()
	fmt.Println("done")
}

// threadExec executes a program from a thread other than the first.
func threadExec(args []string) {
	for range 3 {
		go func() { select {} }()
	}
	done := make(chan struct{})
	elsewhere(func() {
		must(unix.Exec(args[0], args, nil))
		close(done)
	})
	<-done
}

// elsewhere runs f on a thread other than the first.
func elsewhere(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			elsewhere(f)
			select {}
		}
		f()
	}()
}

// threadsExit exits while all its threads are in calls.
func threadsExit(args []string) {
	tids := make(chan int)
	for range number(args[0]) {
		go func() {
			runtime.LockOSThread()
			tids <- unix.Gettid()
			mask := ^uint64(0) // the runtime's own signals would end the wait
			unix.Syscall(unix.SYS_RT_SIGSUSPEND, uintptr(unsafe.Pointer(&mask)), 8, 0)
		}()
	}
	for range number(args[0]) {
		dir := fmt.Sprintf("/proc/self/task/%d/", <-tids)
		for in := false; !in; {
			call, err := os.ReadFile(dir + "syscall")
			must(err)
			stat, err := os.ReadFile(dir + "stat")
			must(err)
			in = strings.HasPrefix(string(call), strconv.Itoa(unix.SYS_RT_SIGSUSPEND)+" ") && strings.Contains(string(stat), ") S ")
		}
	}
	os.Exit(7)
}

// vfork starts a program as os/exec does: by clone with CLONE_VFORK.
func vfork(args []string) {
	p, err := os.StartProcess(args[0], args, &os.ProcAttr{Files: []*os.File{nil, os.Stdout}})
	must(err)
	st, err := p.Wait()
	must(err)
	fmt.Println(st.ExitCode())
}

// refused makes calls that its own seccomp filter denies.
func refused(args []string) {
	runtime.LockOSThread()
	must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPGID, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                      // SECCOMP_RET_ALLOW
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	must(unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
	for range number(args[0]) {
		if _, err := unix.Getpgid(0); err != unix.EPERM {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("refused")
}

// vforkWait starts a child as vfork does. The child waits for a line of input and exits.
func vforkWait([]string) {
	const flags = unix.CLONE_VFORK | uintptr(unix.SIGCHLD)
	var line [1]byte
	pid := mustCall(unix.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0))
	if pid == 0 {
		unix.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&line)), 1)
	}
	child(pid)
}

// serve is an init that starts programs for ask.
func serve(args []string) {
	l, err := net.Listen("unix", args[0])
	must(err)
	must(exec.Command("/bin/true").Run()) // before the first command, os/exec starts a process to detect kernel features
	fmt.Println("up")
	for {
		c, err := l.Accept()
		must(err)
		go func() {
			argv, err := io.ReadAll(c)
			must(err)
			out, err := c.(*net.UnixConn).File()
			must(err)
			words := strings.Split(strings.TrimSuffix(string(argv), "\x00"), "\x00")
			(&exec.Cmd{Path: words[0], Args: words, Stdout: out, Stderr: os.Stderr}).Run()
			out.Close()
			c.Close()
		}()
	}
}

// ask makes serve start a program, and prints its output.
func ask(args []string) {
	c, err := net.Dial("unix", args[0])
	must(err)
	_, err = io.WriteString(c, strings.Join(args[1:], "\x00")+"\x00")
	must(err)
	must(c.(*net.UnixConn).CloseWrite())
	_, err = io.Copy(os.Stdout, c)
	must(err)
}

// untraced creates a child with CLONE_UNTRACED and waits for it.
func untraced([]string) {
	const flags = unix.CLONE_UNTRACED | uintptr(unix.SIGCHLD)
	child(mustCall(unix.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0)))
}

// untraced3 is like untraced, but uses clone3.
func untraced3([]string) {
	args := [8]uint64{unix.CLONE_UNTRACED, 0, 0, 0, uint64(unix.SIGCHLD)}
	pid := mustCall(unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), 64, 0))
	if pid != 0 && args[0] != unix.CLONE_UNTRACED {
		fmt.Printf("the flags are %#x now\n", args[0])
	}
	child(pid)
}

// child makes five calls in the child and waits for it in the parent. Go's runtime does not work
// in the child.
func child(pid uintptr) {
	if pid == 0 {
		for range 5 {
			unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
		}
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	var ws unix.WaitStatus
	_, err := unix.Wait4(int(pid), &ws, 0, nil)
	must(err)
	fmt.Println("ended", ws.ExitStatus())
}

// handled prints the signals that it receives, until SIGTERM.
func handled([]string) {
	c := make(chan os.Signal, 100)
	signal.Notify(c, unix.SIGUSR1, unix.SIGTERM, unix.SIGCONT)
	fmt.Println("ready")
	for s := range c {
		fmt.Println(s)
		if s == unix.SIGTERM {
			return
		}
	}
}

func nameSelf(args []string) {
	runtime.LockOSThread()
	name := append([]byte(args[0]), 0)
	must(unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0))
	getppid([]string{"1"})
}

// opensFiles opens files in all ways that can create one.
func opensFiles(args []string) {
	dir := args[0]
	open := func(name string, flags int) {
		fd, err := unix.Open(filepath.Join(dir, name), flags, 0o600)
		must(err)
		unix.Close(fd)
	}
	open("made", unix.O_CREAT|unix.O_WRONLY)
	open("made", unix.O_CREAT|unix.O_WRONLY) // the file exists now
	open("exclusive", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
	open("exclusive", unix.O_RDONLY)
	open("old", unix.O_CREAT|unix.O_RDWR|unix.O_TRUNC)
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(dir, "how"), &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o600})
	must(err)
	unix.Close(fd)
}

// tracer watches a jail until it is killed.
func tracer(args []string) {
	_, err := (&ptrace.Source{}).Attach(context.Background(), observe.Target{Jail: id.Jail(args[0]), PID: number(args[1]), Dir: args[2]}, &log{})
	must(err)
	fmt.Println("attached")
	select {}
}

// debugger traces a process until the debugger is killed or, if requested, detaches at a line of
// input.
func debugger(args []string) {
	runtime.LockOSThread()
	pid := number(args[0])
	if err := unix.PtraceSeize(pid); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("tracing")
	var b [1]byte
	os.Stdin.Read(b[:])
	must(unix.PtraceInterrupt(pid))
	_, err := unix.Wait4(pid, nil, unix.WALL, nil)
	must(err)
	must(unix.PtraceDetach(pid))
	fmt.Println("let go")
	os.Stdin.Read(b[:])
}

// race opens one of two files while another thread changes which.
func race(args []string) {
	a, b := args[0]+"\x00", args[1]+"\x00"
	path := []byte(a)
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				copy(path, [...]string{a, b}[i%2])
			}
		}
	})
	here := ^uintptr(99) // AT_FDCWD
	for range 300 {
		fd, _, errno := unix.Syscall(unix.SYS_OPENAT, here, uintptr(unsafe.Pointer(&path[0])), unix.O_RDONLY)
		if errno == 0 {
			unix.Close(int(fd))
		}
	}
	close(stop)
	all.Wait()
}

// mapped writes a file through a memory mapping.
func mapped(args []string) {
	fd, err := unix.Open(args[0], unix.O_RDWR|unix.O_CREAT, 0o600)
	must(err)
	must(unix.Ftruncate(fd, 4096))
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	b[0] = 1
	_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	must(err)
}

package observetest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// variable is the environment variable that selects the work of a test binary.
const variable = "GLASSHOUSE_OBSERVE_WORK"

// Works are the programs that a test binary can run in a jail, by name. The tests of a package
// may add others.
var Works = map[string]func(args []string){
	"init":    func([]string) { wait() },
	"nothing": func([]string) {},
	"getppid": func(args []string) { getppid(number(args[0])) },
	"threads": func(args []string) {
		var wg sync.WaitGroup
		for range number(args[0]) {
			wg.Go(func() {
				runtime.LockOSThread()
				getppid(number(args[1]))
			})
		}
		wg.Wait()
	},
	"exit": func(args []string) { os.Exit(number(args[0])) },
	"die": func(args []string) {
		unix.Kill(os.Getpid(), unix.Signal(number(args[0])))
		wait()
	},
	"write": func(args []string) { // path, count, bytes each
		f, err := os.Create(args[0])
		must(err)
		b := make([]byte, number(args[2]))
		for range number(args[1]) {
			_, err := unix.Write(int(f.Fd()), b)
			must(err)
		}
		must(f.Close())
	},
	"forks": func(args []string) {
		for range number(args[0]) {
			pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			if errno != 0 {
				fmt.Fprintln(os.Stderr, errno)
				os.Exit(1)
			}
			if pid == 0 { // only system calls are allowed here
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			for {
				if _, err := unix.Wait4(int(pid), nil, 0, nil); err != unix.EINTR {
					must(err)
					break
				}
			}
		}
	},
	"crowds": func(args []string) { // processes whose threads all end simultaneously
		for range number(args[0]) {
			cmd := exec.Command("/proc/self/exe", "crowd") // the package selects the work by argument or by variable
			cmd.Env = append(os.Environ(), variable+"=crowd")
			must(cmd.Run())
		}
	},
	"crowd": func([]string) {
		var there sync.WaitGroup
		for range 8 {
			there.Add(1)
			go func() {
				runtime.LockOSThread()
				there.Done()
				wait()
			}()
		}
		there.Wait()
		os.Exit(0)
	},
	"rename": func(args []string) { // with a changing name
		runtime.LockOSThread()
		getppid(1)
		name := append([]byte(args[0]), 0)
		_, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0)
		if errno != 0 {
			must(errno)
		}
		unix.RawSyscall(unix.SYS_GETUID, 0, 0, 0)
	},
}

// wait blocks until the process is killed. pause(2) returns after each handled signal,
// and the Go runtime sends SIGURG to its own threads to preempt goroutines.
func wait() {
	for {
		unix.Pause()
	}
}

func getppid(n int) {
	for range n {
		unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	must(err)
	return n
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "work:", err)
		os.Exit(1)
	}
}

// Main runs the tests of a package or, in a jail, one of Works.
func Main(m *testing.M) {
	if name := os.Getenv(variable); name != "" {
		work, ok := Works[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "no such work:", name)
			os.Exit(1)
		}
		work(os.Args[1:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

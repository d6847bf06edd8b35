package ptrace_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// acts are what this test does when it is a program in a jail.
var acts = map[string]func(args []string){
	"getppid": getppid,
	"threads": threads,
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// getppid makes so many calls.
func getppid(args []string) {
	for range number(args[0]) {
		unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	}
}

// threads makes so many calls in each of so many threads.
func threads(args []string) {
	var all sync.WaitGroup
	for range number(args[0]) {
		all.Go(func() {
			runtime.LockOSThread() // so the thread ends too
			getppid(args[1:])
		})
	}
	all.Wait()
	fmt.Fprintln(os.Stdout, "done")
}

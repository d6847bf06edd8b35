package ptrace

import (
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on a new thread that ends with f. When a thread ends, the kernel detaches
// its tracees. The thread has no children, whose end wait would report along with the tracees.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() && !hasChildren() {
			f() // the thread is still locked on return, so it ends
			return
		}
		// The main thread never ends, and other threads may have children. This thread is kept
		// locked until another one is found.
		found := make(chan struct{})
		onOwnThread(func() {
			close(found)
			f()
		})
		<-found
		runtime.UnlockOSThread()
	}()
}

func hasChildren() bool {
	_, err := wait(unix.P_ALL, 0, unix.WNOHANG)
	return err != unix.ECHILD
}

// bell is the signal that interrupts a blocking call of a thread. It is the last real-time
// signal, which is otherwise unused.
const bell = 64

// hangBell clears SA_RESTART of bell, so that it interrupts calls. The handler is the Go
// runtime's, which ignores signals without a receiver.
var hangBell = sync.OnceValue(func() error {
	const restart = 0x10000000 // SA_RESTART
	var action struct {
		handler, flags uint64
		_              [30]uint64 // larger than any kernel's structure
	}
	const maskSize = 8
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, bell, 0, uintptr(unsafe.Pointer(&action)), maskSize, 0, 0); errno != 0 {
		return errno
	}
	action.flags &^= restart
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, bell, uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0); errno != 0 {
		return errno
	}
	return nil
})

func ring(tid int) { unix.Tgkill(unix.Getpid(), tid, bell) }

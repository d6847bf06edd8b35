package ptrace

import (
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on a thread of its own that ends with f. What such a thread
// still traces when it ends the kernel lets go. The thread has no children, whose
// end it would otherwise see when it waits for its tracees.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() && !hasChildren() {
			f() // still locked when it returns, so the thread ends
			return
		}
		// The main thread never ends, and others may have started programs.
		// This one is kept until another is found.
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

// bell is the signal that gets a thread out of a call it waits in. Nobody else
// uses the last of the realtime signals.
const bell = 64

// hangBell takes the flag from bell that has interrupted calls made again. The
// handler is the runtime's, which ignores a signal that nobody wants to know of.
var hangBell = sync.OnceValue(func() error {
	const restart = 0x10000000 // SA_RESTART
	var action struct {
		handler, flags uint64
		_              [30]uint64 // more than any kernel's
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

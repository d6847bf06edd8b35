package jailinit_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	jailinit "glasshouse/jail/init"
	"glasshouse/jail/init/protocol"
)

// waysToSignal are the ways in which root in the jail can send a signal to init, and how often
// the test uses each.
var waysToSignal = map[string]struct {
	rounds int
	send   func(unix.Signal) error
}{
	"kill": {100, func(n unix.Signal) error { return unix.Kill(1, n) }},

	"each thread": {10, func(n unix.Signal) error {
		threads, err := os.ReadDir("/proc/1/task")
		for _, t := range threads {
			tid, _ := strconv.Atoi(t.Name())
			err = errors.Join(err, unix.Tgkill(1, tid, n))
		}
		return err
	}},

	// A sender can choose si_code, except for positive values, which only the kernel sets
	// (rt_sigqueueinfo(2)).
	"queue": {10, func(n unix.Signal) error {
		const queue, timer, messageQueue, asyncIO, sigio = -1, -2, -3, -4, -5
		for _, code := range []int32{queue, timer, messageQueue, asyncIO, sigio} {
			var info [128]byte
			binary.NativeEndian.PutUint32(info[0:], uint32(n))
			binary.NativeEndian.PutUint32(info[8:], uint32(code))
			_, _, errno := unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(n), uintptr(unsafe.Pointer(&info)))
			if errno != 0 && errno != unix.EAGAIN { // too many signals are pending
				return errno
			}
		}
		return nil
	}},

	// The kernel sends the signal of F_SETSIG when a descriptor becomes ready.
	"descriptor": {10, func(n unix.Signal) error {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
			return err
		}
		defer unix.Close(p[0])
		defer unix.Close(p[1])
		_, err1 := unix.FcntlInt(uintptr(p[0]), unix.F_SETSIG, int(n))
		_, err2 := unix.FcntlInt(uintptr(p[0]), unix.F_SETOWN, 1)
		_, err3 := unix.FcntlInt(uintptr(p[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK)
		_, err4 := unix.Write(p[1], []byte("x"))
		return errors.Join(err1, err2, err3, err4)
	}},
}

// signalMain sends all signals to init, concurrently from several threads and many times,
// because some are harmful only while init handles another.
func signalMain(way string) int {
	w := waysToSignal[way]
	var wg sync.WaitGroup
	var failed sync.Map
	for s := range 4 {
		wg.Go(func() {
			for i := range 64 * w.rounds {
				n := unix.Signal(1 + (i+16*s)%64) // different signals concurrently
				if err := w.send(n); err != nil {
					failed.Store(err.Error(), true)
				}
			}
		})
	}
	wg.Wait()
	failed.Range(func(err, _ any) bool { fmt.Fprintln(os.Stderr, err); return true })
	fmt.Println("sent")
	return 0
}

// Init survives all signals from root in the jail.
func TestInitSurvivesSignalsFromJail(t *testing.T) {
	for way := range waysToSignal {
		t.Run(way, func(t *testing.T) {
			j := startIsolated(t)
			stdout, stderr, status := j.run(protocol.Exec{ID: id.NewExec(), Argv: []string{os.Args[0]}, Env: []string{"TEST_SIGNALS=" + way}})
			if stdout != "sent\n" || stderr != "" {
				t.Fatalf("sender: status %+v, stdout %q, stderr %q", status, stdout, stderr)
			}
			if h, err := j.Hello(j.t.Context()); err != nil || h.PID != 1 {
				t.Errorf("Hello = %+v, %v", h, err)
			}
		})
	}
}

// A signal without a handler can end even PID 1 in rare cases.
func TestEverySignalHasAHandler(t *testing.T) {
	j := start(t)
	b, err := os.ReadFile("/proc/" + itoa(j.cmd.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\nSigCgt:\t")
	line, _, _ := strings.Cut(rest, "\n")
	caught, err := strconv.ParseUint(line, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	for n := unix.Signal(1); n <= 64; n++ {
		// SIGKILL and SIGSTOP cannot be caught, and SIGCONT ends nothing.
		if n == unix.SIGKILL || n == unix.SIGSTOP || n == unix.SIGCONT {
			continue
		}
		if caught&(1<<(n-1)) == 0 {
			t.Errorf("signal %d (%s) has no handler", n, unix.SignalName(n))
		}
	}
}

// A fault in init itself remains a panic that Go code can recover from.
func TestFaultsReachTheRuntime(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{"TEST_FAULT=" + filepath.Join(t.TempDir(), "init.sock")}
	out, err := cmd.CombinedOutput()
	if want := "runtime error: invalid memory address or nil pointer dereference\n"; err != nil || string(out) != want {
		t.Errorf("%v, output %q, want %q", err, out, want)
	}
}

func faultMain() int {
	in := &jailinit.Init{Socket: os.Getenv("TEST_FAULT")}
	if err := in.Open(); err != nil {
		fmt.Println(err)
		return 1
	}
	defer in.Close()
	defer func() { fmt.Println(recover()) }()
	return int(crash(nil))
}

// crash dereferences a nil pointer that static analysis cannot see.
//
//go:noinline
func crash(p *byte) byte {
	return *p
}

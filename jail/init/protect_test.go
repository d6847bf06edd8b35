package jailinit

import (
	"encoding/binary"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func TestProtectionFilter(t *testing.T) {
	var raw []bpf.RawInstruction
	for _, in := range protectionFilter(18) {
		raw = append(raw, bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K})
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter has invalid instructions")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	const stop, term = uint64(unix.SIGSTOP), uint64(unix.SIGTERM)
	minus := func(n int64) uint64 { return uint64(-n) }
	for _, tt := range []struct {
		name    string
		nr      uint32
		args    []uint64
		refused bool
	}{
		{"prlimit64 of itself", unix.SYS_PRLIMIT64, []uint64{0, 7, 0x1000, 0}, false},
		{"prlimit64 read of init", unix.SYS_PRLIMIT64, []uint64{1, 7, 0, 0x1000}, false},
		{"prlimit64 of init", unix.SYS_PRLIMIT64, []uint64{1, 7, 0x1000, 0}, true},
		{"prlimit64 of init, limit at a high address", unix.SYS_PRLIMIT64, []uint64{1, 7, 1 << 32, 0}, true},
		{"kill STOP of init", unix.SYS_KILL, []uint64{1, stop}, true},
		{"kill STOP of a thread of init", unix.SYS_KILL, []uint64{18, stop}, true},
		{"kill STOP of a program", unix.SYS_KILL, []uint64{19, stop}, false},
		{"kill STOP of the own group", unix.SYS_KILL, []uint64{0, stop}, false},
		{"kill STOP of another group", unix.SYS_KILL, []uint64{minus(70), stop}, false},
		{"kill TERM of init", unix.SYS_KILL, []uint64{1, term}, false},
		{"tkill STOP", unix.SYS_TKILL, []uint64{7, stop}, true},
		{"tgkill STOP", unix.SYS_TGKILL, []uint64{1, 7, stop}, true},
		{"tgkill TERM", unix.SYS_TGKILL, []uint64{1, 7, term}, false},
		{"rt_sigqueueinfo STOP", unix.SYS_RT_SIGQUEUEINFO, []uint64{1, stop, 0}, true},
		{"rt_tgsigqueueinfo STOP", unix.SYS_RT_TGSIGQUEUEINFO, []uint64{1, 1, stop, 0}, true},
		{"pidfd_send_signal STOP", unix.SYS_PIDFD_SEND_SIGNAL, []uint64{3, stop}, true},
		{"pidfd_send_signal TERM", unix.SYS_PIDFD_SEND_SIGNAL, []uint64{3, term}, false},
		{"read", unix.SYS_READ, []uint64{1, stop, stop}, false},
	} {
		data := make([]byte, 64) // the VM reads big-endian words
		binary.BigEndian.PutUint32(data[dataNumber:], tt.nr)
		binary.BigEndian.PutUint32(data[dataArch:], auditArch[runtime.GOARCH])
		for i, a := range tt.args {
			binary.BigEndian.PutUint32(data[dataArgs+8*i:], uint32(a))
			binary.BigEndian.PutUint32(data[dataArgs+8*i+4:], uint32(a>>32))
		}
		got, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		want := unix.SECCOMP_RET_ALLOW
		if tt.refused {
			want = unix.SECCOMP_RET_ERRNO | int(unix.EPERM)
		}
		if got != want {
			t.Errorf("filter result of %s = %#x, want %#x", tt.name, got, want)
		}
	}
}

func TestLastThread(t *testing.T) {
	release := make(chan struct{})
	var ready, done sync.WaitGroup
	for range 20 { // the runtime creates a thread for each
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	last, err := lastThread()
	close(release)
	done.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range threads {
		if tid, err := strconv.Atoi(filepath.Base(dir)); err != nil || uint32(tid) > last {
			t.Errorf("thread %d exists (%v), above lastThread = %d", tid, err, last)
		}
	}
	if len(threads) < 20 {
		t.Errorf("threads = %d, want 20 or more", len(threads))
	}
}

package seccomp_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"glasshouse/host/seccomp"
)

const ask = answer(unix.SECCOMP_RET_USER_NOTIF)

// asking is the notification filter, run by an interpreter.
func asking(t *testing.T, arch string) filter {
	t.Helper()
	code, err := seccomp.Notify(arch)
	if err != nil {
		t.Fatal(err)
	}
	var program []bpf.Instruction
	for c := code; len(c) > 0; c = c[8:] {
		program = append(program, bpf.RawInstruction{Op: binary.LittleEndian.Uint16(c), Jt: c[2], Jf: c[3], K: binary.LittleEndian.Uint32(c[4:])}.Disassemble())
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return filter{arch, processors[arch], vm}
}

func TestNotifyFilter(t *testing.T) {
	tests := []struct {
		call string
		args []uint64
		want answer
	}{
		{"execve", nil, ask}, {"execveat", nil, ask},
		{"openat", []uint64{0, 0, unix.O_RDONLY | unix.O_CLOEXEC}, allow},
		{"openat", []uint64{0, 0, unix.O_RDONLY | unix.O_DIRECTORY}, allow},
		{"openat", []uint64{0, 0, unix.O_WRONLY}, ask}, {"openat", []uint64{0, 0, unix.O_RDWR}, ask}, {"openat", []uint64{0, 0, 3}, ask},
		{"openat", []uint64{0, 0, unix.O_RDONLY | unix.O_CREAT}, ask}, {"openat", []uint64{0, 0, unix.O_RDONLY | unix.O_TRUNC}, ask},
		{"openat", []uint64{0, 0, 1<<32 | unix.O_WRONLY}, ask},
		{"openat", []uint64{unix.O_RDWR, unix.O_RDWR, 0, unix.O_RDWR}, allow}, // arguments other than the flags
		{"open", []uint64{0, unix.O_WRONLY}, ask}, {"open", []uint64{unix.O_WRONLY, 0, unix.O_WRONLY}, allow},
		{"openat2", nil, ask}, {"creat", nil, ask}, {"truncate", nil, ask}, {"unlinkat", nil, ask}, {"renameat2", nil, ask}, {"linkat", nil, ask},
		{"connect", nil, ask}, {"sendmsg", nil, ask}, {"sendmmsg", nil, ask},
		{"sendto", []uint64{3, 0x1000, 5, 0, 0, 0}, allow}, // as send(2)
		{"sendto", []uint64{3, 0x1000, 5, 0, 0x1000, 16}, ask}, {"sendto", []uint64{3, 0, 0, 0, 1 << 40, 16}, ask},
		{"ptrace", nil, ask}, {"process_vm_writev", nil, ask},
		{"read", nil, allow}, {"write", nil, allow}, {"ftruncate", nil, allow}, {"bind", nil, allow}, {"clone", nil, allow}, {"ioctl", nil, allow},
	}
	for _, arch := range []string{"amd64", "arm64"} {
		f := asking(t, arch)
		for _, tt := range tests {
			nr, ok := f.table.SyscallNames[tt.call]
			if !ok {
				continue // a call of another architecture
			}
			if got := f.answer(t, nr, tt.args...); got != tt.want {
				t.Errorf("%s: %s(%#x) returns %#x, want %#x", arch, tt.call, tt.args, got, tt.want)
			}
		}
		if got := f.run(t, data{nr: 1 << 30, arch: uint32(f.table.ID)}); got != enosys {
			t.Errorf("%s: an x32 call returns %#x", arch, got)
		}
		if got := f.run(t, data{nr: 59, arch: 1}); got != enosys {
			t.Errorf("%s: a call of another ABI returns %#x", arch, got)
		}
	}
}

func TestIsNotify(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		code, err := seccomp.Notify(arch)
		if err != nil || !seccomp.IsNotify(code) {
			t.Errorf("%s: IsNotify = false, %v", arch, err)
		}
		other, err := seccomp.BPF(arch)
		if err != nil || seccomp.IsNotify(other) {
			t.Errorf("%s: IsNotify of another filter = true, %v", arch, err)
		}
	}
	if seccomp.IsNotify(seccomp.Allowing()) || seccomp.IsNotify(nil) {
		t.Error("IsNotify of another filter = true")
	}
}

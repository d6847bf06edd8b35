package seccomp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/host/seccomp"
)

// confined, as the first argument, makes the test binary install the filter and run the remaining
// arguments.
const confined = "glasshouse-confined"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == confined {
		fmt.Fprintln(os.Stderr, runConfined(os.Args[2:]))
		os.Exit(127)
	}
	os.Exit(m.Run())
}

func runConfined(argv []string) error {
	code, err := seccomp.BPF(runtime.GOARCH)
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(code)/8)
	for i := range program {
		c := code[8*i:]
		program[i] = unix.SockFilter{Code: binary.NativeEndian.Uint16(c), Jt: c[2], Jf: c[3], K: binary.NativeEndian.Uint32(c[4:])}
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f))); e != 0 {
		return fmt.Errorf("install the filter: %w", e)
	}
	if argv[0] == "calls" {
		makeCalls()
		os.Exit(0)
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return unix.Exec(path, argv, os.Environ())
}

// calls are made under the real filter. Their arguments are chosen so that the kernel would
// return another error if the filter allowed the call.
var calls = []struct {
	name string
	nr   uintptr
	args [3]uintptr
	want syscall.Errno
}{
	{"bpf", unix.SYS_BPF, [3]uintptr{99}, unix.EPERM},
	{"userfaultfd", unix.SYS_USERFAULTFD, [3]uintptr{^uintptr(0)}, unix.EPERM},
	{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [3]uintptr{}, unix.EPERM},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, [3]uintptr{}, unix.EPERM},
	{"keyctl", unix.SYS_KEYCTL, [3]uintptr{999}, unix.EPERM},
	{"mount", unix.SYS_MOUNT, [3]uintptr{}, unix.EPERM},
	{"fsopen", unix.SYS_FSOPEN, [3]uintptr{}, unix.EPERM},
	{"open_tree", unix.SYS_OPEN_TREE, [3]uintptr{^uintptr(0)}, unix.EPERM},
	{"unshare", unix.SYS_UNSHARE, [3]uintptr{0}, unix.EPERM},
	{"setns", unix.SYS_SETNS, [3]uintptr{^uintptr(0)}, unix.EPERM},
	{"kexec_load", unix.SYS_KEXEC_LOAD, [3]uintptr{0, 99}, unix.EPERM},
	{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [3]uintptr{^uintptr(0)}, unix.EPERM},
	{"socket(AF_VSOCK)", unix.SYS_SOCKET, [3]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}, unix.EPERM},
	{"socket(AF_ALG)", unix.SYS_SOCKET, [3]uintptr{unix.AF_ALG, unix.SOCK_SEQPACKET}, unix.EPERM},
	{"socket(1<<32|AF_ALG)", unix.SYS_SOCKET, [3]uintptr{1<<32 | unix.AF_ALG, unix.SOCK_SEQPACKET}, unix.EPERM},
	{"socket(AF_INET)", unix.SYS_SOCKET, [3]uintptr{unix.AF_INET, unix.SOCK_STREAM}, 0},
	{"socket(AF_UNIX)", unix.SYS_SOCKET, [3]uintptr{unix.AF_UNIX, unix.SOCK_STREAM}, 0},
	{"personality(ask)", unix.SYS_PERSONALITY, [3]uintptr{0xffffffff}, 0},
	{"personality(READ_IMPLIES_EXEC)", unix.SYS_PERSONALITY, [3]uintptr{0x400000}, unix.EPERM},
	{"clone(CLONE_NEWUSER)", unix.SYS_CLONE, [3]uintptr{unix.CLONE_NEWUSER | unix.CLONE_THREAD}, unix.EPERM}, // EINVAL if allowed
	{"clone3", unix.SYS_CLONE3, [3]uintptr{}, unix.ENOSYS},
	{"a call of the future", 900, [3]uintptr{}, unix.ENOSYS},
	{"an x32 call", 1<<30 | 39, [3]uintptr{}, unix.ENOSYS},
	{"getpid", unix.SYS_GETPID, [3]uintptr{}, 0},
}

func makeCalls() {
	for _, c := range calls {
		_, _, e := unix.RawSyscall(c.nr, c.args[0], c.args[1], c.args[2])
		fmt.Printf("%s=%d\n", c.name, e)
	}
}

func TestFilterInKernel(t *testing.T) {
	out, err := confine(t, "calls").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range calls {
		if want := fmt.Sprintf("%s=%d\n", c.name, c.want); !strings.Contains(string(out), want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
}

func TestProgramsWorkUnderTheFilter(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.c"), []byte("#include <stdio.h>\nint main(){puts(\"fine\");}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"/bin/bash", "-c", `x=$(echo fine | cat); (echo $x); mkfifo p; kill -0 $$`},
		{"/usr/bin/python3", "-c", `
import subprocess, threading, socket, tempfile, os, time
threading.Thread(target=time.sleep, args=(0,)).start()
s = socket.create_server(("127.0.0.1", 0)); socket.create_connection(s.getsockname()); os.fork() or os._exit(0)
print(subprocess.run(["/bin/echo", "fine"], capture_output=True, text=True).stdout)`},
		{"node", "-e", `require("child_process").execFile("/bin/echo", ["fine"], (e, out) => { if (e) throw e; console.log(out) }); require("fs").readFile("a.c", e => { if (e) throw e })`},
		{"gcc", "-o", "a", "a.c", "-v"},
		{"git", "-c", "init.defaultBranch=fine", "init", "repository"},
		{"go", "version"},
		{"perl", "-e", `print "fine\n" if fork; wait`},
		{"tar", "cvf", "fine.tar", "a.c", "--remove-files"},
		{"strace", "-f", "/bin/echo", "fine"}, // ptrace stays
	} {
		t.Run(filepath.Base(argv[0]), func(t *testing.T) {
			if _, err := exec.LookPath(argv[0]); err != nil {
				t.Skipf("%s is not installed", argv[0])
			}
			cmd := confine(t, argv...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %v\n%s", argv, err, out)
			}
		})
	}
}

// machine32 is a complete amd64 program: getpid with the 32-bit ABI, then exit(42) with its own
// ABI.
var machine32 = elf64([]byte{
	0xb8, 20, 0, 0, 0, // mov eax, 20 (getpid of i386)
	0xcd, 0x80, // int 0x80
	0xbf, 42, 0, 0, 0, // mov edi, 42
	0xb8, 60, 0, 0, 0, // mov eax, 60 (exit of x86-64)
	0x0f, 0x05, // syscall
})

func Test32BitCallsAreKilled(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("int 0x80 is x86's")
	}
	program := filepath.Join(t.TempDir(), "int80")
	if err := os.WriteFile(program, machine32, 0o755); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(exec.Command(program)); code != 42 {
		t.Skipf("this kernel has no 32-bit calls (the program ended with %d)", code)
	}
	err := confine(t, program).Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("under the filter: %v, want it killed by SIGSYS", err)
	}
	if status := exit.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != unix.SIGSYS {
		t.Errorf("under the filter: %v, want it killed by SIGSYS", err)
	}
}

func confine(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), self, append([]string{confined}, argv...)...)
}

func exitCode(cmd *exec.Cmd) int {
	cmd.Run()
	return cmd.ProcessState.ExitCode()
}

// elf64 wraps code into a minimal ELF file that the kernel can run.
func elf64(code []byte) []byte {
	const base, header = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	b = le.AppendUint16(b, 2)  // executable
	b = le.AppendUint16(b, 62) // x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header) // entry
	b = le.AppendUint64(b, 64)          // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := uint64(header + len(code))
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // read and execute
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}

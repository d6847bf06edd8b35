package seccomp

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// asked lists the calls that need a decision in a jail with enforcement. The filter only
// selects calls. The listener decides them, so the policy can change at any time.
var asked = []string{
	"execve", "execveat",

	// open and openat are in askedIf, because the decision depends on their flags.
	"creat", "openat2", "truncate",
	"unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link", "linkat",
	"mkdir", "mkdirat", "mknod", "mknodat", "symlink", "symlinkat",

	"connect", "sendmsg", "sendmmsg",

	// These can change the arguments of another process's calls.
	"ptrace", "process_vm_writev",
}

// askedIf lists the calls that need a decision only if any of the bits is set in an argument.
var askedIf = []struct {
	name string
	arg  uint32
	bits uint64
}{
	{"open", 1, opening},
	{"openat", 2, opening},
	{"sendto", 4, ^uint64(0)}, // to an address
}

// opening contains the open flags that can change a file. O_TMPFILE includes O_DIRECTORY,
// which is not one of them.
const opening = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC | (unix.O_TMPFILE &^ unix.O_DIRECTORY)

// marks identify a filter of Notify by its first instructions.
var marks = [2]uint32{0x676c6173, 0x73686f75}

// Notify returns a BPF filter that notifies its listener of program starts, file changes and
// connections. It leaves all other calls to the other filters.
func Notify(goarch string) ([]byte, error) {
	table, ok := tables[goarch]
	if !ok {
		return nil, fault.Cannot("seccomp.Notify", "no system call table for "+goarch, "use an amd64 or arm64 machine")
	}
	ask := bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}
	program := []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegA, Val: marks[0]},
		bpf.LoadConstant{Dst: bpf.RegX, Val: marks[1]},
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(table.ID), SkipTrue: 1},
		absent, // call numbers differ between architectures
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: 1 << 30, SkipFalse: 1},
		absent, // x32 calls fail as well
	}
	for _, name := range asked {
		if nr, ok := number(table, name); ok {
			program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(nr), SkipTrue: 1}, ask)
		}
	}
	for _, c := range askedIf {
		nr, ok := number(table, c.name)
		if !ok {
			continue
		}
		low := offsetArgs + 8*c.arg
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(nr), SkipTrue: 6},
			bpf.LoadAbsolute{Off: low, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: uint32(c.bits), SkipTrue: 2},
			bpf.LoadAbsolute{Off: low + 4, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: uint32(c.bits >> 32), SkipFalse: 1},
			ask,
			allowed,
		)
	}
	raw, err := bpf.Assemble(append(program, allowed))
	if err != nil {
		return nil, fmt.Errorf("encode the filter for %s: %w", goarch, err)
	}
	var b bytes.Buffer
	for _, in := range raw {
		binary.Write(&b, binary.LittleEndian, in) // a Buffer accepts all writes
	}
	return b.Bytes(), nil
}

// IsNotify reports whether a filter was made by Notify of any release.
func IsNotify(code []byte) bool {
	const loadA, loadX = unix.BPF_LD | unix.BPF_IMM, unix.BPF_LDX | unix.BPF_IMM
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(code[8*i+4:]) }
	return len(code) >= 16 && code[0] == loadA && code[8] == loadX && word(0) == marks[0] && word(1) == marks[1]
}

// Allowing returns a filter that allows every call.
func Allowing() []byte {
	return binary.LittleEndian.AppendUint32([]byte{unix.BPF_RET | unix.BPF_K, 0, 0, 0}, unix.SECCOMP_RET_ALLOW)
}

package spawn

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A modeCall is a system call that sets the mode of a file.
type modeCall struct {
	nr    uint32
	arg   uint32 // index of the mode argument
	flags uint32 // index of the open flags, which must request a new file; 0: none
}

// modeCalls lists the calls of all architectures. moreModeCalls has those of the current one.
var modeCalls = []modeCall{
	{unix.SYS_FCHMOD, 1, 0},
	{unix.SYS_FCHMODAT, 2, 0},
	{unix.SYS_FCHMODAT2, 2, 0},
	{unix.SYS_MKNODAT, 2, 0},
	{unix.SYS_MKDIRAT, 2, 0},
	{unix.SYS_OPENAT, 3, 2},
}

// Offsets in struct seccomp_data (seccomp(2)) on little-endian processors.
const (
	offsetNumber = 0
	offsetArgs   = 16
)

// noSetUID returns a filter that rejects the creation of set-user-ID and set-group-ID files.
// Such files have no effect in the sandbox, but the workspace is also visible on the host. A
// program that the agent creates there would run with the privileges of the workspace's
// owner for every user. openat2 passes the mode by pointer, which seccomp cannot read, so it
// fails with ENOSYS and programs fall back to openat. The other filter checks the
// architecture.
func noSetUID() ([]byte, error) {
	const bits = unix.S_ISUID | unix.S_ISGID
	deny := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_OPENAT2, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	}
	for _, c := range append(modeCalls, moreModeCalls...) {
		var block []bpf.Instruction
		if c.flags != 0 {
			block = append(block,
				bpf.LoadAbsolute{Off: offsetArgs + 8*c.flags, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY, SkipFalse: 3})
		}
		block = append(block,
			bpf.LoadAbsolute{Off: offsetArgs + 8*c.arg, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: bits, SkipFalse: 1},
			deny,
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.nr, SkipTrue: uint8(len(block))})
		program = append(program, block...)
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}))
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of file modes: %w", err)
	}
	var b bytes.Buffer
	for _, in := range raw {
		binary.Write(&b, binary.LittleEndian, in) // writes to a Buffer do not fail
	}
	return b.Bytes(), nil
}

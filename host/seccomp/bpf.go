package seccomp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// BPF returns the policy as an array of struct sock_filter, as bwrap --seccomp and seccomp(2)
// expect, for the architecture arch in Go's naming. The result is deterministic.
//
// The actions equal those of OCI, except that a 32-bit call kills the whole process and not
// one thread, so that the death is visible.
func BPF(arch string) ([]byte, error) {
	program, err := assemble(arch)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("encode the filter for %s: %w", arch, err)
	}
	var b bytes.Buffer
	for _, in := range raw {
		binary.Write(&b, binary.LittleEndian, in) // a Buffer accepts all writes
	}
	return b.Bytes(), nil
}

// Offsets in the kernel's struct seccomp_data (seccomp(2)). All processors in tables are
// little-endian.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

var (
	allowed = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	refused = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	absent  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	ended   = bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
)

var tables = map[string]*arch.Info{"amd64": arch.X86_64, "arm64": arch.AARCH64}

// number returns the number of a call. One call has a different name in the tables.
func number(table *arch.Info, name string) (nr int, ok bool) {
	nr, ok = table.SyscallNames[name]
	if !ok && name == "newfstatat" {
		nr, ok = table.SyscallNames["fstatat"] // arm64
	}
	return nr, ok
}

// assemble builds the program. It checks the architecture, then whether the call number is
// known, then the calls with conditions, then the allowed calls. Every test is followed by its
// action, so jumps are short and no test depends on a register that an earlier test has
// overwritten.
//
// Only the tables of go-seccomp-bpf are used. Its assembler (v1.6.0) has a bug: after a
// rejected argument comparison it compares the argument as if it were the call number.
// socket(AF_VSOCK), 40, is taken for sendfile, 40, and allowed.
func assemble(goarch string) ([]bpf.Instruction, error) {
	table, ok := tables[goarch]
	if !ok {
		return nil, fault.Cannot("seccomp.BPF", "no system call table for "+goarch, "use an amd64 or arm64 machine")
	}
	newest := uint32(slices.Max(slices.Collect(maps.Keys(table.SyscallNumbers))))
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(table.ID), SkipTrue: 1},
		ended,
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		// This includes the x32 calls, whose numbers start at 1<<30. An unknown call returns
		// ENOSYS and not EPERM, because the fallbacks of C libraries depend on it.
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: newest, SkipFalse: 1},
		absent,
	}

	plain, special, err := sortRules(OCI(goarch), table)
	if err != nil {
		return nil, err
	}
	for _, nr := range slices.Sorted(maps.Keys(special)) {
		block := special[nr]
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(block))})
		program = append(program, block...)
	}
	for _, r := range ranges(plain) {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: r.first, SkipTrue: 1},
			refused,
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: r.last, SkipTrue: 1},
			allowed,
		)
	}
	return append(program, refused), nil
}

// sortRules divides the profile's rules into calls that are always allowed and calls with a
// block of instructions. It skips names that this architecture has no number for.
func sortRules(profile *specs.LinuxSeccomp, table *arch.Info) (plain []uint32, special map[uint32][]bpf.Instruction, err error) {
	special = map[uint32][]bpf.Instruction{}
	for _, rule := range profile.Syscalls {
		block, err := ruleBlock(rule)
		if err != nil {
			return nil, nil, err
		}
		for _, name := range rule.Names {
			nr, ok := number(table, name)
			switch {
			case !ok:
			case block == nil:
				plain = append(plain, uint32(nr))
			default:
				special[uint32(nr)] = append(special[uint32(nr)], block...)
			}
		}
	}
	for nr, block := range special {
		special[nr] = append(block, refused) // no alternative matched
		if len(special[nr]) > 255 {
			return nil, nil, fmt.Errorf("the rules for call %d are too long for a jump", nr)
		}
	}
	slices.Sort(plain)
	return slices.Compact(plain), special, nil
}

// ruleBlock returns instructions that apply the action if the call's arguments match the rule
// and continue after the block otherwise, or nil for "always allow".
func ruleBlock(rule specs.LinuxSyscall) ([]bpf.Instruction, error) {
	if rule.Action == specs.ActErrno && rule.ErrnoRet != nil {
		return []bpf.Instruction{bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(*rule.ErrnoRet)}}, nil
	}
	if rule.Action != specs.ActAllow {
		return nil, fmt.Errorf("the rule for %v has action %s, which the filter cannot express", rule.Names, rule.Action)
	}
	if len(rule.Args) == 0 {
		return nil, nil
	}

	var block []bpf.Instruction
	for _, a := range rule.Args {
		mask, want := ^uint64(0), a.Value
		switch a.Op {
		case specs.OpEqualTo:
		case specs.OpMaskedEqual:
			mask, want = a.Value, a.ValueTwo
		default:
			return nil, fmt.Errorf("the rule for %v compares with %s, which the filter cannot express", rule.Names, a.Op)
		}
		low := uint32(offsetArgs + 8*a.Index)
		block = append(block, compare(low, uint32(mask), uint32(want))...)
		block = append(block, compare(low+4, uint32(mask>>32), uint32(want>>32))...)
	}
	block = append(block, allowed)
	for i, in := range block {
		if j, ok := in.(bpf.JumpIf); ok {
			j.SkipFalse = uint8(len(block) - i - 1)
			block[i] = j
		}
	}
	return block, nil
}

func compare(offset, mask, want uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offset, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: want},
	}
}

type span struct{ first, last uint32 }

// ranges merges consecutive numbers of a sorted list.
func ranges(numbers []uint32) []span {
	var spans []span
	for _, n := range numbers {
		if last := len(spans) - 1; last >= 0 && spans[last].last+1 == n {
			spans[last].last = n
			continue
		}
		spans = append(spans, span{n, n})
	}
	return spans
}

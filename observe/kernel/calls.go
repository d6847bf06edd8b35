package kernel

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// Flags of struct call in trace.bpf.c.
const (
	callFile = 1 << iota
	callReturns
	callCloses
	callExecs
	callMoves
	callAddrOut
	callMessage
	callRoot
	callForks
)

const callCount = 512 // per ABI, as in trace.bpf.c

// A call describes a system call number.
type call struct {
	name  string
	shape syscalls.Shape
}

// calls is indexed by number: native calls first, then those of 32-bit programs.
var calls = func() (all [2][callCount]call) {
	for i, abi := range []string{syscalls.Native, syscalls.Compat} {
		for nr := range all[i] {
			name := syscalls.Name(abi, int32(nr))
			all[i][nr] = call{name, syscalls.Shapes[name]}
		}
	}
	return all
}()

// callOf returns the description of a call and its ABI.
func callOf(nr int32, compat bool) (call, string) {
	i, abi := 0, syscalls.Native
	if compat {
		i, abi = 1, syscalls.Compat
	} else if nr >= syscalls.X32Bit {
		abi = syscalls.X32
		nr &^= syscalls.X32Bit
	}
	if nr < 0 || nr >= callCount {
		return call{name: syscalls.Name(abi, nr)}, abi
	}
	return calls[i][nr], abi
}

// fillCalls configures the argument types of calls in the eBPF programs.
func fillCalls(m *ebpf.Map) error {
	for abi := range calls {
		for nr, c := range calls[abi] {
			s := c.shape
			k := traceCall{
				Path: uint8(s.Path), Dir: uint8(s.Dir), To: uint8(s.To), ToDir: uint8(s.ToDir),
				Fd: uint8(s.FD), Fd2: uint8(s.FD2), Addr: uint8(s.Addr), Len: uint8(s.Len),
			}
			for flag, on := range map[uint32]bool{
				callFile: s.Op != "", callReturns: s.ReturnsFile, callCloses: s.Closes, callExecs: s.Execs, callMoves: s.Moves,
				callAddrOut: s.AddrOut, callMessage: s.Message, callRoot: s.Op == event.OpChroot,
				callForks: slices.Contains([]string{"fork", "vfork", "clone", "clone3"}, c.name),
			} {
				if on {
					k.Flags |= flag
				}
			}
			if k == (traceCall{}) {
				continue
			}
			if err := m.Put(uint32(abi*callCount+nr), &k); err != nil {
				return fmt.Errorf("describe the call %s: %w", c.name, err)
			}
		}
	}
	return nil
}

// wanted returns which native calls a selection records.
func wanted(sel event.Selection) (bits [callCount / 64]uint64) {
	// There are no bits for the calls of 32-bit programs. trace.bpf.c records these calls if any
	// native call with a number below 128 is selected.
	for nr, c := range calls[0] {
		if sel.Wants(c.name) {
			bits[nr/64] |= 1 << (nr % 64)
		}
	}
	return bits
}

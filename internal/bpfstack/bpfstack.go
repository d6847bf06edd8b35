// Package bpfstack computes how much stack an eBPF program needs. Tests use it to detect
// programs that exceed the stack limit of some kernels.
package bpfstack

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// Limit is the maximum stack size in bytes of a call chain (MAX_BPF_STACK). Newer kernels give
// some programs more.
const Limit = 512

// granularity is the unit to which the kernel rounds up the stack size of a function: 32 bytes,
// or 16 on some processors with newer kernels.
const granularity = 32

// Deepest returns the call chain that needs the most stack, and its stack size in bytes. It
// assumes that functions whose address is taken, such as callbacks of bpf_loop, are called.
func Deepest(program asm.Instructions) (chain string, bytes int, err error) {
	frames, calls, first := map[string]int{}, map[string][]string{}, ""
	var from string
	// The registers that hold a stack address, with its offset from the top of the stack.
	var points map[asm.Register]int
	for i := range program {
		ins := &program[i]
		if s := ins.Symbol(); s != "" && (i == 0 || isFunction(program, s)) {
			from, points = s, map[asm.Register]int{asm.RFP: 0}
			frames[s] = 1
			if first == "" {
				first = s
			}
		}
		if from == "" {
			return "", 0, fmt.Errorf("instruction %d does not belong to a function", i)
		}
		if ins.IsFunctionCall() || ins.IsLoadOfFunctionPointer() {
			calls[from] = append(calls[from], ins.Reference())
		}
		frames[from] = max(frames[from], reaches(ins, points))
	}
	return deepest(first, frames, calls, nil)
}

// isFunction reports whether a symbol is a function, not a label inside of one.
func isFunction(program asm.Instructions, symbol string) bool {
	for i := range program {
		if (program[i].IsFunctionCall() || program[i].IsLoadOfFunctionPointer()) && program[i].Reference() == symbol {
			return true
		}
	}
	return false
}

// reaches returns how far below the top of the stack an instruction accesses memory, and updates
// the stack addresses in points.
func reaches(ins *asm.Instruction, points map[asm.Register]int) int {
	class := ins.OpCode.Class()
	switch {
	case class == asm.LdXClass, class == asm.StXClass, class == asm.StClass:
		at := ins.Dst
		if class == asm.LdXClass {
			at = ins.Src
		}
		off, ok := points[at]
		if class == asm.LdXClass {
			delete(points, ins.Dst)
		}
		if ok {
			return -(off + int(ins.Offset))
		}
	case class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Mov && ins.OpCode.Source() == asm.RegSource:
		if off, ok := points[ins.Src]; ok {
			points[ins.Dst] = off
		} else {
			delete(points, ins.Dst)
		}
	case class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource:
		if off, ok := points[ins.Dst]; ok {
			points[ins.Dst] = off + int(ins.Constant)
			return -points[ins.Dst]
		}
	case class.IsALU(), class == asm.LdClass:
		delete(points, ins.Dst)
	}
	return 0
}

func deepest(function string, frames map[string]int, calls map[string][]string, above []string) (string, int, error) {
	for _, a := range above {
		if a == function {
			return "", 0, fmt.Errorf("recursion: %s is called through %s", function, strings.Join(above, ", "))
		}
	}
	own, ok := frames[function]
	if !ok {
		return "", 0, fmt.Errorf("called function %s does not exist", function)
	}
	own = (own + granularity - 1) / granularity * granularity
	chain, below := "", 0
	for _, called := range calls[function] {
		c, n, err := deepest(called, frames, calls, append(above, function))
		if err != nil {
			return "", 0, err
		}
		if n > below {
			chain, below = " → "+c, n
		}
	}
	return fmt.Sprintf("%s (%d)%s", function, own, chain), own + below, nil
}

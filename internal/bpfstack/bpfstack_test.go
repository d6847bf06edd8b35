package bpfstack_test

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"glasshouse/internal/bpfstack"
)

func TestDeepest(t *testing.T) {
	program := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.RFP).WithSymbol("program"),
		asm.Add.Imm(asm.R6, -100), // rounded up to 128
		asm.Call.Label("flat"),
		asm.Call.Label("deep"),
		asm.Return(),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord).WithSymbol("flat"), // 32
		asm.Return(),
		asm.LoadMem(asm.R1, asm.RFP, -200, asm.DWord).WithSymbol("deep"), // 224
		asm.Mov.Imm(asm.R6, 1),
		asm.Add.Imm(asm.R6, -500), // R6 is no longer a stack address
		asm.Call.Label("flat"),
		asm.Return(),
	}
	chain, n, err := bpfstack.Deepest(program)
	if err != nil {
		t.Fatal(err)
	}
	if want := 128 + 224 + 32; n != want || chain != "program (128) → deep (224) → flat (32)" {
		t.Errorf("%s needs %d, want %d", chain, n, want)
	}
}

func TestDeepestRejectsRecursion(t *testing.T) {
	program := asm.Instructions{
		asm.Call.Label("again").WithSymbol("again"),
		asm.Return(),
	}
	if _, _, err := bpfstack.Deepest(program); err == nil || !strings.Contains(err.Error(), "recursion") {
		t.Errorf("%v", err)
	}
}

package kernel

import (
	"testing"

	"glasshouse/internal/bpfstack"
)

// TestProgramsFitKernelStackLimit checks the stack usage of the programs. Some newer kernels
// allow more stack, so loading the programs here does not prove that others accept them: Linux
// 6.12 rejected one.
func TestProgramsFitKernelStackLimit(t *testing.T) {
	spec, err := loadTrace()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		chain, n, err := bpfstack.Deepest(p.Instructions)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n > bpfstack.Limit {
			t.Errorf("%s needs %d bytes of stack, more than %d: %s", name, n, bpfstack.Limit, chain)
		}
		t.Logf("%s: %d bytes, %s", name, n, chain)
	}
}

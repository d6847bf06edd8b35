package kernel

import (
	"testing"

	"glasshouse/internal/bpfstack"
)

// TestThePrograms fit the stack that every kernel gives them. Some newer ones give
// more, so that to load them here proves nothing for others: Linux 6.12 refused one.
func TestTheProgramsFitTheStackOfEveryKernel(t *testing.T) {
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
			t.Errorf("%s needs %d bytes of stack, and has %d: %s", name, n, bpfstack.Limit, chain)
		}
		t.Logf("%s: %d bytes, %s", name, n, chain)
	}
}

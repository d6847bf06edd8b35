package wasm

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/reference/defaults.md has the memory of a WebAssembly capability.
func TestDocumentedMemory(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	if row := fmt.Sprintf("\n| WebAssembly capability | %d |", defaultMemoryMB); !strings.Contains(string(text), row) {
		t.Errorf("docs/reference/defaults.md has no row %q", row)
	}
}

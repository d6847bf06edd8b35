package wasm

import (
	"bytes"
	"os"
	"testing"

	"github.com/tetratelabs/wazero"
)

// table is a module with an unbounded table, and a function that grows the table by n entries
// and returns its previous size.
var table = []byte("\x00asm\x01\x00\x00\x00" +
	"\x01\x06\x01\x60\x01\x7f\x01\x7f" + // (func (param i32) (result i32))
	"\x03\x02\x01\x00" +
	"\x04\x04\x01\x70\x00\x01" + // (table 1 funcref)
	"\x07\x08\x01\x04grow\x00\x00" +
	"\x0a\x0b\x01\x09\x00\xd0\x70\x20\x00\xfc\x0f\x00\x0b") // ref.null func, local.get 0, table.grow 0

// Tables are outside of linear memory, and wazero does not limit them.
func TestTablesAreBounded(t *testing.T) {
	out, _, err := bounded(table)
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	defer r.Close(t.Context())
	m, err := r.Instantiate(t.Context(), out)
	if err != nil {
		t.Fatal(err)
	}
	grow := func(n uint64) int32 {
		t.Helper()
		results, err := m.ExportedFunction("grow").Call(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		return int32(results[0])
	}
	if got := grow(100); got != 1 {
		t.Errorf("small growth = %d, want 1", got)
	}
	if got := grow(1 << 30); got != -1 {
		t.Errorf("growth by a gigabyte = %d, want -1", got)
	}
	if got := grow(maxTable); got != -1 {
		t.Errorf("growth beyond the maximum = %d, want -1", got)
	}
}

func FuzzBounded(f *testing.F) {
	f.Add(table)
	for _, name := range []string{"command.wasm", "handler.wasm"} {
		module, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(module)
	}
	f.Add([]byte("\x00asm\x01\x00\x00\x00\x05\x83\x80\x00\x01\x00\x80"))
	f.Fuzz(func(t *testing.T, module []byte) {
		out, memory, err := bounded(module)
		if err != nil {
			return
		}
		again, size, err := bounded(out)
		if err != nil {
			t.Fatalf("what comes out cannot be read: %v", err)
		}
		if size != memory || !bytes.Equal(again, out) {
			t.Errorf("bounded twice, it is another module")
		}
	})
}

package enforce

import (
	"bytes"
	"io"
	"os"
	"testing"
)

// FuzzUntrustedInput feeds the parsers of data that a jail controls: its programs and the
// memory of its processes.
func FuzzUntrustedInput(f *testing.F) {
	f.Add([]byte("\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00GNU\x0001234567890123456789"))
	f.Add([]byte("\x02\x00\x1b\x59\x7f\x00\x00\x01"))
	f.Add([]byte("flags:\t0100001\n"))
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(program)
	f.Fuzz(func(t *testing.T, b []byte) {
		if id := gnuID(b); len(id) > len(b) {
			t.Errorf("build id has %d bytes, input has %d", len(id), len(b))
		}
		if p, err := readProgram(bytes.NewReader(b)); err == nil {
			if n, _ := io.Copy(io.Discard, p.codeBytes()); n > int64(len(b)) {
				t.Errorf("code has %d bytes, input has %d", n, len(b))
			}
		}
		if to, ok := hostPort(b); ok && !to.IsValid() {
			t.Errorf("hostPort = %v, want a valid address", to)
		}
		words := []string{string(b), "a b"}
		if commandLine(words) == "" {
			t.Error("commandLine = \"\"")
		}
		loaded(words)
		writable(string(b))
		field(string(b), "Tgid")
	})
}

package wasi_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestSuiteAdapterArguments calls scripts/wasi_testsuite.py like the different runners of the
// WASI test suite: with separate arguments, environment and directory, with a tuple, and with
// a list.
func TestSuiteAdapterArguments(t *testing.T) {
	const want = "glasshouse wasm run --env A=b --mount /root:/ /t.wasm one two"
	for _, given := range []string{
		`["one", "two"], {"A": "b"}, [("/root", "/")]`,
		`(["one", "two"], {"A": "b"}, "/root"), [], "wasi:cli/command"`,
		`[["one", "two"], {"A": "b"}, "/root"], [], "wasi:cli/command"`,
		`[["one", "two"], {"A": "b"}, "/root"]`,
	} {
		cmd := exec.CommandContext(t.Context(), "python3", "-B", "-c",
			`import wasi_testsuite as w; print(" ".join(w.compute_argv("/t.wasm", `+given+`)))`)
		cmd.Dir = "../../../scripts"
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); got != want || err != nil {
			t.Errorf("compute_argv(\"/t.wasm\", %s) = %q, %v, want %q", given, got, err, want)
		}
	}
}

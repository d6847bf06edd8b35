//go:build bench

package test_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestBenchE2B measures latencies of E2B clients: a command in a running sandbox, through the
// SDK and without it, and the first output of a new sandbox.
func TestBenchE2B(t *testing.T) {
	h, url := openForE2B(t)
	dir := clientsOfE2B(t)
	for _, version := range e2bVersions {
		cmd := exec.Command("node", "bench.mjs", version)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "E2B_API_KEY="+h.e2bKey().Key, "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url)
		out, err := cmd.CombinedOutput()
		var got struct {
			Exec  struct{ SDK, Raw float64 }
			First float64 // a sandbox from the pool
			Row   float64 // sandboxes created one after the other
		}
		if err == nil {
			err = json.Unmarshal(out, &got)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		fmt.Printf("E2B SDK %s, p50: a command %.1f ms by the SDK, %.1f ms by Connect; create to first output %.1f ms from the pool, %.1f ms without a pause\n", version, got.Exec.SDK, got.Exec.Raw, got.First, got.Row)
	}
}

package backendtest_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"glasshouse/jail/backend/backendtest"
)

const claimMode = "GLASSHOUSE_BACKENDTEST_CLAIM"

// TestProcessesOfTestsHaveDistinctIDs claims ids in this process and in another.
func TestProcessesOfTestsHaveDistinctIDs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("creating cgroups needs root")
	}
	first := backendtest.FirstID(t)
	if os.Getenv(claimMode) != "" {
		os.Stdout.WriteString("first=" + strconv.FormatUint(uint64(first), 10) + "\n")
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestProcessesOfTestsHaveDistinctIDs$", "-test.v")
	cmd.Env = append(os.Environ(), claimMode+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := string(out); !strings.Contains(got, "first=") || strings.Contains(got, "first="+strconv.FormatUint(uint64(first), 10)+"\n") {
		t.Errorf("another process got %q, want other ids than %d", got, first)
	}
}

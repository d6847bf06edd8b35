package jail_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"glasshouse/jail"
)

// docs/reference/defaults.md has the default limits.
func TestDocumentedLimits(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]jail.Limits{
		"`glasshouse run`, `create`, `POST /jails`, MCP `jail_create`": jail.DefaultLimits,
		"highest limits of a request":                                  jail.MaxLimits,
	} {
		if row := fmt.Sprintf("\n| %s | %d | %d | %d | %d |", name, l.MemoryMB, l.DiskMB, l.MaxPIDs, l.CPUShares); !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/defaults.md has no row %q", row)
		}
	}
}

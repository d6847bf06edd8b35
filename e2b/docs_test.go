package e2b

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/reference/defaults.md has the resources of the template base on a host with two processors.
func TestDocumentedResources(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	l := Template{CPU: 2}.withDefaults().limits()
	row := fmt.Sprintf("\n| E2B sandbox of the template `%s` | %d | %d | %d | %d | the Internet |\n", Base, l.MemoryMB, l.DiskMB, l.MaxPIDs, l.CPUShares)
	if !strings.Contains(string(text), row) {
		t.Errorf("docs/reference/defaults.md has no row %q", row)
	}
}

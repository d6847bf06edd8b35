package template

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/reference/defaults.md has the resources of a build.
func TestDocumentedResources(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	row := fmt.Sprintf("\n| E2B template build | %d | %d | %d | %d | the Internet |\n", defaultMemoryMB, minDiskMB, maxPIDs, shares*defaultCPU)
	if !strings.Contains(string(text), row) {
		t.Errorf("docs/reference/defaults.md has no row %q", row)
	}
}

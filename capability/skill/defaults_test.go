package skill

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"glasshouse/jail"
)

// docs/reference/defaults.md has the resources of an imported script.
func TestDocumentedResources(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	row := fmt.Sprintf("\n| script of an imported skill | %d | %d | %d | %d |", scriptMemoryMB, scriptQuotaMB, scriptPIDs, jail.DefaultLimits.CPUShares)
	if !strings.Contains(string(text), row) {
		t.Errorf("docs/reference/defaults.md has no row %q", row)
	}
}

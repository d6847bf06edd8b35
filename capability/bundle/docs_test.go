package bundle_test

import (
	"os"
	"strings"
	"testing"

	"glasshouse/capability/bundle"
)

func TestEveryReasonIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/how-to/bundles.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range bundle.Rules() {
		if !strings.Contains(string(text), "`"+string(r)+"`") {
			t.Errorf("docs/how-to/bundles.md does not document the reason %q", r)
		}
	}
}

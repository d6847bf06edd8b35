package manifest_test

import (
	"strings"
	"testing"

	"glasshouse/capability/manifest"
)

// A manifest that asks for direct network access does not ask for none: the only problem is the mode.
func TestDirectNetworkIsNotReportedAsNone(t *testing.T) {
	_, err := manifest.Read("a.rtfs", []byte(`(capability "a" :runtime {:type :container :image "x" :entrypoint ["x"]} :effects [:network]
  :network {:mode :direct :allowed-hosts ["x.example"]})`))
	if err == nil || !strings.Contains(err.Error(), "network.mode") {
		t.Fatalf("reading a manifest with :mode :direct: %v, want a problem of network.mode", err)
	}
	if strings.Contains(err.Error(), "with mode :none") {
		t.Errorf("reading a manifest with :mode :direct: %v, want no problem that calls the mode :none", err)
	}
}

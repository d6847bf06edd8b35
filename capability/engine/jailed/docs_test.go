package jailed

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/jail"
)

// docs/reference/defaults.md has the resources of a container capability whose manifest sets none,
// and the retention of the files of its sessions.
func TestDocumentedResources(t *testing.T) {
	data, err := os.ReadFile("../../../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	c := &engine.Installed{Capability: &manifest.Capability{ID: "a.b"}}
	c.Runtime = manifest.Spec{Type: manifest.Container, Image: "x", Entrypoint: []string{"/x"}}
	s, err := New(Config{Jails: checks{}, Dir: t.TempDir()}).specOf(c)
	if err != nil {
		t.Fatal(err)
	}
	l, d := s.Limits, jail.DefaultLimits
	for _, row := range []string{
		fmt.Sprintf("\n| container capability | %d | %d | %d | %d | `%s` |\n",
			cmp.Or(l.MemoryMB, d.MemoryMB), cmp.Or(l.DiskMB, d.DiskMB), cmp.Or(l.MaxPIDs, d.MaxPIDs), cmp.Or(l.CPUShares, d.CPUShares), s.Network),
		fmt.Sprintf("\n| files of an unused session of a capability | %.0fh |", sessionRetention.Hours()),
	} {
		if !strings.Contains(string(data), row) {
			t.Errorf("docs/reference/defaults.md has no row %q", row)
		}
	}
}

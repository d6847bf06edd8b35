package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/jail/snapshot"
)

func TestMemorySize(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meminfo")
	if err := os.WriteFile(file, []byte("MemTotal:       1000 kB\nMemFree:         1 kB\nMemAvailable:    600 kB\nHugePages_Total:       0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if total, free, err := memorySize(file); total != 1000<<10 || free != 600<<10 || err != nil {
		t.Errorf("memorySize = %d, %d, %v, want %d and %d", total, free, err, 1000<<10, 600<<10)
	}
	if err := os.WriteFile(file, []byte("MemTotal: much kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := memorySize(file); err == nil {
		t.Error("memorySize of a size that is no number succeeds")
	}
	if total, free, err := memorySize("/proc/meminfo"); err != nil || free <= 0 || total < free {
		t.Errorf("memorySize of this host = %d, %d, %v", total, free, err)
	}
}

func TestJailsMoveToSuitableNodes(t *testing.T) {
	here := snapshot.ThisHost()
	node := func(id string, jails int, change func(f *fleet.Facts)) fleet.Node {
		n := fleet.Node{ID: id, Name: id, State: fleet.Up, Addr: "a:1", Jails: jails, Facts: fleet.Facts{Arch: here.Arch, CPU: here.CPU, Kernel: here.Kernel}}
		change(&n.Facts)
		return n
	}
	self := node("self", 0, func(*fleet.Facts) {})
	other := node("other", 1, func(f *fleet.Facts) { f.CPU = "another processor" })
	same := node("same", 5, func(*fleet.Facts) {})
	foreign := node("foreign", 0, func(f *fleet.Facts) { f.Arch = "riscv64" })
	old := node("old", 2, func(f *fleet.Facts) { f.Kernel = "2.6.32" })
	all := []fleet.Node{self, other, same, foreign, old}
	if n, err := bestFor(all, "self", true); err != nil || n.ID != "same" {
		t.Errorf("a jail with processes moves to %q, %v, want the node with the same processor", n.ID, err)
	}
	if n, err := bestFor(all, "self", false); err != nil || n.ID != "other" {
		t.Errorf("a jail without processes moves to %q, %v, want the node with the fewest jails", n.ID, err)
	}
	if _, err := bestFor([]fleet.Node{self, other}, "self", true); fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "another processor") || !strings.Contains(err.Error(), "node other") {
		t.Errorf("without a suitable node: %v, want the node and the difference", err)
	}
	if _, err := bestFor([]fleet.Node{self}, "self", true); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("without another node: %v, want Exhausted", err)
	}
	if n, err := bestFor([]fleet.Node{{ID: "unknown", State: fleet.Up, Addr: "a:1"}}, "self", true); err != nil || n.ID != "unknown" {
		t.Errorf("to a node that has not described its host: %q, %v, want it", n.ID, err)
	}
}

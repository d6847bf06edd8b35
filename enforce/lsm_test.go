package enforce

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"glasshouse/fault"
)

// withMaps is an LSM with the kernel's maps and, where it takes them, programs.
func withMaps(t *testing.T) *LSM {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("maps of BPF need root")
	}
	spec, err := loadLsm()
	if err != nil {
		t.Fatal(err)
	}
	l := &LSM{held: map[uint64]*refusals{}}
	for name, m := range map[string]**ebpf.Map{"things": &l.objects.Things, "networks": &l.objects.Networks} {
		if *m, err = ebpf.NewMap(spec.Maps[name]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*m).Close() })
	}
	return l
}

func count(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	k := make([]byte, m.KeySize())
	var v uint32
	for i := m.Iterate(); i.Next(&k, &v); n++ {
	}
	return n
}

func TestAKernelThatTakesNoProgramsSaysSo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	l, err := OpenLSM()
	if err == nil {
		t.Log("this kernel takes them")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("OpenLSM: %v, want unsupported and a remedy", err)
	}
	t.Log(err)
}

func TestWhatIsRefusedIsReplacedAndForgotten(t *testing.T) {
	l := withMaps(t)
	dir := t.TempDir()
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := file("a"), file("b")
	steps := []struct {
		cgroup           uint64
		r                Refusals
		things, networks int
	}{
		{1, Refusals{Run: []*os.File{a}, Write: []*os.File{a, b}, Connect: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}, 2, 2},
		{2, Refusals{Write: []*os.File{a}, Connect: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, 3, 3},
		{1, Refusals{Write: []*os.File{b}}, 2, 1},
		{1, Refusals{}, 1, 1},
	}
	for i, s := range steps {
		if err := l.Refuse(s.cgroup, s.r); err != nil {
			t.Fatal(err)
		}
		if things, networks := count(t, l.objects.Things), count(t, l.objects.Networks); things != s.things || networks != s.networks {
			t.Errorf("step %d: %d files and %d networks, want %d and %d", i, things, networks, s.things, s.networks)
		}
	}
	inside := networkOf(2, netip.MustParsePrefix("10.1.2.3/32"))
	var v uint32
	if err := l.objects.Networks.Lookup(inside, &v); err != nil {
		t.Errorf("an address of a refused network: %v", err)
	}
	if err := l.objects.Networks.Lookup(networkOf(1, netip.MustParsePrefix("10.1.2.3/32")), &v); err == nil {
		t.Error("it is refused to another jail too")
	}
	if err := l.Forget(2); err != nil {
		t.Fatal(err)
	}
	if n := count(t, l.objects.Things) + count(t, l.objects.Networks); n != 0 {
		t.Errorf("%d are left", n)
	}
}

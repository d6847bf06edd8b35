package cli

import (
	"testing"

	"glasshouse/api/wire"
)

func TestDoctorTellsWhetherAnyBackendCanRun(t *testing.T) {
	with := func(names ...string) []wire.Probe {
		list := []wire.Probe{{Name: "kvm", Status: "unsupported"}, {Name: "crun", Status: "unknown"}}
		for _, n := range names {
			list = append(list, wire.Probe{Name: n, Status: "ok"})
		}
		return list
	}
	oci := []string{"root", "network namespaces", "overlay with idmapped layers", "sized disks", "cgroup freeze, kill and identity", "seccomp"}
	for name, tt := range map[string]struct {
		probes []wire.Probe
		want   bool
	}{
		"nothing":             {with(), false},
		"no runtime":          {with(oci...), false},
		"runc":                {with(append(oci, "runc")...), true},
		"runsc":               {with(append(oci, "runsc")...), true},
		"bubblewrap":          {with("bubblewrap", "seccomp"), true},
		"no seccomp":          {with("bubblewrap"), false},
		"a runtime, not root": {with(append(oci[1:], "runc")...), false},
	} {
		if got := isolates(tt.probes); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

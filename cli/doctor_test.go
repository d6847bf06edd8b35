package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/host/probe"
)

func TestDoctorFindsUsableBackend(t *testing.T) {
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

// Install scripts depend on the exit status.
func TestDoctorExitStatus(t *testing.T) {
	probes := func(list ...wire.Probe) map[string]string {
		b, err := json.Marshal(map[string]any{"items": list})
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{"GET /doctor": string(b)}
	}
	seccomp := wire.Probe{Name: "seccomp", Status: "ok"}
	kvm := wire.Probe{Name: "kvm", Status: "unsupported", Reason: "no /dev/kvm", Remedy: "load the module kvm"}
	const message = "no jail can run on this host"
	for name, tt := range map[string]struct {
		answers map[string]string
		code    int
	}{
		"nothing is there":           {probes(), 1},
		"bubblewrap is missing":      {probes(seccomp, kvm, wire.Probe{Name: "bubblewrap", Status: "unsupported", Remedy: "apt-get install bubblewrap"}), 1},
		"bubblewrap is inconclusive": {probes(seccomp, wire.Probe{Name: "bubblewrap", Status: "unknown"}), 1},
		"an option is missing":       {probes(seccomp, kvm, wire.Probe{Name: "bubblewrap", Status: "ok"}), 0},
	} {
		for _, format := range []string{"", " --json"} {
			code, stdout, stderr := newScriptedDaemon(t, tt.answers).run("", argsOf("doctor"+format)...)
			if code != tt.code || strings.Contains(stderr, message) != (tt.code == 1) {
				t.Errorf("%s: doctor%s: exit code %d and stderr %q, want %d and %q only if that is 1\n%s", name, format, code, stderr, tt.code, message, stdout)
			}
		}
	}
}

// After a renamed probe, doctor would report that no jail can run anywhere.
func TestDoctorProbeNamesExist(t *testing.T) {
	known := map[string]bool{}
	for _, p := range daemon.Doctor(t.Context(), probe.Host{Data: t.TempDir()}) {
		known[p.Name] = true
	}
	for _, all := range backendNeeds {
		for _, any := range all {
			for _, name := range any {
				if !known[name] {
					t.Errorf("no probe has the name %q", name)
				}
			}
		}
	}
}

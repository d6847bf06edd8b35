package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"glasshouse/api/wire"
)

// doctorAnswers returns the responses of a daemon with these probes.
func doctorAnswers(t *testing.T, list ...wire.Probe) map[string]string {
	b, err := json.Marshal(map[string]any{"items": list})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"GET /doctor": string(b)}
}

// Install scripts depend on the exit status.
func TestDoctorExitStatus(t *testing.T) {
	required := func(name, status string) wire.Probe {
		return wire.Probe{Name: name, Status: status, Need: "required", Remedy: "install " + name}
	}
	kvm := wire.Probe{Name: "kvm", Status: "unsupported", Need: "optional", Reason: "no /dev/kvm", Remedy: "load the module kvm"}
	criu := wire.Probe{Name: "criu", Status: "unsupported", Need: "recommended"}
	const message = "no jail can run on this host"
	for name, tt := range map[string]struct {
		probes []wire.Probe
		code   int
	}{
		"nothing is there":           {nil, 1},
		"nothing is required":        {[]wire.Probe{kvm, criu}, 1},
		"bubblewrap is missing":      {[]wire.Probe{required("seccomp", "ok"), kvm, required("bubblewrap", "unsupported")}, 1},
		"bubblewrap is inconclusive": {[]wire.Probe{required("seccomp", "ok"), required("bubblewrap", "unknown")}, 1},
		"seccomp is missing":         {[]wire.Probe{required("seccomp", "unsupported"), required("bubblewrap", "ok")}, 1},
		"other features are missing": {[]wire.Probe{required("seccomp", "ok"), kvm, criu, required("bubblewrap", "ok")}, 0},
	} {
		for _, format := range []string{"", " --json"} {
			code, stdout, stderr := newScriptedDaemon(t, doctorAnswers(t, tt.probes...)).run("", argsOf("doctor"+format)...)
			if code != tt.code || strings.Contains(stderr, message) != (tt.code == 1) {
				t.Errorf("%s: doctor%s: exit code %d and stderr %q, want %d and %q only if that is 1\n%s", name, format, code, stderr, tt.code, message, stdout)
			}
		}
	}
}

// Scripts search for lines that start with ok and a name.
func TestDoctorGroupsProbes(t *testing.T) {
	answers := doctorAnswers(t,
		wire.Probe{Name: "kernel", Status: "ok", Need: "recommended", Purpose: "idmapped layers", Detail: "Linux 6.12"},
		wire.Probe{Name: "root", Status: "ok", Need: "required"},
		wire.Probe{Name: "runc", Status: "ok", Need: "required", Detail: "1.1.5"},
		wire.Probe{Name: "crun", Status: "ok", Need: "optional"},
		wire.Probe{Name: "criu", Status: "unsupported", Need: "recommended", Purpose: "snapshots", Reason: "It is too old.", Remedy: "run make setup"},
		wire.Probe{Name: "bpf", Status: "unknown", Need: "recommended", Reason: "No result."},
		wire.Probe{Name: "kvm", Status: "unsupported", Need: "optional", Reason: "No \x1b[31m/dev/kvm."},
	)
	const want = `ready: jails run with runc (oci)
recommended features missing: 2

Required
ok  root
ok  runc 1.1.5

Recommended
no  criu
 used for: snapshots
 It is too old.
 → run make setup
?   bpf
 No result.
ok  kernel Linux 6.12

Optional
no  kvm
 No \x1b[31m/dev/kvm.
ok  crun
`
	code, stdout, stderr := newScriptedDaemon(t, answers).run("", "doctor")
	got := regexp.MustCompile(`(?m) +$`).ReplaceAllString(stdout, "")
	got = regexp.MustCompile(`(\S|^) {5,}`).ReplaceAllString(got, "$1 ")
	got = regexp.MustCompile(`(?m)^ {5,}`).ReplaceAllString(got, " ")
	if code != 0 || got != want {
		t.Errorf("exit code %d, stderr %q, got\n%s\nwant\n%s", code, stderr, got, want)
	}

	// The JSON output has the order of the daemon.
	_, stdout, _ = newScriptedDaemon(t, answers).run("", "--json", "doctor")
	var list []wire.Probe
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list) != 7 || list[0].Name != "kernel" || list[4].Need != "recommended" || list[4].Purpose != "snapshots" {
		t.Errorf("doctor --json: %v, got %+v, want the response of the daemon", err, list)
	}
}

func TestDoctorStartsWithRemedy(t *testing.T) {
	_, stdout, _ := newScriptedDaemon(t, doctorAnswers(t,
		wire.Probe{Name: "criu", Status: "unsupported", Need: "recommended", Remedy: "install criu"},
		wire.Probe{Name: "seccomp", Status: "ok", Need: "required"},
		wire.Probe{Name: "runc", Status: "unsupported", Need: "required", Remedy: "install\x1b[31m runc"},
	)).run("", "doctor")
	const want = "not ready: no jail can run on this host\ntry: install\\x1b[31m runc\nrecommended features missing: 1\n\nRequired\nno  runc"
	if !strings.HasPrefix(stdout, want) {
		t.Errorf("got\n%s\nwant first\n%s", stdout, want)
	}
}

// Daemons of older versions do not report the need of a feature.
func TestDoctorOfOlderDaemon(t *testing.T) {
	var list []wire.Probe
	for _, name := range []string{"user namespaces", "mount namespaces", "pid namespaces", "network namespaces", "uts namespaces", "ipc namespaces", "overlay without root", "seccomp"} {
		list = append(list, wire.Probe{Name: name, Status: "ok"})
	}
	for status, want := range map[string]string{
		"ok":          "ready: jails run with bubblewrap (bwrap)\n",
		"unsupported": "not ready: ",
	} {
		answers := doctorAnswers(t, append(list, wire.Probe{Name: "bubblewrap", Status: status})...)
		code, stdout, stderr := newScriptedDaemon(t, answers).run("", "doctor")
		if (code == 0) != (status == "ok") || !strings.HasPrefix(stdout, want) || !strings.Contains(stdout, "\nRequired\n") {
			t.Errorf("bubblewrap %s: exit code %d, stderr %q, got\n%s\nwant first %q", status, code, stderr, stdout, want)
		}
		_, stdout, _ = newScriptedDaemon(t, answers).run("", "--json", "doctor")
		if strings.Contains(stdout, `"need"`) {
			t.Errorf("doctor --json has a need that the daemon does not report:\n%s", stdout)
		}
	}
}

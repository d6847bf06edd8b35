package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail/backend/bwrap"
	"glasshouse/object"
	"glasshouse/object/dir"
)

// TestMain also runs the stages of the backend bwrap, which starts its own program.
func TestMain(m *testing.M) {
	bwrap.Stage(os.Args)
	os.Exit(m.Run())
}

// probesWithout returns the probes of a host that has every feature except some.
func probesWithout(missing ...string) []wire.Probe {
	names := map[string]bool{"future": true} // a probe that Classify does not know
	for name := range uses {
		names[name] = true
	}
	for _, r := range runners {
		for _, name := range append(r.requires(true), r.requires(false)...) {
			names[name] = true
		}
	}
	var list []wire.Probe
	for name := range names {
		p := wire.Probe{Name: name, Status: "ok"}
		if slices.Contains(missing, name) {
			p = wire.Probe{Name: name, Status: "unsupported", Remedy: "install " + name}
		}
		list = append(list, p)
	}
	return list
}

// rootOnly lists the features that an ordinary user lacks.
var rootOnly = []string{"root", "overlay with idmapped layers", "sized disks"}

func TestClassifyChoosesRunner(t *testing.T) {
	for name, tt := range map[string]struct {
		missing         []string
		ordinary        bool // not root
		backend, choice string
		want, repair    string // the runner, or the remedy of an unready host
		needs           map[string]string
	}{
		"default works": {choice: "runc", want: "runc (oci)",
			needs: map[string]string{"runc": Required, "root": Required, "crun": Optional, "bubblewrap": Optional, "criu": Recommended, "overlay without root": Optional, "future": Optional}},
		"another default": {choice: "runsc", want: "runsc (oci)",
			needs: map[string]string{"runsc": Required, "runc": Optional}},
		"default is bwrap": {backend: "bwrap", choice: "runc", want: "bubblewrap (bwrap)",
			needs: map[string]string{"bubblewrap": Required, "sized disks": Required, "root": Recommended, "cgroup freeze, kill and identity": Recommended}},
		"default is missing": {missing: []string{"runc"}, choice: "runc", want: "crun (oci)",
			needs: map[string]string{"crun": Required, "runc": Recommended, "seccomp": Required}},
		"optional features are missing": {missing: []string{"kvm", "criu", "landlock"}, choice: "runc", want: "runc (oci)"},
		"ordinary user": {missing: rootOnly, ordinary: true, backend: "bwrap", want: "bubblewrap (bwrap)",
			needs: map[string]string{"bubblewrap": Required, "overlay without root": Required, "root": Recommended, "sized disks": Recommended, "runc": Optional}},
		"ordinary user without bubblewrap": {missing: append([]string{"bubblewrap"}, rootOnly...), ordinary: true, backend: "bwrap", repair: "install bubblewrap",
			needs: map[string]string{"bubblewrap": Required, "root": Recommended}},
		"ordinary user without overlays": {missing: append([]string{"overlay without root"}, rootOnly...), ordinary: true, backend: "bwrap", repair: "install overlay without root"},
		"root without runtimes":          {missing: []string{"runc", "crun", "runsc"}, choice: "runc", want: "bubblewrap (bwrap)", needs: map[string]string{"runc": Recommended, "crun": Optional}},
		"root without programs": {missing: []string{"runc", "crun", "runsc", "bubblewrap"}, choice: "runc", repair: "install runc",
			needs: map[string]string{"runc": Required, "bubblewrap": Optional}},
		// For root, bubblewrap also needs a disk.
		"root without disks":      {missing: []string{"sized disks"}, choice: "runc", repair: "install sized disks"},
		"root without seccomp":    {missing: []string{"seccomp"}, choice: "runc", repair: "install seccomp"},
		"root without namespaces": {missing: []string{"pid namespaces"}, choice: "runc", repair: "install pid namespaces"},
		"root without cgroups":    {missing: []string{"cgroup freeze, kill and identity"}, choice: "runc", want: "bubblewrap (bwrap)"},
	} {
		if tt.backend == "" {
			tt.backend = "oci"
		}
		list := probesWithout(tt.missing...)
		Classify(list, !tt.ordinary, tt.backend, tt.choice)
		if got, repair := Runner(list); got != tt.want || repair.Remedy != tt.repair {
			t.Errorf("%s: Runner = %q, %q, want %q, %q", name, got, repair.Remedy, tt.want, tt.repair)
		}
		for _, p := range list {
			if want := tt.needs[p.Name]; want != "" && p.Need != want {
				t.Errorf("%s: %s is %s, want %s", name, p.Name, p.Need, want)
			}
			if p.Name != "future" && (p.Purpose == "" || !slices.Contains([]string{Required, Recommended, Optional}, p.Need)) {
				t.Errorf("%s: %s has need %q and purpose %q, want both", name, p.Name, p.Need, p.Purpose)
			}
		}
	}
	if got, _ := Runner(nil); got != "" {
		t.Errorf("Runner without probes = %q, want none", got)
	}
	two := []wire.Probe{{Name: "root", Status: "unsupported", Need: Required}, {Name: "runc", Status: "unsupported", Need: Required}}
	if got, repair := Runner(two); got != "" || repair.Name != "root" {
		t.Errorf("Runner without root and runc = %q, %q, want none because of root, the first probe", got, repair.Name)
	}
}

// An inconclusive probe does not show that jails can run.
func TestInconclusiveRequirementIsNotMet(t *testing.T) {
	list := probesWithout()
	i := slices.IndexFunc(list, func(p wire.Probe) bool { return p.Name == "seccomp" })
	list[i].Status = "unknown"
	Classify(list, true, "oci", "runc")
	if got, repair := Runner(list); got != "" || repair.Name != "seccomp" {
		t.Errorf("Runner = %q, %q, want none because of seccomp", got, repair.Name)
	}
}

// After a renamed or a new probe, the table of needs would not fit.
func TestNeedsMatchProbes(t *testing.T) {
	known := map[string]bool{}
	for _, p := range Doctor(t.Context(), Config{Data: t.TempDir(), Backend: "oci", Runtime: "runc"}) {
		known[p.Name] = true
		if p.Need == "" || p.Purpose == "" {
			t.Errorf("%s has need %q and purpose %q, want both", p.Name, p.Need, p.Purpose)
		}
	}
	for _, p := range probesWithout() {
		if !known[p.Name] && p.Name != "future" {
			t.Errorf("no probe has the name %q", p.Name)
		}
	}
}

// Doctor must not report a runner as ready whose backend does not work, and the other way round.
func TestDoctorAgreesWithBackends(t *testing.T) {
	dir := os.Getenv("DOCTOR_TEST_DATA") // data directory of an ordinary user
	if dir == "" {
		dir = t.TempDir()
	}
	root := os.Geteuid() == 0
	c := NewConfig(os.Geteuid(), dir)
	c.Data = dir
	d := &Daemon{Config: c, log: slog.New(slog.DiscardHandler), cgroups: "glasshouse-doctor-test"}
	list := Doctor(t.Context(), c)
	ready := false
	for _, r := range d.runtimes() {
		err := r.Backend.Probe(t.Context())
		required := []string{"virtual machines"}
		if r.Name != "microvm" { // which is no replacement for the others
			ready = ready || err == nil
			i := slices.IndexFunc(runners, func(run runner) bool { return run.backend == r.Name && run.runtime == r.Runtime })
			if i < 0 {
				t.Fatalf("Doctor does not know the backend %s %s", r.Name, r.Runtime)
			}
			required = runners[i].requires(root)
		}
		missing := slices.DeleteFunc(required, func(name string) bool { return isOK(list, name) })
		if (err == nil) != (len(missing) == 0) {
			t.Errorf("as root %v: Doctor reports that %q are missing; the backend %s %s reports %v", root, missing, r.Name, r.Runtime, err)
		}
	}
	if runner, repair := Runner(list); (runner != "") != ready {
		t.Errorf("Runner = %q, %+v, want one: %v", runner, repair, ready)
	}
	if root {
		asOrdinaryUser(t, "^TestDoctorAgreesWithBackends$")
	}
}

// asOrdinaryUser runs tests of this package as an ordinary user.
func asOrdinaryUser(t *testing.T, tests string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "doctor-user-") // other users cannot enter the parents of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const user = 65534
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "daemon.test") // that user may have no access to this binary
	if err := copyProgram(program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-test.v", "-test.run", tests)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "DOCTOR_TEST_DATA=" + dir, "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
}

func copyProgram(to string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, from); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// A refusing store refuses the credentials.
type refusing struct{ object.Store }

func (refusing) Put(context.Context, string, io.Reader) error {
	return &fault.Error{Op: "object.Put", Kind: fault.Unavailable, Err: errors.New("403"), Remedy: "check the credentials"}
}

func TestDoctorChecksObjectStore(t *testing.T) {
	shared, err := dir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	var log bytes.Buffer
	d := &Daemon{objects: shared, log: slog.New(slog.NewTextHandler(&log, nil))}
	d.warnOfObjects(t.Context())
	if p := d.probeObjects(t.Context()); p.Status != "ok" || log.Len() > 0 {
		t.Errorf("probe = %+v, and the log says %q, want ok and no warning", p, &log)
	}
	d.objects = refusing{}
	d.warnOfObjects(t.Context())
	if p := d.probeObjects(t.Context()); p.Status != "unsupported" || p.Remedy != "check the credentials" || p.Need != Recommended {
		t.Errorf("probe = %+v, want the remedy of the store", p)
	}
	if !strings.Contains(log.String(), "check the credentials") {
		t.Errorf("log = %q, want a warning with the remedy", &log)
	}
}

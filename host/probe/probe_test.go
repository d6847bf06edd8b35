package probe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/host/probe"
)

// TestMain prints the results as an ordinary user for the tests below.
func TestMain(m *testing.M) {
	if data := os.Getenv("PROBE_TEST_DATA"); data != "" {
		json.NewEncoder(os.Stdout).Encode(probe.All(context.Background(), probe.Host{Data: data}))
		return
	}
	os.Exit(m.Run())
}

// sound checks properties of every result on every host.
func sound(t *testing.T, results []probe.Result) {
	t.Helper()
	seen := map[string]bool{}
	for _, r := range results {
		if r.Name == "" || seen[r.Name] {
			t.Errorf("name %q is empty or a duplicate", r.Name)
		}
		seen[r.Name] = true
		switch r.Status {
		case probe.OK:
			if r.Reason != "" || r.Remedy != "" {
				t.Errorf("%s is ok with reason %q and remedy %q", r.Name, r.Reason, r.Remedy)
			}
		case probe.Unsupported, probe.Unknown:
			if !strings.HasSuffix(r.Reason, ".") || len(r.Reason) < 10 || strings.Contains(r.Reason, "\n") || r.Remedy == "" {
				t.Errorf("%s is %s with reason %q and remedy %q, want a sentence and a remedy", r.Name, r.Status, r.Reason, r.Remedy)
			}
		default:
			t.Errorf("%s has status %q", r.Name, r.Status)
		}
	}
}

func find(t *testing.T, results []probe.Result, name string) probe.Result {
	t.Helper()
	i := slices.IndexFunc(results, func(r probe.Result) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("no result %q", name)
	}
	return results[i]
}

func show(t *testing.T, results []probe.Result) {
	t.Helper()
	for _, r := range results {
		t.Logf("%-40s %-12s %s", r.Name, r.Status, r.Detail+r.Reason)
		if r.Remedy != "" {
			t.Logf("%-40s %-12s → %s", "", "", r.Remedy)
		}
	}
}

// traces returns possible leftovers of probes: mounts, loop devices, files, cgroups and networks
// with the names of probes. Other processes may probe this host concurrently.
func traces(t *testing.T, data string) []string {
	t.Helper()
	var found []string
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range loops {
		b, _ := os.ReadFile(f)
		text = append(text, b...)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "probe") {
			// The number of a mount only identifies it.
			found = append(found, line[strings.LastIndex(line, ":")+1:])
		}
	}
	for _, glob := range []string{
		data + "/.*", os.TempDir() + "/*glasshouse-probe*", "/var/tmp/*glasshouse-probe*",
		"/sys/fs/cgroup/glasshouse-probe*", "/sys/fs/cgroup/*/glasshouse-probe*", "/run/netns/probe-*",
	} {
		names, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	return found
}

func TestAllAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	data := t.TempDir()
	before := traces(t, data)
	start := time.Now()
	results := probe.All(t.Context(), probe.Host{Data: filepath.Join(data, "not", "made", "yet")})
	took := time.Since(start)

	show(t, results)
	sound(t, results)
	for _, r := range results {
		if r.Status == probe.Unknown {
			t.Errorf("%s is unknown to root: %s", r.Name, r.Reason)
		}
	}
	t.Logf("took %v", took)
	leftNothing(t, data, before)
	if r := find(t, results, "root"); r.Status != probe.OK {
		t.Errorf("root = %+v", r)
	}
}

func TestAllAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the user")
	}
	data, err := os.MkdirTemp("", "probe-user-") // other users cannot enter the parents of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	const nobody = 65534
	if err := os.Chown(data, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	// Other users may have no access to the directory of the test binary.
	bin := filepath.Join(data, "probe.test")
	copyFile(t, "/proc/self/exe", bin)

	before := traces(t, data)
	cmd := exec.Command(bin)
	cmd.Dir = data
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "PROBE_TEST_DATA=" + data}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var results []probe.Result
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatal(err)
	}
	show(t, results)
	sound(t, results)
	for _, name := range []string{"root", "overlay with idmapped layers", "sized disks", "idmapped mounts of the data directory", "criu"} {
		if r := find(t, results, name); r.Status != probe.Unsupported || !strings.Contains(r.Remedy, "root") {
			t.Errorf("%s without root = %+v, want unsupported and root as the remedy", name, r)
		}
	}
	for _, r := range results {
		if r.Status == probe.Unknown {
			t.Errorf("%s is unknown to an ordinary user: %s", r.Name, r.Reason)
		}
	}
	leftNothing(t, data, before)
}

func leftNothing(t *testing.T, data string, before []string) {
	t.Helper()
	left := slices.DeleteFunc(traces(t, data), func(trace string) bool { return slices.Contains(before, trace) })
	// Other processes may probe this host too. Their traces disappear soon.
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		now := traces(t, data)
		left = slices.DeleteFunc(left, func(trace string) bool { return !slices.Contains(now, trace) })
	}
	for _, trace := range left {
		t.Errorf("left behind: %s", trace)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// fakeTools creates a tools directory with one program.
func fakeTools(t *testing.T, name, script string) probe.Host {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return probe.Host{Tools: dir}
}

func TestToolsDirectoryPrecedesPATH(t *testing.T) {
	h := fakeTools(t, "runsc", "echo runsc version release-20301231.0")
	r := find(t, probe.All(t.Context(), h), "runsc")
	if want := "release-20301231.0, " + h.Tools + "/runsc"; r.Status != probe.OK || r.Detail != want {
		t.Errorf("runsc = %+v, want %s", r, want)
	}
}

func TestBrokenToolIsUnknown(t *testing.T) {
	h := fakeTools(t, "runsc", "echo no such library >&2; exit 127")
	r := find(t, probe.All(t.Context(), h), "runsc")
	if r.Status != probe.Unknown || !strings.Contains(r.Reason, "no such library") {
		t.Errorf("runsc = %+v, want unknown, with its output", r)
	}
}

func TestIncompatibleCRIUIsReported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := fakeTools(t, "criu", `case $1 in --version) echo "Version: 99.1";; *) echo "Error: vdso: Unexpected rt vDSO area bounds"; exit 1;; esac`)
	r := find(t, probe.All(t.Context(), h), "criu")
	if r.Status != probe.Unsupported || !strings.Contains(r.Reason, h.Tools) || !strings.Contains(r.Reason, "vDSO") {
		t.Errorf("criu = %+v", r)
	}
}

// The backend bwrap uses options of bubblewrap 0.7.
func TestOldBubblewrapIsUnsupported(t *testing.T) {
	for version, want := range map[string]probe.Status{"0.6.2": probe.Unsupported, "0.7.0": probe.OK, "0.11.0": probe.OK, "1.0": probe.OK, "today": probe.Unknown} {
		h := fakeTools(t, "bwrap", `[ "$1" != --version ] || echo bubblewrap `+version)
		r := find(t, probe.All(t.Context(), h), "bubblewrap")
		if r.Status != want {
			t.Errorf("bubblewrap %s = %+v, want %s", version, r, want)
		}
	}
}

func TestHangingToolTimesOut(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "pid")
	h := fakeTools(t, "runsc", "sleep 300 & echo $! > "+mark+"; wait")
	h.Limit = 2 * time.Second
	start := time.Now()
	results := probe.All(t.Context(), h)
	if r := find(t, results, "runsc"); r.Status != probe.Unknown || !strings.Contains(r.Reason, "o result within 2s") {
		t.Errorf("runsc = %+v, want unknown because of a timeout", r)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("All waited %v", took)
	}
	pid, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for running(strings.TrimSpace(string(pid))) {
		if time.Now().After(deadline) {
			t.Fatal("the program's child outlived the probe")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// running reports whether a process exists and is not a zombie.
func running(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}

// A program built as a Go module of gVisor prints no version of its own, but the version of the
// OCI specification.
func TestVersionOfGoModule(t *testing.T) {
	h := fakeTools(t, "runsc", "echo runsc version VERSION_MISSING; echo spec: 1.2.1")
	if r := find(t, probe.All(t.Context(), h), "runsc"); r.Status != probe.OK || strings.Contains(r.Detail, "1.2.1") {
		t.Errorf("runsc = %+v, want the version of the module", r)
	}
}

func TestPrivateToolsAreListed(t *testing.T) {
	h := fakeTools(t, "runsc", "echo runsc version release-20301231.0")
	if r := find(t, probe.All(t.Context(), h), "private tools"); r.Status != probe.OK || r.Detail != "runsc, in "+h.Tools {
		t.Errorf("private tools = %+v, want runsc", r)
	}
	h = probe.Host{Data: t.TempDir()}
	r := find(t, probe.All(t.Context(), h), "private tools")
	if r.Status != probe.Unsupported || !strings.Contains(r.Reason, filepath.Join(h.Data, "tools", "bin")) || !strings.Contains(r.Remedy, "tools:") {
		t.Errorf("without tools: %+v, want their directory and the key tools", r)
	}
}

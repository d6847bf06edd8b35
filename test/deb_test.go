package test_test

import (
	"glasshouse/jail/backend/backendtest"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
)

// packaged builds the Debian package of a version.
func packaged(t *testing.T, version string) string {
	t.Helper()
	bin := backendtest.Program(t)
	cmd := exec.Command("../scripts/deb.sh", bin, t.TempDir())
	cmd.Env = append(os.Environ(), "DEB_VERSION="+version, "DEB_COMPRESSION=zstd")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestPackageInstallUpgradeAndPurge(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("creating a Debian tree needs root")
	}
	onlyThorough(t)
	for _, tool := range []string{"mmdebstrap", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	old, newer := packaged(t, "1.0"), packaged(t, "2.0")
	depends, err := exec.Command("dpkg-deb", "-f", old, "Depends").Output()
	if err != nil {
		t.Fatal(err)
	}
	// Installing all dependencies, to check that Debian has them, takes another minute.
	args, force := []string{"--quiet", "--variant=essential", "--include=init-system-helpers"}, "--force-depends"
	if thorough {
		force = ""
		names := regexp.MustCompile(` \(.*?\)| \| [^,]+| `).ReplaceAllString(strings.TrimSpace(string(depends)), "")
		args[2] = "--include=" + names
	}
	scenario, err := filepath.Abs("deb/scenario.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "mmdebstrap", append(args, "--format=null", "--customize-hook="+scenario+` "$1"`, "bookworm", "/dev/null")...)
	cmd.Env = append(os.Environ(), "OLD="+old, "NEW="+newer, "FORCE="+force)
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "deb: ") && strings.Contains(string(out), "apt-get update") {
		t.Skipf("no Debian mirror is reachable: %s", out)
	}
	if err != nil || !strings.Contains(string(out), "deb: done") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// make up works on a bare Debian without Go, from a copy of the repository: it installs what is
// missing, builds, and runs the demo.
func TestMakeUpWithoutGoBookworm(t *testing.T) { makeUpWithoutGo(t, "bookworm") }
func TestMakeUpWithoutGoTrixie(t *testing.T)   { makeUpWithoutGo(t, "trixie") }

func makeUpWithoutGo(t *testing.T, release string) {
	t.Helper()
	onlyThorough(t)
	if os.Geteuid() != 0 {
		t.Skip("creating a Debian tree needs root")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // the daemon would require it
		t.Fatal(err)
	}
	tree := filepath.Join(dir, release)
	out, err := exec.CommandContext(t.Context(), "mmdebstrap", "--quiet", "--variant=minbase", "--include=make", release, tree).CombinedOutput()
	if err != nil && strings.Contains(string(out), "apt-get update") {
		t.Skipf("the Debian mirror has no %s, or is not reachable: %s", release, out)
	}
	if err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "deb/newcomer.sh", tree, clone(t, filepath.Join(dir, "source")))
	out, err = cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "newcomer: done\n") {
		t.Errorf("newcomer.sh: %v", err)
	}
}

// Lintian checks Debian's packaging policy. packaging/deb/lintian-overrides gives a reason for
// each accepted finding.
func TestPackagePassesLintian(t *testing.T) {
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skip(err)
	}
	if !thorough {
		t.Skip("takes minutes on a busy host: runs with GLASSHOUSE_TEST=all")
	}
	// Tests pack an unstripped program with zstd, which is faster.
	args := []string{"--suppress-tags", "malformed-deb-archive,unstripped-binary-or-object", packaged(t, "1.0")}
	if os.Geteuid() == 0 {
		args = append([]string{"--allow-root"}, args...)
	}
	if out, err := exec.Command("lintian", args...).CombinedOutput(); err != nil || regexp.MustCompile(`(?m)^[EW]: `).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

// The unit has Type=notify: systemctl start returns when the daemon is ready.
func TestServiceReadyNotification(t *testing.T) {
	unit, err := os.ReadFile("../packaging/deb/glasshouse.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), "\nType=notify\n") {
		t.Error("the unit is not Type=notify")
	}
	bin := backendtest.Program(t)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // the daemon would require it
		t.Fatal(err)
	}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(bin, "serve", "--data", filepath.Join(dir, "data"), "--listen", "")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+l.LocalAddr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	l.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 100)
	n, err := l.Read(b)
	if err != nil || string(b[:n]) != "READY=1" {
		t.Fatalf("notification = %q, %v; want READY=1", b[:n], err)
	}
	cl, err := client.New(client.Options{Addr: "unix://" + filepath.Join(dir, "data", "glasshouse.sock")})
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.Ready(t.Context()); err != nil {
		t.Errorf("Ready after READY=1: %v", err)
	}
}

// The unit removes capabilities and privileges from the daemon. The test checks without systemd
// that jails do not need them: setpriv(1) removes the same ones.
func TestJailsUnderServiceHardening(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip(err)
	}
	unit, err := os.ReadFile("../packaging/deb/glasshouse.service")
	if err != nil {
		t.Fatal(err)
	}
	caps := regexp.MustCompile(`(?m)^CapabilityBoundingSet=~(.*)$`).FindSubmatch(unit)
	if caps == nil || !strings.Contains(string(unit), "\nNoNewPrivileges=yes\n") {
		t.Fatal("the unit has no CapabilityBoundingSet or NoNewPrivileges")
	}
	h := open(t, tools())
	h.canSnapshot()
	h.kill()

	bin := h.bin
	h.bin = filepath.Join(t.TempDir(), "serve")
	var without []string
	for _, name := range strings.Fields(string(caps[1])) {
		without = append(without, "-"+strings.ToLower(strings.TrimPrefix(name, "CAP_")))
	}
	script := "#!/bin/sh\nexec " + setpriv + " --no-new-privs --bounding-set=" + strings.Join(without, ",") + " " + bin + ` "$@"` + "\n"
	if err := os.WriteFile(h.bin, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h.start()
	j := h.running(wire.CreateJail{Name: "hard", Network: "full"})
	if got := h.sh(j.ID, "echo 1 > /tmp/x; mkdir /tmp/d; chown 1:1 /tmp/d; cat /tmp/x"); got != "1" {
		t.Errorf("command printed %q, want 1", got)
	}
	made, err := h.BranchJail(h.Context(), j.ID, wire.Branch{Count: 2})
	if err != nil || len(made.Jails) != 2 {
		t.Fatalf("branches: %+v, %v", made, err)
	}
	for _, b := range made.Jails {
		if got := h.sh(b.ID, "cat /tmp/x"); got != "1" {
			t.Errorf("command in a branch printed %q, want 1", got)
		}
	}
}

package bwrap_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"glasshouse/backend/backendtest"
	"glasshouse/backend/bwrap"
	"glasshouse/host/cgroup"
	"glasshouse/jail"
)

func TestMain(m *testing.M) {
	bwrap.Stage(os.Args)
	os.Exit(m.Run())
}

func TestContractAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	h := newHost(t)
	backendtest.Run(t, h.daemon, backendtest.Options{})
}

// oneID are the clauses that a jail cannot keep whose root is the user who runs
// the daemon.
func userDiffers(more map[string]string) map[string]string {
	all := map[string]string{
		"Owners/root-inside-is-the-first-of-its-range": "without root the jail's root is the user who runs the daemon",
		"Owners/natural-on-disk":                       "without root the files on disk belong to the user and the subordinate ids",
	}
	for name, reason := range more {
		all[name] = reason
	}
	return all
}

func TestContractAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, nobodySpecial, "")
		return
	}
	h := newHost(t)
	backendtest.Run(t, h.daemon, backendtest.Options{Differs: userDiffers(map[string]string{
		"Owners/other-users":               "without subordinate ids a jail has root alone",
		"KillLeavesNoProcess/another-user": "without subordinate ids a jail has root alone",
		"Attacks/setuid-programs":          "without subordinate ids a jail has root alone",
	})})
}

func TestContractWithSubordinateIDs(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, nobodySpecial, fmt.Sprintf("%d:%d:65536\n", nobodySpecial, 0x68000000))
		return
	}
	h := newHost(t)
	backendtest.Run(t, h.daemon, backendtest.Options{Differs: userDiffers(nil)})
}

// A host is where the daemons of a test keep what is theirs.
type host struct {
	dir    string
	prefix string
}

// testHost names a directory to a daemon that a test runs in another process.
const testHost = "GLASSHOUSE_BWRAP_TEST_HOST"

// newHost makes room for daemons. When the test ends nothing is left of them.
func newHost(t *testing.T) *host {
	t.Helper()
	if dir := os.Getenv(testHost); dir != "" {
		return hostIn(dir)
	}
	dir, err := os.MkdirTemp("", "gh-host-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // jails are strangers on the host
		t.Fatal(err)
	}
	os.Setenv(testHost, dir)
	h := hostIn(dir)
	t.Cleanup(func() {
		os.Unsetenv(testHost)
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the daemon's directory: %v", err)
		}
		if tree, err := cgroup.New(h.prefix); err == nil {
			if err := tree.Remove(); err != nil {
				t.Errorf("cgroups are left: %v", err)
			}
		}
	})
	return h
}

func hostIn(dir string) *host {
	sum := sha256.Sum256([]byte(dir))
	return &host{dir, "glasshouse-" + hex.EncodeToString(sum[:4])}
}

func (h *host) daemon(t *testing.T) jail.Backend {
	return bwrap.New(bwrap.Config{CgroupPrefix: h.prefix, Templates: filepath.Join(h.dir, "templates"), Base: filepath.Join(h.dir, "base")})
}

// nobodySpecial is the id of a user that no host has.
const nobodySpecial = 12345

// asUser runs the test again as a user without any privilege, in a mount
// namespace where /etc/subuid and /etc/subgid say what is given.
func asUser(t *testing.T, uid uint32, subordinate string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin, home := filepath.Join(dir, "bin"), filepath.Join(dir, "home")
	for _, d := range []string{bin, home} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	backendtest.Build(t, bin)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	test := filepath.Join(bin, "bwrap.test") // the original is where only root may look
	copyProgram(t, test, self)
	sub := filepath.Join(dir, "sub")
	if err := os.WriteFile(sub, []byte(subordinate), 0o644); err != nil {
		t.Fatal(err)
	}

	run := "^" + t.Name() + "$"
	if _, rest, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok {
		run += "/" + rest
	}
	script := `mount --bind "$1" /etc/subuid && mount --bind "$1" /etc/subgid || exit 99; shift
exec setpriv --reuid="$1" --regid="$1" --clear-groups --bounding-set=+all "${@:2}"`
	cmd := exec.Command("unshare", "--mount", "bash", "-c", script, "bash", sub, fmt.Sprint(uid),
		test, "-test.run="+run, "-test.v="+flag.Lookup("test.v").Value.String(), "-test.timeout=10m")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, backendtest.Prebuilt + "=" + bin}
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("as user %d:\n%s", uid, out)
	if err != nil {
		t.Errorf("as user %d: %v", uid, err)
	}
}

func copyProgram(t *testing.T, dst, src string) {
	t.Helper()
	in, err := os.Open(src)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}

package bwrap_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/host/cgroup"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/bwrap"
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

// userDiffers lists the clauses that do not hold, among others, if root in the jail is the
// user that runs the daemon.
func userDiffers(more map[string]string) map[string]string {
	all := map[string]string{
		"Owners/root-inside-is-the-first-of-its-range": "without root the jail's root is the user who runs the daemon",
		"Owners/files-of-the-lower-layer's-users":      "a tree that a user has made is that user's alone",
		"Owners/natural-on-disk":                       "without root the files on disk belong to the user and the subordinate ids",
	}
	maps.Copy(all, more)
	return all
}

func TestContractAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, user{})
		return
	}
	h := newHost(t)
	backendtest.Run(t, h.daemon, backendtest.Options{Differs: userDiffers(oneID)})
}

// oneID lists the clauses about other users in a jail.
var oneID = map[string]string{
	"Owners/other-users":               "without subordinate ids a jail has root alone",
	"KillLeavesNoProcess/another-user": "without subordinate ids a jail has root alone",
	"Attacks/setuid-programs":          "without subordinate ids a jail has root alone",
}

// TestContractWithADelegatedCgroup runs as a user with a delegated cgroup v2 subtree, as with
// systemd. On hosts whose controllers are on cgroup v1 the subtree still supports freeze and
// kill.
func TestContractWithADelegatedCgroup(t *testing.T) {
	backendtest.Repeats(t)
	if os.Geteuid() == 0 {
		asUser(t, user{delegate: true})
		return
	}
	h := newHost(t)
	if why, ok := h.daemon(t).Lacks()["freeze"]; ok {
		t.Fatalf("freeze is missing with a delegated cgroup: %s", why)
	}
	backendtest.Run(t, h.daemon, backendtest.Options{Differs: userDiffers(oneID), Without: repeated("Owners", "Attacks", "Inside")})
}

func TestContractWithSubordinateIDs(t *testing.T) {
	backendtest.Repeats(t)
	if os.Geteuid() == 0 {
		asUser(t, user{subordinate: fmt.Sprintf("%d:%d:65536\n", stranger, 0x68000000)})
		return
	}
	h := newHost(t)
	backendtest.Run(t, h.daemon, backendtest.Options{Differs: userDiffers(nil), Without: repeated("FreezeAndThaw", "LimitsChange", "Limits", "StatsArePlausible")})
}

// repeated lists the clauses that TestContractAsUser checks and that do not depend on
// subordinate ids or a delegated cgroup, and more.
func repeated(more ...string) []string {
	if backendtest.Thorough {
		return nil
	}
	return append(more, "WritesLandInTheUpper", "Workspace", "Mounts", "CleanInTheMiddleOfCreate", "FailedCreateLeavesNothing", "TwentyAtOnce",
		"StoppedJailStartsAgain", "MountShowsAStoppedJail", "Secrets", "Changes")
}

// A host contains the directories of a test's daemons.
type host struct {
	dir    string
	prefix string
}

// testHost is the environment variable that passes a directory to a daemon in another process.
const testHost = "GLASSHOUSE_BWRAP_TEST_HOST"

// newHost creates the directories of daemons and removes them at the end of the test.
func newHost(t *testing.T) *host {
	t.Helper()
	if dir := os.Getenv(testHost); dir != "" {
		return hostIn(dir)
	}
	dir, err := os.MkdirTemp("", "gh-host-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // without this, the ids of jails cannot access the directory
		t.Fatal(err)
	}
	os.Setenv(testHost, dir)
	h := hostIn(dir)
	t.Cleanup(func() {
		os.Unsetenv(testHost)
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the daemon's directory: %v", err)
		}
		for _, open := range []func(string) (*cgroup.Tree, error){cgroup.New, cgroup.Delegated} {
			if tree, err := open(h.prefix); err == nil {
				if err := tree.Remove(); err != nil {
					t.Errorf("cgroups were not removed: %v", err)
				}
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

// stranger is a user id that is unknown on the host.
const stranger = 12345

// A user describes the privileges of an ordinary user.
type user struct {
	subordinate string // line of /etc/subuid and /etc/subgid
	delegate    bool   // a cgroup
}

// asUser runs the test again as an unprivileged user, in a mount namespace with other user
// files in /etc and with cgroup v2 at its usual mount point.
func asUser(t *testing.T, u user) {
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
	if err := os.Chown(home, stranger, stranger); err != nil {
		t.Fatal(err)
	}
	backendtest.Build(t, bin)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	test := filepath.Join(bin, "bwrap.test") // the original is in a directory of root
	copyProgram(t, test, self)
	etc := map[string]string{
		"subuid": u.subordinate, "subgid": u.subordinate,
		"passwd": fmt.Sprintf("root:x:0:0::/root:/bin/sh\nghtest:x:%[1]d:%[1]d::%s:/bin/sh\n", stranger, home),
	}
	for name, content := range etc {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	run := "^" + t.Name() + "$"
	if _, rest, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok {
		run += "/" + rest
	}
	const script = `for f in subuid subgid passwd; do mount --bind "$1/$f" /etc/$f || exit 99; done
mount -t cgroup2 none /sys/fs/cgroup || exit 99
if test "$3"; then
	echo $$ > "/sys/fs/cgroup/$3/session/cgroup.procs" || exit 99
fi
exec setpriv --reuid="$2" --regid="$2" --clear-groups "${@:4}"`
	cmd := exec.Command("unshare", "--mount", "bash", "-c", script, "bash", dir, fmt.Sprint(stranger), delegated(t, u),
		test, "-test.run="+run, "-test.short="+strconv.FormatBool(testing.Short()), "-test.v", "-test.timeout=10m")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, backendtest.Prebuilt + "=" + bin}
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	out = regexp.MustCompile(`(?m)^ *(=== RUN|--- PASS).*\n`).ReplaceAll(out, nil)
	if err != nil {
		t.Fatalf("test as an ordinary user: %v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("\n--- SKIP: "+t.Name()+" ")) {
		t.Skipf("as an ordinary user:\n%s", out)
	}
	t.Logf("as an ordinary user:\n%s", out)
}

// delegated creates a cgroup v2 directory for a user and one below it for the session of the
// user. It returns its name, or "" if cgroup v2 is not available.
func delegated(t *testing.T, u user) string {
	t.Helper()
	if !u.delegate {
		return ""
	}
	root := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		t.Skip("no cgroup2 hierarchy is mounted")
	}
	dir, err := os.MkdirTemp(root, "gh-user-")
	if err != nil {
		t.Fatal(err)
	}
	session := filepath.Join(dir, "session")
	t.Cleanup(func() {
		for _, d := range []string{session, dir} {
			err := os.Remove(d)
			for end := time.Now().Add(30 * time.Second); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); err = os.Remove(d) {
				time.Sleep(10 * time.Millisecond) // shared resources of the tests are still being removed
			}
			if err != nil {
				t.Errorf("remove the user's cgroup: %v", err)
			}
		}
	})
	if err := os.Mkdir(session, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, session} {
		for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(d, f), stranger, stranger); err != nil {
				t.Fatal(err)
			}
		}
	}
	return filepath.Base(dir)
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

package probe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/host/probe"
)

// A user with a cgroup delegated by systemd can freeze and kill jails. The available limits
// depend on the cgroup v2 controllers of this host.
func TestUserWithDelegatedCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the user")
	}
	root := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		t.Skip("no cgroup2 hierarchy is mounted")
	}
	const nobody = 65534
	data, err := os.MkdirTemp("", "probe-user-") // other users cannot enter the parents of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	bin := filepath.Join(data, "probe.test")
	copyFile(t, "/proc/self/exe", bin)
	given, err := os.MkdirTemp(root, "gh-user-")
	if err != nil {
		t.Fatal(err)
	}
	session := filepath.Join(given, "session")
	t.Cleanup(func() {
		for _, dir := range []string{session, given} {
			err := os.Remove(dir)
			for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); err = os.Remove(dir) {
				time.Sleep(10 * time.Millisecond) // killed processes are still being removed
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	if err := os.Mkdir(session, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{data, given, session} {
		names := []string{"", "cgroup.procs", "cgroup.subtree_control"}
		if file == data {
			names = names[:1]
		}
		for _, name := range names {
			if err := os.Chown(filepath.Join(file, name), nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A cgroup v1 hierarchy of the host is not visible.
	const script = `mount -t cgroup2 none /sys/fs/cgroup && echo $$ >"/sys/fs/cgroup/$1/session/cgroup.procs" &&
exec setpriv --reuid="$2" --regid="$2" --clear-groups "$3"`
	cmd := exec.Command("unshare", "--mount", "bash", "-c", script, "bash", filepath.Base(given), fmt.Sprint(nobody), bin)
	cmd.Dir, cmd.Env, cmd.Stderr = data, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "PROBE_TEST_DATA=" + data}, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var results []probe.Result
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatal(err)
	}
	sound(t, results)
	if r := find(t, results, "cgroup freeze, kill and identity"); r.Status != probe.OK {
		t.Errorf("with a delegated cgroup: %+v, want ok", r)
	}
	if r := find(t, results, "cgroup limits"); r.Status != probe.OK && !strings.Contains(r.Reason, "not delegated to this user") {
		t.Errorf("with a delegated cgroup: %+v, want ok, or the controllers that are missing", r)
	}
}

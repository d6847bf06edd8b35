package test_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
)

// uidOf returns the host uid of a jail's init, the first of its id range.
func uidOf(t *testing.T, h *daemonHarness, j id.Jail) string {
	t.Helper()
	x, err := h.Exec(t.Context(), j, wire.ExecRequest{Cmd: "cat /proc/self/uid_map"})
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := client.Output(x)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(out))
	if len(f) != 3 {
		t.Fatalf("uid_map of %s = %q, want 3 fields", j, out)
	}
	return f[1]
}

// TestTwoDaemonsShareAHostWithoutSettings runs two daemons with the default
// configuration, kills both, and starts them in the other order.
func TestTwoDaemonsShareAHostWithoutSettings(t *testing.T) {
	a, b := open(t, ""), open(t, "")
	ja, jb := a.running(wire.CreateJail{Network: "full"}), b.running(wire.CreateJail{Network: "full"})
	ua, ub := uidOf(t, a, ja.ID), uidOf(t, b, jb.ID)
	if ua == ub {
		t.Errorf("jails of two daemons have the same host ids, from %s", ua)
	}
	a.kill()
	b.kill()
	b.start()
	other := b.running(wire.CreateJail{Network: "full"}) // while the first daemon is stopped
	if got := uidOf(t, b, other.ID); got == ua || got == ub {
		t.Errorf("a new jail has the ids from %s; %s and %s are in use", got, ua, ub)
	}
	a.start()
	for _, c := range []struct {
		h    *daemonHarness
		j    id.Jail
		want string
	}{{a, ja.ID, ua}, {b, jb.ID, ub}} {
		if got := uidOf(t, c.h, c.j); got != c.want {
			t.Errorf("after kill -9 jail %s has ids from %s, want %s", c.j, got, c.want)
		}
	}
}

// TestConfiguredIDsOfAnotherDaemonAreRefused starts a daemon with the first_id of another
// one.
func TestConfiguredIDsOfAnotherDaemonAreRefused(t *testing.T) {
	a := open(t, "first_id: 2415919104\n")
	a.running(wire.CreateJail{})
	data := t.TempDir()
	if err := os.Chmod(filepath.Dir(data), 0o711); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(data, "config.yaml")
	text := "first_id: 2415984640\nrootfs: {default: {dir: " + backendtest.Rootfs(t) + "}}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := a.glasshouse(data, "serve", "--data", data, "--config", config, "--listen", "")
	if code == 0 || !strings.Contains(stderr, a.data) || !strings.Contains(stderr, "first_id") {
		t.Errorf("serve: exit code %d, want an error that names %s and first_id:\n%s", code, a.data, stderr)
	}
}

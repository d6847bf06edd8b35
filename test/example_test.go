package test_test

import (
	"context"
	"errors"
	"fmt"
	"glasshouse/jail/backend/backendtest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// debian returns a data directory whose images include the Debian tree. The tree is created on
// first use, in the images of this host's own daemon, once for all tests.
func debian(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("isolating jails needs root")
	}
	dataDir, err := debianDataDir()
	if err != nil && strings.Contains(err.Error(), "mmdebstrap") { // not installed, or no mirror is reachable
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dataDir
}

var debianDataDir = sync.OnceValues(func() (string, error) {
	dataDir := os.Getenv("GLASSHOUSE_DATA")
	if dataDir == "" {
		dataDir = "/var/lib/glasshouse"
	}
	bin, err := backendtest.Find("./cmd/glasshouse", "./cmd/glasshouse-init", "./cmd/glasshouse-agent")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "glasshouse-debian-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chmod(dir, 0o711), shareImages(dataDir, dir)); err != nil {
		return "", err
	}
	cmd := exec.Command(bin, "rootfs", "prepare", "debian:bookworm")
	cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make a Debian tree: %w\n%s", err, out)
	}
	return dataDir, nil
})

// shareImages makes the daemon of a data directory use the images of another, which two daemons
// may share.
func shareImages(dataDir, data string) error {
	images := filepath.Join(dataDir, "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		return err
	}
	return os.Symlink(images, filepath.Join(data, "images"))
}

// TestPlacesExample runs the documented example and checks each of its parts: the skill,
// the capability, the sandbox, the proxy, the secret, the result and the audit log.
func TestPlacesExample(t *testing.T) {
	dataDir, key := debian(t), "AIza"+strings.Repeat("k3y", 11)+"42"
	bin := backendtest.Program(t)
	work := shortTemp(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../examples/places/run.sh")
	cmd.Env = append(os.Environ(), "GLASSHOUSE="+bin, "GLASSHOUSE_DATA="+dataDir, "PLACES_KEY="+key, "TMPDIR="+work, "COLUMNS=100000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil {
		t.Fatalf("the example failed: %v\n%s", err, out)
	}
	at := 0
	for _, station := range []struct{ what, says string }{
		{"the secret is kept", "GOOGLE_PLACES_API_KEY  local     never"},
		{"a person is asked", "has the secret GOOGLE_PLACES_API_KEY put into requests to places.googleapis.com"},
		{"the skill is rendered, with its tools", "`places.search` is the tool `places__search`"},
		{"what needs no sandbox is called", `"location":{"lat":51.5137,"lng":-0.1366}`},
		{"the result", `{"place_id":"p1","name":"The Glass Cup","address":"1 Greek Street, London","rating":4.7,"open_now":true}`},
		{"the key came to the server", "POST https://places.googleapis.com/v1/places:searchText with a key that is good"},
		{"nobody found it", `"found":[]`},
		{"its echo is masked", `X-Goog-Api-Key\":[\"` + strings.Repeat("*", len(key)) + `\"]`},
		{"another host was refused to the maliciousManifest", "Tunnel connection failed: 403"},
		{"the sandbox in the chain", `"sandbox":"j-`},
		{"the grant in the chain", "secret.granted"},
		{"the use in the chain", "secret.used"},
		{"the request in the chain", "request POST places.googleapis.com:443/v1/places:searchText 200"},
		{"the refusal in the chain", "collect.example:443: refused"},
		{"the audit log is intact", "the audit log is intact"},
	} {
		i := strings.Index(out[at:], station.says)
		if i < 0 {
			t.Fatalf("%s: output lacks %q in\n%s", station.what, station.says, out)
		}
		at += i
	}
	if strings.Contains(out, key) {
		t.Errorf("the output contains the key:\n%s", out)
	}
	left, err := os.ReadDir(work)
	if err != nil || len(left) > 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
	if !within(30*time.Second, func() bool { return !loopOf(work) }) {
		t.Errorf("a loop device of a file in %s is left", work)
	}
}

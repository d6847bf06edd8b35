package test_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/jail/backend/backendtest"
)

// A podman is podman with its own storage, which is removed at the end of the test.
type podman struct {
	*testing.T
	args []string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip(err)
	}
	dir := shortTemp(t)
	e := &podman{t, []string{
		"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc",
	}}
	t.Cleanup(func() {
		e.try("rm", "--all", "--force", "--time", "30")
		e.try("volume", "rm", "--all", "--force")
		e.try("rmi", "--all", "--force")
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(mounts)) { // podman mounts its storage
			if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
				if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
					t.Errorf("unmount %s: %v", at, err)
				}
			}
		}
	})
	return e
}

func (e *podman) try(args ...string) (string, error) {
	cmd := exec.Command("podman", append(e.args[:len(e.args):len(e.args)], args...)...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (e *podman) do(args ...string) string {
	e.Helper()
	out, err := e.try(args...)
	if err != nil {
		e.Fatalf("podman %q: %v\n%s", args, err, out)
	}
	return out
}

// documented returns the command of docs/how-to/install.md with this prefix, without its
// host-specific arguments.
func documented(t *testing.T, begin string) []string {
	t.Helper()
	page, err := os.ReadFile("../docs/how-to/install.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^    ` + regexp.QuoteMeta(begin) + `((?:.*\\\n)*.*)$`).FindSubmatch(page)
	if found == nil {
		t.Fatalf("docs/how-to/install.md has no %q", begin)
	}
	var args []string
	text := strings.ReplaceAll(string(found[1]), "\\\n", " ")
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(text, -1) {
		args = append(args, strings.Trim(w, "'"))
	}
	return args
}

// Podman executes the commands of docs/how-to/install.md.
func TestPodmanRunsImageAsDocumented(t *testing.T) {
	args := base(t)
	e := newPodman(t)
	bin := backendtest.Program(t)
	archive, digest := imaged(t, bin, args...)

	load := documented(t, "podman load")
	if len(load) != 2 || load[0] != "-i" {
		t.Fatalf("documented load command = %q", load)
	}
	if out := e.do("load", "-i", archive); !strings.Contains(out, "glasshouse:1.0") {
		t.Errorf("podman load printed %s", out)
	}
	var images []struct{ Digest string }
	if err := json.Unmarshal([]byte(e.do("images", "--format", "json")), &images); err != nil || len(images) != 1 || images[0].Digest != digest {
		t.Errorf("podman images = %+v, %v; want %s", images, err, digest)
	}

	// Use the documented command, except for what differs on this host: a free port, an existing
	// root filesystem, and limits that root may be unable to raise.
	settings := t.TempDir()
	if err := os.WriteFile(filepath.Join(settings, "glasshouse.yaml"), []byte("listen: ''\nrootfs: {default: {dir: /srv/tree}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := []string{"run", "-v", settings + "/glasshouse.yaml:/etc/glasshouse.yaml", "-v", backendtest.Rootfs(t) + ":/srv/tree:ro"}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	most := strconv.FormatUint(files.Max, 10)
	run = append(run, "--ulimit", "nofile="+most+":"+most, "--ulimit", "nproc=16384:16384")
	for _, a := range documented(t, "podman run") {
		if name, ok := strings.CutSuffix(a, ":VERSION"); ok {
			a = name + ":1.0"
		}
		run = append(run, a)
	}
	if _, err := os.Stat("/run/systemd/private"); err != nil { // podman schedules health checks with systemd
		for i, a := range run {
			if a == "--health-cmd" {
				run = append(run[:i:i], run[i+2:]...)
				break
			}
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		run = append(run[:1:1], append([]string{"-v", "/sys/fs/cgroup:/sys/fs/cgroup"}, run[1:]...)...)
	}
	e.do(append(run, "serve", "--stop-jails", "--config", "/etc/glasshouse.yaml")...)
	within := func(what string, ok func() bool) {
		t.Helper()
		if !within(60*time.Second, ok) {
			logs, _ := e.try("logs", "glasshouse")
			t.Fatalf("timed out after a minute: %s\n%s", what, logs)
		}
	}
	healthy := func() bool {
		_, err := e.try("exec", "glasshouse", "/usr/bin/glasshouse", "health")
		return err == nil
	}
	within("healthy", healthy)
	for _, line := range strings.Split(e.do("exec", "glasshouse", "glasshouse", "doctor"), "\n") {
		for _, what := range []string{"overlay with idmapped layers", "cgroup limits", "cgroup freeze", "sized disks", "network namespaces", "runc"} {
			if strings.HasPrefix(line, "no  "+what) {
				t.Errorf("doctor: %s", line)
			}
		}
	}
	try := documented(t, "docker exec -it glasshouse glasshouse run")
	out := e.do(append(append([]string{"exec", "glasshouse", "glasshouse", "run"}, try[:len(try)-1]...), "sh", "-c", "echo $((6*7))")...)
	if !slices.Contains(strings.Split(out, "\n"), "42") {
		t.Errorf("run printed %q, want 42", out)
	}
	e.do("exec", "glasshouse", "glasshouse", "jail", "create", "--name", "kept", "--start")
	e.do("exec", "glasshouse", "glasshouse", "jail", "exec", "kept", "--", "sh", "-c", "echo here > /tmp/x")

	// Stop and start the container with podman; its data is kept.
	began := time.Now()
	e.do("stop", "glasshouse")
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("the container stopped after %v, want an orderly stop in 25 s", took)
	}
	if code := e.do("inspect", "glasshouse", "--format", "{{.State.ExitCode}}"); code != "0" {
		t.Errorf("exit code %s, want 0", code)
	}
	if logs := e.do("logs", "glasshouse"); !strings.Contains(logs, "with all jails") {
		t.Errorf("the log does not report the stop of all jails:\n%s", logs)
	}
	e.do("start", "glasshouse")
	within("healthy again", healthy)
	e.do("exec", "glasshouse", "glasshouse", "jail", "start", "kept")
	if out := e.do("exec", "glasshouse", "glasshouse", "jail", "exec", "kept", "--", "cat", "/tmp/x"); out != "here" {
		t.Errorf("the restarted jail printed %q, want here", out)
	}
	e.do("exec", "glasshouse", "glasshouse", "jail", "rm", "kept")
	e.do("stop", "glasshouse")
}

// Registry tools find an image for each processor architecture in the archive.
func TestSkopeoFindsImageOfEachArchitecture(t *testing.T) {
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	var binaries []string
	for _, arch := range []string{"amd64", "arm64"} {
		out := filepath.Join(dir, arch)
		cmd := exec.Command("go", "build", "-o", out, "glasshouse/cmd/glasshouse-init")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, msg)
		}
		binaries = append(binaries, out)
	}
	tree := filepath.Join(dir, "tree.tar")
	if out, err := exec.Command("tar", "-C", t.TempDir(), "-cf", tree, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	archive, digest := imaged(t, binaries[1], "-root", tree, binaries[0]) // flags first, then both programs
	if filepath.Base(archive) != "glasshouse_1.0_amd64-arm64.oci.tar" {
		t.Errorf("archive name = %s", archive)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		out, err := exec.Command("skopeo", "--override-os", "linux", "--override-arch", arch, "inspect", "oci-archive:"+archive).CombinedOutput()
		var got struct{ Architecture, Digest string }
		if err != nil || json.Unmarshal(out, &got) != nil || got.Architecture != arch {
			t.Errorf("for %s: got %+v, %v: %s", arch, got, err, out)
		}
	}
	to := filepath.Join(dir, "copy")
	if out, err := exec.Command("skopeo", "copy", "--all", "--preserve-digests", "oci-archive:"+archive, "oci:"+to+":1.0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if raw, err := os.ReadFile(filepath.Join(to, "blobs", strings.Replace(digest, ":", "/", 1))); err != nil || !strings.Contains(string(raw), `"arm64"`) {
		t.Errorf("the copy lacks the index %s: %v, %s", digest, err, raw)
	}
	// Docker's manifest list has the image for clients without OCI index support.
	out, err := exec.Command("skopeo", "inspect", "docker-archive:"+archive).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"Architecture": "amd64"`) {
		t.Errorf("Docker manifest: %v, %s", err, out)
	}
}

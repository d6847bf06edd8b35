package test_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"glasshouse/api/wire"
	"glasshouse/host/cgroup"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
)

// TestJailsOutliveContainer runs the daemon of a container on the host, which is this process with
// its namespaces. The container engine kills all processes of the container, and a second
// container continues.
func TestJailsOutliveContainer(t *testing.T) {
	args := base(t)
	archive, _ := imaged(t, backendtest.Program(t), args...)
	image, root := unpackImage(t, archive)
	volume := t.TempDir()
	if err := os.Chmod(filepath.Dir(volume), 0o711); err != nil { // the daemon would require it
		t.Fatal(err)
	}
	settings := fmt.Sprintf("/run/glasshouse-test-%d", os.Getpid())
	t.Cleanup(func() { os.RemoveAll(settings) })
	mounted := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(mounted, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config := fmt.Sprintf("data: %s\nlisten: ''\nrootfs: {default: {dir: %s}}\n", volume, backendtest.Rootfs(t))
	write("config.yaml", config)
	write("old", "a setting")
	start := func() *container {
		return onHost(t, image, root, volume, mounted, settings)
	}
	t.Cleanup(func() { removeDaemonCgroups(t) })
	first := start()
	first.checkHost(volume)
	j := first.try("isolated")
	count := func(c *container) int {
		t.Helper()
		h := &daemonHarness{T: t, Client: c.Client}
		n, err := strconv.Atoi(h.sh(j.ID, "cat /tmp/count"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	h := &daemonHarness{T: t, Client: first.Client}
	h.sh(j.ID, "(trap '' HUP; "+counter+") >/dev/null 2>&1 & sleep 0.5")
	before := count(first)
	if out, err := first.runc("kill", "--all", first.name, "KILL"); err != nil {
		t.Logf("runc kill --all: %v: %s", err, out) // some versions need a PID namespace for --all
	}
	if err := first.stop(syscall.SIGKILL); err == nil {
		t.Error("the killed container has ended with exit code 0")
	}
	write("config.yaml", config+"log: {level: debug}\n")
	if err := os.Rename(filepath.Join(mounted, "old"), filepath.Join(mounted, "new")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	second := start()
	got, err := second.Jail(t.Context(), j.ID)
	if err != nil || got.State != "running" {
		t.Fatalf("the jail of the killed container is %+v, %v; want it running", got, err)
	}
	if after := count(second); after < before+5 {
		t.Errorf("the process in the jail has counted to %d, and to %d before the container was killed", after, before)
	}
	copied, err := os.ReadFile(filepath.Join(settings, "config.yaml"))
	if err != nil || !strings.HasSuffix(string(copied), "debug}\n") {
		t.Errorf("settings on the host = %q, %v; want the changed ones", copied, err)
	}
	if _, err := os.Stat(filepath.Join(settings, "old")); err == nil {
		t.Error("a removed setting is still on the host")
	}
	if err := second.DeleteJail(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
	second.checkNew()
	if err := second.stop(syscall.SIGTERM); err != nil {
		t.Errorf("the container has ended with %v, want exit code 0\n%s", err, &second.log)
	}
	if sets, err := filepath.Glob(filepath.Join(volume, "host", "*", "bin", "glasshouse")); err != nil || len(sets) != 2 { // and the link to it
		t.Errorf("programs on the host = %q, %v", sets, err)
	}
}

// onHost starts a container whose daemon runs on the host.
func onHost(t *testing.T, image v1.Image, root, volume, mounted, settings string) *container {
	t.Helper()
	return contain(t, image, root, volume, func(s *specs.Spec) {
		s.Process.Args = []string{"/usr/bin/glasshouse", "serve", "--host=" + strconv.Itoa(os.Getpid()), "--config", settings + "/config.yaml"}
		s.Hostname = "pod"
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/run", Type: "tmpfs", Source: "tmpfs"},
			specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
			specs.Mount{Destination: settings, Type: "bind", Source: mounted, Options: []string{"bind", "ro"}})
	})
}

// checkHost checks that the daemon is in no namespace and cgroup of the container.
func (c *container) checkHost(volume string) {
	c.Helper()
	out, err := c.runc("state", c.name)
	if err != nil {
		c.Fatalf("runc state: %v: %s", err, out)
	}
	_, rest, _ := strings.Cut(out, `"pid": `)
	pid, _, _ := strings.Cut(rest, ",")
	for _, ns := range []string{"mnt", "cgroup", "ipc", "uts", "net", "pid"} {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			c.Fatal(err)
		}
		if got, err := os.Readlink("/proc/" + pid + "/ns/" + ns); err != nil || got != own {
			c.Errorf("the daemon has namespace %s, %v; want %s of the host", got, err, own)
		}
	}
	groups, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		c.Fatal(err)
	}
	if strings.Contains(string(groups), c.name) {
		c.Errorf("the daemon is in a cgroup of its container:\n%s", groups)
	}
	if exe, err := os.Readlink("/proc/" + pid + "/exe"); err != nil || !strings.HasPrefix(exe, volume+"/host/") {
		c.Errorf("the daemon executes %s, %v; want a copy on the host", exe, err)
	}
}

// checkNew creates and deletes a jail.
func (c *container) checkNew() {
	c.Helper()
	j, err := c.CreateJail(c.Context(), wire.CreateJail{Start: true})
	if err != nil {
		c.Fatal(err)
	}
	h := &daemonHarness{T: c.T, Client: c.Client}
	if got := h.sh(id.Jail(j.ID), "echo new"); got != "new" {
		c.Errorf("a command in a new jail printed %q", got)
	}
	if err := c.DeleteJail(c.Context(), j.ID); err != nil {
		c.Error(err)
	}
}

// removeDaemonCgroups removes the cgroups of daemons that came from containers.
func removeDaemonCgroups(t *testing.T) {
	tree, err := cgroup.New("daemon.glasshouse")
	if err != nil {
		t.Error(err)
		return
	}
	names, err := tree.List()
	if err != nil {
		t.Error(err)
	}
	for _, name := range names {
		g, err := tree.Open(name)
		if err != nil {
			continue
		}
		if busy, err := g.Populated(); err != nil || busy {
			t.Errorf("cgroup %s of a daemon has processes, %v", name, err)
			continue
		}
		if err := tree.Destroy(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if err := tree.Remove(); err != nil {
		t.Error(err)
	}
}

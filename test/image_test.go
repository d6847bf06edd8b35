package test_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/jail/backend/backendtest"
)

// imaged builds a container image and returns its path and digest.
func imaged(t *testing.T, bin string, args ...string) (archive, digest string) {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"run", "./packaging/image", "-version", "1.0"}, args...), bin, t.TempDir())...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && strings.Contains(stderr.String(), "apt-get update") {
		t.Skipf("no Debian mirror is reachable: %s", &stderr)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	archive, digest, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if !ok {
		t.Fatalf("the image builder printed %q", out)
	}
	return archive, digest
}

// smallTree returns a tar file of the parts of Debian that jails need, taken from this host.
func smallTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("cp", "-a", backendtest.Rootfs(t)+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, tool := range []string{"runc", "mkfs.ext4", "patchelf"} {
		src, err := exec.LookPath(tool)
		if err != nil {
			t.Skip(err)
		}
		files := []string{src}
		out, _ := exec.Command("ldd", src).Output()
		for field := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(field, "/") {
				files = append(files, field)
			}
		}
		for i, file := range files {
			to := filepath.Join(dir, file)
			if i == 0 {
				to = filepath.Join(dir, "usr/bin", tool)
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("cp", "-L", file, to).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	name := filepath.Join(t.TempDir(), "root.tar")
	if out, err := exec.Command("tar", "-C", dir, "--sort=name", "--numeric-owner", "-cf", name, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return name
}

// unpackImage reads an image archive as a client that pulls it does, and unpacks its layers.
func unpackImage(t *testing.T, archive string) (v1.Image, string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-C", dir, "-xf", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("index = %+v, %v; want one image", list, err)
	}
	image, err := index.Image(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Errorf("the image is invalid: %v", err)
	}

	// Docker's manifest has the same content.
	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err == nil {
		err = json.Unmarshal(data, &docker)
	}
	if err != nil || len(docker) != 1 {
		t.Fatalf("manifest.json: %s, %v", data, err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	var layers []string
	for _, l := range manifest.Layers {
		layers = append(layers, "blobs/sha256/"+l.Digest.Hex)
	}
	if d := docker[0]; d.Config != "blobs/sha256/"+manifest.Config.Digest.Hex || !slices.Equal(d.Layers, layers) || !slices.Equal(d.RepoTags, []string{"glasshouse:1.0"}) {
		t.Errorf("Docker manifest = %+v", d)
	}

	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	tree := mutate.Extract(image)
	defer tree.Close()
	untar := exec.Command("tar", "-C", root, "--numeric-owner", "-xpf", "-")
	untar.Stdin = tree
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return image, root
}

// A container runs the image as docs/how-to/install.md describes: with all privileges, and with the
// host's PID and network namespaces, cgroups and devices.
type container struct {
	*testing.T
	dir, name string
	cmd       *exec.Cmd
	log       bytes.Buffer
	*client.Client
}

// contain starts a container with a data directory in the volume.
func contain(t *testing.T, image v1.Image, root, volume string, change func(*specs.Spec)) *container {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := os.MkdirTemp("", "gh-tree-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(tree) })
	var caps []string
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) { // the capabilities that this host can pass on
		if hex, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			var set uint64
			fmt.Sscanf(strings.TrimSpace(hex), "%x", &set)
			for i, name := range capabilities {
				if set&(1<<i) != 0 {
					caps = append(caps, "CAP_"+name)
				}
			}
		}
	}
	c := &container{T: t, dir: t.TempDir(), name: "gh-image-" + strings.ToLower(rand.Text()[:8])}
	data := slices.Sorted(func(yield func(string) bool) {
		for v := range config.Config.Volumes {
			yield(v)
		}
	})[0]
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: root},
		Process: &specs.Process{
			Args: append(append(slices.Clone(config.Config.Entrypoint), config.Config.Cmd...), "--listen", "", "--config", "/srv/config.yaml"),
			Env:  config.Config.Env, Cwd: config.Config.WorkingDir,
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "rslave"}},
			{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"rbind", "rslave"}},
			{Destination: data, Type: "bind", Source: volume, Options: []string{"rbind"}},
			{Destination: "/srv", Type: "bind", Source: c.dir, Options: []string{"rbind"}},
			{Destination: "/srv/tree", Type: "bind", Source: backendtest.Rootfs(t), Options: []string{"rbind", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + c.name,
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
			Namespaces:  []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}},
		},
	}
	if change != nil {
		change(spec)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"config.json": text, "config.yaml": []byte("rootfs: {default: {dir: /srv/tree}}\n")} {
		if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(c.dir, "tree"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command("runc", "--root", filepath.Join(c.dir, "runc"), "run", "--bundle", c.dir, c.name)
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.stop(syscall.SIGKILL) })
	c.Client, err = client.New(client.Options{Addr: "unix://" + filepath.Join(volume, "glasshouse.sock")})
	if err != nil {
		t.Fatal(err)
	}
	if !within(60*time.Second, func() bool { return c.Ready(t.Context()) == nil }) {
		c.stop(syscall.SIGKILL)
		t.Fatalf("the daemon in the container is not ready:\n%s", &c.log)
	}
	return c
}

// runc runs a runc command for the container.
func (c *container) runc(args ...string) (string, error) {
	out, err := exec.Command("runc", append([]string{"--root", filepath.Join(c.dir, "runc")}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// stop ends the container with a signal and returns its exit error.
func (c *container) stop(with syscall.Signal) error {
	c.Helper()
	if c.cmd == nil {
		return nil
	}
	c.runc("kill", c.name, fmt.Sprint(int(with)))
	err := c.cmd.Wait()
	c.cmd = nil
	c.runc("delete", "--force", c.name)
	return err
}

// capabilities are the kernel's capability names, by number.
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
	NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
	SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
	MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// try creates a jail, runs a recorded command in it, and returns the jail.
func (c *container) try(network string) wire.Jail {
	c.Helper()
	h := &daemonHarness{T: c.T, Client: c.Client}
	j := h.running(wire.CreateJail{Name: "contained", Network: network})
	if got := h.sh(j.ID, "echo $((6 * 7)) > /tmp/x; cat /tmp/x; id -u"); got != "42\n0" {
		c.Errorf("command printed %q", got)
	}
	// The event log has the command, with the PIDs of the jail.
	seen := false
	if !within(30*time.Second, func() bool {
		for r, err := range c.Events(c.Context(), j.ID, client.EventQuery{Filter: "type:proc op:exec"}) {
			var e wire.Event
			if err != nil || json.Unmarshal(r.JSON, &e) != nil {
				c.Fatalf("events: %v, %s", err, r.JSON)
			}
			seen = seen || filepath.Base(e.Exe) == "id" && e.PID > 1 && e.PID < 1000
		}
		return seen
	}) {
		c.Errorf("the event log lacks the command")
	}
	return j
}

// base returns the arguments for the base of the image: Debian, which takes minutes, or the
// parts of it that jails need.
func base(t *testing.T) (args []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a container with all privileges needs root")
	}
	needed := "runc"
	if thorough {
		needed = "mmdebstrap"
	}
	if _, err := exec.LookPath(needed); err != nil {
		t.Skip(err)
	}
	if thorough {
		return nil
	}
	return []string{"-root", smallTree(t)}
}

func TestContainerImageIsReproducible(t *testing.T) {
	args := base(t)
	bin := backendtest.Program(t)
	if !thorough {
		bin = filepath.Join(filepath.Dir(bin), "glasshouse-init") // a small program is sufficient
	}
	archive, digest := imaged(t, bin, args...)
	again, same := imaged(t, bin, args...)
	if digest != same {
		t.Errorf("second build has digest %s, want %s", same, digest)
	}
	if err := exec.Command("cmp", archive, again).Run(); err != nil {
		t.Errorf("the archive of the second build differs: %v", err)
	}
}

func TestContainerImageRunsJails(t *testing.T) {
	args := base(t)
	bin := backendtest.Program(t)
	archive, _ := imaged(t, bin, args...)
	image, root := unpackImage(t, archive)
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := file.Config
	if _, ok := c.Volumes["/var/lib/glasshouse"]; !ok || len(c.Volumes) != 1 {
		t.Errorf("volumes = %v", c.Volumes)
	}
	if _, ok := c.ExposedPorts["8082/tcp"]; !ok || len(c.ExposedPorts) != 1 {
		t.Errorf("ports = %v", c.ExposedPorts)
	}
	if c.Labels["org.opencontainers.image.version"] != "1.0" || c.Labels["org.opencontainers.image.created"] != "2023-11-14T22:13:20Z" || c.Labels["org.opencontainers.image.licenses"] != "" {
		t.Errorf("labels = %v", c.Labels)
	}
	if c.Healthcheck == nil || len(c.Healthcheck.Test) < 2 || c.Healthcheck.Test[0] != "CMD" {
		t.Fatalf("health check = %+v", c.Healthcheck)
	}
	if !file.Created.Equal(time.Unix(1700000000, 0)) || len(file.History) != 2 || len(file.RootFS.DiffIDs) != 2 {
		t.Errorf("created %v, with %d layers and history %v", file.Created, len(file.RootFS.DiffIDs), file.History)
	}
	for _, name := range []string{"usr/bin/glasshouse", "usr/share/glasshouse/setup.sh", "usr/share/doc/glasshouse/copyright"} {
		if fi, err := os.Stat(filepath.Join(root, name)); err != nil || !fi.ModTime().Equal(time.Unix(1700000000, 0)) {
			t.Errorf("%s: %+v, %v", name, fi, err)
		}
	}

	// Two containers, each with a volume at the same path.
	cgroups := map[string]bool{}
	var both [2]*container
	var volumes [2]string
	var jails [2]wire.Jail
	for i := range both {
		volumes[i] = shortTemp(t)
		both[i] = contain(t, image, root, volumes[i], nil)
		jails[i] = both[i].try([]string{"isolated", "full"}[i])
		name, err := os.ReadFile(filepath.Join(volumes[i], "cgroup"))
		if err != nil {
			t.Fatal(err)
		}
		cgroups[strings.TrimSpace(string(name))] = true
	}
	if len(cgroups) != 2 {
		t.Errorf("cgroups = %v, want two", cgroups)
	}
	for i, c := range both {
		h := &daemonHarness{T: t, Client: c.Client}
		if got := h.sh(jails[i].ID, "cat /tmp/x"); got != "42" {
			t.Errorf("with another daemon on the host, the jail printed %q", got)
		}
	}
	if out, err := both[0].runc(append([]string{"exec", both[0].name}, c.Healthcheck.Test[1:]...)...); err != nil {
		t.Errorf("health check: %v, %s", err, out)
	}

	t.Run("ItsOwnProcesses", func(t *testing.T) { inPIDNamespace(t, image, root) })
	if thorough {
		withFewer(t, image, root)
	}

	// Stop a container as engines do, and start another on the same volume.
	if err := both[0].stop(syscall.SIGTERM); err != nil {
		t.Errorf("the container exited: %v:\n%s", err, &both[0].log)
	}
	if !strings.Contains(both[0].log.String(), "with all jails") {
		t.Errorf("the log does not report the stop of all jails:\n%s", &both[0].log)
	}
	c0 := contain(t, image, root, volumes[0], nil)
	j, err := c0.Jail(t.Context(), jails[0].ID)
	if err != nil || j.State != "stopped" {
		t.Fatalf("jail after a container stop = %s, %v, want stopped", j.State, err)
	}
	if _, err := c0.StartJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if got := (&daemonHarness{T: t, Client: c0.Client}).sh(j.ID, "cat /tmp/x"); got != "42" {
		t.Errorf("the restarted jail printed %q", got)
	}

	// A killed container leaves its jails running; the next container ends them.
	both[1].stop(syscall.SIGKILL)
	c1 := contain(t, image, root, volumes[1], nil)

	for i, c := range []*container{c0, c1} {
		if err := c.DeleteJail(t.Context(), jails[i].ID); err != nil {
			t.Error(err)
		}
		if err := c.stop(syscall.SIGTERM); err != nil {
			t.Errorf("the container exited: %v:\n%s", err, &c.log)
		}
	}
	for name := range cgroups {
		for _, under := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			if left, _ := filepath.Glob(under + name + "*"); len(left) > 0 {
				t.Errorf("left on the host: %q", left)
			}
		}
	}
	for _, j := range jails { // a process that another suite starts has a copy of all mounts for a moment
		if !within(30*time.Second, func() bool { return !loopOf(string(j.ID)) }) {
			t.Errorf("a loop device of %s is left", j.ID)
		}
	}
}

// inPIDNamespace runs the image in a PID namespace, in which the daemon is process 1, and in
// a network namespace.
func inPIDNamespace(t *testing.T, image v1.Image, root string) {
	volume := shortTemp(t)
	c := contain(t, image, root, volume, func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace}, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	})
	out, err := c.runc("state", c.name)
	var state struct{ Pid int }
	if err != nil || json.Unmarshal([]byte(out), &state) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	j := c.try("isolated")
	if err := c.DeleteJail(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
	if !within(30*time.Second, func() bool { return len(zombiesOf(t, state.Pid)) == 0 }) {
		t.Errorf("zombies left: %q", zombiesOf(t, state.Pid))
	}
	j = c.try("isolated")
	if err := c.stop(syscall.SIGTERM); err != nil || !strings.Contains(c.log.String(), "with all jails") {
		t.Errorf("the container exited: %v:\n%s", err, &c.log)
	}
	c = contain(t, image, root, volume, nil) // with its previous data, in the host's PID namespace
	if again, err := c.Jail(t.Context(), j.ID); err != nil || again.State != "stopped" {
		t.Errorf("jail after a container stop = %s, %v, want stopped", again.State, err)
	}
	if err := c.DeleteJail(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
	if err := c.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// zombiesOf returns the zombies among the descendants of parent that only their parent can reap.
func zombiesOf(t *testing.T, parent int) []string {
	t.Helper()
	var all []string
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // it has exited in the meantime
		}
		var state string
		var ppid int
		fmt.Sscan(string(data[bytes.LastIndexByte(data, ')')+1:]), &state, &ppid)
		if state == "Z" && ppid == parent {
			all = append(all, strings.TrimSpace(string(data)))
		}
	}
	return all
}

// withFewer checks the statements in docs/how-to/install.md about containers with fewer privileges.
func withFewer(t *testing.T, image v1.Image, root string) {
	for _, w := range []struct {
		without string // dropped capabilities
		jails   bool
	}{
		{"BPF PERFMON", true}, // CAP_SYS_ADMIN includes both (capabilities(7))
		{"SYS_RESOURCE", true},
		{"SYS_MODULE SYS_TIME SYS_BOOT SYS_RAWIO SYS_PACCT WAKE_ALARM MAC_ADMIN MAC_OVERRIDE LINUX_IMMUTABLE AUDIT_CONTROL AUDIT_READ BLOCK_SUSPEND LEASE", true},
		{"NET_ADMIN", false}, {"SYS_PTRACE", false}, {"MKNOD", false},
	} {
		t.Run("Without/"+strings.ReplaceAll(w.without, " ", ","), func(t *testing.T) {
			dropped := strings.Fields(w.without)
			c := contain(t, image, root, shortTemp(t), func(s *specs.Spec) {
				has := s.Process.Capabilities
				for _, set := range []*[]string{&has.Bounding, &has.Effective, &has.Permitted} {
					*set = slices.DeleteFunc(slices.Clone(*set), func(name string) bool {
						return slices.Contains(dropped, strings.TrimPrefix(name, "CAP_"))
					})
				}
			})
			j, err := c.CreateJail(t.Context(), wire.CreateJail{})
			if err == nil {
				_, err = c.StartJail(t.Context(), j.ID)
			}
			if (err == nil) != w.jails {
				t.Errorf("jails work: %t, %v", err == nil, err)
			}
			if j.ID != "" {
				if err := c.DeleteJail(t.Context(), j.ID); err != nil {
					t.Error(err)
				}
			}
			c.stop(syscall.SIGTERM)
		})
	}
}

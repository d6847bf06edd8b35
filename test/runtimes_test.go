package test_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// read returns the content of a file of a jail.
func (h *daemonHarness) read(j id.Jail, path string) string {
	h.Helper()
	r, err := h.ReadFile(h.Context(), j, path, 0, -1)
	if err != nil {
		h.Errorf("read %s: %v", path, err)
		return ""
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		h.Errorf("read %s: %v", path, err)
	}
	return string(data)
}

// changed returns the changes in a jail's root, one per line.
func (h *daemonHarness) changed(j id.Jail) string {
	h.Helper()
	changes, err := client.Collect(h.Changes(h.Context(), j, client.ChangesOptions{}))
	if err != nil {
		h.Errorf("changes: %v", err)
	}
	var lines strings.Builder
	for _, c := range changes {
		lines.WriteString(c.Kind + " " + c.Path + "\n")
	}
	return lines.String()
}

// tools makes the daemon use the private tools of this host, where make setup installs programs
// that the distribution lacks.
func tools() string {
	dir := os.Getenv("GLASSHOUSE_DATA")
	if dir == "" {
		dir = "/var/lib/glasshouse"
	}
	return "tools: " + filepath.Join(dir, "tools/bin") + "\n"
}

func TestJailLifecycleOnEachRuntime(t *testing.T) {
	h := open(t, tools())
	usable := map[string]wire.Backend{}
	for b, err := range h.Backends(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		usable[b.Name+" "+b.Runtime] = b
	}
	for _, c := range []wire.CreateJail{
		{Backend: "oci", Runtime: "runc"}, {Backend: "oci", Runtime: "crun"}, {Backend: "oci", Runtime: "runsc"}, {Backend: "bwrap"},
	} {
		name := c.Backend + " " + c.Runtime
		t.Run(strings.TrimSpace(name), func(t *testing.T) {
			h := *h
			h.T = t
			ctx := t.Context()
			if b := usable[name]; !b.Usable {
				if b.Reason == "" || b.Remedy == "" {
					t.Errorf("unusable backend has reason %q, remedy %q; want both", b.Reason, b.Remedy)
				}
				if _, err := h.CreateJail(ctx, c); !errors.Is(err, fault.Unsupported) {
					t.Errorf("CreateJail = %v, want unsupported", err)
				}
				t.Skip(b.Reason)
			}
			h.life(c)
		})
	}
}

// life tests the operations that all backends support.
func (h *daemonHarness) life(req wire.CreateJail) {
	ctx := h.Context()
	req.Env, req.Limits = map[string]string{"WORD": "of the jail"}, wire.Limits{MemoryMB: 256, DiskMB: 64}
	j, err := h.CreateJail(ctx, req)
	if err != nil {
		h.Fatal(err)
	}
	if j.State != "created" || j.Backend != req.Backend || j.Runtime != req.Runtime {
		h.Errorf("created jail = %+v", j)
	}
	if _, err := h.Exec(ctx, j.ID, wire.ExecRequest{Cmd: "true"}); !errors.Is(err, fault.Conflict) {
		h.Errorf("exec before start: got %v, want conflict", err)
	}
	j, err = h.StartJail(ctx, j.ID)
	if err != nil {
		h.Fatal(err)
	}
	if got := h.sh(j.ID, "echo $WORD; id -u; hostname 2>/dev/null || cat /etc/hostname"); got != "of the jail\n0\n"+string(j.ID) {
		h.Errorf("environment in the jail: got %q", got)
	}
	x, err := h.Exec(ctx, j.ID, wire.ExecRequest{Argv: []string{"sh", "-c", "cat; echo err >&2; exit 5"}, Stdin: "typed"})
	if err != nil || x.Stdout != "typed" || x.Stderr != "err\n" || x.ExitCode == nil || *x.ExitCode != 5 {
		h.Errorf("exec: got %+v, %v", x, err)
	}
	if x, err := h.Exec(ctx, j.ID, wire.ExecRequest{Cmd: "sleep 100", TimeoutMS: 200}); err != nil || !x.TimedOut {
		h.Errorf("exec with a timeout: got %+v, %v", x, err)
	}
	if _, err := h.WriteFile(ctx, j.ID, "/root/put", strings.NewReader("from outside"), client.WriteOptions{}); err != nil {
		h.Error(err)
	}
	if got := h.sh(j.ID, "cat /root/put; echo made > /root/made; rm /etc/group; echo >> /etc/passwd"); got != "from outside" {
		h.Errorf("uploaded file: got %q", got)
	}

	before := h.ticking(j.ID)
	if p, err := h.PauseJail(ctx, j.ID); err != nil || p.State != "paused" {
		h.Errorf("pause: got %s, %v", p.State, err)
	} else if _, err := h.Exec(ctx, j.ID, wire.ExecRequest{Cmd: "true"}); !errors.Is(err, fault.Conflict) {
		h.Errorf("exec while paused: got %v, want conflict", err)
	}
	if p, err := h.ResumeJail(ctx, j.ID); err != nil || p.State != "running" {
		h.Errorf("resume: got %s, %v", p.State, err)
	}
	if !within(30*time.Second, func() bool { return h.ticking(j.ID) != before }) {
		h.Errorf("after resume the clock still shows %s", before)
	}
	got, err := h.Jail(ctx, j.ID)
	if err != nil || got.Usage == nil || got.Usage.DiskLimit != 64<<20 || got.Usage.MemoryBytes == 0 || got.Usage.PIDs == 0 && !slices.Contains(got.Usage.NotMeasured, "pids") {
		h.Errorf("usage: got %+v, %v", got.Usage, err)
	}

	const changed = "added /root/made\nadded /root/put\n"
	list := h.changed(j.ID)
	if s, err := h.StopJail(ctx, j.ID, 0); err != nil || s.State != "stopped" {
		h.Errorf("stop: got %s, %v", s.State, err)
	}
	for when, list := range map[string]string{"running": list, "stopped": h.changed(j.ID)} {
		if !strings.Contains(list, changed) || !strings.Contains(list, "deleted /etc/group\n") || !strings.Contains(list, "modified /etc/passwd\n") {
			h.Errorf("changes while %s:\n%s", when, list)
		}
	}
	if got := h.read(j.ID, "/root/made"); got != "made\n" {
		h.Errorf("file of a stopped jail: got %q", got)
	}
	if _, err := h.StartJail(ctx, j.ID); err != nil {
		h.Fatal(err)
	}
	if got := h.sh(j.ID, "cat /root/made; ls /etc/group 2>&1 | grep -c 'o such'"); got != "made\n1" {
		h.Errorf("after a restart: got %q", got)
	}
	if err := h.DeleteJail(ctx, j.ID); err != nil {
		h.Error(err)
	}
	if _, err := h.Jail(ctx, j.ID); !errors.Is(err, fault.NotFound) {
		h.Errorf("after delete: got %v, want not found", err)
	}
}

// ticking starts a clock in a jail if none runs, and reads it.
func (h *daemonHarness) ticking(j id.Jail) string {
	h.Helper()
	if _, err := h.Exec(h.Context(), j, wire.ExecRequest{Cmd: "mkdir /tmp/clock && while :; do n=$((n+1)); echo $n > /tmp/clock/new; mv /tmp/clock/new /tmp/clock/n; sleep 0.05; done", Detach: true}); err != nil {
		h.Fatal(err)
	}
	return h.sh(j, "until cat /tmp/clock/n 2>/dev/null; do sleep 0.05; done; sleep 0.1")
}

func TestMissingRuntimes(t *testing.T) {
	h := open(t, "")
	for _, c := range []struct {
		req   wire.CreateJail
		field string
	}{
		{wire.CreateJail{Runtime: "docker"}, "runtime"},
		{wire.CreateJail{Backend: "vm"}, "backend"},
		{wire.CreateJail{Backend: "bwrap", Runtime: "runc"}, "runtime"},
		{wire.CreateJail{Runtime: "../../bin/sh"}, "runtime"},
	} {
		_, err := h.CreateJail(t.Context(), c.req)
		if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != c.field {
			t.Errorf("%+v: got %v, field %q; want invalid %s", c.req, err, fault.FieldOf(err), c.field)
		}
	}

	// A daemon without the runtimes' programs reports what to install.
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	h.kill()
	h.start()
	for _, req := range []wire.CreateJail{{}, {Runtime: "crun"}, {Runtime: "runsc"}, {Backend: "bwrap"}} {
		_, err := h.CreateJail(t.Context(), req)
		if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
			t.Errorf("%+v without programs: %v, remedy %q; want unsupported with a remedy", req, err, fault.RemedyOf(err))
		}
	}
}

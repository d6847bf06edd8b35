package microvm_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
)

// TestStateThatCRIURefuses checks that a snapshot keeps state that CRIU refuses or loses. A jail can have
// some of it: a debugger with its tracee, connections that are not accepted, semaphores. An io_uring, a
// FUSE file system and namespaces are denied to jails of all backends, because they would bypass the
// observers or the limits of the jail, so another agent has the first two for the jail.
func TestStateThatCRIURefuses(t *testing.T) {
	backendtest.Repeats(t)
	h := newHost(t)
	var said bytes.Buffer
	h.log = slog.New(slog.NewTextHandler(&said, nil))
	var err error
	h.guest, err = backendtest.Find("./jail/backend/microvm/testguest")
	if err != nil {
		t.Fatal(err)
	}
	b := h.ready(t)
	p := h.plan(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()

	denied := map[string]string{
		"io_uring":           "probe calls | grep ^io-uring-setup= | grep -vx io-uring-setup=0",
		"FUSE":               "! mount -t fuse -o fd=3 none /mnt && ! test -e /dev/fuse",
		"a nested container": "! unshare -Urm true && ! unshare -m true && probe calls | grep ^clone-user= | grep -vx clone-user=0",
	}
	for what, script := range denied {
		output(t, i, "bash", "-c", "exec 3</dev/null 2>&1; "+script+" || { echo the filter allows "+what+"; exit 1; }")
	}

	rare := []string{"traced", "backlog", "semaphore"}
	output(t, i, "mkdir", "-m", "777", "/tmp/keep")
	for _, name := range rare {
		begin(t, i, fmt.Sprintf("probe keep %s > /tmp/keep/%[1]s.said 2>&1; echo $? > /tmp/keep/%[1]s.code", name))
		await(t, i, "test -e /tmp/keep/"+name+".held")
	}
	await(t, i, "test -p /tmp/ring.in")
	await(t, i, "test -e /tmp/fuse/number")
	begin(t, i, "echo before > /tmp/ring.in")
	await(t, i, "grep -qsx before /tmp/ring.out")
	begin(t, i, "cat /tmp/fuse/number /tmp/fuse/slow > /tmp/slow")
	await(t, i, "test -e /tmp/fuse.pending")

	freeze(t, i)
	if strings.Contains(said.String(), "does not answer") {
		t.Errorf("the pause waited for a process that waits for the FUSE file system: %s", &said)
	}
	dir := t.TempDir()
	if err := b.Dump(t.Context(), p, i, dir); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(dir, "layer.img")
	if err := copyLayer(t.Context(), b, p, layer); err != nil {
		t.Fatal(err)
	}
	q := h.plan(t, b)
	q.Sealed = []string{layer}
	branch, err := h.daemon().Restore(t.Context(), q, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer branch.Close()
	for where, i := range map[string]jail.Instance{"branch": branch, "original": i} {
		thaw(t, i)
		begin(t, i, "echo "+where+" > /tmp/ring.in; cat /tmp/fuse/number > /tmp/number")
		await(t, i, "grep -qx "+where+" /tmp/ring.out && grep -q at /tmp/slow")
		if got, want := output(t, i, "cat", "/tmp/ring.out", "/tmp/number", "/tmp/slow"), "before\n"+where+"\n2\n1\nanswered at 2\n"; got != want {
			t.Errorf("the %s says %q, want %q", where, got, want)
		}
		for _, name := range rare {
			begin(t, i, fmt.Sprintf("echo %s > /tmp/keep/%s.go", where, name))
			await(t, i, "test -s /tmp/keep/"+name+".code")
			if got := strings.TrimSpace(output(t, i, "cat", "/tmp/keep/"+name+".said", "/tmp/keep/"+name+".code")); got != "0" {
				t.Errorf("in the %s, the keeper of %s says %q, want 0", where, name, got)
			}
		}
	}
}

// await waits until a shell command in a jail succeeds.
func await(t *testing.T, i jail.Instance, command string) {
	t.Helper()
	output(t, i, "timeout", "60", "sh", "-c", "until "+command+"; do sleep 0.05; done")
}

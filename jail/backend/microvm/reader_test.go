package microvm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// readerOrder is the environment variable with the plan whose files a daemon in another process reads.
const readerOrder = "GLASSHOUSE_MICROVM_TEST_READER"

// stop ends a jail as Manager does.
func stop(t *testing.T, b *microvm.Backend, p jail.Plan, i jail.Instance) {
	t.Helper()
	if err := errors.Join(i.Kill(t.Context()), i.Close(), b.Clean(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
}

// serve returns the files of a stopped jail.
func serve(t *testing.T, b *microvm.Backend, p jail.Plan) (*control.Client, func() error) {
	t.Helper()
	socket, done, err := b.ServeFiles(t.Context(), p)
	if err != nil {
		t.Fatalf("ServeFiles: %v", err)
	}
	return control.Dial(socket), done
}

func read(t *testing.T, files *control.Client, name string) string {
	t.Helper()
	r, _, err := files.Read(t.Context(), name, 0, -1)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return string(data)
}

// list returns changes below /root.
func list(changes []jail.Change, err error) string {
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, c := range changes {
		all = append(all, c.Kind+" "+c.Path)
	}
	return strings.Join(all, ", ")
}

func TestFilesOfStoppedMachine(t *testing.T) {
	if text := os.Getenv(readerOrder); text != "" {
		dieReading(t, text)
		return
	}
	h := newHost(t)
	b := h.ready(t)
	ctx := t.Context()
	below := jail.ChangesOptions{Below: "/root", Text: true}
	p := h.plan(t, b)
	i, err := b.Create(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	output(t, i, "sh", "-c", "echo one > /root/a; echo old > /root/b")
	if got, want := list(b.Changes(ctx, p, below)), "added /root/a, added /root/b"; got != want {
		t.Errorf("changes of a running jail = %q, want %q", got, want)
	}
	// Paused: the machine is frozen and another one reads its disk.
	if err := i.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := list(b.Changes(ctx, p, below)), "added /root/a, added /root/b"; got != want {
		t.Errorf("changes of a paused jail = %q, want %q", got, want)
	}
	if err := i.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	output(t, i, "sh", "-c", "rm /root/b; echo two >> /root/a")
	stop(t, b, p, i)

	disk := h.disk(p)
	before, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := b.Changes(ctx, p, below)
	if got, want := list(changes, err), "added /root/a"; got != want {
		t.Fatalf("changes of a stopped jail = %q, want %q", got, want)
	}
	if !strings.Contains(changes[0].Diff, "+one\n+two\n") {
		t.Errorf("text of the change = %q", changes[0].Diff)
	}
	if after, err := os.ReadFile(disk); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the list of changes has written to the disk of the jail, %v", err)
	}

	t.Run("kept-and-ended", func(t *testing.T) {
		files, done := serve(t, b, p)
		if got := read(t, files, "/root/a"); got != "one\ntwo\n" {
			t.Errorf("/root/a = %q", got)
		}
		if _, err := files.Write(ctx, "/root/c", strings.NewReader("three\n"), protocol.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := done(); err != nil {
			t.Fatal(err)
		}
		if len(backendtest.Leaks(p)) == 0 {
			t.Fatal("the machine has ended after one use")
		}
		again, done := serve(t, b, p)
		if got := read(t, again, "/root/c"); got != "three\n" {
			t.Errorf("/root/c = %q", got)
		}
		microvm.SetReaderIdle(b, time.Millisecond)
		defer microvm.SetReaderIdle(b, time.Minute)
		if err := done(); err != nil {
			t.Fatal(err)
		}
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("an unused machine left %q", leaks)
		}
	})
	t.Run("daemon-dies", func(t *testing.T) {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestFilesOfStoppedMachine$")
		cmd.Env = append(os.Environ(), readerOrder+"="+string(text))
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the other daemon: %v\n%s", err, out)
		}
		processes := func() bool {
			return slices.ContainsFunc(backendtest.Leaks(p), func(leak string) bool { return strings.HasPrefix(leak, "process") })
		}
		for end := time.Now().Add(30 * time.Second); processes(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after the end of the daemon: %q", backendtest.Leaks(p))
			}
		}
		files, done := serve(t, b, p) // what the other daemon has left is no obstacle
		if got := read(t, files, "/root/d"); got != "four\n" {
			t.Errorf("/root/d, which a killed daemon has written, = %q", got)
		}
		if err := done(); err != nil {
			t.Error(err)
		}
	})
	t.Run("start-ends-it", func(t *testing.T) {
		i, err := b.Create(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if got := output(t, i, "cat", "/root/a", "/root/c", "/root/d"); got != "one\ntwo\nthree\nfour\n" {
			t.Errorf("files in the started jail = %q", got)
		}
		from := filepath.Join(h.dir, "layer")
		stop(t, b, p, i)
		serve(t, b, p) // not closed
		if err := errors.Join(b.SealLayer(ctx, p, from), b.CleanAndRemoveLayer(ctx, p)); err != nil {
			t.Fatal(err)
		}
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("after SealLayer and Clean: %q", leaks)
		}
		p.Sealed = []string{from}
	})
	t.Run("compare", func(t *testing.T) {
		branch := h.plan(t, b)
		branch.Sealed = p.Sealed
		i, err := b.Create(ctx, branch)
		if err != nil {
			t.Fatal(err)
		}
		output(t, i, "sh", "-c", "rm /root/c; echo five >> /root/a; mkdir /root/dir; touch /root/dir/new; mv /root/d /root/e")
		snapshot, running := jail.Tree{Plan: p}, jail.Tree{Plan: branch, Writable: true}
		want := "modified /root/a, deleted /root/c, added /root/dir, added /root/dir/new, renamed /root/e"
		check := func(when string) {
			t.Helper()
			if got := list(b.Compare(ctx, snapshot, running, below)); got != want {
				t.Errorf("%s: compare = %q, want %q", when, got, want)
			}
		}
		check("running")
		if got := output(t, i, "cat", "/root/e"); got != "four\n" {
			t.Errorf("after the comparison, the jail reads %q", got)
		}
		if got := list(b.Compare(ctx, running, snapshot, below)); !strings.HasPrefix(got, "modified /root/a, added /root/c, renamed /root/d, deleted /root/dir") {
			t.Errorf("compare the other way = %q", got)
		}
		stop(t, b, branch, i)
		check("stopped")
		_, done := serve(t, b, branch)
		if err := done(); err != nil {
			t.Error(err)
		}
		if got := list(b.Compare(ctx, running, snapshot, below)); !strings.HasPrefix(got, "modified /root/a, added /root/c") {
			t.Errorf("compare with files that were read = %q", got)
		}
		if leaks := backendtest.LeaksAfter(branch, 30*time.Second); len(leaks) > 0 {
			t.Errorf("a comparison left %q", leaks)
		}
	})
}

// dieReading is a daemon that is killed while it reads files.
func dieReading(t *testing.T, text string) {
	var p jail.Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	b := newHost(t).daemon()
	files, done := serve(t, b, p)
	if _, err := files.Write(t.Context(), "/root/d", strings.NewReader("four\n"), protocol.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := done(); err != nil {
		t.Fatal(err)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

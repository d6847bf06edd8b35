package ptrace_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/host/cgroup"
	"glasshouse/id"
	api "glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/bwrap"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/ptrace"
)

// TestBubblewrapJail tests the main use of this package: for an ordinary user it is the only
// source.
func TestBubblewrapJail(t *testing.T) {
	inst, w, l := tracedJail(t)
	argv := []string{"/bin/sh", "-c", "cd /tmp; echo hello > its; rm its; unshare -U true; exit 3"}
	stream, _, err := control.Dial(inst.Control()).Exec(ctx(t), protocol.Exec{ID: id.NewExec(), Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}}, &control.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for {
		if _, err := stream.Next(); err != nil {
			break
		}
	}
	drain(t, w)
	if stream.Status().Code != 3 {
		t.Errorf("the command exited with %+v", stream.Status())
	}
	shells := l.all(func(e *event.Event) bool { return e.Op == event.OpExec && slices.Equal(e.Argv, argv) })
	if len(shells) != 1 || shells[0].UID != 0 || shells[0].PPID != 1 || shells[0].PID == shells[0].HostPID || !strings.HasPrefix(shells[0].Exe, "/usr/bin/") {
		t.Fatalf("programs: %+v", shells)
	}
	var did []string
	for _, e := range l.all(func(e *event.Event) bool { return e.Type == event.File && strings.HasPrefix(e.Path, "/tmp/") }) {
		did = append(did, line(&e, "/tmp"))
	}
	for _, want := range []string{"create its", "write its 6", "delete its"} {
		if !slices.Contains(did, want) {
			t.Errorf("%q is missing in %q", want, did)
		}
	}
	if got := l.all(func(e *event.Event) bool { return e.Op == event.OpExit && e.PID == shells[0].PID && e.Code == 3 }); len(got) != 1 {
		t.Errorf("unexpected exits of the shell: %+v", got)
	}
	if got := l.all(func(e *event.Event) bool { return called("unshare")(e) && e.Ret < 0 }); len(got) != 1 {
		t.Errorf("unexpected events of the denied call: %+v", l.all(called("unshare")))
	}
}

// tracedJail is a bubblewrap jail with a tracer and its log.
func tracedJail(t *testing.T) (api.Instance, observe.Watch, *log) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	prefix := "glasshouse-" + filepath.Base(dir)
	backend := bwrap.New(bwrap.Config{
		CgroupPrefix: prefix, Templates: filepath.Join(dir, "templates"), Base: filepath.Join(dir, "base"),
	})
	if err := backend.Probe(t.Context()); err != nil {
		t.Skip(err)
	}
	name := id.NewJail()
	p := api.Plan{
		ID: name, Dir: filepath.Join(dir, string(name)), Hostname: "box",
		IDs:    api.IDRange{First: 0xe0000000 + rand.Uint32N(4000)*65536, Count: 65536},
		Limits: api.DefaultLimits, Network: api.Isolated, Init: backendtest.Init(t),
	}
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := backend.Clean(ctx, p); err != nil {
			t.Errorf("Clean: %v", err)
		}
		if err := backend.Remove(ctx, p); err != nil {
			t.Errorf("Remove: %v", err)
		}
		tree, err := cgroup.New(prefix)
		if err != nil {
			return // this host has no cgroups
		}
		if err := tree.Remove(); err != nil {
			t.Errorf("remove the cgroup of the jails: %v", err)
		}
	})
	inst, err := backend.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inst.Close() })

	l := &log{}
	w, err := (&ptrace.Source{}).Attach(ctx(t), observe.Target{Jail: name, Dir: p.Dir, PID: inst.PID()}, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return inst, w, l
}

// TestRootInJailCannotStopInit has root in a traced jail send SIGSTOP to init. Linux drops the
// signal if init is not traced.
func TestRootInJailCannotStopInit(t *testing.T) {
	inst, _, _ := tracedJail(t)
	for _, script := range []string{
		"kill -STOP 1; echo sent",
		"for t in /proc/1/task/*; do kill -STOP ${t##*/}; done 2>&1; echo sent",
	} {
		run, cancel := context.WithTimeout(t.Context(), time.Minute)
		for _, argv := range [][]string{{"/bin/sh", "-c", script}, {"/bin/true"}} {
			_, st, err := control.Dial(inst.Control()).Exec(run, protocol.Exec{ID: id.NewExec(), Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}}, nil)
			if err != nil {
				t.Fatalf("%q: start %q: %v, want init to answer", script, argv, err)
			}
			st, err = control.Dial(inst.Control()).Wait(run, st.ID)
			if err != nil || st.Code != 0 {
				t.Errorf("%q: %q ended with code %d and error %v, want 0 and none", script, argv, st.Code, err)
			}
		}
		cancel()
	}
}

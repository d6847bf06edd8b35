package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

func filtered() bool {
	f := flag.Lookup("test.run")
	return f != nil && f.Value.String() != ""
}

func (s *suite) encodesInputAndOutput(t *testing.T) {
	c := s.caller(t, nil)
	deep := form.NewMap("list", form.Vector{int64(1), 2.5, nil, true, "ä\n\"\\"}, "map", form.NewMap("empty", form.Vector{}))
	m := c.ask("echo", form.Keyword("deep"), deep, form.Keyword("big"), int64(1)<<53)
	got := form.NewMap("deep", field(m, "deep"), "big", field(m, "big"))
	if want := form.NewMap("deep", deep, "big", int64(1)<<53); !form.Equal(got, want) {
		t.Errorf("output = %s, want %s", form.Text(got), form.Text(want))
	}
	r, err := c.call("echo")
	if err != nil {
		t.Fatal(err)
	}
	if r.Usage.Wall <= 0 || r.Usage.CPU < 0 {
		t.Errorf("usage = %+v, want a positive wall time", r.Usage)
	}
}

func (s *suite) reportsFailure(t *testing.T) {
	c := s.caller(t, nil)
	f := c.fails(engine.Failed, "fail")
	if !strings.Contains(f.Reason+f.Log, "on purpose") {
		t.Errorf("reason %q and log %q do not contain the message of the probe", f.Reason, f.Log)
	}
	c.works("after a failure")
}

func (s *suite) rejectsInvalidOutput(t *testing.T) {
	c := s.caller(t, nil)
	c.fails(engine.Garbled, "garble")
	c.works("after an invalid output")
}

func (s *suite) limitsOutput(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Resources.Timeout = patience })
	c.fails(engine.Garbled, "flood")
	c.works("after an unlimited output")
}

func (s *suite) timeoutKillsBusyCall(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Resources.Timeout = 50 * time.Millisecond })
	if f := c.fails(engine.TimedOut, "spin"); f.Usage.Wall <= 0 {
		t.Error("the failure reports no wall time")
	}
	c.with(s.opts.Install(t, func(*manifest.Capability) {})).works("after a timeout")
}

func (s *suite) timeoutKillsWaitingCall(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Resources.Timeout = 50 * time.Millisecond })
	c.fails(engine.TimedOut, "wait")
	c.with(s.opts.Install(t, func(*manifest.Capability) {})).works("after a timeout")
}

func (s *suite) callerCancels(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Resources.Timeout = patience })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := c.engine.Call(ctx, c.request("spin"))
	c.is(engine.Cancelled, "spin, cancelled by the caller", err)

	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.engine.Call(ctx, c.request("spin"))
	c.is(engine.TimedOut, "spin, deadline of the caller", err)
	c.works("after cancelled calls")
}

func (s *suite) memoryLimit(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Resources.MemoryMB, c.Resources.Timeout = 32, patience })
	c.fails(engine.Memory, "eat")
	c.works("after the memory limit was exceeded")
}

func (s *suite) fiftyConcurrentCalls(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Runtime.Warm.Max, c.Resources.Timeout = 4, patience })
	var wg sync.WaitGroup
	for n := range int64(50) {
		wg.Go(func() {
			r, err := c.call("echo", form.Keyword("n"), n)
			if err != nil {
				t.Errorf("call %d: %v", n, err)
				return
			}
			if m, ok := r.Output.(*form.Map); !ok || field(m, "n") != form.Value(n) {
				t.Errorf("output of call %d = %s, want its input", n, form.Text(r.Output))
			}
		})
	}
	wg.Wait()
}

func (s *suite) callsShareNoMemory(t *testing.T) {
	for _, warm := range []int{0, 2} {
		t.Run(fmt.Sprint("warm-", warm), func(t *testing.T) {
			c := s.caller(t, func(c *manifest.Capability) { c.Runtime.Warm.Max = warm })
			for n := range 10 {
				if got := c.count("remember"); got != 1 {
					t.Fatalf("call %d counts %d calls in memory, want 1", n, got)
				}
			}
		})
	}
}

func (s *suite) ephemeralFilesAreRemoved(t *testing.T) {
	for _, warm := range []int{0, 2} {
		t.Run(fmt.Sprint("warm-", warm), func(t *testing.T) {
			c := s.caller(t, func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Ephemeral, warm })
			for n := range 5 {
				if got := c.in("s").count("note"); got != 1 {
					t.Fatalf("call %d finds %d notes, want 1", n, got)
				}
			}
		})
	}
}

func (s *suite) sessionFiles(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Session, 2 })
	for want := range int64(3) {
		if got := c.in("one").count("note"); got != want+1 {
			t.Errorf("the session finds %d notes, want %d", got, want+1)
		}
	}
	if got := c.in("two").count("note"); got != 1 {
		t.Errorf("another session finds %d notes, want 1", got)
	}
	if _, err := c.call("note"); !errors.Is(err, fault.Invalid) {
		t.Errorf("a call without a session: %v, want invalid", err)
	}
	if err := c.engine.EndSession(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if got := c.in("one").count("note"); got != 1 {
		t.Errorf("after its end the session finds %d notes, want 1", got)
	}
	if got := c.in("two").count("note"); got != 2 {
		t.Errorf("the other session finds %d notes, want 2", got)
	}
}

func (s *suite) persistentFiles(t *testing.T) {
	persistent := func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Persistent, 2 }
	c := s.caller(t, persistent)
	c.in("one").count("note")
	if got := c.in("two").count("note"); got != 2 {
		t.Errorf("the second call finds %d notes, want 2", got)
	}
	next := c.with(s.opts.Install(t, persistent))
	if got := next.count("note"); got != 3 {
		t.Errorf("the next version finds %d notes, want 3", got)
	}
	if err := c.engine.Close(); err != nil {
		t.Fatal(err)
	}
	c = s.caller(t, persistent)
	if got := c.count("note"); got != 4 {
		t.Errorf("after a restart there are %d notes, want 4", got)
	}
	if err := c.engine.Drop(t.Context(), c.probe, true); err != nil {
		t.Fatal(err)
	}
	if got := c.with(c.probe).count("note"); got != 1 {
		t.Errorf("after the removal of the capability there are %d notes, want 1", got)
	}
}

func (s *suite) diskQuota(t *testing.T) {
	for _, mode := range []manifest.Mode{manifest.Ephemeral, manifest.Persistent} {
		t.Run(string(mode), func(t *testing.T) {
			c := s.caller(t, func(c *manifest.Capability) {
				c.Filesystem.Mode, c.Filesystem.QuotaMB, c.Resources.Timeout = mode, 2, patience
			})
			if got := c.count("fill", form.Keyword("n"), int64(1)); got != 1 {
				t.Errorf("filled %d MiB, want 1", got)
			}
			c.fails(engine.Storage, "fill", form.Keyword("n"), int64(3))
		})
	}
}

func (s *suite) mounts(t *testing.T) {
	for _, write := range []bool{false, true} {
		t.Run(fmt.Sprint("write-", write), func(t *testing.T) { s.mountAndTouch(t, write) })
	}
}

func (s *suite) mountAndTouch(t *testing.T, write bool) {
	c := s.caller(t, func(c *manifest.Capability) {
		c.Filesystem.Mounts = []manifest.Mount{{Host: "shown", Guest: "/shown", Write: write}}
	})
	file := filepath.Join(c.probe.Dir, "shown", "file")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("as it was"), 0o600)); err != nil {
		t.Fatal(err)
	}
	errno := number(t, c.ask("touch"), "errno")
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if changed := string(got) != "as it was"; changed != write || (errno == 0) != write {
		t.Errorf("write: %t: the probe got errno %d, and the file is %q", write, errno, got)
	}
}

// A host returns {"heard": id, "input": input} for each call, or the error refuse.
type host struct{ refuse error }

func (h host) Call(_ context.Context, id string, input form.Value) (form.Value, error) {
	if h.refuse != nil {
		return nil, h.refuse
	}
	return form.NewMap("heard", id, "input", input), nil
}

func (h host) CallJSON(_ context.Context, id string, input json.RawMessage) (json.RawMessage, error) {
	if h.refuse != nil {
		return nil, h.refuse
	}
	return json.Marshal(map[string]any{"heard": id, "input": input})
}

func (s *suite) nestedCalls(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Effects = []string{"state"} })
	c.host = host{}
	if text := form.Text(c.ask("call")); !strings.Contains(text, "test.other") || !strings.Contains(text, "1") {
		t.Errorf("output of the nested call = %s", text)
	}
	refusal := fault.Newf(fault.Denied, "test", "", "not today")
	c.host = host{refuse: refusal}
	c.refused("nested call that the host denies", "not today")
	c.host = nil
	c.refused("nested call without a host", "")

	pure := c.with(s.opts.Install(t, func(c *manifest.Capability) { c.Effects = nil }))
	pure.host = host{}
	pure.refused("nested call without declared effects", "")
}

// refused fails the test unless the nested call of the probe fails. The error is the error of
// the probe or part of its output.
func (c *caller) refused(when, why string) {
	c.t.Helper()
	r, err := c.call("call")
	output := fmt.Sprint(form.Text(r.Output), err)
	if err == nil && !strings.Contains(output, "error") || strings.Contains(output, "heard") {
		c.t.Errorf("%s: output %s, want an error", when, output)
	}
	if !strings.Contains(output, why) {
		c.t.Errorf("%s: %s, want %q in the error", when, output, why)
	}
}

func (s *suite) newVersion(t *testing.T) {
	slow := func(c *manifest.Capability) { c.Runtime.Warm.Max, c.Resources.Timeout = 2, patience }
	old := s.caller(t, slow)
	old.works("the old version")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := old.engine.Call(ctx, old.request("spin"))
		done <- err
	}()
	next := old.with(s.opts.Install(t, slow))
	if err := old.engine.Drop(t.Context(), old.probe, false); err != nil {
		t.Fatalf("drop the old version: %v", err)
	}
	next.works("the new version")
	cancel()
	select {
	case <-done: // the call may have been cancelled before it started
	case <-time.After(patience):
		t.Fatal("the call of the old version does not end")
	}
	if err := old.engine.Drop(t.Context(), old.probe, false); err != nil {
		t.Errorf("second Drop: %v", err)
	}
}

func (s *suite) warmCalls(t *testing.T) {
	c := s.caller(t, func(c *manifest.Capability) { c.Runtime.Warm.Max, c.Runtime.Warm.TTL = 2, time.Hour })
	c.works("the first call")
	warm := false
	for end := time.Now().Add(patience); !warm && time.Now().Before(end); time.Sleep(time.Millisecond) {
		r, err := c.call("echo")
		if err != nil {
			t.Fatal(err)
		}
		warm = r.Warm
	}
	if !warm {
		t.Errorf("no call used a warm sandbox within %v", patience)
	}
	c.fails(engine.Failed, "fail")
	c.works("after a failure in a warm sandbox")
}

func (s *suite) closeReleasesResources(t *testing.T) {
	round := func() {
		c := s.caller(t, func(c *manifest.Capability) { c.Runtime.Warm.Max, c.Resources.Timeout = 2, patience })
		c.works("before Close")
		running := make(chan error, 1)
		go func() {
			_, err := c.call("spin")
			running <- err
		}()
		time.Sleep(20 * time.Millisecond) // the call has probably started; it must end in any case
		if err := c.engine.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		select {
		case err := <-running:
			if err == nil {
				t.Error("an endless call has succeeded")
			}
		case <-time.After(patience):
			t.Fatal("the call does not end after Close")
		}
		if _, err := c.call("echo"); err == nil {
			t.Error("a call of a closed engine has succeeded")
		}
		if err := c.engine.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}
	round() // allocates resources that are created once per process
	files, routines := descriptors(t), runtime.NumGoroutine()
	for range 3 {
		round()
	}
	settles(t, "descriptors", files, func() int { return descriptors(t) })
	settles(t, "goroutines", routines, runtime.NumGoroutine)
}

// settles waits until now returns at most before.
func settles(t *testing.T, what string, before int, now func() int) {
	t.Helper()
	for end := time.Now().Add(patience); now() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%d %s, want at most %d", now(), what, before)
			return
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

package mcp_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/mcp"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// A bench is an engine with the tools of one server.
type bench struct {
	*testing.T
	*mcp.Engine
	boxes *sandboxes
	tools *mcp.Imported
}

func newBench(t *testing.T) *bench {
	t.Helper()
	boxes := &sandboxes{command: serverOf}
	b := &bench{T: t, boxes: boxes, Engine: mcp.NewEngine("test", boxes), tools: imported(t, "good")}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return b
}

// installed returns a tool of the server after a change to its manifest.
func (b *bench) installed(id string, change func(*manifest.Capability)) *engine.Installed {
	b.Helper()
	c := *find(b.T, b.tools, id)
	if change != nil {
		change(&c)
	}
	return &engine.Installed{Capability: &c, Digest: "sha256:0"}
}

func (b *bench) call(c *engine.Installed, session string, input ...form.Value) (engine.Result, error) {
	return b.Call(b.Context(), &engine.Call{ID: "c-1", Capability: c, Session: session, Input: form.NewMap(input...)})
}

// pid calls the tool that returns its server's PID.
func (b *bench) pid(c *engine.Installed, session string) int64 {
	b.Helper()
	r, err := b.call(c, session)
	if err != nil {
		b.Fatalf("pid = %v", err)
	}
	n, _ := r.Output.(*form.Map).Get(form.Keyword("pid"))
	return n.(int64)
}

func (b *bench) fails(c *engine.Installed, kind engine.Kind, want string) *engine.Failure {
	b.Helper()
	_, err := b.call(c, "s")
	f, ok := errors.AsType[*engine.Failure](err)
	if !ok || f.Kind != kind || !strings.Contains(f.Reason, want) {
		b.Fatalf("%s = %v, want a failure of kind %s with %q", c.ID, err, kind, want)
	}
	return f
}

func TestCapabilityCallsItsTool(t *testing.T) {
	b := newBench(t)
	r, err := b.call(b.installed("their.echo-text", nil), "s", form.Keyword("text"), "hello")
	if err != nil {
		t.Fatal(err)
	}
	if want := form.NewMap(form.Keyword("text"), "hello"); !form.Equal(r.Output, want) {
		t.Errorf("the output is %s, want %s", form.Text(r.Output), form.Text(want))
	}
	if r.Jail != "j-server" || r.Isolation != "runc" {
		t.Errorf("the call was served in %q by %q, want j-server and runc", r.Jail, r.Isolation)
	}
	if r.Warm || r.Usage.MemoryPeak != 1 || r.Usage.Wall <= 0 || r.Times["forward"] != r.Usage.Wall {
		t.Errorf("the result is %+v, want a cold call with its usage", r)
	}
	r, err = b.call(b.installed("their.echo-text", nil), "s", form.Keyword("text"), "again")
	if err != nil || !r.Warm {
		t.Errorf("the second call is %+v, %v, want it warm", r, err)
	}
}

func TestNonTextContentIsSeparate(t *testing.T) {
	b := newBench(t)
	c := b.installed("their.picture", nil)
	r, err := b.call(c, "s")
	if err != nil {
		t.Fatal(err)
	}
	want := form.NewMap(form.Keyword("text"), "one\ntwo", form.Keyword("parts"), form.Vector{
		form.NewMap(form.Keyword("type"), "image", form.Keyword("mime"), "image/png", form.Keyword("data"), "cG5n")})
	if !form.Equal(r.Output, want) {
		t.Errorf("the output is %s, want %s", form.Text(r.Output), form.Text(want))
	}
	if err := c.Output.Check(r.Output); err != nil {
		t.Errorf("it is not of its type: %v", err)
	}
}

func TestServersAreSharedByFilesystemMode(t *testing.T) {
	b := newBench(t)
	session := b.installed("their.pid", nil)
	persistent := b.installed("their.pid", func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Persistent })
	ephemeral := b.installed("their.pid", func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Ephemeral })
	narrower := b.installed("their.pid", func(c *manifest.Capability) { c.Resources.MemoryMB = 64 })

	one := b.pid(session, "one")
	if again := b.pid(session, "one"); again != one {
		t.Errorf("a session's second call went to another process")
	}
	for name, other := range map[string]int64{
		"another session":       b.pid(session, "two"),
		"no session":            b.pid(session, ""),
		"no session once more":  b.pid(session, ""),
		"other limits":          b.pid(narrower, "one"),
		"an ephemeral one":      b.pid(ephemeral, "one"),
		"an ephemeral one more": b.pid(ephemeral, "one"),
	} {
		if other == one {
			t.Errorf("%s was answered by the process of the session", name)
		}
	}
	if b.pid(persistent, "one") != b.pid(persistent, "two") {
		t.Errorf("a persistent server is not the same for all sessions")
	}
	if first, second := b.pid(ephemeral, "one"), b.pid(ephemeral, "one"); first == second {
		t.Errorf("two calls of an ephemeral server ran in process %v, want a process for each", first)
	}
}

func TestToolErrorsAreReported(t *testing.T) {
	b := newBench(t)
	before := b.pid(b.installed("their.pid", nil), "s")
	b.fails(b.installed("their.fails", nil), engine.Failed, "the [31mdisk is full")
	if b.pid(b.installed("their.pid", nil), "s") != before {
		t.Errorf("the server was ended for an answer")
	}
}

func TestToolTimeoutKillsServer(t *testing.T) {
	b := newBench(t)
	slow := b.installed("their.sleeps", func(c *manifest.Capability) { c.Resources.Timeout = 100 * time.Millisecond })
	b.fails(slow, engine.TimedOut, "deadline")
	if !b.boxes.last.closed.Load() {
		t.Errorf("the server of the call that took too long goes on")
	}
}

func TestCancelledCallIsKilled(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Call(ctx, &engine.Call{Capability: b.installed("their.sleeps", nil), Session: "s", Input: form.NewMap()})
		done <- err
	}()
	b.boxes.until("asleep")
	cancel()
	if err := <-done; engine.KindOf(err) != engine.Cancelled {
		t.Errorf("the call = %v, want it cancelled", err)
	}
	if !b.boxes.last.closed.Load() {
		t.Errorf("the server of the call that nobody wanted goes on")
	}
	b.pid(b.installed("their.pid", nil), "s")
}

func TestDeadServerIsRestartedByNextCall(t *testing.T) {
	b := newBench(t)
	before := b.pid(b.installed("their.pid", nil), "s")
	f := b.fails(b.installed("their.dies", nil), engine.Crashed, "")
	if !strings.Contains(f.Log, "out of cheese") {
		t.Errorf("its log is %q, want its last words", f.Log)
	}
	if b.pid(b.installed("their.pid", nil), "s") == before {
		t.Errorf("the dead process answered")
	}
}

func TestErrorNamesExceededServerLimit(t *testing.T) {
	b := newBench(t)
	b.pid(b.installed("their.pid", nil), "s")
	b.boxes.last.limit = engine.Memory
	b.fails(b.installed("their.dies", nil), engine.Memory, "")
}

func TestEndlessResponseIsAborted(t *testing.T) {
	b := newBench(t)
	b.fails(b.installed("their.large", nil), engine.Garbled, "a message of the server has more than 4194304 bytes")
	b.pid(b.installed("their.pid", nil), "s")
}

func TestServerRequestsToClientGetNothing(t *testing.T) {
	b := newBench(t)
	r, err := b.call(&engine.Installed{Capability: find(t, imported(t, "begs"), "their.go")}, "s")
	if err != nil {
		t.Fatal(err)
	}
	if want := form.NewMap(form.Keyword("text"), "it got "); !form.Equal(r.Output, want) {
		t.Errorf("the server says %s, want %s", form.Text(r.Output), form.Text(want))
	}
}

func TestChangedToolIsRefusedUntilReviewed(t *testing.T) {
	b := newBench(t)
	drifted := func(id, want string) {
		t.Helper()
		_, err := b.call(b.installed(id, nil), "s")
		if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), want) || !strings.Contains(fault.RemedyOf(err), "import the server again") {
			t.Errorf("%s = %v, want a conflict with %q and its remedy", id, err, want)
		}
	}
	b.boxes.kind = "drifted"
	drifted("their.pid", `the server's description of "pid" differs from the approved one`)
	drifted("their.picture", `the server no longer has the tool "picture"`)
	if _, err := b.call(b.installed("their.echo-text", nil), "s", form.Keyword("text"), "x"); err != nil {
		t.Errorf("a tool that did not change = %v", err)
	}

	b.tools = imported(t, "drifted")
	b.pid(b.installed("their.pid", nil), "s")
}

func TestToolChangedByRunningServerIsRefused(t *testing.T) {
	b := newBench(t)
	b.pid(b.installed("their.pid", nil), "s")
	if _, err := b.call(b.installed("their.change", nil), "s"); err != nil {
		t.Fatal(err)
	}
	// The server sends the notification shortly after its response.
	_, err := b.call(b.installed("their.pid", nil), "s")
	for ; err == nil; _, err = b.call(b.installed("their.pid", nil), "s") {
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("the changed tool = %v, want a conflict", err)
	}
}

func TestUnreadableResponsesAreReported(t *testing.T) {
	b := newBench(t)
	for kind, want := range map[string]struct {
		kind engine.Kind
		text string
	}{
		"flood":   {engine.Garbled, "without a request"},
		"deaf":    {engine.Garbled, "without a request"},
		"babble":  {engine.Garbled, "invalid character '<'"},
		"wrong":   {engine.Garbled, "content"},
		"refuses": {engine.Failed, "there is no such file"},
		"wants":   {engine.Failed, "the tool requests further input"},
	} {
		c := find(t, imported(t, kind), "their.go")
		_, err := b.call(&engine.Installed{Capability: c}, "s")
		if engine.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.text) {
			t.Errorf("a server that is %q = %v, want it %s with %q", kind, err, want.kind, want.text)
		}
	}
}

func TestStartFailureReportsReason(t *testing.T) {
	b := newBench(t)
	b.boxes.kind = "ended"
	f := b.fails(b.installed("their.pid", nil), engine.Unstarted, "")
	if !strings.Contains(f.Log, "left-pad") {
		t.Errorf("its log is %q, want its last words", f.Log)
	}
	b.boxes.kind = "missing"
	b.fails(b.installed("their.pid", nil), engine.Unstarted, "no such image")
	b.boxes.kind = ""
	b.pid(b.installed("their.pid", nil), "s")
}

func TestConcurrentCallsShareOneStart(t *testing.T) {
	b := newBench(t)
	c := b.installed("their.echo-text", nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := b.call(c, "s", form.Keyword("text"), "x"); err != nil {
				t.Errorf("a call = %v", err)
			}
		})
	}
	all.Wait()
	if b.boxes.started != 1 {
		t.Errorf("%d processes were started for one session, want 1", b.boxes.started)
	}
}

func TestDroppedServersRestart(t *testing.T) {
	b := newBench(t)
	c := b.installed("their.pid", nil)
	one, two := b.pid(c, "one"), b.pid(c, "two")
	if err := b.EndSession(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if b.pid(c, "one") == one {
		t.Errorf("the server of a session that ended goes on")
	}
	if b.pid(c, "two") != two {
		t.Errorf("the server of another session was ended")
	}
	if err := b.Drop(t.Context(), c, false); err != nil {
		t.Fatal(err)
	}
	if b.pid(c, "two") == two {
		t.Errorf("a dropped server goes on")
	}
	if err := b.Drop(t.Context(), c, true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one", "their.pid"}, b.boxes.forgotten); diff != "" {
		t.Errorf("forgotten was (-want +got):\n%s", diff)
	}
}

// However servers come and go, a call that the engine has taken on is answered, and no
// process outlives the engine.
func TestDropWaitsForCalls(t *testing.T) {
	b := newBench(t)
	c := b.installed("their.echo-text", nil)
	var callers, droppers sync.WaitGroup
	for caller := range 3 {
		callers.Go(func() {
			for range 15 {
				if _, err := b.call(c, string(rune('a'+caller%2)), form.Keyword("text"), "x"); err != nil {
					t.Errorf("a call = %v", err)
				}
			}
		})
	}
	over := make(chan struct{})
	droppers.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
			if err := errors.Join(b.Drop(t.Context(), c, false), b.EndSession(t.Context(), "a")); err != nil {
				t.Error(err)
			}
		}
	})
	callers.Wait()
	close(over)
	droppers.Wait()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for i, p := range b.boxes.all {
		if !p.closed.Load() {
			t.Errorf("process %d of %d goes on", i, len(b.boxes.all))
		}
	}
}

func TestIdleServerIsStopped(t *testing.T) {
	b := newBench(t)
	c := b.installed("their.pid", func(c *manifest.Capability) { c.Runtime.Warm = manifest.Warm{Max: 1, TTL: time.Millisecond} })
	for first := b.pid(c, "s"); b.pid(c, "s") == first; {
		time.Sleep(time.Millisecond)
	}
}

func TestNothingRunsAfterClose(t *testing.T) {
	b := newBench(t)
	b.pid(b.installed("their.pid", nil), "s")
	done := make(chan error)
	go func() {
		_, err := b.call(b.installed("their.sleeps", nil), "s")
		done <- err
	}()
	b.boxes.until("asleep")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Errorf("a call outlived its engine")
	}
	if _, err := b.call(b.installed("their.pid", nil), "s"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a call of a closed engine = %v, want unavailable", err)
	}
}

func TestPrepareRejectsNonTools(t *testing.T) {
	b := newBench(t)
	c := b.installed("their.pid", func(c *manifest.Capability) { c.Runtime.Stdio = manifest.JSONStdio })
	if err := b.Prepare(t.Context(), c); !errors.Is(err, fault.Invalid) {
		t.Errorf("Prepare = %v, want it invalid", err)
	}
	_, err := b.Call(t.Context(), &engine.Call{Capability: b.installed("their.pid", nil), Input: form.Vector{}})
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("a call with a vector = %v, want it invalid", err)
	}
}

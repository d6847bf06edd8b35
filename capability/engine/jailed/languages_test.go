package jailed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// server returns a change of a manifest that runs a server.
func server(argv ...string) func(*manifest.Capability) {
	return func(c *manifest.Capability) { c.Runtime.Entrypoint = argv }
}

func TestServersAndScriptsOfAnyLanguageAnswer(t *testing.T) {
	w := newWorld(t, "runc")
	for _, c := range []struct {
		name, needs, language, text string
		change                      func(*manifest.Capability)
	}{
		{"a server in Python", "python3", "Python", "hello", server("python3", "/app/server.py")},
		{"an ASGI application in Python", "uvicorn", "Python", "hello", server("uvicorn", "app:app", "--app-dir", "/app", "--port", "8000")},
		{"a server in Node", "node", "Node", "hello", server("node", "/app/server.mjs")},
		{"a script in Python", "python3", "Python", "olleh", script("python3", "/app/script.py")},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t = t
			needs(t, c.needs)
			m, r := w.call(w.capability(c.change), in("text", "hello"))
			if get(m, "language") != c.language || get(m, "text") != c.text {
				t.Errorf("output = %v", m)
			}
			if r.Usage.Wall <= 0 || r.Usage.CPU <= 0 || r.Usage.MemoryPeak <= 0 || r.Times["sandbox"] <= 0 || r.Times["forward"] <= 0 || r.Warm {
				t.Errorf("usage = %+v, times = %v, warm = %v", r.Usage, r.Times, r.Warm)
			}
			if strings.HasPrefix(c.name, "a script") && !strings.Contains(r.Log, "thinking") {
				t.Errorf("log = %q", r.Log)
			}
		})
	}
}

func TestServerRequest(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(func(c *manifest.Capability) { c.ID = "places.search" })
	m, _ := w.call(c, in("do", "headers"), func(call *engine.Call) { call.ID, call.Key = "c-1", "once" })
	for key, want := range map[string]string{"path": "/places/search", "Content-Type": "application/json", "Glasshouse-Call": "c-1", "Idempotency-Key": "once"} {
		if get(m, key) != want {
			t.Errorf("%s is %v, want %s", key, get(m, key), want)
		}
	}
	by, err := time.Parse(time.RFC3339Nano, get(m, "Glasshouse-Deadline").(string))
	if left := time.Until(by); err != nil || left <= 0 || left > time.Minute {
		t.Errorf("time until the deadline = %v, %v, want at most a minute", left, err)
	}
	other := w.capability(func(c *manifest.Capability) { c.Runtime.Path = "/v2/find" })
	if m, _ := w.call(other, in("do", "headers")); get(m, "path") != "/v2/find" || get(m, "Idempotency-Key") != "" {
		t.Errorf("path = %v, idempotency key = %q", get(m, "path"), get(m, "Idempotency-Key"))
	}
}

func TestTextStdioScript(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(script("/app/wc.sh", "first"), func(c *manifest.Capability) { c.Runtime.Stdio = manifest.TextStdio })
	m, _ := w.call(c, in("args", []string{"two words", "$HOME"}, "stdin", "123456"))
	if get(m, "stdout") != "3 arguments: first two words $HOME\n6\n" || get(m, "stderr") != "complaint\n" || get(m, "exit_code") != int64(4) {
		t.Errorf("output = %v", m)
	}
	eats := w.capability(script("/app/program"), func(c *manifest.Capability) { c.Runtime.Stdio, c.Resources.MemoryMB = manifest.TextStdio, 32 })
	w.fails(engine.Memory, eats, in("stdin", `{"do": "eat"}`))
	w.fails(engine.Failed, eats, in("args", "no list"))
}

func TestCapabilityCallsOtherCapability(t *testing.T) {
	w := newWorld(t, "runc")
	kernel := host(func(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error) {
		switch id {
		case "test.denied":
			return nil, fault.Newf(fault.Denied, "test", id, "the rules say no")
		case "test.slow":
			return nil, &engine.Failure{Kind: engine.TimedOut, Reason: "it was slow"}
		case "test.broken":
			return nil, errors.New("something broke")
		case "test.hangs":
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return json.Marshal(map[string]any{"heard": id, "input": input})
	})
	with := func(c *engine.Call) { c.Host = kernel }
	for _, c := range []struct {
		name, needs string
		change      func(*manifest.Capability)
	}{
		{"Python", "python3", server("python3", "/app/server.py")},
		{"Node", "node", server("node", "/app/server.mjs")},
		{"Go", "", server("/app/program")},
		{"a script", "", script("/app/program")},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t = t
			if c.needs != "" {
				needs(t, c.needs)
			}
			caller := w.capability(c.change, func(c *manifest.Capability) {
				c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Session, 1 // one sandbox for all
			})
			m, _ := w.call(caller, in("do", "call-other", "call", "test.other", "input", in("x", 1)), with)
			text, err := json.Marshal(plain(get(m, "output")))
			if want := `{"heard":"test.other","input":{"x":1}}`; err != nil || string(text) != want {
				t.Errorf("nested call = %s, %v, want %s", text, err, want)
			}
			for id, kind := range map[string]string{"test.denied": "denied", "test.slow": "timeout", "test.broken": "failed"} {
				if m, _ := w.call(caller, in("do", "call-other", "call", id), with); get(m, "kind") != kind {
					t.Errorf("nested call of %s: kind %v, want %s", id, get(m, "kind"), kind)
				}
			}
		})
	}
	t.Run("without declared effects", func(t *testing.T) {
		pure := w.capability(func(c *manifest.Capability) { c.Effects = nil })
		if m, _ := w.call(pure, in("do", "call-other", "call", "test.other"), with); get(m, "kind") != "denied" {
			t.Errorf("kind = %v, want denied", get(m, "kind"))
		}
	})
	t.Run("after the end of the outer call", func(t *testing.T) {
		c := w.capability(func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Session, 1 })
		var kind any
		for ms := 10; kind == nil || kind == "answered" && ms <= 10000; ms *= 10 { // on a busy host the outer call may take longer than ms
			file := fmt.Sprint("/tmp/kind-", ms)
			w.call(c, in("do", "call-later", "n", ms, "call", "test.other", "paths", []string{file}), with)
			w.eventually("the late call", func() bool {
				m, _ := w.call(c, in("do", "look", "paths", []string{file})) // without a host
				if len(get(m, "found").(form.Vector)) == 0 {
					return false
				}
				m, _ = w.call(c, in("do", "read", "paths", []string{file}))
				kind = get(m, "text")
				return kind != "" // the file is created before it is written
			})
		}
		if kind != "conflict" && kind != "unsupported" {
			t.Errorf("kind = %q, want conflict, or unsupported during a call without a host", kind)
		}
	})
	t.Run("that blocks until the timeout", func(t *testing.T) {
		c := w.capability(func(c *manifest.Capability) { c.Resources.Timeout = 300 * time.Millisecond })
		_, err := w.try(c, in("do", "call-other", "call", "test.hangs"), with)
		if engine.KindOf(err) != engine.TimedOut {
			t.Errorf("Call = %v, want a timeout", err)
		}
	})
}

// plain converts a value to the types of encoding/json.
func plain(v any) any {
	switch v := v.(type) {
	case *form.Map:
		m := map[string]any{}
		for key, value := range v.All() {
			m[key.(string)] = plain(value)
		}
		return m
	case form.Vector:
		all := []any{}
		for _, item := range v {
			all = append(all, plain(item))
		}
		return all
	}
	return v
}

package jailed_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/jailed"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
)

func TestEphemeralCallsAreIsolated(t *testing.T) {
	w := newWorld(t, "runc")
	places := []string{"/tmp/left", "/var/tmp/left", "/dev/shm/left", "/root/left", "/run/left", "/home/agent/left", "/left", "/run/glasshouse/left", "/etc/left"}
	for _, warm := range []int{0, 2} {
		for _, kind := range []func(*manifest.Capability){server("/app/program"), script("/app/program")} {
			c := w.capability(kind, func(c *manifest.Capability) { c.Runtime.Warm.Max = warm })
			w.call(c, in("do", "write", "text", "remember me", "paths", places))
			for again := 0; again < 3; again++ {
				m, r := w.call(c, in("do", "look", "paths", places))
				if found := words(get(m, "found")); found != "" {
					t.Errorf("warm %v: the next call finds %s", r.Warm, found)
				}
				if get(m, "count") != int64(1) {
					t.Errorf("warm %v: the next call is number %v of its program, want 1", r.Warm, get(m, "count"))
				}
			}
		}
	}
}

func TestWarmPoolSandboxIsUsed(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(func(c *manifest.Capability) { c.Runtime.Warm.Max, c.Runtime.Warm.TTL = 1, time.Hour })
	if _, r := w.call(c, in("do", "echo")); r.Warm {
		t.Error("the first call is warm, but the pool was empty")
	}
	w.eventually("a warm call", func() bool {
		_, r := w.call(c, in("do", "echo"))
		return r.Warm
	})
	w.eventually("one idle sandbox", func() bool { return len(w.list()) == 1 })

	// A call of a new version drains the pool of the old version.
	next := *c.Capability
	next.Version, next.Runtime.Warm.Max = "2.0.0", 0
	w.call(&engine.Installed{Capability: &next, Dir: c.Dir, Digest: "sha256:next"}, in("do", "echo"))
	w.eventually("drained pool of the old version", func() bool { return len(w.list()) == 0 })
}

func TestIdleSandboxesExpire(t *testing.T) {
	w := newWorld(t, "runc")
	for _, mode := range []manifest.Mode{manifest.Ephemeral, manifest.Session} {
		c := w.capability(func(c *manifest.Capability) {
			c.Filesystem.Mode, c.Runtime.Warm.Max, c.Runtime.Warm.TTL = mode, 1, 100*time.Millisecond
		})
		w.call(c, in("do", "echo"))
		w.eventually("the "+string(mode)+" sandbox removed", func() bool { return len(w.list()) == 0 })
	}
}

func TestIdleSandboxesAreLimited(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(script("/app/program"), func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Session, 1 })
	for _, session := range []string{"one", "two", "three"} {
		w.call(c, in("do", "echo"), func(call *engine.Call) { call.Session = session })
	}
	w.eventually("one idle sandbox", func() bool { return len(w.list()) == 1 })
	if _, r := w.call(c, in("do", "echo"), func(call *engine.Call) { call.Session = "one" }); !r.Warm {
		t.Error("the idle sandbox was not used")
	}
}

func TestVolumeLifetime(t *testing.T) {
	w := newWorld(t, "runc")
	persistent := w.capability(func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Persistent, 1 })
	session := w.capability(func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Session })
	in2 := func(call *engine.Call) { call.Session = "s2" }
	note := func(c *engine.Installed, want int64, change ...func(*engine.Call)) {
		t.Helper()
		if m, _ := w.call(c, in("do", "note"), change...); get(m, "count") != want {
			t.Errorf("%s finds %v notes, want %d", c.ID, get(m, "count"), want)
		}
	}
	note(persistent, 1)
	note(persistent, 2, in2)
	note(session, 1)
	note(session, 2)
	note(session, 1, in2)

	t.Run("after failures", func(t *testing.T) {
		w.fails(engine.Crashed, persistent, in("do", "die"))
		w.fails(engine.Failed, session, in("do", "fail"))
		note(persistent, 3)
		note(session, 3)
	})
	t.Run("after a restart of the daemon", func(t *testing.T) {
		w.eventually("one idle sandbox and no others", func() bool { return len(w.list()) == 1 })
		w.open() // without closing the first engine, as after a crash
		if left := w.list(); len(left) > 0 {
			t.Errorf("sandboxes left after Open: %v", left)
		}
		note(persistent, 4)
		note(session, 4)
	})
	t.Run("until the session ends", func(t *testing.T) {
		if err := w.engine.EndSession(t.Context(), "s1"); err != nil {
			t.Fatal(err)
		}
		note(session, 1)
		note(session, 2, in2)
	})
	t.Run("until the capability is removed", func(t *testing.T) {
		if err := w.engine.Drop(t.Context(), persistent, false); err != nil {
			t.Fatal(err)
		}
		note(persistent, 5)
		if err := w.engine.Drop(t.Context(), persistent, true); err != nil {
			t.Fatal(err)
		}
		note(persistent, 1)
	})
	t.Run("within one quota", func(t *testing.T) {
		w.fails(engine.Storage, persistent, in("do", "fill", "n", 40))
		more := *persistent.Capability
		more.Filesystem.QuotaMB = 64
		_, err := w.try(&engine.Installed{Capability: &more, Dir: persistent.Dir, Digest: "sha256:more"}, in("do", "note"))
		if !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
			t.Errorf("call with another quota = %v, want a conflict with a remedy", err)
		}
	})
	t.Run("isolated from other capabilities", func(t *testing.T) {
		other := w.capability(func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Persistent })
		note(other, 1)
		m, _ := w.call(other, in("do", "list", "paths", []string{"/data"}))
		if got := words(get(m, "found")); got != "note" {
			t.Errorf("files of the other capability = %q, want note", got)
		}
	})
}

func TestDataDirectoryBehindSymlink(t *testing.T) {
	w := newWorld(t, "runc", func(w *world) {
		w.tune = func(c *jailed.Config) {
			link := filepath.Join(w.dir, "link")
			if err := errors.Join(os.Mkdir(c.Dir, 0o711), os.Symlink(c.Dir, link)); err != nil {
				t.Fatal(err)
			}
			c.Dir = link
		}
	})
	w.call(w.capability(func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Session }), in("do", "note"))
}

func TestProcessCloseKillsProgram(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(script("sh", "-c", `echo ready >&2; while read line; do echo "heard $line"; done`), func(c *manifest.Capability) {
		c.Runtime.Stdio = manifest.MCPStdio
	})
	p, err := w.engine.Start(t.Context(), c, "")
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	for _, word := range []string{"one", "two"} {
		if _, err := p.Write([]byte(word + "\n")); err != nil {
			t.Fatal(err)
		}
		n, err := p.Read(buf)
		if got, want := string(buf[:n]), "heard "+word+"\n"; err != nil || got != want {
			t.Errorf("Read = %q, %v, want %q", got, err, want)
		}
	}
	if p.Log() != "ready\n" || p.Usage().CPU <= 0 {
		t.Errorf("log = %q, usage = %+v", p.Log(), p.Usage())
	}
	reading := make(chan error, 1)
	go func() {
		_, err := p.Read(buf)
		reading <- err
	}()
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := <-reading; err == nil {
		t.Error("a pending Read returned no error after Close")
	}
	if left := w.list(); len(left) > 0 || p.Usage().CPU <= 0 {
		t.Errorf("jails left: %v, usage = %+v", left, p.Usage())
	}
	if q, err := w.engine.Start(t.Context(), c, ""); err != nil {
		t.Fatal(err)
	} else if err := w.engine.Close(); err != nil || len(w.list()) > 0 {
		t.Errorf("Close with an open process: %v, usage = %v", err, q.Usage())
	}
}

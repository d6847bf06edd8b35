package jailed_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/engine"
	"glasshouse/engine/jailed"
	"glasshouse/fault"
	"glasshouse/manifest"
)

func TestNothingLeaksFromOneCallToTheNext(t *testing.T) {
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
					t.Errorf("warm %v: the next call is the %vth of its program", r.Warm, get(m, "count"))
				}
			}
		}
	}
}

func TestASandboxThatWaitsIsUsed(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(func(c *manifest.Capability) { c.Runtime.Warm.Max, c.Runtime.Warm.TTL = 1, time.Hour })
	if _, r := w.call(c, in("do", "echo")); r.Warm {
		t.Error("the first call is warm, and nothing was made ahead")
	}
	w.eventually("a warm call", func() bool {
		_, r := w.call(c, in("do", "echo"))
		return r.Warm
	})
	w.eventually("one that waits", func() bool { return len(w.list()) == 1 })

	// Another version has nothing to do with those of the first.
	next := *c.Capability
	next.Version, next.Runtime.Warm.Max = "2.0.0", 0
	w.call(&engine.Installed{Capability: &next, Dir: c.Dir, Digest: "sha256:next"}, in("do", "echo"))
	w.eventually("the old version drained", func() bool { return len(w.list()) == 0 })
}

func TestNobodyWaitsForEver(t *testing.T) {
	w := newWorld(t, "runc")
	for _, mode := range []manifest.Mode{manifest.Ephemeral, manifest.Session} {
		c := w.capability(func(c *manifest.Capability) {
			c.Filesystem.Mode, c.Runtime.Warm.Max, c.Runtime.Warm.TTL = mode, 1, 100*time.Millisecond
		})
		w.call(c, in("do", "echo"))
		w.eventually("the "+string(mode)+" sandbox put away", func() bool { return len(w.list()) == 0 })
	}
}

func TestNoMoreSandboxesWaitThanMay(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(script("/app/program"), func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Session, 1 })
	for _, session := range []string{"one", "two", "three"} {
		w.call(c, in("do", "echo"), func(call *engine.Call) { call.Session = session })
	}
	w.eventually("one that waits", func() bool { return len(w.list()) == 1 })
	if _, r := w.call(c, in("do", "echo"), func(call *engine.Call) { call.Session = "one" }); !r.Warm {
		t.Error("the one that waited was not used")
	}
}

func TestFilesStayAsLongAsTheyAreTo(t *testing.T) {
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

	t.Run("when the sandbox errs", func(t *testing.T) {
		w.fails(engine.Crashed, persistent, in("do", "die"))
		w.fails(engine.Failed, session, in("do", "fail"))
		note(persistent, 3)
		note(session, 3)
	})
	t.Run("when the daemon is another one", func(t *testing.T) {
		w.eventually("used sandboxes gone, and one that waits", func() bool { return len(w.list()) == 1 })
		w.open() // as if the first had been killed: nobody has closed it
		if left := w.list(); len(left) > 0 {
			t.Errorf("the next daemon has left the sandboxes %v", left)
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
			t.Errorf("with another quota: %v, want a conflict and its remedy", err)
		}
	})
	t.Run("and nobody else's are seen", func(t *testing.T) {
		other := w.capability(func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Persistent })
		note(other, 1)
		m, _ := w.call(other, in("do", "list", "paths", []string{"/data"}))
		if got := words(get(m, "found")); got != "note" {
			t.Errorf("its files are %q", got)
		}
	})
}

func TestADataDirectoryBehindALink(t *testing.T) {
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

func TestWhatIsTalkedToIsKilled(t *testing.T) {
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
			t.Errorf("it answers %q, %v, want %q", got, err, want)
		}
	}
	if p.Log() != "ready\n" || p.Usage().CPU <= 0 {
		t.Errorf("its log is %q, and it took %+v", p.Log(), p.Usage())
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
		t.Error("who reads learns nothing of the end")
	}
	if left := w.list(); len(left) > 0 || p.Usage().CPU <= 0 {
		t.Errorf("left %v, and it took %+v", left, p.Usage())
	}
	if q, err := w.engine.Start(t.Context(), c, ""); err != nil {
		t.Fatal(err)
	} else if err := w.engine.Close(); err != nil || len(w.list()) > 0 {
		t.Errorf("Close with %v open: %v", q.Usage(), err)
	}
}

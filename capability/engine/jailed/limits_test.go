package jailed_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/jailed"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

func TestServerFailures(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability()
	for _, s := range []struct {
		do   string
		kind engine.Kind
		says string
	}{
		{"fail", engine.Failed, "418 I'm a teapot: on purpose"},
		{"garble", engine.Garbled, "JSON"},
		{"no-http", engine.Garbled, "HTTP"},
		{"flood", engine.Garbled, "exceeds"},
		{"die", engine.Crashed, "exit code 7"},
	} {
		t.Run(s.do, func(t *testing.T) {
			w := *w
			w.t = t
			f := w.fails(s.kind, c, in("do", s.do))
			if !strings.Contains(f.Reason, s.says) {
				t.Errorf("reason = %q, want %q in it", f.Reason, s.says)
			}
			if left := w.list(); len(left) > 0 {
				t.Errorf("jails left after the failure: %v", left)
			}
		})
	}
	if f := w.fails(engine.Failed, c, in("do", "fail")); f.Usage.Wall <= 0 || f.Usage.CPU <= 0 {
		t.Errorf("usage of the failure = %+v, want wall and CPU time", f.Usage)
	}
}

func TestScriptFailures(t *testing.T) {
	w := newWorld(t, "runc")
	c := w.capability(script("/app/program"))
	for _, s := range []struct {
		do   string
		kind engine.Kind
		says string
	}{
		{"fail", engine.Failed, "exit code 1: asked to fail\non purpose"},
		{"garble", engine.Garbled, "JSON"},
		{"flood", engine.Garbled, "exceeds"},
		{"die", engine.Crashed, "KILL"},
	} {
		t.Run(s.do, func(t *testing.T) {
			w := *w
			w.t = t
			if f := w.fails(s.kind, c, in("do", s.do)); !strings.Contains(f.Reason, s.says) {
				t.Errorf("reason = %q, want %q in it", f.Reason, s.says)
			}
			if left := w.list(); len(left) > 0 {
				t.Errorf("jails left after the failure: %v", left)
			}
		})
	}
}

func TestSandboxStartFailures(t *testing.T) {
	w := newWorld(t, "runc")
	for _, s := range []struct {
		name   string
		change func(*manifest.Capability)
		says   string
	}{
		{"missing program", server("/app/nothing"), "cannot be started"},
		{"program exits", server("/app/program", "exit"), "exit code 3"},
		{"unhealthy server", func(c *manifest.Capability) {
			c.Runtime.Entrypoint, c.Runtime.StartupTimeout = []string{"/app/program", "sick"}, 300*time.Millisecond
		}, "not healthy within 300ms"},
		{"no listener", func(c *manifest.Capability) {
			c.Runtime.Entrypoint, c.Runtime.StartupTimeout, c.Runtime.HealthCheck = []string{"sleep", "1000"}, 300*time.Millisecond, ""
		}, "not healthy"},
		{"missing script", script("/app/nothing"), "cannot be started"},
	} {
		t.Run(s.name, func(t *testing.T) {
			w := *w
			w.t = t
			f := w.fails(engine.Unstarted, w.capability(s.change), in("do", "echo"))
			if !strings.Contains(f.Reason, s.says) {
				t.Errorf("reason = %q, want %q in it", f.Reason, s.says)
			}
			if s.name == "program exits" && !strings.Contains(f.Log, "no wish to serve") {
				t.Errorf("log = %q", f.Log)
			}
		})
	}
	w.fails(engine.Memory, w.capability(server("/app/program", "eat")), in("do", "echo"))
	if left := w.list(); len(left) > 0 {
		t.Errorf("jails left after failed starts: %v", left)
	}
}

func TestTimeoutKillsForkBomb(t *testing.T) {
	w := newWorld(t, "runc")
	for _, kind := range []func(*manifest.Capability){server("/app/program"), script("/app/program")} {
		c := w.capability(kind, func(c *manifest.Capability) { c.Resources.Timeout = time.Second })
		w.fails(engine.TimedOut, c, in("do", "fork"))
		if left := w.list(); len(left) > 0 {
			t.Errorf("jails left: %v", left)
		}
	}
}

func TestNetworkLimitEndsCall(t *testing.T) {
	var sent, ended atomic.Int64
	w := newWorld(t, "runc", func(w *world) {
		w.tune = func(c *jailed.Config) {
			c.Meter = func(id.Jail) jailed.Traffic { return jailed.Traffic{Sent: sent.Load(), Received: 2 * sent.Load()} }
			c.Serving = func(jid id.Jail, call *engine.Call) func() {
				if j, err := w.jails.Get(t.Context(), jid); err != nil || j.Spec.Labels["glasshouse.capability"] != call.Capability.ID {
					t.Errorf("%s serves %s: %v, %v", jid, call.Capability.ID, j.Spec.Labels, err)
				}
				n, _ := call.Input.(*form.Map).Get(form.Keyword("sends"))
				sent.Add(n.(int64)) // during the call
				return func() { ended.Add(1) }
			}
		}
	})
	proxied := func(c *manifest.Capability) {
		c.Network.Mode, c.Network.Hosts, c.Resources.NetworkBytes = "proxy", []string{"example.com"}, 2000
	}
	w.call(w.capability(proxied), in("do", "echo", "sends", 100))
	for _, do := range []string{"wait", "echo"} { // limit exceeded during the call, and found after the response
		if f := w.fails(engine.Network, w.capability(proxied), in("do", do, "sends", 2001)); f.Usage.NetworkOut != 2001 {
			t.Errorf("%s: sent %d bytes, want 2001", do, f.Usage.NetworkOut)
		}
	}
	if _, r := w.call(w.capability(proxied), in("do", "echo", "sends", 2000)); r.Usage.NetworkOut != 2000 || r.Usage.NetworkIn != 4000 {
		t.Errorf("sent %d bytes and received %d, want 2000 and 4000", r.Usage.NetworkOut, r.Usage.NetworkIn)
	}
	if _, r := w.call(w.capability(proxied, func(c *manifest.Capability) { c.NoEgress = true }), in("do", "echo", "sends", 3000)); r.Usage.NetworkOut != 0 {
		t.Errorf("capability with NoEgress: sent %d bytes, want 0", r.Usage.NetworkOut)
	}
	if n := ended.Load(); n != 5 {
		t.Errorf("done was called %d times, want 5", n)
	}
	w.engine.Close()
	w.tune = nil
	w.open()
	if err := w.engine.Prepare(t.Context(), w.capability(proxied)); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Prepare without Meter = %v, want unsupported", err)
	}
}

// A capability is never executed with less isolation than its manifest demands, except for gVisor
// instead of a virtual machine, if the daemon's configuration permits that.
func TestIsolationIsNeverDowngraded(t *testing.T) {
	w := newWorld(t, "runc")
	for _, test := range []struct {
		demanded  manifest.Runtime
		permitted string
		want      string
	}{
		{manifest.GVisor, "", "requires gVisor"},
		{manifest.MicroVM, "", "requires a virtual machine"},
		{manifest.MicroVM, "gvisor", "requires gVisor"},
	} {
		w.engine.Close()
		w.tune = func(c *jailed.Config) { c.MicroVM = test.permitted }
		w.open()
		c := w.capability(func(c *manifest.Capability) { c.Runtime.Type = test.demanded })
		err := w.engine.Prepare(t.Context(), c)
		if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), test.want) || fault.RemedyOf(err) == "" {
			t.Errorf("Prepare of :%s with %q = %v, remedy %q; want %q, with a remedy", test.demanded, test.permitted, err, fault.RemedyOf(err), test.want)
		}
		if r, err := w.try(c, in("do", "echo")); err == nil {
			t.Errorf("Call of :%s with %q = %v, want an error", test.demanded, test.permitted, r.Output)
		}
	}
}

// A capability that demands a virtual machine runs in one, with a kernel of its own.
func TestCallInVirtualMachine(t *testing.T) {
	w := newWorld(t, "microvm")
	w.tree = w.tree[1:] // without interpreters of other languages
	c := w.capability()
	if err := w.engine.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	m, r := w.call(c, in("do", "read", "paths", []string{"/proc/version"}))
	own, err := os.ReadFile("/proc/version")
	if err != nil {
		t.Fatal(err)
	}
	if got := get(m, "text"); got == string(own) || !strings.HasPrefix(fmt.Sprint(got), "Linux version") {
		t.Errorf("kernel of a capability = %q, want another one than that of the host, %q", got, own)
	}
	if r.Isolation != "microvm" {
		t.Errorf("isolation = %q, want microvm", r.Isolation)
	}
	kept := w.capability(func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Session })
	written := w.capability(func(c *manifest.Capability) {
		c.Filesystem.Mounts = []manifest.Mount{{Host: "app", Guest: "/app", Write: true}}
	})
	for _, c := range []*engine.Installed{kept, written} {
		if err := w.engine.Prepare(t.Context(), c); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
			t.Errorf("Prepare of a capability that needs directories of the host = %v, want unsupported with a remedy", err)
		}
	}
}

func TestMountStaysInCapabilityDirectory(t *testing.T) {
	w := newWorld(t, "runc")
	outside := filepath.Join(w.dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"absolute": outside, "relative": "../outside", "further": "absolute"} {
		if err := os.Symlink(to, filepath.Join(w.src, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("app", filepath.Join(w.src, "inside")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"absolute", "relative", "further", "../outside", "/etc", "app/../../outside", "nothing"} {
		for _, change := range []func(*manifest.Capability){
			func(c *manifest.Capability) { c.Filesystem.Mounts = []manifest.Mount{{Host: name, Guest: "/app"}} },
			func(c *manifest.Capability) { c.Runtime.Rootfs = name },
		} {
			c := w.capability(change)
			if err := w.engine.Prepare(t.Context(), c); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "not in the capability's directory") {
				t.Errorf("Prepare with %s = %v, want invalid", name, err)
			}
			if _, err := w.try(c, in("do", "echo")); !errors.Is(err, fault.Invalid) {
				t.Errorf("Call with %s = %v, want invalid", name, err)
			}
		}
	}
	w.call(w.capability(func(c *manifest.Capability) { c.Filesystem.Mounts[0].Host = "inside" }), in("do", "echo"))
	if f := w.fails(engine.Failed, w.capability(), in("do", "write", "paths", []string{"/app/new"})); !strings.Contains(f.Reason, "read-only") {
		t.Errorf("write to a read-only mount = %v", f)
	}
}

func TestCapabilitySecretsAreIsolated(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) { testSecretIsolation(t, runtime) })
	}
}

func testSecretIsolation(t *testing.T, runtime string) {
	given := &grants{all: map[id.Jail][]jail.Secret{}}
	w := newWorld(t, runtime, func(w *world) {
		w.secrets = given
		w.tune = func(c *jailed.Config) {
			c.Grant = func(_ context.Context, jid id.Jail, c *engine.Installed) error {
				for _, name := range c.Secrets {
					given.give(jid, name)
				}
				return nil
			}
		}
	})
	look := in("do", "list", "paths", []string{"/run/secrets"})
	for _, c := range []struct {
		secrets []string
		want    string
	}{{[]string{"KEY_A"}, "KEY_A"}, {[]string{"KEY_B"}, "KEY_B"}, {nil, ""}} {
		m, _ := w.call(w.capability(func(m *manifest.Capability) { m.Secrets = c.secrets }), look)
		if got := words(get(m, "found")); got != c.want {
			t.Errorf("capability with the secrets %v finds %q", c.secrets, got)
		}
	}
	m, _ := w.call(w.capability(func(m *manifest.Capability) { m.Secrets = []string{"KEY_A"} }), in("do", "read", "paths", []string{"/run/secrets/KEY_A"}))
	if get(m, "text") != "the value of KEY_A" {
		t.Errorf("value of its secret = %q", get(m, "text"))
	}
	m, _ = w.call(w.capability(script("/app/wc.sh"), func(m *manifest.Capability) {
		m.Secrets, m.Runtime.Entrypoint, m.Runtime.Stdio = []string{"KEY_A"}, []string{"sh", "-c", "env; cat /proc/*/environ"}, manifest.TextStdio
	}), in())
	if out, _ := get(m, "stdout").(string); strings.Contains(out, "KEY_A") || !strings.Contains(out, "GLASSHOUSE_CALL_SOCKET") {
		t.Errorf("the environment is %q", out)
	}
}

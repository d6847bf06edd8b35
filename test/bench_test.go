//go:build bench

package test_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/host/seccomp"
	"glasshouse/jail/backend/backendtest"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// A contestant measures one operation of one implementation. It drops out at its first error.
type contestant struct {
	name string
	run  func() error

	took []time.Duration
	err  error
}

func (c *contestant) median() time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(c.took))
	return s[len(s)/2]
}

// race runs the contestants in turn, so that other load on the machine affects them equally, and
// prints medians and ratios to the first.
func race(t *testing.T, title string, rounds int, cs []*contestant) {
	for round := range rounds + 2 {
		for _, c := range cs {
			if c.err != nil {
				continue
			}
			begun := time.Now()
			c.err = c.run()
			if round >= 2 { // the first two rounds warm up
				c.took = append(c.took, time.Since(begun))
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s (%d rounds, taking turns)\n", title, rounds)
	fmt.Fprintf(&b, "  %-52s %9s %9s %7s\n", "", "median", "min", "ratio")
	for _, c := range cs {
		if c.err != nil {
			msg, _, _ := strings.Cut(c.err.Error(), "\n")
			fmt.Fprintf(&b, "  %-52s did not run: %.100s\n", c.name, msg)
			continue
		}
		fmt.Fprintf(&b, "  %-52s %6.2f ms %6.2f ms %6.2f×\n", c.name, ms(c.median()), ms(slices.Min(c.took)), float64(c.median())/float64(cs[0].median()))
	}
	fmt.Print(b.String())
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func command(name string, args ...string) func() error {
	return func() error {
		cmd := exec.Command(name, args...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out.Bytes()))
		}
		return nil
	}
}

// runtimeBundle writes a bundle as `runc spec` does, with the same root filesystem as the jails.
// If alike is set, it has the namespaces and the seccomp profile of a jail, except for the user
// namespace, whose id map does not fit the plain tree.
func runtimeBundle(t *testing.T, root string, alike bool, argv ...string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("runc", "spec", "--bundle", dir).CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v %s", err, out)
	}
	name := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	s.Root = &specs.Root{Path: root, Readonly: true}
	s.Process.Args, s.Process.Terminal = argv, false
	if alike {
		s.Linux.Seccomp = seccomp.OCI(runtime.GOARCH)
	}
	data, err = json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBench(t *testing.T) {
	root := backendtest.Rootfs(t)
	cold := open(t, "pool: {size: 0}\n", "--listen", "127.0.0.1:0")
	warm := open(t, "pool: {size: 4}\n")
	ctx := t.Context()

	// --- a command in a running jail
	j := cold.running(wire.CreateJail{})
	tcp := overTCP(cold)
	state := t.TempDir()
	kept := runtimeBundle(t, root, true, "sleep", "1000")
	if err := command("sh", "-c", fmt.Sprintf("runc --root %s run --detach --bundle %s bench </dev/null >/dev/null 2>&1", state, kept))(); err != nil {
		t.Logf("runc: %v", err)
	}
	defer command("runc", "--root", state, "delete", "--force", "bench")()
	restExec := func(cl *client.Client, j wire.Jail) func() error {
		return func() error {
			x, err := cl.Exec(ctx, j.ID, wire.ExecRequest{Argv: []string{"/bin/true"}})
			if err == nil && (x.ExitCode == nil || *x.ExitCode != 0) {
				err = fmt.Errorf("exit %v", x.ExitCode)
			}
			return err
		}
	}
	race(t, "a command in a running jail: /bin/true", 60, []*contestant{
		{name: "bare fork and exec", run: command("/bin/true")},
		{name: "glasshouse exec, REST over the unix socket", run: restExec(cold.Client, j)},
		{name: "glasshouse exec, REST over TCP", run: restExec(tcp, j)},
		{name: "runc exec", run: command("runc", "--root", state, "exec", "bench", "/bin/true")},
	})

	// --- a fresh jail to its first output
	plain, alike := runtimeBundle(t, root, false, "/bin/echo", "hello"), runtimeBundle(t, root, true, "/bin/echo", "hello")
	n := 0
	runtimeRun := func(runtime, bundle string) func() error {
		return func() error {
			n++
			return command(runtime, "--root", state, "run", "--bundle", bundle, fmt.Sprintf("b%d", n))()
		}
	}
	var spent []wire.Jail
	fresh := func(h *daemonHarness, runtime string) func() error {
		return func() error {
			j, err := h.CreateJail(ctx, wire.CreateJail{Runtime: runtime, Start: true})
			if err != nil {
				return err
			}
			spent = append(spent, j)
			x, err := h.Exec(ctx, j.ID, wire.ExecRequest{Argv: []string{"/bin/echo", "hello"}})
			if err == nil && x.Stdout != "hello\n" {
				err = fmt.Errorf("output %q", x.Stdout)
			}
			return err
		}
	}
	race(t, "a fresh jail to its first output, cold: echo hello", 30, []*contestant{
		{name: "runc run, its own default specification", run: runtimeRun("runc", plain)},
		{name: "runc run, with a jail's seccomp profile", run: runtimeRun("runc", alike)},
		{name: "crun run", run: runtimeRun("crun", alike)},
		{name: "glasshouse create and start, exec (two requests)", run: fresh(cold, "runc")},
		{name: "the same on crun", run: fresh(cold, "crun")},
		{name: "(removing those jails; not a contestant)", run: func() error {
			for _, j := range spent {
				cold.DeleteJail(ctx, j.ID)
			}
			spent = nil
			return nil
		}},
	})

	bwrap := append([]string{"--unshare-all", "--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"}, "/bin/echo", "hello")
	pooled := fresh(warm, "")
	race(t, "a fresh jail to its first output, from the pool: echo hello", 30, []*contestant{
		{name: "bwrap --unshare-all", run: command("bwrap", bwrap...)},
		{name: "glasshouse create and start, exec (two requests)", run: pooled},
		{name: "(waiting for the pool to fill; not a contestant)", run: func() error {
			for _, j := range spent {
				warm.DeleteJail(ctx, j.ID)
			}
			spent = nil
			time.Sleep(250 * time.Millisecond)
			return nil
		}},
	})
}

// overTCP returns a client that uses the daemon's TCP listener.
func overTCP(h *daemonHarness) *client.Client {
	token, err := os.ReadFile(filepath.Join(h.data, "token"))
	if err != nil {
		h.Fatal(err)
	}
	cl, err := client.New(client.Options{Addr: "http://" + h.tcpAddr(), Token: strings.TrimSpace(string(token))})
	if err != nil {
		h.Fatal(err)
	}
	return cl
}

package microvm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// ready returns a backend, or skips the test on a host that cannot run virtual machines.
func (h *host) ready(t *testing.T) *microvm.Backend {
	t.Helper()
	b := h.daemon()
	if err := b.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("Probe: %v", err)
	}
	return b
}

// plan returns the plan of a small jail and registers its cleanup.
func (h *host) plan(t *testing.T, b *microvm.Backend) jail.Plan {
	t.Helper()
	name := id.NewJail()
	p := jail.Plan{
		ID: name, Dir: filepath.Join(h.dir, string(name)), Hostname: string(name),
		Lower:  []string{backendtest.Rootfs(t)},
		IDs:    backendtest.NextIDs(t),
		Limits: jail.DefaultLimits, Network: jail.Isolated, Init: backendtest.Init(t),
	}
	p.Limits.DiskMB = 64
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Clean(context.WithoutCancel(t.Context()), p); err != nil {
			t.Errorf("Clean: %v", err)
		}
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("Clean left on the host:\n%s", strings.Join(leaks, "\n"))
		}
	})
	return p
}

// output runs a command in a jail and returns its output.
func output(t *testing.T, i jail.Instance, argv ...string) string {
	t.Helper()
	e := protocol.Exec{ID: id.NewExec(), Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}}
	stream, _, err := control.Dial(i.Control()).Exec(t.Context(), e, &control.AttachOptions{Lossless: true})
	if err != nil {
		t.Fatalf("run %q: %v", argv, err)
	}
	defer stream.Close()
	var out bytes.Buffer
	for {
		chunk, err := stream.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("run %q: %v", argv, err)
		}
		out.Write(chunk.Data)
	}
	if code := stream.Status().Code; code != 0 {
		t.Fatalf("run %q: code %d, %s", argv, code, &out)
	}
	return out.String()
}

// An interrupt after cmpxchg16b ends a kernel that is emulated by QEMU 7.2.
func TestEmulatedKernelDoesWithoutCmpxchg16b(t *testing.T) {
	backendtest.Repeats(t)
	h := newHost(t)
	b := h.ready(t)
	i, err := b.Create(t.Context(), h.plan(t, b))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	features := strings.Fields(output(t, i, "grep", "-m1", "^flags", "/proc/cpuinfo"))
	if !slices.Contains(features, "cx8") || slices.Contains(features, "cx16") {
		t.Errorf("features of the processor = %q, want cx8 and not cx16", features)
	}
}

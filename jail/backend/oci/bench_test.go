package oci_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// BenchmarkCreate measures the creation of a jail until the first output of a command. For
// comparison each round also measures the time that the runtime alone needs to run that
// command in the same prepared bundle. It reports the time per step. Concurrent steps overlap.
func BenchmarkCreate(b *testing.B) {
	for _, runtime := range []string{"runc", "crun", "runsc"} {
		b.Run(runtime, func(b *testing.B) { benchmarkCreate(b, runtime) })
	}
}

func benchmarkCreate(b *testing.B, runtime string) {
	h := newHost(b)
	backend := ready(b, h, runtime)
	var m meter
	backend.Trace(m.add)
	var cold, alone time.Duration
	for range b.N {
		p := h.plan(b, backend)
		began := time.Now()
		inst, err := backend.Create(b.Context(), p)
		if err != nil {
			b.Fatal(err)
		}
		m.add("create", time.Since(began))
		if out, _, err := run(b.Context(), inst, "/bin/echo", "hello"); err != nil || out != "hello\n" {
			b.Fatalf("echo: %q, %v", out, err)
		}
		cold += time.Since(began)
		b.StopTimer()
		inst.Close()
		if err := backend.Clean(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		err = backend.Alone(b.Context(), h.plan(b, backend), func(argv []string, bundle string) error {
			took, err := firstOutput(b.Context(), argv, bundle)
			alone += took
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	m.report(b)
	b.ReportMetric(ms(cold, b.N), "cold-ms/op")
	b.ReportMetric(ms(alone, b.N), "alone-ms/op")
	b.ReportMetric(cold.Seconds()/alone.Seconds(), "cold/alone")
}

// firstOutput runs echo with the runtime's command line and stops the clock at its output.
func firstOutput(ctx context.Context, argv []string, bundle string) (time.Duration, error) {
	config := filepath.Join(bundle, "config.json")
	data, err := os.ReadFile(config)
	if err != nil {
		return 0, err
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return 0, err
	}
	s.Process.Args = []string{"/bin/echo", "hello"}
	if data, err = json.Marshal(s); err != nil {
		return 0, err
	}
	if err := os.WriteFile(config, data, 0o600); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return 0, err
	}
	took := time.Since(began)
	_, err = io.Copy(io.Discard, out)
	return took, errors.Join(err, cmd.Wait())
}

// A meter sums up the durations of steps.
type meter struct {
	mu sync.Mutex
	// +checklocks:mu
	sum map[string]time.Duration
	// +checklocks:mu
	min map[string]time.Duration
}

func (m *meter) add(step string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sum == nil {
		m.sum, m.min = map[string]time.Duration{}, map[string]time.Duration{}
	}
	m.sum[step] += took
	if least, ok := m.min[step]; !ok || took < least {
		m.min[step] = took
	}
}

func (m *meter) report(b *testing.B) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for step, sum := range m.sum {
		b.ReportMetric(ms(sum, b.N), step+"-ms/op")
		b.ReportMetric(ms(m.min[step], 1), step+"-min-ms")
	}
}

func ms(d time.Duration, n int) float64 { return float64(d.Microseconds()) / 1000 / float64(n) }

// BenchmarkRestore measures the restore of a frozen jail with an idle shell, step by step. It
// also reports the CPU time of CRIU and the restored processes, which is more reliable on a
// busy host.
func BenchmarkRestore(b *testing.B) {
	h := newHost(b)
	backend := ready(b, h, "runc")
	if err := backend.CanCheckpoint(b.Context()); err != nil {
		b.Skip(err)
	}
	p := h.plan(b, backend)
	inst, err := backend.Create(b.Context(), p)
	if err != nil {
		b.Fatal(err)
	}
	defer inst.Close()
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"/bin/bash", "-c", "while :; do sleep 1; done"}, Env: []string{"PATH=/usr/bin:/bin"}}
	if _, _, err := control.Dial(inst.Control()).Exec(b.Context(), e, nil); err != nil {
		b.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	br := &branching{TB: b, h: h, b: backend, plan: p}
	images, layer := br.take(&member{br, p, inst})
	var m meter
	backend.Trace(m.add)
	for range b.N {
		q := h.plan(b, backend, func(q *jail.Plan) { q.Sealed = []string{layer} })
		began := time.Now()
		copied, err := backend.Restore(b.Context(), q, images)
		if err != nil {
			b.Fatal(err)
		}
		m.add("restore", time.Since(began))
		b.StopTimer()
		used, err := copied.Stats(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		m.add("cpu", used.CPU) // includes CRIU, which was started in the cgroup
		if err := errors.Join(copied.Kill(b.Context()), copied.Close(), backend.Clean(b.Context(), q)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	m.report(b)
}

package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/gvisor"
)

// runsc is the path of gVisor's binary on this host, or its name if it is missing.
func runsc() string {
	for _, p := range []string{"runsc", os.Getenv("GLASSHOUSE_RUNSC"), "/var/lib/glasshouse/tools/bin/runsc"} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	return "runsc"
}

// A harness has the directories of a test daemon.
type harness struct {
	dir     string
	backend *oci.Backend
	source  *gvisor.Source
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	parent := filepath.Join(os.TempDir(), "glasshouse-gvisor-test")
	must(t, os.MkdirAll(parent, 0o711))
	dir, err := os.MkdirTemp(parent, "")
	must(t, err)
	must(t, os.Chmod(dir, 0o711)) // jails run as other users
	prefix := "glasshouse-gvisor-test-" + filepath.Base(dir)
	h := &harness{
		dir: dir,
		backend: oci.New(oci.Config{
			Runtime: "runsc", Path: runsc(), CgroupPrefix: prefix,
			RunDir: filepath.Join(dir, "run"), Templates: filepath.Join(dir, "templates"), Base: filepath.Join(dir, "base"),
		}),
	}
	h.source = h.gvisor()
	t.Cleanup(func() {
		must(t, os.RemoveAll(dir))
		if tree, err := cgroup.New(prefix); err == nil {
			must(t, tree.Remove())
		}
	})
	for _, probe := range []func(context.Context) error{h.backend.Probe, h.source.Probe} {
		if err := probe(t.Context()); errors.Is(err, fault.Unsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatalf("Probe was inconclusive: %v", err)
		}
	}
	return h
}

// gvisor opens a source as the daemon does.
func (h *harness) gvisor() *gvisor.Source {
	return gvisor.New(gvisor.Config{Path: runsc(), Root: filepath.Join(h.dir, "run", "runsc")})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A guest is a running gVisor jail.
type guest struct {
	inst   jail.Instance
	target observe.Target
}

func (h *harness) guest(t testing.TB, change ...func(*jail.Plan)) *guest {
	t.Helper()
	name := id.NewJail()
	p := jail.Plan{
		ID: name, Dir: filepath.Join(h.dir, string(name)), Hostname: string(name),
		Lower:  []string{backendtest.Rootfs(t)},
		IDs:    backendtest.NextIDs(t),
		Limits: jail.DefaultLimits, Network: jail.Isolated, Init: backendtest.Init(t),
	}
	p.Limits.DiskMB = 64
	for _, c := range change {
		c(&p)
	}
	must(t, os.Mkdir(p.Dir, 0o711))
	t.Cleanup(func() {
		if err := h.backend.Clean(context.WithoutCancel(t.Context()), p); err != nil {
			t.Errorf("Clean: %v", err)
		}
	})
	inst, err := h.backend.Create(t.Context(), p)
	must(t, err)
	t.Cleanup(func() { inst.Close() })
	return &guest{inst, observe.Target{
		Jail: name, Dir: p.Dir, Runtime: "runsc", PID: inst.PID(),
		IDs: observe.IDMap{First: p.IDs.First, Count: p.IDs.Count},
	}}
}

// run runs a program in the jail and returns its output and exit code.
func (g *guest) run(t testing.TB, argv ...string) (string, int) {
	t.Helper()
	out, code, err := run(t.Context(), g.inst.Control(), nil, argv)
	must(t, err)
	return out, code
}

func run(ctx context.Context, socket string, env, argv []string) (string, int, error) {
	e := protocol.Exec{ID: id.NewExec(), Argv: argv, Env: append([]string{"PATH=/usr/bin:/bin"}, env...)}
	stream, _, err := control.Dial(socket).Exec(ctx, e, &control.AttachOptions{Lossless: true})
	if err != nil {
		return "", 0, err
	}
	defer stream.Close()
	var out bytes.Buffer
	for {
		chunk, err := stream.Next()
		if err == io.EOF {
			return out.String(), stream.Status().Code, nil
		}
		if err != nil {
			return "", 0, err
		}
		out.Write(chunk.Data)
	}
}

// watch records a jail until the test ends.
func (h *harness) watch(t testing.TB, g *guest, s event.Selection) (observe.Watch, *keeper) {
	t.Helper()
	k := &keeper{}
	target := g.target
	target.Selection = s.Defaults(event.Selection{})
	w, err := h.source.Attach(t.Context(), target, k)
	must(t, err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return w, k
}

// A keeper is an in-memory log.
type keeper struct {
	mu     sync.Mutex
	events []event.Event
	full   bool
}

var _ observe.Sink = (*keeper)(nil)

func (k *keeper) Append(e *event.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	own := *e
	own.Seq = uint64(len(k.events) + 1)
	k.events = append(k.events, own)
}

func (k *keeper) HasRoom() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.full
}

func (k *keeper) setFull(full bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.full = full
}

func (k *keeper) Last() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return uint64(len(k.events))
}

func (k *keeper) Written() uint64 { return k.Last() }
func (k *keeper) FlushSoon()      {}

func (k *keeper) Kept(since int64, of event.Type, each func(*event.Event)) error {
	for _, e := range k.all(func(e *event.Event) bool { return e.Type == of && e.NS >= since }) {
		each(&e)
	}
	return nil
}

// all returns the events for which is returns true.
func (k *keeper) all(is func(*event.Event) bool) []event.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	var found []event.Event
	for i := range k.events {
		if is(&k.events[i]) {
			found = append(found, k.events[i])
		}
	}
	return found
}

// lines formats events for messages.
func lines(events []event.Event) string {
	var b []byte
	for i := range events {
		b = append(events[i].AppendJSON(b), '\n')
	}
	return string(b)
}

func drain(t testing.TB, w observe.Watch) {
	t.Helper()
	must(t, w.Drain(t.Context()))
}

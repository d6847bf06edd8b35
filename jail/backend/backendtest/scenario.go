package backendtest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// A box is a jail in a scenario.
type box struct {
	suite *suite
	plan  jail.Plan
	inst  jail.Instance
	ctl   *control.Client
}

// newPlan plans a jail in a new directory. At the end of the test the jail is cleaned, checked
// for leaks and removed.
func (s *suite) newPlan(t *testing.T, change ...func(*jail.Plan)) jail.Plan {
	t.Helper()
	name := id.NewJail()
	p := jail.Plan{
		ID:       name,
		Dir:      filepath.Join(shortTempDir(t), string(name)),
		Runtime:  s.opts.Runtime,
		Hostname: string(name),
		Lower:    []string{s.lower},
		IDs:      s.nextIDs(t),
		Limits:   jail.DefaultLimits,
		Network:  jail.Isolated,
		Init:     s.init,
	}
	p.Limits.DiskMB = 64
	for _, c := range change {
		c(&p)
	}
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := s.backend.Clean(ctx, p); err != nil {
			t.Errorf("Clean: %v", err)
		}
		mustNotLeak(t, p)
		if r, ok := s.backend.(jail.Remover); ok {
			if err := r.Remove(ctx, p); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
	})
	return p
}

// shortTempDir is t.TempDir with a path that leaves room for the name of a socket: sun_path has
// 108 bytes, including the final null (unix(7)).
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the jail's directory: %v", err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// nextIDs returns a range of host ids that no other jail of this host uses.
func (s *suite) nextIDs(t testing.TB) jail.IDRange {
	if s.opts.IDs != nil {
		return *s.opts.IDs
	}
	return NextIDs(t)
}

// newBox creates a jail and waits until its init responds.
func (s *suite) newBox(t *testing.T, change ...func(*jail.Plan)) *box {
	t.Helper()
	return s.create(t, s.newPlan(t, change...))
}

func (s *suite) create(t *testing.T, p jail.Plan) *box {
	t.Helper()
	if s.restored && isNew(t, p) {
		return s.recreate(t, p)
	}
	inst, err := s.backend.Create(t.Context(), p)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { inst.Close() })
	return s.adopt(t, p, inst)
}

func (s *suite) adopt(t *testing.T, p jail.Plan, inst jail.Instance) *box {
	t.Helper()
	b := &box{suite: s, plan: p, inst: inst, ctl: control.Dial(inst.Control())}
	if _, err := b.ctl.WaitReady(deadline(t, 30*time.Second)); err != nil {
		t.Fatalf("init does not respond on %s: %v", inst.Control(), err)
	}
	return b
}

// kill kills the jail's processes and checks that none is left.
func (b *box) kill(t *testing.T) {
	t.Helper()
	if err := b.inst.Kill(deadline(t, 30*time.Second)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	if left := processes(func(dir string, status []byte) bool { return isProcessOf(dir, status, b.plan) }); len(left) > 0 {
		t.Fatalf("processes left after Kill: %v", left)
	}
}

// A result is the outcome of a command in a jail.
type result struct {
	stdout, stderr string
	status         protocol.ExecStatus
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d, stdout %q, stderr %q", r.status.Code, r.stdout, r.stderr)
}

var path = []string{"PATH=/usr/bin:/bin", "HOME=/root", "LC_ALL=C"}

// exec runs a command and waits for its end.
func (b *box) exec(t *testing.T, e protocol.Exec) result {
	t.Helper()
	r, err := b.tryExec(t, e)
	if err != nil {
		t.Fatalf("exec %q: %v\n%s", e.Argv, err, b.state())
	}
	return r
}

// state describes a jail that does not answer.
func (b *box) state() string {
	text := "init runs"
	select {
	case <-b.inst.Done():
		text = "init has ended"
	case <-time.After(time.Second): // a connection is closed before the process has exited
	}
	if x, ok := b.inst.(jail.ExitExplainer); ok && x.ExitReason() != "" {
		text += ": " + x.ExitReason()
	}
	st, err := b.inst.Stats(context.Background())
	return fmt.Sprintf("%s; statistics: %+v, %v", text, st, err)
}

func (b *box) tryExec(t *testing.T, e protocol.Exec) (result, error) {
	t.Helper()
	ctx := deadline(t, 60*time.Second)
	e.ID = id.NewExec()
	if e.Env == nil {
		e.Env = path
	}
	if e.Timeout == 0 {
		e.Timeout = 50 * time.Second
	}
	stream, _, err := b.ctl.Exec(ctx, e, &control.AttachOptions{Lossless: true})
	if err != nil {
		return result{}, err
	}
	defer stream.Close()
	var stdout, stderr bytes.Buffer
	for {
		chunk, err := stream.Next()
		if err == io.EOF { // a lost connection is another error that wraps io.EOF
			break
		}
		if err != nil {
			return result{}, err
		}
		if chunk.Stream == protocol.Stderr {
			stderr.Write(chunk.Data)
		} else {
			stdout.Write(chunk.Data)
		}
	}
	return result{stdout.String(), stderr.String(), stream.Status()}, nil
}

// try runs a shell script as root and returns how it ended.
func (b *box) try(t *testing.T, script string) result {
	t.Helper()
	return b.exec(t, protocol.Exec{Argv: []string{"/bin/bash", "-c", script}})
}

// sh runs a shell script as root, which must succeed, and returns its output
// without the last newline.
func (b *box) sh(t *testing.T, script string) string {
	t.Helper()
	r := b.try(t, script)
	if r.status.Code != 0 {
		t.Fatalf("in the jail, %s: %v", script, r)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

// start starts a shell script and does not wait for it.
func (b *box) start(t *testing.T, script string) id.Exec {
	t.Helper()
	x, err := b.tryStart(t, script)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (b *box) tryStart(t *testing.T, script string) (id.Exec, error) {
	t.Helper()
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"/bin/bash", "-c", script}, Env: path}
	if _, _, err := b.ctl.Exec(deadline(t, 30*time.Second), e, nil); err != nil {
		return "", fmt.Errorf("start %s: %w", script, err)
	}
	return e.ID, nil
}

// eventually waits until cond is true.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("timed out after 30 seconds: %s", what)
}

func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// filtered reports whether go test runs only a part of the tests.
func filtered() bool {
	run, skip := flag.Lookup("test.run"), flag.Lookup("test.skip")
	return strings.Contains(run.Value.String(), "/") || skip.Value.String() != ""
}

package jailinit_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/id"
	jailinit "glasshouse/jail/init"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// TestMain lets the test binary run as an init, as a client of one, or as a process that sends
// signals to one.
func TestMain(m *testing.M) {
	if socket := os.Getenv("TEST_INIT_SOCKET"); socket != "" {
		os.Unsetenv("TEST_INIT_SOCKET")
		in := &jailinit.Init{Socket: socket, FDListener: os.Getenv("TEST_INIT_FDLISTENER") != ""}
		in.ReaderGrace, _ = time.ParseDuration(os.Getenv("TEST_INIT_GRACE"))
		if err := in.Open(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		in.Serve(context.Background())
		os.Exit(0)
	}
	if socket := os.Getenv("TEST_CLIENT_SOCKET"); socket != "" {
		os.Exit(clientMain(socket, os.Args[1:]))
	}
	if way := os.Getenv("TEST_SIGNALS"); way != "" {
		os.Exit(signalMain(way))
	}
	if os.Getenv("TEST_FAULT") != "" {
		os.Exit(faultMain())
	}
	os.Exit(m.Run())
}

// A jail is an init in its own process, and a client of it.
type jail struct {
	*control.Client
	t   testing.TB
	cmd *exec.Cmd
	dir string
}

// start starts an init with the given environment and PATH.
func start(t testing.TB, env ...string) *jail {
	t.Helper()
	dir := t.TempDir()
	return startIn(t, dir, exec.Command(os.Args[0]), env...)
}

func startIn(t testing.TB, dir string, cmd *exec.Cmd, env ...string) *jail {
	t.Helper()
	socket := filepath.Join(dir, "init.sock")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TEST_INIT_SOCKET=" + socket, "HOME=/root"}, env...)
	cmd.Stderr = os.Stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j := &jail{Client: control.Dial(socket), t: t, cmd: cmd, dir: dir}
	t.Cleanup(j.end)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := j.WaitReady(ctx); err != nil {
		t.Fatalf("WaitReady: %v", err)
	}
	return j
}

func (j *jail) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for range 100 {
		if left, err := j.Terminate(ctx, "KILL"); err != nil || left == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	j.cmd.Process.Kill()
	j.cmd.Wait()
}

// sh returns a request that runs a shell script.
func sh(script string) protocol.Exec {
	return protocol.Exec{ID: id.NewExec(), Argv: []string{"sh", "-c", script}}
}

// run runs e to its end and returns its output.
func (j *jail) run(e protocol.Exec) (stdout, stderr string, status protocol.ExecStatus) {
	j.t.Helper()
	s, _, err := j.Exec(j.t.Context(), e, &control.AttachOptions{Lossless: true})
	if err != nil {
		j.t.Fatalf("Exec(%q): %v", e.Argv, err)
	}
	defer s.Close()
	out := j.collect(s)
	return out[protocol.Stdout], out[protocol.Stderr], s.Status()
}

func (j *jail) collect(s *control.Stream) map[protocol.Stream]string {
	j.t.Helper()
	var out [3]strings.Builder
	for {
		c, err := s.Next()
		if err == io.EOF {
			return map[protocol.Stream]string{protocol.Stdout: out[1].String(), protocol.Stderr: out[2].String()}
		}
		if err != nil {
			j.t.Fatalf("Next: %v", err)
		}
		if c.Lost != 0 {
			j.t.Fatalf("%d bytes lost before %d", c.Lost, c.Offset)
		}
		out[c.Stream].Write(c.Data)
	}
}

func TestOutputAndExitCode(t *testing.T) {
	j := start(t)
	stdout, stderr, status := j.run(sh("echo out; echo err >&2; exit 7"))
	if stdout != "out\n" || stderr != "err\n" || status.Code != 7 || status.Ended == nil {
		t.Errorf("stdout %q, stderr %q, status %+v; want out, err and code 7", stdout, stderr, status)
	}
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asMain is a variable that makes the test binary run as glasshouse-agent.
const asMain = "GLASSHOUSE_AGENT_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" || len(os.Args) > 1 && os.Args[1] == "limited" { // glasshouse-agent starts itself with limited
		os.Unsetenv(asMain)
		main()
		return
	}
	os.Exit(m.Run())
}

// agent returns a command that runs glasshouse-agent. Its standard error is part of the output.
func agent(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	return cmd
}

func output(cmd *exec.Cmd) (string, int) {
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		return err.Error(), -1
	}
	return string(out), 0
}

// gateway starts a gateway on a unix socket that responds with the received request.
func gateway(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "g.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %q %q", r.Method, r.URL.RequestURI(), r.Header.Get("Glasshouse-Token"), r.Header.Get("Authorization"))
		if r.URL.Path == "/slowly" {
			for r.Context().Err() == nil { // until the client disconnects
				io.WriteString(w, ".")
				w.(http.Flusher).Flush()
				time.Sleep(5 * time.Millisecond)
			}
		}
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return path
}

func TestExitCode(t *testing.T) {
	for _, mode := range [][]string{{"keep"}, {"shim", "-socket", ""}} {
		for script, want := range map[string]int{"exit 0": 0, "exit 42": 42, "kill -9 $$": 137, "kill $$": 143} {
			if out, code := output(agent(t, append(mode, "--", "sh", "-c", script)...)); code != want {
				t.Errorf("%v %s: exit code %d, want %d: %s", mode, script, code, want, out)
			}
		}
		for argv, want := range map[string]int{"/no/such": 127, "nosuch": 127, "/etc/passwd": 126, "": 2} {
			if out, code := output(agent(t, append(append(mode, "--"), strings.Fields(argv)...)...)); code != want || out == "" {
				t.Errorf("%v %q: exit code %d, want %d: %q", mode, argv, code, want, out)
			}
		}
	}
	for _, args := range [][]string{{"no-such-mode"}, {"shim", "-no-such-flag"}, {"keep", "-data", "x"}} {
		if out, code := output(agent(t, args...)); code != 2 || out == "" {
			t.Errorf("%v: exit code %d: %q", args, code, out)
		}
	}
}

func TestSignalsAreForwardedToAgentOnly(t *testing.T) {
	cmd := agent(t, "keep", "--", "sh", "-c", `trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.05; done`)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	defer cmd.Process.Kill()
	up := make([]byte, 3)
	if _, err := io.ReadFull(r, up); err != nil || string(up) != "up\n" {
		t.Fatalf("%q, %v", up, err)
	}
	cmd.Process.Signal(syscall.SIGUSR1)
	rest, _ := io.ReadAll(r)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 9 || string(rest) != "got\n" {
		t.Errorf("%v, %q", err, rest)
	}
}

func TestAgentInheritsStreamsOnly(t *testing.T) {
	for _, mode := range [][]string{{"keep"}, {"shim", "-socket", ""}} {
		cmd := agent(t, append(mode, "--", "sh", "-c", "ls /proc/$$/fd")...)
		for range 5 {
			f, err := os.Open("/dev/zero")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
		if out, code := output(cmd); code != 0 || strings.Join(strings.Fields(out), " ") != "0 1 2" {
			t.Errorf("%v: inherited descriptors are %q", mode, out)
		}
	}
}

func TestLimitsApplyToAgent(t *testing.T) {
	for argv, want := range map[string]int{"/no/such": 126, "nosuch": 126, "true": 0, "false": 1} {
		if out, code := output(agent(t, "keep", "-data", "1048576", "--", argv)); code != want || want > 1 && !strings.Contains(out, argv) {
			t.Errorf("with limits %s: exit code %d, want %d: %q", argv, code, want, out)
		}
	}
	out, code := output(agent(t, "keep", "-data", "104857600", "-nproc", "123", "--", "sh", "-c", "grep -E 'Max (data size|processes|core)' /proc/self/limits"))
	if fields := strings.Join(strings.Fields(out), " "); code != 0 || !strings.Contains(fields, "Max data size 104857600 104857600") ||
		!strings.Contains(fields, "Max core file size 0 0") || !strings.Contains(fields, "Max processes 123 123") {
		t.Errorf("%d\n%s", code, out)
	}
}

// TestShimInNetworkNamespace runs the shim in a new network namespace, whose loopback is down.
func TestShimInNetworkNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("creating a network namespace needs root")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	io.WriteString(w, "tok-1")
	w.Close()
	const script = `curl -sS -H "Glasshouse-Token: mine" -H "Authorization: Bearer any" "http://localhost:4097/a%2Fb?q=;&x"; echo
curl -sSN http://localhost:4097/slowly 2>/dev/null | head -c 11; curl -sS http://127.0.0.1:4096/ 2>&1; true`
	cmd := agent(t, "shim", "-socket", gateway(t), "-token-fd", "3", "--", "sh", "-c", script)
	cmd.ExtraFiles = []*os.File{r}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, code := output(cmd)
	if code != 0 || !strings.HasPrefix(out, `GET /a%2Fb?q=;&x "tok-1" "Bearer any"`+"\n") || !strings.Contains(out, "GET /slowly") || !strings.Contains(out, "port 4096") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestShimWithoutGateway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("creating a network namespace needs root")
	}
	cmd := agent(t, "shim", "-socket", "/no/such.sock", "--", "curl", "-sS", "-w", "%{http_code} %{content_type}", "http://localhost:4097/run")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if out, code := output(cmd); code != 0 || !strings.Contains(out, `"remedy":"try again later"`) || !strings.Contains(out, "503 application/problem+json") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestReadToken(t *testing.T) {
	file := func(text string) string {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
		w.Close()
		fd, err := unix.Dup(int(r.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		return fmt.Sprint(fd)
	}
	if got, err := readToken(file("tok-1")); got != "tok-1" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "a\n", "a b", strings.Repeat("x", 4097), "\x00"} {
		if got, err := readToken(file(bad)); err == nil {
			t.Errorf("readToken accepts %q as %q", bad, got)
		}
	}
	for _, fd := range []string{"", "x", "0", "2", "-1"} {
		if _, err := readToken(fd); err == nil {
			t.Errorf("readToken accepts the descriptor %q", fd)
		}
	}
}

func TestLifelineEndsAllProcesses(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mark := "MARK=" + t.TempDir()
	cmd := agent(t, "keep", "-lifeline-fd", "3", "--", "sh", "-c", `(setsid sh -c 'trap "" HUP TERM; sleep 1000' &) ; setsid sleep 1000 & echo up; wait`)
	cmd.Env = append(cmd.Env, mark)
	cmd.ExtraFiles = []*os.File{r}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	io.ReadFull(out, make([]byte, 3))
	w.Close()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		cmd.Process.Kill()
		t.Fatal("the agent did not exit")
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, d := range dirs {
		if b, _ := os.ReadFile(d); bytes.Contains(b, []byte(mark)) {
			t.Errorf("process %s still runs", d)
		}
	}
}

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// screenOf returns what a terminal shows after it has received seen, without empty lines at the
// end. It fails the test if seen has other control sequences than those of the progress line.
func screenOf(t *testing.T, seen string) string {
	t.Helper()
	lines := [][]rune{nil}
	col := 0
	for rest := seen; rest != ""; {
		last := len(lines) - 1
		if after, ok := strings.CutPrefix(rest, "\x1b[K"); ok {
			lines[last], rest = lines[last][:col], after
			continue
		}
		r := []rune(rest)[0]
		rest = rest[len(string(r)):]
		switch r {
		case '\r':
			col = 0
		case '\n':
			lines = append(lines, make([]rune, col))
		case '\x1b':
			t.Errorf("unexpected control sequence in %q", seen)
		default:
			lines[last] = append(lines[last][:col], append([]rune{r}, lines[last][min(col+1, len(lines[last])):]...)...)
			col++
		}
	}
	var text []string
	for _, l := range lines {
		text = append(text, string(l))
	}
	return strings.TrimRight(strings.Join(text, "\n"), "\n")
}

// final returns what the terminal shows after the command has ended.
func (c *console) final() string {
	c.Helper()
	io.WriteString(c.tty, "END")
	c.waitFor("END")
	before, _, _ := strings.Cut(c.seen, "END")
	return screenOf(c.T, before)
}

// waitForLines waits until the terminal has received text n times.
func (c *console) waitForLines(text string, n int) {
	c.Helper()
	for limit := time.After(30 * time.Second); strings.Count(c.seen, text) < n; {
		select {
		case more := <-c.shown:
			c.seen += more
		case <-limit:
			c.Fatalf("the terminal shows %q, want %d times %q", c.seen, n, text)
		}
	}
}

// A slowDaemon answers one request only after release is closed, and reports no images.
type slowDaemon struct {
	addr    string
	asked   chan struct{} // receives each request to the slow path
	release chan struct{}
}

func newSlowDaemon(t *testing.T, request, answer string) *slowDaemon {
	t.Helper()
	d := &slowDaemon{asked: make(chan struct{}, 10), release: make(chan struct{})}
	d.addr = serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Method + " " + r.URL.Path; got != request {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"items":[]}`)
			return
		}
		io.Copy(io.Discard, r.Body)
		d.asked <- struct{}{}
		select {
		case <-d.release:
		case <-r.Context().Done():
			return
		}
		if strings.Contains(answer, `"detail"`) {
			w.Header().Set("Content-Type", wire.ProblemType)
			w.WriteHeader(http.StatusInternalServerError)
		}
		io.WriteString(w, answer)
	})
	return d
}

func TestSlowRequestShowsProgress(t *testing.T) {
	t.Parallel()
	var waiting []func() // the commands run concurrently
	for name, tt := range map[string]struct {
		line, request, answer string
		shows                 string
		code                  int
		left                  string // on the screen in the end
	}{
		"create": {
			"jail create", "POST /jails", jailJSON,
			"creating the jail: no root filesystem is stored yet, and preparing the first one can take minutes (", 0, aJail,
		},
		"create with an image": {
			"jail create --rootfs oci:alpine", "POST /jails", jailJSON,
			"creating the jail: the root filesystem alpine is not stored yet and is downloaded (", 0, aJail,
		},
		"run": {
			"run --no-workspace true", "POST /jails", `{"title":"t","status":500,"detail":"no space left"}`,
			"creating the jail: no root filesystem", exitDaemon, "glasshouse: no space left",
		},
		"start":     {"jail start " + aJail, "POST /jails/" + aJail + "/start", jailJSON, "starting the jail (", 0, aJail},
		"snapshot":  {"snapshot create " + aJail, "POST /jails/" + aJail + "/snapshot", snapJSON, "taking the snapshot (", 0, aSnapshot},
		"restore":   {"restore " + aSnapshot, "POST /snapshots/" + aSnapshot + "/restore", jailJSON, "restoring the snapshot (", 0, aJail},
		"rewind":    {"rewind --force " + aJail + " " + aSnapshot, "POST /jails/" + aJail + "/rewind", jailJSON, "rewinding the jail (", 0, aJail},
		"branch":    {"branch " + aJail, "POST /jails/" + aJail + "/branch", `{"jails":[` + jailJSON + `]}`, "branching the jail (", 0, aJail},
		"prepare":   {"rootfs prepare debian:trixie", "POST /images", `{"digest":"d","source":"debian:trixie"}`, "preparing the root filesystem: the root filesystem debian trixie is not stored yet and is downloaded (", 0, "debian:trixie d"},
		"the error": {"jail start " + aJail, "POST /jails/" + aJail + "/start", `{"title":"t","status":500,"detail":"the init died"}`, "starting the jail (", 1, "glasshouse: the init died"},
		"hostile":   {"jail create --rootfs nix:\x1b[2J\u202e", "POST /jails", jailJSON, `the root filesystem nix \x1b[2J\u202e is not stored yet and is built`, 0, aJail},
	} {
		c := newConsole(t)
		c.resize(200, 20)
		d := newSlowDaemon(t, tt.request, tt.answer)
		ended := c.start(t.Context(), nil, append([]string{"--addr", d.addr}, strings.Fields(tt.line)...)...)
		waiting = append(waiting, func() {
			c.waitFor(tt.shows)
			close(d.release)
			c.wait(ended, tt.code)
			if got := c.final(); got != tt.left {
				t.Errorf("%s: the terminal shows %q in the end, want %q", name, got, tt.left)
			}
		})
	}
	for _, wait := range waiting {
		wait()
	}
}

func TestProgressIsUpdated(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	d := newSlowDaemon(t, "POST /jails/"+aJail+"/start", jailJSON)
	ended := c.start(t.Context(), nil, "--addr", d.addr, "jail", "start", aJail)
	c.waitForLines(eraseLine+"starting the jail (", 2)
	close(d.release)
	c.wait(ended, 0)
	got := c.final()
	seconds := regexp.MustCompile(`\(([1-9]\d*)s\)`).FindAllStringSubmatch(c.seen, 2)
	if len(seconds) != 2 || seconds[0][1] == seconds[1][1] || got != aJail {
		t.Errorf("the terminal shows %q and in the end %q, want the elapsed time in one line, then %q", c.seen, got, aJail)
	}
}

func TestProgressFitsTerminal(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.resize(20, 20)
	d := newSlowDaemon(t, "POST /jails", jailJSON)
	ended := c.start(t.Context(), nil, "--addr", d.addr, "jail", "create")
	c.waitFor("creating the jail:…") // 19 columns
	close(d.release)
	c.wait(ended, 0)
	if got := c.final(); got != aJail {
		t.Errorf("the terminal shows %q in the end, want %q", got, aJail)
	}
}

func TestNoProgress(t *testing.T) {
	t.Parallel()
	slow := func(t *testing.T) string {
		d := newSlowDaemon(t, "POST /jails", jailJSON)
		go func() {
			<-d.asked
			time.Sleep(progressDelay + progressDelay/2)
			close(d.release)
		}()
		return d.addr
	}
	onTerminal := func(t *testing.T, env map[string]string, addr string, args ...string) {
		c := newConsole(t)
		c.wait(c.start(t.Context(), env, append([]string{"--addr", addr, "jail", "create"}, args...)...), 0)
		if got := c.final(); strings.Contains(c.seen, "creating") || strings.Contains(c.seen, "\x1b") || !strings.Contains(got, aJail) {
			t.Errorf("the terminal shows %q, want only the result", c.seen)
		}
	}
	for name, run := range map[string]func(t *testing.T){
		"a fast request": func(t *testing.T) {
			d := newSlowDaemon(t, "POST /jails", jailJSON)
			close(d.release)
			onTerminal(t, nil, d.addr)
		},
		"JSON":            func(t *testing.T) { onTerminal(t, nil, slow(t), "--json") },
		"names":           func(t *testing.T) { onTerminal(t, nil, slow(t), "-o", "name") },
		"a dumb terminal": func(t *testing.T) { onTerminal(t, map[string]string{"TERM": "dumb"}, slow(t)) },
		"a pipe": func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var out bytes.Buffer
			code := Run(t.Context(), []string{"--addr", slow(t), "jail", "create"}, Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: w, Getenv: func(string) string { return "" }})
			w.Close()
			errs, err := io.ReadAll(r)
			if code != 0 || out.String() != aJail+"\n" || len(errs) > 0 || err != nil {
				t.Errorf("got exit code %d, %q and %q, %v; want no message", code, out.String(), errs, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t) })
	}
}

func TestTransferShowsBytes(t *testing.T) {
	t.Parallel()
	const length = 3 << 20
	release := make(chan struct{})
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			io.Copy(io.Discard, r.Body)
			<-release
			io.WriteString(w, snapJSON)
			return
		}
		if r.URL.Query().Has("stat") {
			fmt.Fprintf(w, `{"name":"x","type":"file","size":%d}`, length)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/files") {
			w.Header().Set("Content-Length", fmt.Sprint(length))
		}
		w.Write(make([]byte, length-1))
		w.(http.Flusher).Flush()
		<-release
		w.Write(make([]byte, 1))
	})
	archive := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(archive, make([]byte, length+5), 0o644); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copied")
	in, err := os.Open(archive)
	if err == nil {
		_, err = in.Seek(5, io.SeekStart)
	}
	if err != nil {
		t.Fatal(err)
	}
	var waiting []func()
	for line, want := range map[string]string{
		"snapshot import":               "importing the snapshot, 3 MiB of 3 MiB (",
		"snapshot export " + aSnapshot:  "exporting the snapshot, 3 MiB (",
		"cp " + aJail + ":/x " + copied: "reading files of the jail, 3 MiB of 3 MiB (",
	} {
		c := newConsole(t)
		c.resize(100, 20)
		var out bytes.Buffer
		ended := make(chan int, 1)
		go func() {
			ended <- Run(t.Context(), append([]string{"--addr", addr}, strings.Fields(line)...), Env{Stdin: in, Stdout: &out, Stderr: c.tty, Getenv: func(string) string { return "" }})
		}()
		waiting = append(waiting, func() {
			c.wait(ended, 0)
			if got := c.final(); got != "" {
				t.Errorf("%s: the terminal shows %q in the end, want nothing", line, got)
			}
			if strings.Contains(line, "export") && out.Len() != length {
				t.Errorf("exported %d bytes, want %d", out.Len(), length)
			}
		})
		c.waitFor(want)
	}
	close(release)
	for _, wait := range waiting {
		wait()
	}
	if st, err := os.Stat(copied); err != nil || st.Size() != length {
		t.Errorf("copied: got %v, %v, want %d bytes", st, err, length)
	}
}

func TestFollowedRunShowsWait(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/images" {
			io.WriteString(w, `{"items":[]}`)
			return
		}
		if !strings.HasPrefix(r.URL.Path, "/chat/events/") {
			state := "active"
			select {
			case <-next:
				state = "done"
			default:
			}
			fmt.Fprintf(w, `{"id":"r-1","session_id":"s1","state":%q,"agent":{"spawner":"jail","jail":{"rootfs":{"debian":"trixie"}}}}`, state)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		select {
		case <-next:
		case <-r.Context().Done():
		}
		io.WriteString(w, `data: {"seq":1,"run":"r-1","kind":"step.ended","at":"2026-01-02T15:04:05Z","body":{"kind":"tool","name":"bash","state":"done"}}`+"\n\n")
	})
	c := newConsole(t)
	c.resize(200, 20)
	ended := c.start(t.Context(), nil, "--addr", addr, "goal", "x")
	c.waitFor("starting the agent: the root filesystem debian trixie is not stored yet and is downloaded (")
	close(next)
	c.wait(ended, 0)
	got := strings.Split(c.final(), "\n")
	if len(got) != 2 || got[0] != "r-1 in session s1" || !strings.HasSuffix(got[1], "  tool bash: done") {
		t.Errorf("the terminal shows %q in the end, want the session and the step", got)
	}
}

// onTerminal is a command in its own process, which an interrupt may end.
func onTerminal(args []string) int {
	return Run(context.Background(), args, Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: func(string) string { return "" }})
}

// process starts a command in its own process, with the console as controlling terminal.
func (c *console) process(args ...string) *exec.Cmd {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), "/proc/self/exe")
	cmd.Args = append([]string{"on-terminal"}, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.tty, c.tty, c.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	return cmd
}

func TestInterruptRemovesProgress(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	d := newSlowDaemon(t, "POST /jails/"+aJail+"/start", jailJSON)
	cmd := c.process("--addr", d.addr, "jail", "start", aJail)
	c.waitFor("starting the jail (")
	c.typeText("\x03")
	err := cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Errorf("the command ended with %v, want that the interrupt ended it", err)
	}
	if got := c.final(); got != "" {
		t.Errorf("the terminal shows %q after the interrupt, want nothing", got)
	}
}

// A command that handles interrupts itself, to remove its branches, continues to do so.
func TestProgressLeavesInterruptToCommand(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	d := newSlowDaemon(t, "POST /snapshots/"+aSnapshot+"/branch", `{"jails":[`+strings.Replace(jailJSON, `"name"`, `"origin":{"snapshot":"`+aSnapshot+`","number":1},"name"`, 1)+`]}`)
	cmd := c.process("--addr", d.addr, "branch", aSnapshot, "--each", "true")
	c.waitFor("branching the snapshot (")
	c.typeText("\x03")
	c.waitFor("^C")
	close(d.release)
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != exitError {
		t.Errorf("the command ended with %v, want exit code %d", err, exitError)
	}
	if got := c.final(); !strings.HasPrefix(got, "BRANCH") {
		t.Errorf("the terminal shows %q in the end, want the table", got)
	}
}

// The second interrupt ends such a command, like without a progress.
func TestSecondInterruptRemovesProgress(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	d := newSlowDaemon(t, "POST /snapshots/"+aSnapshot+"/branch", `{}`)
	cmd := c.process("--addr", d.addr, "branch", aSnapshot, "--each", "true")
	c.waitFor("branching the snapshot (")
	c.typeText("\x03")
	c.waitForLines("branching the snapshot (", strings.Count(c.seen, "branching the snapshot (")+2) // it has handled the first one
	c.typeText("\x03")
	err := cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Errorf("the command ended with %v, want that the second interrupt ended it", err)
	}
	if got := c.final(); got != "" {
		t.Errorf("the terminal shows %q after the interrupts, want nothing", got)
	}
}

func TestMissingRootfs(t *testing.T) {
	images := []wire.Image{{Sources: []string{"debian:bookworm"}}, {Sources: []string{"oci:index.docker.io/library/alpine:3.20@sha256:d", "nix:python"}}}
	for _, tt := range []struct {
		r       wire.Rootfs
		missing bool
	}{
		{wire.Rootfs{}, false},
		{wire.Rootfs{Debian: "bookworm"}, false},
		{wire.Rootfs{Debian: "trixie"}, true},
		{wire.Rootfs{OCI: "alpine:3.20"}, false},
		{wire.Rootfs{OCI: "alpine"}, true},
		{wire.Rootfs{OCI: "alpine:3.2"}, true},
		{wire.Rootfs{OCI: "/srv/image.tar"}, false},
		{wire.Rootfs{OCI: "::"}, false},
		{wire.Rootfs{Nix: "python"}, false},
		{wire.Rootfs{Nix: "node"}, true},
		{wire.Rootfs{Dir: "/srv"}, false},
		{wire.Rootfs{Host: true}, false},
	} {
		if got := missingFrom(images, tt.r); (got != "") != tt.missing {
			t.Errorf("%+v: got %q, want a message: %t", tt.r, got, tt.missing)
		}
	}
}

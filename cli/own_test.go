package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
)

// roles maps names of this test program to functions that it runs instead of the tests. They
// return its exit code.
var roles = map[string]func(args []string) int{
	"glasshouse":  fakeDaemon, // the name under which a command starts a daemon
	"first":       fakeInit,
	"child":       fakeInitChild,
	"on-terminal": onTerminal,
}

// fakeDaemon is a daemon that a command has started. The file play of its data directory selects
// its behaviour.
func fakeDaemon(args []string) int {
	dir := args[slices.Index(args, "--data")+1]
	script, err := os.ReadFile(filepath.Join(dir, "play"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if text, fails := strings.CutPrefix(string(script), "fail: "); fails {
		fmt.Fprintln(os.Stderr, text)
		return 1
	}
	// The lock shows the test when this process has ended.
	alive, err := os.Create(filepath.Join(dir, "alive"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer alive.Close()
	err = flock(alive, syscall.LOCK_EX)
	var l net.Listener
	if err == nil {
		l, err = net.Listen("unix", filepath.Join(dir, "glasshouse.sock"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	unused := make(chan struct{})
	if err := stopWhenIdle(dir, func() { close(unused) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"status":"ok","items":[{"id":%q,"name":%q}]}`, aJail, strings.Join(args, " "))
	}))
	<-unused
	return 0
}

// dataDir returns a data directory whose path is short enough for a socket.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestCommandStartsDaemonThatStopsWhenIdle(t *testing.T) {
	dir := dataDir(t)
	(&vendor{T: t}).write(filepath.Join(dir, "play"), "serve")
	c := &command{data: dir, env: Env{Getenv: func(string) string { return "" }}}
	cl, err := c.client(t.Context())
	if err != nil {
		t.Fatalf("client: got %v, want a daemon", err)
	}
	if err := cl.Health(t.Context()); err != nil {
		t.Errorf("its health: got %v, want none", err)
	}
	code, out, errs := runWithoutDaemon(t, nil, "--data", dir, "jail", "ls")
	if want := "serve --data " + dir + " --listen --while-used"; code != 0 || !strings.Contains(squeezeSpaces(out), want) {
		t.Errorf("another command: got exit code %d, %q and %q, want the same daemon, %q", code, out, errs, want)
	}
	st, err := os.Stat(filepath.Join(dir, "daemon.log"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("its log: got %v, %v, want mode 0600", st, err)
	}
	alive, err := os.Open(filepath.Join(dir, "alive"))
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if err := flock(alive, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("while it is used: got %v, want a daemon that runs", err)
	}
	if err := c.holdUse(); err != nil {
		t.Errorf("a second use: got %v, want none", err)
	}
	c.usersLock.Close()
	users, err := usersFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Another command's lock ends with its process or, in a test, with its file.
	closeUsersLocks(t, dir)
	users.Close()
	if err := flock(alive, syscall.LOCK_EX); err != nil { // waits for the end of the daemon
		t.Errorf("when it is unused: got %v, want its end", err)
	}
}

func TestStoppingIdleDaemonIsNotReused(t *testing.T) {
	dir := dataDir(t)
	stopped := make(chan struct{})
	if err := stopWhenIdle(dir, func() { close(stopped) }); err != nil {
		t.Fatal(err)
	}
	<-stopped
	for range 2 { // closes unreachable files
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	f, err := usersFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := flock(f, syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("a use of a daemon that stops: got %v, want to wait", err)
	}
}

// closeUsersLocks closes this process's descriptors of the users file.
func closeUsersLocks(t *testing.T, dir string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		n, err := strconv.Atoi(fd.Name())
		if err != nil {
			t.Fatal(err)
		}
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && name == filepath.Join(dir, "users") {
			if err := syscall.Flock(n, syscall.LOCK_UN); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDaemonStartFailureIsReported(t *testing.T) {
	dir := dataDir(t)
	(&vendor{T: t}).write(filepath.Join(dir, "daemon.log"), "an old message\n")
	(&vendor{T: t}).write(filepath.Join(dir, "play"), "fail: no space left \x1b[2J")
	code, out, errs := runWithoutDaemon(t, nil, "--data", dir, "jail", "ls")
	if code != 1 || out != "" || !strings.Contains(errs, `exit status 1: no space left \x1b[2J`) || strings.Contains(errs, "an old message") {
		t.Errorf("got exit code %d, %q and %q, want 1 and what the daemon wrote", code, out, errs)
	}
	if code, _, errs := runWithoutDaemon(t, nil, "--data", dir, "run", "--no-workspace", "true"); code != 125 || !strings.Contains(errs, "no space left") {
		t.Errorf("run: got exit code %d and %q, want 125 and what the daemon wrote", code, errs)
	}
}

func TestAwaitDaemonEndsWithContext(t *testing.T) {
	dir := dataDir(t)
	(&vendor{T: t}).write(filepath.Join(dir, "play"), "fail: another daemon has the data directory")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the test is over"))
	c := &command{data: dir, env: Env{Getenv: func(string) string { return "" }}}
	cl, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.startOwn(ctx, cl); err == nil || err.Error() != "the test is over" {
		t.Errorf("startOwn: got %v, want the cause of the end", err)
	}
	if err := c.awaitService(ctx, cl, service{Unit: "glasshouse"}); err == nil || err.Error() != "the test is over" {
		t.Errorf("awaitService: got %v, want the cause of the end", err)
	}
}

func TestServiceRemedyNamesConfiguration(t *testing.T) {
	was := restartTime
	t.Cleanup(func() { restartTime = was })
	restartTime = 0
	dir := dataDir(t)
	c := &command{data: dir, env: Env{Getenv: func(string) string { return "" }}}
	cl, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		s    service
		want string
	}{
		{service{Unit: "glasshouse"}, "systemctl start glasshouse; if "},
		{service{Config: "/etc/c.yaml"}, "glasshouse serve --data " + dir + " --config /etc/c.yaml; if "},
	} {
		if got := fault.RemedyOf(c.awaitService(t.Context(), cl, tt.s)); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%+v: got the remedy %q, want %q", tt.s, got, tt.want)
		}
	}
}

func TestNoHomeMeansNoDataDirectory(t *testing.T) {
	for _, line := range []string{"jail ls", "health", "doctor", "ui", "e2b"} {
		var errs strings.Builder
		env := Env{Stdin: strings.NewReader(""), Stdout: &errs, Stderr: &errs, Getenv: func(string) string { return "" }, UID: 1000} // root needs no HOME
		code := Run(t.Context(), strings.Fields(line), env)
		if want := "glasshouse: HOME is not set, and neither are --data, GLASSHOUSE_DATA and --addr\n"; code != 2 || errs.String() != want {
			t.Errorf("%s: got exit code %d and %q, want 2 and %q", line, code, errs.String(), want)
		}
	}
}

func TestDaemonAddressAndToken(t *testing.T) {
	dir := t.TempDir()
	(&vendor{T: t}).write(filepath.Join(dir, "token"), " from-file\n")
	var got string
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		fmt.Fprint(w, `{"items":[]}`)
	})
	for _, c := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{map[string]string{"GLASSHOUSE_ADDR": addr, "GLASSHOUSE_TOKEN": "from-env"}, nil, "Bearer from-env"},
		{map[string]string{"GLASSHOUSE_ADDR": "unix:///nowhere", "GLASSHOUSE_TOKEN": "x"}, []string{"--addr", addr}, "Bearer x"},
		{map[string]string{"GLASSHOUSE_ADDR": addr, "GLASSHOUSE_DATA": dir}, nil, "Bearer from-file"},
		{map[string]string{"GLASSHOUSE_ADDR": strings.TrimPrefix(addr, "http://"), "GLASSHOUSE_DATA": "/nowhere"}, []string{"--data", dir}, "Bearer from-file"},
		{map[string]string{"GLASSHOUSE_ADDR": addr, "GLASSHOUSE_DATA": "/nowhere"}, nil, ""},
	} {
		got = "none"
		if code, _, errs := runWithoutDaemon(t, c.env, append(c.args, "jail", "ls")...); code != 0 || got != c.want {
			t.Errorf("%v %v: got exit code %d, %q and the header %q, want 0 and %q", c.env, c.args, code, errs, got, c.want)
		}
	}
	for _, bad := range []string{"ftp://host", "http://", "unix://relative", "http://host/path"} {
		if code, _, errs := runWithoutDaemon(t, nil, "--addr", bad, "jail", "ls"); code != 1 || !strings.Contains(errs, "is ") {
			t.Errorf("--addr %s: got exit code %d and %q, want 1 and why", bad, code, errs)
		}
	}
}

func TestDoctorProbesWithoutDaemon(t *testing.T) {
	dir := dataDir(t)
	tools := filepath.Join(dir, "tools")
	config := filepath.Join(dir, "config.yaml")
	(&vendor{T: t}).write(config, "tools: "+tools+"\n")
	c := &command{data: dir, env: Env{UID: 1000, Getenv: func(string) string { return "" }}}
	if h, err := c.probedConfig(); err != nil || h.Data != dir || h.Tools == tools {
		t.Errorf("without a service: got %+v, %v, want the default tools", h, err)
	}
	if err := writeService(dir, &service{Config: config}); err != nil {
		t.Fatal(err)
	}
	if h, err := c.probedConfig(); err != nil || h.Tools != tools {
		t.Errorf("with a service: got %+v, %v, want the tools of its configuration, %s", h, err, tools)
	}
	if err := writeService(dir, &service{Config: config + ".none"}); err != nil {
		t.Fatal(err)
	}
	code, _, errs := runWithoutDaemon(t, nil, "--data", dir, "doctor")
	if want := "config.yaml.none"; code != 1 || !strings.Contains(errs, want) {
		t.Errorf("with a configuration that is gone: got exit code %d and %q, want 1 and %q", code, errs, want)
	}
	(&vendor{T: t}).write(serviceFile(dir), "{")
	code, _, errs = runWithoutDaemon(t, nil, "--data", dir, "doctor")
	if want := "service.json: "; code != 1 || !strings.Contains(errs, want) {
		t.Errorf("with a record that is not JSON: got exit code %d and %q, want 1 and %q", code, errs, want)
	}
}

func TestServeRejectsInvalidConfiguration(t *testing.T) {
	dir := dataDir(t)
	(&vendor{T: t}).write(filepath.Join(dir, "bad.yaml"), "no_such_key: 1\n")
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"serve --config " + dir + "/none.yaml":          {1, "none.yaml: no such file"},
		"serve --config " + dir + "/bad.yaml":           {1, "no_such_key"},
		"serve --listen 0.0.0.0:1 --data " + dir + "/d": {1, "--insecure"},
		"serve now":           {2, "unknown command"},
		"serve --e2b-tls=may": {2, "invalid argument"},
	} {
		if code, _, errs := runWithoutDaemon(t, map[string]string{"HOME": dir}, argsOf(line)...); code != want.code || !strings.Contains(errs, want.text) {
			t.Errorf("%s: got exit code %d and %q, want %d and %q", line, code, errs, want.code, want.text)
		}
	}
	c := &command{env: Env{Getenv: func(string) string { return "" }}}
	t.Chdir(dir)
	if err := c.recordService(dir, "bad.yaml"); err != nil {
		t.Fatal(err)
	}
	if s, err := readService(dir); err != nil || s == nil || s.Config != filepath.Join(dir, "bad.yaml") {
		t.Errorf("the record: got %+v, %v, want the absolute path of the configuration", s, err)
	}
}

// fakeInit is the first process of a container.
func fakeInit(args []string) int {
	err := beneathInit(append([]string{"child"}, args...))
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	return 0
}

// fakeInitChild is the child of the first process of a container.
func fakeInitChild(args []string) int {
	switch args[0] {
	case "exit":
		code, err := strconv.Atoi(args[1])
		if err != nil {
			return 98
		}
		return code
	case "die":
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return 97
		}
		select {}
	}
	fmt.Println("ready") // a signal ends it
	time.Sleep(time.Minute)
	return 96
}

func TestInitExitsLikeItsChild(t *testing.T) {
	first := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
		cmd.Args[0] = "first"
		cmd.Stderr = os.Stderr
		return cmd
	}
	for args, want := range map[string]int{"exit 0": 0, "exit 3": 3, "die": 128 + 9} {
		err := first(strings.Fields(args)...).Run()
		got := 0
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			got = e.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("the child's %s: got exit code %d, want %d", args, got, want)
		}
	}
	cmd := first("wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child: got %q, %v, want it to be ready", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 128+15 {
		t.Errorf("a SIGTERM: got %v, want it passed on to the child: exit code %d", err, 128+15)
	}
}

// A browser opens a file, because every user of a host can read the arguments of processes.
func TestLoginLinkIsNotInBrowserArguments(t *testing.T) {
	dir := t.TempDir()
	link := `https://h.example/login#code="><script>`
	d := newScriptedDaemon(t, map[string]string{"POST /login-links": `{"urls":["https://h.example/login#code=\"><script>","https://other.example/"]}`})
	code, out, errs := d.run("", "ui", "--role", "operator", "--label", "phone")
	if want := link + "\nhttps://other.example/\n"; code != 0 || out != want {
		t.Errorf("ui: got exit code %d, %q and %q, want 0 and %q", code, out, errs, want)
	}
	if got, want := d.asked(), `{"role":"operator","label":"phone"}`; !strings.HasSuffix(got, want) {
		t.Errorf("ui: request: got %s, want %s", got, want)
	}
	t.Setenv("PATH", filepath.Join(dir, "none"))
	if code, _, errs := d.run("", "ui", "--open"); code != 1 || !strings.Contains(errs, "xdg-open") || !strings.Contains(errs, "try: glasshouse ui prints the link") {
		t.Errorf("ui --open without xdg-open: got exit code %d and %q, want 1 and the remedy", code, errs)
	}
	opener := filepath.Join(dir, "xdg-open")
	if err := os.WriteFile(opener, []byte("#!/bin/sh\necho \"$@\" >"+dir+"/args\necho opened >&2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	if code, _, errs := d.run("", "ui", "--open"); code != 0 || errs != "opened\n" {
		t.Errorf("ui --open: got exit code %d and %q, want 0 and what the browser wrote", code, errs)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	page := filepath.Join(dir, "cache", "glasshouse", "ui.html")
	if err != nil || string(args) != page+"\n" {
		t.Errorf("its arguments: got %q, %v, want %q", args, err, page)
	}
	text, err := os.ReadFile(page)
	if want := `url=https://h.example/login#code=&#34;&gt;&lt;script&gt;">`; err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("the page: got %q, %v, want %q at its end", text, err, want)
	}
	if st, err := os.Stat(page); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the page: got %v, %v, want mode 0600", st, err)
	}
}

package envd_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"glasshouse/e2b/envd"
	"glasshouse/e2b/envdpb"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/oci"
)

// A world is a running jail, sandboxes that use it, and a Server for them.
type world struct {
	testing.TB
	*boxes
	dir   string
	jails *jail.Manager
	jail  id.Jail
	envd  *envd.Server
	url   string
}

// boxes implements envd.Boxes.
type boxes struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[string]envd.Box
	// +checklocks:mu
	users int // boxes opened and not released
}

// Open implements envd.Boxes.
func (w *boxes) Open(_ context.Context, sandbox string, v envd.Visit) (envd.Box, func(), error) {
	if err := w.Check(sandbox); err != nil {
		return envd.Box{}, nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.all[sandbox]
	if err := v.Admit(b, true); err != nil {
		return envd.Box{}, nil, err
	}
	w.users++
	return b, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.users--
	}, nil
}

// Check implements envd.Boxes.
func (w *boxes) Check(sandbox string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.all[sandbox]
	switch {
	case !ok:
		return fault.Newf(fault.NotFound, "boxes.Check", sandbox, "no such sandbox")
	case b.Jail == "":
		return fault.Newf(fault.Conflict, "boxes.Check", sandbox, "the sandbox is paused")
	}
	return nil
}

// newWorld starts a jail and creates these sandboxes of it: "open" without tokens, "safe" with the
// token "secret" and the traffic token "pass", "other" with other tokens, "paused", which does
// not run, and "tls", whose port 8443 uses TLS.
func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("runc jails need root")
	}
	dir, err := os.MkdirTemp("", "glasshouse-envd-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("world", dir, "tmpfs", 0, "size=3g,mode=711"); err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, boxes: &boxes{}, dir: dir}
	t.Cleanup(w.end)
	backend := oci.New(oci.Config{
		Runtime: "runc", Path: "runc", CgroupPrefix: filepath.Base(dir), RunDir: filepath.Join(dir, "run"),
		Templates: filepath.Join(dir, "templates"), Base: filepath.Join(dir, "base"), NetnsDir: filepath.Join(dir, "netns"),
	})
	if err := backend.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.jails = jail.NewManager(jail.Config{
		Dir: filepath.Join(dir, "jails"), Store: &backendtest.Records{}, Rootfs: w.tree(),
		Runtimes: []jail.Runtime{{Name: "oci", Runtime: "runc", Backend: backend}},
		Init:     backendtest.Init(t), Boot: "boot", Backend: "oci", Runtime: "runc", FirstID: backendtest.FirstID(t),
	})
	if err := w.jails.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	j, err := w.jails.Create(t.Context(), jail.Spec{Limits: jail.Limits{CPUShares: 256, MemoryMB: 512, DiskMB: 2048, MaxPIDs: 256}})
	if err != nil {
		t.Fatal(err)
	}
	w.jail = j.ID
	if _, err := w.jails.Start(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.all = map[string]envd.Box{
		"open":   {Jail: j.ID, Env: map[string]string{"FROM": "sandbox", "BOTH": "sandbox"}},
		"safe":   {Jail: j.ID, Token: "secret", Traffic: "pass"},
		"other":  {Jail: j.ID, Token: "another", Traffic: "away"},
		"paused": {},
		"tls":    {Jail: j.ID, HTTPS: []int{8443}},
	}
	w.mu.Unlock()
	w.envd = envd.New(envd.Config{Boxes: w, Jails: w.jails, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		port, err := strconv.Atoi(cmp.Or(r.Header.Get("E2b-Sandbox-Port"), "49983"))
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		w.envd.ServeSandbox(rw, r, cmp.Or(r.Header.Get("E2b-Sandbox-Id"), "open"), port)
	}))
	w.url = server.URL
	t.Cleanup(func() { // runs before the jail is deleted
		w.envd.Close()
		server.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.users != 0 {
			t.Errorf("%d opened boxes were not released", w.users)
		}
	})
	return w
}

// tree returns a small root filesystem with a user.
func (w *world) tree() backendtest.Trees {
	own := filepath.Join(w.dir, "own")
	for _, d := range []string{"etc", "home/user", "srv"} {
		if err := os.MkdirAll(filepath.Join(own, d), 0o755); err != nil {
			w.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\n",
	} {
		if err := os.WriteFile(filepath.Join(own, name), []byte(text), 0o644); err != nil {
			w.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(own, "home/user"), 1000, 1000); err != nil {
		w.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(own, "srv/server"), "./testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
	return backendtest.Trees{own, backendtest.Rootfs(w)}
}

func (w *world) end() {
	if w.jails != nil {
		if w.jail != "" {
			if err := w.jails.Delete(context.Background(), w.jail); err != nil {
				w.Error(err)
			}
		}
		w.jails.Close()
	}
	name := filepath.Base(w.dir)
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, d := range append(dirs, "/sys/fs/cgroup/"+name) {
		os.Remove(d)
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(b, []byte(w.dir+"/")) {
		w.Errorf("mounts remain below %s", w.dir)
	}
	if err := unix.Unmount(w.dir, unix.MNT_DETACH); err != nil {
		w.Error(err)
	}
	os.RemoveAll(w.dir)
}

// header lists headers of a request. Names and values alternate.
type header []string

func (h header) set(to http.Header) {
	for i := 0; i+1 < len(h); i += 2 {
		to.Set(h[i], h[i+1])
	}
}

func basic(user string) string {
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, "")
	return r.Header.Get("Authorization")
}

// codecs are the encodings of RPCs.
var codecs = map[string][]connect.ClientOption{"json": {connect.WithProtoJSON()}, "proto": nil}

// call makes a unary RPC in the same way as the SDK.
func call[Q, A any](w *world, path string, q *Q, h ...string) (*A, error) {
	w.Helper()
	r := connect.NewRequest(q)
	header(h).set(r.Header())
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	a, err := connect.NewClient[Q, A](http.DefaultClient, w.url+path, connect.WithProtoJSON()).CallUnary(ctx, r)
	if err != nil {
		return nil, err
	}
	return a.Msg, nil
}

// must is like call, but for an RPC that must succeed.
func must[Q, A any](w *world, path string, q *Q, h ...string) *A {
	w.Helper()
	a, err := call[Q, A](w, path, q, h...)
	if err != nil {
		w.Fatalf("%s: %v", path, err)
	}
	return a
}

// wantCode checks the error of an RPC.
func (w *world) wantCode(err error, want connect.Code, text string) {
	w.Helper()
	if got := connect.CodeOf(err); err == nil || got != want || !strings.Contains(err.Error(), text) {
		w.Errorf("got the code %v (%v), want %v with %q", got, err, want, text)
	}
}

// A command is the event stream of a started or connected command.
type command struct {
	*world
	pid    uint32
	next   func() (*envdpb.ProcessEvent, error)
	cancel context.CancelFunc
}

// A result is the output and the end event of a command.
type result struct {
	out, err, pty string
	alive         int // keepalives
	end           *envdpb.ProcessEvent_EndEvent
}

func (w *world) start(q *envdpb.StartRequest, codec string, h ...string) (*command, error) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	w.Cleanup(cancel)
	r := connect.NewRequest(q)
	header(h).set(r.Header())
	s, err := connect.NewClient[envdpb.StartRequest, envdpb.StartResponse](http.DefaultClient, w.url+"/process.Process/Start", codecs[codec]...).CallServerStream(ctx, r)
	if err != nil {
		return nil, err
	}
	return w.begun(cancel, func() (*envdpb.ProcessEvent, error) {
		if !s.Receive() {
			return nil, cmp.Or(s.Err(), io.EOF)
		}
		return s.Msg().GetEvent(), nil
	})
}

func (w *world) connect(by *envdpb.ProcessSelector, h ...string) (*command, error) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	w.Cleanup(cancel)
	r := connect.NewRequest(&envdpb.ConnectRequest{Process: by})
	header(h).set(r.Header())
	s, err := connect.NewClient[envdpb.ConnectRequest, envdpb.ConnectResponse](http.DefaultClient, w.url+"/process.Process/Connect", connect.WithProtoJSON()).CallServerStream(ctx, r)
	if err != nil {
		return nil, err
	}
	return w.begun(cancel, func() (*envdpb.ProcessEvent, error) {
		if !s.Receive() {
			return nil, cmp.Or(s.Err(), io.EOF)
		}
		return s.Msg().GetEvent(), nil
	})
}

func (w *world) begun(cancel context.CancelFunc, next func() (*envdpb.ProcessEvent, error)) (*command, error) {
	w.Helper()
	e, err := next()
	if err != nil {
		return nil, err
	}
	if e.GetStart() == nil {
		w.Fatalf("the stream begins with %v", e)
	}
	return &command{w, e.GetStart().GetPid(), next, cancel}, nil
}

// wait reads events until the stream ends.
func (c *command) wait() (r result, err error) {
	for {
		e, err := c.next()
		if err == io.EOF {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		switch e := e.Event.(type) {
		case *envdpb.ProcessEvent_Data:
			r.out += string(e.Data.GetStdout())
			r.err += string(e.Data.GetStderr())
			r.pty += string(e.Data.GetPty())
		case *envdpb.ProcessEvent_End:
			r.end = e.End
		case *envdpb.ProcessEvent_Keepalive:
			r.alive++
		}
	}
}

// until reads events until the output contains text.
func (c *command) until(text string) {
	c.Helper()
	for all := ""; !strings.Contains(all, text); {
		e, err := c.next()
		if err != nil {
			c.Fatalf("%v, after %q", err, all)
		}
		d := e.GetData()
		all += string(d.GetStdout()) + string(d.GetStderr()) + string(d.GetPty())
	}
}

// sh returns a request to run a script in the form of the SDK.
func sh(script string) *envdpb.StartRequest {
	no := false
	return &envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", script}}, Stdin: &no}
}

// run runs a script and waits for its end.
func (w *world) run(script string, h ...string) result {
	w.Helper()
	c, err := w.start(sh(script), "json", h...)
	if err != nil {
		w.Fatal(err)
	}
	r, err := c.wait()
	if err != nil {
		w.Fatal(err)
	}
	if r.end == nil {
		w.Fatalf("%s: no end event", script)
	}
	return r
}

func byPID(pid uint32) *envdpb.ProcessSelector {
	return &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Pid{Pid: pid}}
}

func byTag(tag string) *envdpb.ProcessSelector {
	return &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Tag{Tag: tag}}
}

// do makes a plain HTTP request and reads the response.
func (w *world) do(method, path string, body io.Reader, h ...string) (int, string, http.Header) {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, w.url+path, body)
	if err != nil {
		w.Fatal(err)
	}
	header(h).set(r.Header)
	a, err := (&http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}).Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		w.Fatal(err)
	}
	return a.StatusCode, string(text), a.Header
}

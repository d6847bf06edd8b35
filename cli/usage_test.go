package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// runWithoutDaemon runs a command without a daemon, and returns its exit code and output.
func runWithoutDaemon(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return env[k] }, UID: os.Getuid()}
	code = Run(t.Context(), args, e)
	return code, out.String(), errs.String()
}

func TestUsageErrorExitsWith2(t *testing.T) {
	for line, want := range map[string]string{
		"frobnicate":                         `unknown command "frobnicate"`,
		"policy frobnicate":                  `unknown command "frobnicate" for "glasshouse policy"`,
		"jail crate":                         "create",
		"--json schedules edti h-1":          "edit",
		"policy":                             `"glasshouse policy" needs a command`,
		"snapshot":                           `"glasshouse snapshot" needs a command`,
		"agent --json":                       `"glasshouse agent" needs a command`,
		"policy show":                        "accepts 1 arg(s), received 0",
		"policy show a b":                    "accepts 1 arg(s), received 2",
		"runs one two":                       "unknown command",
		"goal":                               "requires at least 1 arg(s)",
		"run":                                "requires at least 1 arg(s)",
		"jail exec":                          "requires at least 2 arg(s)",
		"jail ls --frobnicate":               "unknown flag",
		"policy explain bash":                "give a jail or --policy FILE",
		"policy explain --agent reviewer ls": "give a jail or --policy FILE",
		`goal x --until {"manual`:            "is not JSON",
		"goal x --rootfs floppy":             "--rootfs",
		"goal x --budget steps=many":         "",
	} {
		code, out, errs := runWithoutDaemon(t, map[string]string{"HOME": t.TempDir()}, strings.Fields(line)...)
		if code != 2 || !strings.Contains(errs, want) {
			t.Errorf("glasshouse %s: exit code %d, output %q, %q, want 2 and %q", line, code, out, errs, want)
		}
	}
}

func TestHelpExitsWith0(t *testing.T) {
	for _, line := range []string{"", "help", "help policy", "policy --help", "--help", "jail create --help", "--version", "completion bash", "__complete pol"} {
		if code, out, errs := runWithoutDaemon(t, map[string]string{"HOME": t.TempDir()}, strings.Fields(line)...); code != 0 || out == "" {
			t.Errorf("glasshouse %s: exit code %d, output %q, %q, want 0 and a help text", line, code, out, errs)
		}
	}
}

// Scripts distinguish a failure of Glasshouse from one of the program.
func TestRunExitsWith125WhenGlasshouseFails(t *testing.T) {
	refuses := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(`{"title":"internal","status":500,"detail":"no space left"}`))
	})
	for _, line := range []string{
		"--addr " + refuses + " run --no-workspace -- true",
		"--addr http://127.0.0.1:1 run --no-workspace -- true",
		"--addr http://127.0.0.1:1 jail exec j-1 true",
	} {
		if code, _, errs := runWithoutDaemon(t, nil, strings.Fields(line)...); code != 125 || errs == "" {
			t.Errorf("glasshouse %s: exit code %d and stderr %q, want 125 and a reason", line, code, errs)
		}
	}
	if code, _, errs := runWithoutDaemon(t, nil, strings.Fields("--addr http://127.0.0.1:1 jail ls")...); code != 1 {
		t.Errorf("jail ls without a daemon exits with %d and writes %q, want 1", code, errs)
	}
}

func serveAPI(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return "http://" + l.Addr().String()
}

func TestRelativeDataDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	c := &command{env: Env{Getenv: func(string) string { return "" }}, data: "data2"}
	if got, want := c.address(), "unix://"+filepath.Join(dir, "data2", "glasshouse.sock"); got != want {
		t.Errorf("address = %s, want %s", got, want)
	}
	c = &command{env: Env{Getenv: func(k string) string { return map[string]string{"GLASSHOUSE_DATA": "../x"}[k] }}}
	if got, want := c.dataDir(), filepath.Join(filepath.Dir(dir), "x"); got != want {
		t.Errorf("data directory = %s, want %s", got, want)
	}
}

func TestUntilIsJSONOrCapability(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "manual": `"manual"`, `"manual"`: `"manual"`, "places.search": `{"capability":"places.search"}`, `{"rtfs":"true"}`: `{"rtfs":"true"}`,
	} {
		if got, err := predicate(in); err != nil || string(got) != want {
			t.Errorf("--until %s = %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{`"manual`, `{"rtfs"`} {
		if got, err := predicate(in); err == nil {
			t.Errorf("--until %s = %s, want an error", in, got)
		}
	}
}

// The run itself survives the daemon.
func TestGoalReportsHowToFollowAfterDaemonStop(t *testing.T) {
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/chat/run":
			json.NewEncoder(w).Encode(wire.Run{ID: "r-abc", Session: "s", State: "active"})
		case strings.HasPrefix(r.URL.Path, "/chat/events/"):
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush() // the stream ends, as when the daemon stops
		}
	})
	code, _, errs := runWithoutDaemon(t, nil, "--addr", addr, "goal", "work for long")
	if code != 1 || !strings.Contains(errs, "the run continues when the daemon is back") || !strings.Contains(errs, "glasshouse agent logs r-abc") {
		t.Errorf("goal exits with %d and writes %q, want 1, that the run continues, and how to follow it", code, errs)
	}
}

func TestGoalPolicyAgentAndRootFilesystem(t *testing.T) {
	asked := make(chan wire.StartRun, 1)
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		var b wire.StartRun
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			t.Error(err)
		}
		asked <- b
		json.NewEncoder(w).Encode(wire.Run{ID: "r-abc", Session: "s", State: "active"})
	})
	if code, _, errs := runWithoutDaemon(t, nil, "--addr", addr, "goal", "npm test", "-d", "--policy-agent", "reviewer", "--rootfs", "oci:node:24"); code != 0 {
		t.Fatalf("goal exits with %d and writes %q, want 0", code, errs)
	}
	got := <-asked
	if got.Agent.PolicyAgent != "reviewer" || got.Agent.Jail == nil || got.Agent.Jail.Rootfs.OCI != "node:24" {
		t.Errorf("the request's agent = %+v, want the policy agent reviewer on oci:node:24", got.Agent)
	}
}

// The flags change the jail's policy, but not the question.
func TestExplainJailWithFlags(t *testing.T) {
	files := []wire.PolicyFile{{Name: "opencode.json", Text: "{}"}}
	asked := make(chan wire.Explain, 1)
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/policy"):
			json.NewEncoder(w).Encode(wire.PolicyState{Policy: &wire.Policy{Files: files, Agent: "worker", Match: "last", Level: 2, Ceiling: 3}})
		case r.URL.Path == "/policy/explain":
			var e wire.Explain
			if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
				t.Error(err)
			}
			asked <- e
			json.NewEncoder(w).Encode(wire.Explained{Decision: wire.Decision{Effect: "deny"}})
		default: // the jail
			json.NewEncoder(w).Encode(wire.Jail{ID: "j-aaaaaaaaaaaa"})
		}
	})
	for _, tt := range []struct {
		flags string
		want  *wire.Policy
		agent string
	}{
		{"", nil, ""},
		{"--agent reviewer", nil, "reviewer"},
		{"--level 1", &wire.Policy{Files: files, Agent: "worker", Match: "last", Level: 1, Ceiling: 3}, ""},
		{"--match longest", &wire.Policy{Files: files, Agent: "worker", Match: "longest", Level: 2, Ceiling: 3}, ""},
		{"--ceiling 2", &wire.Policy{Files: files, Agent: "worker", Match: "last", Level: 2, Ceiling: 2}, ""},
	} {
		line := "--addr " + addr + " policy explain j-aaaaaaaaaaaa edit src/a.ts " + tt.flags
		if code, _, errs := runWithoutDaemon(t, nil, strings.Fields(line)...); code != 0 {
			t.Errorf("explain %s exits with %d and writes %q, want 0", tt.flags, code, errs)
			continue
		}
		got := <-asked
		if got.Jail != "j-aaaaaaaaaaaa" || got.Question.Action != "edit" || got.Question.Resource != "src/a.ts" || got.Question.Agent != tt.agent {
			t.Errorf("explain %s: request = %+v, want edit src/a.ts of the jail as %q", tt.flags, got, tt.agent)
		}
		have, _ := json.Marshal(got.Policy)
		want, _ := json.Marshal(tt.want)
		if string(have) != string(want) {
			t.Errorf("explain %s: policy of the request = %s, want %s", tt.flags, have, want)
		}
	}
}

// TestCommandStartsNoDaemonInPlaceOfService checks that a command does not replace a stopped
// service by a daemon, which would lack the configuration of the service.
func TestCommandStartsNoDaemonInPlaceOfService(t *testing.T) {
	restartTime = 300 * time.Millisecond
	t.Cleanup(func() { restartTime = 30 * time.Second })
	dir := t.TempDir()
	for _, s := range []*service{{Config: "/etc/glasshouse/config.yaml"}, {Unit: "glasshouse"}} {
		if err := writeService(dir, s); err != nil {
			t.Fatal(err)
		}
		code, _, errs := runWithoutDaemon(t, map[string]string{"HOME": dir}, "--data", dir, "jail", "ls")
		if code != 1 || !strings.Contains(errs, "runs as a service") || !strings.Contains(errs, "service.json") {
			t.Errorf("service %+v: exit code %d and stderr %q, want 1 and a message about the service", *s, code, errs)
		}
		if _, err := os.Stat(filepath.Join(dir, "daemon.log")); err == nil {
			t.Errorf("service %+v: a daemon was started", *s)
		}
	}
}

func TestCommandWaitsForRestartingService(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "gh") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := writeService(dir, &service{Unit: "glasshouse"}); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(200 * time.Millisecond)
		l, err := net.Listen("unix", filepath.Join(dir, "glasshouse.sock"))
		if err != nil {
			t.Error(err)
			return
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(`{"items":[],"status":"ok"}`))
		})}
		context.AfterFunc(t.Context(), func() { srv.Close() })
		srv.Serve(l)
	}()
	if code, _, errs := runWithoutDaemon(t, map[string]string{"HOME": dir}, "--data", dir, "jail", "ls"); code != 0 {
		t.Errorf("exit code %d and stderr %q, want 0", code, errs)
	}
}

func TestServiceRecord(t *testing.T) {
	dir := t.TempDir()
	none := func(string) string { return "" }
	systemd := func(k string) string { return map[string]string{"INVOCATION_ID": "1", "NOTIFY_SOCKET": "/run/n"}[k] }
	for _, tt := range []struct {
		config string
		getenv func(string) string
		want   *service
	}{
		{"/etc/c.yaml", none, &service{Config: "/etc/c.yaml"}},
		{"", systemd, &service{Unit: "glasshouse"}},
		{"", none, nil}, // started by hand: the earlier service's record is removed
		{"", func(k string) string { return map[string]string{"INVOCATION_ID": "1"}[k] }, nil}, // a shell below a user's systemd
	} {
		if err := writeService(dir, serviceOf(tt.config, tt.getenv)); err != nil {
			t.Fatal(err)
		}
		got, err := readService(dir)
		if err != nil || (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("service with the configuration %q = %+v, %v, want %+v", tt.config, got, err, tt.want)
		}
	}
	if err := os.WriteFile(serviceFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readService(dir); err == nil {
		t.Error("an invalid record was accepted, want an error")
	}
}

// The daemon continues in another directory on the host.
func TestServeOnHostNeedsAbsolutePaths(t *testing.T) {
	for _, args := range [][]string{{"--data", "relative"}, {"--data", "/data", "--config", "relative.yaml"}} {
		dir := t.TempDir()
		t.Chdir(dir)
		if err := os.WriteFile("relative.yaml", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := runWithoutDaemon(t, nil, append([]string{"serve", "--host"}, args...)...)
		if code == 0 || !strings.Contains(errs, "must be an absolute path") {
			t.Errorf("serve --host %q = %d, %s; want an error", args, code, errs)
		}
	}
	if code, _, errs := runWithoutDaemon(t, nil, "serve", "--host", "--stop-jails"); code == 0 || !strings.Contains(errs, "stop-jails") {
		t.Errorf("serve --host --stop-jails = %d, %s; want an error", code, errs)
	}
}

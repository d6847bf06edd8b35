package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// A scriptedDaemon answers requests with scripted responses and records them.
type scriptedDaemon struct {
	*testing.T
	addr    string
	answers map[string]string    // by method and path, with or without query; a status precedes the body
	problem string               // the response to all other requests
	env     map[string]string    // environment of the command
	arrived func(request string) // called before a request is answered, if not nil
	opened  func()               // called when an open response was begun

	mu       sync.Mutex
	requests []string // method, path with query, and body
}

func TestTokenExpiresAfter90Days(t *testing.T) {
	t.Parallel()
	d := newScriptedDaemon(t, map[string]string{"POST /tokens": `{"id":"t-1","token":"secret"}`})
	if code, _, errs := d.run("", "token", "create", "ann"); code != 0 {
		t.Fatalf("exit code = %d: %s", code, errs)
	}
	var body wire.CreateToken
	if err := json.Unmarshal([]byte(strings.TrimPrefix(d.requests[0], "POST /tokens ")), &body); err != nil {
		t.Fatal(err)
	}
	if body.ExpiresAt == nil || time.Until(*body.ExpiresAt).Round(time.Hour) != 90*24*time.Hour {
		t.Errorf("request = %s, want an expiry in 90 days", d.requests[0])
	}
}

func newScriptedDaemon(t *testing.T, answers map[string]string) *scriptedDaemon {
	t.Helper()
	d := &scriptedDaemon{T: t, answers: answers, problem: `404 {"type":"/problems/not-found","title":"not found","status":404,"detail":"nothing is there"}`}
	d.addr = serveAPI(t, d.serve)
	return d
}

func (d *scriptedDaemon) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		d.Errorf("read the body of %s %s: %v", r.Method, r.URL, err)
	}
	request := strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body))
	d.mu.Lock()
	d.requests = append(d.requests, request)
	d.mu.Unlock()
	if d.arrived != nil {
		d.arrived(request)
	}
	answer, ok := d.answers[r.Method+" "+r.URL.RequestURI()]
	if !ok {
		answer, ok = d.answers[r.Method+" "+r.URL.Path]
	}
	if !ok {
		answer = d.problem
	}
	status := http.StatusOK
	if word, rest, _ := strings.Cut(answer, " "); len(word) == 3 {
		if n, err := strconv.Atoi(word); err == nil {
			status, answer = n, rest
		}
	}
	switch {
	case status >= 400:
		w.Header().Set("Content-Type", wire.ProblemType)
	case strings.HasPrefix(answer, "data: "), strings.HasPrefix(answer, "event: "):
		w.Header().Set("Content-Type", "text/event-stream")
	default:
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	answer, cut := strings.CutSuffix(answer, cutSuffix)
	answer, open := strings.CutSuffix(answer, openSuffix)
	io.WriteString(w, answer)
	if cut || open {
		w.(http.Flusher).Flush()
	}
	if open {
		if d.opened != nil {
			d.opened()
		}
		<-r.Context().Done()
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
}

// Suffixes of scripted responses.
const (
	cutSuffix  = "\x00cut"  // the connection breaks before the response is complete
	openSuffix = "\x00open" // the response does not end before the command exits
)

// run runs a command with standard input, and returns its exit code and output.
func (d *scriptedDaemon) run(stdin string, args ...string) (code int, stdout, stderr string) {
	d.Helper()
	return d.runIn(d.Context(), stdin, args...)
}

// runIn is like run, but with a context.
func (d *scriptedDaemon) runIn(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	d.Helper()
	var out, errs bytes.Buffer
	e := Env{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return d.env[k] }, UID: os.Getuid()}
	code = Run(ctx, append([]string{"--addr", d.addr}, args...), e)
	return code, out.String(), errs.String()
}

// asked returns the recorded requests, one per line.
func (d *scriptedDaemon) asked() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.requests, "\n")
}

// argsOf splits a command line; ~ is a space within an argument.
func argsOf(line string) []string {
	args := strings.Fields(line)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "~", " ")
	}
	return args
}

const (
	aJail       = "j-aaaaaaaaaaaa"
	aSnapshot   = "s-aaaaaaaaaaaa"
	jailJSON    = `{"id":"j-aaaaaaaaaaaa","name":"web","state":"running","backend":"oci","runtime":"runc","network":"isolated","rootfs":{"debian":"bookworm"},"created_at":"2026-01-02T15:04:05Z","limits":{"cpu_shares":256,"memory_mb":512,"disk_mb":1024,"max_pids":128}}`
	stopped     = `{"id":"j-aaaaaaaaaaaa","state":"stopped","backend":"bwrap","rootfs":{"host":true}}`
	snapJSON    = `{"id":"s-aaaaaaaaaaaa","jail":"j-aaaaaaaaaaaa","name":"before","reason":"asked","memory":true,"memory_bytes":1048576,"paused_us":2500,"pids":3,"layering":"copied","seq":7,"backend":"oci","runtime":"runc","host":{"arch":"amd64","kernel":"6.1","cpu":"x"},"usage":{"own_bytes":2048,"shared_bytes":4096}}`
	runJSON     = `{"id":"r-1","session_id":"s1","goal":"fix it","state":"paused","why":"budget","agent":{"preset":"shell"},"budget":{"limits":{"steps":9},"run-budget-consumed":{"steps":9,"llm-tokens":5}},"steps":9,"created":"2026-01-02T15:04:05Z"}`
	policyOut   = `{"policy":{"files":[{"name":"opencode.json","text":"{}"}],"answers":[{"action":"bash","pattern":"ls","effect":"allow","file":"answer of ann"}]},"match":"last","why":"as it was written for","level":1,"ceiling":2,"findings":[{"kind":"shadowed","file":"opencode.json","line":3,"message":"never matches","remedy":"remove it"}]}`
	escapedName = "\\u001b[31mred\\u202e" // controls a terminal; in JSON
)

func items(list ...string) string { return `{"items":[` + strings.Join(list, ",") + `]}` }

// A lineTest is a command line with the expected requests and output. answers are the responses
// of a scripted daemon.
type lineTest struct {
	line    string
	answers map[string]string
	want    string // requests
	out     string // part of standard output, with one space between words
	errs    string // part of standard error
	code    int
}

// checkLines runs each command line with its own daemon.
func checkLines(t *testing.T, tests []lineTest) {
	t.Helper()
	for _, c := range tests {
		t.Run(strings.ReplaceAll(c.line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, c.answers)
			code, out, errs := d.run("", argsOf(c.line)...)
			if code != c.code || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("got exit code %d and %q, want %d and %q", code, errs, c.code, c.errs)
			}
			if got := squeezeSpaces(out); !strings.Contains(got, c.out) || c.out == "" && got != "" {
				t.Errorf("stdout: got\n%s\nwant\n%s", got, c.out)
			}
			if got := d.asked(); got != c.want {
				t.Errorf("requests: got %q, want %q", got, c.want)
			}
		})
	}
}

// TestCommandRequestsAndOutput checks the requests, the output and the exit code of each
// command.
func TestCommandRequestsAndOutput(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "opencode.json")
	if err := os.WriteFile(rules, []byte(`{"permission":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	type m = map[string]string
	for _, c := range []struct {
		line    string
		stdin   string
		answers map[string]string
		want    []string // requests
		out     []string // parts of standard output, in this order
		errs    string
		code    int
	}{
		{line: "jail create --name web --memory 2g --cpu-shares 512 -e A=1 -l k=v -m /src:/dst:rw --rootfs oci:alpine --start -- sleep 9", answers: m{"POST /jails": jailJSON},
			want: []string{`POST /jails {"name":"web","labels":{"k":"v"},"rootfs":{"oci":"alpine"},"limits":{"cpu_shares":512,"memory_mb":2048},"env":{"A":"1"},"command":["sleep","9"],"mounts":[{"source":"/src","target":"/dst","write":true}],"start":true}`},
			out:  []string{aJail + "\n"}},
		{line: "jail create --allow api.example.com:443,8443 --ask", answers: m{"POST /jails": jailJSON},
			want: []string{`POST /jails {"network":"proxy","egress":{"allow":[{"host":"api.example.com","ports":[443,8443]}],"ask":true}}`}, out: []string{aJail}},
		{line: "jail ls", answers: m{"GET /jails": items(jailJSON, stopped)}, want: []string{"GET /jails"},
			out: []string{"ID", "NAME", "STATE", aJail, "web", "running", "runc", "debian bookworm", "stopped", "bwrap", "host"}},
		{line: "jail ls -q --state running --name web -l a=b", answers: m{"GET /jails": items(jailJSON)}, want: []string{"GET /jails?label=a%3Db&name=web&state=running"}, out: []string{aJail + "\n"}},
		{line: "jail ls", answers: m{"GET /jails": `{"items":[` + jailJSON + `],"next":"x"}`, "GET /jails?after=x": items(stopped)}, want: []string{"GET /jails", "GET /jails?after=x"}, out: []string{"running", "stopped"}},
		{line: "jail show " + aJail, answers: m{"GET /jails/" + aJail: jailJSON}, want: []string{"GET /jails/" + aJail},
			out: []string{"id", aJail, "name", "web", "state", "running", "backend", "oci runc", "network", "isolated", "limits", "weight 256, memory 512 MiB, disk 1 GiB, 128 processes"}},
		{line: "jail show web", answers: m{"GET /jails?name=web": items(jailJSON), "GET /jails/" + aJail: jailJSON}, want: []string{"GET /jails?name=web", "GET /jails/" + aJail}, out: []string{aJail}},
		{line: "jail show none", answers: m{"GET /jails": items()}, want: []string{"GET /jails?name=none"}, errs: `no jail has the id or the name "none"`, code: 1},
		{line: "jail show web", answers: m{"GET /jails": items(jailJSON, `{"id":"j-bbbbbbbbbbbb"}`)}, want: []string{"GET /jails?name=web"}, errs: "2 objects have the name \"web\": j-aaaaaaaaaaaa j-bbbbbbbbbbbb\n  try: use an id", code: 1},
		{line: "jail start " + aJail, answers: m{"POST /jails/" + aJail + "/start": jailJSON}, want: []string{"POST /jails/" + aJail + "/start"}, out: []string{aJail + "\n"}},
		{line: "jail start " + aJail + " j-bbbbbbbbbbbb", answers: m{"POST /jails/" + aJail + "/start": jailJSON, "POST /jails/j-bbbbbbbbbbbb/start": `409 {"title":"conflict","status":409,"detail":"the jail is running","remedy":"stop it first"}`},
			want: []string{"POST /jails/" + aJail + "/start", "POST /jails/j-bbbbbbbbbbbb/start"}, out: []string{aJail + "\n"}, errs: "glasshouse: j-bbbbbbbbbbbb: the jail is running\n  try: stop it first\n", code: 1},
		{line: "jail stop " + aJail, answers: m{"POST /jails/" + aJail + "/stop": stopped}, want: []string{`POST /jails/` + aJail + `/stop {"grace_ms":10000}`}, out: []string{aJail}},
		{line: "jail stop --grace 0 " + aJail, answers: m{"POST /jails/" + aJail + "/stop": stopped}, want: []string{`POST /jails/` + aJail + `/stop {"grace_ms":0}`}, out: []string{aJail}},
		{line: "jail stop --grace 3s " + aJail, answers: m{"POST /jails/" + aJail + "/stop": stopped}, want: []string{`POST /jails/` + aJail + `/stop {"grace_ms":3000}`}, out: []string{aJail}},
		{line: "jail pause " + aJail, answers: m{"POST /jails/" + aJail + "/pause": jailJSON}, want: []string{"POST /jails/" + aJail + "/pause"}, out: []string{aJail}},
		{line: "jail resume " + aJail, answers: m{"POST /jails/" + aJail + "/resume": jailJSON}, want: []string{"POST /jails/" + aJail + "/resume"}, out: []string{aJail}},
		{line: "jail rm " + aJail, answers: m{"DELETE /jails/" + aJail: `204 `}, want: []string{"DELETE /jails/" + aJail}, out: []string{aJail}},
		{line: "jail rm --snapshots " + aJail, answers: m{"DELETE /jails/" + aJail: `204 `}, want: []string{"DELETE /jails/" + aJail + "?snapshots=1"}, out: []string{aJail}},
		{line: "jail rm " + aJail, want: []string{"DELETE /jails/" + aJail}, errs: "glasshouse: not found: nothing is there", code: 1},
		{line: "jail limits " + aJail + " --memory 1g", answers: m{"PATCH /jails/" + aJail + "/limits": jailJSON, "GET /jails/" + aJail + "/limits": `{"limits":{"cpu_shares":256,"memory_mb":1024,"disk_mb":1024,"max_pids":128},"own":{"cpu_shares":256,"memory_mb":512,"disk_mb":1024,"max_pids":128},"history":[{"n":1,"state":"refused","why":"no","by":"ann","want":{"cpu":2,"memory_mb":9},"from":{"cpu":1},"to":{"cpu":1}}],"next":1}`, "GET /jails/" + aJail + "/limits?after=1": `{"history":[{"n":2,"state":"applied","from":{"pids":1},"to":{"disk_mb":5}}]}`},
			want: []string{`PATCH /jails/` + aJail + `/limits {"memory_mb":1024}`, "GET /jails/" + aJail + "/limits", "GET /jails/" + aJail + "/limits?after=1"},
			out:  []string{"weight 256, memory 1 GiB", "own limits: weight 256, memory 512 MiB", "cpu=2 memory=9", "refused", "cpu=1", "no", "ann", "applied", "pids=1", "disk=5"}},

		{line: "snapshot create " + aJail + " --name before -l a=b --stop", answers: m{"POST /jails/" + aJail + "/snapshot": snapJSON}, want: []string{`POST /jails/` + aJail + `/snapshot {"name":"before","labels":{"a":"b"},"stop":true}`}, out: []string{aSnapshot + "\n"}},
		{line: "snapshot ls -q", answers: m{"GET /snapshots": items(snapJSON)}, want: []string{"GET /snapshots"}, out: []string{aSnapshot + "\n"}},
		{line: "snapshot ls " + aJail, answers: m{"GET /jails/" + aJail + "/snapshots": items(snapJSON)}, want: []string{"GET /jails/" + aJail + "/snapshots?usage=1"}, out: []string{"ID", "MEMORY", aSnapshot, "before", "asked", "1 MiB", "2.5ms", "2 KiB", "4 KiB"}},
		{line: "snapshot show before", answers: m{"GET /snapshots": items(snapJSON), "GET /snapshots/" + aSnapshot: snapJSON}, want: []string{"GET /snapshots", "GET /snapshots/" + aSnapshot}, out: []string{"3 with threads, 1 MiB of memory", "2.5ms, files copied", "up to 7", "2 KiB own, 4 KiB shared", "oci runc"}},
		{line: "snapshot rm " + aSnapshot + " none", answers: m{"DELETE /snapshots/" + aSnapshot: `204 `, "GET /snapshots": items()}, want: []string{"DELETE /snapshots/" + aSnapshot, "GET /snapshots"}, out: []string{aSnapshot}, errs: `none: not found: no snapshot has the id or the name "none"`, code: 1},
		{line: "snapshot warm -n 3 " + aSnapshot, answers: m{"POST /snapshots/" + aSnapshot + "/warm": `{"copies":2}`}, want: []string{`POST /snapshots/` + aSnapshot + `/warm {"count":3}`}, out: []string{"2\n"}, errs: "memory suffices for 2 of 3 copies"},
		{line: "restore " + aSnapshot + " --name b --memory 64m", answers: m{"POST /snapshots/" + aSnapshot + "/restore": jailJSON}, want: []string{`POST /snapshots/` + aSnapshot + `/restore {"name":"b","limits":{"memory_mb":64}}`}, out: []string{aJail}},
		{line: "branch " + aSnapshot + " -n 2", answers: m{"POST /snapshots/" + aSnapshot + "/branch": `{"jails":[` + jailJSON + `],"errors":[{"number":2,"problem":{"title":"exhausted","status":429,"detail":"no memory","remedy":"free some"}}]}`},
			want: []string{`POST /snapshots/` + aSnapshot + `/branch {"count":2}`}, out: []string{aJail}, errs: "glasshouse: branch 2: no memory\n  try: free some\n", code: 1},
		{line: "branch " + aSnapshot + " --keep", errs: "--keep and --timeout require --each", code: 2},
		{line: "rewind " + aJail + " --last", answers: m{"GET /jails/" + aJail: strings.Replace(jailJSON, `"state"`, `"nearest":"s-aaaaaaaaaaaa","state"`, 1), "POST /jails/" + aJail + "/rewind": jailJSON}, want: []string{"GET /jails/" + aJail, `POST /jails/` + aJail + `/rewind {"snapshot":"s-aaaaaaaaaaaa"}`}, out: []string{aJail}},
		{line: "rewind " + aJail + " --last", answers: m{"GET /jails/" + aJail: jailJSON}, want: []string{"GET /jails/" + aJail}, errs: "the jail has no snapshot to rewind to", code: 1},
		{line: "rewind " + aJail + " " + aSnapshot + " --keep-connections=false", answers: m{"POST /jails/" + aJail + "/rewind": jailJSON}, want: []string{`POST /jails/` + aJail + `/rewind {"snapshot":"s-aaaaaaaaaaaa","keep_connections":false}`}, out: []string{aJail}},
		{line: "rewind " + aJail, errs: "give a snapshot or --last", code: 2},
		{line: "rewind " + aJail + " " + aSnapshot + " --last", errs: "give a snapshot or --last", code: 2},
		{line: "lineage", answers: m{"GET /lineage": items(`{"id":"j-aaaaaaaaaaaa","name":"web","state":"running","nearest":"s-aaaaaaaaaaaa","snapshots":[{"id":"s-aaaaaaaaaaaa","reason":"asked","memory":true,"jails":[{"id":"j-bbbbbbbbbbbb","state":"paused","origin":{"snapshot":"s-aaaaaaaaaaaa","jail":"j-aaaaaaaaaaaa","number":2}}]},{"id":"s-bbbbbbbbbbbb","parent":"s-cccccccccccc","reason":"asked"}]}`)},
			want: []string{"GET /lineage"}, out: []string{"j-aaaaaaaaaaaa  web  running\n├─ s-aaaaaaaaaaaa", " *\n│  └─ 2:  j-bbbbbbbbbbbb  paused\n└─ s-bbbbbbbbbbbb", "files only, from s-cccccccccccc\n"}},

		{line: "files ls " + aJail + ":/etc", answers: m{"GET /jails/" + aJail + "/files": items(`{"name":"` + escapedName + `","type":"symlink","mode":"777","uid":1,"gid":2,"size":3,"target":"/x"}`)}, want: []string{"GET /jails/" + aJail + "/files?limit=1000&list=1&path=%2Fetc"}, out: []string{"symlink", "777", "1:2", "3", `\x1b[31mred`, " -> /x"}},
		{line: "files rm -r " + aJail + ":/tmp/x", answers: m{"DELETE /jails/" + aJail + "/files": `204 `}, want: []string{"DELETE /jails/" + aJail + "/files?path=%2Ftmp%2Fx&recursive=1"}},
		{line: "files mv --replace " + aJail + ":/a /b", answers: m{"POST /jails/" + aJail + "/files/move": `204 `}, want: []string{`POST /jails/` + aJail + `/files/move {"from":"/a","to":"/b","replace":true}`}},
		{line: "files mkdir --mode 9 " + aJail + ":/a", errs: "is not octal permission bits", code: 2},
		{line: "files ls /etc", errs: "is not JAIL:PATH with an absolute path", code: 2},
		{line: "files ls web:etc", errs: "is not JAIL:PATH with an absolute path", code: 2},
		{line: "cp a b", errs: "exactly one of the arguments must be JAIL:PATH", code: 2},
		{line: "cp a:/x b:/y", errs: "exactly one of the arguments must be JAIL:PATH", code: 2},
		{line: "rootfs ls", answers: m{"GET /images": items(`{"digest":"sha256:d","size":1048576,"sources":["debian bookworm","` + escapedName + `"]}`)}, want: []string{"GET /images"}, out: []string{"DIGEST", "sha256:d", "1 MiB", `debian bookworm, \x1b[31mred`}},
		{line: "rootfs prune", answers: m{"POST /images/prune": items(`{"digest":"sha256:d"}`)}, want: []string{"POST /images/prune"}, out: []string{"sha256:d"}},
		{line: "rootfs prepare oci:alpine", answers: m{"POST /images": `{"digest":"sha256:d","source":"alpine@sha256:d"}`}, want: []string{`POST /images {"oci":"alpine"}`}, out: []string{"alpine@sha256:d sha256:d\n"}},

		{line: "policy show " + aJail, answers: m{"GET /jails/" + aJail + "/policy": policyOut}, want: []string{"GET /jails/" + aJail + "/policy"}, out: []string{"opencode.json", "last, as it was written for", "1 of at most 2", `bash "ls": allow (answer of ann)`, "opencode.json:3: shadowed: never matches; remove it"}},
		{line: "policy show " + aJail, answers: m{"GET /jails/" + aJail + "/policy": `{}`}, want: []string{"GET /jails/" + aJail + "/policy"}, out: []string{"no policy\n"}},
		{line: "policy set " + aJail + " --policy " + rules + " --level 2", answers: m{"PUT /jails/" + aJail + "/policy": policyOut}, want: []string{`PUT /jails/` + aJail + `/policy {"files":[{"name":"opencode.json","text":"{\"permission\":{}}"}],"level":2}`}, out: []string{"opencode.json"}},
		{line: "policy set " + aJail, errs: "to remove a policy, use glasshouse policy rm", code: 2},
		{line: "policy set " + aJail + " --policy /nowhere", errs: "no such file", code: 1},
		{line: "policy rm " + aJail, answers: m{"DELETE /jails/" + aJail + "/policy": `204 `}, want: []string{"DELETE /jails/" + aJail + "/policy"}},
		{line: "policy level " + aJail + " 2", answers: m{"POST /jails/" + aJail + "/policy/level": `{"level":2,"ceiling":3}`}, want: []string{`POST /jails/` + aJail + `/policy/level {"level":2}`}, out: []string{"level 2 of at most 3\n"}},
		{line: "policy level " + aJail + " high", errs: `"high" is not one of 1, 2, 3`, code: 2},
		{line: "policy lint " + rules, answers: m{"POST /policy/lint": policyOut}, want: []string{`POST /policy/lint {"files":[{"name":"opencode.json","text":"{\"permission\":{}}"}]}`}, out: []string{"shadowed"}, code: 1},
		{line: "policy lint " + rules, answers: m{"POST /policy/lint": `{"policy":{},"match":"last","level":1,"ceiling":1}`}, want: []string{`POST /policy/lint {"files":[{"name":"opencode.json","text":"{\"permission\":{}}"}]}`}, out: []string{"1 of at most 1"}},
		{line: "policy explain " + aJail + " bash git~push", answers: m{"POST /policy/explain": `{"decision":{"effect":"ask","reason":"a rule asks","remedy":"wait"},"considered":[{"rule":{"action":"bash","pattern":"git *","effect":"ask","file":"opencode.json","line":4},"decides":true},{"rule":{"action":"edit","pattern":"*","effect":"deny"}}],"egress":{"allow":false,"detail":"no rule"}}`},
			want: []string{`POST /policy/explain {"jail":"j-aaaaaaaaaaaa","question":{"action":"bash","resource":"git push"}}`}, out: []string{"the proxy: refuse: no rule\n", "ask: a rule asks\n", "  try: wait\n", `decides`, `bash "git *": ask (opencode.json:4)`}},
		{line: "decide " + aJail + " bash ls", answers: m{"POST /jails/" + aJail + "/decide": `{"allow":true,"tag":"WHITELISTED","decision":{"effect":"allow","reason":"a rule allows it"},"instead":"ls -l"}`}, out: []string{"WHITELISTED: a rule allows it\n", "instead: ls -l\n"}},
		{line: "decide " + aJail + " bash rm", answers: m{"POST /jails/" + aJail + "/decide": `{"allow":false,"tag":"DENIED","decision":{"effect":"deny","reason":"a rule denies it"}}`}, out: []string{"DENIED: a rule denies it\n"}, code: 1},
		{line: "egress show " + aJail, answers: m{"GET /jails/" + aJail + "/egress": `{"egress":{"allow":[{"host":"*.example.com","ports":[80,443],"inject":[{"secret":"KEY","as":"bearer"}],"limit":{"requests":9,"bytes":2048},"intercept":true}]},"stats":{"connections":3,"open":1,"requests":4,"queries":5,"sent":1024,"received":2048,"refused":{"rule":2}}}`},
			want: []string{"GET /jails/" + aJail + "/egress"}, out: []string{"*.example.com:80,443 with KEY as bearer, 9 requests, 2 KiB, TLS intercepted", "everything else, unless", "3, 1 open", "1 KiB", "2 KiB", "2 for rule"}},
		{line: "egress set " + aJail + " --allow [::1]:80 --ask", answers: m{"PUT /jails/" + aJail + "/egress": `{"egress":{"ask":true}}`}, want: []string{`PUT /jails/` + aJail + `/egress {"allow":[{"host":"::1","ports":[80]}],"ask":true}`}, out: []string{"about everything else"}},
		{line: "egress set " + aJail, errs: "give --allow, --egress or --ask", code: 2},
		{line: "egress allow " + aJail + " b.example a.example:22", answers: m{"GET /jails/" + aJail + "/egress": `{"egress":{"allow":[{"host":"b.example"}],"ask":true}}`, "PUT /jails/" + aJail + "/egress": `{"egress":{"allow":[{"host":"z.example"}]}}`},
			want: []string{"GET /jails/" + aJail + "/egress", `PUT /jails/` + aJail + `/egress {"allow":[{"host":"b.example"},{"host":"a.example","ports":[22]}],"ask":true}`}, out: []string{"z.example"}},
		{line: "egress allow " + aJail + " a.example", answers: m{"GET /jails/" + aJail + "/egress": `{"egress":{},"version":"v1"}`, "PUT /jails/" + aJail + "/egress": `{"egress":{"allow":[{"host":"z.example"}]}}`},
			want: []string{"GET /jails/" + aJail + "/egress", `PUT /jails/` + aJail + `/egress?version=v1 {"allow":[{"host":"a.example"}]}`}, out: []string{"z.example"}},
		{line: "egress allow " + aJail + " a:0", errs: `"0" is not a port`, code: 2},
		{line: "egress deny " + aJail + " A.example 203.0.113.0/24", answers: m{"GET /jails/" + aJail + "/egress": `{"egress":{"allow":[{"host":"a.example"},{"host":"b.example"},{"host":"a.example","ports":[22]}]}}`, "PUT /jails/" + aJail + "/egress": `{"egress":{}}`},
			want: []string{"GET /jails/" + aJail + "/egress", `PUT /jails/` + aJail + `/egress {"allow":[{"host":"203.0.113.0/24","deny":true},{"host":"b.example"}]}`}, out: []string{"everything else"}},
		{line: "egress deny " + aJail + " c.example", answers: m{"GET /jails/" + aJail + "/egress": `{"egress":{"allow":[{"host":"a.example"}]}}`}, want: []string{"GET /jails/" + aJail + "/egress"}, errs: "no rule allows c.example", code: 1},
		{line: "egress set " + aJail + " --allow a:0", errs: `"0" is not a port`, code: 2},
		{line: "egress set " + aJail + " --allow :80", errs: "has no host", code: 2},
		{line: "trail " + aJail + " --said", answers: m{"GET /sandbox/" + aJail + "/decisions": items(`{"line":"` + escapedName + `"}`)}, want: []string{"GET /sandbox/" + aJail + "/decisions?observed=false"}, out: []string{`- \x1b[31mred`}},
		{line: "trail " + aJail + " --said --observed", errs: "said observed", code: 2},

		{line: "secret set KEY", stdin: "s3cr3t\r\n", answers: m{"PUT /secrets/KEY": `204 `}, want: []string{`PUT /secrets/KEY {"value":"s3cr3t"}`}},
		{line: "secret set KEY", stdin: "\xff\xfe\n\n", answers: m{"PUT /secrets/KEY": `204 `}, want: []string{`PUT /secrets/KEY {"base64":"//4K"}`}},
		{line: "secret set KEY --from vault:kv/data/a#b", answers: m{"PUT /secrets/KEY": `204 `}, want: []string{`PUT /secrets/KEY {"reference":"vault:kv/data/a#b"}`}},
		{line: "secret set KEY --file /nowhere", errs: "no such file", code: 1},
		{line: "secret ls", answers: m{"GET /secrets": items(`{"name":"KEY","provider":"vault","path":"kv#a","grants":[{"id":"g-1","jail":"j-aaaaaaaaaaaa","delivery":"inject","hosts":["a.example"]},{"id":"g-2","capability":"a.b","delivery":"file"}]}`, `{"name":"ALONE","provider":"local","owner":"t-1","grants":[]}`)},
			want: []string{"GET /secrets"}, out: []string{"KEY", "vault:kv#a", "never", "g-1", "jail j-aaaaaaaaaaaa", "inject a.example", "g-2", "capability a.b", "file", "ALONE", "local", "its owner's sandboxes"}},
		{line: "secret rm KEY", answers: m{"DELETE /secrets/KEY": `204 `}, want: []string{"DELETE /secrets/KEY"}},
		{line: "secret grant KEY --models anthropic", answers: m{"POST /secrets/KEY/grants": `{"id":"g-2"}`}, want: []string{`POST /secrets/KEY/grants {"capability":"models.anthropic","delivery":"inject","hosts":["api.anthropic.com"]}`}, out: []string{"g-2\n"}},
		{line: "secret grant KEY --models mistral", errs: "not one of anthropic, openai, gemini", code: 2},
		{line: "secret grant KEY " + aJail + " --models openai", errs: "--models excludes", code: 2},
		{line: "secret grant KEY", errs: "JAIL or --models is missing", code: 2},
		{line: "secret grant KEY " + aJail + " --inject a.example --branches", answers: m{"POST /secrets/KEY/grants": `{"id":"g-1"}`}, want: []string{`POST /secrets/KEY/grants {"jail":"j-aaaaaaaaaaaa","delivery":"inject","hosts":["a.example"],"branches":true}`}, out: []string{"g-1\n"}},
		{line: "secret revoke g-1", answers: m{"DELETE /grants/g-1": `204 `}, want: []string{"DELETE /grants/g-1"}},
		{line: "secret rotate", answers: m{"POST /secrets/rotate": `204 `}, want: []string{"POST /secrets/rotate"}},

		{line: "session open mine --name n --group g -a shell --jail web --budget steps=5", answers: m{"GET /jails?name=web": items(jailJSON), "POST /chat/session": `{"id":"mine"}`}, want: []string{"GET /jails?name=web", `POST /chat/session {"id":"mine","name":"n","group":"g","jail":"j-aaaaaaaaaaaa","agent":{"preset":"shell"},"budget":{"steps":5}}`}, out: []string{"mine\n"}},
		{line: "session open --budget steps=-1", errs: "is not DIMENSION=N", code: 2},
		{line: "session ls", answers: m{"GET /chat/session": items(`{"id":"s1","name":"n","group":"g","state":"open"}`)}, want: []string{"GET /chat/session"}, out: []string{"SESSION", "s1", "n", "g", "open"}},
		{line: "session show s1", answers: m{"GET /chat/session/s1": `{"id":"s1","state":"open"}`}, want: []string{"GET /chat/session/s1"}, out: []string{"id", "s1", "state", "open"}},
		{line: "session send s1 hello there --label pii", answers: m{"POST /chat/send": `{"id":"m-1"}`}, want: []string{`POST /chat/send {"session_id":"s1","text":"hello there","labels":["pii"]}`}, out: []string{"m-1\n"}},
		{line: "session messages s1 --direction out", answers: m{"GET /chat/inbox": items(`{"direction":"out","from":"shell","text":"` + escapedName + `"}`)}, want: []string{"GET /chat/inbox?direction=out&session_id=s1"}, out: []string{"out shell: ", `\x1b[31mred`}},
		{line: "session close s1", answers: m{"DELETE /chat/session/s1": `204 `}, want: []string{"DELETE /chat/session/s1"}},

		{line: "agent ls --session s1 --state paused", answers: m{"GET /chat/run": items(runJSON)}, want: []string{"GET /chat/run?session_id=s1&state=paused"}, out: []string{"RUN", "r-1", "s1", "paused", "shell", "9", "fix it"}},
		{line: "agent show r-1", answers: m{"GET /chat/run/r-1": runJSON}, want: []string{"GET /chat/run/r-1"}, out: []string{"r-1", "fix it", "paused budget", "steps: 9 of 9", "llm-tokens: 5"}},
		{line: "agent pause r-1", answers: m{"POST /chat/run/r-1/pause": runJSON}, want: []string{"POST /chat/run/r-1/pause"}, out: []string{"paused"}},
		{line: "agent cancel r-1", answers: m{"POST /chat/run/r-1/cancel": runJSON}, want: []string{"POST /chat/run/r-1/cancel"}, out: []string{"r-1"}},
		{line: "agent steps r-1", answers: m{"GET /chat/run/r-1/actions": items(`{"n":1,"kind":"exec","name":"ls","state":"done","input":{"a":1},"began":"2026-01-02T15:04:05Z","ended":"2026-01-02T15:04:06.5Z"}`)}, want: []string{"GET /chat/run/r-1/actions"}, out: []string{"1", "exec", "ls", "done", "1.5s", `{"a":1}`}},
		{line: "agent checkpoint r-1 --reason test --pause", answers: m{"POST /chat/run/r-1/checkpoint": `{"id":"p-1"}`}, want: []string{`POST /chat/run/r-1/checkpoint {"reason":"test","pause":true}`}, out: []string{"p-1\n"}},
		{line: "agent checkpoints r-1", answers: m{"GET /chat/run/r-1/checkpoints": items(`{"id":"p-1","n":2,"steps":3,"snapshot":"s-aaaaaaaaaaaa","reason":"test"}`)}, want: []string{"GET /chat/run/r-1/checkpoints"}, out: []string{"p-1", "2", "3", aSnapshot, "test"}},
		{line: "agent resume r-1 --checkpoint p-1 --branch 2 --budget steps=9", answers: m{"POST /chat/run/r-1/resume": `{"runs":[` + runJSON + `]}`}, want: []string{`POST /chat/run/r-1/resume {"checkpoint":"p-1","branch":2,"budget":{"steps":9}}`}, out: []string{"r-1 is paused\n"}},
		{line: "agent move r-1 done --result ok", answers: m{"POST /chat/run/r-1/transition": runJSON}, want: []string{`POST /chat/run/r-1/transition {"state":"done","result":"ok"}`}, out: []string{"r-1"}},
		{line: "agent logs r-1", answers: m{"GET /chat/run/r-1": strings.NewReplacer("paused", "done", `"created"`, `"result":"line 1\nline 2","created"`).Replace(runJSON)}, want: []string{"GET /chat/run/r-1"}, out: []string{"line 1\nline 2\n"}},
		{line: "agent logs r-1", answers: m{"GET /chat/run/r-1": strings.NewReplacer("paused", "failed", `"created"`, `"error":"it broke","created"`).Replace(runJSON)}, want: []string{"GET /chat/run/r-1"}, errs: "r-1 is failed: it broke\n", code: 1},
		{line: "goal fix~it -a shell --budget steps=5 -d --until a.b --at 2027-01-31T09:00:00Z", answers: m{"POST /chat/run": runJSON}, want: []string{`POST /chat/run {"goal":"fix it","agent":{"preset":"shell"},"budget":{"steps":5},"until":{"capability":"a.b"},"next_run_at":"2027-01-31T09:00:00Z"}`}, out: []string{"r-1"}},
		{line: "goal x --at tomorrow", errs: "is neither a time such as", code: 2},

		{line: "schedule ls", answers: m{"GET /schedules": items(`{"id":"h-1","session_id":"s1","schedule":"@hourly","goal":"g","paused":true,"fired":4}`)}, want: []string{"GET /schedules"}, out: []string{"h-1", "s1", "@hourly", "paused", "4", "g"}},
		{line: "schedule show h-1", answers: m{"GET /schedules/h-1": `{"id":"h-1","missed":"once","overlap":"skip","fired":1,"left_out":2,"skipped":3,"failed":4,"error":"no session","next":["2027-01-31T09:00:00Z"]}`}, want: []string{"GET /schedules/h-1"}, out: []string{"once", "skip", "fired", "1", "skipped as missed", "2", "skipped as overlapping", "3", "failed", "4", "no session", "2027-01-31T09:00:00Z"}},
		{line: "schedule times @hourly --tz Europe/Berlin", answers: m{"GET /schedules/times": `{"times":["2027-01-31T09:00:00+01:00"]}`}, want: []string{"GET /schedules/times?schedule=%40hourly&time_zone=Europe%2FBerlin"}, out: []string{"2027-01-31T09:00:00+01:00\n"}},
		{line: "schedule edit h-1 --when @daily --jitter 2s --tz ~", answers: m{"PATCH /schedules/h-1": `{"id":"h-1"}`}, want: []string{`PATCH /schedules/h-1 {"schedule":"@daily","time_zone":" ","jitter_ms":2000}`}, out: []string{"h-1: -\n"}},
		{line: "schedule edit h-1", errs: "no changes specified; see --help", code: 2},
		{line: "schedule pause h-1", answers: m{"POST /schedules/h-1/pause": `{"id":"h-1","paused":true}`}, want: []string{"POST /schedules/h-1/pause"}, out: []string{"h-1: paused\n"}},
		{line: "schedule resume h-1", answers: m{"POST /schedules/h-1/resume": `{"id":"h-1"}`}, want: []string{"POST /schedules/h-1/resume"}, out: []string{"h-1: -\n"}},
		{line: "schedule rm h-1", answers: m{"DELETE /schedules/h-1": `204 `}, want: []string{"DELETE /schedules/h-1"}},
		{line: "connector ls", answers: m{"GET /connectors": items(`{"name":"ci","kind":"hook","address":"https://h/hooks/ci","pending":1,"dead":2}`, `{"name":"chat","kind":"post","sessions":["*"]}`)}, want: []string{"GET /connectors"}, out: []string{"ci", "hook", "a new session each", "1", "2", "chat", "post", "*", "-"}},
		{line: "connector deliveries ci --state dead", answers: m{"GET /connectors/ci/deliveries": items(`{"id":"m-1.ci","session_id":"s1","state":"dead","attempts":9,"error":"refused"}`)}, want: []string{"GET /connectors/ci/deliveries?state=dead"}, out: []string{"m-1.ci", "s1", "dead", "9", "-", "refused"}},
		{line: "connector redeliver --all ci", answers: m{"GET /connectors/ci/deliveries": items(`{"id":"m-1.ci"}`), "POST /deliveries/m-1.ci/redeliver": `{}`}, want: []string{"GET /connectors/ci/deliveries?state=dead", "POST /deliveries/m-1.ci/redeliver"}},
		{line: "connector redeliver", errs: "give deliveries, or a connector with --all", code: 2},

		// Old names do the same, with a warning.
		{line: "approvals withdraw a-1", answers: m{"DELETE /approvals/a-1": `{"id":"a-1"}`}, want: []string{"DELETE /approvals/a-1"}, errs: `"glasshouse approvals withdraw" is now "glasshouse approval cancel"; the old form`},
		{line: "approvals --state all", answers: m{"GET /approvals": items()}, want: []string{"GET /approvals?state=all"}, out: []string{"ID"}, errs: `"glasshouse approvals" is now "glasshouse approval ls"`},
		{line: "snapshots -q", answers: m{"GET /snapshots": items(snapJSON)}, want: []string{"GET /snapshots"}, out: []string{aSnapshot + "\n"}, errs: `"glasshouse snapshots" is now "glasshouse snapshot ls"`},
		{line: "snapshot " + aJail + " --name before", answers: m{"POST /jails/" + aJail + "/snapshot": snapJSON}, want: []string{`POST /jails/` + aJail + `/snapshot {"name":"before"}`}, out: []string{aSnapshot + "\n"}, errs: `is now "glasshouse snapshot create"`},
		{line: "snapshot " + aJail + " more", errs: "accepts 1 arg(s), received 2", code: 2},
		{line: "egress " + aJail, answers: m{"GET /jails/" + aJail + "/egress": `{"egress":{}}`}, want: []string{"GET /jails/" + aJail + "/egress"}, out: []string{"everything else"}, errs: `is now "glasshouse egress show" or "glasshouse egress set"`},
		{line: "egress " + aJail + " --ask", answers: m{"PUT /jails/" + aJail + "/egress": `{"egress":{"ask":true}}`}, want: []string{`PUT /jails/` + aJail + `/egress {"ask":true}`}, out: []string{"about everything else"}, errs: "is now"},
		{line: "runs --state paused", answers: m{"GET /chat/run": items(runJSON)}, want: []string{"GET /chat/run?state=paused"}, out: []string{"r-1"}},
		{line: "runs pause r-1", answers: m{"POST /chat/run/r-1/pause": runJSON}, want: []string{"POST /chat/run/r-1/pause"}, out: []string{"paused"}},
		{line: "logs " + aJail, answers: m{"GET /jails/" + aJail + "/execs": items(`{"id":"x-1"}`, `{"id":"x-2"}`), "GET /jails/" + aJail + "/execs/x-2": `{"id":"x-2","stdout":"hello\n"}`}, want: []string{"GET /jails/" + aJail + "/execs", "GET /jails/" + aJail + "/execs/x-2"}, out: []string{"hello\n"}},
		{line: "logs " + aJail + " x-1", answers: m{"GET /jails/" + aJail + "/execs/x-1": `{"id":"x-1","stdout":"hello\n","truncated":true}`}, want: []string{"GET /jails/" + aJail + "/execs/x-1"}, out: []string{"hello\n"}, errs: "only the end of the output was stored"},
		{line: "logs " + aJail, answers: m{"GET /jails/" + aJail + "/execs": items()}, errs: "no command has run in the jail", code: 1},
		{line: "approval ls --all-nodes", answers: m{"GET /approvals": items(`{"id":"a-1","jail":"j-aaaaaaaaaaaa","tier":"standard","state":"pending","title":"rm","node":"box2"}`)}, want: []string{"GET /approvals?nodes=all"}, out: []string{"NODE", "a-1", "box2"}},
		{line: "approval ls --state all", answers: m{"GET /approvals": items(`{"id":"a-1","jail":"j-aaaaaaaaaaaa","tier":"standard","state":"expired","title":"` + escapedName + `"}`)}, want: []string{"GET /approvals?state=all"}, out: []string{"a-1", aJail, "standard", "-", "expired", `\x1b[31mred`}},
		{line: "approval show a-1", answers: m{"GET /approvals/a-1": `{"id":"a-1","state":"pending","tier":"elevated","who":"agent","why":"a rule","rule":"bash","what":"rm\nall","context":"before","details":["more"],"writes":{"always":"rule"},"first":"ann","phrase":"yes do"}`}, want: []string{"GET /approvals/a-1"}, out: []string{"a-1", "pending", "elevated", "more", "allow always", "writes rule", "ann; one more approver is needed", "type: yes do", "\n  rm\n  all\n", "\n  before\n"}},
		{line: "approval cancel a-1", answers: m{"DELETE /approvals/a-1": `{"id":"a-1"}`}, want: []string{"DELETE /approvals/a-1"}},
		{line: "approval notices --again n-1", answers: m{"POST /notices/n-1/redeliver": `204 `, "GET /notices/dead": items(`{"id":"n-2","approval":"a-1","channel":"phone","kind":"asked","attempts":5,"error":"gone"}`)}, want: []string{"POST /notices/n-1/redeliver", "GET /notices/dead"}, out: []string{"n-2", "a-1", "phone", "asked", "5", "gone"}},
		{line: "deny a-1 --reason no", answers: m{"POST /approvals/a-1": `{"id":"a-1","state":"answered","jail":"j-aaaaaaaaaaaa"}`}, want: []string{`POST /approvals/a-1 {"answer":"deny","reason":"no"}`}, out: []string{"a-1 answered\n"}},
		{line: "approve a-1 --instead ls", answers: m{"GET /approvals/a-1": `{"id":"a-1","state":"pending"}`, "POST /approvals/a-1": `{"id":"a-1","state":"answered","jail":"j-aaaaaaaaaaaa"}`}, want: []string{"GET /approvals/a-1", `POST /approvals/a-1 {"answer":"modify","resource":"ls"}`}, out: []string{"a-1 answered\n"}},
		{line: "approve a-1", stdin: "yes do\n", answers: m{"GET /approvals/a-1": `{"id":"a-1","state":"pending","phrase":"yes do","what":"rm"}`, "POST /approvals/a-1": `{"id":"a-1","state":"pending","jail":"j-aaaaaaaaaaaa"}`}, want: []string{"GET /approvals/a-1", `POST /approvals/a-1 {"answer":"allow","typed":"yes do"}`}, out: []string{"a-1 needs one more approver\n"}, errs: "type its phrase"},
		{line: "approve a-1 --phrase p", answers: m{"POST /approvals/a-1": `{"id":"a-1","state":"answered","question":{"action":"install","resource":"a.b@1.0.0"}}`, "GET /capabilities/a.b": `{"id":"a.b","version":"1.0.0","state":"approved"}`}, want: []string{`POST /approvals/a-1 {"answer":"allow","typed":"p"}`, "GET /capabilities/a.b?version=1.0.0"}, out: []string{"a-1 answered\na.b@1.0.0 is approved\n"}},
		{line: "deny a-1", answers: m{"POST /approvals/a-1": `{"id":"a-1","state":"answered","question":{"action":"install","resource":"bundle places@2.0.0"}}`, "GET /bundles": items(`{"name":"places","version":"1.0.0"}`)}, want: []string{`POST /approvals/a-1 {"answer":"deny"}`, "GET /bundles"}, out: []string{"places 2.0.0 is not installed\n"}},

		{line: "capability ls", answers: m{"GET /capabilities": items(`{"id":"a.b","version":"1.0.0","state":"approved","runtime":"wasm","effects":["network","fs"],"tier":"standard","description":"d"}`)}, want: []string{"GET /capabilities"}, out: []string{"a.b", "1.0.0", "approved", "wasm", "network,fs", "standard", "d"}},
		{line: "capability show a.b@1.0.0", answers: m{"GET /capabilities/a.b": `{"id":"a.b","version":"1.0.0","state":"refused","why":"no","hosts":["h"],"secrets":["KEY"],"per_use":true,"manifest":"(capability\n)"}`}, want: []string{"GET /capabilities/a.b?version=1.0.0"}, out: []string{"a.b@1.0.0", "refused", "no", "h", "KEY", "true", "\n(capability\n)\n"}},
		{line: "capability rm a.b", answers: m{"DELETE /capabilities/a.b": `204 `}, want: []string{"DELETE /capabilities/a.b"}},
		{line: "capability revoke a.b@1.0.0 --reason bad", answers: m{"POST /capabilities/a.b/revoke": `{}`}, want: []string{`POST /capabilities/a.b/revoke {"version":"1.0.0","reason":"bad"}`}},
		{line: "capability trust a.b sha256:d --no", answers: m{"POST /capabilities/a.b/trust": `{}`}, want: []string{`POST /capabilities/a.b/trust {"digest":"sha256:d","trust":false}`}},
		{line: "call a.b -", stdin: `{"q":1}`, answers: m{"POST /capabilities/a.b/call": `{"id":"c-1","capability":"a.b","state":"done","output":{"x":"` + escapedName + `"}}`}, want: []string{`POST /capabilities/a.b/call {"input":{"q":1}}`}, out: []string{`{"x":"\u001b[31mred`}},
		{line: "call a.b {} --jail " + aJail + " --timeout 2s --label pii", answers: m{"POST /capabilities/a.b/call": `{"capability":"a.b","state":"refused","error":{"kind":"denied","reason":"no rule"}}`}, want: []string{`POST /capabilities/a.b/call {"input":{},"jail":"j-aaaaaaaaaaaa","labels":["pii"],"timeout_ms":2000}`}, errs: "a.b failed: denied: no rule", code: 1},
		{line: "call a.b nonsense", errs: "the input is not JSON", code: 2},
		{line: "call a.b {} --file x", errs: "not both", code: 2},
		{line: "replay 7", answers: m{"POST /chain/7/replay": `{"same":true,"output":{"x":1}}`}, want: []string{"POST /chain/7/replay"}, out: []string{`{"x":1}` + "\n"}},
		{line: "replay 7", answers: m{"POST /chain/7/replay": `{"same":false,"output":2}`}, want: []string{"POST /chain/7/replay"}, out: []string{"2\n"}, errs: "the output differs from the recorded output", code: 1},
		{line: "replay seven", errs: "is not an entry number", code: 2},
		{line: "skill ls", answers: m{"GET /skills": items(`{"name":"k","version":"1","tier":"standard","capabilities":["a.b"],"description":"d"}`)}, want: []string{"GET /skills"}, out: []string{"k"}},
		{line: "skill show k", answers: m{"GET /skills/k": `{"name":"k","text":"one\n` + escapedName + `"}`}, want: []string{"GET /skills/k"}, out: []string{"one\n" + `\x1b[31mred`}},
		{line: "skill show k", answers: m{"GET /skills/k": `{"name":"k","refused":"nobody allowed a.b"}`}, want: []string{"GET /skills/k"}, errs: "the skill is not available to agents: nobody allowed a.b", code: 1},
		{line: "skill rm k", answers: m{"DELETE /skills/k": `204 `}, want: []string{"DELETE /skills/k"}},
		{line: "audit ls --kind decision,egress --jail " + aJail + " --newest", answers: m{"GET /chain": items(`{"seq":3,"time":"x","kind":"decision","jail":"j-aaaaaaaaaaaa","agent":"a","body":{"action":"bash","resource":"ls","tag":"DENIED"}}`, `{"seq":4,"time":"x","kind":"egress","body":{"kind":"http","method":"GET","host":"h","port":443,"path":"/p","status":403,"allowed":false,"detail":"no rule"}}`)},
			want: []string{"GET /chain?jail=" + aJail + "&kind=decision%2Cegress&newest=true"}, out: []string{"3 x decision", aJail + " a", "bash: ls [DENIED]\n", "4 x egress", "-", "http GET h:443/p 403: refused, no rule\n"}},
		{line: "audit ls --since soon", errs: "is neither a time such as", code: 2},
		{line: "audit show 3", answers: m{"GET /chain/3/causes": items(`{"seq":1,"time":"x","kind":"k","body":{},"prev":"p","hash":"h"}`, `{"seq":3,"time":"x","kind":"k","body":{"a":1},"prev":"q","hash":"i"}`)}, want: []string{"GET /chain/3/causes"}, out: []string{"1 x k", "\n       3 x k", "body {\"a\":1}\nprev q\nhash i\n"}},
		{line: "audit show three", errs: "is not an entry number", code: 2},
		{line: "audit show 3", answers: m{"GET /chain/3/causes": items()}, want: []string{"GET /chain/3/causes"}, errs: "no entry 3", code: 1},
		{line: "audit verify --recent", answers: m{"GET /chain/verify": `{"entries":5,"checkpoints":2,"signed":4,"key_given":true}`}, want: []string{"GET /chain/verify"}, out: []string{"the audit log is intact\n5 entries verified, 2 checkpoints verified, the last one covers 4\n"}},
		{line: "audit verify --fleet", answers: m{"GET /nodes": `{"items":[]}`}, want: []string{"GET /nodes"}, code: 1, errs: "not in a fleet"},
		{line: "audit verify", answers: m{"GET /chain/verify": `{"entries":5,"bad":{"seq":3,"reason":"its hash is wrong"}}`}, want: []string{"GET /chain/verify?all=1"}, out: []string{"BAD: entry 3: its hash is wrong\n", "the key was not given"}, code: 1},

		{line: "backends", answers: m{"GET /backends": items(`{"name":"oci","runtime":"runc","usable":true,"lacks":{"memory":"m","cpu":"c","disk":"d","pids":"p"}}`, `{"name":"bwrap","usable":false,"reason":"`+escapedName+`"}`)}, want: []string{"GET /backends"}, out: []string{"ok  oci runc\n      without cpu: c\n      without disk: d\n      without memory: m\n      without pids: p\nno  bwrap : " + `\x1b[31mred`}},
		{line: "doctor --fleet", answers: m{"GET /nodes": items(`{"id":"a1","name":"`+escapedName+`","arch":"amd64","cpu":"Xeon","kernel":"6.12.1"}`, `{"id":"b2","name":"box2","arch":"arm64","kernel":"6.12.1"}`, `{"id":"c3","name":"front","front":true}`),
			"GET /doctor": items(`{"name":"bubblewrap","status":"ok","need":"required"}`, `{"name":"clock","status":"warning","need":"recommended","reason":"it is late","detail":"60s behind"}`, `{"name":"kvm","status":"unsupported","need":"optional"}`)},
			want: []string{"GET /nodes", "GET /doctor", "GET /doctor", "GET /doctor"}, out: []string{`\x1b[31mred`, "ready: jails run with bubblewrap (bwrap)\n", "!   clock", "60s behind", "it is late", "box2: ready", "front: ready, a front end", "amd64, Xeon, kernel 6.12.1: ", "arm64, kernel 6.12.1: box2\n"}},
		{line: "doctor --fleet", answers: m{"GET /nodes": items(`{"id":"a1","name":"box1"}`), "GET /doctor": items(`{"name":"bubblewrap","status":"unsupported","need":"required"}`)}, out: []string{"box1: not ready: no jail can run on this host", "no  bubblewrap"}, code: 1},
		{line: "doctor --fleet", answers: m{"GET /nodes": items(`{"id":"a1","name":"box1"}`), "GET /doctor": `503 {"type":"/problems/unavailable","title":"unavailable","status":503,"detail":"node box1 does not answer"}`}, out: []string{"box1: no answer: ", "node box1 does not answer"}, code: 1},
		{line: "doctor --fleet", answers: m{"GET /nodes": items()}, errs: "not in a fleet", code: 1},
		{line: "doctor", answers: m{"GET /doctor": items(`{"name":"criu","status":"unsupported","reason":"too old","remedy":"update it"}`, `{"name":"kernel","status":"ok","detail":"6.1"}`, `{"name":"x","status":"unknown"}`)}, want: []string{"GET /doctor"}, out: []string{"not ready: ", "no  criu", "too old", "→ update it", "ok  kernel", "6.1", "?   x"}, errs: "no jail can run on this host", code: 1},
		{line: "doctor", answers: m{"GET /doctor": items(`{"name":"bubblewrap","status":"ok","need":"required"}`, `{"name":"seccomp","status":"ok","need":"required"}`)}, want: []string{"GET /doctor"}, out: []string{"ready: jails run with bubblewrap (bwrap)\n", "ok  bubblewrap", "ok  seccomp"}},
		{line: "health", answers: m{"GET /health/ready": `{"status":"ok"}`, "GET /version": `{"version":"1.2.3"}`}, want: []string{"GET /health/ready", "GET /version"}, out: []string{"ok, version 1.2.3, started"}},
		{line: "health", answers: m{"GET /health/ready": `503 {"title":"unavailable","status":503,"detail":"the database does not answer"}`}, want: []string{"GET /health/ready"}, errs: "the database does not answer", code: 1},
		{line: "version", answers: m{"GET /version": `{"version":"1.2.3","go":"go1.26","kernel":"6.12.9-amd64"}`, "GET /backends": items(`{"name":"oci","runtime":"runc","usable":true}`, `{"name":"oci","runtime":"runsc","usable":false}`, `{"name":"bwrap","usable":true}`)}, want: []string{"GET /version", "GET /backends"}, out: []string{"client    unknown, go1.", "daemon    1.2.3, go1.26, started", "kernel    6.12.9-amd64\nbackends  oci runc, bwrap\n"}},
		{line: "version", answers: m{"GET /version": `503 {"type":"/problems/unavailable","title":"Service unavailable","status":503,"detail":"shutting down"}`}, want: []string{"GET /version"}, out: []string{"client  unknown", "daemon  not reachable: unavailable: shutting down"}},
		{line: "version", answers: m{"GET /version": `401 {"title":"Authentication required","status":401,"detail":"no token"}`}, want: []string{"GET /version"}, errs: "no token", code: 1},
		{line: "token create ann --role viewer --ttl 0", answers: m{"POST /tokens": `{"id":"t-1","token":"secret-of-ann"}`}, want: []string{`POST /tokens {"name":"ann","role":"viewer"}`}, out: []string{"secret-of-ann\n"}, errs: "does not expire; use --ttl to limit its lifetime, or revoke it with: glasshouse token rm t-1"},
		{line: "token create ann", answers: m{"POST /tokens": `{"id":"t-1","token":"secret-of-ann","expires_at":"2126-01-05T15:04:05Z"}`}, out: []string{"secret-of-ann\n"}, errs: "this token expires on 2126-01-05; --ttl sets another lifetime"},
		{line: "token create ann --ttl 24h", answers: m{"POST /tokens": `{"id":"t-1","token":"secret-of-ann","expires_at":"2126-01-02T15:04:05Z"}`}, out: []string{"secret-of-ann\n"}},
		{line: "token ls", answers: m{"GET /tokens": items(`{"id":"t-1","name":"ann","role":"viewer"}`)}, want: []string{"GET /tokens"}, out: []string{"t-1", "ann", "viewer", "never"}},
		{line: "token ls", answers: m{"GET /tokens": items(`{"id":"t-1","name":"ann","role":"viewer","expires_at":"2020-01-02T15:04:05Z"}`)}, want: []string{"GET /tokens"}, out: []string{", expired"}},
		{line: "token ls", answers: m{"GET /tokens": items(`{"id":"t-1","name":"ann","role":"viewer","expires_at":"2126-01-02T15:04:05Z"}`)}, want: []string{"GET /tokens"}, out: []string{"2126-01-0"}},
		{line: "token ls", answers: m{"GET /tokens": items(`{"id":"t-1","name":"ann","role":"viewer","quota":{"jails":10,"memory_bytes":8589934592},"used":{"jails":2,"memory_bytes":1073741824,"disk_bytes":2147483648}}`)}, out: []string{"JAILS", "2 of 10", "1 GiB of 8 GiB", "2 GiB\n"}},
		{line: "token create ann --ttl 0 --max-jails 10 --max-memory 8GiB --max-disk 50g", answers: m{"POST /tokens": `{"id":"t-1","token":"secret-of-ann"}`}, want: []string{`POST /tokens {"name":"ann","role":"operator","quota":{"jails":10,"memory_bytes":8589934592,"disk_bytes":53687091200}}`}, out: []string{"secret-of-ann\n"}, errs: "does not expire"},
		{line: "token create ann --max-memory much", errs: "--max-memory \"much\" is not a size", code: 2},
		{line: "token quota t-1 --max-jails 0 --max-disk 1GiB", answers: m{"PATCH /tokens/t-1": `{"id":"t-1"}`, "GET /tokens": items(`{"id":"t-1","name":"ann","role":"viewer","quota":{"disk_bytes":1073741824},"used":{"jails":2}}`)}, want: []string{`PATCH /tokens/t-1 {"quota":{"jails":0,"disk_bytes":1073741824}}`, "GET /tokens"}, out: []string{"jails   2\nmemory  0 B\ndisk    0 B of 1 GiB\n"}},
		{line: "token quota t-2", answers: m{"GET /tokens": items(`{"id":"t-1"}`)}, want: []string{"GET /tokens"}, errs: "no such token", code: 1},
		{line: "e2b --max-jails 3 --max-memory 0", answers: m{"POST /e2b/keys": `{"id":"t-1","key":"e2b_1","url":"http://127.0.0.1:8083","domain":"d","reach":["*"]}`}, want: []string{`POST /e2b/keys {"quota":{"jails":3}}`}, out: []string{"export E2B_API_KEY=e2b_1\n"}, errs: "# sandboxes can reach"},
		{line: "node ls", answers: m{"GET /nodes": items(`{"id":"a1","name":"`+escapedName+`","version":"1.2.3","state":"up","self":true,"lease_ms":25400,"epoch":3,"sessions":4,"runs":2,"arch":"amd64","kernel":"6.12.1","cpus":16,"memory_bytes":8589934592,"free_memory_bytes":3758096384,"unshipped_bytes":5242880}`, `{"id":"b2","name":"box2","state":"lost","lease_ms":-9000}`)}, want: []string{"GET /nodes"}, out: []string{"*", "a1", `\x1b[31mred`, "up", "1.2.3", "25s", "4", "2", "16", "3.5 of 8.0 GiB free", "5 MiB", "amd64 6.12.1", "b2", "box2", "lost", "expired", "0", "0"}},
		{line: "node ls", answers: m{"GET /nodes": items()}, want: []string{"GET /nodes"}, out: []string{"HOST\n"}, errs: "gateway.db in the configuration"},
		{line: "node ls", answers: m{"GET /nodes": items(`{"id":"a1","name":"box","state":"up","front":true,"draining":true,"address":"10.0.0.5:8443","jails":7}`)}, out: []string{"up,draining,front", "10.0.0.5:8443", "7"}},
		{line: "node token", answers: m{"POST /nodes/tokens": `{"token":"ghj_1","address":"10.0.0.5:8443","authority":"sha256:ab"}`}, want: []string{"POST /nodes/tokens"}, out: []string{"glasshouse node join 10.0.0.5:8443 --token ghj_1 --ca sha256:ab\n"}},
		{line: "node drain box2", answers: m{"PATCH /nodes/box2": `{"id":"b2","name":"box2","state":"up","draining":true}`}, want: []string{`PATCH /nodes/box2 {"draining":true}`}, out: []string{"up,draining"}},
		{line: "node drain box2 --move", answers: m{"PATCH /nodes/box2": `{"id":"b2","name":"box2","state":"up","draining":true}`,
			"GET /jails": `{"items":[{"id":"j-aaaaaaaaaaaa","name":"one"}]}`, "POST /jails/j-aaaaaaaaaaaa/move": `{"id":"j-aaaaaaaaaaaa","node":"b1","name":"box1"}`},
			want: []string{`PATCH /nodes/box2 {"draining":true}`, "GET /jails?nodes=self", "POST /jails/j-aaaaaaaaaaaa/move {}"}, out: []string{"j-aaaaaaaaaaaa one: moved to box1\n"}},
		{line: "node drain box2 --move", answers: m{"PATCH /nodes/box2": `{"id":"b2","name":"box2","state":"up","draining":true}`, "GET /jails": `{"items":[{"id":"j-bbbbbbbbbbbb"}]}`},
			want: []string{`PATCH /nodes/box2 {"draining":true}`, "GET /jails?nodes=self", "POST /jails/j-bbbbbbbbbbbb/move {}"}, out: []string{"j-bbbbbbbbbbbb: not moved: "}, code: 1},
		{line: "jail move j-aaaaaaaaaaaa box2", answers: m{"POST /jails/j-aaaaaaaaaaaa/move": `{"id":"j-aaaaaaaaaaaa","node":"b2","name":"box2"}`}, want: []string{`POST /jails/j-aaaaaaaaaaaa/move {"node":"box2"}`}, out: []string{"moved j-aaaaaaaaaaaa to box2\n"}},
		{line: "node drain box2 --undo", answers: m{"PATCH /nodes/box2": `{"id":"b2","name":"box2","state":"up"}`}, want: []string{`PATCH /nodes/box2 {"draining":false}`}, out: []string{"  up  "}},
		{line: "node rm box2", answers: m{"DELETE /nodes/box2": `409 {"type":"/problems/conflict","title":"conflict","status":409,"detail":"the node has 3 jails"}`}, want: []string{"DELETE /nodes/box2"}, errs: "the node has 3 jails", code: 1},
		{line: "node join 10.0.0.5:8443", errs: "--token and --ca are required", code: 2},
		{line: "jail ls --all-nodes", answers: m{"GET /jails": items(`{"id":"j-1","name":"web","state":"running","node":"box2"}`)}, out: []string{"NODE", "web", "box2"}},
		{line: "e2b", answers: m{"POST /e2b/keys": `{"id":"t-1","key":"e2b_1","url":"http://127.0.0.1:8083","domain":"d","reach":["*"]}`}, out: []string{"export E2B_API_KEY=e2b_1\n"}, errs: "# sandboxes can reach the whole Internet unless the client forbids it; e2b.reach"},
		{line: "e2b", answers: m{"POST /e2b/keys": `{"id":"t-1","key":"e2b_1","url":"http://127.0.0.1:8083","domain":"d","reach":["pypi.org"]}`}, out: []string{"export E2B_API_KEY=e2b_1\n"}, errs: "# sandboxes can reach only e2b.reach: pypi.org"},
		{line: "e2b", answers: m{"POST /e2b/keys": `{"id":"t-1","key":"e2b_1","url":"http://127.0.0.1:8083","domain":"d","reach":[]}`}, out: []string{"export E2B_API_KEY=e2b_1\n"}, errs: "# sandboxes can reach no host"},
		{line: "token rm t-1", answers: m{"DELETE /tokens/t-1": `204 `}, want: []string{"DELETE /tokens/t-1"}},
		{line: "bundle ls", answers: m{"GET /bundles": items(`{"name":"places","version":"1.0.0","publisher":"acme","tier":"standard","capabilities":["a.b@1.0.0"]}`)}, want: []string{"GET /bundles"}, out: []string{"places", "1.0.0", "acme"}},
		{line: "bundle rm places", answers: m{"DELETE /bundles/places": `204 `}, want: []string{"DELETE /bundles/places"}},
		{line: "bundle publishers", answers: m{"GET /publishers": items(`{"name":"acme","tier":"standard","keys":[{"id":"ABCD","key":"k"}]}`)}, want: []string{"GET /publishers"}, out: []string{"acme", "standard", "ABCD"}},
	} {
		t.Run(strings.ReplaceAll(c.line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, c.answers)
			code, out, errs := d.run(c.stdin, argsOf(c.line)...)
			if code != c.code {
				t.Errorf("exit code = %d, want %d", code, c.code)
			}
			if c.want != nil || c.code == 2 {
				if got := strings.Join(d.requests, "\n"); got != strings.Join(c.want, "\n") {
					t.Errorf("requests:\n%s\nwant\n%s", got, strings.Join(c.want, "\n"))
				}
			}
			rest := out
			for _, want := range c.out {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Errorf("stdout:\n%s\nwant it to contain %q after the previous parts", out, want)
					break
				}
				rest = after
			}
			if len(c.out) == 0 && out != "" {
				t.Errorf("stdout = %q, want nothing", out)
			}
			if !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("stderr = %q, want %q", errs, c.errs)
			}
			for _, text := range []string{out, errs} {
				if strings.ContainsAny(text, "\x1b\u202e") {
					t.Errorf("output = %q, want no terminal control characters", text)
				}
			}
		})
	}
}

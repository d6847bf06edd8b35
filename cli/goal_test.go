package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// at is the time of the events. Lines show it in local time.
var at = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

func runEvent(kind, body string) wire.RunEvent {
	return wire.RunEvent{Seq: 1, Session: "s1", Run: "r-1", Kind: kind, Body: json.RawMessage(body), At: at}
}

func TestRunEventLines(t *testing.T) {
	clock := at.Local().Format("15:04:05")
	for _, c := range []struct{ kind, body, want string }{
		{"run.moved", `{"from":"active","to":"paused","why":"budget","reason":"steps"}`, clock + " paused budget steps"},
		{"run.started", `{"state":"active"}`, clock + " active"},
		{"run.installing", `{"text":"installing npm opencode@1"}`, clock + " installing npm opencode@1"},
		{"run.warned", `{"cause":"idle","text":"no progress for 1h"}`, clock + " no progress for 1h"},
		{"run.moved", `{"to":"` + escapedName + `"}`, clock + ` \x1b[31mred\u202e`},
		{"step.ended", `{"kind":"exec","name":"make\u0007","state":"done"}`, clock + `   exec make\x07: done`},
		{"step.ended", `{"kind":"model","name":"model","state":"done"}`, clock + "   model call: done"},
		{"step.began", `{"kind":"exec"}`, ""},
		{"message.out", `{"text":"  one line  "}`, clock + "   one line"},
		{"message.out", `{"text":"first\nsecond"}`, clock + "   first …"},
		{"budget.warned", `{"percent":80,"dimension":"llm-tokens"}`, clock + "   80 % of llm-tokens is spent"},
		{"checkpoint.taken", `{"checkpoint":"p-1"}`, clock + "   checkpoint p-1"},
		{"a.later.kind", `{}`, ""},
		{"run.moved", `not JSON`, ""},
		{"run.moved", `{"to":5}`, ""},
	} {
		if got := runEventLine(runEvent(c.kind, c.body)); got != c.want {
			t.Errorf("%s %s: got %q, want %q", c.kind, c.body, got, c.want)
		}
	}
}

// runIn returns a run in a state, with more fields.
func runIn(state string, more ...string) string {
	return `{"id":"r-1","session_id":"s1","state":"` + state + `"` + strings.Join(append([]string{""}, more...), ",") + `}`
}

func TestGoalFollowsRunToEnd(t *testing.T) {
	clock := at.Local().Format("15:04:05")
	started := sse("", runEvent("run.moved", `{"to":"active"}`))
	other := runEvent("run.moved", `{"to":"done"}`)
	other.Run = "r-2"
	type m = map[string]string
	for _, c := range []struct {
		name, line string
		events     string
		run        string // response after an event
		jail       string
		decisions  string
		out, errs  string
		asked      string // an expected request, or "" for any
		code       int
	}{
		{
			name: "done", line: "goal x", events: started + openSuffix,
			run:  runIn("done", `"result":"line 1\n\u001b[2Jline 2"`),
			out:  "line 1\n\\x1b[2Jline 2\n",
			errs: "r-1 in session s1\n" + clock + " active\n",
		},
		{
			name: "failed", line: "goal x", events: started + openSuffix,
			run:  runIn("failed", `"error":"the model is away"`, `"reason":"later"`),
			errs: "r-1 in session s1\n" + clock + " active\nr-1 is failed: the model is away\n",
			code: 1,
		},
		{
			name: "cancelled", line: "goal x", events: started + openSuffix,
			run:  runIn("cancelled", `"reason":"by ann"`),
			errs: "r-1 in session s1\n" + clock + " active\nr-1 is cancelled: by ann\n",
			code: 1,
		},
		{
			name: "its jail stops", line: "goal x", events: started + openSuffix,
			run:   runIn("done", `"jail":"`+aJail+`"`),
			jail:  `{"id":"` + aJail + `","state":"stopped","labels":{"glasshouse.goal":"r-1"}}`,
			errs:  "r-1 in session s1\n" + clock + " active\n",
			asked: "GET /jails/" + aJail,
		},
		{
			name: "its jail is the session's", line: "goal x", events: started + openSuffix,
			run:   runIn("done", `"jail":"`+aJail+`"`),
			jail:  `{"id":"` + aJail + `","state":"running"}`,
			errs:  "r-1 in session s1\n" + clock + " active\n",
			asked: "GET /jails/" + aJail,
		},
		{
			name: "its agent reports tool calls", line: "goal x", events: started + openSuffix,
			run: runIn("done", `"jail":"`+aJail+`"`, `"created":"2026-01-02T15:04:00Z"`),
			decisions: items(`{"seq":7,"at":"2026-01-02T15:04:05Z","line":"bash: make test [AUTONOMOUS]"}`,
				`{"seq":9,"at":"2026-01-02T15:04:05Z","line":"bash: \u001b[2J [DENIED]"}`),
			jail:  `{"id":"` + aJail + `","state":"stopped","labels":{"glasshouse.goal":"r-1"}}`,
			errs:  "r-1 in session s1\n" + clock + "   bash: make test [AUTONOMOUS]\n" + clock + "   bash: \\x1b[2J [DENIED]\n" + clock + " active\n",
			asked: "GET /sandbox/" + aJail + "/decisions?after=0&from=2026-01-02T15%3A04%3A00Z&observed=false",
		},
		{
			name: "events of others do not count", line: "goal x",
			events: sse("", other) + started + openSuffix,
			run:    runIn("done"),
			errs:   "r-1 in session s1\n" + clock + " active\n",
		},
		{
			name: "an event that is not JSON", line: "goal x", events: "data: {\n\n" + openSuffix,
			errs: "unexpected end of JSON input",
			code: 1,
		},
		{
			name: "the stream breaks", line: "goal x", events: started + cutSuffix,
			run:  runIn("active"),
			errs: "the run continues when the daemon is back",
			code: 1,
		},
		{
			name: "the run is gone", line: "goal x", events: started + openSuffix,
			errs: "glasshouse: not found: nothing is there",
			code: 1,
		},
		{
			name: "followed later", line: "runs follow r-1", events: started + cutSuffix,
			run:  runIn("active"),
			errs: "\n  try: glasshouse agent logs r-1\n",
			code: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answers := m{"POST /chat/run": runIn("active"), "GET /chat/events/s1": strings.ReplaceAll(c.events, "event: \n", "")}
			if c.run != "" {
				answers["GET /chat/run/r-1"] = c.run
			}
			if c.jail != "" {
				answers["GET /sandbox/"+aJail+"/decisions"] = cmp.Or(c.decisions, items())
				answers["GET /jails/"+aJail] = c.jail
			}
			d := newScriptedDaemon(t, answers)
			code, out, errs := d.run("", argsOf(c.line)...)
			if code != c.code || out != c.out {
				t.Errorf("got exit code %d and %q, want %d and %q", code, out, c.code, c.out)
			}
			if !strings.Contains(errs, c.errs) || c.code == 0 && errs != c.errs {
				t.Errorf("stderr: got %q, want %q", errs, c.errs)
			}
			if !strings.Contains(d.asked(), c.asked) {
				t.Errorf("requests: got\n%s\nwant %q", d.asked(), c.asked)
			}
		})
	}
}

// Each request of the decisions waits until the audit log is written.
func TestGoalRequestsOnlyWhatAnEventMayChange(t *testing.T) {
	decisions := "GET /sandbox/" + aJail + "/decisions?after=0&from=0001-01-01T00%3A00%3A00Z&observed=false"
	const run = "GET /chat/run/r-1"
	jail := `"jail":"` + aJail + `"`
	for _, c := range []struct {
		name, run, kind, body string
		want                  []string
	}{
		{"a change of the state", jail, "run.moved", `{"to":"active"}`, []string{run, decisions}},
		{"a checkpoint", jail, "checkpoint.taken", `{"checkpoint":"p-1"}`, []string{run, decisions}},
		{"a model call begins", jail, "step.began", `{"kind":"model","name":"model"}`, []string{decisions}},
		{"a model call ends", jail, "step.ended", `{"kind":"model","name":"model","state":"done"}`, nil},
		{"a tool begins", jail, "step.began", `{"kind":"tool","name":"exec"}`, nil},
		{"a tool ends", jail, "step.ended", `{"kind":"tool","name":"exec","state":"done"}`, []string{decisions}},
		{"a message", jail, "message.out", `{"text":"hi"}`, []string{decisions}},
		{"the jail is unknown", `"agent":{"spawner":"jail"}`, "message.out", `{"text":"hi"}`, []string{run}},
		{"there is no jail", `"agent":{"spawner":"process"}`, "message.out", `{"text":"hi"}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, map[string]string{
				"POST /chat/run": runIn("active", c.run), run: runIn("active", c.run), "GET /sandbox/" + aJail + "/decisions": items(),
				"GET /chat/events/s1": strings.ReplaceAll(sse("", runEvent(c.kind, c.body)), "event: \n", "") + cutSuffix,
			})
			if code, _, errs := d.run("", "goal", "x"); code != 1 || !strings.Contains(errs, "the daemon closed the connection") {
				t.Errorf("exit code %d and %q, want 1 and that the stream broke", code, errs)
			}
			_, got, _ := strings.Cut(d.asked(), "GET /chat/events/s1?after=0")
			if got, want := strings.TrimSpace(got), strings.Join(c.want, "\n"); got != want {
				t.Errorf("requests after the event: got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// A jail that was created for a run stops shortly after the run has ended.
func TestGoalWaitsForJailToStop(t *testing.T) {
	var asked atomic.Int32
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		state := "running"
		if asked.Add(1) > 2 {
			state = "stopped"
		}
		fmt.Fprintf(w, `{"id":%q,"state":%q,"labels":{"glasshouse.goal":"r-1"}}`, aJail, state)
	})
	c := &command{addr: addr, env: Env{Getenv: func(string) string { return "" }}}
	cl, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	awaitStopped(t.Context(), cl, aJail)
	if got := asked.Load(); got != 3 {
		t.Errorf("the jail was requested %d times, want 3", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	awaitStopped(ctx, cl, aJail)
	if got := asked.Load(); got != 3 {
		t.Errorf("after a cancel the jail was requested %d times, want 3", got)
	}
}

func TestFollowRunEndsWithContext(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET /chat/run/r-1": runIn("active"), "GET /chat/events/s1": "data: {}\n\n" + openSuffix})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d.arrived = func(request string) {
		if strings.HasPrefix(request, "GET /chat/events/") {
			cancel()
		}
	}
	code, out, errs := d.runIn(ctx, "", "runs", "follow", "r-1")
	if code != 1 || out != "" || !strings.Contains(errs, "context canceled") || strings.Contains(errs, "the daemon closed") {
		t.Errorf("got exit code %d, %q and %q, want 1 and that it was cancelled", code, out, errs)
	}
}

func TestGoalRequestFromFlags(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join(dir, "opencode.json")
	(&vendor{T: t}).write(rules, "{}")
	for _, c := range []struct{ line, want string }{
		{"goal -d x", `{"goal":"x","agent":{}}`},
		{"goal -d x -- my-agent --acp", `{"goal":"x","agent":{"argv":["my-agent","--acp"]}}`},
		{"goal -d x -a shell --model m --protocol acp --spawner bwrap --skill a,b --skill c --keep", `{"goal":"x","agent":{"preset":"shell","protocol":"acp","spawner":"bwrap","model":"m","skills":["a","b","c"],"keep":true}}`},
		{"goal -d x -e A=1 -e HERE", `{"goal":"x","agent":{"env":{"A":"1","HERE":"there"}}}`},
		{"goal -d x -C " + dir, `{"goal":"x","agent":{"jail":{"workspace":{"source":"` + dir + `"}}}}`},
		{"goal -d x --rootfs host", `{"goal":"x","agent":{"jail":{"rootfs":{"host":true}}}}`},
		{"goal -d x --policy " + rules, `{"goal":"x","agent":{"jail":{"policy":{"files":[{"name":"opencode.json","text":"{}"}],"level":2}}}}`},
		{"goal -d x --level 3 --policy " + rules, `{"goal":"x","agent":{"level":3,"jail":{"policy":{"files":[{"name":"opencode.json","text":"{}"}],"level":3}}}}`},
		{"goal -d x --session s1 --parent r-9 --on-exceed stop", `{"session_id":"s1","goal":"x","agent":{},"parent":"r-9","on_exceed":"stop"}`},
		{"goal -d x --schedule @hourly --tz Europe/Berlin --missed all --overlap queue", `{"goal":"x","agent":{},"schedule":"@hourly","time_zone":"Europe/Berlin","missed":"all","overlap":"queue"}`},
	} {
		d := newScriptedDaemon(t, map[string]string{"POST /chat/run": runJSON})
		d.env = map[string]string{"HERE": "there"}
		code, _, errs := d.run("", argsOf(c.line)...)
		_, got, _ := strings.Cut(d.asked(), "POST /chat/run ")
		var have, want any
		if err := json.Unmarshal([]byte(got), &have); err != nil {
			t.Errorf("%s: got exit code %d, %q and the request %q, %v", c.line, code, errs, got, err)
			continue
		}
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			t.Errorf("%s: got %s, want %s", c.line, got, c.want)
		}
	}
}

func TestInvalidGoalIsNotSent(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"POST /chat/run": runJSON})
	for line, want := range map[string]string{
		"goal x --budget steps":                     `--budget "steps" is not DIMENSION=N`,
		"goal x --budget steps=1.5":                 `--budget "steps=1.5" is not DIMENSION=N`,
		"goal x --budget steps=9999999999999999999": "is not DIMENSION=N",
		"goal x -e =1":                              `"=1" is not KEY=VALUE`,
		"goal x --at noon":                          `--at "noon" is neither a time`,
		"goal x --until {":                          `--until "{" is not JSON`,
		"goal x --level high":                       `invalid argument "high"`,
		"runs follow":                               "accepts 1 arg(s), received 0",
		"runs resume r-1 --budget x=-1":             "is not DIMENSION=N",
		"runs resume r-1 --branch many":             `invalid argument "many"`,
	} {
		if code, out, errs := d.run("", argsOf(line)...); code != 2 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: got exit code %d, %q and %q, want 2 and %q", line, code, out, errs, want)
		}
	}
	if code, _, errs := d.run("", "goal", "x", "--policy", "/nowhere/opencode.json"); code != 1 || !strings.Contains(errs, "no such file") {
		t.Errorf("a policy that is not there: got exit code %d and %q, want 1 and why", code, errs)
	}
	if got := d.asked(); got != "" {
		t.Errorf("requests: got %q, want none", got)
	}
}

func TestShowRunOmitsUnsetFields(t *testing.T) {
	begins := at.Add(time.Hour)
	for name, c := range map[string]struct {
		run  wire.Run
		want []string
	}{
		"little": {
			wire.Run{ID: "r-1", Session: "s1", Goal: "fix\x1b", State: "active"},
			[]string{"id r-1", "session s1", `goal fix\x1b`, "state active", "agent", "steps 0"},
		},
		"all": {
			wire.Run{
				ID: "r-1", Session: "s1", Goal: "g", State: "scheduled", Why: "later", Agent: wire.RunAgent{Preset: "shell"}, Reason: "asked", Jail: aJail,
				Schedule: "h-1", NextRunAt: &begins, Parent: "r-2", Of: "r-3", Checkpoint: "p-1", Steps: 4, Result: "ok", Error: "none",
				Budget: wire.RunBudget{Limits: map[string]int64{"steps": 9, "llm-tokens": 5}, Consumed: map[string]int64{"steps": 4, "network-bytes": 7}},
			},
			[]string{
				"id r-1", "session s1", "goal g", "state scheduled later", "agent shell", "reason asked", "jail " + aJail, "schedule h-1", "begins 2026-01-02T16:04:05Z",
				"part of r-2", "branch of r-3", "checkpoint p-1", "budget llm-tokens: 0 of 5", "budget steps: 4 of 9", "spent network-bytes: 7", "steps 4", "result ok", "error none",
			},
		},
		"the time of a run that has begun": {
			wire.Run{ID: "r-1", State: "active", NextRunAt: &begins},
			[]string{"id r-1", "session", "goal", "state active", "agent", "steps 0"},
		},
	} {
		var b strings.Builder
		showRun(&b, c.run)
		if got, want := squeezeSpaces(b.String()), strings.Join(c.want, "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestSessionEventsStream(t *testing.T) {
	long := runEvent("message.out", `{"text":"`+strings.Repeat("x", 200)+`"}`)
	none := runEvent("session.opened\x1b", `{}`)
	none.Run, none.Seq = "", 2
	d := newScriptedDaemon(t, map[string]string{"GET /chat/events/s1": strings.ReplaceAll(sse("", long)+sse("", none), "event: \n", "") + cutSuffix})
	code, out, errs := d.run("", "session", "events", "s1", "--after", "4")
	if code != 1 || !strings.Contains(errs, "unexpected EOF") {
		t.Errorf("got exit code %d and %q, want 1 and that the stream broke", code, errs)
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d lines, want 2:\n%s", len(lines), out)
	}
	clock := at.Local().Format("15:04:05")
	if want := "     1 " + clock + " message.out      r-1 {\"text\":\"xxx"; !strings.HasPrefix(lines[0], want) || !strings.HasSuffix(lines[0], "…") {
		t.Errorf("a long event: got %q, want %q and its start only", lines[0], want)
	}
	if want := "     2 " + clock + ` session.opened\x1b - {}`; lines[1] != want {
		t.Errorf("an event without a run: got %q, want %q", lines[1], want)
	}
	if got, want := d.asked(), "GET /chat/events/s1?after=4"; got != want {
		t.Errorf("request: got %q, want %q", got, want)
	}
	_, out, _ = d.run("", "--json", "session", "events", "s1")
	dec := json.NewDecoder(strings.NewReader(out))
	for n := range 2 {
		var e wire.RunEvent
		if err := dec.Decode(&e); err != nil || e.Session != "s1" {
			t.Errorf("--json: event %d is %+v, %v, want one of s1", n, e, err)
		}
	}
}

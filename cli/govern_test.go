package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
)

func TestEgressRulesFromFile(t *testing.T) {
	dir := t.TempDir()
	v := &vendor{T: t}
	file := func(name, text string) string {
		full := filepath.Join(dir, name)
		v.write(full, text)
		return full
	}
	rules := file("rules.yaml", "allow:\n  - host: a.example\n    ports: [443]\n    inject: [{secret: KEY, as: bearer}]\n    limit: {requests: 600}\nask: true\n")
	asJSON := file("rules.json", `{"allow":[{"host":"b.example"}]}`)
	for _, c := range []struct {
		flags      string
		want, errs string
		code       int
	}{
		{flags: "--egress " + rules, want: `{"allow":[{"host":"a.example","ports":[443],"inject":[{"secret":"KEY","as":"bearer"}],"limit":{"requests":600}}],"ask":true}`},
		{flags: "--egress " + asJSON, want: `{"allow":[{"host":"b.example"}]}`},
		{flags: "--egress " + asJSON + " --ask", want: `{"allow":[{"host":"b.example"}],"ask":true}`},
		{flags: "--egress " + asJSON + " --allow c.example:80,443", want: `{"allow":[{"host":"b.example"},{"host":"c.example","ports":[80,443]}]}`},
		{flags: "--allow *.d.example", want: `{"allow":[{"host":"*.d.example"}]}`},
		{flags: "--allow [2001:db8::1]", want: `{"allow":[{"host":"2001:db8::1"}]}`},
		{flags: "--allow [2001:db8::1]:22", want: `{"allow":[{"host":"2001:db8::1","ports":[22]}]}`},
		{flags: "--allow a.example:http", errs: `"http" is not a port`, code: 2},
		{flags: "--allow a.example:65536", errs: `"65536" is not a port`, code: 2},
		{flags: "--allow a.example:80,", errs: `"" is not a port`, code: 2},
		{flags: "--egress " + dir + "/none.yaml", errs: "none.yaml: no such file", code: 1},
		{flags: "--egress " + file("odd.yaml", "alow: []\n"), errs: `odd.yaml: json: unknown field "alow"`, code: 1},
		{flags: "--egress " + file("broken.yaml", "allow: [\n"), errs: "broken.yaml: yaml: ", code: 1},
		{flags: "--egress " + file("keys.yaml", "1: 2\n? [a]\n: b\n"), errs: "keys.yaml: ", code: 1},
		{flags: "--egress " + file("types.yaml", "ask: maybe\n"), errs: "types.yaml: json: cannot unmarshal", code: 1},
	} {
		d := newScriptedDaemon(t, map[string]string{"PUT /jails/" + aJail + "/egress": `{"egress":{}}`})
		code, _, errs := d.run("", append([]string{"egress", "set", aJail}, strings.Fields(c.flags)...)...)
		if code != c.code || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
			t.Errorf("egress %s: got exit code %d and %q, want %d and %q", c.flags, code, errs, c.code, c.errs)
		}
		_, got, sent := strings.Cut(d.asked(), "/egress ")
		if sent != (c.code == 0) || sent && !sameJSON(t, got, c.want) {
			t.Errorf("egress %s: request: got %s, want %s", c.flags, got, c.want)
		}
	}
}

func TestExplainEgress(t *testing.T) {
	for _, c := range []struct {
		egress wire.ExplainedEgress
		want   string
	}{
		{wire.ExplainedEgress{Allow: true, Rule: "*.a\x1b"}, `allow, by *.a\x1b; the policy is not asked`},
		{wire.ExplainedEgress{Asks: true, Detail: "no rule\x1b"}, `no rule\x1b; the policy decides`},
		{wire.ExplainedEgress{Detail: "no rule\x1b"}, `refuse: no rule\x1b`},
	} {
		if got := egressWord(&c.egress); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.egress, got, c.want)
		}
	}
	for _, c := range []struct {
		rule wire.PolicyRule
		want string
	}{
		{wire.PolicyRule{Action: "bash", Pattern: "git *", Effect: "ask"}, `bash "git *": ask`},
		{wire.PolicyRule{Action: "bash", Pattern: "\x1b", Effect: "deny", File: "a.json", Line: 4}, `bash "\x1b": deny (a.json:4)`},
		{wire.PolicyRule{Action: "e\x1bdit", Pattern: "*", Effect: "allow", File: "answer of ann"}, `e\x1bdit "*": allow (answer of ann)`},
	} {
		if got := ruleText(c.rule); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.rule, got, c.want)
		}
	}
}

func TestExplainWithoutPolicyFails(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET /jails/" + aJail + "/policy": "{}"})
	code, _, errs := d.run("", "policy", "explain", aJail, "bash", "ls", "--level", "2")
	if want := "has no policy that --match, --level or --ceiling could change"; code != 1 || !strings.Contains(errs, want) {
		t.Errorf("got exit code %d and %q, want 1 and %q", code, errs, want)
	}
}

func TestDecide(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"POST /jails/" + aJail + "/decide": `{"allow":false,"tag":"DENIED","decision":{"effect":"deny"}}`})
	code, out, _ := d.run("", "--json", "decide", aJail, "bash", "npm test", "--agent", "reviewer", "--wait", "5")
	if code != 1 || !strings.Contains(out, `"tag": "DENIED"`) {
		t.Errorf("got exit code %d and %q, want 1 and the decision", code, out)
	}
	if got, want := d.asked(), `{"action":"bash","resource":"npm test","agent":"reviewer","wait_ms":5000}`; !sameJSON(t, got[strings.Index(got, "{"):], want) {
		t.Errorf("request: got %s, want %s", got, want)
	}
}

func TestFollowApprovals(t *testing.T) {
	event := func(kind, jail, aid string) string {
		return `data: {"kind":"` + kind + `","at":"2026-01-02T15:04:05Z","approval":{"id":"` + aid + `","jail":"` + jail + `","title":"run ` + escapedName + `"}}` + "\n\n"
	}
	stream := event("asked", aJail, "a-1") + event("answered", "j-bbbbbbbbbbbb", "a-2")
	clock := at.Local().Format("15:04:05")
	one, two := clock+" asked     a-1  run \\x1b[31mred\\u202e\n", clock+" answered  a-2  run \\x1b[31mred\\u202e\n"
	for _, c := range []struct{ line, end, want, errs string }{
		{"approvals -f", cutSuffix, one + two, "unexpected EOF"},
		{"approvals -f " + aJail, cutSuffix, one, "unexpected EOF"},
		{"approvals -f", "data: {\n\n" + openSuffix, one + two, "unexpected end of JSON input"},
	} {
		d := newScriptedDaemon(t, map[string]string{"GET /approvals/events": stream + c.end})
		code, out, errs := d.run("", argsOf(c.line)...)
		if code != 1 || out != c.want || !strings.Contains(errs, c.errs) {
			t.Errorf("%s: got exit code %d, %q and %q, want 1, %q and %q", c.line, code, out, errs, c.want, c.errs)
		}
	}
}

func TestApprovalShowsAnswer(t *testing.T) {
	var b strings.Builder
	showApproval(&b, wire.Approval{
		ID: "a-1", State: "answered", Tier: "standard", Who: "ag\x1bent", Phrase: "yes do", What: "rm\n\x1b[2J", Outcome: "it ran",
		Answer: &wire.ApprovalAnswer{Answer: "allow", Scope: "once", By: "ann\u202e"},
	})
	want := "id a-1\nstate answered\ntier standard\n" + `who ag\x1bent` + "\nwhy\nrule\nexpires -\n" + `answer allow once, by ann\u202e` + "\noutcome it ran\n\nrm\n" + `\x1b[2J`
	if got := squeezeSpaces(b.String()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// An answer about an installation takes effect shortly after it is given.
func TestApproveWaitsForInstallation(t *testing.T) {
	const answered = `{"id":"a-1","state":"answered","question":{"action":"install","resource":"%s"}}`
	for _, c := range []struct {
		resource, path   string
		first, then, out string
	}{
		{"a.b@1.0.0", "GET /capabilities/a.b", `{"id":"a.b","state":"pending"}`, `{"id":"a.b","state":"approved"}`, "a-1 answered\na.b@1.0.0 is approved\n"},
		{"a.b@1.0.0", "GET /capabilities/a.b", `{"id":"a.b","state":"pending"}`, "", "a-1 answered\na.b@1.0.0 was removed in the meantime\n"},
		{"bundle p@2.0.0", "GET /bundles", items(`{"name":"q","version":"2.0.0"}`, `{"name":"p","next":{"version":"2.0.0","state":"pending"}}`), items(`{"name":"p","version":"2.0.0"}`), "a-1 answered\np 2.0.0 is installed\n"},
		{"bundle p@2.0.0", "GET /bundles", items(`{"name":"p","next":{"version":"2.0.0","state":"pending"}}`), items(), "a-1 answered\np 2.0.0 is not installed\n"},
	} {
		d := newScriptedDaemon(t, nil)
		d.answers = map[string]string{"POST /approvals/a-1": fmt.Sprintf(answered, c.resource), c.path: c.first}
		asked := 0
		d.arrived = func(request string) {
			if strings.HasPrefix(request, c.path) {
				asked++
			}
			if asked == 2 {
				d.answers[c.path] = c.then
				if c.then == "" {
					delete(d.answers, c.path)
				}
			}
		}
		code, out, errs := d.run("", "approve", "a-1", "--phrase", "p")
		if code != 0 || out != c.out || asked != 2 {
			t.Errorf("%s: got exit code %d, %q and %q after %d looks, want 0 and %q after 2", c.resource, code, out, errs, asked, c.out)
		}
	}
}

func TestE2BOutputIsShellQuoted(t *testing.T) {
	was := systemRoots
	t.Cleanup(func() { systemRoots = was })
	systemRoots = nil
	state := filepath.Join(t.TempDir(), "it's here")
	d := newScriptedDaemon(t, map[string]string{"POST /e2b/keys": `{"id":"t-1","key":"k;reboot","url":"https://h.example:3000","domain":"h.example","ca":"PEM\n"}`})
	d.env = map[string]string{"XDG_STATE_HOME": state}
	code, out, errs := d.run("", "e2b", "--name", "ci")
	if code != 0 {
		t.Fatalf("got exit code %d and %q, want 0; requests: %s", code, errs, d.asked())
	}
	lines := strings.Split(out, "\n")
	dir := strings.ReplaceAll(state, "'", `'\''`)
	want := []string{
		"export E2B_API_KEY='k;reboot'", "export E2B_API_URL=https://h.example:3000", "export E2B_SANDBOX_URL=https://h.example:3000",
		"export E2B_VOLUME_API_URL=https://h.example:3000", "export E2B_DOMAIN=h.example",
		"export NODE_EXTRA_CA_CERTS='" + dir + "/glasshouse/e2b-", "export SSL_CERT_FILE='" + dir + "/glasshouse/e2b-", "",
	}
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("got %q, want lines that begin with %q", lines, want)
	}
	d.answers["POST /e2b/keys"] = `{"id":"t-1","key":"k","url":"http://127.0.0.1:3000","domain":"h.example"}`
	_, out, _ = d.run("", "e2b")
	if want := "export E2B_API_KEY=k\nexport E2B_API_URL=http://127.0.0.1:3000\nexport E2B_SANDBOX_URL=http://127.0.0.1:3000\nexport E2B_VOLUME_API_URL=http://127.0.0.1:3000\n"; out != want {
		t.Errorf("without TLS: got %q, want %q", out, want)
	}
	for in, want := range map[string]string{"": "''", "a b": "'a b'", "$(x)": "'$(x)'", "it's": `'it'\''s'`, "a\nb": "'a\nb'", "/a-b_c.d:e@f%g+h=i,j": "/a-b_c.d:e@f%g+h=i,j", "é": "'é'"} {
		if got := shellWord(in); got != want {
			t.Errorf("shellWord(%q): got %s, want %s", in, got, want)
		}
	}
}

func TestScheduleNextTime(t *testing.T) {
	soon := time.Now().Add(2 * time.Hour)
	for _, c := range []struct {
		s    wire.Schedule
		want string
	}{
		{wire.Schedule{}, "-"},
		{wire.Schedule{Paused: true, NextRunAt: &soon}, "paused"},
		{wire.Schedule{NextRunAt: &soon}, "in "},
		{wire.Schedule{NextRunAt: &at}, "-"},
	} {
		if got := nextTime(c.s); !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.s, got, c.want)
		}
	}
	for _, c := range []struct {
		k    wire.Connector
		want string
	}{{wire.Connector{Kind: "post", Session: "s1"}, "-"}, {wire.Connector{Kind: "hook"}, "a new session each"}, {wire.Connector{Kind: "hook", Session: "s1"}, "s1"}} {
		if got := notifiedSession(c.k); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.k, got, c.want)
		}
	}
}

func TestTemporaryLimits(t *testing.T) {
	until := at
	var b strings.Builder
	writeLimits(&b, wire.JailLimits{Limits: wire.Limits{CPUShares: 1, MemoryMB: 2, DiskMB: 3, MaxPIDs: 4}, Until: &until})
	want := "weight 1, memory 2 MiB, disk 3 MiB, 4 processes\ntemporary until " + at.Local().Format(time.DateTime) + "\n"
	if got := b.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := boundsText(wire.Bounds{CPU: 0.5, MemoryMB: 1, DiskMB: 2, PIDs: 3}), "cpu=0.5 memory=1 disk=2 pids=3"; got != want {
		t.Errorf("bounds: got %q, want %q", got, want)
	}
	if got := boundsText(wire.Bounds{}); got != "" {
		t.Errorf("no bounds: got %q, want %q", got, "")
	}
}

// A report or a capture is saved completely or not at all.
func TestSaveIsAtomic(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "report.md")
	path := "GET /jails/" + aJail + "/report"
	d := newScriptedDaemon(t, map[string]string{path: "# Report\n"})
	if code, _, errs := d.run("", "report", aJail, "-o", file); code != 0 {
		t.Fatalf("got exit code %d and %q, want 0", code, errs)
	}
	d.answers[path] = "# Half of anoth" + cutSuffix
	code, _, errs := d.run("", "report", aJail, "-o", file)
	if want := "write " + file + ": unexpected EOF"; code != 1 || !strings.Contains(errs, want) {
		t.Errorf("a stream that breaks: got exit code %d and %q, want 1 and %q", code, errs, want)
	}
	if got, err := os.ReadFile(file); string(got) != "# Report\n" {
		t.Errorf("the file: got %q, %v, want the report that was there", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the directory: got %v, %v, want the report alone", left, err)
	}
	if code, _, errs := d.run("", "report", aJail, "-o", filepath.Join(dir, "none", "x")); code != 1 || !strings.Contains(errs, "no such file or directory") {
		t.Errorf("where no file can be: got exit code %d and %q, want 1 and why", code, errs)
	}
	if code, out, errs := d.run("", "report", aJail); code != 1 || out != "# Half of anoth" || !strings.Contains(errs, "unexpected EOF") {
		t.Errorf("to standard output: got exit code %d, %q and %q, want 1, what came and why", code, out, errs)
	}
}

func TestExporterEnvironment(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{})
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "try: set it to http/protobuf or http/json"},
		{map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "no pair"}, "glasshouse: "},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://x"}, "ftp://x"},
	} {
		d.env = c.env
		if code, _, errs := d.run("", "export", "otel"); code != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%v: got exit code %d and %q, want 1 and %q", c.env, code, errs, c.want)
		}
	}
	if got := d.asked(); got != "" {
		t.Errorf("requests: got %q, want none", got)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"unix:///run/s": host, "http://localhost:8082": host, "http://127.0.0.1:1": host, "http://[::1]:1": host,
		"https://daemon.example:1": "daemon.example", "http://10.0.0.1:1": "10.0.0.1", "daemon.example:1": "daemon.example",
	} {
		c := &command{addr: addr, env: Env{Getenv: func(string) string { return "" }}}
		if got := c.daemonHost(); got != want {
			t.Errorf("the host of %s: got %q, want %q", addr, got, want)
		}
	}
	bad := filepath.Join(t.TempDir(), "cursor")
	(&vendor{T: t}).write(bad, "not a cursor")
	d.env = nil
	if code, _, errs := d.run("", "export", "otel", "--cursor", bad); code != 1 || !strings.Contains(errs, "not a cursor") || !strings.Contains(errs, "try: give another file") {
		t.Errorf("a file that is no cursor: got exit code %d and %q, want 1 and the remedy", code, errs)
	}
}

// A command that is interrupted while it waits for the daemon ends with an error.
func TestCommandsEndWithContext(t *testing.T) {
	for _, line := range []string{
		"jail ls", "jail create", "jail exec " + aJail + " ls", "jail exec -d " + aJail + " ls", "jail stop " + aJail, "snapshot " + aJail, "branch " + aSnapshot, "cp " + aJail + ":/x -", "files watch " + aJail + ":/",
		"decide " + aJail + " bash ls", "approvals -f", "approve a-1", "goal x", "call a.b", "audit export", "session events s1", "report " + aJail, "diff " + aJail, "net " + aJail, "snapshot export " + aSnapshot,
		"secret set K", "policy show " + aJail, "market search x", "mcp --no-jails --listen nowhere",
	} {
		check := func(t *testing.T, code int, errs string) {
			want := 1
			if strings.HasPrefix(line, "jail exec") {
				want = 125
			}
			if code != want || errs == "" || strings.Contains(errs, "panic") {
				t.Errorf("got exit code %d and %q, want %d and why", code, errs, want)
			}
		}
		t.Run(strings.ReplaceAll(line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			d.arrived = func(string) { cancel(); <-ended }
			code, _, errs := d.runIn(ctx, "", argsOf(line)...)
			close(ended)
			check(t, code, errs)
		})
		t.Run(strings.ReplaceAll(line, "/", "_")+" in the response", func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, nil)
			d.problem = "[" + openSuffix
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d.opened = cancel
			code, _, errs := d.runIn(ctx, "", argsOf(line)...)
			// A watch runs until it is interrupted, which is no error once the response has begun.
			if strings.HasPrefix(line, "files watch") && code == 0 && errs == "" {
				return
			}
			check(t, code, errs)
		})
	}
}

// A command line that cannot be parsed sends no request, and its text is escaped in errors.
func TestErrorsEscapeControlCharacters(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET /jails": items()})
	for _, args := range [][]string{
		{"\x1b[2J"}, {"jail", "\x1b[2J"}, {"jail", "show", "\x1b[2J"}, {"jail", "create", "--memory", "\x1b[2J"}, {"jail", "create", "--rootfs", "\x1b[2J"},
		{"jail", "create", "-m", "\x1b[2J"}, {"jail", "create", "--observe", "\x1b[2J"}, {"jail", "create", "--snapshots", "\x1b[2J"}, {"jail", "create", "-l", "\x1b[2J"},
		{"jail", "create", "--allow", "a:\x1b[2J"}, {"files", "ls", "\x1b[2J"}, {"events", aJail, "--since", "\x1b[2J"}, {"events", aJail, "--color", "\x1b[2J"},
		{"goal", "x", "--until", "{\x1b[2J"}, {"audit", "show", "\x1b[2J"}, {"replay", "\x1b[2J"}, {"policy", "level", aJail, "\x1b[2J"}, {"--\x1b[2J"},
		{"bundle", "verify", "\x1b[2J"}, {"rtfs", "run", "\x1b[2J"}, {"skill", "add", "\x1b[2J"}, {"serve", "--config", "\x1b[2J"},
	} {
		code, out, errs := d.run("", args...)
		if code == 0 || out != "" || !strings.Contains(errs, `\x1b[2J`) {
			t.Errorf("%q: got exit code %d, %q and %q, want a failure that shows the argument", args, code, out, errs)
		}
		checkTerminal(t, fmt.Sprintf("%q", args), errs)
	}
}

func TestListCollectsAllPages(t *testing.T) {
	const many = 3000
	var page []string
	for n := range many {
		page = append(page, fmt.Sprintf(`{"id":"j-aaaaaaaaaaaa","name":"n%d"}`, n))
	}
	first := items(page[:many-1]...)
	d := newScriptedDaemon(t, map[string]string{
		"GET /jails":            strings.TrimSuffix(first, "}") + `,"next":"more"}`,
		"GET /jails?after=more": items(page[many-1:]...),
	})
	code, out, errs := d.run("", "--json", "jail", "ls")
	var all []wire.Jail
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all) != many || all[many-1].Name != fmt.Sprintf("n%d", many-1) {
		t.Errorf("--json: got exit code %d, %d jails, %v and %q, want 0 and %d", code, len(all), err, errs, many)
	}
	_, out, _ = d.run("", "jail", "ls")
	if got := strings.Count(out, "\n"); got != many+1 {
		t.Errorf("the table: got %d lines, want %d and a heading", got, many)
	}
	d.answers["GET /jails?after=more"] = `503 {"title":"unavailable","status":503,"detail":"the database is away"}`
	if code, out, errs := d.run("", "jail", "ls"); code != 1 || out != "" || !strings.Contains(errs, "the database is away") {
		t.Errorf("without the second page: got exit code %d, %d bytes and %q, want 1, none and why", code, len(out), errs)
	}
}

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

// auditLog opens the audit log of a data directory, adds n entries and closes it.
func auditLog(t *testing.T, data, headFile string, n int) error {
	t.Helper()
	st, err := storetest.Open(t, filepath.Join(data, "glasshouse.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	key, err := chain.LoadKey(data)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Store: st.Chain(), Key: key, HeadFile: headFile, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	for range n {
		if _, err := c.Append(t.Context(), chain.Entry{Kind: chain.DaemonStarted, Body: json.RawMessage("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	return c.Close()
}

// copyData copies the files of a data directory.
func copyData(t *testing.T, from, to string) {
	t.Helper()
	for _, name := range []string{"glasshouse.db", "glasshouse.db-wal", "glasshouse.db-shm"} {
		os.Remove(filepath.Join(to, name))
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDataDirectoryRollbackIsDetected restores an earlier copy of the database. All its
// signatures are valid, so only checkpoints stored elsewhere reveal the rollback.
func TestDataDirectoryRollbackIsDetected(t *testing.T) {
	data, backup := t.TempDir(), t.TempDir()
	heads := filepath.Join(t.TempDir(), "heads")
	if err := auditLog(t, data, heads, 3); err != nil {
		t.Fatal(err)
	}
	copyData(t, data, backup)
	if err := auditLog(t, data, heads, 4); err != nil {
		t.Fatal(err)
	}
	verify := func(args ...string) (code int, out string) {
		var b bytes.Buffer
		args = append([]string{"--data", data, "audit", "verify", "--offline"}, args...)
		code = Run(t.Context(), args, Env{Stdout: &b, Stderr: &b, Stdin: strings.NewReader(""), Getenv: func(string) string { return "" }})
		return code, b.String()
	}
	if code, out := verify("--checkpoint", heads); code != 0 || !strings.Contains(out, "7 entries verified") {
		t.Errorf("verify of the complete log = exit code %d, %s, want 0 and 7 entries", code, out)
	}

	copyData(t, backup, data)
	if code, out := verify(); code != 0 {
		t.Errorf("verify without a checkpoint = exit code %d, %s, want 0: nothing in the directory is wrong", code, out)
	}
	code, out := verify("--checkpoint", heads)
	if want := "entry 4: missing: 7 entries were in the chain at the given checkpoint"; code != 1 || !strings.Contains(out, want) {
		t.Errorf("verify after a rollback = exit code %d, %s, want 1 and %q", code, out, want)
	}
	err := auditLog(t, data, heads, 0)
	if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "rolled back") {
		t.Errorf("opening the log after a rollback = %v, want a conflict that reports the rollback", err)
	}
	if remedy, want := fault.RemedyOf(err), "glasshouse audit verify --offline"; !strings.Contains(remedy, want) {
		t.Errorf("remedy = %q, want it to contain %q", remedy, want)
	}

	// A line that was truncated by a crash does not hide the lines around it.
	f, err := os.OpenFile(heads, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, `{"time":"2026-`)
	f.Close()
	if err := auditLog(t, data, heads, 0); !errors.Is(err, fault.Conflict) {
		t.Errorf("opening the log with a head file that ends in the middle of a line = %v, want a conflict", err)
	}
	// Moving the head file away accepts the shorter log.
	if err := os.Rename(heads, heads+".evidence"); err != nil {
		t.Fatal(err)
	}
	if err := auditLog(t, data, heads, 1); err != nil {
		t.Errorf("opening the log after its head file was moved away = %v, want no error", err)
	}
}

// TestVerifyLiveWithCheckpoint uses a checkpoint of a running daemon.
func TestVerifyLiveWithCheckpoint(t *testing.T) {
	d := newTestEnv(t)
	for range 2 {
		if _, err := d.chain.Append(t.Context(), chain.Entry{Kind: chain.DaemonStarted, Body: json.RawMessage("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	cp, err := d.chain.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := filepath.Join(t.TempDir(), "seen")
	if err := os.WriteFile(seen, []byte(cp.Note), 0o600); err != nil {
		t.Fatal(err)
	}
	d.wantOutput("audit verify --checkpoint "+seen, "the audit log is intact")

	other := t.TempDir()
	if err := auditLog(t, other, filepath.Join(other, "heads"), 9); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := d.run("audit verify --checkpoint " + filepath.Join(other, "heads")); code == 0 {
		t.Errorf("verify with the checkpoint of another log = exit code 0, %s%s, want a failure", out, errs)
	}
}

// appendEntries adds n entries to the audit log and signs them. It returns the checkpoint.
func (d *testEnv) appendEntries(n int) string {
	d.t.Helper()
	for range n {
		if _, err := d.chain.Append(d.t.Context(), chain.Entry{Kind: chain.DaemonStarted, Body: json.RawMessage(`{"a":1}`)}); err != nil {
			d.t.Fatal(err)
		}
	}
	cp, err := d.chain.Checkpoint(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return cp.Note
}

// saveFile writes text to a temporary file and returns its name.
func saveFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestAuditExportVerifiesWithoutDaemon(t *testing.T) {
	d := newTestEnv(t)
	early := d.appendEntries(2)
	d.appendEntries(1)
	export := d.wantOutput("audit export")
	key := d.chain.Key().String()
	other := newTestEnv(t).chain.Key().String()
	tampered := strings.Replace(export, `{"a":1}`, `{"a":2}`, 1)
	if tampered == export {
		t.Fatalf("the export has no entry to change:\n%s", export)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
		code int
	}{
		{"without a key", []string{"--export", saveFile(t, export)}, "the key was not given with --key but read from the verified data", 0},
		{"with a key as text", []string{"--export", saveFile(t, export), "--key", key}, "the audit log is intact\n3 entries verified", 0},
		{"with a key in a file", []string{"--export", saveFile(t, export), "--key", saveFile(t, key+"\n")}, "the audit log is intact\n3 entries verified", 0},
		{"with an earlier checkpoint", []string{"--export", saveFile(t, export), "--key", key, "--checkpoint", saveFile(t, early)}, "the audit log is intact", 0},
		{"with the key of another log", []string{"--export", saveFile(t, export), "--key", other}, "", 1},
		{"with an entry that was changed", []string{"--export", saveFile(t, tampered), "--key", key}, "BAD: ", 1},
		{"cut off", []string{"--export", saveFile(t, export[:len(export)/2]), "--key", key}, "line is not terminated", 1},
		{"empty", []string{"--export", saveFile(t, ""), "--key", key}, "BAD: ", 1},
		{"not there", []string{"--export", "/nowhere/chain.jsonl"}, "no such file", 1},
		{"with a key that is not one", []string{"--export", saveFile(t, export), "--key", "nonsense"}, "glasshouse: ", 1},
		{"with an empty key file", []string{"--export", saveFile(t, export), "--key", saveFile(t, "")}, "glasshouse: ", 1},
		{"with a directory as the key", []string{"--export", saveFile(t, export), "--key", t.TempDir()}, "is a directory", 1},
		{"with a checkpoint that is not there", []string{"--export", saveFile(t, export), "--checkpoint", "/nowhere/seen"}, "no such file", 1},
		{"offline and an export", []string{"--offline", "--export", saveFile(t, export)}, "--offline cannot be combined with --export or --recent", 2},
		{"offline and recent", []string{"--offline", "--recent"}, "--offline cannot be combined with --export or --recent", 2},
		{"a key for the daemon", []string{"--key", key}, "--key requires --export or --offline", 2},
	} {
		code, out, errs := runWithoutDaemon(t, nil, append([]string{"--addr", "http://127.0.0.1:1", "audit", "verify"}, c.args...)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: got exit code %d, %q and %q, want %d and %q", c.name, code, out, errs, c.code, c.want)
		}
	}
	_, out, _ := runWithoutDaemon(t, nil, "--json", "audit", "verify", "--export", saveFile(t, tampered), "--key", key)
	var r struct {
		Bad *struct {
			Seq    int64
			Line   int
			Reason string
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Bad == nil || r.Bad.Reason == "" {
		t.Errorf("--json: got %s, %v, want what is bad", out, err)
	}
}

func TestAuditHeadAndProofs(t *testing.T) {
	d := newTestEnv(t)
	note := d.appendEntries(3)
	d.wantOutput("audit head", "3 entries\n"+d.chain.Key().String()+"\n\n"+note)
	d.wantOutput("audit head --json", `"entries": 3`)
	var proof map[string]any
	if err := json.Unmarshal([]byte(d.wantOutput("audit prove 2")), &proof); err != nil || proof["path"] == nil {
		t.Errorf("prove: got %v, %v, want a path", proof, err)
	}
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"audit prove two": {2, `"two" is not an entry number`},
		"audit prove 99":  {1, "99"},
		"audit prove":     {2, "accepts 1 arg(s), received 0"},
		"audit show 99":   {1, "no such entry"},
		"audit export x":  {2, "unknown command"},
	} {
		if code, out, errs := d.run(line); code != want.code || out != "" || !strings.Contains(errs, want.text) {
			t.Errorf("%s: got exit code %d, %q and %q, want %d and %q", line, code, out, errs, want.code, want.text)
		}
	}
}

func TestTruncatedAuditExportFails(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET /chain/export": "{\"line\":1}\n" + cutSuffix})
	if code, _, _ := d.run("", "audit", "export", "--stored", "box2"); code == 0 || d.asked() != "GET /chain/export?stored=box2" {
		t.Errorf("audit export --stored asks %q, want the copy of box2", d.asked())
	}
	code, out, errs := d.run("", "audit", "export")
	if code != 1 || out != "{\"line\":1}\n" || !strings.Contains(errs, "unexpected EOF") {
		t.Errorf("got exit code %d, %q and %q, want 1, what came and that it broke", code, out, errs)
	}
}

// The daemon's proof that its log contains a checkpoint is not trusted.
func TestDaemonProofIsVerified(t *testing.T) {
	d := newTestEnv(t)
	early := saveFile(t, d.appendEntries(2))
	late := d.appendEntries(3)
	key := d.chain.Key().String()
	report := `{"entries":5,"key":"` + key + `","key_given":true}`
	note, err := json.Marshal(late)
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("A", 43) + "="
	for _, c := range []struct {
		name, proof, report, want string
		code                      int
	}{
		{"a path that does not lead there", `{"to":` + string(note) + `,"path":["` + hash + `"]}`, report, "BAD: proof from the daemon that the log contains the checkpoint: ", 1},
		{"a path that is not of hashes", `{"to":` + string(note) + `,"path":["x"]}`, report, "proof from the daemon: ", 1},
		{"another log", `409 {"type":"/problems/conflict","title":"conflict","status":409,"detail":"it is not under the checkpoint"}`, report, "BAD: conflict: it is not under the checkpoint", 1},
		{"a daemon without proofs", `501 {"type":"/problems/unsupported","title":"unsupported","status":501,"detail":"no proofs here"}`, report, "no proofs here", 1},
		{"a key that is not one", "", `{"entries":5,"key":"nonsense"}`, "glasshouse: ", 1},
		{"a log that is bad already", "", `{"entries":5,"bad":{"line":3,"reason":"x` + escapedName + `"}}`, `BAD: line 3: x\x1b[31mred\u202e`, 1},
		{"a log that is bad nowhere in particular", "", `{"bad":{"reason":"it is empty"}}`, "BAD: it is empty\n", 1},
	} {
		s := newScriptedDaemon(t, map[string]string{"GET /chain/verify": c.report, "POST /chain/consistency": c.proof})
		code, out, errs := s.run("", "audit", "verify", "--checkpoint", early)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: got exit code %d, %q and %q, want %d and %q\n%s", c.name, code, out, errs, c.code, c.want, s.asked())
		}
	}
}

func TestOfflineVerifyNeedsDatabaseAndKey(t *testing.T) {
	data := t.TempDir()
	verify := func(args ...string) (int, string) {
		code, out, errs := runWithoutDaemon(t, map[string]string{"GLASSHOUSE_DATA": data}, append([]string{"audit", "verify", "--offline"}, args...)...)
		return code, out + errs
	}
	if code, out := verify(); code != 1 || !strings.Contains(out, "chain.pub") {
		t.Errorf("without a key: got exit code %d and %q, want 1 and the name of its file", code, out)
	}
	if err := auditLog(t, data, "", 2); err != nil {
		t.Fatal(err)
	}
	if code, out := verify(); code != 0 || !strings.Contains(out, "2 entries verified") {
		t.Errorf("with both: got exit code %d and %q, want 0 and 2 entries", code, out)
	}
	if code, out := verify("--checkpoint", filepath.Join(data, "none")); code != 1 || !strings.Contains(out, "no such file") {
		t.Errorf("without the checkpoint: got exit code %d and %q, want 1 and why", code, out)
	}
	if code, out := verify("--checkpoint", saveFile(t, "nonsense")); code != 1 || out == "" {
		t.Errorf("with a file that is no checkpoint: got exit code %d and %q, want 1 and why", code, out)
	}
	if err := os.Remove(filepath.Join(data, "glasshouse.db")); err != nil {
		t.Fatal(err)
	}
	if code, out := verify(); code != 1 || !strings.Contains(out, "glasshouse.db: no such file") {
		t.Errorf("without a database: got exit code %d and %q, want 1 and its name", code, out)
	}
	if _, err := os.Stat(filepath.Join(data, "glasshouse.db")); err == nil {
		t.Error("without a database: got one, want none made")
	}
}

func TestAuditEntryLines(t *testing.T) {
	for body, want := range map[string]string{
		`{"kind":"decision","body":{"action":"bash","resource":"ls\u001b","tag":"DENIED"}}`:                                         `     0  decision           -  bash: ls\x1b [DENIED]`,
		`{"kind":"egress","body":{"kind":"tcp","host":"h","port":22,"allowed":true}}`:                                               `     0  egress             -  tcp  h:22`,
		`{"kind":"egress","body":{"kind":"http","method":"GET","host":"h","port":80,"path":"/\u202e","status":200,"allowed":true}}`: `     0  egress             -  http GET h:80/\u202e 200`,
		`{"kind":"other","body":[1,2]}`:                                       `     0  other              -  [1,2]`,
		`{"kind":"other","jail":"j","agent":"a","body":{"x":"\u001b"}}`:       `     0  other              j a  {"x":"\u001b"}`,
		`{"seq":7,"time":"yesterday","kind":"k","agent":"a\u001b","body":{}}`: `     7 yesterday k                  a\x1b  {}`,
	} {
		d := newScriptedDaemon(t, map[string]string{"GET /chain": items(body)})
		code, out, errs := d.run("", "audit", "ls")
		if got := strings.TrimSuffix(out, "\n"); code != 0 || got != want {
			t.Errorf("%s: got exit code %d, %q and %q, want 0 and %q", body, code, got, errs, want)
		}
	}
}

func TestAuditListRequests(t *testing.T) {
	for line, want := range map[string]string{
		"audit ls":                            "GET /chain",
		"audit ls --session s1 --run r-1":     "GET /chain?run=r-1&session=s1",
		"audit ls --capability a.b --under 7": "GET /chain?capability=a.b&under=7",
		"audit ls --kind a&b=c":               "GET /chain?kind=a%26b%3Dc",
		"--json audit ls":                     "GET /chain",
		"egress log " + aJail:                 "GET /chain?jail=" + aJail + "&kind=egress",
		"audit ls --jail web":                 "GET /jails?name=web\nGET /chain?jail=" + aJail,
	} {
		d := newScriptedDaemon(t, map[string]string{"GET /chain": items(), "GET /jails": items(jailJSON)})
		code, _, errs := d.run("", argsOf(line)...)
		if got := d.asked(); code != 0 || got != want {
			t.Errorf("%s: got exit code %d, %q and the requests %q, want 0 and %q", line, code, errs, got, want)
		}
	}
	d := newScriptedDaemon(t, map[string]string{"GET /chain": items()})
	for _, since := range []string{"soon", "-5m", "5"} {
		if code, _, errs := d.run("", "audit", "ls", "--since="+since); code != 2 || !strings.Contains(errs, "--since") {
			t.Errorf("--since=%s: got exit code %d and %q, want 2 and why", since, code, errs)
		}
	}
}

// TestFleetAudit verifies logs of nodes that have answers of all kinds.
func TestFleetAudit(t *testing.T) {
	t.Parallel()
	k, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key := k.PublicKey().String()
	log := func(node, key string, entries int, more string) string {
		return fmt.Sprintf(`{"node":%q,"key":%q,"entries":%d,"checkpoint":"c","at":"2026-01-02T03:04:05Z"%s}`, node, key, entries, more)
	}
	const nodes = `{"items":[{"id":"a","name":"one","state":"up","self":true},{"id":"b","name":"two","state":"up"}]}`
	report := fmt.Sprintf(`{"entries":5,"checkpoints":2,"signed":4,"key":%q,"key_given":true}`, key)
	for _, c := range []struct {
		name, logs, consistency string
		report, stored          string
		want                    []string
		code                    int
	}{
		{name: "removed node", logs: log("x", key, 7, ""), report: report, want: []string{"x: removed from the fleet with its log, 7 entries; 7 were seen by one, two\n", "one: intact, 5 entries; no other node has seen it\n"}},
		{name: "fewer entries", logs: log("a", key, 9, ""), report: report, code: 1, want: []string{"one: BAD, 5 entries; 9 were seen by one, two; at least 4 entries are missing\n  the log has 5 entries, and had 9\n", "two: intact"}},
		{name: "known conflict", logs: log("a", key, 5, `,"conflict":{"reason":"the log was forked","missing":3,"at":"2026-01-02T03:04:05Z"}`), report: report, code: 1,
			consistency: `409 {"type":"/problems/conflict","title":"conflict","status":409,"detail":"the chain is damaged"}`,
			want:        []string{"at least 3 entries are missing", ": the log was forked\n", "the log does not contain the 5 entries that were seen: conflict: the chain is damaged"}},
		{name: "stored", report: report, stored: `{"node":"a","entries":5,"bytes":100,"at":"2026-01-02T03:04:05Z"}`, want: []string{"one: intact, 5 entries; no other node has seen it; 5 are in the object store\ntwo: intact"}},
		{name: "fewer entries than stored", report: report, stored: `{"node":"a","entries":12,"bytes":100,"at":"2026-01-02T03:04:05Z"}`, code: 1,
			want: []string{"one: BAD, 5 entries; no other node has seen it; 12 are in the object store; at least 7 entries are missing\n  the log has 5 entries, and 12 are in the object store\n  the copy: glasshouse audit export --stored one\n"}},
		{name: "stored of a removed node", report: report, stored: `{"node":"x","entries":3,"bytes":100,"at":"2026-01-02T03:04:05Z"}`, want: []string{"x: removed from the fleet with its log, 3 entries; no other node has seen it; 3 are in the object store\n  the copy: glasshouse audit export --stored x\n"}},
		{name: "object store is down", report: report, stored: "down", code: 1, want: []string{"one: BAD, 5 entries; no other node has seen it\n  its copies of the logs in the object store cannot be listed: ", "two: intact"}},
		{name: "other key", logs: log("a", "other", 5, ""), report: report, code: 1, want: []string{"one: BAD", "signed with another key than the 5 entries"}},
		{name: "false proof", logs: log("a", key, 5, ""), report: report, code: 1, consistency: `{"from":"c","to":"c","path":[]}`, want: []string{"one: BAD", "proof from the daemon"}},
		{name: "bad log", logs: "", report: strings.Replace(report, "{", `{"bad":{"seq":3,"reason":"its hash is wrong"},`, 1), code: 1, want: []string{"one: BAD, 5 entries", "entry 3: its hash is wrong"}},
		{name: "no answer", logs: log("b", key, 5, ""), code: 1, want: []string{"two: BAD, 5 entries; 5 were seen by one, two\n  the log cannot be verified: "},
			report: `503 {"type":"/problems/unavailable","title":"unavailable","status":503,"detail":"the node is lost"}`},
	} {
		stored := `{"items":[` + c.stored + `]}`
		if c.stored == "down" {
			stored = `503 {"type":"/problems/unavailable","title":"unavailable","status":503,"detail":"the object store does not answer"}`
		}
		d := newScriptedDaemon(t, map[string]string{
			"GET /nodes": nodes, "GET /chain/witnessed": `{"items":[` + c.logs + `]}`, "GET /chain/verify": c.report, "POST /chain/consistency": c.consistency,
			"GET /chain/stored": stored,
		})
		code, out, errs := d.run("", "audit", "verify", "--fleet")
		if code != c.code {
			t.Errorf("%s: exit code %d, %s, want %d", c.name, code, errs, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: output %q, want %q", c.name, out, want)
			}
		}
	}
	d := newScriptedDaemon(t, map[string]string{"GET /nodes": nodes, "GET /chain/witnessed": `403 {"type":"/problems/denied","title":"denied","status":403,"detail":"access by the local socket is limited to this node"}`})
	if code, out, errs := d.run("", "audit", "verify", "--fleet"); code == 0 || out != "" || !strings.Contains(errs, "local socket") {
		t.Errorf("without a token: exit code %d, %q, %s, want the refusal", code, out, errs)
	}
}

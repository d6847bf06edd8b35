package memory_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/memory"
	"glasshouse/capability/schema"
	"glasshouse/fault"
	"glasshouse/store/postgrestest"
	"glasshouse/store/storetest"
)

func TestInBothDatabases(t *testing.T) {
	server := postgrestest.Start(t)
	for name, test := range map[string]func(t *testing.T, where string){
		"PutAndGet": testPutAndGet, "Limits": memoryHasLimits, "ConcurrentWriters": testConcurrentWriters,
		"CaptureAndRestore": testCaptureAndRestore,
	} {
		t.Run(name+"/SQLite", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "g.db")) })
		t.Run(name+"/PostgreSQL", func(t *testing.T) { test(t, server.URL(t)) })
	}
}

// A mind calls the memory capabilities like the policy engine, for one run of a session.
type mind struct {
	*memory.Engine
	t            *testing.T
	session, run string
	key          string         // the idempotency key of the next calls
	label        manifest.Label // label of the inputs
}

func newMind(t *testing.T, where string, l memory.Limits) *mind {
	t.Helper()
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &mind{Engine: memory.New(s.Memory(), l), t: t, session: "sess-a", run: "r-a", label: manifest.Public}
}

func installed(t *testing.T, cid string) *engine.Installed {
	t.Helper()
	for _, c := range memory.Installed() {
		if c.ID == cid {
			return c
		}
	}
	t.Fatalf("no capability %s", cid)
	return nil
}

// try makes a call. Its input and output must have the declared types.
func (m *mind) try(cid, input string) (map[string]any, manifest.Label, error) {
	m.t.Helper()
	c := installed(m.t, cid)
	in, err := c.Input.FromJSON([]byte(input))
	if err == nil {
		err = c.Input.Check(in)
	}
	if err != nil {
		return nil, "", err
	}
	r, err := m.Call(m.t.Context(), &engine.Call{ID: "k-1", Capability: c, Input: in, Jail: "j-a", Session: m.session, Run: m.run, Agent: "builder", Key: m.key, Label: m.label})
	if err != nil {
		return nil, "", err
	}
	if err := c.Output.Check(r.Output); err != nil {
		m.t.Errorf("the output of %s does not have the declared type: %v", cid, err)
	}
	text, err := schema.ToJSON(r.Output)
	if err != nil {
		m.t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		m.t.Fatal(err)
	}
	return out, r.Label, nil
}

func (m *mind) do(cid, input string) map[string]any {
	m.t.Helper()
	out, _, err := m.try(cid, input)
	if err != nil {
		m.t.Fatalf("%s %s: %v", cid, input, err)
	}
	return out
}

// value returns the value of a key as JSON, or "" if there is no entry.
func (m *mind) value(key string) string {
	m.t.Helper()
	out := m.do("memory.get", fmt.Sprintf(`{"key":%q}`, key))
	if out["found"] != true {
		return ""
	}
	text, err := json.Marshal(out["value"])
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func testPutAndGet(t *testing.T, where string) {
	m := newMind(t, where, memory.Limits{})
	for i, value := range []string{`null`, `1`, `-0.5`, `9007199254740993`, `"ä <b> & \u0000 \u2028"`, `[]`, `{"a":{"b":[1,null,true]},"Ä":"x"}`, `"` + strings.Repeat("x", 60<<10) + `"`} {
		key := fmt.Sprintf("some/key %d", i)
		m.do("memory.put", fmt.Sprintf(`{"key":%q,"value":%s}`, key, value))
		m.do("memory.put", fmt.Sprintf(`{"key":%q,"value":%s}`, key, value)) // replaces the same value
		var want any
		json.Unmarshal([]byte(value), &want)
		out := newMind(t, where, memory.Limits{}).do("memory.get", fmt.Sprintf(`{"key":%q}`, key))
		if diff := cmp.Diff(want, out["value"]); diff != "" {
			t.Errorf("%.40s (-put +got):\n%s", value, diff)
		}
	}
	out := m.do("memory.get", `{"key":"some/key 1"}`)
	from := out["from"].(map[string]any)
	if from["run"] != "r-a" || from["call"] != "k-1" || from["agent"] != "builder" || from["jail"] != "j-a" || out["version"] != float64(4) {
		t.Errorf("from = %v, version = %v", from, out["version"])
	}
	if out := m.do("memory.get", `{"key":"other"}`); out["found"] != false {
		t.Errorf("get of an unknown key = %v, want not found", out)
	}
	for range 2 {
		m.do("memory.forget", `{"key":"some/key 1"}`)
	}
	if got := m.value("some/key 1"); got != "" {
		t.Errorf("get of a deleted key = %s, want not found", got)
	}
	if out := m.do("memory.put", `{"key":"some/key 1","value":2}`); out["version"] != float64(17) {
		t.Errorf("version after delete and put = %v, want 17: versions must not be reused", out["version"])
	}
}

func TestMemoryScopesAreIsolated(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	m.do("memory.put", `{"key":"k","value":"of the session"}`)
	m.do("memory.put", `{"key":"k","value":"of the run","scope":"run"}`)
	other := *m
	other.run = "r-b"
	if got := other.value("k"); got != `"of the session"` {
		t.Errorf("get by another run of the session = %s", got)
	}
	if out := other.do("memory.get", `{"key":"k","scope":"run"}`); out["found"] != false {
		t.Errorf("another run reads the scope of a run: %v", out)
	}
	other.session = "sess-b"
	if got := other.value("k"); got != "" {
		t.Errorf("another session reads %s", got)
	}
	for _, scope := range []string{"session/sess-a", "run/r-a", "", "Session"} {
		if _, _, err := m.try("memory.get", fmt.Sprintf(`{"key":"k","scope":%q}`, scope)); err == nil {
			t.Errorf("scope %q was accepted, want an error", scope)
		}
	}
	m.session, m.run = "", ""
	for _, scope := range []string{"session", "run"} {
		if _, _, err := m.try("memory.put", fmt.Sprintf(`{"key":"k","value":1,"scope":%q}`, scope)); fault.KindOf(err) != fault.Conflict || engine.KindOf(err) != engine.Failed {
			t.Errorf("put without a %s = %v, want an error", scope, err)
		}
	}
}

func TestMemoryLabels(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	put := func(key string, in manifest.Label, says string) error {
		m.label = in
		defer func() { m.label = manifest.Public }()
		_, label, err := m.try("memory.put", fmt.Sprintf(`{"key":%q,"value":"coffee","tags":["drink"],"label":%q}`, key, says))
		if err == nil && !label.Covers(in) {
			t.Errorf("put of data with label %s: output has label %s", in, label)
		}
		return err
	}
	get := func(cid, input string, want manifest.Label) {
		t.Helper()
		_, label, err := m.try(cid, input)
		if err != nil || label.Join("") != want {
			t.Errorf("%s %s has label %q, %v; want %q", cid, input, label, err, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(put("chat", "pii.chat.message", ""))
	must(put("said", manifest.Public, "pii.chat.name")) // raised by the caller
	must(put("plain", "", ""))
	must(put("never lower", "pii.chat", "public"))
	get("memory.get", `{"key":"chat"}`, "pii.chat.message")
	get("memory.get", `{"key":"said"}`, "pii.chat.name")
	get("memory.get", `{"key":"plain"}`, "public")
	get("memory.get", `{"key":"never lower"}`, "pii.chat")
	get("memory.get", `{"key":"nothing"}`, "public")
	get("memory.search", `{"query":"coffee","prefix":"c"}`, "pii.chat.message")
	get("memory.search", `{"query":"coffee"}`, "pii.chat")
	get("memory.search", `{"query":"tea"}`, "public")
	get("memory.list", `{"prefix":"plain"}`, "public")
	get("memory.list", `{}`, "pii.chat")

	must(put("chat", "redacted", "")) // replaces the value of class pii
	get("memory.get", `{"key":"chat"}`, "redacted")

	for _, c := range []struct{ in, says manifest.Label }{{manifest.Secret, ""}, {manifest.Public, "secret.key"}} {
		if err := put("s", c.in, string(c.says)); fault.KindOf(err) != fault.Denied || fault.RemedyOf(err) == "" {
			t.Errorf("put of a secret = %v, want an error", err)
		}
	}
	if err := put("s", "", "personal"); fault.FieldOf(err) != "label" {
		t.Errorf("put with an invalid label = %v, want an error", err)
	}
}

func memoryHasLimits(t *testing.T, where string) {
	m := newMind(t, where, memory.Limits{Value: 20, Entries: 3, Bytes: 40})
	put := func(key string, bytes int) error {
		_, _, err := m.try("memory.put", fmt.Sprintf(`{"key":%q,"value":%q}`, key, strings.Repeat("x", bytes-2)))
		return err
	}
	for _, c := range []struct {
		key   string
		bytes int
		want  fault.Kind
	}{
		{"a", 21, fault.TooLarge}, {"a", 20, ""}, {"b", 19, fault.Exhausted}, {"b", 18, ""}, {"b", 18, ""},
		{"c", 2, fault.Exhausted}, {"b", 3, ""}, {"c", 2, ""}, {"d", 2, fault.Exhausted}, {"c", 12, ""}, {"c", 15, fault.Exhausted},
	} {
		err := put(c.key, c.bytes)
		if fault.KindOf(err) != c.want || c.want != "" && (engine.KindOf(err) != engine.Failed || fault.RemedyOf(err) == "") {
			t.Errorf("put %s of %d bytes: %v, want %q", c.key, c.bytes, err, c.want)
		}
	}
	holds := m.do("memory.list", `{}`)["holds"].(map[string]any)
	if want := map[string]any{"entries": 3.0, "bytes": 38.0, "entries_limit": 3.0, "bytes_limit": 40.0}; !cmp.Equal(holds, want) {
		t.Errorf("holds = %v, want %v", holds, want)
	}
	m.do("memory.forget", `{"key":"a"}`)
	if err := put("d", 2); err != nil {
		t.Errorf("put after a deletion = %v, want no error", err)
	}
}

func TestPutRejectsInvalidEntries(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	many, _ := json.Marshal(slices.Repeat([]string{"t"}, 17))
	for _, input := range []string{
		`{"value":1}`, `{"key":"a"}`, `{"key":"","value":1}`, `{"key":"` + strings.Repeat("k", 257) + `","value":1}`, `{"key":"` + strings.Repeat("ä", 129) + `","value":1}`,
		`{"key":"a\u0000b","value":1}`, `{"key":"a\nb","value":1}`, `{"key":1,"value":1}`, `{"key":"a","value":1,"tag":["x"]}`, `{"key":"a","value":1,"tags":["\u001b"]}`,
		`{"key":"a","value":1,"tags":[""]}`, `{"key":"a","value":1,"tags":` + string(many) + `}`, `{"key":"a","value":1,"if_version":-1}`, `[]`, `null`,
	} {
		if _, _, err := m.try("memory.put", input); err == nil {
			t.Errorf("put of %.60s succeeded, want an error", input)
		}
	}
	if out := m.do("memory.list", `{}`); out["more"] != false || len(out["entries"].([]any)) != 0 {
		t.Errorf("list after rejected puts = %v", out)
	}
}

func TestConditionalPut(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	first := m.do("memory.put", `{"key":"k","value":1,"if_version":0}`)
	if _, _, err := m.try("memory.put", `{"key":"k","value":2,"if_version":0}`); fault.KindOf(err) != fault.Conflict {
		t.Errorf("put with if_version 0 on an existing entry = %v, want a conflict", err)
	}
	m.do("memory.put", fmt.Sprintf(`{"key":"k","value":2,"if_version":%v}`, first["version"]))
	if _, _, err := m.try("memory.put", fmt.Sprintf(`{"key":"k","value":3,"if_version":%v}`, first["version"])); fault.KindOf(err) != fault.Conflict {
		t.Errorf("put with an old if_version = %v, want a conflict", err)
	}
	m.do("memory.forget", `{"key":"k"}`)
	m.do("memory.put", `{"key":"k","value":4}`) // the same key with a new version
	if _, _, err := m.try("memory.put", fmt.Sprintf(`{"key":"k","value":5,"if_version":%v}`, first["version"])); fault.KindOf(err) != fault.Conflict {
		t.Errorf("put with the version of a deleted entry = %v, want a conflict", err)
	}
	if got := m.value("k"); got != "4" {
		t.Errorf("value = %s", got)
	}
}

// TestPutIsIdempotent repeats a call with the same idempotency key, as after a lost response.
func TestPutIsIdempotent(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	m.key = "step 7"
	first := m.do("memory.put", `{"key":"k","value":1,"if_version":0}`)
	again := m.do("memory.put", `{"key":"k","value":1,"if_version":0}`)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("output of the retry differs:\n%s", diff)
	}
	m.key = "step 8"
	if _, _, err := m.try("memory.put", `{"key":"k","value":1,"if_version":0}`); fault.KindOf(err) != fault.Conflict {
		t.Errorf("put of another step: %v", err)
	}
}

func testConcurrentWriters(t *testing.T, where string) {
	const each = 25
	var minds []*mind
	for range 4 {
		minds = append(minds, newMind(t, where, memory.Limits{}))
	}
	var wg sync.WaitGroup
	for _, m := range minds {
		wg.Go(func() {
			for range each { // increments a counter and retries after a conflict
				for {
					out, _, err := m.try("memory.get", `{"key":"n"}`)
					if err != nil {
						t.Error(err)
						return
					}
					n, _ := out["value"].(float64)
					version, _ := out["version"].(float64)
					_, _, err = m.try("memory.put", fmt.Sprintf(`{"key":"n","value":%d,"if_version":%d}`, int(n)+1, int(version)))
					if err == nil {
						break
					}
					if fault.KindOf(err) != fault.Conflict {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if got := minds[0].value("n"); got != fmt.Sprint(4*each) {
		t.Errorf("counter = %s, want %d", got, 4*each)
	}
	if out := minds[0].do("memory.get", `{"key":"n"}`); out["version"] != float64(4*each) {
		t.Errorf("version = %v", out["version"])
	}
}

func TestSearchFindsWords(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	for _, put := range []string{
		`{"key":"user/name","value":"Ada Lovelace","tags":["person","customer"]}`,
		`{"key":"user/address","value":{"street":"Große Straße 7","city":"London"},"tags":["person"]}`,
		`{"key":"plan","value":["call Ada","write the program for Bernoulli numbers"],"tags":["todo"]}`,
		`{"key":"ada/notes","value":"she prefers tea"}`,
		`{"key":"numbers","value":[42,3.5,true,null]}`,
	} {
		m.do("memory.put", put)
	}
	for _, c := range []struct{ input, want string }{
		{`{"query":"ada"}`, "ada/notes plan user/name"}, // a match in the key, then matches in values, newest first
		{`{"query":"ADA love"}`, "user/name"},
		{`{"query":"lovelace"}`, "user/name"},
		{`{"query":"velace"}`, ""},
		{`{"query":"ada tea"}`, "ada/notes"},
		{`{"query":"person"}`, "user/address user/name"},
		{`{"query":"straße"}`, "user/address"},
		{`{"query":"street london"}`, "user/address"},
		{`{"query":"42"}`, "numbers"},
		{`{"query":"number"}`, "numbers plan"},
		{`{"query":"user","tags":["Customer"]}`, "user/name"},
		{`{"tags":["person"]}`, "user/address user/name"},
		{`{"tags":["person","todo"]}`, ""},
		{`{"prefix":"user/"}`, "user/address user/name"},
		{`{"query":"ada","limit":1}`, "ada/notes"},
		{`{"query":"%_'\"--"}`, ""},
		{`{"query":"  "}`, "numbers ada/notes plan user/address user/name"},
		{`{}`, "numbers ada/notes plan user/address user/name"},
	} {
		out := m.do("memory.search", c.input)
		var got []string
		for _, f := range out["found"].([]any) {
			got = append(got, f.(map[string]any)["key"].(string))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("search %s = %v, want %s", c.input, got, c.want)
		}
	}
	if out := m.do("memory.search", `{"query":"ada","limit":1}`); out["total"] != 3.0 {
		t.Errorf("total = %v, want 3", out["total"])
	}
	long := strings.Repeat("ä", 300)
	m.do("memory.put", fmt.Sprintf(`{"key":"long","value":%q}`, long))
	found := m.do("memory.search", `{"prefix":"long"}`)["found"].([]any)[0].(map[string]any)
	if e := found["excerpt"].(string); len(e) > 250 || !strings.HasSuffix(e, "ä…") {
		t.Errorf("excerpt = %q", e)
	}
}

func TestMemoryListPages(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	for n := range 25 {
		m.do("memory.put", fmt.Sprintf(`{"key":"n/%02d","value":%d}`, n, n))
	}
	m.do("memory.put", `{"key":"other","value":0}`)
	var keys []string
	for after, more := "", true; more; {
		out := m.do("memory.list", fmt.Sprintf(`{"prefix":"n/","after":%q,"limit":10}`, after))
		for _, e := range out["entries"].([]any) {
			keys = append(keys, e.(map[string]any)["key"].(string))
		}
		after, more = keys[len(keys)-1], out["more"].(bool)
	}
	if len(keys) != 25 || !slices.IsSorted(keys) {
		t.Errorf("keys of all pages = %v", keys)
	}
}

func testCaptureAndRestore(t *testing.T, where string) {
	ctx := t.Context()
	m := newMind(t, where, memory.Limits{})
	m.label = "pii.chat"
	m.do("memory.put", `{"key":"a","value":"<1>","tags":["t"],"scope":"run"}`)
	m.do("memory.put", `{"key":"b","value":2,"scope":"run"}`)
	here, there := memory.RunScope("r-a"), memory.RunScope("r-branch")
	kept, err := m.Capture(ctx, here)
	if err != nil {
		t.Fatal(err)
	}
	// The captured state may be stored in another JSON encoding.
	if kept, err = json.MarshalIndent(map[string]any{"memory": kept}, "", " "); err != nil {
		t.Fatal(err)
	}
	var in struct{ Memory json.RawMessage }
	if err := json.Unmarshal(kept, &in); err != nil {
		t.Fatal(err)
	}
	m.do("memory.put", `{"key":"b","value":"later","scope":"run"}`)
	m.do("memory.put", `{"key":"c","value":"later","scope":"run"}`)

	if err := m.Restore(ctx, there, in.Memory); err != nil {
		t.Fatal(err)
	}
	branch := *m
	branch.run = "r-branch"
	out, label, err := branch.try("memory.get", `{"key":"a","scope":"run"}`)
	if err != nil || out["value"] != "<1>" || label != "pii.chat" || out["from"].(map[string]any)["run"] != "r-a" {
		t.Errorf("get in the branch = %v, label %s, %v", out, label, err)
	}
	branch.do("memory.put", `{"key":"a","value":"of the branch","scope":"run"}`)
	if out := m.do("memory.get", `{"key":"a","scope":"run"}`); out["value"] != "<1>" {
		t.Errorf("the original scope reads an entry of the branch: %v", out)
	}
	if out := branch.do("memory.list", `{"scope":"run"}`); out["holds"].(map[string]any)["entries"] != 2.0 {
		t.Errorf("list in the branch = %v", out)
	}

	if err := m.Restore(ctx, here, in.Memory); err != nil { // rewind
		t.Fatal(err)
	}
	if again, err := m.Capture(ctx, here); err != nil || !strings.Contains(string(again), `"version":4`) {
		t.Errorf("the version has decreased: %s, %v", again, err)
	}
	if out := m.do("memory.get", `{"key":"b","scope":"run"}`); out["value"] != 2.0 {
		t.Errorf("get after the rewind = %v", out)
	}
	if out := m.do("memory.get", `{"key":"c","scope":"run"}`); out["found"] != false {
		t.Errorf("a later entry exists after the rewind: %v", out)
	}
	before := m.do("memory.list", `{"scope":"run"}`)["holds"]
	m.do("memory.put", `{"key":"a","value":"<1>","tags":["t"],"scope":"run"}`) // restores the previous usage
	if after := m.do("memory.list", `{"scope":"run"}`)["holds"]; !cmp.Equal(before, after) {
		t.Errorf("usage before = %v, after = %v", before, after)
	}

	if err := m.Delete(ctx, there); err != nil {
		t.Fatal(err)
	}
	if empty, err := m.Capture(ctx, there); err != nil || m.Restore(ctx, here, empty) != nil {
		t.Errorf("Capture of an empty scope = %s, %v", empty, err)
	}
	if out := m.do("memory.list", `{"scope":"run"}`); len(out["entries"].([]any)) != 0 {
		t.Errorf("list after Restore of an empty scope = %v", out)
	}
}

func TestMemoryEndSession(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	m.do("memory.put", `{"key":"k","value":1}`)
	m.do("memory.put", `{"key":"k","value":1,"scope":"run"}`)
	if err := m.EndSession(t.Context(), "sess-a"); err != nil {
		t.Fatal(err)
	}
	if got := m.value("k"); got != "" {
		t.Errorf("get after EndSession = %s, want not found", got)
	}
	if out := m.do("memory.get", `{"key":"k","scope":"run"}`); out["found"] != true {
		t.Error("EndSession has deleted the scope of the run")
	}
}

const aCapture = `{"version":3,"entries":[{"key":"a","value":1,"label":"public","from":{},"version":2,"created":"2026-01-02T03:04:05Z","updated":"2026-01-02T03:04:05Z"}]}`

func TestRestoreRejectsInvalidState(t *testing.T) {
	m := newMind(t, "", memory.Limits{})
	m.do("memory.put", `{"key":"k","value":1}`)
	entry := strings.TrimSuffix(strings.TrimPrefix(aCapture, `{"version":3,"entries":[`), `]}`)
	for _, text := range []string{
		``, `[]`, `{"entries":1}`, strings.Replace(aCapture, `"version":3`, `"version":1`, 1), strings.Replace(aCapture, `"key":"a"`, `"key":""`, 1),
		strings.Replace(aCapture, `public`, `top`, 1), strings.Replace(aCapture, `public`, `secret`, 1), strings.Replace(aCapture, `"value":1,`, ``, 1),
		strings.Replace(aCapture, entry, entry+","+entry, 1), aCapture[:40],
	} {
		if err := m.Restore(t.Context(), memory.SessionScope("sess-a"), json.RawMessage(text)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Restore of %.50s = %v, want invalid", text, err)
		}
	}
	if got := m.value("k"); got != "1" {
		t.Errorf("value after failed calls of Restore = %s", got)
	}
	small := *m
	small.Engine = memory.New(nil, memory.Limits{})
	if err := m.Restore(t.Context(), memory.SessionScope("sess-a"), json.RawMessage(aCapture)); err != nil {
		t.Error(err)
	}
}

func FuzzRestore(f *testing.F) {
	f.Add(aCapture)
	f.Add(`{"version":1,"entries":[{"key":"a","value":{"b":[1e400]},"label":"pii.x","tags":["t"],"version":1}]}`)
	f.Add(`{"version":9223372036854775807,"entries":null}`)
	db, err := storetest.Open(f, "")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { db.Close() })
	m, s := memory.New(db.Memory(), memory.Limits{}), memory.RunScope("r")
	f.Fuzz(func(t *testing.T, text string) {
		if err := m.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := m.Restore(t.Context(), s, json.RawMessage(text)); err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("Restore = %v, want invalid", err)
			}
			return
		}
		first, err := m.Capture(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Restore(t.Context(), s, first); err != nil {
			t.Fatalf("Restore of a captured scope: %v", err)
		}
		if second, err := m.Capture(t.Context(), s); err != nil || string(first) != string(second) {
			t.Errorf("second Capture = %s, %v, want %s", second, err, first)
		}
	})
}

// A broken store returns an error from each method.
type broken struct{ memory.Store }

func (broken) Get(context.Context, memory.Scope, string) (memory.Entry, error) {
	return memory.Entry{}, errors.New("the disk is full")
}

func TestStoreErrorIsNotACapabilityFailure(t *testing.T) {
	m := &mind{Engine: memory.New(broken{}, memory.Limits{}), t: t, session: "s"}
	if _, _, err := m.try("memory.get", `{"key":"k"}`); err == nil || engine.KindOf(err) != "" {
		t.Errorf("Call with a broken store = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in, _ := installed(t, "memory.get").Input.FromJSON([]byte(`{"key":"k"}`))
	if _, err := m.Call(ctx, &engine.Call{Capability: installed(t, "memory.get"), Input: in, Session: "s"}); engine.KindOf(err) != engine.Cancelled {
		t.Errorf("cancelled call = %v", err)
	}
	strange := *installed(t, "memory.get")
	c := *strange.Capability
	c.ID, strange.Capability = "memory.dream", &c
	if _, err := m.Call(t.Context(), &engine.Call{Capability: &strange, Input: in, Session: "s"}); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("call of an unknown capability = %v", err)
	}
}

// TestNoManifestCanNameTheRuntime checks that a manifest file cannot set the runtime builtin.
func TestNoManifestCanNameTheRuntime(t *testing.T) {
	for _, text := range []string{
		`(capability "memory.get" :version "1.0.0" :effects [] :runtime {:type :builtin})`,
		`{"capability":"memory.get","version":"1.0.0","effects":[],"runtime":{"type":"builtin"}}`,
	} {
		if _, err := manifest.Read("m", []byte(text)); err == nil || !strings.Contains(err.Error(), "runtime.type") {
			t.Errorf("Read(%s) = %v, want an error for runtime.type", text, err)
		}
	}
	for _, c := range memory.Installed() {
		if c.Runtime.Type != manifest.Builtin || c.Digest == "" || c.Description == "" {
			t.Errorf("runtime of %s = %+v", c.ID, c.Runtime)
		}
	}
}

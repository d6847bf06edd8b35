package run_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/policy/chain"
)

var (
	pii       = []manifest.Label{"pii.chat.message"}
	cleared   = run.Reader{Name: "anna", Labels: []manifest.Label{manifest.PII}}
	uncleared = run.Reader{Name: "bert", Labels: []manifest.Label{manifest.Redacted}}
)

// personalText must not be stored in plain text.
const personalText = "call Zaphod Beeblebrox on 555-0142"

func TestPersonalDataIsNotStoredInPlainText(t *testing.T) {
	h := newDiskHarness(t)
	ctx := t.Context()
	value := json.RawMessage(`{"text":"` + personalText + `"}`)
	r := start(t, h.Manager, run.Request{Session: "s", Goal: personalText, Labels: pii})
	in := must(h.Send(ctx, run.Message{Session: "s", From: "web", Text: personalText, Labels: pii}))(t)
	out := must(h.Post(ctx, run.Message{Session: "s", Run: r.ID, Text: personalText, Labels: []manifest.Label{manifest.Secret}}, "web"))(t)
	q := run.StepRequest{Key: "k", Kind: run.Tool, Name: "note", Input: value, Label: "pii.chat"}
	must(h.beginNew(ctx, r.ID, q))(t)
	must(h.End(ctx, r.ID, "k", run.Outcome{State: run.StepDone, Output: value}))(t)
	must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{State: value, Memory: value}))(t)
	must(h.Reveal(ctx, in.Text, cleared))(t)
	must(h.Finish(ctx, r.ID, run.Finish{Result: value, Labels: pii}))(t)

	for _, m := range []run.Message{in, out} {
		if !run.IsHandle(m.Text) {
			t.Errorf("text of the message = %q, want a handle", m.Text)
		}
	}
	for _, e := range events(t, h.Manager, "s") {
		if bytes.Contains(e.Body, []byte("Zaphod")) {
			t.Errorf("event body contains personal data: %s", e.Body)
		}
	}
	disk := h.onDisk(t)
	if bytes.Contains(disk, []byte("Zaphod")) || bytes.Contains(disk, []byte("555-0142")) {
		t.Error("personal data is on disk in plain text")
	}
	if !bytes.Contains(disk, []byte(in.Text)) {
		t.Error("the handle is not on disk: the wrong files were read")
	}

	// Cleared readers still get the data.
	if s, fresh, err := h.Begin(ctx, r.ID, q); err != nil || fresh || string(s.Output) != string(value) {
		t.Errorf("output of the step = %s, %v", s.Output, err)
	}
	q.Input = json.RawMessage(`{"text":"something else"}`)
	_, _, err := h.Begin(ctx, r.ID, q)
	wantKind(t, "Begin of the same key with another input", err, fault.Mismatch)
	r = must(h.Get(ctx, r.ID))(t)
	var result string
	if err := json.Unmarshal(r.Result, &result); err != nil {
		t.Fatal(err)
	}
	if got := must(h.Reveal(ctx, result, cleared))(t); got != string(value) {
		t.Errorf("result = %s", got)
	}
	if c := must(h.Checkpoint(ctx, r.Checkpoint))(t); string(c.State) != string(value) || string(c.Memory) != string(value) {
		t.Errorf("checkpoint = %s, %s", c.State, c.Memory)
	}
}

func TestRevealNeedsClearance(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	m := must(h.Send(ctx, run.Message{Session: "s", Text: personalText, Labels: pii}))(t)
	if got := must(h.Reveal(ctx, m.Text, cleared))(t); got != personalText {
		t.Errorf("Reveal for anna = %q", got)
	}
	_, err := h.Reveal(ctx, m.Text, uncleared)
	wantKind(t, "Reveal for bert", err, fault.Denied)
	for _, handle := range []string{"quarantine:AAAAAAAAAAAAAAAAAAAAAAAAAA", "quarantine:' OR 1=1 --", "", personalText} {
		_, err := h.Reveal(ctx, handle, cleared)
		wantKind(t, "Reveal of "+handle, err, fault.NotFound)
	}
	var got []string
	for _, e := range h.entries(t, "", chain.OperatorActed) {
		got = append(got, e["agent"].(string)+" "+map[bool]string{true: "read", false: "was refused"}[e["allowed"].(bool)])
	}
	if !slices.Equal(got, []string{"anna read", "bert was refused"}) {
		t.Errorf("entries = %v", got)
	}

	text := func(sid string) string {
		t.Helper()
		return must(h.Text(ctx, sid, m.Text))(t)
	}
	if got := text("s"); got != m.Text {
		t.Errorf("Text without clearance = %q, want the handle", got)
	}
	list := must(h.Inbox(ctx, "s", 0, 0))(t)
	if len(list) != 1 || list[0].Text != m.Text {
		t.Errorf("Inbox without clearance = %+v", list)
	}
	must(h.ChangeSettings(ctx, "s", "anna", func(s *run.Settings) { s.Labels = []manifest.Label{"pii.chat"} }))(t)
	list = must(h.Inbox(ctx, "s", 0, 0))(t)
	if len(list) != 1 || list[0].Text != personalText {
		t.Errorf("Inbox with clearance = %+v", list)
	}
	must(h.Open(ctx, run.Session{ID: "other", Settings: run.Settings{Labels: []manifest.Label{manifest.Secret}}}))(t)
	if got := text("other"); got != m.Text {
		t.Errorf("Text in another session = %q, want the handle", got)
	}
}

func TestExpiredQuarantineIsPurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(c *run.Config) { c.TTL = time.Hour })
		ctx := t.Context()
		r := start(t, h.Manager, run.Request{Session: "s"})
		m := must(h.Send(ctx, run.Message{Session: "s", Text: personalText, Labels: pii}))(t)
		q := run.StepRequest{Key: "k", Kind: run.Tool, Name: "note", Label: manifest.PII}
		must(h.beginNew(ctx, r.ID, q))(t)
		must(h.End(ctx, r.ID, "k", done(`"Zaphod"`)))(t)
		time.Sleep(time.Hour - time.Second)
		must(h.Reveal(ctx, m.Text, cleared))(t)
		time.Sleep(time.Second)
		_, err := h.Reveal(ctx, m.Text, cleared)
		wantKind(t, "Reveal after an hour", err, fault.NotFound)
		_, _, err = h.Begin(ctx, r.ID, q)
		wantKind(t, "Begin of a step that ended an hour ago", err, fault.NotFound)
		time.Sleep(time.Minute)
		synctest.Wait()
		_, err = h.db.Runs().Sealed(ctx, m.Text)
		wantKind(t, "Sealed after the purge", err, fault.NotFound)
	})
}

func TestPersonalDataNeedsKey(t *testing.T) {
	h := newHarness(t, func(c *run.Config) { c.Key = nil })
	_, err := h.Send(t.Context(), run.Message{Session: "s", Text: personalText, Labels: pii})
	wantKind(t, "Send", err, fault.Unsupported)
	_, err = h.Send(t.Context(), run.Message{Session: "s", Text: "hello", Labels: []manifest.Label{manifest.Redacted}})
	if err != nil {
		t.Errorf("Send without personal data = %v", err)
	}
	if list := must(h.Messages(t.Context(), "s", run.In, 0, 0))(t); len(list) != 1 || list[0].Seq != 1 {
		t.Errorf("Messages = %+v, want 1", list)
	}
}

func TestReadKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "quarantine.key")
	key := must(run.ReadKey(file))(t)
	if again := must(run.ReadKey(file))(t); again.String() != key.String() {
		t.Error("the second ReadKey returns another key")
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := run.ReadKey(file)
	wantKind(t, "ReadKey of a file readable by others", err, fault.Denied)
	if err := os.WriteFile(file, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = run.ReadKey(file)
	wantKind(t, "ReadKey of a file without a key", err, fault.Invalid)
}

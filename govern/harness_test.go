package govern

import (
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

// A harness is an Engine with a database, an approval queue and an audit log.
type harness struct {
	*Engine
	t     testing.TB
	queue *approval.Queue
	chain *chain.Chain
}

func newHarness(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	s, err := storetest.Open(t, filepath.Join(dir, "g.db"))
	must(t, err)
	key, err := chain.LoadKey(dir)
	must(t, err)
	c, err := chain.Open(t.Context(), chain.Config{Store: s.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	cfg := Config{Chain: c, Dir: filepath.Join(dir, "ca")}
	for _, f := range change {
		f(&cfg)
	}
	k := New(cfg)
	q, err := approval.New(t.Context(), s.Approvals(), approval.Config{Record: k.RecordApproval})
	must(t, err)
	k.Approvals(q)
	t.Cleanup(func() {
		if err := errors.Join(k.Close(), q.Close(), c.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return &harness{k, t, q, c}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spec returns a Spec with the permissions.
func spec(t testing.TB, permission string) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(Spec{Policy: &Policy{Files: []File{{Name: "opencode.json", Text: `{"permission": ` + permission + `}`}}, Level: policy.Full}})
	must(t, err)
	return raw
}

// jail returns a governed jail with the permissions.
func (h *harness) jail(permission string) id.Jail {
	h.t.Helper()
	jid := id.NewJail()
	must(h.t, h.Guard(h.t.Context(), jid, Guard{Spec: spec(h.t, permission), Workspace: "/work"}))
	return jid
}

// waitPending waits for a pending approval request.
func (h *harness) waitPending() approval.Request {
	h.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if all := h.queue.Pending(); len(all) > 0 {
			return all[0]
		}
	}
	h.t.Fatal("no approval request within 20 s")
	return approval.Request{}
}

func (h *harness) answer(r approval.Request, a approval.Answer) {
	h.t.Helper()
	a.By, a.Channel = approval.Person{ID: "uid 0", Name: "anna", Role: "admin"}, "api"
	_, err := h.queue.Answer(h.t.Context(), r.ID, a)
	must(h.t, err)
}

// decisions returns the recorded decisions of a jail.
func (h *harness) decisions(jid id.Jail) (all []DecisionRecord) {
	h.t.Helper()
	entries, err := h.chain.Entries(h.t.Context(), chain.Query{Jail: jid, Kinds: []chain.Kind{chain.Decided}})
	must(h.t, err)
	for _, e := range entries {
		var d DecisionRecord
		must(h.t, json.Unmarshal(e.Body, &d))
		all = append(all, d)
	}
	return all
}

package govern

import (
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/chain"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/store/storetest"
)

// A house is a kernel on a real database, with a real queue and a real chain.
type house struct {
	*Kernel
	t     testing.TB
	queue *approval.Queue
	chain *chain.Chain
}

func newHouse(t testing.TB, change ...func(*Config)) *house {
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
	return &house{k, t, q, c}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spec is what a jail with these permissions is governed by.
func spec(t testing.TB, permission string) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(Spec{Policy: &Policy{Files: []File{{Name: "opencode.json", Text: `{"permission": ` + permission + `}`}}, Level: policy.Full}})
	must(t, err)
	return raw
}

// jail is a jail that is governed.
func (h *house) jail(permission string) id.Jail {
	h.t.Helper()
	jid := id.NewJail()
	must(h.t, h.Guard(h.t.Context(), jid, Guard{Spec: spec(h.t, permission), Workspace: "/work"}))
	return jid
}

// pending waits until a person is asked something.
func (h *house) pending() approval.Request {
	h.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if all := h.queue.Pending(); len(all) > 0 {
			return all[0]
		}
	}
	h.t.Fatal("nobody is asked")
	return approval.Request{}
}

func (h *house) answers(r approval.Request, a approval.Answer) {
	h.t.Helper()
	a.By, a.Channel = approval.Person{ID: "uid 0", Name: "anna", Role: "admin"}, "api"
	_, err := h.queue.Answer(h.t.Context(), r.ID, a)
	must(h.t, err)
}

// recorded is what the chain says was decided about a jail.
func (h *house) recorded(jid id.Jail) (all []Decided) {
	h.t.Helper()
	entries, err := h.chain.Entries(h.t.Context(), chain.Query{Jail: jid, Kinds: []chain.Kind{chain.Decided}})
	must(h.t, err)
	for _, e := range entries {
		var d Decided
		must(h.t, json.Unmarshal(e.Body, &d))
		all = append(all, d)
	}
	return all
}

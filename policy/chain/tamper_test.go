package chain_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/policy/chain"
	"glasshouse/store"
)

// tamper modifies a database directly.
func tamper(t testing.TB, h *harness, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", h.db()+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestVerifyDetectsAttacksOnDatabase(t *testing.T) {
	for _, c := range []struct {
		name   string
		attack []string
		seq    int64
		reason string
	}{
		{"an entry says something else", []string{`UPDATE chain_entries SET line = replace(line, 'left-pad', 'evil-pad') WHERE seq = 7`}, 7, "hash"},
		{"an entry is moved to another jail", []string{`UPDATE chain_entries SET jail = 'j-bbbbbbbbbbbb' WHERE seq = 7`}, 7, "columns"},
		{"an entry is hidden from its session", []string{`UPDATE chain_entries SET session = NULL WHERE seq = 7`}, 7, "columns"},
		{"an entry gets another kind", []string{`UPDATE chain_entries SET kind = 'egress' WHERE seq = 7`}, 7, "columns"},
		{"an entry gets another time", []string{`UPDATE chain_entries SET time = time + 1 WHERE seq = 7`}, 7, "columns"},
		{"an entry gets a cause", []string{`UPDATE chain_entries SET parent = 3 WHERE seq = 7`}, 7, "columns"},
		{"an entry gets a run", []string{`UPDATE chain_entries SET run = 'x' WHERE seq = 7`}, 7, "columns"},
		{"an entry gets a capability", []string{`UPDATE chain_entries SET capability = 'x' WHERE seq = 7`}, 7, "columns"},
		{"an entry is deleted", []string{`DELETE FROM chain_entries WHERE seq = 7`}, 7, "missing"},
		{"the last is deleted", []string{`DELETE FROM chain_entries WHERE seq = 21`}, 21, "missing"},
		{"the end is deleted, with its checkpoints", []string{`DELETE FROM chain_entries WHERE seq > 13`, `DELETE FROM chain_checkpoints WHERE size > 13`}, 14, "missing"},
		{"an entry is deleted, and those behind it move up", []string{`DELETE FROM chain_entries WHERE seq = 7`, `UPDATE chain_entries SET seq = seq - 1 WHERE seq > 7 AND seq = 8`}, 7, "columns"},
		{"two entries change places", []string{`UPDATE chain_entries SET seq = -7 WHERE seq = 7`, `UPDATE chain_entries SET seq = 7 WHERE seq = 8`, `UPDATE chain_entries SET seq = 8 WHERE seq = -7`}, 7, "columns"},
		{"an entry is put before the first", []string{`INSERT INTO chain_entries SELECT 0, time, kind, parent, jail, session, run, capability, line, nodes FROM chain_entries WHERE seq = 1`}, 1, "columns"},
		{"the tree is changed", []string{`UPDATE chain_entries SET nodes = (SELECT nodes FROM chain_entries WHERE seq = 4) WHERE seq = 12`}, 12, "tree"},
		{"the tree is taken away", []string{`UPDATE chain_entries SET nodes = '' WHERE seq = 12`}, 12, "tree"},
		{"a checkpoint is forged", []string{`UPDATE chain_checkpoints SET note = (SELECT note FROM chain_checkpoints WHERE size = 5) WHERE size = 10`}, 0, "stored with size"},
		{"a checkpoint is replaced", []string{`UPDATE chain_checkpoints SET note = 'x' WHERE size = 10`}, 0, "checkpoint of 10"},
		{"a line is empty", []string{`UPDATE chain_entries SET line = '' WHERE seq = 7`}, 7, "byte 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := openHarness(t, t.TempDir(), chain.Config{Every: 5, Interval: time.Hour})
			for n := range 21 {
				h.append(t, anEntry(n))
			}
			h.checkVerifies(t, 21)
			tamper(t, h, c.attack...)
			r, err := h.VerifyAll(t.Context())
			if err != nil || r.Bad == nil || r.Bad.Seq != c.seq || !strings.Contains(r.Bad.Reason, c.reason) {
				t.Fatalf("VerifyAll = %+v %v, %v; want entry %d, %q", r, r.Bad, err, c.seq, c.reason)
			}
			if again, err := h.VerifyAll(t.Context()); err != nil || *again.Bad != *r.Bad {
				t.Errorf("VerifyAll again = %+v %v, %v", again, again.Bad, err)
			}
		})
	}
}

func TestOpenDetectsChangedEnd(t *testing.T) {
	for name, attack := range map[string][]string{
		"the last entry says something else": {`UPDATE chain_entries SET line = replace(line, 'left-pad', 'evil-pad') WHERE seq = 21`},
		"the last entry is gone":             {`DELETE FROM chain_entries WHERE seq = 21`},
		"the last checkpoint is another":     {`UPDATE chain_checkpoints SET note = (SELECT note FROM chain_checkpoints WHERE size = 5) WHERE size = 21`},
		"the tree is another":                {`UPDATE chain_entries SET nodes = (SELECT nodes FROM chain_entries WHERE seq = 4) WHERE seq = 20`},
		"the tree is missing":                {`UPDATE chain_entries SET nodes = '' WHERE seq = 16`},
	} {
		t.Run(name, func(t *testing.T) {
			h := openHarness(t, t.TempDir(), chain.Config{Every: 5})
			for n := range 21 {
				h.append(t, anEntry(n))
			}
			h.close()
			tamper(t, h, attack...)
			if _, err := tryOpen(h.dir, chain.Config{}); !errors.Is(err, fault.Conflict) {
				t.Errorf("Open = %v, want conflict", err)
			}
		})
	}
}

// TestVerifyDataDirectoryOffline reads the database files directly, even while a daemon writes to
// them.
func TestVerifyDataDirectoryOffline(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{Every: 5, Interval: time.Hour})
	for n := range 22 {
		h.append(t, anEntry(n))
	}
	seen := h.Latest().Note
	text, err := os.ReadFile(filepath.Join(h.dir, chain.PublicFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := chain.ParsePublic(string(text))
	if err != nil {
		t.Fatal(err)
	}
	verify := func(where string, seen string) chain.Report {
		t.Helper()
		r, err := store.ReadChain(t.Context(), where)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		report, err := chain.VerifyStore(t.Context(), r, chain.TrustedInput{Key: key, Seen: seen})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	if r := verify(h.db(), seen); r.Bad != nil || r.Entries != 22 || r.Signed != 20 {
		t.Errorf("with a running daemon: %+v %v", r, r.Bad)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ctx.Err() == nil; n++ {
			h.Append(ctx, anEntry(n))
		}
	}()
	for range 20 {
		if r := verify(h.db(), seen); r.Bad != nil {
			t.Errorf("while it grows: %+v %v", r, r.Bad)
		}
	}
	cancel()
	<-done
	h.close()
	before, err := os.ReadFile(h.db())
	if err != nil {
		t.Fatal(err)
	}
	last := verify(h.db(), seen)
	if last.Bad != nil || last.Signed != last.Entries || last.Entries < 22 {
		t.Errorf("without its daemon: %+v %v", last, last.Bad)
	}
	if after, err := os.ReadFile(h.db()); err != nil || string(before) != string(after) {
		t.Errorf("verification changed the database: %v", err)
	}
	tamper(t, h, `DELETE FROM chain_entries WHERE seq > 15`, `DELETE FROM chain_checkpoints WHERE size > 15`)
	if r := verify(h.db(), ""); r.Bad != nil || r.Entries != 15 {
		t.Errorf("truncated at a checkpoint: %+v %v", r, r.Bad)
	}
	if r := verify(h.db(), seen); r.Bad == nil || r.Bad.Seq != 16 {
		t.Errorf("truncated before a known checkpoint: %+v %v", r, r.Bad)
	}
	if _, err := store.ReadChain(t.Context(), filepath.Join(h.dir, "no.db")); !errors.Is(err, fault.NotFound) {
		t.Errorf("ReadChain of a missing file = %v, want not found", err)
	}
	if _, err := store.ReadChain(t.Context(), filepath.Join(h.dir, chain.PublicFile)); !errors.Is(err, fault.Invalid) {
		t.Errorf("ReadChain of another file = %v, want invalid", err)
	}
}

package chain_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/policy/chain"
)

// published returns the audit log heads and the errors in a daemon's log.
func published(t *testing.T, log *bytes.Buffer) (heads []struct {
	Entries    int64
	Root       string
	Checkpoint string
}, errs []string) {
	t.Helper()
	for dec := json.NewDecoder(log); dec.More(); {
		var line struct {
			Level, Msg string
			Entries    int64
			Root       string
			Checkpoint string
		}
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		switch {
		case line.Level == "ERROR":
			errs = append(errs, line.Msg)
		case line.Msg == "head of the audit log":
			heads = append(heads, struct {
				Entries    int64
				Root       string
				Checkpoint string
			}{line.Entries, line.Root, line.Checkpoint})
		}
	}
	return heads, errs
}

// The journal contains the head of the audit log even if no head file is configured or it
// cannot be written.
func TestSignedHeadIsLogged(t *testing.T) {
	for name, tt := range map[string]struct {
		file string
		errs int
	}{
		"no head file":                       {"", 0},
		"a head file":                        {filepath.Join(t.TempDir(), "heads"), 0},
		"a head file that cannot be created": {filepath.Join(t.TempDir(), "missing", "heads"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := openHarness(t, t.TempDir(), chain.Config{HeadFile: tt.file, Log: slog.New(slog.NewJSONHandler(&log, nil))})
			for n := range 3 {
				h.append(t, anEntry(n))
			}
			if err := h.Chain.Close(); err != nil { // ends logging by the writer
				t.Fatal(err)
			}
			heads, errs := published(t, &log)
			if len(heads) == 0 || len(errs) != tt.errs {
				t.Fatalf("the log has %d heads and errors %q, want a head and %d errors", len(heads), errs, tt.errs)
			}
			last := heads[len(heads)-1]
			signed, err := h.Key().Open(last.Checkpoint)
			if err != nil {
				t.Fatalf("checkpoint in the log %q: %v", last.Checkpoint, err)
			}
			if last.Entries != 3 || signed.Size != 3 || signed.Root.String() != last.Root || last.Checkpoint != h.Latest().Note {
				t.Errorf("logged head = %+v, want the checkpoint of all 3 entries, %q", last, h.Latest().Note)
			}
			if tt.file == "" || tt.errs > 0 {
				return
			}
			head, err := chain.ReadHead(tt.file, h.Key())
			if err != nil || head.Note != last.Checkpoint {
				t.Errorf("head file contains %q, %v; want %q as in the log", head.Note, err, last.Checkpoint)
			}
		})
	}
}

// The Debian package rotates the head file. The remaining lines suffice.
func TestHeadFileTailSuffices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heads")
	dir := t.TempDir()
	for n := range 3 {
		h := openHarness(t, dir, chain.Config{HeadFile: file, Log: slog.New(slog.DiscardHandler)})
		h.append(t, anEntry(n))
		h.close()
	}
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(all, []byte("\n"))
	if err := os.WriteFile(file, bytes.Join(lines[len(lines)-3:], nil), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := chain.LoadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	if head, err := chain.ReadHead(file, key.PublicKey()); err != nil || head.Size != 3 {
		t.Errorf("head in the last lines covers %d entries, %v; want 3", head.Size, err)
	}
}

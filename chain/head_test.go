package chain_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/chain"
)

// published returns the heads of the audit log that a daemon's log has, and its errors.
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

// The journal has the head of the audit log also if no head file is configured, or if it
// cannot be written.
func TestTheLogHasTheSignedHead(t *testing.T) {
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
			h := openHouse(t, t.TempDir(), chain.Config{HeadFile: tt.file, Log: slog.New(slog.NewJSONHandler(&log, nil))})
			for n := range 3 {
				h.append(t, anEntry(n))
			}
			if err := h.Chain.Close(); err != nil { // the writer logs no more
				t.Fatal(err)
			}
			heads, errs := published(t, &log)
			if len(heads) == 0 || len(errs) != tt.errs {
				t.Fatalf("the log has %d heads and the errors %q, want a head and %d errors", len(heads), errs, tt.errs)
			}
			last := heads[len(heads)-1]
			signed, err := h.Key().Open(last.Checkpoint)
			if err != nil {
				t.Fatalf("the checkpoint in the log, %q: %v", last.Checkpoint, err)
			}
			if last.Entries != 3 || signed.Size != 3 || signed.Root.String() != last.Root || last.Checkpoint != h.Latest().Note {
				t.Errorf("the log has %+v, want the checkpoint of all 3 entries, %q", last, h.Latest().Note)
			}
			if tt.file == "" || tt.errs > 0 {
				return
			}
			head, err := chain.ReadHead(tt.file, h.Key())
			if err != nil || head.Note != last.Checkpoint {
				t.Errorf("the head file has %q, %v; want %q as the log", head.Note, err, last.Checkpoint)
			}
		})
	}
}

// The package for Debian rotates the head file. The lines that stay are enough.
func TestTheEndOfAHeadFileHasTheNewestHead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heads")
	dir := t.TempDir()
	for n := range 3 {
		h := openHouse(t, dir, chain.Config{HeadFile: file, Log: slog.New(slog.DiscardHandler)})
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
	if head, err := chain.ReadHead(file, key.Public()); err != nil || head.Size != 3 {
		t.Errorf("the head in the last lines is of %d entries, %v; want 3", head.Size, err)
	}
}

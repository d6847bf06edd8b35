package chain_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/killtest"
	"glasshouse/policy/chain"
	"glasshouse/store/postgrestest"
)

func TestMain(m *testing.M) { killtest.Main(m, appendForever) }

const crashEvery = 20

// appendForever appends from many goroutines, and prints each acknowledged entry and each
// published checkpoint.
func appendForever(args []string) error {
	h, err := tryOpen(args[0], chain.Config{Every: crashEvery})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var mu sync.Mutex // keeps lines intact
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	failed := make(chan error)
	for w := range 16 {
		go func() {
			for n := w; ; n++ {
				e, err := h.Append(context.Background(), anEntry(n))
				if err != nil {
					failed <- err
					return
				}
				say("%d %s", e.Seq, e.Hash)
				if cp := h.Latest(); n%8 == 0 && cp.Size > 0 {
					say("signed %s", base64.StdEncoding.EncodeToString([]byte(cp.Note)))
				}
			}
		}()
	}
	return <-failed
}

// A writer is another process that has opened the chain of dir.
type writer struct {
	*killtest.Process
	seqs map[int64]string // acknowledged, with their hashes
	seen string           // the last published checkpoint
}

func startWriter(t *testing.T, dir string) *writer {
	t.Helper()
	w := &writer{Process: killtest.Start(t, dir), seqs: map[int64]string{}}
	for line := range w.Lines() {
		if line != "ready" {
			t.Fatalf("unexpected output of the writer: %q", line)
		}
		return w
	}
	t.Fatal("the writer ended without output")
	return nil
}

// kill kills w after it has acknowledged n entries, and reads the remaining output from the
// pipe.
func (w *writer) kill(t *testing.T, n int) {
	t.Helper()
	killed := false
	for line := range w.Lines() {
		if b64, ok := strings.CutPrefix(line, "signed "); ok {
			note, err := base64.StdEncoding.DecodeString(b64)
			if err != nil {
				continue // possibly truncated by the kill
			}
			w.seen = string(note)
			continue
		}
		var seq int64
		var hash string
		if _, err := fmt.Sscanf(line, "%d %s", &seq, &hash); err != nil || len(hash) != 64 {
			if killed {
				continue
			}
			t.Fatalf("unexpected output of the writer: %q", line)
		}
		w.seqs[seq] = hash
		if len(w.seqs) == n {
			w.Kill()
			killed = true
		}
	}
	w.Wait()
}

func TestAcknowledgedEntriesSurviveKill(t *testing.T) {
	killOften(t, t.TempDir())
}

func TestAcknowledgedEntriesSurviveKillPostgreSQL(t *testing.T) {
	server, dir := postgrestest.Start(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "url"), []byte(server.URL(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	killOften(t, dir)
}

func killOften(t *testing.T, dir string) {
	acknowledged := map[int64]string{}
	var seen string
	for round := range 8 {
		w := startWriter(t, dir)
		w.kill(t, 30+rand.IntN(300))
		for seq, hash := range w.seqs {
			if other, ok := acknowledged[seq]; ok && other != hash {
				t.Fatalf("round %d: entry number %d was assigned twice", round, seq)
			}
			acknowledged[seq] = hash
		}
		if w.seen != "" {
			seen = w.seen
		}
		h := openHarness(t, dir, chain.Config{Every: crashEvery})
		for seq, hash := range acknowledged {
			e, err := h.Entry(t.Context(), seq)
			if err != nil || e.Hash.String() != hash {
				t.Fatalf("round %d: acknowledged entry %d is %v, %v", round, seq, e.Hash, err)
			}
		}
		r, err := chain.VerifyStore(t.Context(), h.store.Chain(), chain.TrustedInput{Key: h.Key(), Seen: seen})
		if err != nil || r.Bad != nil {
			t.Fatalf("round %d: %+v %v, %v", round, r, r.Bad, err)
		}
		h.append(t, anEntry(round))
		h.checkVerifies(t, r.Entries+1)
		h.close()
	}
	if len(acknowledged) < 8*30 {
		t.Errorf("only %d entries were acknowledged", len(acknowledged))
	}
}

// TestTornWritesAreVerifiable truncates and damages the end of the database of a killed
// daemon, like a disk that did not honour fsync. The chain that SQLite recovers must verify,
// and an earlier checkpoint must reveal lost entries.
func TestTornWritesAreVerifiable(t *testing.T) {
	dir := t.TempDir()
	w := startWriter(t, dir)
	w.kill(t, 600)
	if w.seen == "" {
		t.Fatal("no checkpoint was published")
	}
	db := read(t, filepath.Join(dir, "glasshouse.db"))
	wal := read(t, filepath.Join(dir, "glasshouse.db-wal"))
	key, err := chain.LoadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	full, err := key.PublicKey().Open(w.seen)
	if err != nil {
		t.Fatal(err)
	}
	shortened := 0
	for round := range 40 {
		torn := append([]byte(nil), wal...)
		at := rand.IntN(len(torn))
		switch round % 4 {
		case 0: // truncation
			torn = torn[:at]
		case 1: // one flipped bit
			torn[at] ^= 1 << rand.IntN(8)
		case 2: // a sector of zeros
			clear(torn[at&^511 : min(at&^511+512, len(torn))])
		case 3: // pages that never arrived
			clear(torn[at:])
		}
		copied := t.TempDir()
		for name, data := range map[string][]byte{
			"glasshouse.db": db, "glasshouse.db-wal": torn,
			chain.KeyFile: read(t, filepath.Join(dir, chain.KeyFile)),
		} {
			if err := os.WriteFile(filepath.Join(copied, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		h := openHarness(t, copied, chain.Config{Every: crashEvery})
		last := h.Last()
		h.checkVerifies(t, last)
		r, err := chain.VerifyStore(t.Context(), h.store.Chain(), chain.TrustedInput{Key: h.Key(), Seen: w.seen})
		if err != nil || (r.Bad == nil) != (last >= full.Size) || r.Bad != nil && r.Bad.Seq != last+1 {
			t.Fatalf("round %d: %d entries exist, a checkpoint covers %d: %+v %v, %v", round, last, full.Size, r, r.Bad, err)
		}
		if last < full.Size {
			shortened++
		}
		h.append(t, anEntry(1))
		h.checkVerifies(t, last+1)
		h.close()
	}
	if shortened == 0 {
		t.Error("no entries were lost in any round")
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOpenRejectsSecondProcess(t *testing.T) {
	dir := t.TempDir()
	w := startWriter(t, dir)
	if _, err := tryOpen(dir, chain.Config{}); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("Open while another process has the chain = %v, want conflict and a remedy", err)
	}
	w.kill(t, 50)
	h := openHarness(t, dir, chain.Config{})
	if _, err := tryOpen(dir, chain.Config{}); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Open in the same process = %v, want conflict", err)
	}
	if _, err := chain.Open(t.Context(), chain.Config{Store: h.store.Chain()}); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Open on the same store = %v, want conflict", err)
	}
	h.append(t, anEntry(1))
	h.checkVerifies(t, h.Last())
	h.close()
	openHarness(t, dir, chain.Config{}).close()
}

func TestAppendOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=24m,mode=700"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	h := openHarness(t, dir, chain.Config{Every: crashEvery})
	var mu sync.Mutex
	added := map[int64]chain.Hash{}
	// fill appends from several goroutines, each until an error or until it has appended most.
	fill := func(most int) (failed int) {
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for range most {
					e, err := h.Append(context.Background(), anEntry(w))
					mu.Lock()
					if err != nil {
						failed++
						if !errors.Is(err, fault.Unavailable) {
							t.Errorf("Append to a full disk = %v, want unavailable", err)
						}
						mu.Unlock()
						return
					}
					added[e.Seq] = e.Hash
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		return failed
	}
	if failed := fill(1 << 20); failed != 8 {
		t.Fatalf("%d of 8 writers got an error about the full disk", failed)
	}
	full := len(added)
	check := func() {
		t.Helper()
		if h.Last() != int64(len(added)) {
			t.Fatalf("%d entries were acknowledged, but there are %d", len(added), h.Last())
		}
		for seq, hash := range added {
			if e, err := h.Entry(t.Context(), seq); err != nil || e.Hash != hash {
				t.Fatalf("entry %d is %v, %v", seq, e.Hash, err)
			}
		}
		h.checkVerifies(t, int64(len(added)))
	}
	check()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if failed := fill(20); failed > 0 {
		_, err := h.Append(t.Context(), anEntry(0))
		t.Fatalf("%d of 8 writers failed after space was freed: %v", failed, err)
	}
	if len(added) != full+160 {
		t.Errorf("%d entries were added after space was freed, want 160", len(added)-full)
	}
	check()
	h.close()
	h = openHarness(t, dir, chain.Config{Every: crashEvery})
	check()
	h.close()
}

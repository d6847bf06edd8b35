package chain_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"glasshouse/chain"
)

// An evidence is an export, its key, and a checkpoint that somebody has seen.
type evidence struct {
	key    *chain.Key
	export []byte
	lines  []string // of export, without their ends
	n      int      // entries
}

const every = 4 // entries of an evidence are signed so often

func newEvidence(t testing.TB, n int) evidence {
	t.Helper()
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return evidenceOf(key, someEntries(n))
}

func evidenceOf(key *chain.Key, entries []chain.Entry) evidence {
	export := chain.Forge(entries, key, every)
	return evidence{key: key, export: export, lines: strings.Split(strings.TrimSuffix(string(export), "\n"), "\n"), n: len(entries)}
}

func someEntries(n int) []chain.Entry {
	var list []chain.Entry
	for i := range n {
		list = append(list, chain.Entry{
			Kind: chain.Kinds()[i%len(chain.Kinds())], Parent: int64(i / 2), Jail: "j-aaaaaaaaaaaa", Session: "s1", Run: fmt.Sprint("r", i%3),
			Capability: `a "quoted" \ name`, Agent: "wörker 🏠", Body: json.RawMessage(fmt.Sprintf(`{"n":%d,"say":"\u001b\"x\" é"}`, i)),
		})
	}
	return list
}

func (e evidence) checkpoint(t testing.TB, size int) string {
	t.Helper()
	var c struct{ Checkpoint string }
	for _, l := range e.lines[e.n:] {
		if err := json.Unmarshal([]byte(l), &c); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(c.Checkpoint, fmt.Sprintf("\n%d\n", size)) {
			return c.Checkpoint
		}
	}
	t.Fatalf("no checkpoint of %d entries", size)
	return ""
}

func verifyExport(t testing.TB, export []byte, trust chain.Trust) chain.Report {
	t.Helper()
	r, err := chain.VerifyExport(t.Context(), bytes.NewReader(export), trust)
	if err != nil {
		t.Fatalf("VerifyExport: %v", err)
	}
	return r
}

func join(lines []string) []byte { return []byte(strings.Join(lines, "\n") + "\n") }

func TestAnExportThatWasNotTouchedIsRight(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 5, 17, 64, 100} {
		e := newEvidence(t, n)
		got := verifyExport(t, e.export, chain.Trust{Key: e.key.Public()})
		want := chain.Report{Entries: int64(n), Checkpoints: int64((n + every - 1) / every), Signed: int64(n), Key: e.key.Public().String(), KeyGiven: true}
		if got != want {
			t.Errorf("of %d entries: %+v %v, want %+v", n, got, got.Bad, want)
		}
		if got := verifyExport(t, e.export, chain.Trust{}); got.Bad != nil || got.KeyGiven {
			t.Errorf("of %d entries, without a key: %+v %v", n, got, got.Bad)
		}
	}
}

func TestEveryByteOfAnExportCounts(t *testing.T) {
	e := newEvidence(t, 6)
	var ends []int // where each line ends
	for i, c := range e.export {
		if c == '\n' {
			ends = append(ends, i)
		}
	}
	for _, trust := range []chain.Trust{{Key: e.key.Public()}, {}} {
		for _, mask := range []byte{0x01, 0x20, 0x80} {
			t.Run(fmt.Sprintf("given=%v mask=%#x", trust.Key != chain.Public{}, mask), func(t *testing.T) {
				t.Parallel()
				export := slices.Clone(e.export)
				for i := range export {
					export[i] ^= mask
					r := verifyExport(t, export, trust)
					export[i] ^= mask
					line, _ := slices.BinarySearch(ends, i)
					line++
					switch {
					case r.Bad == nil:
						t.Fatalf("byte %d, in line %d, is %q rather than %q and nobody sees it", i, line, e.export[i]^mask, e.export[i])
					case line <= e.n && r.Bad.Seq != int64(line):
						t.Fatalf("byte %d of entry %d was changed, and entry %d is said to be bad: %s", i, line, r.Bad.Seq, r.Bad.Reason)
					case line > e.n && trust.Key != chain.Public{} && r.Bad.Line != int64(line) && !strings.Contains(r.Bad.Reason, "missing") && !strings.Contains(r.Bad.Reason, "vouches"):
						t.Fatalf("byte %d of line %d was changed, and line %d is said to be bad: %s", i, line, r.Bad.Line, r.Bad.Reason)
					}
				}
			})
		}
	}
}

func TestAttacksOnAnExport(t *testing.T) {
	e := newEvidence(t, 18) // signed at 4, 8, 12, 16 and 18
	other := newEvidence(t, 18)
	trust := chain.Trust{Key: e.key.Public()}
	with := func(f func(lines []string) []string) []byte { return join(f(slices.Clone(e.lines))) }

	changed := someEntries(18) // the same but for what entry 11 says
	changed[10].Body = json.RawMessage(`{"n":"something else"}`)
	rewritten := evidenceOf(e.key, changed) // as only the owner of the key could
	forged := evidenceOf(other.key, changed)
	shorter := evidenceOf(e.key, someEntries(12))

	for _, c := range []struct {
		name   string
		export []byte
		trust  chain.Trust
		seq    int64  // of the entry that is named; 0 is none
		reason string // part of it
	}{
		{"two entries change places", with(func(l []string) []string { l[5], l[6] = l[6], l[5]; return l }), trust, 6, "entry 7 is in its place"},
		{"an entry is dropped", with(func(l []string) []string { return slices.Delete(l, 8, 9) }), trust, 9, "missing"},
		{"the first is dropped", with(func(l []string) []string { return l[1:] }), trust, 1, "missing"},
		{"the last is dropped", with(func(l []string) []string { return slices.Delete(l, 17, 18) }), trust, 18, "missing"},
		{"an entry is there twice", with(func(l []string) []string { return slices.Insert(l, 3, l[2]) }), trust, 4, "entry 3 is in its place"},
		{"an entry of another chain is put in", with(func(l []string) []string { return slices.Insert(l, 3, other.lines[3]) }), trust, 5, "entry 4 is in its place"},
		{"an entry is another chain's", with(func(l []string) []string { l[10] = rewritten.lines[10]; return l }), trust, 12, "does not follow"},
		{"the rest is another chain's, with all hashes right", with(func(l []string) []string { return append(slices.Clone(rewritten.lines[:18]), l[18:]...) }), trust, 9, "entries 9 to 12 are not those that were signed"},
		{"the rest is another chain's, signed with another key", with(func(l []string) []string { return append(slices.Clone(forged.lines[:18]), forged.lines[18:]...) }), trust, 0, "checkpoint of 4 entries"},
		{"the rest was signed anew by the owner, and somebody has seen the old", rewritten.export, chain.Trust{Key: e.key.Public(), Seen: e.checkpoint(t, 16)}, 13, "entries 13 to 16 are not"},
		{"the end is cut off, and somebody has seen it", shorter.export, chain.Trust{Key: e.key.Public(), Seen: e.checkpoint(t, 16)}, 13, "16 entries were in the chain when"},
		{"the newest checkpoints are taken away", with(func(l []string) []string { return append(slices.Clone(l[:20]), l[len(l)-1]) }), trust, 9, "no checkpoint vouches"},
		{"an old checkpoint is in the place of the newest", with(func(l []string) []string { l[22] = l[18]; return l }), trust, 0, "out of order"},
		{"all checkpoints are taken away", with(func(l []string) []string { return append(slices.Clone(l[:18]), l[len(l)-1]) }), trust, 1, "no checkpoint vouches"},
		{"a checkpoint of a longer chain is added", append(slices.Clone(join(shorter.lines[:12])), join(e.lines[18:])...), trust, 13, "missing: 16 entries were signed"},
		{"checkpoints change places", with(func(l []string) []string { l[19], l[20] = l[20], l[19]; return l }), trust, 0, "out of order"},
		{"all of it is another's", other.export, trust, 0, "not signed by"},
		{"the key line is another's", with(func(l []string) []string { l[len(l)-1] = other.lines[len(other.lines)-1]; return l }), trust, 0, "another key"},
		{"the key line is another's, and no key is given", with(func(l []string) []string { l[len(l)-1] = other.lines[len(other.lines)-1]; return l }), chain.Trust{}, 0, "not signed by"},
		{"there is no key line", with(func(l []string) []string { return l[:len(l)-1] }), trust, 0, "no public key"},
		{"there is no key line, and an entry is bad", with(func(l []string) []string {
			l[3] = strings.Replace(l[3], "s1", "s2", 1)
			return l[:len(l)-1]
		}), trust, 4, "hash"},
		{"there is something behind the key", append(slices.Clone(e.export), "{}\n"...), trust, 0, "neither"},
		{"an entry is behind the checkpoints", with(func(l []string) []string { return slices.Insert(l, 20, l[4]) }), trust, 0, "neither"},
		{"an empty line", with(func(l []string) []string { return slices.Insert(l, 7, "") }), trust, 8, "want"},
		{"a line of another end", bytes.Replace(e.export, []byte("\n"), []byte("\r\n"), 1), trust, 1, "behind"},
		{"a space", bytes.Replace(e.export, []byte(`,"seq":7,`), []byte(`,"seq": 7,`), 1), trust, 7, "number"},
		{"a line as long as memory", append([]byte(strings.Repeat("x", 3<<20)), e.export...), trust, 1, "too long"},
		{"nothing", nil, trust, 0, "no public key"},
		{"the last line has no end", bytes.TrimSuffix(e.export, []byte("\n")), trust, 0, "neither"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := verifyExport(t, c.export, c.trust)
			if r.Bad == nil {
				t.Fatalf("it was not found: %+v", r)
			}
			if r.Bad.Seq != c.seq || !strings.Contains(r.Bad.Reason, c.reason) {
				t.Errorf("it says %s; want entry %d, %q", r.Bad, c.seq, c.reason)
			}
		})
	}
}

// What cannot be found out is said as well: who has no key and has seen nothing
// knows only that somebody vouches for the export.
func TestWithoutKeyAndCheckpointOnlyThatMuchIsKnown(t *testing.T) {
	e := newEvidence(t, 18)
	shorter := evidenceOf(e.key, someEntries(12))
	if r := verifyExport(t, shorter.export, chain.Trust{Key: e.key.Public()}); r.Bad != nil || r.Entries != 12 {
		t.Errorf("an earlier export of the same chain: %+v %v", r, r.Bad)
	}
	if r := verifyExport(t, e.export, chain.Trust{Key: e.key.Public(), Seen: shorter.checkpoint(t, 8)}); r.Bad != nil || r.Checkpoints != 6 {
		t.Errorf("with a checkpoint that was seen earlier: %+v %v", r, r.Bad)
	}
	if r := verifyExport(t, newEvidence(t, 3).export, chain.Trust{}); r.Bad != nil || r.KeyGiven {
		t.Errorf("an export of anybody: %+v %v; want it right, and the key not given", r, r.Bad)
	}
}

// TestAnEntryIsHashedAsTheDocumentationSays does what docs/chain.md says, with
// nothing of ours.
func TestAnEntryIsHashedAsTheDocumentationSays(t *testing.T) {
	e := newEvidence(t, 3)
	for i, line := range e.lines[:3] {
		cmd := exec.Command("sh", "-c", `(printf '\0'; sed 's/"hash":"[0-9a-f]*",//' | tr -d '\n') | sha256sum`)
		cmd.Stdin = strings.NewReader(line + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Skipf("no sh, sed and sha256sum here: %v", err)
		}
		sum, _, _ := strings.Cut(string(out), " ")
		if !strings.Contains(line, `"hash":"`+sum+`"`) {
			t.Errorf("entry %d is hashed by hand to %s, and is %s", i+1, sum, line)
		}
		if i < 2 && !strings.Contains(e.lines[i+1], `"prev":"`+sum+`"`) {
			t.Errorf("entry %d does not name that hash", i+2)
		}
	}
}

func FuzzVerifyExport(f *testing.F) {
	e := newEvidence(f, 6)
	trust := chain.Trust{Key: e.key.Public()}
	f.Add(e.export)
	f.Add(join(e.lines[:3]))
	f.Add(join(e.lines[6:]))
	f.Add([]byte("{\"key\":\"x\"}\n"))
	f.Fuzz(func(t *testing.T, export []byte) {
		r := verifyExport(t, export, trust)
		if r.Bad == nil && r.Entries > 0 && !bytes.Equal(export, e.export) {
			t.Fatalf("an export that was never made is right: %q", export)
		}
		verifyExport(t, export, chain.Trust{})
	})
}

func FuzzParseEntry(f *testing.F) {
	e := newEvidence(f, 3)
	for _, l := range e.lines[:3] {
		f.Add([]byte(l))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		entry, err := chain.ParseEntry(line)
		if err != nil {
			return
		}
		again, err := json.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		if again, err = chain.Canonical(again); err != nil || !bytes.Equal(line, again) {
			t.Fatalf("ParseEntry takes %q, which is written %q, %v", line, again, err)
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	e := newEvidence(f, 6)
	f.Add(e.checkpoint(f, 4))
	f.Add(e.checkpoint(f, 6))
	key := e.key.Public()
	f.Fuzz(func(t *testing.T, note string) {
		if h, err := key.Open(note); err == nil && h.Size != 4 && h.Size != 6 {
			t.Fatalf("a checkpoint that was never signed: %q", note)
		}
		if p, err := chain.ParsePublic(note); err == nil && p.String() != strings.TrimSuffix(note, "\n") {
			t.Fatalf("a key of two texts: %q", note)
		}
	})
}

func BenchmarkVerifyExport(b *testing.B) {
	key, err := chain.LoadKey(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	const n = 200_000
	entries := make([]chain.Entry, n)
	for i := range entries {
		entries[i] = anEntry(i)
		if entries[i].Body, err = chain.Canonical(entries[i].Body); err != nil {
			b.Fatal(err)
		}
	}
	export := chain.Forge(entries, key, 1000)
	b.SetBytes(int64(len(export)))
	for b.Loop() {
		if r := verifyExport(b, export, chain.Trust{Key: key.Public()}); r.Bad != nil {
			b.Fatal(r.Bad)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

package chain_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"glasshouse/policy/chain"
)

// A fixture is an export with its key and its lines.
type fixture struct {
	key    *chain.Key
	export []byte
	lines  []string // lines of export without line ends
	n      int      // entries
}

const every = 4 // interval of checkpoints in a fixture

func newFixture(t testing.TB, n int) fixture {
	t.Helper()
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return fixtureOf(key, someEntries(n))
}

func fixtureOf(key *chain.Key, entries []chain.Entry) fixture {
	export := chain.Forge(entries, key, every)
	return fixture{key: key, export: export, lines: strings.Split(strings.TrimSuffix(string(export), "\n"), "\n"), n: len(entries)}
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

func (e fixture) checkpoint(t testing.TB, size int) string {
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

func verifyExport(t testing.TB, export []byte, trust chain.TrustedInput) chain.Report {
	t.Helper()
	r, err := chain.VerifyExport(t.Context(), bytes.NewReader(export), trust)
	if err != nil {
		t.Fatalf("VerifyExport: %v", err)
	}
	return r
}

func join(lines []string) []byte { return []byte(strings.Join(lines, "\n") + "\n") }

func TestVerifyUnchangedExport(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 5, 17, 64, 100} {
		e := newFixture(t, n)
		got := verifyExport(t, e.export, chain.TrustedInput{Key: e.key.PublicKey()})
		want := chain.Report{Entries: int64(n), Checkpoints: int64((n + every - 1) / every), Signed: int64(n), Key: e.key.PublicKey().String(), KeyGiven: true}
		if got != want {
			t.Errorf("VerifyExport of %d entries = %+v %v, want %+v", n, got, got.Bad, want)
		}
		if got := verifyExport(t, e.export, chain.TrustedInput{}); got.Bad != nil || got.KeyGiven {
			t.Errorf("VerifyExport of %d entries without a key = %+v %v", n, got, got.Bad)
		}
	}
}

func TestVerifyDetectsEveryChangedByte(t *testing.T) {
	e := newFixture(t, 6)
	var ends []int // where each line ends
	for i, c := range e.export {
		if c == '\n' {
			ends = append(ends, i)
		}
	}
	for _, trust := range []chain.TrustedInput{{Key: e.key.PublicKey()}, {}} {
		for _, mask := range []byte{0x01, 0x20, 0x80} {
			t.Run(fmt.Sprintf("given=%v mask=%#x", trust.Key != chain.PublicKey{}, mask), func(t *testing.T) {
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
						t.Fatalf("change of byte %d in line %d to %q from %q was not detected", i, line, e.export[i]^mask, e.export[i])
					case line <= e.n && r.Bad.Seq != int64(line):
						t.Fatalf("byte %d of entry %d was changed, but entry %d was reported: %s", i, line, r.Bad.Seq, r.Bad.Reason)
					case line > e.n && trust.Key != chain.PublicKey{} && r.Bad.Line != int64(line) && !strings.Contains(r.Bad.Reason, "missing") && !strings.Contains(r.Bad.Reason, "vouches"):
						t.Fatalf("byte %d of line %d was changed, but line %d was reported: %s", i, line, r.Bad.Line, r.Bad.Reason)
					}
				}
			})
		}
	}
}

func TestVerifyDetectsAttacksOnExport(t *testing.T) {
	e := newFixture(t, 18) // signed at 4, 8, 12, 16 and 18
	other := newFixture(t, 18)
	trust := chain.TrustedInput{Key: e.key.PublicKey()}
	with := func(f func(lines []string) []string) []byte { return join(f(slices.Clone(e.lines))) }

	changed := someEntries(18) // the same except for the body of entry 11
	changed[10].Body = json.RawMessage(`{"n":"something else"}`)
	rewritten := fixtureOf(e.key, changed) // possible only with the key
	forged := fixtureOf(other.key, changed)
	shorter := fixtureOf(e.key, someEntries(12))

	for _, c := range []struct {
		name   string
		export []byte
		trust  chain.TrustedInput
		seq    int64  // sequence number of the reported entry; 0 is none
		reason string // substring of the reason
	}{
		{"two entries change places", with(func(l []string) []string { l[5], l[6] = l[6], l[5]; return l }), trust, 6, "entry 7 is in its place"},
		{"an entry is dropped", with(func(l []string) []string { return slices.Delete(l, 8, 9) }), trust, 9, "missing"},
		{"the first is dropped", with(func(l []string) []string { return l[1:] }), trust, 1, "missing"},
		{"the last is dropped", with(func(l []string) []string { return slices.Delete(l, 17, 18) }), trust, 18, "missing"},
		{"an entry is there twice", with(func(l []string) []string { return slices.Insert(l, 3, l[2]) }), trust, 4, "entry 3 is in its place"},
		{"an entry of another chain is put in", with(func(l []string) []string { return slices.Insert(l, 3, other.lines[3]) }), trust, 5, "entry 4 is in its place"},
		{"an entry is another chain's", with(func(l []string) []string { l[10] = rewritten.lines[10]; return l }), trust, 12, "previous hash"},
		{"the rest is another chain's, with all hashes right", with(func(l []string) []string { return append(slices.Clone(rewritten.lines[:18]), l[18:]...) }), trust, 9, "entries 9 to 12 do not match"},
		{"the rest is another chain's, signed with another key", with(func(l []string) []string { return append(slices.Clone(forged.lines[:18]), forged.lines[18:]...) }), trust, 0, "checkpoint of 4 entries"},
		{"the rest was signed again by the owner, with an earlier checkpoint known", rewritten.export, chain.TrustedInput{Key: e.key.PublicKey(), Seen: e.checkpoint(t, 16)}, 13, "entries 13 to 16 do not match"},
		{"the end is cut off, with an earlier checkpoint known", shorter.export, chain.TrustedInput{Key: e.key.PublicKey(), Seen: e.checkpoint(t, 16)}, 13, "16 entries were in the chain at"},
		{"the newest checkpoints are taken away", with(func(l []string) []string { return append(slices.Clone(l[:20]), l[len(l)-1]) }), trust, 9, "not covered by a checkpoint"},
		{"an old checkpoint is in the place of the newest", with(func(l []string) []string { l[22] = l[18]; return l }), trust, 0, "out of order"},
		{"all checkpoints are taken away", with(func(l []string) []string { return append(slices.Clone(l[:18]), l[len(l)-1]) }), trust, 1, "not covered by a checkpoint"},
		{"a checkpoint of a longer chain is added", append(slices.Clone(join(shorter.lines[:12])), join(e.lines[18:])...), trust, 13, "missing: 16 entries were signed"},
		{"checkpoints change places", with(func(l []string) []string { l[19], l[20] = l[20], l[19]; return l }), trust, 0, "out of order"},
		{"all of it is another's", other.export, trust, 0, "not signed by"},
		{"the key line is another's", with(func(l []string) []string { l[len(l)-1] = other.lines[len(other.lines)-1]; return l }), trust, 0, "a key other than"},
		{"the key line is another's, and no key is given", with(func(l []string) []string { l[len(l)-1] = other.lines[len(other.lines)-1]; return l }), chain.TrustedInput{}, 0, "not signed by"},
		{"there is no key line", with(func(l []string) []string { return l[:len(l)-1] }), trust, 0, "no public key"},
		{"there is no key line, and an entry is bad", with(func(l []string) []string {
			l[3] = strings.Replace(l[3], "s1", "s2", 1)
			return l[:len(l)-1]
		}), trust, 4, "hash"},
		{"there is something behind the key", append(slices.Clone(e.export), "{}\n"...), trust, 0, "neither"},
		{"an entry is behind the checkpoints", with(func(l []string) []string { return slices.Insert(l, 20, l[4]) }), trust, 0, "neither"},
		{"an empty line", with(func(l []string) []string { return slices.Insert(l, 7, "") }), trust, 8, "expected"},
		{"a line of another end", bytes.Replace(e.export, []byte("\n"), []byte("\r\n"), 1), trust, 1, "trailing"},
		{"a space", bytes.Replace(e.export, []byte(`,"seq":7,`), []byte(`,"seq": 7,`), 1), trust, 7, "number"},
		{"a line as long as memory", append([]byte(strings.Repeat("x", 3<<20)), e.export...), trust, 1, "too long"},
		{"nothing", nil, trust, 0, "no public key"},
		{"the last line has no end", bytes.TrimSuffix(e.export, []byte("\n")), trust, 0, "neither"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := verifyExport(t, c.export, c.trust)
			if r.Bad == nil {
				t.Fatalf("the attack was not detected: %+v", r)
			}
			if r.Bad.Seq != c.seq || !strings.Contains(r.Bad.Reason, c.reason) {
				t.Errorf("Bad = %s; want entry %d, %q", r.Bad, c.seq, c.reason)
			}
		})
	}
}

// Without a key and an earlier checkpoint, verification shows only that the export is
// consistent and signed by the key that it contains.
func TestVerifyWithoutKeyAndCheckpoint(t *testing.T) {
	e := newFixture(t, 18)
	shorter := fixtureOf(e.key, someEntries(12))
	if r := verifyExport(t, shorter.export, chain.TrustedInput{Key: e.key.PublicKey()}); r.Bad != nil || r.Entries != 12 {
		t.Errorf("VerifyExport of an earlier export of the same chain = %+v %v", r, r.Bad)
	}
	if r := verifyExport(t, e.export, chain.TrustedInput{Key: e.key.PublicKey(), Seen: shorter.checkpoint(t, 8)}); r.Bad != nil || r.Checkpoints != 6 {
		t.Errorf("VerifyExport with an earlier checkpoint = %+v %v", r, r.Bad)
	}
	if r := verifyExport(t, newFixture(t, 3).export, chain.TrustedInput{}); r.Bad != nil || r.KeyGiven {
		t.Errorf("VerifyExport of a foreign export = %+v %v; want it valid and the key not given", r, r.Bad)
	}
}

// TestEntryHashMatchesDocumentation computes the hash as described in docs/reference/audit-log.md, with
// standard tools only.
func TestEntryHashMatchesDocumentation(t *testing.T) {
	e := newFixture(t, 3)
	for i, line := range e.lines[:3] {
		cmd := exec.Command("sh", "-c", `(printf '\0'; sed 's/"hash":"[0-9a-f]*",//' | tr -d '\n') | sha256sum`)
		cmd.Stdin = strings.NewReader(line + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Skipf("needs sh, sed and sha256sum: %v", err)
		}
		sum, _, _ := strings.Cut(string(out), " ")
		if !strings.Contains(line, `"hash":"`+sum+`"`) {
			t.Errorf("hash of entry %d computed with sha256sum = %s, line is %s", i+1, sum, line)
		}
		if i < 2 && !strings.Contains(e.lines[i+1], `"prev":"`+sum+`"`) {
			t.Errorf("entry %d does not contain that hash", i+2)
		}
	}
}

func FuzzVerifyExport(f *testing.F) {
	e := newFixture(f, 6)
	trust := chain.TrustedInput{Key: e.key.PublicKey()}
	f.Add(e.export)
	f.Add(join(e.lines[:3]))
	f.Add(join(e.lines[6:]))
	f.Add([]byte("{\"key\":\"x\"}\n"))
	f.Fuzz(func(t *testing.T, export []byte) {
		r := verifyExport(t, export, trust)
		if r.Bad == nil && r.Entries > 0 && !bytes.Equal(export, e.export) {
			t.Fatalf("a forged export is valid: %q", export)
		}
		verifyExport(t, export, chain.TrustedInput{})
	})
}

func FuzzParseEntry(f *testing.F) {
	e := newFixture(f, 3)
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
		again, err = chain.Canonical(again)
		if err != nil || !bytes.Equal(line, again) {
			t.Fatalf("ParseEntry accepts %q, whose canonical form is %q, %v", line, again, err)
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	e := newFixture(f, 6)
	f.Add(e.checkpoint(f, 4))
	f.Add(e.checkpoint(f, 6))
	key := e.key.PublicKey()
	f.Fuzz(func(t *testing.T, note string) {
		if h, err := key.Open(note); err == nil && h.Size != 4 && h.Size != 6 {
			t.Fatalf("a forged checkpoint is valid: %q", note)
		}
		if p, err := chain.ParsePublic(note); err == nil && p.String() != strings.TrimSuffix(note, "\n") {
			t.Fatalf("a key has two encodings: %q", note)
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
		entries[i].Body, err = chain.Canonical(entries[i].Body)
		if err != nil {
			b.Fatal(err)
		}
	}
	export := chain.Forge(entries, key, 1000)
	b.SetBytes(int64(len(export)))
	for b.Loop() {
		if r := verifyExport(b, export, chain.TrustedInput{Key: key.PublicKey()}); r.Bad != nil {
			b.Fatal(r.Bad)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

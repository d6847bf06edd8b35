package text_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"glasshouse/internal/text"
)

// hostile lists hostile texts by technique, with the expected results of Visible and other
// functions.
var hostile = []struct{ name, text, visible, oneLine string }{
	{"plain text", "Grüße, 世界", "Grüße, 世界", "Grüße, 世界"},
	{"C0 controls", "a\x00b\x07c\x7f", `a\x00b\x07c\x7f`, "abc"},
	{"C1 controls", "a\u009b2Jb\u0085c", `a\u009b2Jb\u0085c`, "a2Jb c"},
	{"ANSI escape", "\x1b[2J\x1b]0;title\x07x", `\x1b[2J\x1b]0;title\x07x`, "[2J]0;titlex"},
	{"line ends", "a\nb\rc\u2028d\u2029e", `a\nb\rc\u2028d\u2029e`, "a b c d e"},
	{"bidirectional", "user\u202e\u2066txt.exe\u200f", `user\u202e\u2066txt.exe\u200f`, "usertxt.exe"},
	{"zero width", "a\u200bb\u200dc\u2060d\ufeffe", `a\u200bb\u200dc\u2060d\ufeffe`, "abcde"},
	{"tags", "a\U000e0041b", `a\U000e0041b`, "ab"},
	{"variation selector", "a\ufe0fb", `a\ufe0fb`, "ab"},
	{"blank letters", "a\u3164b\u115fc\u2800d", `a\u3164b\u115fc\u2800d`, "abcd"},
	{"other spaces", "a\u00a0b\u3000c", `a\u00a0b\u3000c`, "a b c"},
	{"not UTF-8", "a\xff\xc3(\xe2\x82", `a\xff\xc3(\xe2\x82`, "a("},
	{"private use and unassigned", "a\ue000\U0010ffffb", `a\ue000\U0010ffffb`, "ab"},
	{"spaces", "  a \t b ", `  a \t b `, "a b"},
}

func TestHostileTextIsShownOnOneLine(t *testing.T) {
	for _, c := range hostile {
		if got := text.Visible(c.text); got != c.visible {
			t.Errorf("%s: Visible(%q) = %q, want %q", c.name, c.text, got, c.visible)
		}
		if got := text.OneLine(c.text); got != c.oneLine {
			t.Errorf("%s: OneLine(%q) = %q, want %q", c.name, c.text, got, c.oneLine)
		}
	}
}

func TestForTerminalKeepsLinesAndTabs(t *testing.T) {
	got := text.ForTerminal("glasshouse: a\n\ttry: b\r\x1b[2J\u009bm")
	if want := "glasshouse: a\n\ttry: b\\r\\x1b[2J\\u009bm"; got != want {
		t.Errorf("ForTerminal() = %q, want %q", got, want)
	}
}

func TestTruncationIsBetweenCharacters(t *testing.T) {
	const s = "añ世🙂z" // 1, 2, 3, 4 and 1 bytes
	for n, want := range []string{"", "a", "a", "añ", "añ", "añ", "añ世", "añ世", "añ世", "añ世", "añ世🙂", s, s} {
		if got := text.Prefix(s, n); got != want {
			t.Errorf("Prefix(%q, %d) = %q, want %q", s, n, got, want)
		}
		clipped := want
		if want != s {
			clipped += "…"
		}
		if got := text.Clip(s, n); got != clipped {
			t.Errorf("Clip(%q, %d) = %q, want %q", s, n, got, clipped)
		}
	}
	for n, want := range []string{"", "z", "z", "z", "z", "🙂z", "🙂z", "🙂z", "世🙂z", "世🙂z", "ñ世🙂z", s, s} {
		if got := text.Suffix(s, n); got != want {
			t.Errorf("Suffix(%q, %d) = %q, want %q", s, n, got, want)
		}
	}
	for n, want := range map[int]string{0: "…", 1: "…", 2: "a…", 4: "añ世…", 5: s, 6: s} {
		if got := text.Columns(s, n); got != want {
			t.Errorf("Columns(%q, %d) = %q, want %q", s, n, got, want)
		}
	}
}

// The character at the cut can be the first one.
func TestTruncationInFirstCharacter(t *testing.T) {
	for _, s := range []string{"ñ!", "世界", "🙂🙂"} {
		_, size := utf8.DecodeRuneInString(s)
		for n := range size {
			if got := text.Prefix(s, n); got != "" {
				t.Errorf("Prefix(%q, %d) = %q, want %q", s, n, got, "")
			}
		}
		if got, want := text.Prefix(s, size), s[:size]; got != want {
			t.Errorf("Prefix(%q, %d) = %q, want %q", s, size, got, want)
		}
	}
}

func TestTruncationOfInvalidUTF8(t *testing.T) {
	s := strings.Repeat("\x80", 100)
	if got := text.Prefix(s, 10); len(got) != 10 {
		t.Errorf("Prefix of 100 continuation bytes to 10 has %d bytes, want 10", len(got))
	}
	if got := text.Suffix(s, 10); len(got) != 10 {
		t.Errorf("Suffix of 100 continuation bytes to 10 has %d bytes, want 10", len(got))
	}
	if got := text.Clip("x", -1); got != "…" {
		t.Errorf("Clip to -1 bytes = %q, want %q", got, "…")
	}
}

// A letter may carry any number of combining marks. Its cut has the wanted length and
// is UTF-8.
func TestLongGraphemeIsBounded(t *testing.T) {
	s := "e" + strings.Repeat("\u0301", 10000)
	if got := text.Clip(s, 64); len(got) > 64+len("…") || !utf8.ValidString(got) {
		t.Errorf("Clip of a letter with 10000 accents to 64 bytes = %d bytes, valid %v; want at most 67, valid", len(got), utf8.ValidString(got))
	}
}

func TestJSONIsTheSameDocument(t *testing.T) {
	for _, c := range hostile {
		doc, err := json.Marshal(map[string]string{"name": c.text})
		if err != nil {
			t.Fatal(err)
		}
		safe := text.JSON(doc)
		var want, got map[string]string
		if err := json.Unmarshal(doc, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(safe, &got); err != nil || got["name"] != want["name"] {
			t.Errorf("%s: JSON(%s) is %q (%v), want %q", c.name, doc, got["name"], err, want["name"])
		}
		checkShown(t, string(safe), "")
	}
}

// checkShown fails if a reader would not see each character of s, except for those in keep.
func checkShown(t *testing.T, s, keep string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("%q is not UTF-8", s)
	}
	for _, r := range s {
		if !strings.ContainsRune(keep, r) && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)) {
			t.Errorf("%q contains %U", s, r)
		}
	}
}

func Fuzz(f *testing.F) {
	for _, c := range hostile {
		f.Add(c.text, 5)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		checkShown(t, text.Visible(s), "")
		checkShown(t, text.OneLine(s), "")
		checkShown(t, text.ForTerminal(s), "\n\t")
		head, tail := text.Prefix(s, n), text.Suffix(s, n)
		if !strings.HasPrefix(s, head) || !strings.HasSuffix(s, tail) {
			t.Fatalf("Prefix and Suffix of %q to %d are %q and %q", s, n, head, tail)
		}
		bound := min(max(n, 0), len(s))
		for name, got := range map[string]string{"Prefix": head, "Suffix": tail} {
			if len(got) > bound || len(got) < bound-3 {
				t.Errorf("%s of %q to %d is %q: %d bytes, want %d to %d", name, s, n, got, len(got), bound-3, bound)
			}
			if utf8.ValidString(s) && !utf8.ValidString(got) {
				t.Errorf("%s of %q to %d is %q, which is cut inside a character", name, s, n, got)
			}
		}
	})
}

func ExampleVisible() {
	fmt.Println(text.Visible("invoice\u202efdp.exe\x1b[2J"))
	// Output: invoice\u202efdp.exe\x1b[2J
}

func ExampleClip() {
	fmt.Println(text.Clip("Grüße", 3), text.Clip("Grüße", 7))
	// Output: Gr… Grüße
}

func ExampleOneLine() {
	fmt.Println(text.OneLine("deploy\n\tto\u200b production"))
	// Output: deploy to production
}

func TestAppendEndEqualsSuffix(t *testing.T) {
	const n = 10
	for _, piece := range []string{"a", "€", "a€", "0123456789€", "a long piece, longer than all that is kept €"} {
		all, kept := "", []byte(nil)
		for i := range 40 {
			all += piece
			kept = text.AppendEnd(kept, []byte(piece), n)
			if got, want := text.Suffix(string(kept), n), text.Suffix(all, n); got != want {
				t.Fatalf("after %d times %q: %q, want %q", i+1, piece, got, want)
			}
			if most := 2 * (n + utf8.UTFMax); len(kept) > most {
				t.Fatalf("%d bytes are kept, want at most %d", len(kept), most)
			}
		}
	}
}

func TestCovertCharactersAreHidden(t *testing.T) {
	n := 0
	for r := range rune(unicode.MaxRune + 1) {
		if !text.Covert(r) {
			continue
		}
		n++
		if !text.Hidden(r) {
			t.Errorf("Hidden(%U) = false, and Covert of it is true", r)
		}
	}
	if n == 0 {
		t.Error("no character is Covert")
	}
	// A joiner and a variation selector in emoji, and marks of scripts that need them.
	for _, r := range "👩\u200d💻❤\ufe0fم\u200cن\u200e\u200f\u00a0\n\t" {
		if text.Covert(r) {
			t.Errorf("Covert(%U) = true, want false", r)
		}
	}
}

func TestFileNameIsQuotedIfItCouldBeTakenForMore(t *testing.T) {
	for name, want := range map[string]string{
		"a/Grüße 世界.txt":   "a/Grüße 世界.txt",
		"a/x\n+++ b/y":     `"a/x\n+++ b/y"`,
		`a/say "hi"`:       `"a/say \"hi\""`,
		`a/back\slash`:     `"a/back\\slash"`,
		"a/\u202efdp.exe":  `"a/\u202efdp.exe"`,
		"a/\u009b2J":       `"a/\u009b2J"`,
		"a/not UTF-8 \xff": `"a/not UTF-8 \xff"`,
	} {
		if got := text.FileName(name); got != want {
			t.Errorf("FileName(%q) = %s, want %s", name, got, want)
		}
	}
}

package approval_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/policy"
	"glasshouse/policy/approval"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"rm -rf x\nls":         "rm -rf x\nls",
		"a\tb":                 "a⟨tab⟩b",
		"a\rb":                 "a⟨U+000D⟩b",
		"\x1b[2Kls":            "⟨U+001B⟩[2Kls",
		"a\x7f":                "a⟨U+007F⟩",
		"\u202egpj.exe":        "⟨U+202E⟩gpj.exe",
		"\u2067a\u2069":        "⟨U+2067⟩a⟨U+2069⟩",
		"a\u200bb\ufeff":       "a⟨U+200B⟩b⟨U+FEFF⟩",
		"a\u00a0b":             "a⟨U+00A0⟩b",
		"a\u3164b":             "a⟨U+3164⟩b",
		"a\U000e0041":          "a⟨U+E0041⟩",
		"a\ufe0f":              "a⟨U+FE0F⟩",
		"e\u0301":              "e⟨U+0301⟩",
		"\xff":                 "⟨byte FF⟩",
		"grüße 漢字 🙂":           "grüße 漢字 🙂",
		"⟨U+202E⟩":             "⟨U+27E8⟩U+202E⟨U+27E9⟩",
		"ls" + spaces(9) + "x": "ls⟨9 spaces⟩x",
		"ls" + spaces(8) + "x": "ls" + spaces(8) + "x",
		"ls\n\n\n\n\nrm":       "ls\n⟨4 empty lines⟩\nrm",
		"a\u2028b":             "a⟨U+2028⟩b",
	} {
		if got := approval.Visible(in); got != want {
			t.Errorf("Visible(%q) = %q, want %q", in, got, want)
		}
	}
}

func spaces(n int) string { return strings.Repeat(" ", n) }

func TestShow(t *testing.T) {
	r := run("rm -rf\u202e x")
	r.ID, r.Phrase, r.Scopes = "a-aaaaaaaaaaaa", "allow bash aaaa", []approval.Scope{approval.Once, approval.Always}
	r.Question.Attributes["argv0"] = "rm\x1b"
	r.Context = json.RawMessage(`{"before":["ls\u202e","cd x"]}`)
	r.First = &approval.Answer{By: anna}
	v := approval.Show(r, 1000)
	if !v.Complete || v.What != "rm -rf⟨U+202E⟩ x" || v.Requester != "agent worker, jail j-aaaaaaaaaaaa, session s1" || v.Reason != "everything else is asked" ||
		v.Rule != `bash "*": ask (opencode.json:7)` || strings.Join(v.Details, ",") != "argv0: rm⟨U+001B⟩,cwd: /srv" || v.First != "anna" ||
		!strings.Contains(v.Context, `"cd x"`) || strings.Contains(v.Context, "\u202e") || !strings.Contains(v.Title, "rm -rf⟨U+202E⟩ x") {
		t.Errorf("Show = %+v", v)
	}
	if want := map[approval.Scope]string{approval.Always: `bash "rm -rf\u202e x": allow (answer a-aaaaaaaaaaaa)`}; len(v.Writes) != 1 || v.Writes[approval.Always] != want[approval.Always] {
		t.Errorf("Writes = %v, want %v", v.Writes, want)
	}
	r.Question = policy.Question{Action: "edit", Resource: "/etc/passwd"}
	if v := approval.Show(r, 1000); v.What != "edit /etc/passwd" || v.Requester != "unknown caller" {
		t.Errorf("Show = %+v", v)
	}
	r = run(strings.Repeat("a", 500) + "END")
	if v := approval.Show(r, 100); v.Complete || !strings.HasSuffix(v.What, "END") || len(v.What) > 200 || len(v.Title) > 200 {
		t.Errorf("Show = %+v", v)
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"", "a\u202e", "\xff\xfe", "          ", "\n\n\n\n\n", "⟨", "\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := approval.Visible(s)
		if !utf8.ValidString(got) {
			t.Fatalf("Visible(%q) is not valid UTF-8", s)
		}
		for _, c := range got {
			if c != '\n' && !unicode.IsPrint(c) || unicode.Is(unicode.Mn, c) {
				t.Fatalf("Visible(%q) contains %U", s, c)
			}
		}
		r := run(s)
		for _, limit := range []int{0, 1, 10, 100} {
			v := approval.Show(r, limit)
			if !utf8.ValidString(v.What) || !utf8.ValidString(v.Title) || len(v.What) > limit+60 {
				t.Fatalf("Show(%q, %d) = %q", s, limit, v.What)
			}
		}
	})
}

func TestParseAnswer(t *testing.T) {
	a, err := approval.ParseAnswer([]byte(`{"verdict":"allow","scope":"session","reason":"fine","typed":"x"}`))
	if err != nil || a.Verdict != approval.Allow || a.Scope != approval.Session || a.Reason != "fine" || a.Typed != "x" {
		t.Errorf("ParseAnswer = %+v, %v", a, err)
	}
	if a, err := approval.ParseAnswer([]byte(`{"verdict":"deny"}`)); err != nil || a.Scope != approval.Once {
		t.Errorf("ParseAnswer = %+v, %v", a, err)
	}
	for _, bad := range []string{
		``, `{}`, `null`, `[]`, `{"verdict":"maybe"}`, `{"verdict":"allow","by":{"id":"root","role":"admin"}}`, `{"verdict":"allow","channel":"cli"}`,
		`{"verdict":"allow"}{"verdict":"deny"}`, `{"verdict":"allow"} x`, `{"verdict":"allow","scope":"forever"}`, `{"verdict":"modify"}`,
		`{"verdict":"allow","reason":"` + strings.Repeat("x", 3000) + `"}`, `{"verdict":"allow","typed":"` + strings.Repeat("x", 300) + `"}`, "{\"verdict\":\"allow\",\"reason\":\"\xff\"}",
		`{"verdict":"modify","resource":"` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		if a, err := approval.ParseAnswer([]byte(bad)); !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.TooLarge) {
			t.Errorf("ParseAnswer(%.60s) = %+v, %v", bad, a, err)
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	for _, s := range []string{`{"verdict":"allow"}`, `{"verdict":"modify","resource":"x"}`, `{"verdict":"deny","scope":"always","reason":"a"}`, `{`, `{"by":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := approval.ParseAnswer(data)
		if err != nil {
			if fault.KindOf(err) == "" {
				t.Fatalf("ParseAnswer(%q): error %v has no kind", data, err)
			}
			return
		}
		if a.By != (approval.Person{}) || a.Channel != "" || a.Rule != nil || a.Hash != "" {
			t.Fatalf("ParseAnswer(%q) sets fields of the server: %+v", data, a)
		}
		if (a.Verdict == approval.Modify) != (a.Resource != "") || a.Verdict == approval.Modify && a.Scope != approval.Once {
			t.Fatalf("ParseAnswer(%q) = %+v", data, a)
		}
	})
}

func TestShowIndentsTextOfContext(t *testing.T) {
	context, err := json.Marshal(map[string]any{"new": []string{"uses the network"}, "review": "first\nnew: nothing\n", "a\nb": 1})
	if err != nil {
		t.Fatal(err)
	}
	r := approval.Request{Question: policy.Question{Action: "install", Resource: "x"}, Context: context}
	want := "\"a\\nb\": 1\nnew: [\n    \"uses the network\"\n  ]\nreview:\n  first\n  new: nothing"
	if v := approval.Show(r, 1000); v.Context != want {
		t.Errorf("Context =\n%s\nwant\n%s", v.Context, want)
	}
	r.Context = json.RawMessage(`["no object"]`)
	if v := approval.Show(r, 1000); v.Context != "[\n  \"no object\"\n]" {
		t.Errorf("Context of a JSON array = %s", v.Context)
	}
}

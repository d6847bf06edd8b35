package form_test

import (
	"testing"

	"glasshouse/capability/rtfs/form"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"one space between words", "( +   1\t2 )", "(+ 1 2)\n"},
		{"a body by two", "(defn f [x]\n(+ x\n1))", "(defn f [x]\n  (+ x\n     1))\n"},
		{"arguments below the first", "(println \"a\"\n  \"b\"\n)", "(println \"a\"\n         \"b\")\n"},
		{"arguments below the name", "(vector\n    1\n2)", "(vector\n 1\n 2)\n"},
		{"entries below each other", "{:a 1\n:b [1\n2]}", "{:a 1\n :b [1\n     2]}\n"},
		{"what hangs hangs", "(capability \"a\"\n:runtime {\n:type :rtfs\n})", "(capability \"a\"\n  :runtime {\n    :type :rtfs\n  })\n"},
		{"one empty line at most", "\n\n1\n\n\n\n2\n\n", "1\n\n2\n"},
		{"comments stay", "; a  \n(f 1   ; b\n   2 #| c |# 3) ; d", "; a\n(f 1   ; b\n   2 #| c |# 3) ; d\n"},
		{"a comment before the end", "(f\n  ; all of it\n  )", "(f\n ; all of it\n )\n"},
		{"prefixes stay where they are", "`(a ~ b ~@ c '  d)", "`(a ~ b ~@ c ' d)\n"},
		{"strings are nobody's lines", "(f \"a\n   b\" c\nd)", "(f \"a\n   b\" c\n   d)\n"},
		{"nothing", "", ""},
	} {
		got, err := form.Format("t", []byte(c.src))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if string(got) != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

func TestFormatRefusesInvalidText(t *testing.T) {
	if _, err := form.Format("t", []byte("(f 1")); err == nil {
		t.Error("a text that is not closed was formatted")
	}
}

func FuzzFormat(f *testing.F) {
	for _, s := range []string{"(a [b {:c \"d\n\"}] ; e\n)", "`(~ @x ~@y)", "#(+ % 1)", "^{:a 1} x ^:b y", "( #| x\n|# )", "[x:int y : int]", "'(1 2)\r\n;\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		before, err := form.Read("t", []byte(src))
		if err != nil {
			return
		}
		once, err := form.Format("t", []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		after, err := form.Read("t", once)
		if err != nil {
			t.Fatalf("%q became %q, which cannot be read: %v", src, once, err)
		}
		places := cmpopts.IgnoreFields(form.Node{}, "Pos", "End")
		if diff := cmp.Diff(before, after, places, cmpopts.EquateNaNs()); diff != "" {
			t.Fatalf("%q became %q, which is something else:\n%s", src, once, diff)
		}
		if twice, err := form.Format("t", once); err != nil || string(twice) != string(once) {
			t.Fatalf("%q is formatted again as %q, %v", once, twice, err)
		}
	})
}

func TestUnfinished(t *testing.T) {
	for src, want := range map[string]bool{
		"":            false,
		"1":           false,
		"(f 1":        true,
		"(f \"a":      true,
		"\"a\\":       false, // no continuation is valid
		"\"a":         true,
		"#| a":        true,
		"'":           true,
		"(f 1))":      false,
		"(f \"\\x\"":  false,
		"(f ; a) b\n": true,
	} {
		if got := form.Unfinished([]byte(src)); got != want {
			t.Errorf("Unfinished(%q) = %v", src, got)
		}
	}
}

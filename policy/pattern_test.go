package policy

import (
	"regexp"
	"strings"
	"testing"
)

func TestPatternsMatchAsInOpenCode(t *testing.T) {
	tests := []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true},
		{"*", "a\nb/c", true},
		{"rm *", "rm", true},
		{"rm *", "rm x", true},
		{"rm *", "rm x\ny", true},
		{"rm *", "rmdir x", false},
		{"rm *", "rm\tx", false},
		{"rm*", "rmdir x", true},
		{"git status", "git status", true},
		{"git status", "git status -s", false},
		{"git ?dd", "git add", true},
		{"git ?dd", "git dd", false},
		{"src/*", "src/a/b.ts", true},
		{"src/*", "src", false},
		{"*.env", "config/.env", true},
		{"*.env.*", ".env.local", true},
		{"~/x/*", "/root/x/y", true},
		{"$HOME/x", "/root/x", true},
		{"$HOMER", "/rootR", true}, // as in OpenCode
		{"a~", "a~", true},
		{`C:\x\*`, "C:/x/y", true},
		{"a.c", "abc", false},
		{"(a|b)", "a", false},
		{"RM *", "rm x", false},
		{"é?", "éä", true},
		{"*??", "é", false},
		{" *", "", true},
		{"", "", true},
		{"", "x", false},
		{"**", "x", true},
		{"* *", "x", true},
		{"* *", "x y", true},
		{"npm * --force", "npm i --force", true},
		{"npm * --force", "npm --force", false},
	}
	for _, tt := range tests {
		p := compilePattern(tt.pattern, "/root")
		if got := p.matches(tt.s); got != tt.want {
			t.Errorf("%q matches %q = %t, want %t", tt.pattern, tt.s, got, tt.want)
		}
	}
}

// reference returns the regular expression to which OpenCode converts a pattern.
func reference(pattern string) *regexp.Regexp {
	e := regexp.QuoteMeta(strings.ReplaceAll(pattern, `\`, "/"))
	e = strings.ReplaceAll(strings.ReplaceAll(e, `\*`, ".*"), `\?`, ".")
	if head, ok := strings.CutSuffix(e, " .*"); ok {
		e = head + "( .*)?"
	}
	return regexp.MustCompile("(?s)^(?:" + e + ")$")
}

func FuzzPatternIsItsReference(f *testing.F) {
	for _, s := range []string{"rm *|rm x", "*a*b?|xaxbx", "a*b*c|abcbc", "*|", "? *|é", "*é*|aéb", "a\\b|a/b", "**?|ab"} {
		p, text, _ := strings.Cut(s, "|")
		f.Add(p, text)
	}
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if strings.ContainsRune(s, hole) || len(pattern) > 100 || !validText(pattern) || !validText(s) {
			return // a zero byte represents unknown text
		}
		p := compilePattern(pattern, "")
		s = slashes(s)
		if got, want := p.matches(s), reference(pattern).MatchString(s); got != want {
			t.Errorf("%q matches %q = %t, want %t", pattern, s, got, want)
		}
	})
}

func validText(s string) bool { return strings.ToValidUTF8(s, "") == s }

// FuzzUnknownText checks matches of texts with holes against all texts for the holes.
func FuzzUnknownText(f *testing.F) {
	f.Add("git push *", "git \x00", "push x")
	f.Add("*a?c", "x\x00c", "ab")
	f.Add("npm * --force", "npm \x00 x", "-- --force")
	f.Fuzz(func(t *testing.T, pattern, s, fill string) {
		if strings.ContainsRune(fill, hole) || strings.ContainsRune(pattern, hole) || len(pattern) > 100 || len(s) > 200 ||
			!validText(pattern) || !validText(s) || !validText(fill) {
			return
		}
		p := compilePattern(pattern, "")
		s = slashes(s)
		full := strings.ReplaceAll(s, "\x00", slashes(fill))
		switch matches := p.matches(full); {
		case matches && !p.mayMatch(s):
			t.Errorf("%q matches %q, and was said not to be able to with %q", pattern, full, s)
		case !matches && p.matches(s):
			t.Errorf("%q does not match %q, and was said to with all of %q", pattern, full, s)
		}
	})
}

func FuzzCoversIsSound(f *testing.F) {
	f.Add("rm *", "rm -rf *", "rm -rf x")
	f.Add("* *", "rm *", "rm")
	f.Add("*", "", "")
	f.Add("a?", "a*", "ab")
	f.Fuzz(func(t *testing.T, wide, narrow, s string) {
		if strings.ContainsRune(s+wide+narrow, hole) || len(wide) > 100 || len(narrow) > 100 || !validText(s) || !validText(wide) || !validText(narrow) {
			return
		}
		p, q := compilePattern(wide, ""), compilePattern(narrow, "")
		if s = slashes(s); p.covers(&q) && q.matches(s) && !p.matches(s) {
			t.Errorf("%q is said to cover %q, but does not match %q", wide, narrow, s)
		}
	})
}

func TestOptionSpellings(t *testing.T) {
	tests := []struct {
		pattern, line string
		want          bool
	}{
		{"rm -rf *", "rm -fr x", true},
		{"rm -rf *", "rm x -r -f", true},
		{"rm -rf *", "rm --recursive --force x", true},
		{"rm -rf *", "rm --rec --fo x", true},
		{"rm -rf *", "/bin/rm -Rfv x", true},
		{"rm -rf *", "rm -r x", false},
		{"rm -rf *", "rm -r -- -f", false},
		{"rm -rf *", "rmdir -rf x", false},
		{"git push --force *", "git push origin main --force", true},
		{"git push --force *", "git -C x push -f", true},
		{"git push --force *", "git push origin", false},
		{"git push --force *", "git stash --force", false},
		{"find * -delete", "find . -name x -delete -print", true},
		{"find * -delete", "find . -depth -ls -type f", false},
		{"chmod -R 777 *", "chmod 777 -R x", true},
		{"chmod -R 777 *", "chmod 755 -R x", false},
	}
	for _, tt := range tests {
		f := compileFlags(tt.pattern)
		if f == nil {
			t.Errorf("%q names no options", tt.pattern)
			continue
		}
		if got := f.match(strings.Fields(tt.line)); got != tt.want {
			t.Errorf("%q matches %q = %t, want %t", tt.pattern, tt.line, got, tt.want)
		}
	}
	for _, none := range []string{"rm *", "*", "* -rf", "git status", "r? -f"} {
		if compileFlags(none) != nil {
			t.Errorf("%q is taken for options of a program", none)
		}
	}
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPhrasesAreReportedWithTheirLines(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // "line phrase"
	}{
		{"a.go", "package a\n\n// The jail goes on.\nvar x = \"nobody waits\" // anew\n", []string{"3 goes on", "4 nobody", "4 anew"}},
		{"a.go", "package a\n\n// Who asks waits. Somebody\n// is told.\n", []string{"3 Who asks", "3 Somebody", "4 is told"}},
		{"a_test.go", "package a\n\nvar x = \"nobody waits\" // a door\n", []string{"3 door"}},
		{"a.go", "package a\n\nvar nobody, door = 1, 2\n", nil},
		{"a.go", "package a\n\n// The caller waits for the lock of the outdoor jail.\n", nil},
		{"a.md", "# The way out\n\n```\nnobody\n```\n\n    nobody\n\nThe user `nobody` exists beside it.\n", []string{"1 way out", "9 beside"}},
		{"a.svelte", "<script>\n  let s = 'is told'; // anew\n</script>\n<p title=\"nobody here\">It goes on.</p>\n", []string{"2 is told", "2 anew", "4 goes on", "4 nobody"}},
		{"a.sh", "# restart it anew\nsay \"a door is open\" # beside\n", []string{"1 anew", "2 beside", "2 door"}},
		{"a.c", "/* whoever\n * of which */\nint door;\n", []string{"1 whoever", "2 of which"}},
		{"a.png", "nobody", nil},
	} {
		var got []string
		for _, r := range newMatcher().check(c.name, []byte(c.text)) {
			got = append(got, fmt.Sprint(r.line, " ", r.phrase))
		}
		slices.Sort(got)
		want := slices.Clone(c.want)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("check(%s, %q) = %q, want %q", c.name, c.text, got, want)
		}
	}
}

func TestLimitsCanOnlyBeLowered(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if out, err := exec.Command("git", "-C", dir, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	write("a/a.md", "It goes on.\nIt goes on.\n")
	limits := write("limits", "# The limits.\na 2\nb 1\n")
	write("b/b.md", "It goes on.\n")
	expect := func(write, want bool, contains string) {
		t.Helper()
		var out strings.Builder
		ok, err := run(&out, dir, limits, write)
		if err != nil || ok != want || !strings.Contains(out.String(), contains) {
			t.Errorf("run(write %v) = %v, %v, want %v and %q:\n%s", write, ok, err, want, contains, out.String())
		}
	}
	expect(false, true, "")
	write("a/a.md", "It goes on.\n")
	expect(false, false, "the limit of a is 2, and 1 remain")
	expect(true, true, "")
	expect(false, true, "")
	write("a/a.md", "It goes on.\nIt goes on.\n")
	expect(true, false, `a/a.md:2: "goes on": write continue`)
	expect(false, false, "a has 2 of these")
	write("a/a.md", "It continues.\n")
	write("b/b.md", "It continues.\n")
	expect(true, true, "")
	text, err := os.ReadFile(limits)
	if want := "# The limits.\n"; err != nil || string(text) != want {
		t.Errorf("limits = %q, %v, want %q", text, err, want)
	}
	write("limits", "a none\n")
	if _, err := run(&strings.Builder{}, dir, limits, false); err == nil {
		t.Error("run with a limit that is no number succeeds, want an error")
	}
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEffectsInHeads(t *testing.T) {
	for head, want := range map[string]string{
		"err := f(); err != nil":        "",
		"_, err = f(); err != nil":      "",
		"v, ok := m[k]; ok":             "",
		"v, ok := <-c; ok":              "",
		"n := len(s); n > 0":            "",
		"f(func() { <-c })":             "",
		"n = f(); n > 0":                "an assignment",
		"n += 2; n > 0":                 "an assignment",
		"s.n, err = f(); err != nil":    "an assignment",
		"n++; n > 0":                    "an increment",
		"f(); n > 0":                    "a call or receive without a result",
		"<-c; ctx.Err() != nil":         "a call or receive without a result",
		"c <- 1; n > 0":                 "a send",
		"<-c":                           "a receive",
		"v, ok := m[k]; ok && <-c && v": "a receive",
		"ok { } else if n = f(); n > 0": "an assignment",
		"func() bool { if n = f(); n > 0 {}; return true }()": "an assignment",
	} {
		src := "package p\nfunc g() {\n\tif " + head + " {\n\t}\n}\n"
		found, err := effects("p.go", []byte(src), []span{{3, 3}})
		if err != nil {
			t.Fatalf("%s: %v", head, err)
		}
		got := ""
		if len(found) > 0 {
			_, rest, _ := strings.Cut(found[0], ": ")
			got, _, _ = strings.Cut(rest, " in the head")
		}
		if got != want {
			t.Errorf("if %s: got %q, want %q", head, got, want)
		}
	}
}

// Only lines that differ from the base are reported, also of files not yet added.
func TestOnlyChangedLinesAreReported(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package p\n\nfunc f() {\n"+body+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		if _, err := git(dir, append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	const old, added = "\tif a = 1; a > 0 {\n\t}\n", "\tif b = 1; b > 0 {\n\t}\n"
	write("a.go", old)
	write("gone.go", old)
	long := old + strings.Repeat("\tx()\n", 20)
	write("moved.go", long)
	run("init", "-q")
	run("add", ".")
	run("commit", "-q", "-m", "base")
	write("a.go", "\tx()\n"+added+old+"\t// ++ @@\n")
	write("b.go", added)
	run("mv", "moved.go", "there.go")
	write("there.go", long+added)
	if err := os.Remove(filepath.Join(dir, "gone.go")); err != nil {
		t.Fatal(err)
	}
	found, err := check(dir, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	const what = ": an assignment in the head of an if; put it on a line before"
	if want := []string{"a.go:5:2" + what, "b.go:4:2" + what, "there.go:26:2" + what}; !slices.Equal(found, want) {
		t.Errorf("got %q, want %q", found, want)
	}
}

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A module is a git repository with the programs and tests of a run, as shell scripts.
type module struct {
	*testing.T
	runner
	built string
}

func newModule(t *testing.T) *module {
	t.Helper()
	t.Chdir(t.TempDir())
	m := &module{T: t, built: t.TempDir(), runner: runner{dir: t.TempDir(), results: t.TempDir(), workers: 2}}
	if out, err := exec.Command("git", "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	for _, p := range programs {
		m.write(filepath.Join(m.built, filepath.Base(p)), p)
	}
	m.write("a.test", "#!/bin/sh\necho run >> runs\necho '=== RUN   TestA'\necho '--- PASS: TestA (0.00s)'\necho PASS\n")
	m.write("testdata/input.go", "package input")
	m.write("a.go", "package a")
	m.write("docs/how-to/a.md", "text")
	m.write(".gitignore", "runs\n*.test\n")
	return m
}

func (m *module) write(name, text string) {
	m.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		m.Fatal(err)
	}
}

// tests runs the tests of a package as two runs of the program do, and returns the events, and
// how many of its processes have run so far.
func (m *module) tests(pkg string) (events string, runs int) {
	m.Helper()
	m.dir = m.TempDir()
	queue := []*job{{pkg: pkg, dir: ".", bin: "./a.test"}}
	if err := m.recall(m.Context(), m.built, queue); err != nil {
		m.Fatal(err)
	}
	var out bytes.Buffer
	s := &sink{w: bufio.NewWriter(&out), failed: map[string]bool{}, run: map[string]bool{}}
	m.work(m.Context(), m.built, queue, s)
	kept, err := filepath.Glob(filepath.Join(m.dir, "results", "*"))
	if err != nil {
		m.Fatal(err)
	}
	for _, name := range kept {
		if err := os.Rename(name, filepath.Join(m.results, filepath.Base(name))); err != nil {
			m.Fatal(err)
		}
	}
	data, err := os.ReadFile("runs")
	if err != nil {
		m.Fatal(err)
	}
	return out.String(), strings.Count(string(data), "run")
}

func TestUnchangedTestsAreNotRepeated(t *testing.T) {
	m := newModule(t)
	first, runs := m.tests("glasshouse/host")
	if runs != 1 || strings.Contains(first, "(cached)") {
		t.Fatalf("the first run had %d processes, want 1:\n%s", runs, first)
	}
	again, runs := m.tests("glasshouse/host")
	if runs != 1 || !strings.Contains(again, `ok  \tglasshouse/host\t(cached)\n`) {
		t.Errorf("after the second run %d processes had run, want 1:\n%s", runs, again)
	}
	if !strings.Contains(again, `"Action":"pass","Package":"glasshouse/host","Test":"TestA"`) {
		t.Errorf("the second run did not print the events of the first:\n%s", again)
	}
}

func TestChangesRepeatTests(t *testing.T) {
	const host, endToEnd = "glasshouse/host", "glasshouse/test"
	for _, c := range []struct {
		what   string
		pkg    string
		change func(*module)
		repeat bool
	}{
		{"the state of the host", host, func(m *module) { m.state = "new kernel" }, true},
		{"-short", host, func(m *module) { m.flags = []string{"-test.short"} }, true},
		{"a program", host, func(m *module) { m.write(filepath.Join(m.built, "glasshouse"), "new") }, true},
		{"the test", host, func(m *module) { m.write("a.test", "#!/bin/sh\necho run >> runs\necho PASS\n") }, true},
		{"Go code of testdata", host, func(m *module) { m.write("testdata/input.go", "package changed") }, true},
		{"an untracked file", host, func(m *module) { m.write("testdata/new.txt", "new") }, true},
		{"a removed file", host, func(m *module) { os.Remove("testdata/input.go") }, true},
		{"a link", host, func(m *module) { os.Symlink("a.go", "link") }, true},
		{"Go code that is not in the test", host, func(m *module) { m.write("a.go", "package changed") }, false},
		{"documentation", host, func(m *module) { m.write("docs/how-to/a.md", "new") }, false},
		{"documentation, which end-to-end tests read", endToEnd, func(m *module) { m.write("docs/how-to/a.md", "new") }, true},
		{"defaults", host, func(m *module) { m.write("docs/reference/defaults.md", "new") }, true},
	} {
		m := newModule(t)
		m.tests(c.pkg)
		c.change(m)
		if _, runs := m.tests(c.pkg); (runs == 2) != c.repeat {
			t.Errorf("%s changed: %d processes have run, want repeated = %v", c.what, runs, c.repeat)
		}
	}
}

func TestFailuresAreNotKept(t *testing.T) {
	m := newModule(t)
	m.write("a.test", "#!/bin/sh\necho run >> runs\necho '--- FAIL: TestA (0.00s)'\necho FAIL\nexit 1\n")
	for want := 1; want <= 2; want++ {
		out, runs := m.tests("glasshouse/host")
		if runs != want || !strings.Contains(out, `"Action":"fail"`) {
			t.Errorf("run %d: %d processes have run; events:\n%s", want, runs, out)
		}
	}
}

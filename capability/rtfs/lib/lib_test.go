package lib_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// Each line of the files in testdata has a program and its value, or the kind and optionally
// the message of its error.
func TestLibrary(t *testing.T) {
	files, err := filepath.Glob("testdata/*.rtfs")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	in := rtfs.New(rtfs.Config{})
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			checkLine(t, in, file, n, strings.TrimSpace(line))
		}
	}
}

func checkLine(t *testing.T, in *rtfs.Interp, file string, n int, line string) {
	t.Helper()
	src, want, isValue := strings.Cut(line, ";=> ")
	if !isValue {
		var ok bool
		if src, want, ok = strings.Cut(line, ";!> "); !ok {
			t.Errorf("%s:%d: the result is missing", file, n)
			return
		}
	}
	got, err := run(t, in, src)
	if !isValue {
		kind, message, _ := strings.Cut(want, " ")
		e, ok := errors.AsType[*form.Error](err)
		if !ok || kind != "*" && e.Kind != kind || message != "" && e.Message != message {
			t.Errorf("%s:%d: %s = %s, %v; want %s", file, n, src, form.Text(got), err, want)
		}
		return
	}
	nodes, readErr := form.Read("", []byte(want))
	if readErr != nil || len(nodes) != 1 {
		t.Errorf("%s:%d: %q is no value: %v", file, n, want, readErr)
		return
	}
	if err != nil || !form.Equal(got, nodes[0].Value()) {
		t.Errorf("%s:%d: %s = %s, %v; want %s", file, n, src, form.Text(got), err, want)
	}
}

func run(t *testing.T, in *rtfs.Interp, src string) (form.Value, error) {
	t.Helper()
	p, err := in.Compile("", []byte(src))
	if err != nil {
		return nil, err
	}
	return p.Run(t.Context())
}

func TestEveryFunctionIsTestedAndDocumented(t *testing.T) {
	var tried strings.Builder
	files, _ := filepath.Glob("testdata/*.rtfs")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tried.Write(text)
	}
	words := map[string]bool{}
	for _, w := range strings.FieldsFunc(tried.String(), func(r rune) bool { return strings.ContainsRune("()[]{} \n;", r) }) {
		words[w] = true
	}
	seen := map[string]bool{}
	for _, b := range lib.All() {
		switch {
		case seen[b.Name]:
			t.Errorf("duplicate %s", b.Name)
		case !words[b.Name]:
			t.Errorf("%s is not tested in testdata", b.Name)
		case b.Doc == "" || !strings.HasSuffix(b.Doc, ".") || !strings.HasPrefix(b.Args, "["):
			t.Errorf("%s is described as %s %q", b.Name, b.Args, b.Doc)
		}
		seen[b.Name] = true
		if _, host := lib.HostNames[b.Name]; host {
			t.Errorf("%s belongs to the library and to the host", b.Name)
		}
	}
}

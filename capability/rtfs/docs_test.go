package rtfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
	"glasshouse/capability/schema"
)

// printer is the host of the reference, which only prints.
type printer struct{}

func (printer) Call(_ context.Context, id string, _ form.Value) (form.Value, error) {
	if id == "ccos.io.println" {
		return nil, nil
	}
	return nil, form.Errorf("UnknownCapability", "there is no %s", id)
}

func reference(t *testing.T) (text string, in *rtfs.Interp) {
	t.Helper()
	b, err := os.ReadFile("../../docs/reference/rtfs.md")
	if err != nil {
		t.Fatal(err)
	}
	check := func(n *form.Node) (func(form.Value) error, error) {
		typ, err := schema.Compile(n)
		if err != nil {
			return nil, err
		}
		return typ.Check, nil
	}
	return string(b), rtfs.New(rtfs.Config{Host: printer{}, Check: check, Limits: rtfs.Limits{Steps: 200_000}})
}

// example runs src and compares the result with want: a value, or an error kind after !.
func example(t *testing.T, s *rtfs.Session, src, want string) {
	t.Helper()
	v, err := s.Eval(t.Context(), "", []byte(src))
	if kind, fails := strings.CutPrefix(want, "!"); fails {
		if e, ok := errors.AsType[*form.Error](err); !ok || e.Kind != kind {
			t.Errorf("%s\nis %s, %v; the reference has %s", src, form.Text(v), err, kind)
		}
		return
	}
	nodes, readErr := form.Read("", []byte(want))
	if readErr != nil || len(nodes) != 1 {
		t.Errorf("%s\nthe reference has %q, which is not a value: %v", src, want, readErr)
		return
	}
	if err != nil || !form.Equal(v, nodes[0].Value()) {
		t.Errorf("%s\nis %s, %v; the reference has %s", src, form.Text(v), err, want)
	}
}

func TestReferenceExamples(t *testing.T) {
	text, in := reference(t)
	tried := 0
	for _, block := range strings.Split(text, "```clojure\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		s, src := in.Session(), ""
		for line := range strings.Lines(block) {
			src += line
			if _, want, ok := strings.Cut(line, ";=> "); ok {
				example(t, s, src, strings.TrimSpace(want))
			} else if _, want, ok := strings.Cut(line, ";!> "); ok {
				example(t, s, src, "!"+strings.TrimSpace(want))
			} else {
				continue
			}
			src = ""
			tried++
		}
		if strings.TrimSpace(src) != "" {
			t.Errorf("no result is given for\n%s", src)
		}
	}
	if tried < 50 {
		t.Errorf("only %d examples were found", tried)
	}
}

var (
	row   = regexp.MustCompile("(?m)^\\| `\\(([^|]*)\\)` \\| ([^|]*) \\| `([^|]*)` (?:→ `([^|]*)`|fails: (\\w+)) \\|$")
	named = regexp.MustCompile("(?m)^\\| `([^ `]*)` \\| `(ccos[^`]*)` \\|$")
)

func TestReferenceListsEveryFunction(t *testing.T) {
	text, in := reference(t)
	described := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		described[m[1]] = m[2]
		want := m[4]
		if m[5] != "" {
			want = "!" + m[5]
		}
		example(t, in.Session(), m[3], want)
	}
	for _, b := range lib.All() {
		call := strings.TrimSpace(b.Name + " " + strings.Trim(b.Args, "[]"))
		if described[call] != b.Doc {
			t.Errorf("the reference describes (%s) as %q, the library as %q", call, described[call], b.Doc)
		}
		delete(described, call)
	}
	for call := range described {
		t.Errorf("the reference has (%s), but there is no such function", call)
	}
}

func TestReferenceListsEveryHostName(t *testing.T) {
	text, _ := reference(t)
	got := map[string]string{}
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		got[m[1]] = m[2]
	}
	if fmt.Sprint(got) != fmt.Sprint(lib.HostNames) {
		t.Errorf("the reference has %v, want %v", got, lib.HostNames)
	}
}

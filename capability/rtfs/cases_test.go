package rtfs_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// types checks annotations with package schema, as the daemon does.
func types(n *form.Node) (func(form.Value) error, error) {
	t, err := schema.Compile(n)
	if err != nil {
		return nil, err
	}
	return t.Check, nil
}

// quiet is a host that ignores output.
type quiet struct{}

func (quiet) Call(_ context.Context, id string, _ form.Value) (form.Value, error) {
	if id == "ccos.io.println" {
		return nil, nil
	}
	return nil, form.Errorf("UnknownCapability", "%s", id)
}

func run(t *testing.T, src string) (form.Value, error) {
	t.Helper()
	p, err := rtfs.New(rtfs.Config{Host: quiet{}, Check: types}).Compile("t.rtfs", []byte(src))
	if err != nil {
		return nil, err
	}
	return p.Run(t.Context())
}

func read(t *testing.T, text string) form.Value {
	t.Helper()
	nodes, err := form.Read("", []byte(text))
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%q is %d nodes, %v", text, len(nodes), err)
	}
	return nodes[0].Value()
}

func kindOf(err error) string {
	e, ok := errors.AsType[*form.Error](err)
	if !ok {
		return ""
	}
	return e.Kind
}

// sameUnordered compares two sequences as multisets.
func sameUnordered(a, b form.Value) bool {
	x, y := elements(a), elements(b)
	if len(x) != len(y) {
		return false
	}
	for _, v := range x {
		i := slices.IndexFunc(y, func(w form.Value) bool { return form.Equal(v, w) })
		if i < 0 {
			return false
		}
		y = slices.Delete(slices.Clone(y), i, i+1)
	}
	return true
}

func elements(v form.Value) []form.Value {
	switch v := v.(type) {
	case form.Vector:
		return v
	case form.List:
		return v
	}
	return nil
}

func TestProbes(t *testing.T) { holds(t, "testdata/probes.jsonl") }

// holds runs the cases of a file.
func holds(t *testing.T, name string) {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var c struct {
			ID, Src, Expect string
			ExpectError     string `json:"expect_error"`
			Unordered       bool
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		v, err := run(t, c.Src)
		if c.ExpectError != "" {
			if err == nil || c.ExpectError != "*" && kindOf(err) != c.ExpectError {
				t.Errorf("%s: %s\n= %s, %v, want %s", c.ID, c.Src, form.Text(v), err, c.ExpectError)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %s\nfails with %v, want %s", c.ID, c.Src, err, c.Expect)
			continue
		}
		want := read(t, c.Expect)
		if !form.Equal(v, want) && !(c.Unordered && sameUnordered(v, want)) {
			t.Errorf("%s: %s\n= %s, want %s", c.ID, c.Src, form.Text(v), c.Expect)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

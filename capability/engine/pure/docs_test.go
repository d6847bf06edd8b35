package pure_test

import (
	"os"
	"regexp"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/pure"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

func TestManifestReferenceExample(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/reference/manifest.md")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile("(?s)```clojure\n(\\(capability \"chat.summarize\".*?)```").FindSubmatch(doc)
	if text == nil {
		t.Fatal("docs/reference/manifest.md has no chat.summarize")
	}
	all, err := manifest.Read("manifest.md", text[1])
	if err != nil {
		t.Fatal(err)
	}
	c := &engine.Installed{Capability: all[0], Digest: "d"}
	input, err := c.Input.FromJSON([]byte(`{"messages":["hello","goodbye"]}`))
	if err != nil {
		t.Fatal(err)
	}
	e := pure.New()
	defer e.Close()
	got, err := e.Call(t.Context(), &engine.Call{Capability: c, Input: input})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Output.Check(got.Output); err != nil {
		t.Errorf("the output %s is not of the declared type: %v", form.Text(got.Output), err)
	}
	if text, err := schema.ToJSON(got.Output); string(text) != `{"messages":2}` || err != nil {
		t.Errorf("got %s, %v, want {\"messages\":2}", text, err)
	}
}

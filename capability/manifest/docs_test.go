package manifest_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"glasshouse/capability/manifest"
)

func TestReferenceExamplesAreValid(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/manifest.md")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range regexp.MustCompile("(?s)```(?:clojure|json)\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		all, err := manifest.Read("manifest.md", []byte(m[1]))
		if err != nil {
			t.Errorf("%s\n%v", m[1], err)
		}
		for _, c := range all {
			ids = append(ids, c.ID)
		}
	}
	if got, want := strings.Join(ids, " "), "notes.publish notes.count chat.summarize places.details"; got != want {
		t.Errorf("the examples are %s, want %s", got, want)
	}
}

// The reader lists the valid keys in its error for an unknown key.
func TestReferenceListsEveryKey(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/manifest.md")
	if err != nil {
		t.Fatal(err)
	}
	const odd = `:qqqqqqqqqqqqqqqq 1`
	for prefix, text := range map[string]string{
		"":              `(capability "a" ` + odd + `)`,
		"runtime.":      `(capability "a" :runtime {` + odd + `})`,
		"filesystem.":   `(capability "a" :filesystem {` + odd + `})`,
		"network.":      `(capability "a" :network {` + odd + `})`,
		"resources.":    `(capability "a" :resources {` + odd + `})`,
		"approval.":     `(capability "a" :approval {` + odd + `})`,
		"data-classes.": `(capability "a" :data-classes {` + odd + `})`,
	} {
		_, err := manifest.Read("x", []byte(text))
		m := regexp.MustCompile(`unknown key; valid: (.*)`).FindStringSubmatch(err.Error())
		if m == nil {
			t.Fatalf("Read(%s) = %v, want the keys", text, err)
		}
		for key := range strings.SplitSeq(m[1], ", ") {
			if !strings.Contains(string(doc), "| `"+prefix+key+"` |") {
				t.Errorf("the reference has no row for %s%s", prefix, key)
			}
		}
	}
	for _, name := range append(manifest.Dimensions, manifest.Effects...) {
		if !strings.Contains(string(doc), name+"`") {
			t.Errorf("the reference does not say %s", name)
		}
	}
}

package skill_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"glasshouse/capability/manifest"
	"glasshouse/capability/skill"
	"glasshouse/fault"
)

func local(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("testdata/skill.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func read(t *testing.T, text string) *skill.Skill {
	t.Helper()
	s, err := skill.Read("skill.yaml", []byte(text))
	if err != nil {
		t.Fatalf("Read:\n%v", err)
	}
	return s
}

func TestReadPlacesSkill(t *testing.T) {
	no := false
	want := &skill.Skill{
		Name:         "local-places",
		Description:  "Search for places (restaurants, cafes, etc.) nearby",
		Version:      "1.0.0",
		Capabilities: []string{"places.search", "places.resolve", "places.details"},
		Shown: skill.Shown{
			Effects: []string{"network"}, Secrets: []string{"GOOGLE_PLACES_API_KEY"},
			Input: []manifest.Label{"public"}, Output: []manifest.Label{"public"},
			Tier: skill.Standard, PerUse: &no,
		},
		Display: skill.Display{Emoji: "┐", Category: "Location"},
	}
	got := read(t, local(t))
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(skill.Skill{}, "Body", "Source")); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
	if !strings.HasPrefix(got.Body, "# ┐ Local Places\n") || !strings.HasSuffix(got.Body, "4. Present top 5 results with ratings") {
		t.Errorf("Body = %.60q…, want the Markdown", got.Body)
	}
	if got.Source != local(t) {
		t.Error("Source is not the document")
	}
}

func TestGlasshouseBlockEqualsCCOS(t *testing.T) {
	a, b := read(t, local(t)), read(t, strings.Replace(local(t), "\nccos:", "\nglasshouse:", 1))
	if d := cmp.Diff(a, b, cmpopts.IgnoreFields(skill.Skill{}, "Source")); d != "" {
		t.Errorf("glasshouse differs from ccos:\n%s", d)
	}
}

func TestReadYAMLOnly(t *testing.T) {
	for _, text := range []string{"name: a\ndescription: b\n", "---\nname: a\ndescription: b\n", "\uFEFF---\r\nname: a\r\ndescription: b\r\n---\r\n"} {
		if s := read(t, text); s.Name != "a" || s.Body != "" || s.Version != "0.0.0" {
			t.Errorf("Read(%q) = %+v", text, s)
		}
	}
}

func TestReadInvalidSkill(t *testing.T) {
	front := func(yaml string) string { return "---\nname: a\ndescription: b\n" + yaml + "\n---\nText\n" }
	for _, c := range []struct{ text, want string }{
		{"# Title\n", "does not begin with ---"},
		{"---\nname: a\n", "is not closed"},
		{"---\n---\n", "the front matter is empty"},
		{"---\n- a\n---\n", "must be a mapping, not a list"},
		{"---\nname: [\n---\n", "not YAML"},
		{"---\na: \x00\n---\n", "not a text"},
		{"---\na: \xff\n---\n", "not valid UTF-8"},
		{"---\nversion: \"1.0.0\"\n---\n", "name: is required"},
		{"---\nname: a\n---\n", "description: is required"},
		{"---\nname: a\ndescription: b\n---\nText\nmo\u202ere\n", "SKILL.md:6:3: invisible character U+202E"},
		{front("nmae: x"), "nmae: unknown key; did you mean name?"},
		{front("effects: []"), "effects: unknown key; valid: ccos, description, display, glasshouse, name, version"},
		{front("allowed-tools: Bash"), "use glasshouse skill import"},
		{front("name: b"), "duplicate key"},
		{front("1: b"), "a key must be a string, not the number 1"},
		{front("version: 1.0"), "version: must be a string, not the number 1.0: put it in quotes"},
		{front(`version: "1.0"`), `version: "1.0" is not a semantic version`},
		{"---\nname: Local Places\ndescription: b\n---\n", `name: "Local Places" is not a valid skill name`},
		{"---\nname: a\ndescription: ''\n---\n", "description: must not be empty"},
		{"---\nname: a\ndescription: " + strings.Repeat("x", 1025) + "\n---\n", "description: longer than 1024 characters"},
		{front("ccos: {}\nglasshouse: {}"), "duplicate block"},
		{front("ccos: 5"), "ccos: must be a mapping, not the number 5"},
		{front("ccos: {capability: []}"), "ccos.capability: unknown key; did you mean capabilities?"},
		{front("ccos: {data-classes: {}}"), "ccos.data-classes: unknown key"},
		{front("ccos: {capabilities: places.search}"), `ccos.capabilities: must be a list, not "places.search"`},
		{front("ccos: {capabilities: [Places]}"), `ccos.capabilities[0]: "Places" is not a valid id`},
		{front("ccos: {capabilities: [a.b, a.b]}"), `ccos.capabilities[1]: duplicate element a.b`},
		{front("ccos: {effects: [netwrok]}"), `ccos.effects[0]: "netwrok" is not a valid value; did you mean network?`},
		{front("ccos: {secrets: [a/b]}"), `ccos.secrets[0]: "a/b" is not a valid secret name`},
		{front("ccos: {data_classes: {input: [private]}}"), `"private" is not a data class`},
		{front("ccos: {approval: {tier: preapproved}}"), `ccos.approval.tier: "preapproved" is not a valid value; valid: informational, read-only, standard, elevated`},
		{front("ccos: {approval: {requires_per_use: maybe}}"), `ccos.approval.requires_per_use: must be true or false`},
		{front("ccos: &a {}\nglasshouse: *a"), "duplicate block"},
		{front("x: &a b\nccos: *a"), "ccos: must be a mapping, not an alias, which is not supported"},
		{front("display: {emoji: " + strings.Repeat("x", 17) + "}"), "display.emoji: must be one line of at most 16 characters"},
		{front("display: {color: red}"), "display.color: unknown key"},
	} {
		_, err := skill.Read("SKILL.md", []byte(c.text))
		switch {
		case err == nil:
			t.Errorf("Read(%q) = nil, want %q", c.text, c.want)
		case !strings.Contains(err.Error(), c.want):
			t.Errorf("Read(%q) =\n%v\nwant %q", c.text, err, c.want)
		case fault.KindOf(err) != fault.Invalid:
			t.Errorf("Read(%q) is %q, want invalid", c.text, fault.KindOf(err))
		}
	}
}

func TestReadProblemsHavePositions(t *testing.T) {
	_, err := skill.Read("SKILL.md", []byte("---\nname: a\ndescription: b\nccos:\n  efects: []\n  capabilities: [ä]\n---\n"))
	want := `skill.Read: ccos.efects: invalid: SKILL.md:5:3: ccos.efects: unknown key; did you mean effects?
  5 |   efects: []
    |   ^
SKILL.md:6:18: ccos.capabilities[0]: "ä" is not a valid id: use lower-case words separated by dots, such as places.search, with - or _ within words
  6 |   capabilities: [ä]
    |                  ^`
	if err == nil || err.Error() != want {
		t.Errorf("Read =\n%v\nwant\n%s", err, want)
	}
	_, err = skill.Read("SKILL.md", []byte("---\nname: a\nb: [\n---\n"))
	if err == nil || !strings.Contains(err.Error(), "SKILL.md:3:1: not YAML") && !strings.Contains(err.Error(), "SKILL.md:4:1: not YAML") {
		t.Errorf("Read = %v, want the line in the document", err)
	}
}

func TestReadTooLarge(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", skill.MaxText+1), "---\nname: " + strings.Repeat("x", 65<<10) + "\n---\n"} {
		if _, err := skill.Read("SKILL.md", []byte(text)); fault.KindOf(err) != fault.TooLarge {
			t.Errorf("Read of %d bytes = %v, want too large", len(text), err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("---\nname: a\ndescription: b\nccos:\n  capabilities: [a.b]\n  effects: [network]\n---\n# A\n"))
	f.Add([]byte("---\nname: &a [*a]\n? {x: y}\n: z\n---\n"))
	f.Add([]byte("\uFEFF---\r\nname: a\r\n---\r\n"))
	f.Add([]byte("---\na: !!binary x\n<<: {a: b}\n---"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"skill.yaml", "SKILL.md"} {
			s, err := skill.Read(name, text)
			if err != nil {
				if err.Error() == "" || fault.KindOf(err) == "" {
					t.Errorf("Read = %q of no kind", err)
				}
				continue
			}
			if s.Name == "" || s.Description == "" {
				t.Errorf("Read = %+v", s)
			}
		}
	})
}

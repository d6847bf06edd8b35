package skill_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"glasshouse/fault"
	"glasshouse/manifest"
	"glasshouse/skill"
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

func TestTheSkillOfPlacesIsReadAsItIsPrinted(t *testing.T) {
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

func TestTheOtherNameOfTheBlockMeansTheSame(t *testing.T) {
	a, b := read(t, local(t)), read(t, strings.Replace(local(t), "\nccos:", "\nglasshouse:", 1))
	if d := cmp.Diff(a, b, cmpopts.IgnoreFields(skill.Skill{}, "Source")); d != "" {
		t.Errorf("glasshouse differs from ccos:\n%s", d)
	}
}

func TestADocumentMayBeYAMLAlone(t *testing.T) {
	for _, text := range []string{"name: a\ndescription: b\n", "---\nname: a\ndescription: b\n", "\uFEFF---\r\nname: a\r\ndescription: b\r\n---\r\n"} {
		if s := read(t, text); s.Name != "a" || s.Body != "" || s.Version != "0.0.0" {
			t.Errorf("Read(%q) = %+v", text, s)
		}
	}
}

func TestWhatIsWrongWithASkillIsSaid(t *testing.T) {
	front := func(yaml string) string { return "---\nname: a\ndescription: b\n" + yaml + "\n---\nText\n" }
	for _, c := range []struct{ text, want string }{
		{"# Title\n", "it does not begin with a line of ---"},
		{"---\nname: a\n", "does not end: a line of --- is missing"},
		{"---\n---\n", "there is nothing between the lines of ---"},
		{"---\n- a\n---\n", "it is a mapping of keys to values, not a list"},
		{"---\nname: [\n---\n", "it is not YAML"},
		{"---\na: \x00\n---\n", "it is not a text"},
		{"---\na: \xff\n---\n", "it is not a text in UTF-8"},
		{"---\nversion: \"1.0.0\"\n---\n", "name: it is missing"},
		{"---\nname: a\n---\n", "description: it is missing"},
		{"---\nname: a\ndescription: b\n---\nText\nmo\u202ere\n", "SKILL.md:6:3: this character cannot be seen: U+202E"},
		{front("nmae: x"), "nmae: unknown key; did you mean name?"},
		{front("effects: []"), "effects: unknown key; there are ccos, description, display, glasshouse, name, version"},
		{front("allowed-tools: Bash"), "it is of skills of another kind, which are imported"},
		{front("name: b"), "duplicate key"},
		{front("1: b"), "a key is a word, not the number 1"},
		{front("version: 1.0"), "version: it is a string, not the number 1.0: put it in quotes"},
		{front(`version: "1.0"`), `version: "1.0" is not a version`},
		{"---\nname: Local Places\ndescription: b\n---\n", `name: "Local Places" is not the name of a skill`},
		{"---\nname: a\ndescription: ''\n---\n", "description: it is empty"},
		{"---\nname: a\ndescription: " + strings.Repeat("x", 1025) + "\n---\n", "description: it is longer than 1024 letters"},
		{front("ccos: {}\nglasshouse: {}"), "it is said twice, as ccos and as glasshouse"},
		{front("ccos: 5"), "ccos: it is a mapping of keys to values, not the number 5"},
		{front("ccos: {capability: []}"), "ccos.capability: unknown key; did you mean capabilities?"},
		{front("ccos: {data-classes: {}}"), "ccos.data-classes: unknown key"},
		{front("ccos: {capabilities: places.search}"), `ccos.capabilities: it is a list, not "places.search"`},
		{front("ccos: {capabilities: [Places]}"), `ccos.capabilities[0]: "Places" is not an id`},
		{front("ccos: {capabilities: [a.b, a.b]}"), `ccos.capabilities[1]: duplicate element a.b`},
		{front("ccos: {effects: [netwrok]}"), `ccos.effects[0]: "netwrok" is not among what it may be; did you mean network?`},
		{front("ccos: {secrets: [a/b]}"), `ccos.secrets[0]: "a/b" is not the name of a secret`},
		{front("ccos: {data_classes: {input: [private]}}"), `"private" is no class of data`},
		{front("ccos: {approval: {tier: preapproved}}"), `ccos.approval.tier: "preapproved" is not among what it may be; there are informational, read-only, standard, elevated`},
		{front("ccos: {approval: {requires_per_use: maybe}}"), `ccos.approval.requires_per_use: it is true or false`},
		{front("ccos: &a {}\nglasshouse: *a"), "it is said twice"},
		{front("x: &a b\nccos: *a"), "ccos: it is a mapping of keys to values, not an alias, which is not read here"},
		{front("display: {emoji: " + strings.Repeat("x", 17) + "}"), "display.emoji: it is one line of at most 16 letters"},
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

func TestAllThatIsWrongWithASkillIsToldWithItsPlace(t *testing.T) {
	_, err := skill.Read("SKILL.md", []byte("---\nname: a\ndescription: b\nccos:\n  efects: []\n  capabilities: [ä]\n---\n"))
	want := `skill.Read: ccos.efects: invalid: SKILL.md:5:3: ccos.efects: unknown key; did you mean effects?
  5 |   efects: []
    |   ^
SKILL.md:6:18: ccos.capabilities[0]: "ä" is not an id: words in lower case with dots between, such as places.search, and - or _ within words
  6 |   capabilities: [ä]
    |                  ^`
	if err == nil || err.Error() != want {
		t.Errorf("Read =\n%v\nwant\n%s", err, want)
	}
	_, err = skill.Read("SKILL.md", []byte("---\nname: a\nb: [\n---\n"))
	if err == nil || !strings.Contains(err.Error(), "SKILL.md:3:1: it is not YAML") && !strings.Contains(err.Error(), "SKILL.md:4:1: it is not YAML") {
		t.Errorf("Read = %v, want the line in the document", err)
	}
}

func TestADocumentThatIsTooLargeIsNotRead(t *testing.T) {
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

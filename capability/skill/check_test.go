package skill_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/manifest"
	"glasshouse/capability/skill"
	"glasshouse/fault"
)

// A shelf maps ids to installed capabilities.
type shelf map[string]*manifest.Capability

func shelve(t *testing.T, manifests ...string) shelf {
	t.Helper()
	s := shelf{}
	for _, text := range manifests {
		all, err := manifest.Read("test.rtfs", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			s[c.ID] = c
		}
	}
	return s
}

func (s shelf) approved(id string) (*manifest.Capability, bool) { return s[id], true }

// jailed returns the manifest of a capability in a jail, with further keys.
func jailed(id, more string) string {
	return fmt.Sprintf(`(capability %q :runtime {:type :container :image "x" :entrypoint ["x"]} %s)`, id, more)
}

const places = `:effects [:network] :network {:allowed-hosts ["places.example"]} :secrets [:GOOGLE_PLACES_API_KEY]`

// of returns a skill that names capabilities, with further keys in its block.
func of(t *testing.T, ids, more string) *skill.Skill {
	t.Helper()
	return read(t, "---\nname: s\ndescription: d\nglasshouse:\n  capabilities: ["+ids+"]\n  "+more+"\n---\nText\n")
}

func TestCheckPlacesSkill(t *testing.T) {
	s := shelve(t, jailed("places.search", places), jailed("places.resolve", places), jailed("places.details", places))
	got, err := read(t, local(t)).Check(s.approved)
	if err != nil {
		t.Fatal(err)
	}
	want := &skill.Checked{
		Capabilities: []*manifest.Capability{s["places.search"], s["places.resolve"], s["places.details"]},
		Tier:         skill.Standard, Effects: []string{"network"}, Secrets: []string{"GOOGLE_PLACES_API_KEY"},
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b *manifest.Capability) bool { return a == b })); d != "" {
		t.Errorf("Check (-want +got):\n%s", d)
	}
}

func TestCheckListsUnknownAndUnapprovedCapabilities(t *testing.T) {
	s := shelve(t, jailed("a.known", ""), jailed("a.asked", ""), jailed("b.asked", ""))
	_, err := of(t, "a.known, a.missing, a.asked, b.missing, b.asked", "effects: [network]").Check(func(id string) (*manifest.Capability, bool) {
		return s[id], id == "a.known"
	})
	if fault.KindOf(err) != fault.Denied {
		t.Fatalf("Check = %v, want denied", err)
	}
	if want := "the skill names capabilities that are unknown: a.missing, b.missing; not approved: a.asked, b.asked"; !strings.Contains(err.Error(), want) {
		t.Errorf("Check = %v, want %q", err, want)
	}
	if got, want := fault.RemedyOf(err), "install a.missing, b.missing; have a.asked, b.asked approved"; got != want {
		t.Errorf("RemedyOf = %q, want %q", got, want)
	}
}

func TestCheckTier(t *testing.T) {
	s := shelve(t,
		`(capability "pure" :implementation (fn [x] x))`,
		jailed("quiet", ""), jailed("net", `:effects [:network]`), jailed("keys", `:secrets [:K]`), jailed("state", `:effects [:state]`), jailed("files", `:effects [:fs]`),
		jailed("admin", `:approval {:tier :elevated}`), jailed("lowers", `:data-classes {:input [:pii] :output [:public]}`),
		`(capability "host" :runtime {:type :native :entrypoint ["x"]})`,
	)
	for ids, want := range map[string]skill.Tier{
		"": skill.Informational, "pure": skill.ReadOnly, "pure, quiet": skill.ReadOnly, "net": skill.Standard, "keys": skill.Standard, "quiet, net": skill.Standard,
		"state": skill.Elevated, "files": skill.Elevated, "net, admin": skill.Elevated, "lowers": skill.Elevated, "host": skill.Elevated,
	} {
		got, err := of(t, ids, "").Check(s.approved)
		if err != nil || got.Tier != want {
			t.Errorf("[%s] is %v, %v, want %s", ids, got, err, want)
		}
		for _, declared := range skill.Tiers {
			checked, err := of(t, ids, "approval: {tier: "+string(declared)+"}").Check(s.approved)
			lower := index(declared) < index(want)
			switch {
			case lower && (fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), fmt.Sprintf("the document shows the tier %s, but its capabilities require %s", declared, want))):
				t.Errorf("[%s] as %s: %v, want a refusal", ids, declared, err)
			case !lower && (err != nil || checked.Tier != declared):
				t.Errorf("[%s] as %s: %v, %v, want that tier", ids, declared, checked, err)
			}
		}
	}
}

func index(t skill.Tier) int {
	for i, other := range skill.Tiers {
		if t == other {
			return i
		}
	}
	return -1
}

func TestCheckMismatches(t *testing.T) {
	s := shelve(t, jailed("p", places+` :data-classes {:input [:pii.chat]}`), jailed("q", ``), jailed("asks", `:approval {:requires-per-use true}`))
	for _, c := range []struct{ ids, more, want string }{
		{"p", "effects: []", "the effects that the document shows do not include network"},
		{"p", "effects: [network, state]", "the document shows effects that its capabilities do not have: state"},
		{"p", "secrets: []", "the secrets that the document shows do not include GOOGLE_PLACES_API_KEY"},
		{"q", "secrets: [OTHER]", "the document shows secrets that its capabilities do not have: OTHER"},
		{"p", "data_classes: {input: [public]}", "the input data that the document shows does not include pii.chat, which p receives"},
		{"p", "data_classes: {output: [redacted]}", "the output data that the document shows does not include pii.chat, which p returns"},
		{"asks", "approval: {requires_per_use: false}", "the document shows no approval for each use, but asks requires it"},
	} {
		_, err := of(t, c.ids, c.more).Check(s.approved)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Check = %v, want %q", c.more, err, c.want)
		}
	}
	for _, more := range []string{"", "effects: [network]", "data_classes: {input: [pii], output: [pii.chat]}", "approval: {requires_per_use: true}"} {
		if _, err := of(t, "p, q", more).Check(s.approved); err != nil {
			t.Errorf("%s: Check = %v, want nil", more, err)
		}
	}
	k, err := of(t, "asks", "").Check(s.approved)
	if err != nil || !k.PerUse {
		t.Errorf("Check = %+v, %v, want approval for each use", k, err)
	}
}

func TestRender(t *testing.T) {
	s := shelve(t,
		jailed("places.search", `:description "Finds\n## places" :input-schema [:map [:query :string] [:n {:optional true} :int]]`),
		jailed("math.square_root", `:input-schema :float`), jailed("clock.now", ``))
	r, err := skill.Render(of(t, "places.search, math.square_root, clock.now", ""), []*manifest.Capability{s["places.search"], s["math.square_root"], s["clock.now"]})
	if err != nil {
		t.Fatal(err)
	}
	want := "Text\n\n## Tools of this skill\n\n- `places.search` is the tool `places__search`: Finds ## places\n" +
		"- `math.square_root` is the tool `math__square_root`: math.square_root\n- `clock.now` is the tool `clock__now`: clock.now\n"
	if d := cmp.Diff(want, r.Text); d != "" {
		t.Errorf("Text (-want +got):\n%s", d)
	}

	var openai struct {
		Type     string
		Function struct {
			Name, Description string
			Parameters        struct {
				Type       string
				Properties map[string]struct{ Type string }
				Required   []string
			}
		}
	}
	decode(t, &openai)(r.Tools[0].OpenAI())
	if openai.Type != "function" || openai.Function.Name != "places__search" || openai.Function.Parameters.Type != "object" ||
		openai.Function.Parameters.Properties["n"].Type != "integer" || fmt.Sprint(openai.Function.Parameters.Required) != "[query]" {
		t.Errorf("OpenAI = %+v", openai)
	}
	var anthropic struct {
		Name        string
		Description string
		InputSchema struct {
			Type       string
			Properties map[string]struct{ Type string }
		} `json:"input_schema"`
	}
	decode(t, &anthropic)(r.Tools[1].Anthropic())
	if anthropic.Name != "math__square_root" || anthropic.InputSchema.Type != "object" || anthropic.InputSchema.Properties["input"].Type != "number" {
		t.Errorf("Anthropic = %+v, want the number inside of an object", anthropic)
	}
}

func decode(t *testing.T, v any) func(b json.RawMessage, err error) {
	return func(b json.RawMessage, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	}
}

func TestToolArguments(t *testing.T) {
	s := shelve(t, jailed("a", `:input-schema [:map [:q :string]]`), jailed("b", `:input-schema [:vector :int]`), jailed("c", ``))
	for _, c := range []struct{ id, given, want string }{
		{"a", `{"q":"x"}`, `{"q":"x"}`}, {"a", ``, `{}`}, {"b", `{"input":[1,2]}`, `[1,2]`}, {"c", ``, `{}`},
	} {
		tool, err := skill.ToolOf(s[c.id])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tool.Arguments(json.RawMessage(c.given)); err != nil || string(got) != c.want {
			t.Errorf("%s: Arguments(%s) = %s, %v, want %s", c.id, c.given, got, err, c.want)
		}
	}
	b, _ := skill.ToolOf(s["b"])
	for _, given := range []string{``, `{}`, `[1]`, `{"x":1}`} {
		if got, err := b.Arguments(json.RawMessage(given)); err == nil {
			t.Errorf("Arguments(%s) = %s, want an error", given, got)
		}
	}
}

func TestToolNames(t *testing.T) {
	for _, id := range []string{"a", "places.search", "a.b.c", "a_b.c-d", "x1.2y"} {
		tool := skill.ToolName(id)
		if got, err := skill.CapabilityID(tool); err != nil || got != id || strings.Contains(tool, ".") {
			t.Errorf("%s → %s → %s, %v", id, tool, got, err)
		}
	}
	for _, tool := range []string{"", "a___b", "places.search", "__a", "a__", "Bash"} {
		if id, err := skill.CapabilityID(tool); err == nil {
			t.Errorf("CapabilityID(%q) = %q, want an error", tool, id)
		}
	}
}

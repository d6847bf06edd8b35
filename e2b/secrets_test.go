package e2b

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/policy/egress"
)

func text(s string) egress.Part   { return egress.Part{Text: s} }
func filled(s string) egress.Part { return egress.Part{Secret: s} }

func TestParseHeader(t *testing.T) {
	for value, want := range map[string][]egress.Part{
		"":                                      nil,
		"Bearer token":                          {text("Bearer token")},
		"$ { ${ ${x} {e2b} e2b":                 {text("$ { ${ ${x} {e2b} e2b")},
		"${e2b.secrets.key}":                    {filled("key")},
		"Bearer ${e2b.secrets.openai-api_key1}": {text("Bearer "), filled("openai-api_key1")},
		"${e2b.secrets.a}:${e2b.secrets.b}!":    {filled("a"), text(":"), filled("b"), text("!")},
		"${e2b.secrets. API-Key }${e2b.secrets.A}":        {filled("api-key"), filled("a")},
		"${e2b.secrets.a}}":                               {filled("a"), text("}")},
		"${e2b.secrets.secret_key}":                       {filled("secret_key")}, // the prefix sec_ is reserved for ids
		"${e2b.secrets." + strings.Repeat("a", 128) + "}": {filled(strings.Repeat("a", 128))},
	} {
		got, err := parseHeader(value)
		if err != nil {
			t.Errorf("%q: %v", value, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", value, d)
		}
	}
	for _, value := range []string{
		"${e2b.secrets.", "${e2b.secrets.a", "${e2b.secrets.}", "${e2b.secrets. }", "${e2b.secrets.bad name}", "${e2b.secrets.a.b}", "${e2b.secrets.ä}",
		"${e2b.secrets.sec_a}", "${e2b.secrets. SEC_a}", "${e2b.secrets.\u212aey}", "${e2b.secrets." + strings.Repeat("a", 129) + "}",
		"${e2b.secrets.${e2b.secrets.a}}", "${e2b.secrets.${e2b.identity.tokens.a}}", "${e2b.identity.tokens.aws}", "${e2b.identity.tokens.${e2b.secrets.a}}",
		"a ${e2b.secrets.a} ${e2b.identity.tokens.aws}", "${e2b.other}", "${e2b.${e2b.secrets.a}",
	} {
		if got, err := parseHeader(value); err == nil {
			t.Errorf("%q is %v", value, got)
		}
		n := Network{Rules: map[string][]Rule{"a.example": {{&Transform{map[string]string{"X": value}}}}}}
		if err := n.check(); fault.KindOf(err) != fault.Invalid {
			t.Errorf("rules with %q: %v", value, err)
		}
	}
}

func FuzzPlaceholders(f *testing.F) {
	for _, s := range []string{"", "Bearer ${e2b.secrets.key}", "${e2b.secrets.a}${e2b.secrets. B }}", "${e2b.secrets.${e2b.secrets.a}}", "${e2b.", "$${e2b.secrets.a}", "${e2b.secrets.\u212a}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		parts, err := parseHeader(value)
		if err != nil {
			return
		}
		// The parts contain the whole value, and no text contains a placeholder.
		var again strings.Builder
		for i, p := range parts {
			switch {
			case (p.Text == "") == (p.Secret == ""):
				t.Fatalf("%q has the part %+v", value, p)
			case p.Text != "" && strings.Contains(p.Text, marker):
				t.Fatalf("%q has the text %q", value, p.Text)
			case p.Text != "" && i > 0 && parts[i-1].Text != "":
				t.Fatalf("%q has two adjacent texts", value)
			case p.Secret != "":
				if name, ok := canonicalName(p.Secret); !ok || name != p.Secret {
					t.Fatalf("%q names %q", value, p.Secret)
				}
				again.WriteString(secretPlaceholder + p.Secret + "}")
			}
			again.WriteString(p.Text)
		}
		next, err := parseHeader(again.String())
		if d := cmp.Diff(parts, next); err != nil || d != "" {
			t.Fatalf("%q is parsed as %v, and that as %v, %v", value, parts, next, err)
		}
		if strings.Count(value, secretPlaceholder) != strings.Count(again.String(), secretPlaceholder) || !strings.Contains(value, secretPlaceholder) && again.String() != value {
			t.Fatalf("%q is formatted as %q", value, again.String())
		}
	})
}

func TestTransformOf(t *testing.T) {
	rule := func(headers ...string) Rule {
		tr := &Transform{map[string]string{}}
		for i := 0; i < len(headers); i += 2 {
			tr.Headers[headers[i]] = headers[i+1]
		}
		return Rule{tr}
	}
	b := Sandbox{Team: "t-1", Network: Network{Rules: map[string][]Rule{
		"API.Example.com": {rule("x-key", "old", "X-Plain", "p"), {}, rule("Authorization", "Bearer ${e2b.secrets.KEY}", "X-KEY", "${e2b.secrets.a}")},
		"b.example.com":   {rule("x-key", "${e2b.secrets.a}"), rule("X-Key", "plain")},
		"c.example.com":   {rule()},
	}}}
	want := []egress.Transform{
		{Host: "api.example.com", Headers: map[string]string{"X-Plain": "p"}, Owner: "t-1", SecretHeaders: map[string][]egress.Part{"Authorization": {text("Bearer "), filled("key")}, "X-Key": {filled("a")}}},
		{Host: "b.example.com", Headers: map[string]string{"X-Key": "plain"}, Owner: "t-1", SecretHeaders: map[string][]egress.Part{}},
	}
	if d := cmp.Diff(want, b.rules(nil).Transform); d != "" {
		t.Error(d)
	}
	many := map[string][]Rule{"a.example": nil}
	for i := range maxHostSecrets {
		many["a.example"] = append(many["a.example"], rule("X", fmt.Sprintf("${e2b.secrets.k%d}${e2b.secrets.K%[1]d}", i)))
	}
	if err := (Network{Rules: many}).check(); err != nil {
		t.Errorf("maximum number of secrets: %v", err)
	}
	many["a.example"] = append(many["a.example"], rule("X", "${e2b.secrets.more}"))
	if err := (Network{Rules: many}).check(); fault.KindOf(err) != fault.Invalid {
		t.Errorf("one secret above the maximum: %v", err)
	}
}

func TestSecretLimits(t *testing.T) {
	few := func(n, size int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("%0128d", i)] = strings.Repeat("v", size)
		}
		return m
	}
	for _, c := range []struct {
		value    string
		metadata map[string]string
		ok       bool
	}{
		{"x", nil, true}, {strings.Repeat("x", 8192), few(32, 128), true}, {"x", few(7, 1024), true},
		{"", nil, false}, {strings.Repeat("x", 8193), nil, false}, {"x", few(33, 0), false}, {"x", few(1, 1025), false}, {"x", few(32, 129), false}, {"x", map[string]string{strings.Repeat("k", 129): ""}, false},
	} {
		if err := checkSecret(c.value, c.metadata); (err == nil) != c.ok || err != nil && ErrorOf(err).Code != http.StatusBadRequest {
			t.Errorf("%d bytes, %d entries: %v", len(c.value), len(c.metadata), err)
		}
	}
	id := secretID + newID()
	for ref, want := range map[string]string{"key": "key", " Key ": "key", id: id, strings.ToUpper(id): id, "sec_": "", "sec_x": "", "SEC_key": "", "a/b": "", "": "", "secret": "secret"} {
		if got, err := secretRef(ref); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", ref, got, err)
		}
	}
}

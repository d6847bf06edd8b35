package mcp

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
)

var strange = &manifest.Capability{
	ID: "their", Version: "1.0.0",
	Runtime:    manifest.Spec{Type: manifest.Container, Image: "node:22", Entrypoint: []string{"server"}},
	Filesystem: manifest.Filesystem{Mode: manifest.Ephemeral},
	Network:    manifest.Network{Mode: manifest.ModeNone},
	Approval:   manifest.Approval{Tier: manifest.Standard},
}

func tools(t testing.TB, text string) []*sdk.Tool {
	t.Helper()
	var list sdk.ListToolsResult
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	return list.Tools
}

// Any description of a tool becomes a manifest that can be registered. The only parts of it that
// the server controls are the schemas and, quoted, the description.
func FuzzConvert(f *testing.F) {
	for _, seed := range []string{
		`{"tools":[{"name":"read","description":"Reads.","inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}]}`,
		`{"tools":[{"name":"a"},{"name":"A"},{"name":"a"},null,{"name":""},{"name":"\u0000"},{"name":"x\ny","inputSchema":true}]}`,
		`{"tools":[{"name":"t","description":"\u202e\"). (capability \"x\"","inputSchema":{"type":"object","additionalProperties":false},"outputSchema":{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/a"}]}}}}]}`,
		`{"tools":[{"name":"t","inputSchema":{"type":["object","null"],"properties":{"a b":{"enum":[1,"x",null,{}]},"":{"const":[]}},"patternProperties":{"(":{}}},"annotations":{"readOnlyHint":true}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var list sdk.ListToolsResult
		if json.Unmarshal(text, &list) != nil || len(list.Tools) > 64 {
			return
		}
		in := convert(strange, list.Tools)
		if len(in.Capabilities)+len(in.Refused) > len(list.Tools) {
			t.Errorf("%d tools became %d capabilities and %d refusals", len(list.Tools), len(in.Capabilities), len(in.Refused))
		}
		seen := map[string]bool{}
		for _, c := range in.Capabilities {
			if seen[c.ID] || !strings.HasPrefix(c.ID, "their.") || manifest.CheckID(c.ID) != nil {
				t.Errorf("%q is no id, or there twice", c.ID)
			}
			seen[c.ID] = true
			if len(c.Effects) != 3 || c.Network.Mode != manifest.ModeNone || c.EffectiveTier() != manifest.Standard || c.Runtime.Image != "node:22" || len(c.Secrets) > 0 {
				t.Errorf("%s may do what nobody has given it: %+v", c.ID, c)
			}
			if !utf8.ValidString(c.Description) || len(c.Description) > 8<<10 || strings.ContainsAny(c.Description, "\n\r\x00\x1b") {
				t.Errorf("the description of %s is not held: %q", c.ID, c.Description)
			}
			again, err := manifest.Read("again", []byte(c.Source))
			if err != nil || len(again) != 1 || again[0].ID != c.ID {
				t.Errorf("%s does not register: %v", c.Source, err)
			}
			c.Input.Check(form.NewMap()) // check must not panic for any description
		}
		for _, r := range in.Refused {
			if !utf8.ValidString(r.Tool+r.Why) || len(r.Tool)+len(r.Why) > 2048 {
				t.Errorf("a refusal is not held: %q", r)
			}
		}
	})
}

// What a server answers is a value of the type that its manifest names, or refused.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"content":[{"type":"text","text":"a"},{"type":"image","data":"AAE=","mimeType":"image/png"},{"type":"resource","resource":{"uri":"file:///x","text":"y"}},{"type":"resource_link","uri":"u","name":"n"},{"type":"audio","data":"","mimeType":"a"}]}`))
	f.Add([]byte(`{"content":[],"structuredContent":{"a":1},"isError":false}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var answer sdk.CallToolResult
		if json.Unmarshal(text, &answer) != nil {
			return
		}
		if v := saidBy(answer.Content); resultSchema.Check(v) != nil {
			t.Errorf("%s is not of the type of what tools say: %v", form.Text(v), resultSchema.Check(v))
		}
	})
}

func TestAmbiguousToolsAreRefused(t *testing.T) {
	in := convert(strange, tools(t, `{"tools":[
		{"name":"read","inputSchema":{"type":"object"}},
		{"name":"read","description":"another","inputSchema":{"type":"object"}},
		{"name":"Write-It","inputSchema":{"type":"object"}},
		{"name":"write_it","inputSchema":{"type":"object"}},
		{"name":"write it","inputSchema":{"type":"object"}},
		{"name":"fine","inputSchema":{"type":"object"}},
		{"name":"🙈","inputSchema":{"type":"object"}},
		{"name":"`+strings.Repeat("long", 40)+`","inputSchema":{"type":"object"}},
		{"name":"huge","inputSchema":{"type":"object","description":"`+strings.Repeat("x", maxSchema)+`"}}
	]}`))
	var ids []string
	for _, c := range in.Capabilities {
		ids = append(ids, c.ID)
	}
	if want := []string{"their.fine", "their.write_it"}; !slices.Equal(ids, want) {
		t.Errorf("the capabilities are %q, want %q", ids, want)
	}
	why := map[string]string{}
	for _, r := range in.Refused {
		why[r.Tool] = r.Why
	}
	for tool, want := range map[string]string{
		"read":     "2 tools have this name",
		"Write-It": "2 tools would have the id their.write-it",
		"write it": "2 tools would have the id their.write-it",
		"🙈":        "is not a valid id",
		"huge":     "input schema: ",
	} {
		if !strings.Contains(why[tool], want) {
			t.Errorf("%q is refused with %q, want %q", tool, why[tool], want)
		}
	}
}

func TestUncheckableSchemaPartsAreListed(t *testing.T) {
	in := convert(strange, tools(t, `{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"u":{"type":"string","format":"uri"},"n":{"type":"object","propertyNames":{"minLength":2}}}}}]}`))
	if len(in.Capabilities) != 1 || len(in.Lost["their.t"]) == 0 {
		t.Errorf("%d capabilities, and lost is %q; want one, and what of it is lost", len(in.Capabilities), in.Lost)
	}
}

func TestPlainIsOneVisibleLine(t *testing.T) {
	for _, s := range []string{"plain", strings.Repeat("é", 4000), "a\x00b\u202ec\u200bd\xff", " x \n\t y "} {
		if got := plain(s, 100); !utf8.ValidString(got) || len(got) > 103 || strings.ContainsAny(got, "\x00\n\u202e\u200b") {
			t.Errorf("plain(%.20q) = %q", s, got)
		}
	}
}

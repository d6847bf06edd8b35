package mcp

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// resultSchema is the output type of tools that declare none: the text and, separately, other content.
var resultSchema = must(schema.Parse("said", `[:map
  [:text :string]
  [:parts {:optional true} [:vector [:map
    [:type [:enum "image" "audio" "resource" "link" "other"]]
    [:mime {:optional true} :string]
    [:uri {:optional true} :string]
    [:text {:optional true} :string]
    [:data {:optional true} :string]]]]]`))

func must(t *schema.Type, err error) *schema.Type {
	if err != nil {
		panic(err)
	}
	return t
}

// textOf returns the text in tool content.
func textOf(contents []sdk.Content) string {
	var all []string
	for _, c := range contents {
		if t, ok := c.(*sdk.TextContent); ok {
			all = append(all, t.Text)
		}
	}
	return strings.Join(all, "\n")
}

// saidBy converts tool content to a value of type said.
func saidBy(contents []sdk.Content) form.Value {
	out := form.NewMap(form.Keyword("text"), textOf(contents))
	var parts form.Vector
	for _, c := range contents {
		switch c := c.(type) {
		case *sdk.TextContent:
		case *sdk.ImageContent:
			parts = append(parts, part("image", c.MIMEType, "", "", c.Data))
		case *sdk.AudioContent:
			parts = append(parts, part("audio", c.MIMEType, "", "", c.Data))
		case *sdk.ResourceLink:
			parts = append(parts, part("link", c.MIMEType, c.URI, c.Name, nil))
		case *sdk.EmbeddedResource:
			if r := c.Resource; r != nil {
				parts = append(parts, part("resource", r.MIMEType, r.URI, r.Text, r.Blob))
			}
		default:
			parts = append(parts, part("other", "", "", "", nil))
		}
	}
	if parts != nil {
		out = out.With(form.Keyword("parts"), parts)
	}
	return out
}

func part(kind, mime, uri, text string, data []byte) form.Value {
	m := form.NewMap(form.Keyword("type"), kind)
	for _, kv := range [][2]string{{"mime", mime}, {"uri", uri}, {"text", text}, {"data", base64.StdEncoding.EncodeToString(data)}} {
		if kv[1] != "" {
			m = m.With(form.Keyword(kv[0]), kv[1])
		}
	}
	return m
}

// structured parses structured tool output as a value of a type.
func structured(t *schema.Type, v any) (form.Value, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the structured output: %w", err)
	}
	return t.FromJSON(text)
}

package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ContentSchema is the output schema of tools that return MCP content: text, images, audio,
// resources and links. Imported tools that declare no output schema get it.
func ContentSchema() json.RawMessage { return bytes.Clone(contentSchema) }

var contentSchema = func() json.RawMessage {
	text, err := resultSchema.JSONSchema()
	if err != nil {
		panic(err)
	}
	return text
}()

// isContent reports whether an output schema is ContentSchema.
func isContent(schema json.RawMessage) bool {
	var a, b bytes.Buffer
	if schema == nil || json.Compact(&a, schema) != nil || json.Compact(&b, contentSchema) != nil {
		return false
	}
	return bytes.Equal(a.Bytes(), b.Bytes())
}

// contentsOf converts an output of ContentSchema to protocol content. It returns nil for other
// outputs.
func contentsOf(output json.RawMessage) []sdk.Content {
	var out struct {
		Text  string `json:"text"`
		Parts []struct {
			Type string `json:"type"`
			MIME string `json:"mime"`
			URI  string `json:"uri"`
			Text string `json:"text"`
			Data string `json:"data"`
		} `json:"parts"`
	}
	if json.Unmarshal(output, &out) != nil {
		return nil
	}
	var all []sdk.Content
	if out.Text != "" || len(out.Parts) == 0 {
		all = append(all, &sdk.TextContent{Text: out.Text})
	}
	for _, p := range out.Parts {
		data, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil {
			return nil
		}
		switch p.Type {
		case "image":
			all = append(all, &sdk.ImageContent{MIMEType: p.MIME, Data: data})
		case "audio":
			all = append(all, &sdk.AudioContent{MIMEType: p.MIME, Data: data})
		case "link":
			all = append(all, &sdk.ResourceLink{URI: p.URI, Name: p.Text, MIMEType: p.MIME})
		case "resource":
			r := &sdk.ResourceContents{URI: p.URI, MIMEType: p.MIME, Text: p.Text}
			if len(data) > 0 {
				r.Blob = data
			}
			all = append(all, &sdk.EmbeddedResource{Resource: r})
		}
	}
	return all
}

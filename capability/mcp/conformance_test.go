package mcp_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/mcp"
	"glasshouse/capability/mcp/mcptest"
	"glasshouse/fault"
)

// fixtures are the tools, resources and prompts that the conformance suite asks for, served
// by the server as capabilities are.
type fixtures struct{}

const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

const schema2020 = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
	"$defs":{"address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
	"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"}},"additionalProperties":false}`

func (fixtures) List(context.Context) ([]mcp.Tool, error) {
	all := []mcp.Tool{
		{ID: "json_schema_2020_12_tool", Description: "A tool.", Input: json.RawMessage(schema2020)},
		{ID: "test_sampling", Description: "A tool.", Input: json.RawMessage(`{"type":"object","properties":{"prompt":{"type":"string"}}}`)},
		{ID: "test_elicitation", Description: "A tool.", Input: json.RawMessage(`{"type":"object","properties":{"message":{"type":"string"}}}`)},
	}
	for _, name := range []string{
		"test_simple_text", "test_image_content", "test_audio_content", "test_embedded_resource", "test_multiple_content_types",
		"test_tool_with_logging", "test_tool_with_progress", "test_error_handling", "test_elicitation_sep1034_defaults",
		"test_elicitation_sep1330_enums", "test_reconnection",
	} {
		all = append(all, mcp.Tool{ID: name, Description: "A tool.", Output: mcp.ContentSchema()})
	}
	return all, nil
}

func (fixtures) Call(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error) {
	peer := mcp.PeerOf(ctx)
	var in struct{ Prompt, Message string }
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	say := func(v any) (json.RawMessage, error) { return json.Marshal(map[string]any{"text": fmt.Sprint(v)}) }
	ask := func(properties map[string]any) (json.RawMessage, error) {
		answer, err := peer.Ask(ctx, "Please fill this in.", map[string]any{"type": "object", "properties": properties})
		if err != nil {
			return nil, fault.New(fault.Unavailable, "test.Ask", id, err)
		}
		return say(answer)
	}
	text := map[string]any{"type": "string"}
	with := func(base map[string]any, key string, v any) map[string]any {
		all := map[string]any{key: v}
		for k, v := range base {
			all[k] = v
		}
		return all
	}
	choice := func(key, title string) []map[string]any {
		return []map[string]any{{"const": key + "1", title: "First"}, {"const": key + "2", title: "Second"}}
	}
	image := map[string]any{"type": "image", "mime": "image/png", "data": pixel}
	switch id {
	case "test_simple_text", "json_schema_2020_12_tool":
		return say("This is a simple text response for testing.")
	case "test_image_content":
		return json.Marshal(map[string]any{"text": "", "parts": []any{image}})
	case "test_audio_content":
		return json.Marshal(map[string]any{"text": "", "parts": []any{map[string]any{"type": "audio", "mime": "audio/wav", "data": "UklGRg=="}}})
	case "test_embedded_resource":
		return json.Marshal(map[string]any{"text": "", "parts": []any{map[string]any{"type": "resource", "mime": "text/plain", "uri": "test://embedded-resource", "text": "embedded"}}})
	case "test_multiple_content_types":
		return json.Marshal(map[string]any{"text": "Multiple content types test:", "parts": []any{image,
			map[string]any{"type": "resource", "mime": "application/json", "uri": "test://mixed-content-resource", "text": `{"test":"data"}`}}})
	case "test_tool_with_logging":
		for _, line := range []string{"started", "working", "completed"} {
			if err := peer.Log(ctx, "info", line); err != nil {
				return nil, err
			}
		}
		return say("logged")
	case "test_tool_with_progress":
		for _, done := range []float64{0, 50, 100} {
			if err := peer.Progress(ctx, done, 100, "under way"); err != nil {
				return nil, err
			}
			// The suite's client drops notifications that arrive in the packet of the result.
			time.Sleep(20 * time.Millisecond)
		}
		return say("progressed")
	case "test_error_handling":
		return nil, fault.Newf(fault.Invalid, "test.Call", id, "this tool always fails")
	case "test_sampling":
		//lint:ignore SA1019 protocol versions before 2026-07-28 have sampling
		r, err := peer.Request.Session.CreateMessage(ctx, &sdk.CreateMessageParams{
			//lint:ignore SA1019 protocol versions before 2026-07-28 have sampling
			MaxTokens: 100, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: in.Prompt}}},
		})
		if err != nil {
			return nil, err
		}
		return say(r.Content.(*sdk.TextContent).Text)
	case "test_elicitation":
		return ask(map[string]any{"username": text})
	case "test_elicitation_sep1034_defaults":
		return ask(map[string]any{
			"name": with(text, "default", "John Doe"), "age": map[string]any{"type": "integer", "default": 30},
			"score": map[string]any{"type": "number", "default": 95.5}, "verified": map[string]any{"type": "boolean", "default": true},
			"status": map[string]any{"type": "string", "enum": []string{"active", "inactive", "pending"}, "default": "active"},
		})
	case "test_elicitation_sep1330_enums":
		three := []string{"option1", "option2", "option3"}
		return ask(map[string]any{
			"untitledSingle": with(text, "enum", three), "titledSingle": with(text, "oneOf", choice("value", "title")),
			"legacyEnum":    map[string]any{"type": "string", "enum": []string{"opt1", "opt2"}, "enumNames": []string{"One", "Two"}},
			"untitledMulti": map[string]any{"type": "array", "items": with(text, "enum", three)},
			"titledMulti":   map[string]any{"type": "array", "items": map[string]any{"anyOf": choice("value", "title")}},
		})
	case "test_reconnection":
		if extra := peer.Request.Extra; extra != nil && extra.CloseSSEStream != nil {
			extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
		}
		time.Sleep(100 * time.Millisecond) // the client connects again meanwhile
		return say("reconnected")
	}
	return nil, fault.Newf(fault.NotFound, "test.Call", id, "no such tool")
}

// fixedResources are the suite's resources.
type fixedResources struct{}

func (fixedResources) List(context.Context) ([]*sdk.Resource, error) {
	return []*sdk.Resource{
		{URI: "test://static-text", Name: "static-text", Description: "Text.", MIMEType: "text/plain"},
		{URI: "test://static-binary", Name: "static-binary", Description: "An image.", MIMEType: "image/png"},
		{URI: "test://watched-resource", Name: "watched-resource", Description: "A resource that changes.", MIMEType: "text/plain"},
	}, nil
}

func (fixedResources) Templates() []*sdk.ResourceTemplate {
	return []*sdk.ResourceTemplate{{URITemplate: "test://template/{id}/data", Name: "template", MIMEType: "application/json"}}
}

func (fixedResources) Read(_ context.Context, uri string) ([]*sdk.ResourceContents, error) {
	id, templated := strings.CutPrefix(uri, "test://template/")
	switch {
	case uri == "test://static-binary":
		blob, err := base64.StdEncoding.DecodeString(pixel)
		return []*sdk.ResourceContents{{URI: uri, MIMEType: "image/png", Blob: blob}}, err
	case templated:
		return []*sdk.ResourceContents{{URI: uri, MIMEType: "application/json", Text: fmt.Sprintf(`{"id":%q}`, strings.TrimSuffix(id, "/data"))}}, nil
	case uri == "test://static-text", uri == "test://watched-resource":
		return []*sdk.ResourceContents{{URI: uri, MIMEType: "text/plain", Text: "text"}}, nil
	}
	return nil, fault.NotFound
}

func (fixedResources) Complete(context.Context, string, string, string) ([]string, error) {
	return []string{"123"}, nil
}

// fixedPrompts are the suite's prompts.
type fixedPrompts struct{}

func (fixedPrompts) List(context.Context) ([]*sdk.Prompt, error) {
	return []*sdk.Prompt{
		{Name: "test_simple_prompt", Description: "A prompt."},
		{Name: "test_prompt_with_arguments", Description: "A prompt.", Arguments: []*sdk.PromptArgument{{Name: "arg1", Required: true}, {Name: "arg2", Required: true}}},
		{Name: "test_prompt_with_embedded_resource", Description: "A prompt.", Arguments: []*sdk.PromptArgument{{Name: "resourceUri", Required: true}}},
		{Name: "test_prompt_with_image", Description: "A prompt."},
	}, nil
}

func (fixedPrompts) Get(_ context.Context, name string, arguments map[string]string) ([]*sdk.PromptMessage, error) {
	user := func(c sdk.Content) *sdk.PromptMessage { return &sdk.PromptMessage{Role: "user", Content: c} }
	text := func(s string) *sdk.PromptMessage { return user(&sdk.TextContent{Text: s}) }
	switch name {
	case "test_simple_prompt":
		return []*sdk.PromptMessage{text("This is a simple prompt for testing.")}, nil
	case "test_prompt_with_arguments":
		return []*sdk.PromptMessage{text(arguments["arg1"] + " " + arguments["arg2"])}, nil
	case "test_prompt_with_embedded_resource":
		r := &sdk.ResourceContents{URI: arguments["resourceUri"], MIMEType: "text/plain", Text: "embedded"}
		return []*sdk.PromptMessage{user(&sdk.EmbeddedResource{Resource: r}), text("Read it.")}, nil
	case "test_prompt_with_image":
		blob, err := base64.StdEncoding.DecodeString(pixel)
		return []*sdk.PromptMessage{user(&sdk.ImageContent{MIMEType: "image/png", Data: blob}), text("Look at it.")}, err
	}
	return nil, fault.NotFound
}

func (fixedPrompts) Complete(context.Context, string, string, string) ([]string, error) {
	return []string{"paris", "park"}, nil
}

var suiteTotal = regexp.MustCompile(`Total: (\d+) passed, (\d+) failed`)

func TestConformanceSuite(t *testing.T) {
	command := mcptest.Suite(t)
	s := mcp.NewServer("1.0", fixtures{}, nil)
	s.Offer(fixedResources{}, fixedPrompts{})
	web := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		web.Close()
	})
	out, err := exec.CommandContext(t.Context(), command[0], append(command[1:], "server", "--url", web.URL, "--suite", "all")...).CombinedOutput()
	total := suiteTotal.FindStringSubmatch(string(out))
	if err != nil || total == nil || total[2] != "0" || total[1] == "0" {
		t.Fatalf("the suite = %v, total %q, want no failure\n%s", err, total, out)
	}
	t.Log(total[0])
}

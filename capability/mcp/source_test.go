package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/mcp"
	"glasshouse/fault"
)

// A farm is a source with jails, two events in each, a snapshot of each, and a skill.
type farm struct {
	mu    sync.Mutex
	jails []string
	state string
}

func (f *farm) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.jails...)
}

func (f *farm) find(jail string) error {
	for _, j := range f.list() {
		if j == jail {
			return nil
		}
	}
	return fault.Newf(fault.NotFound, "test", jail, "no such jail")
}

func (f *farm) Jails(context.Context) ([]mcp.Jail, error) {
	var all []mcp.Jail
	for _, j := range f.list() {
		all = append(all, mcp.Jail{ID: j, State: "running"})
	}
	return all, nil
}

func (f *farm) Jail(_ context.Context, jail string) (json.RawMessage, error) {
	f.mu.Lock()
	state := f.state
	f.mu.Unlock()
	return fmt.Appendf(nil, `{"id":%q,"state":%q}`, jail, state), f.find(jail)
}

func (f *farm) Events(_ context.Context, jail string, n int) ([]json.RawMessage, error) {
	if n == 0 {
		return nil, errors.New("no bound")
	}
	return []json.RawMessage{fmt.Appendf(nil, `{"seq":1,"jail":%q}`, jail), fmt.Appendf(nil, `{"seq":2,"jail":%q}`, jail)}, f.find(jail)
}

func (f *farm) Snapshots(_ context.Context, jail string) ([]mcp.Snapshot, error) {
	var all []mcp.Snapshot
	for _, j := range f.list() {
		if jail == "" || jail == j {
			all = append(all, mcp.Snapshot{ID: "s-" + j, Jail: j})
		}
	}
	return all, nil
}

func (f *farm) Snapshot(_ context.Context, snapshot string) (json.RawMessage, error) {
	return fmt.Appendf(nil, `{"id":%q}`, snapshot), f.find(strings.TrimPrefix(snapshot, "s-"))
}

func (f *farm) Skills(context.Context) ([]mcp.Skill, error) {
	return []mcp.Skill{{Name: "brew", Description: "Makes coffee."}}, nil
}

func (f *farm) Skill(_ context.Context, name string) (string, error) {
	if name != "brew" {
		return "", fault.Newf(fault.NotFound, "test", name, "no such skill")
	}
	return "# How to brew", nil
}

// tend serves a source to a client with options.
func tend(t *testing.T, of mcp.Source, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	h := newHarness()
	s := mcp.NewServer("1.0", h, nil)
	s.OfferSource(of)
	t.Cleanup(func() { s.Close() })
	c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, o).Connect(t.Context(), stdio(t, s), &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func readURI(t *testing.T, c *sdk.ClientSession, uri string) (string, error) {
	t.Helper()
	r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
	if err != nil {
		return "", err
	}
	if len(r.Contents) != 1 || r.Contents[0].URI != uri || r.Contents[0].MIMEType == "" {
		t.Errorf("contents of %s = %+v, want one with its URI and type", uri, r.Contents)
	}
	return r.Contents[0].Text, nil
}

func TestResourcesOfASource(t *testing.T) {
	c := tend(t, &farm{jails: []string{"j-1", "j-2"}, state: "running"}, nil)
	var got []string
	for r, err := range c.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.URI)
	}
	want := []string{
		"glasshouse://jails/j-1", "glasshouse://jails/j-1/events", "glasshouse://jails/j-1/snapshots",
		"glasshouse://jails/j-2", "glasshouse://jails/j-2/events", "glasshouse://jails/j-2/snapshots",
		"glasshouse://skills/brew", "glasshouse://snapshots/s-j-1", "glasshouse://snapshots/s-j-2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	for uri, want := range map[string]string{
		"glasshouse://jails/j-1":           `{"id":"j-1","state":"running"}`,
		"glasshouse://jails/j-2/events":    `{"seq":1,"jail":"j-2"}` + "\n" + `{"seq":2,"jail":"j-2"}` + "\n",
		"glasshouse://jails/j-2/snapshots": `[{"id":"s-j-2","jail":"j-2","memory":false}]`,
		"glasshouse://snapshots/s-j-1":     `{"id":"s-j-1"}`,
		"glasshouse://skills/brew":         "# How to brew",
	} {
		if got, err := readURI(t, c, uri); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", uri, got, err, want)
		}
	}
	for _, uri := range []string{"glasshouse://jails/j-3", "glasshouse://jails/j-3/events", "glasshouse://nothing", "glasshouse://jails/", "file:///etc/passwd"} {
		if got, err := readURI(t, c, uri); err == nil {
			t.Errorf("%s = %q, want an error", uri, got)
		}
	}
	templates, err := c.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 5 {
		t.Errorf("templates = %v, %v, want 5", templates, err)
	}
}

func TestAgentReadsOnlyItsOwnJail(t *testing.T) {
	f := &farm{jails: []string{"j-1", "j-2"}}
	for _, jail := range []string{"j-1", ""} {
		c := tend(t, mcp.Of(jail, f), nil)
		for r, err := range c.Resources(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(r.URI, "j-2") || jail == "" && strings.Contains(r.URI, "j-1") {
				t.Errorf("an agent of jail %q is offered %s", jail, r.URI)
			}
		}
		for _, uri := range []string{
			"glasshouse://jails/j-2", "glasshouse://jails/j-2/events", "glasshouse://jails/j-2/snapshots", "glasshouse://snapshots/s-j-2",
			"glasshouse://jails/%6A-2/events", "glasshouse://jails/j-1%2F..%2Fj-2/events", "glasshouse://jails/%20/events", "glasshouse://jails//events",
		} {
			if got, err := readURI(t, c, uri); err == nil {
				t.Errorf("an agent of jail %q reads %s = %q, want an error", jail, uri, got)
			}
			if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err == nil {
				t.Errorf("an agent of jail %q subscribes to %s", jail, uri)
			}
		}
		for _, variable := range []string{"jail", "snapshot"} {
			r, err := c.Complete(t.Context(), &sdk.CompleteParams{
				Ref:      &sdk.CompleteReference{Type: "ref/resource", URI: "glasshouse://jails/{jail}"},
				Argument: sdk.CompleteParamsArgument{Name: variable},
			})
			if err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprint(r.Completion.Values); strings.Contains(text, "j-2") {
				t.Errorf("completions of %s for an agent of jail %q = %s", variable, jail, text)
			}
		}
		if _, err := readURI(t, c, "glasshouse://jails/j-1/events"); (err == nil) != (jail == "j-1") {
			t.Errorf("an agent of jail %q reads the events of j-1: %v", jail, err)
		}
	}
}

func TestResponsesAreNotCacheable(t *testing.T) {
	s := mcp.NewServer("1.0", newHarness(), nil)
	s.OfferSource(&farm{jails: []string{"j-1"}})
	t.Cleanup(func() { s.Close() })
	c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, nil).Connect(t.Context(), stdio(t, s), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "glasshouse://jails/j-1"})
	if err != nil || r.CacheScope != "private" {
		t.Errorf("cache scope of a jail = %q, %v, want private", r.GetCacheScope(), err)
	}
	list, err := c.ListTools(t.Context(), nil)
	if err != nil || list.CacheScope != "private" {
		t.Errorf("cache scope of the tools = %q, %v, want private", list.GetCacheScope(), err)
	}
}

func TestSkillsArePrompts(t *testing.T) {
	c := tend(t, &farm{}, nil)
	all, err := c.ListPrompts(t.Context(), nil)
	if err != nil || len(all.Prompts) != 1 || all.Prompts[0].Name != "brew" {
		t.Fatalf("prompts = %v, %v, want brew", all, err)
	}
	r, err := c.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "brew", Arguments: map[string]string{"task": "Two cups."}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range r.Messages {
		got = append(got, m.Content.(*sdk.TextContent).Text)
	}
	if diff := cmp.Diff([]string{"# How to brew", "Two cups."}, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	for _, p := range []*sdk.GetPromptParams{{Name: "none"}, {Name: "brew", Arguments: map[string]string{"size": "2"}}} {
		if _, err := c.GetPrompt(t.Context(), p); err == nil {
			t.Errorf("GetPrompt(%+v) succeeds, want an error", p)
		}
	}
}

func TestCompletionsAreBounded(t *testing.T) {
	f := &farm{}
	for i := range 150 {
		f.jails = append(f.jails, fmt.Sprintf("j-%03d", i))
	}
	c := tend(t, f, nil)
	r, err := c.Complete(t.Context(), &sdk.CompleteParams{
		Ref:      &sdk.CompleteReference{Type: "ref/resource", URI: "glasshouse://jails/{jail}"},
		Argument: sdk.CompleteParamsArgument{Name: "jail", Value: "j-"},
	})
	if err != nil || len(r.Completion.Values) != 100 || !r.Completion.HasMore || r.Completion.Total != 150 {
		t.Errorf("completion = %+v, %v, want 100 of 150", r, err)
	}
	// The list has more entries than a page.
	n := 0
	for _, err := range c.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if want := 150*4 + 1; n != want {
		t.Errorf("resources = %d, want %d", n, want)
	}
}

func TestSubscribersLearnOfChanges(t *testing.T) {
	f := &farm{jails: []string{"j-1"}, state: "running"}
	updated := make(chan string, 10)
	c := tend(t, f, &sdk.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI }})
	const uri = "glasshouse://jails/j-1"
	if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.state = "paused"
	f.mu.Unlock()
	select {
	case got := <-updated:
		if got != uri {
			t.Errorf("updated = %s, want %s", got, uri)
		}
	case <-time.After(time.Minute):
		t.Fatal("no notification within a minute")
	}
	if err := c.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		f.mu.Lock()
		f.jails = append(f.jails, fmt.Sprintf("k-%d", i))
		f.mu.Unlock()
	}
	failed := 0
	for i := range 64 {
		if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: fmt.Sprintf("glasshouse://jails/k-%d", i)}); err != nil {
			failed++
		}
	}
	if err := c.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri + "/events"}); err == nil || failed > 1 {
		t.Errorf("subscription beyond the limit = %v after %d failures, want an error after at most one", err, failed)
	}
}

// A curious capability logs and asks.
type curious struct{}

func (curious) List(context.Context) ([]mcp.Tool, error) {
	return []mcp.Tool{
		{ID: "ask", Description: "Asks."},
		{ID: "typed", Description: "Has a type with definitions.",
			Input: json.RawMessage(`{"$schema":"https://json-schema.org/draft/2020-12/schema","$defs":{"n":{"type":"integer"}},"$ref":"#/$defs/n"}`)},
	}, nil
}

func (curious) Call(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error) {
	if id == "typed" {
		return input, nil
	}
	peer := mcp.PeerOf(ctx)
	if err := peer.Log(ctx, "warning", "about to ask"); err != nil {
		return nil, err
	}
	answer, err := peer.Ask(ctx, "Allow it?", map[string]any{"type": "object", "properties": map[string]any{"decision": map[string]any{"type": "string"}}})
	if err != nil {
		return nil, fault.New(fault.Unavailable, "test", id, err)
	}
	return json.Marshal(fmt.Sprint(answer["decision"]))
}

func TestCapabilitiesLogAndAsk(t *testing.T) {
	connect := func(o *sdk.ClientOptions) *sdk.ClientSession {
		s := mcp.NewServer("1.0", curious{}, nil)
		t.Cleanup(func() { s.Close() })
		c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, o).Connect(t.Context(), stdio(t, s), &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	logged := make(chan any, 10)
	c := connect(&sdk.ClientOptions{
		//lint:ignore SA1019 protocol versions before 2026-07-28 have logging
		LoggingMessageHandler: func(_ context.Context, r *sdk.LoggingMessageRequest) { logged <- r.Params.Data },
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"decision": r.Params.Message}}, nil
		},
	})
	//lint:ignore SA1019 protocol versions before 2026-07-28 have logging
	if err := c.SetLoggingLevel(t.Context(), &sdk.SetLoggingLevelParams{Level: "info"}); err != nil {
		t.Fatal(err)
	}
	if said, structured, failed := ask(t, c, "ask", nil); failed || said != `"Allow it?"` || structured != `{"result":"Allow it?"}` {
		t.Errorf("ask says %s, structured %s, failed %t", said, structured, failed)
	}
	select {
	case got := <-logged:
		if got != "about to ask" {
			t.Errorf("log message = %v, want \"about to ask\"", got)
		}
	case <-time.After(time.Minute):
		t.Error("no log message within a minute")
	}
	if said, _, failed := ask(t, connect(nil), "ask", nil); !failed || !strings.Contains(said, "elicitation") {
		t.Errorf("with a client that has no forms it says %q, failed %t", said, failed)
	}

	// The definitions of a wrapped type are at the root, where its references look for them.
	for tool, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if tool.Name != "typed" {
			continue
		}
		text, _ := json.Marshal(tool.InputSchema)
		want := `{"$defs":{"n":{"type":"integer"}},"$schema":"https://json-schema.org/draft/2020-12/schema","properties":{"input":{"$ref":"#/$defs/n"}},"required":["input"],"type":"object"}`
		if string(text) != want {
			t.Errorf("input schema = %s, want %s", text, want)
		}
	}
	if said, _, failed := ask(t, c, "typed", args{"input": 3}); failed || said != "3" {
		t.Errorf("typed says %s, failed %t, want 3", said, failed)
	}
}

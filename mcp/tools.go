package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The bounds of what a server may have for tools.
const (
	maxTools  = 512
	maxPages  = 64
	maxSchema = 64 << 10 // bytes of one
)

// list asks a server for its tools.
func (s *session) list(ctx context.Context) ([]*sdk.Tool, error) {
	var all []*sdk.Tool
	params := &sdk.ListToolsParams{}
	for range maxPages {
		s.guard.asked()
		page, err := s.client.ListTools(ctx, params)
		if err != nil {
			return nil, fmt.Errorf("list its tools: %w", s.why(ctx, err))
		}
		if all = append(all, page.Tools...); len(all) > maxTools {
			return nil, fmt.Errorf("it has over %d tools", maxTools)
		}
		if page.NextCursor == "" {
			return all, nil
		}
		params.Cursor = page.NextCursor
	}
	return nil, fmt.Errorf("its list of tools goes on after %d pages", maxPages)
}

// digests returns the digests of a server's tools by name, and asks for them if they
// may be others than when they were asked for last. Of a name that is there twice
// there is none.
func (s *session) digests(ctx context.Context) (map[string]string, error) {
	s.mu.Lock()
	if s.stale {
		s.tools, s.stale = nil, false // before asking: what changes meanwhile is told again
	}
	known := s.tools
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	known = map[string]string{}
	for _, t := range all {
		if _, twice := known[t.Name]; twice {
			known[t.Name] = ""
			continue
		}
		known[t.Name] = digest(t)
	}
	s.mu.Lock()
	s.tools = known
	s.mu.Unlock()
	return known, nil
}

// digest is of all that a server says of a tool to whoever is to use it. A person
// has agreed to these words, and to no others.
func digest(t *sdk.Tool) string {
	text, err := json.Marshal(struct {
		Name, Title, Description string
		Input, Output            any
		Annotations              *sdk.ToolAnnotations
	}{t.Name, t.Title, t.Description, t.InputSchema, t.OutputSchema, t.Annotations})
	if err != nil {
		return "" // it came as JSON; what cannot be said again agrees with nothing
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

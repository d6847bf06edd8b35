package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits of the tools of a server.
const (
	maxTools  = 512
	maxPages  = 64
	maxSchema = 64 << 10 // bytes of one schema
)

// list lists the tools of a server.
func (s *session) list(ctx context.Context) ([]*sdk.Tool, error) {
	var all []*sdk.Tool
	params := &sdk.ListToolsParams{}
	for range maxPages {
		s.guard.asked()
		page, err := s.client.ListTools(ctx, params)
		if err != nil {
			return nil, fmt.Errorf("list the tools: %w", s.why(ctx, err))
		}
		if all = append(all, page.Tools...); len(all) > maxTools {
			return nil, fmt.Errorf("the server has more than %d tools", maxTools)
		}
		if page.NextCursor == "" {
			return all, nil
		}
		params.Cursor = page.NextCursor
	}
	return nil, fmt.Errorf("the tool list has more than %d pages", maxPages)
}

// digests returns the digests of a server's tools by name. It lists the tools again if they
// may have changed. A name that occurs twice is omitted.
func (s *session) digests(ctx context.Context) (map[string]string, error) {
	s.mu.Lock()
	if s.stale {
		s.tools, s.stale = nil, false // before listing, so that concurrent changes are reported again
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

// digest covers everything that a server states about a tool. Approvals apply only to this
// digest.
func digest(t *sdk.Tool) string {
	text, err := json.Marshal(struct {
		Name, Title, Description string
		Input, Output            any
		Annotations              *sdk.ToolAnnotations
	}{t.Name, t.Title, t.Description, t.InputSchema, t.OutputSchema, t.Annotations})
	if err != nil {
		return "" // the input was JSON, so this does not happen; an empty digest never matches
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

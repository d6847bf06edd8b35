package mcp

import "glasshouse/internal/text"

// bounded truncates s to limit bytes.
func bounded(s string, limit int) string { return text.Clip(s, limit) }

// plain returns untrusted text as one line without control characters, bidirectional overrides
// or invisible characters.
func plain(s string, limit int) string {
	return text.Clip(text.OneLine(text.Prefix(s, 4*limit)), limit)
}

package mcp

import "glasshouse/internal/text"

// bounded is s, cut to so many bytes where it is longer.
func bounded(s string, limit int) string { return text.Clip(s, limit) }

// plain is a text of strangers as one line without anything that is not seen: no
// control characters, no direction marks, nothing that hides what follows.
func plain(s string, limit int) string {
	return text.Clip(text.OneLine(text.Prefix(s, 4*limit)), limit)
}

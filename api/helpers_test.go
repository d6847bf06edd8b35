package api_test

import (
	"context"
	"io"
	"strings"

	"glasshouse/jail"
)

type contextT = context.Context

// chunked is a body whose length the request does not say.
func chunked(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }

func apitestChange(path string) jail.Change {
	return jail.Change{Path: path, Kind: "added", Type: "file", Size: 1, Mode: 0o644}
}

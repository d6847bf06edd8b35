package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// CompareOptions selects the parts of a comparison. The zero value selects all parts,
// without diffs of text files.
type CompareOptions struct {
	Only    []string // files, workspace, processes, events, usage
	Unified bool
}

// Compare returns the changes that lead from one jail or snapshot to another. If the first
// is a snapshot, "" as the second is the jail of the snapshot.
func (c *Client) Compare(ctx context.Context, from, to string, o CompareOptions) (wire.Comparison, error) {
	var out wire.Comparison
	err := c.do(ctx, compareRequest(from, to, o), &out)
	return out, err
}

// ComparisonPage is like Compare but returns the response in another format: text/plain,
// text/html, or unparsed application/json. The caller closes it.
func (c *Client) ComparisonPage(ctx context.Context, kind, from, to string, o CompareOptions) (io.ReadCloser, error) {
	r := compareRequest(from, to, o)
	r.header = http.Header{"Accept": {kind}}
	return c.open(ctx, r)
}

func compareRequest(from, to string, o CompareOptions) request {
	q := url.Values{}
	if to != "" {
		q.Set("against", to)
	}
	if len(o.Only) > 0 {
		q.Set("only", strings.Join(o.Only, ","))
	}
	if o.Unified {
		q.Set("content", "unified")
	}
	path := jailPath(id.Jail(from), "/diff")
	if strings.HasPrefix(from, "s-") {
		path = "/snapshots/" + url.PathEscape(from) + "/diff"
	}
	return request{method: "GET", path: path, query: q}
}

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

// CompareOptions say what of a comparison is wanted. The zero value is all of it,
// without the differences of text files.
type CompareOptions struct {
	Only    []string // files, workspace, processes, events, usage
	Unified bool
}

// Compare returns what has to change to come from one jail or snapshot to the
// other. Of a snapshot, "" is the jail it was taken of.
func (c *Client) Compare(ctx context.Context, from, to string, o CompareOptions) (wire.Comparison, error) {
	var out wire.Comparison
	err := c.do(ctx, compareRequest(from, to, o), &out)
	return out, err
}

// ComparisonPage is Compare in another form: text/plain, text/html, or
// application/json as the daemon sent it. The caller closes it.
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

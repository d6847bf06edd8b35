package client

import (
	"context"
	"net/url"
	"strconv"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// LimitJail changes what a jail may use, at once. A 0 leaves one as it is.
func (c *Client) LimitJail(ctx context.Context, j id.Jail, l wire.Limits) (w wire.Jail, err error) {
	return w, c.do(ctx, request{method: "PATCH", path: jailPath(j, "/limits"), json: l}, &w)
}

// JailLimits returns what a jail may use, and what became of requests for more after
// a number.
func (c *Client) JailLimits(ctx context.Context, j id.Jail, after int64) (w wire.JailLimits, err error) {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	return w, c.do(ctx, request{method: "GET", path: jailPath(j, "/limits"), query: q}, &w)
}

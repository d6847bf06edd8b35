package client

import (
	"context"
	"net/url"
	"strconv"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// LimitJail changes a jail's limits. They take effect immediately. A zero limit is
// unchanged.
func (c *Client) LimitJail(ctx context.Context, j id.Jail, l wire.Limits) (w wire.Jail, err error) {
	return w, c.do(ctx, request{method: "PATCH", path: jailPath(j, "/limits"), json: l}, &w)
}

// JailLimits returns a jail's limits and the history of changes and requests with a number
// greater than after.
func (c *Client) JailLimits(ctx context.Context, j id.Jail, after int64) (w wire.JailLimits, err error) {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	return w, c.do(ctx, request{method: "GET", path: jailPath(j, "/limits"), query: q}, &w)
}

package client

import (
	"context"
	"iter"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// CreateLoginLink creates a link with which a browser can log in once.
func (c *Client) CreateLoginLink(ctx context.Context, r wire.CreateLoginLink) (wire.LoginLink, error) {
	var l wire.LoginLink
	err := c.do(ctx, request{method: "POST", path: "/login-links", json: r}, &l)
	return l, err
}

// Logins yields the logged-in browsers, oldest first.
func (c *Client) Logins(ctx context.Context) iter.Seq2[wire.Login, error] {
	return pages[wire.Login](ctx, c, "/logins", nil)
}

// EndLogin logs out a browser.
func (c *Client) EndLogin(ctx context.Context, l id.Login) error {
	return c.do(ctx, request{method: "DELETE", path: "/logins/" + url.PathEscape(string(l))}, nil)
}

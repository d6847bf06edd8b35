package client

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// Health returns nil if the daemon is alive.
func (c *Client) Health(ctx context.Context) error {
	return c.do(ctx, request{method: "GET", path: "/health"}, nil)
}

// Ready returns nil if the daemon is ready to serve requests.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, request{method: "GET", path: "/health/ready"}, nil)
}

// Version returns the daemon's version.
func (c *Client) Version(ctx context.Context) (wire.Version, error) {
	var v wire.Version
	err := c.do(ctx, request{method: "GET", path: "/version"}, &v)
	return v, err
}

// Backends yields the isolation backends of the daemon's host.
func (c *Client) Backends(ctx context.Context) iter.Seq2[wire.Backend, error] {
	return pages[wire.Backend](ctx, c, "/backends", nil)
}

// Nodes yields the daemons that share the database of runs, by ID.
func (c *Client) Nodes(ctx context.Context) iter.Seq2[wire.Node, error] {
	return pages[wire.Node](ctx, c, "/nodes", nil)
}

// CreateNodeToken creates a token with which one daemon can join the fleet within ten minutes.
func (c *Client) CreateNodeToken(ctx context.Context) (wire.NodeToken, error) {
	var out wire.NodeToken
	return out, c.do(ctx, request{method: "POST", path: "/nodes/tokens"}, &out)
}

// UpdateNode sets whether a node of the fleet gets new jails and sessions.
func (c *Client) UpdateNode(ctx context.Context, node string, u wire.UpdateNode) (wire.Node, error) {
	var out wire.Node
	return out, c.do(ctx, request{method: "PATCH", path: "/nodes/" + url.PathEscape(node), json: u}, &out)
}

// RemoveNode removes a node from the fleet. lost is for a node that does not come back, with its
// jails and sessions.
func (c *Client) RemoveNode(ctx context.Context, node string, lost bool) error {
	q := url.Values{}
	if lost {
		q.Set("lost", "true")
	}
	return c.do(ctx, request{method: "DELETE", path: "/nodes/" + url.PathEscape(node), query: q}, nil)
}

// Images yields the prepared root filesystems, newest first.
func (c *Client) Images(ctx context.Context) iter.Seq2[wire.Image, error] {
	return pages[wire.Image](ctx, c, "/images", nil)
}

// PrepareImage prepares a root filesystem. The zero Rootfs is the daemon's default. The
// first preparation can take minutes.
func (c *Client) PrepareImage(ctx context.Context, r wire.Rootfs) (wire.Prepared, error) {
	var out wire.Prepared
	err := c.do(ctx, request{method: "POST", path: "/images", json: r}, &out)
	return out, err
}

// PruneImages deletes the root filesystems that no jail uses and returns them.
func (c *Client) PruneImages(ctx context.Context) ([]wire.Image, error) {
	var page wire.Page[wire.Image]
	err := c.do(ctx, request{method: "POST", path: "/images/prune"}, &page)
	return page.Items, err
}

// Doctor yields the results of checking the daemon's host.
func (c *Client) Doctor(ctx context.Context) iter.Seq2[wire.Probe, error] {
	return pages[wire.Probe](ctx, c, "/doctor", nil)
}

// Storage returns the daemon's disk usage and the state of the warm pool.
func (c *Client) Storage(ctx context.Context) (wire.Storage, error) {
	var out wire.Storage
	err := c.do(ctx, request{method: "GET", path: "/storage"}, &out)
	return out, err
}

// Metrics returns the metrics in the Prometheus text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	resp, err := c.send(ctx, request{method: "GET", path: "/metrics"})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// OpenAPI returns the daemon's OpenAPI document.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	var doc json.RawMessage
	err := c.do(ctx, request{method: "GET", path: "/openapi.json"}, &doc)
	return doc, err
}

// CreateE2BKey creates a key for clients of the E2B protocol. The key cannot be retrieved
// later.
func (c *Client) CreateE2BKey(ctx context.Context, r wire.CreateE2BKey) (wire.E2BKey, error) {
	var k wire.E2BKey
	err := c.do(ctx, request{method: "POST", path: "/e2b/keys", json: r}, &k)
	return k, err
}

// CreateToken creates a token. Its secret cannot be retrieved later.
func (c *Client) CreateToken(ctx context.Context, r wire.CreateToken) (wire.Token, error) {
	var t wire.Token
	err := c.do(ctx, request{method: "POST", path: "/tokens", json: r}, &t)
	return t, err
}

// Tokens yields every token, oldest first.
func (c *Client) Tokens(ctx context.Context) iter.Seq2[wire.Token, error] {
	return pages[wire.Token](ctx, c, "/tokens", nil)
}

// UpdateToken changes the quota of a token.
func (c *Client) UpdateToken(ctx context.Context, t id.Token, e wire.EditToken) (wire.Token, error) {
	var w wire.Token
	err := c.do(ctx, request{method: "PATCH", path: "/tokens/" + url.PathEscape(string(t)), json: e}, &w)
	return w, err
}

// RevokeToken revokes a token.
func (c *Client) RevokeToken(ctx context.Context, t id.Token) error {
	return c.do(ctx, request{method: "DELETE", path: "/tokens/" + url.PathEscape(string(t))}, nil)
}

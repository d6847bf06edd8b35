package client

import (
	"context"
	"net/url"
	"strconv"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func capabilityPath(cid, rest string) string { return "/capabilities/" + url.PathEscape(cid) + rest }

func versionQuery(version string) url.Values {
	q := url.Values{}
	if version != "" {
		q.Set("version", version)
	}
	return q
}

// Register registers the capabilities of a manifest.
func (c *Client) Register(ctx context.Context, r wire.Register) ([]wire.Capability, error) {
	var p wire.Page[wire.Capability]
	err := c.do(ctx, request{method: "POST", path: "/capabilities", json: r}, &p)
	return p.Items, err
}

// Capabilities returns all versions of all capabilities.
func (c *Client) Capabilities(ctx context.Context) ([]wire.Capability, error) {
	var p wire.Page[wire.Capability]
	err := c.do(ctx, request{method: "GET", path: "/capabilities"}, &p)
	return p.Items, err
}

// Capability returns a version of a capability. If version is empty, it returns the version
// that calls use.
func (c *Client) Capability(ctx context.Context, cid, version string) (wire.Capability, error) {
	var w wire.Capability
	err := c.do(ctx, request{method: "GET", path: capabilityPath(cid, ""), query: versionQuery(version)}, &w)
	return w, err
}

// RemoveCapability deletes a version.
func (c *Client) RemoveCapability(ctx context.Context, cid, version string) error {
	return c.do(ctx, request{method: "DELETE", path: capabilityPath(cid, ""), query: versionQuery(version)}, nil)
}

// RevokeCapability revokes a version, so that it cannot be called.
func (c *Client) RevokeCapability(ctx context.Context, cid string, r wire.RevokeCapability) (wire.Capability, error) {
	var w wire.Capability
	err := c.do(ctx, request{method: "POST", path: capabilityPath(cid, "/revoke"), json: r}, &w)
	return w, err
}

// TrustCapability sets whether a version may run directly on the host.
func (c *Client) TrustCapability(ctx context.Context, cid string, t wire.TrustCapability) (wire.Capability, error) {
	var w wire.Capability
	err := c.do(ctx, request{method: "POST", path: capabilityPath(cid, "/trust"), json: t}, &w)
	return w, err
}

// Call calls a capability, given as "id" or "id@version".
func (c *Client) Call(ctx context.Context, cid string, call wire.Call) (wire.Called, error) {
	var w wire.Called
	err := c.do(ctx, request{method: "POST", path: capabilityPath(cid, "/call"), json: call}, &w)
	return w, err
}

// Called returns the result of a recent call.
func (c *Client) Called(ctx context.Context, call id.Call) (wire.Called, error) {
	var w wire.Called
	err := c.do(ctx, request{method: "GET", path: "/calls/" + url.PathEscape(string(call))}, &w)
	return w, err
}

// Replay repeats a recorded call and compares the outputs. Seq is the audit log entry of the
// call.
func (c *Client) Replay(ctx context.Context, seq int64) (wire.Replayed, error) {
	var w wire.Replayed
	err := c.do(ctx, request{method: "POST", path: "/chain/" + strconv.FormatInt(seq, 10) + "/replay"}, &w)
	return w, err
}

// ImportServer generates manifests for the tools of an MCP (Model Context Protocol) server.
func (c *Client) ImportServer(ctx context.Context, r wire.ImportServer) (wire.ImportedServer, error) {
	var w wire.ImportedServer
	err := c.do(ctx, request{method: "POST", path: "/capabilities/import", json: r}, &w)
	return w, err
}

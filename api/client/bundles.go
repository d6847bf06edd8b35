package client

import (
	"context"
	"io"
	"net/url"

	"glasshouse/api/wire"
)

// InstallBundle installs an archive. The extension of name determines the archive format. It
// returns when the bundle is installed or when approval has been requested.
func (c *Client) InstallBundle(ctx context.Context, name string, archive io.Reader) (wire.Bundle, error) {
	var w wire.Bundle
	err := c.do(ctx, request{method: "POST", path: "/bundles", query: url.Values{"name": {name}}, body: archive}, &w)
	return w, err
}

// Bundles returns the installed bundles and the pending installations.
func (c *Client) Bundles(ctx context.Context) ([]wire.Bundle, error) {
	var p wire.Page[wire.Bundle]
	err := c.do(ctx, request{method: "GET", path: "/bundles"}, &p)
	return p.Items, err
}

// RemoveBundle deletes a bundle with its capabilities and its skill.
func (c *Client) RemoveBundle(ctx context.Context, name string) error {
	return c.do(ctx, request{method: "DELETE", path: "/bundles/" + url.PathEscape(name)}, nil)
}

// Publishers returns the trusted publishers.
func (c *Client) Publishers(ctx context.Context) ([]wire.Publisher, error) {
	var p wire.Page[wire.Publisher]
	err := c.do(ctx, request{method: "GET", path: "/publishers"}, &p)
	return p.Items, err
}

// TrustPublisher trusts a publisher's key.
func (c *Client) TrustPublisher(ctx context.Context, name string, p wire.AddPublisher) error {
	return c.do(ctx, request{method: "PUT", path: "/publishers/" + url.PathEscape(name), json: p}, nil)
}

// RemovePublisher removes a publisher. Its bundles can no longer be installed or called.
func (c *Client) RemovePublisher(ctx context.Context, name string) error {
	return c.do(ctx, request{method: "DELETE", path: "/publishers/" + url.PathEscape(name)}, nil)
}

// RotateKey replaces a publisher's key.
func (c *Client) RotateKey(ctx context.Context, r wire.RotateKey) error {
	return c.do(ctx, request{method: "POST", path: "/publishers/rotate", json: r}, nil)
}

// RevokeTrust revokes trust in a key or in a bundle digest.
func (c *Client) RevokeTrust(ctx context.Context, r wire.RevokeTrust) error {
	return c.do(ctx, request{method: "POST", path: "/publishers/revoke", json: r}, nil)
}

// SearchMarket returns the bundles of the markets that match all words.
func (c *Client) SearchMarket(ctx context.Context, words string) ([]wire.Offer, error) {
	var p wire.Page[wire.Offer]
	err := c.do(ctx, request{method: "GET", path: "/market", query: url.Values{"q": {words}}}, &p)
	return p.Items, err
}

// OutdatedBundles returns the newer versions that are offered of installed bundles.
func (c *Client) OutdatedBundles(ctx context.Context) ([]wire.Offer, error) {
	var p wire.Page[wire.Offer]
	err := c.do(ctx, request{method: "GET", path: "/market/outdated"}, &p)
	return p.Items, err
}

// InstallOffer installs a bundle from a market.
func (c *Client) InstallOffer(ctx context.Context, m wire.MarketInstall) (wire.Bundle, error) {
	var w wire.Bundle
	err := c.do(ctx, request{method: "POST", path: "/market/install", json: m}, &w)
	return w, err
}

// AddSkill adds a skill, or replaces the one with the same name.
func (c *Client) AddSkill(ctx context.Context, s wire.AddSkill) (wire.Skill, error) {
	var w wire.Skill
	err := c.do(ctx, request{method: "POST", path: "/skills", json: s}, &w)
	return w, err
}

// Skills returns all skills.
func (c *Client) Skills(ctx context.Context) ([]wire.Skill, error) {
	var p wire.Page[wire.Skill]
	err := c.do(ctx, request{method: "GET", path: "/skills"}, &p)
	return p.Items, err
}

// Skill returns a skill as an agent reads it.
func (c *Client) Skill(ctx context.Context, name string) (wire.Skill, error) {
	var w wire.Skill
	err := c.do(ctx, request{method: "GET", path: "/skills/" + url.PathEscape(name)}, &w)
	return w, err
}

// RemoveSkill deletes a skill.
func (c *Client) RemoveSkill(ctx context.Context, name string) error {
	return c.do(ctx, request{method: "DELETE", path: "/skills/" + url.PathEscape(name)}, nil)
}

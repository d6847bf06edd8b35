package client

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// Policy returns a jail's policy and what follows from it.
func (c *Client) Policy(ctx context.Context, j id.Jail) (wire.PolicyState, error) {
	var p wire.PolicyState
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/policy")}, &p)
	return p, err
}

// SetPolicy gives a jail another policy, at once.
func (c *Client) SetPolicy(ctx context.Context, j id.Jail, p wire.Policy) (wire.PolicyState, error) {
	var out wire.PolicyState
	err := c.do(ctx, request{method: "PUT", path: jailPath(j, "/policy"), json: p}, &out)
	return out, err
}

// DeletePolicy takes a jail's policy away.
func (c *Client) DeletePolicy(ctx context.Context, j id.Jail) error {
	return c.do(ctx, request{method: "DELETE", path: jailPath(j, "/policy")}, nil)
}

// SetLevel changes a jail's level of autonomy, at once.
func (c *Client) SetLevel(ctx context.Context, j id.Jail, level int) (wire.PolicyState, error) {
	var out wire.PolicyState
	err := c.do(ctx, request{method: "POST", path: jailPath(j, "/policy/level"), json: wire.PolicyLevel{Level: level}}, &out)
	return out, err
}

// LintPolicy says what in a policy does not do what it seems to.
func (c *Client) LintPolicy(ctx context.Context, p wire.Policy) (wire.PolicyState, error) {
	var out wire.PolicyState
	err := c.do(ctx, request{method: "POST", path: "/policy/lint", json: p}, &out)
	return out, err
}

// ExplainPolicy says what a policy would answer, and why.
func (c *Client) ExplainPolicy(ctx context.Context, e wire.Explain) (wire.Explained, error) {
	var out wire.Explained
	err := c.do(ctx, request{method: "POST", path: "/policy/explain", json: e}, &out)
	return out, err
}

// Decide asks whether something may be done, and waits for a person if one is to
// be asked.
func (c *Client) Decide(ctx context.Context, j id.Jail, d wire.Decide) (wire.Verdict, error) {
	var v wire.Verdict
	err := c.do(ctx, request{method: "POST", path: jailPath(j, "/decide"), json: d}, &v)
	return v, err
}

// Egress returns what may leave a jail.
func (c *Client) Egress(ctx context.Context, j id.Jail) (wire.EgressState, error) {
	var e wire.EgressState
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/egress")}, &e)
	return e, err
}

// SetEgress changes what may leave a jail, at once.
func (c *Client) SetEgress(ctx context.Context, j id.Jail, e wire.Egress) (wire.EgressState, error) {
	var out wire.EgressState
	err := c.do(ctx, request{method: "PUT", path: jailPath(j, "/egress"), json: e}, &out)
	return out, err
}

// Trail yields what was decided about a jail, oldest first. Query has the names of
// the API's parameters; nil is all.
func (c *Client) Trail(ctx context.Context, j id.Jail, query url.Values) iter.Seq2[wire.TrailEntry, error] {
	return pages[wire.TrailEntry](ctx, c, "/sandbox/"+url.PathEscape(string(j))+"/decisions", query)
}

// Claim says what an agent is about to do, and hears whether it may.
func (c *Client) Claim(ctx context.Context, j id.Jail, d wire.ClaimedDecision) (wire.Verdict, error) {
	var v wire.Verdict
	err := c.do(ctx, request{method: "POST", path: "/sandbox/" + url.PathEscape(string(j)) + "/decisions", json: d}, &v)
	return v, err
}

// Chain yields entries of the causal chain, oldest first. Query has the names of
// the API's parameters.
func (c *Client) Chain(ctx context.Context, query url.Values) iter.Seq2[wire.ChainEntry, error] {
	return pages[wire.ChainEntry](ctx, c, "/chain", query)
}

// ChainEntry returns an entry of the chain.
func (c *Client) ChainEntry(ctx context.Context, seq int64) (wire.ChainEntry, error) {
	var e wire.ChainEntry
	err := c.do(ctx, request{method: "GET", path: fmt.Sprintf("/chain/%d", seq)}, &e)
	return e, err
}

// ChainCauses returns what caused an entry, the first cause first.
func (c *Client) ChainCauses(ctx context.Context, seq int64) ([]wire.ChainEntry, error) {
	var p wire.Page[wire.ChainEntry]
	err := c.do(ctx, request{method: "GET", path: fmt.Sprintf("/chain/%d/causes", seq)}, &p)
	return p.Items, err
}

// ChainHead returns how long the chain is, and its newest checkpoint.
func (c *Client) ChainHead(ctx context.Context) (wire.ChainHead, error) {
	var h wire.ChainHead
	err := c.do(ctx, request{method: "GET", path: "/chain/head"}, &h)
	return h, err
}

// VerifyChain verifies the chain: all of it, or what was added since.
func (c *Client) VerifyChain(ctx context.Context, all bool) (wire.ChainReport, error) {
	var r wire.ChainReport
	err := c.do(ctx, request{method: "GET", path: "/chain/verify", query: flags("all", all)}, &r)
	return r, err
}

// ChainProof proves that an entry is in the chain.
func (c *Client) ChainProof(ctx context.Context, seq int64) (wire.ChainProof, error) {
	var p wire.ChainProof
	err := c.do(ctx, request{method: "GET", path: fmt.Sprintf("/chain/%d/proof", seq)}, &p)
	return p, err
}

// ChainConsistency proves that the chain contains that of an earlier checkpoint.
func (c *Client) ChainConsistency(ctx context.Context, checkpoint string) (wire.ChainConsistency, error) {
	var p wire.ChainConsistency
	err := c.do(ctx, request{method: "POST", path: "/chain/consistency", json: wire.ChainFrom{Checkpoint: checkpoint}}, &p)
	return p, err
}

// ExportChain returns the chain with its checkpoints and its key, as lines. The
// caller closes it.
func (c *Client) ExportChain(ctx context.Context) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: "/chain/export"})
}

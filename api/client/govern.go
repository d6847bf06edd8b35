package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// Policy returns a jail's policy and how it is interpreted.
func (c *Client) Policy(ctx context.Context, j id.Jail) (wire.PolicyState, error) {
	var p wire.PolicyState
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/policy")}, &p)
	return p, err
}

// SetPolicy replaces a jail's policy. The new policy takes effect immediately.
func (c *Client) SetPolicy(ctx context.Context, j id.Jail, p wire.Policy) (wire.PolicyState, error) {
	var out wire.PolicyState
	err := c.do(ctx, request{method: "PUT", path: jailPath(j, "/policy"), json: p}, &out)
	return out, err
}

// DeletePolicy removes a jail's policy.
func (c *Client) DeletePolicy(ctx context.Context, j id.Jail) error {
	return c.do(ctx, request{method: "DELETE", path: jailPath(j, "/policy")}, nil)
}

// SetLevel changes a jail's autonomy level. The change takes effect immediately.
func (c *Client) SetLevel(ctx context.Context, j id.Jail, level int) (wire.PolicyState, error) {
	var out wire.PolicyState
	err := c.do(ctx, request{method: "POST", path: jailPath(j, "/policy/level"), json: wire.PolicyLevel{Level: level}}, &out)
	return out, err
}

// LintPolicy lints a policy.
func (c *Client) LintPolicy(ctx context.Context, p wire.Policy) (wire.PolicyState, error) {
	var out wire.PolicyState
	err := c.do(ctx, request{method: "POST", path: "/policy/lint", json: p}, &out)
	return out, err
}

// ExplainPolicy evaluates a policy decision without effect and returns the rules that were
// considered.
func (c *Client) ExplainPolicy(ctx context.Context, e wire.Explain) (wire.Explained, error) {
	var out wire.Explained
	err := c.do(ctx, request{method: "POST", path: "/policy/explain", json: e}, &out)
	return out, err
}

// Decide evaluates a policy decision, and waits for approval if it is required.
func (c *Client) Decide(ctx context.Context, j id.Jail, d wire.Decide) (wire.Verdict, error) {
	var v wire.Verdict
	err := c.do(ctx, request{method: "POST", path: jailPath(j, "/decide"), json: d}, &v)
	return v, err
}

// Egress returns a jail's egress rules and traffic statistics.
func (c *Client) Egress(ctx context.Context, j id.Jail) (wire.EgressState, error) {
	var e wire.EgressState
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/egress")}, &e)
	return e, err
}

// SetEgress replaces a jail's egress rules. They take effect immediately.
func (c *Client) SetEgress(ctx context.Context, j id.Jail, e wire.Egress) (wire.EgressState, error) {
	var out wire.EgressState
	err := c.do(ctx, request{method: "PUT", path: jailPath(j, "/egress"), json: e}, &out)
	return out, err
}

// ChangeEgress changes a jail's egress rules with change. If the rules are changed elsewhere at
// the same time, it reads them again and calls change again, so that neither change is lost.
func (c *Client) ChangeEgress(ctx context.Context, j id.Jail, change func(*wire.Egress) error) (wire.EgressState, error) {
	for last := ""; ; {
		now, err := c.Egress(ctx, j)
		if err != nil {
			return wire.EgressState{}, err
		}
		if err := change(&now.Egress); err != nil {
			return wire.EgressState{}, err
		}
		r := request{method: "PUT", path: jailPath(j, "/egress"), json: now.Egress}
		if now.Version != "" { // an older daemon returns no version
			r.query = url.Values{"version": {now.Version}}
		}
		var out wire.EgressState
		err = c.do(ctx, r, &out)
		// A conflict about the same version again has another cause, such as the state of the jail.
		if now.Version == last || !errors.Is(err, fault.Conflict) {
			return out, err
		}
		last = now.Version
	}
}

// Trail yields the policy decisions about a jail, oldest first. Query contains the query
// parameters of the API; nil selects all decisions.
func (c *Client) Trail(ctx context.Context, j id.Jail, query url.Values) iter.Seq2[wire.TrailEntry, error] {
	return pages[wire.TrailEntry](ctx, c, "/sandbox/"+url.PathEscape(string(j))+"/decisions", query)
}

// Claim reports a tool call that an agent is about to make and returns the policy decision.
func (c *Client) Claim(ctx context.Context, j id.Jail, d wire.ClaimedDecision) (wire.Verdict, error) {
	var v wire.Verdict
	err := c.do(ctx, request{method: "POST", path: "/sandbox/" + url.PathEscape(string(j)) + "/decisions", json: d}, &v)
	return v, err
}

// Chain yields entries of the audit log (the causal chain), oldest first. Query contains the
// query parameters of the API.
func (c *Client) Chain(ctx context.Context, query url.Values) iter.Seq2[wire.ChainEntry, error] {
	return pages[wire.ChainEntry](ctx, c, "/chain", query)
}

// ChainEntry returns an entry of the audit log.
func (c *Client) ChainEntry(ctx context.Context, seq int64) (wire.ChainEntry, error) {
	var e wire.ChainEntry
	err := c.do(ctx, request{method: "GET", path: fmt.Sprintf("/chain/%d", seq)}, &e)
	return e, err
}

// ChainCauses returns the causes of an audit log entry, first cause first.
func (c *Client) ChainCauses(ctx context.Context, seq int64) ([]wire.ChainEntry, error) {
	var p wire.Page[wire.ChainEntry]
	err := c.do(ctx, request{method: "GET", path: fmt.Sprintf("/chain/%d/causes", seq)}, &p)
	return p.Items, err
}

// ChainHead returns the length of the audit log, its public key and its newest checkpoint.
func (c *Client) ChainHead(ctx context.Context) (wire.ChainHead, error) {
	var h wire.ChainHead
	err := c.do(ctx, request{method: "GET", path: "/chain/head"}, &h)
	return h, err
}

// VerifyChain verifies the audit log: all of it, or only the entries since the last
// verification.
func (c *Client) VerifyChain(ctx context.Context, all bool) (wire.ChainReport, error) {
	var r wire.ChainReport
	err := c.do(ctx, request{method: "GET", path: "/chain/verify", query: flags("all", all)}, &r)
	return r, err
}

// ChainProof proves that an entry is in the audit log.
func (c *Client) ChainProof(ctx context.Context, seq int64) (wire.ChainProof, error) {
	var p wire.ChainProof
	err := c.do(ctx, request{method: "GET", path: fmt.Sprintf("/chain/%d/proof", seq)}, &p)
	return p, err
}

// ChainConsistency proves that the audit log extends the log of an earlier checkpoint.
func (c *Client) ChainConsistency(ctx context.Context, checkpoint string) (wire.ChainConsistency, error) {
	var p wire.ChainConsistency
	err := c.do(ctx, request{method: "POST", path: "/chain/consistency", json: wire.ChainFrom{Checkpoint: checkpoint}}, &p)
	return p, err
}

// WitnessedLogs returns what the daemon has seen of the audit logs of other nodes of its fleet.
func (c *Client) WitnessedLogs(ctx context.Context) ([]wire.WitnessedLog, error) {
	var p wire.Page[wire.WitnessedLog]
	err := c.do(ctx, request{method: "GET", path: "/chain/witnessed"}, &p)
	return p.Items, err
}

// StoredLogs returns the copies of the audit logs of all nodes of the fleet in the object store.
func (c *Client) StoredLogs(ctx context.Context) ([]wire.StoredLog, error) {
	var p wire.Page[wire.StoredLog]
	err := c.do(ctx, request{method: "GET", path: "/chain/stored"}, &p)
	return p.Items, err
}

// ExportChain returns the audit log with its checkpoints and public key as lines of JSON.
// The caller closes it.
func (c *Client) ExportChain(ctx context.Context) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: "/chain/export"})
}

// ExportStoredLog is like ExportChain for the copy of a node's audit log in the object store.
func (c *Client) ExportStoredLog(ctx context.Context, node string) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: "/chain/export", query: url.Values{"stored": {node}}})
}

package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"strconv"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func approvalPath(a id.Approval, rest string) string {
	return "/approvals/" + url.PathEscape(string(a)) + rest
}

// Approvals returns the approval requests in a state: pending ones oldest first, settled
// ones newest first. State "" is pending and "all" is every state. An empty jail selects all
// jails.
func (c *Client) Approvals(ctx context.Context, state string, j id.Jail) ([]wire.Approval, error) {
	q := url.Values{}
	if state != "" {
		q.Set("state", state)
	}
	if j != "" {
		q.Set("jail", string(j))
	}
	var p wire.Page[wire.Approval]
	err := c.do(ctx, request{method: "GET", path: "/approvals", query: q}, &p)
	return p.Items, err
}

// ApprovalsOfAllNodes returns the pending approval requests of all nodes of a fleet, or those of one
// jail.
func (c *Client) ApprovalsOfAllNodes(ctx context.Context, j id.Jail) ([]wire.Approval, error) {
	q := url.Values{"nodes": {"all"}}
	if j != "" {
		q.Set("jail", string(j))
	}
	var p wire.Page[wire.Approval]
	err := c.do(ctx, request{method: "GET", path: "/approvals", query: q}, &p)
	return p.Items, err
}

// Approval returns an approval request. If wait is not zero, it returns when the request is
// settled or after wait.
func (c *Client) Approval(ctx context.Context, a id.Approval, wait time.Duration) (wire.Approval, error) {
	q := url.Values{}
	if wait > 0 {
		q.Set("wait_ms", strconv.FormatInt(wait.Milliseconds(), 10))
	}
	var w wire.Approval
	err := c.do(ctx, request{method: "GET", path: approvalPath(a, ""), query: q}, &w)
	return w, err
}

// Answer answers an approval request.
func (c *Client) Answer(ctx context.Context, a id.Approval, answer wire.AnswerApproval) (wire.Approval, error) {
	var w wire.Approval
	err := c.do(ctx, request{method: "POST", path: approvalPath(a, ""), json: answer}, &w)
	return w, err
}

// Withdraw withdraws an approval request.
func (c *Client) Withdraw(ctx context.Context, a id.Approval) (wire.Approval, error) {
	var w wire.Approval
	err := c.do(ctx, request{method: "DELETE", path: approvalPath(a, "")}, &w)
	return w, err
}

// ApprovalEvents yields the state changes of approval requests, beginning with the pending
// requests. It ends when ctx is cancelled or the daemon stops.
func (c *Client) ApprovalEvents(ctx context.Context) iter.Seq2[wire.ApprovalEvent, error] {
	return func(yield func(wire.ApprovalEvent, error) bool) {
		body, err := c.open(ctx, request{method: "GET", path: "/approvals/events"})
		if err != nil {
			yield(wire.ApprovalEvent{}, err)
			return
		}
		defer body.Close()
		for r := newSSEReader(body); ; {
			e, err := r.next()
			var w wire.ApprovalEvent
			if err == nil {
				err = json.Unmarshal([]byte(e.data), &w)
			}
			if !yield(w, err) || err != nil {
				return
			}
		}
	}
}

// DeadNotices returns the notifications that could not be delivered.
func (c *Client) DeadNotices(ctx context.Context) ([]wire.DeadNotice, error) {
	var p wire.Page[wire.DeadNotice]
	err := c.do(ctx, request{method: "GET", path: "/notices/dead"}, &p)
	return p.Items, err
}

// Redeliver retries a notification.
func (c *Client) Redeliver(ctx context.Context, nid string) error {
	return c.do(ctx, request{method: "POST", path: "/notices/" + url.PathEscape(nid) + "/redeliver"}, nil)
}

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
)

// Approvals is the approval queue as the API uses it. *approval.Queue implements it.
type Approvals interface {
	Get(ctx context.Context, a id.Approval) (approval.Request, error)
	List(ctx context.Context, f approval.Filter) ([]approval.Request, error)
	Pending() []approval.Request
	Wait(ctx context.Context, a id.Approval) (approval.Request, error)
	Answer(ctx context.Context, a id.Approval, answer approval.Answer) (approval.Request, error)
	Withdraw(ctx context.Context, a id.Approval, reason string) (approval.Request, error)
	Subscribe() *approval.Subscription
	DeadLetters(ctx context.Context) ([]approval.Notice, error)
	Redeliver(ctx context.Context, nid string) error
	Links() http.Handler

	PushKey() (string, error)
	SubscribeBrowser(ctx context.Context, b approval.Browser) (approval.Browser, error)
	Browsers(ctx context.Context) ([]approval.Browser, error)
	Unsubscribe(ctx context.Context, b id.Browser) error
}

// approvalHandler serves the routes of approval requests.
type approvalHandler struct {
	approvals  Approvals
	recordings *recordings
	streams    *streams
	fleet      Fleet // nil: this daemon is not in a fleet
	front      bool  // it has no jails of its own
}

var noApprovals = fault.Cannot("api.approvals", "this daemon has no approval queue", "start the daemon with glasshouse serve")

type listApprovals struct {
	State string  `query:"state" enum:"pending,answered,expired,withdrawn,all" description:"Default: pending."`
	Jail  id.Jail `query:"jail" description:"Only requests of this jail."`
	Limit int     `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of settled requests, newest first. Default 100."`
	Nodes string  `query:"nodes" enum:"all,self" description:"all: the pending requests of all nodes of the fleet, without preview and context, up to a second old. self: the requests of the daemon that answers. Default self, or all if that daemon has no jails."`
}

// listApprovals lists pending approval requests, oldest first, or settled ones, newest first.
func (h *approvalHandler) listApprovals(ctx context.Context, p listApprovals, _ none) (wire.Page[wire.Approval], error) {
	page := wire.Page[wire.Approval]{Items: []wire.Approval{}}
	pending := p.State == "" || p.State == string(approval.Pending)
	everywhere, err := allNodes("api.listApprovals", p.Nodes, h.fleet, h.front && pending)
	switch {
	case err != nil:
		return page, err
	case everywhere && !pending:
		return page, fault.Fieldf("api.listApprovals", "nodes", "settled requests are listed by the node of their jail")
	case everywhere:
		page.Items, err = h.pendingOfAll(ctx, p.Jail)
		return page, err
	case pending:
		for _, r := range h.approvals.Pending() {
			if p.Jail == "" || r.Question.Subject.Jail == p.Jail {
				page.Items = append(page.Items, approvalOf(r))
			}
		}
		return page, nil
	}
	f := approval.Filter{Jail: p.Jail, State: approval.State(p.State), Limit: p.Limit}
	if p.State == "all" {
		f.State = ""
	}
	list, err := h.approvals.List(ctx, f)
	if err != nil {
		return page, err
	}
	for _, r := range list {
		page.Items = append(page.Items, approvalOf(r))
	}
	return page, nil
}

// pendingOfAll returns the pending requests of all nodes, or of one jail, oldest first.
func (h *approvalHandler) pendingOfAll(ctx context.Context, of id.Jail) ([]wire.Approval, error) {
	names, all := nodeNames{fleet: h.fleet}, []wire.Approval{}
	list, err := fleet.All(ctx, h.fleet, fleet.Approval, "")
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		var w wire.Approval
		if err := json.Unmarshal([]byte(o.Summary), &w); err != nil {
			return nil, fmt.Errorf("read the summary of approval request %s: %w", o.ID, err)
		}
		if w.ID == "" || of != "" && w.Jail != of {
			continue
		}
		w.Node, err = names.of(ctx, o.Node)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// summaryOf returns what the index of the fleet has of a request: enough to decide whether to look
// at it.
func summaryOf(r approval.Request) wire.Approval {
	w := approvalOf(r)
	w.Diff, w.NoDiff, w.Context = "", "", ""
	w.Waiting = 0 // it would change too often
	return w
}

// shownBytes is the maximum size of the preview in an approval.
const shownBytes = 64 << 10

func approvalOf(r approval.Request) wire.Approval {
	var would approval.Preview
	would, r.Context = approval.PreviewOf(r)
	v := approval.Show(r, shownBytes)
	w := wire.Approval{
		ID: r.ID, Jail: r.Question.Subject.Jail, State: string(r.State), Tier: string(r.Tier),
		Title: v.Title, What: v.What, Who: v.Requester, Details: v.Details, Why: v.Reason, Rule: v.Rule,
		Phrase: v.Phrase, First: v.First, Context: v.Context, Diff: approval.VisibleCode(would.Diff), NoDiff: approval.Visible(would.NoDiffReason),
		Question: wire.Question{Action: r.Question.Action, Resource: r.Question.Resource, Agent: r.Question.Subject.Agent, Attributes: r.Question.Attributes},
		Created:  r.Created.UTC(), Expires: r.Expires.UTC(), Outcome: v.Outcome, Waiting: r.Waiting, Entry: r.ChainEntry,
	}
	for scope, rule := range v.Writes {
		if w.Writes == nil {
			w.Writes = map[string]string{}
		}
		w.Writes[string(scope)] = rule
	}
	if !r.Settled.IsZero() {
		w.Settled = utc(&r.Settled)
	}
	if a := r.Answer; a != nil {
		w.Answer = &wire.ApprovalAnswer{
			Answer: string(a.Verdict), Scope: string(a.Scope), Reason: approval.Visible(a.Reason), Resource: a.Resource,
			By: a.By.Name, Channel: a.Channel, At: a.At.UTC(),
		}
	}
	return w
}

type oneApproval struct {
	ID   id.Approval `path:"approval"`
	Wait int64       `query:"wait_ms" minimum:"0" maximum:"600000" description:"Respond when the request is settled, or after this many milliseconds."`
	Last int         `query:"last" minimum:"0" maximum:"100" description:"Include this many of the jail's last file, network and process events before the request."`
}

func (h *approvalHandler) getApproval(ctx context.Context, p oneApproval, _ none) (wire.Approval, error) {
	if p.Last < 0 || p.Last > 100 {
		return wire.Approval{}, fault.Fieldf("api.getApproval", "last", "%d is not between 0 and 100", p.Last)
	}
	var r approval.Request
	var err error
	if p.Wait == 0 {
		r, err = h.approvals.Get(ctx, p.ID)
	} else {
		waiting, cancel := context.WithTimeout(ctx, time.Duration(p.Wait)*time.Millisecond)
		defer cancel()
		r, err = h.approvals.Wait(waiting, p.ID)
	}
	if err != nil {
		return wire.Approval{}, err
	}
	w := approvalOf(r)
	if p.Last > 0 {
		w.Before, err = h.before(ctx, r, p.Last)
	}
	return w, err
}

// contextEvents selects the events that help a person to decide a request.
const contextEvents = "type:file,net,proc,gap -op:read,close"

// before returns the last events of the jail before the approval request. The result is empty
// if the jail was deleted or is not observed.
func (h *approvalHandler) before(ctx context.Context, r approval.Request, n int) ([]json.RawMessage, error) {
	list := []json.RawMessage{}
	if r.Question.Subject.Jail == "" {
		return list, nil
	}
	l, err := h.recordings.log(ctx, r.Question.Subject.Jail)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unsupported) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := event.ParseFilter(contextEvents)
	if err != nil {
		return nil, err
	}
	c, err := read(ctx, l, eventlog.Query{Filter: f, Until: r.Created, Tail: n})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for {
		line, err := c.Next(nil)
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the events before the request: %w", err)
		}
		list = append(list, bytes.Clone(line))
	}
}

type approvalPath struct {
	ID id.Approval `path:"approval"`
}

// approverOf returns the approver: the authenticated caller.
func approverOf(c access.Caller) approval.Person {
	p := approval.Person{ID: c.ID(), Name: c.Name, Role: string(c.Role)}
	if c.Local { // credentials of the socket take precedence over a token
		p.ID = fmt.Sprintf("uid %d", c.UID)
	}
	return p
}

func (h *approvalHandler) answerApproval(ctx context.Context, p approvalPath, b wire.AnswerApproval) (wire.Approval, error) {
	caller := access.CallerOf(ctx)
	a := approval.Answer{
		Verdict: approval.Verdict(b.Answer), Scope: approval.Scope(b.Scope), Reason: b.Reason, Resource: b.Resource, Typed: b.Typed,
		By: approverOf(caller), Channel: "api",
	}
	if caller.Local {
		a.Channel = "socket"
	}
	r, err := h.approvals.Answer(ctx, p.ID, a)
	if err != nil {
		return wire.Approval{}, err
	}
	return approvalOf(r), nil
}

func (h *approvalHandler) withdrawApproval(ctx context.Context, p approvalPath, _ none) (wire.Approval, error) {
	r, err := h.approvals.Withdraw(ctx, p.ID, "withdrawn by "+access.CallerOf(ctx).Name)
	if err != nil {
		return wire.Approval{}, err
	}
	return approvalOf(r), nil
}

// streamApprovals streams changes of approval requests. It starts with the pending ones.
func (h *approvalHandler) streamApprovals(w http.ResponseWriter, r *http.Request, _ none) error {
	ctx, cancel := h.streams.context(r)
	defer cancel()
	sub := h.approvals.Subscribe()
	defer sub.Close()
	out := startEvents(w, writeTime)
	if err := out.beat(); err != nil { // confirms that the stream is open, even if no request is pending
		return nil
	}
	for _, p := range h.approvals.Pending() {
		if err := out.send("", string(approval.KindAsked), wire.ApprovalEvent{Kind: string(approval.KindAsked), At: p.Created.UTC(), Approval: approvalOf(p)}); err != nil {
			return nil // the client disconnected
		}
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			err = out.beat()
		case e, ok := <-sub.C:
			if !ok {
				return nil // the client is too slow: after it reconnects, it receives the current state
			}
			err = out.send("", string(e.Kind), wire.ApprovalEvent{Kind: string(e.Kind), At: e.At.UTC(), Approval: approvalOf(e.Request)})
		}
		if err != nil {
			return nil
		}
	}
}

func (h *approvalHandler) listDeadNotices(ctx context.Context, _ none, _ none) (wire.Page[wire.DeadNotice], error) {
	page := wire.Page[wire.DeadNotice]{Items: []wire.DeadNotice{}}
	list, err := h.approvals.DeadLetters(ctx)
	if err != nil {
		return page, fmt.Errorf("list the undelivered notices: %w", err)
	}
	for _, n := range list {
		page.Items = append(page.Items, wire.DeadNotice{
			ID: n.ID, Approval: n.Approval, Channel: n.Channel, Kind: string(n.Kind), Created: n.Created.UTC(), Attempts: n.Attempts, Error: n.Error, Body: n.Body,
		})
	}
	return page, nil
}

type oneNotice struct {
	ID string `path:"notice"`
}

func (h *approvalHandler) redeliverNotice(ctx context.Context, p oneNotice, _ none) (none, error) {
	return none{}, h.approvals.Redeliver(ctx, p.ID)
}

// linksPath is the path prefix of an approval link, before its token.
const linksPath = "/answers/"

// answerLink serves the approval links that notifications contain. The holder of a link may
// give its answer once.
func (h *approvalHandler) answerLink(w http.ResponseWriter, r *http.Request, _ linkPath) error {
	http.StripPrefix(strings.TrimSuffix(linksPath, "/"), h.approvals.Links()).ServeHTTP(w, r)
	return nil
}

type linkPath struct {
	Token string `path:"token"`
}

package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
)

// siblings carries requests between the agents of a group, and their requests for resources and
// tasks.
type siblings struct {
	*core
	supervisions *supervisions
	decisions    *decisions
}

// tools returns the tools for siblings, resources and tasks.
func (sb *siblings) tools() []builtinTool {
	return []builtinTool{
		{
			Tool: Tool{"coordinate_sibling", "Send a request to a sibling agent of the same group.", objectSchema(`
				"targetSandboxId": {"type": "string", "description": "the sibling's name, jail or session"},
				"action": {"type": "string", "description": "what the sibling should do, in one or two words"},
				"context": {"type": "string", "description": "everything that the sibling needs to know"},
				"reply_timeout_ms": {"type": "integer", "minimum": 0, "maximum": 3600000, "description": "how long to wait for the reply; 0: do not wait. Default 300000"}`,
				"targetSandboxId", "action"), "autonomy"},
			do: sb.coordinateTool, waitsForPeer: true,
		},
		{
			Tool: Tool{"sibling_requests", "List the requests of siblings to you.", objectSchema(`
				"wait_ms": {"type": "integer", "minimum": 0, "maximum": 60000, "description": "how long to wait if there are no requests"}`), "autonomy"},
			do: sb.requestsTool, waitsForPeer: true,
		},
		{
			Tool: Tool{"reply_sibling", "Reply to a request of a sibling.", objectSchema(`
				"request": {"type": "string", "description": "id of the request"},
				"answer": {"type": "string"}`, "request", "answer"), "autonomy"},
			do: sb.replyTool,
		},
		{
			Tool: Tool{"request_resources", "Request at least this much CPU, memory, disk or this many processes. A request for less than you were lent returns the rest.", objectSchema(`
				"cpu": {"type": "string", "description": "processors, such as 2 or 1.5"},
				"memory": {"type": "string", "description": "such as 4Gi"},
				"disk": {"type": "string"},
				"pids": {"type": "integer"}`), "autonomy"},
			do: sb.resourcesTool,
		},
		{
			Tool: Tool{"create_task", "Add a task to the project's backlog.", objectSchema(`
				"title": {"type": "string"},
				"description": {"type": "string"},
				"priority": {"type": "string", "enum": ["low", "medium", "high", "urgent"]}`, "title"), "autonomy"},
			question: questionFrom(actionTask, func(in *taskInput) string { return in.Title }),
			do:       sb.taskTool,
		},
	}
}

// Member returns the caller as a member of its group.
func (c Caller) Member() autonomy.Member {
	return autonomy.Member{Jail: c.Jail, Session: c.Session, Run: c.Run, Agent: c.Agent, Name: c.Name, Group: c.Group, Level: c.Level}
}

type coordinateInput struct {
	Target  string `json:"targetSandboxId"`
	Action  string `json:"action"`
	Context string `json:"context,omitempty"`
	Reply   *int64 `json:"reply_timeout_ms,omitempty"`
}

// defaultReplyTimeout is how long to wait for a reply if the caller sets no timeout.
const defaultReplyTimeout = 5 * time.Minute

func (sb *siblings) coordinateTool(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[coordinateInput](inv.input)
	if err != nil {
		return nil, err
	}
	wait := defaultReplyTimeout
	if in.Reply != nil {
		wait = time.Duration(*in.Reply) * time.Millisecond
	}
	return sb.Coordinate(ctx, inv.caller, autonomy.Ask{To: in.Target, Action: in.Action, Context: in.Context, ReplyWithin: wait, Key: inv.key})
}

// An RequestOutcome is the outcome of a request to a sibling, as reported to the requester.
type RequestOutcome struct {
	Request    id.Request     `json:"request"`
	State      autonomy.State `json:"state"`
	To         string         `json:"to,omitempty"`
	Answer     string         `json:"answer,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	Remedy     string         `json:"remedy,omitempty"`
	RetryAfter int64          `json:"retry_after_ms,omitempty"`
	Position   int            `json:"place,omitempty"` // position in the queue, from 1; 0: not queued
}

// Coordinate sends a request to a sibling and waits for the reply if a.ReplyWithin is
// positive. A refused request is not an error: the result has the state refused.
func (sb *siblings) Coordinate(ctx context.Context, c Caller, a autonomy.Ask) (RequestOutcome, error) {
	if sb.services.Broker == nil {
		return RequestOutcome{}, fault.Cannot("gateway.Coordinate", "peer messaging is not enabled for this run", "")
	}
	defer sb.supervisions.activityOf(c.Run).begin("coordinate_sibling", true)()
	var err error
	a.To, err = sb.sessionOf(ctx, c, a.To)
	if err != nil {
		return RequestOutcome{}, err
	}
	r, err := sb.services.Broker.Ask(ctx, c.Member(), a)
	if err != nil {
		return RequestOutcome{}, err
	}
	out := RequestOutcome{Request: r.ID, State: r.State, To: r.To.Name, Answer: r.Answer, Reason: r.Why, Position: r.QueuePosition}
	if r.Refusal != nil {
		out.Reason, out.Remedy, out.RetryAfter = r.Refusal.Reason, r.Refusal.Remedy, r.Refusal.RetryAfter.Milliseconds()
	}
	return out, nil
}

// sessionOf returns the session of a jail if to is the id of a sibling's jail, and to itself
// otherwise. A session may have several jails, and members are identified by session.
func (sb *siblings) sessionOf(ctx context.Context, c Caller, to string) (string, error) {
	if !id.Valid('j', to) || to == string(c.Jail) {
		return to, nil
	}
	j, err := sb.cfg.Jails.Get(ctx, id.Jail(to))
	if err != nil {
		if errors.Is(err, fault.NotFound) {
			return to, nil // a jail of another daemon, or a name
		}
		return "", fmt.Errorf("get jail %s: %w", to, err)
	}
	sid := j.Spec.Labels[LabelSession]
	if sid == "" {
		return to, nil
	}
	s, err := sb.cfg.Runs.Session(ctx, sid)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return "", fmt.Errorf("read the session of jail %s: %w", to, err)
	}
	if s.Group == "" || s.Group != c.Group {
		return to, nil // do not reveal jails outside of the caller's group
	}
	return sid, nil
}

// Ready refuses a request whose sender would wait for a sibling without active runs, since no
// agent would reply. A sibling that never had a run may still get one, and any client may work
// in a jail without a run. It is an autonomy.BrokerConfig.Ready.
func (sb *siblings) Ready(ctx context.Context, to autonomy.Member) (*autonomy.Refusal, error) {
	last, err := sb.cfg.Runs.List(ctx, run.Filter{Session: to.Session, Limit: 1})
	if err != nil || len(last) == 0 {
		return nil, err
	}
	present, err := sb.hasAgent(ctx, to.Session)
	if err != nil || present {
		return nil, err
	}
	return &autonomy.Refusal{
		Code: "ended", Reason: fmt.Sprintf("the run of %s has ended: it is %s", memberName(to), last[0].State),
		Remedy: "ask another sibling, or send the request without waiting (reply_timeout_ms 0)",
	}, nil
}

// hasAgent reports whether an agent may work in a session: it has a run that has not ended, or
// a running jail that was not created for a run.
func (sb *siblings) hasAgent(ctx context.Context, sid string) (bool, error) {
	for _, states := range [][]run.State{{run.Active, run.Paused}, {run.Scheduled}} {
		runs, err := sb.cfg.Runs.List(ctx, run.Filter{Session: sid, States: states, Limit: 1})
		if err != nil {
			return true, fmt.Errorf("look for unfinished runs of session %s: %w", sid, err)
		}
		if len(runs) > 0 {
			return true, nil
		}
	}
	s, err := sb.cfg.Runs.Session(ctx, sid)
	if err != nil {
		return true, err
	}
	jails, err := sb.sessionJails(ctx, sid)
	if err != nil {
		return true, err
	}
	if s.Jail != "" {
		j, err := sb.cfg.Jails.Get(ctx, s.Jail)
		if err == nil {
			jails = append(jails, j)
		} else if !errors.Is(err, fault.NotFound) {
			return true, fmt.Errorf("get the jail of session %s: %w", sid, err)
		}
	}
	return slices.ContainsFunc(jails, func(j jail.Jail) bool {
		return j.Spec.Labels[LabelRun] == "" && (j.State == jail.Running || j.State == jail.Paused)
	}), nil
}

// sessionJails returns the jails that were created for a session, oldest first.
func (sb *siblings) sessionJails(ctx context.Context, sid string) ([]jail.Jail, error) {
	return sb.cfg.Jails.List(ctx, jail.ListOptions{Label: map[string]string{LabelSession: sid}})
}

// failSiblingRequests fails the pending requests to an ended run, if its session has no other
// agent that could reply.
func (sb *siblings) failSiblingRequests(ctx context.Context, r run.Run) {
	if sb.services.Broker == nil {
		return
	}
	s, err := sb.cfg.Runs.Session(ctx, r.Session)
	if err == nil && s.Group == "" {
		return
	}
	present := false
	if err == nil {
		present, err = sb.hasAgent(ctx, r.Session)
	}
	if err == nil && !present {
		m := autonomy.Member{Session: s.ID, Name: s.Name, Group: s.Group}
		err = sb.services.Broker.ReceiverGone(ctx, m, fmt.Sprintf("the run of %s has ended: it is %s", memberName(m), r.State))
	}
	if err != nil {
		sb.cfg.Log.Warn("could not fail the requests of siblings to a run that has ended", "run", r.ID, "session", r.Session, "err", err)
	}
}

// An SiblingRequest is a sibling's request, as reported to the receiving agent.
type SiblingRequest struct {
	Request  id.Request `json:"request"`
	From     string     `json:"from"`
	Action   string     `json:"action"`
	Context  string     `json:"context,omitempty"`
	Again    bool       `json:"again,omitempty"` // it was delivered before
	Deadline time.Time  `json:"deadline"`
}

// PendingRequests returns the pending requests to a caller. If there are none, it waits for up to
// wait.
func (sb *siblings) PendingRequests(ctx context.Context, c Caller, wait time.Duration) ([]SiblingRequest, error) {
	all := []SiblingRequest{}
	if sb.services.Broker == nil {
		return all, nil
	}
	defer sb.supervisions.activityOf(c.Run).begin("sibling_requests", true)()
	list, err := sb.services.Broker.Poll(ctx, c.Member(), wait)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		all = append(all, SiblingRequest{r.ID, memberName(r.From), r.Action, r.Context, r.Deliveries > 1, r.Deadline})
	}
	return all, nil
}

func memberName(m autonomy.Member) string {
	return cmp.Or(m.Name, cmp.Or(m.Session, string(m.Jail)))
}

func (sb *siblings) requestsTool(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[struct {
		WaitMS int64 `json:"wait_ms"`
	}](inv.input)
	if err != nil {
		return nil, err
	}
	all, err := sb.PendingRequests(ctx, inv.caller, min(time.Duration(in.WaitMS)*time.Millisecond, time.Minute))
	return struct {
		Requests []SiblingRequest `json:"requests"`
	}{all}, err
}

// Reply answers a sibling's request.
func (sb *siblings) Reply(ctx context.Context, c Caller, q id.Request, answer string) (RequestOutcome, error) {
	if sb.services.Broker == nil {
		return RequestOutcome{}, fault.Cannot("gateway.Reply", "peer messaging is not enabled for this run", "")
	}
	r, err := sb.services.Broker.Reply(ctx, c.Member(), q, answer)
	return RequestOutcome{Request: r.ID, State: r.State}, err
}

func (sb *siblings) replyTool(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[struct {
		Request id.Request `json:"request"`
		Answer  string     `json:"answer"`
	}](inv.input)
	if err != nil {
		return nil, err
	}
	return sb.Reply(ctx, inv.caller, in.Request, in.Answer)
}

func (sb *siblings) resourcesTool(ctx context.Context, inv *invocation) (any, error) {
	return sb.AskResources(ctx, inv.caller, inv.input)
}

type taskInput struct {
	Title       string            `json:"title"`
	Description string            `json:"description,omitempty"`
	Priority    autonomy.Priority `json:"priority,omitempty"`
}

func (sb *siblings) taskTool(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[taskInput](inv.input)
	if err != nil {
		return nil, err
	}
	at := time.Now()
	if ms, err := strconv.ParseInt(inv.ref, 10, 64); err == nil {
		at = time.UnixMilli(ms)
	} else if err := inv.saveRef(ctx, strconv.FormatInt(at.UnixMilli(), 10)); err != nil {
		return nil, err
	}
	return sb.createTask(ctx, inv.caller, autonomy.NewTask{Title: in.Title, Description: in.Description, Priority: in.Priority, At: at})
}

// A CreatedTask is a created task, as reported to the agent that created it.
type CreatedTask struct {
	Created bool   `json:"created"`
	TaskID  string `json:"taskId"`
	Path    string `json:"path"`
}

// actionTask is the policy action for the creation of tasks.
const actionTask = "create_task"

// CreateTask adds a task to the backlog, if the policy allows it.
func (sb *siblings) CreateTask(ctx context.Context, c Caller, n autonomy.NewTask) (CreatedTask, error) {
	q := policy.Question{Action: actionTask, Resource: n.Title}
	v, err := sb.decisions.decide(ctx, c, q)
	err = cmp.Or(err, denialError(q, v))
	if err != nil {
		return CreatedTask{}, err
	}
	return sb.createTask(ctx, c, n)
}

func (sb *siblings) createTask(ctx context.Context, c Caller, n autonomy.NewTask) (CreatedTask, error) {
	if sb.cfg.Tasks == nil || c.Jail == "" {
		return CreatedTask{}, fault.Cannot("gateway.createTask", "this agent has no workspace for a backlog", "")
	}
	t, err := sb.cfg.Tasks.Create(ctx, c.Member(), n)
	if err != nil && t.ID == "" {
		return CreatedTask{}, err
	}
	if err != nil {
		sb.cfg.Log.Warn("could not write a backlog task to the workspace; it will be retried", "task", t.ID, "err", err)
	}
	return CreatedTask{true, t.ID, t.Path}, nil
}

// Workspaces accesses task files in the workspaces of jails. It implements autonomy.Files.
type Workspaces struct{ Jails Jails }

func (w Workspaces) open(ctx context.Context, jid id.Jail, p string) (jail.Files, string, error) {
	j, err := w.Jails.Get(ctx, jid)
	if err != nil {
		return nil, "", err
	}
	f, err := w.Jails.Files(ctx, jid)
	return f, path.Join(cmp.Or(j.Spec.Project(), "/"), p), err
}

// Write implements autonomy.Files.
func (w Workspaces) Write(ctx context.Context, jid id.Jail, p string, data []byte) error {
	f, at, err := w.open(ctx, jid, p)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(ctx, at, bytes.NewReader(data), protocol.WriteOptions{Mode: 0o644, Parents: true})
	return err
}

// Read implements autonomy.Files.
func (w Workspaces) Read(ctx context.Context, jid id.Jail, p string, limit int64) ([]byte, error) {
	f, at, err := w.open(ctx, jid, p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, _, err := f.Read(ctx, at, 0, limit)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, limit))
}

// Members returns the sessions of a group with their jails. It implements autonomy.Siblings.
func (sb *siblings) Members(ctx context.Context, group string) ([]autonomy.Member, error) {
	var all []autonomy.Member
	if group == "" {
		return nil, nil
	}
	for f := (run.SessionFilter{Group: group, Limit: 1000}); ; {
		list, err := sb.cfg.Runs.Sessions(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("list the sessions of group %s: %w", group, err)
		}
		for _, s := range list {
			f.After = s.ID
			m := autonomy.Member{Session: s.ID, Name: s.Name, Group: group, Level: policy.Level(s.Level), Jail: s.Jail, Closed: s.State == run.Closed}
			if m.Jail == "" {
				sb.locateMember(ctx, &m)
			}
			all = append(all, m)
		}
		if len(list) < f.Limit {
			return all, nil
		}
	}
}

// locateMember sets the jail and the run that a session's agent currently uses.
func (sb *siblings) locateMember(ctx context.Context, m *autonomy.Member) {
	runs, err := sb.cfg.Runs.List(ctx, run.Filter{Session: m.Session, States: []run.State{run.Active, run.Paused}, Limit: 1})
	if err == nil && len(runs) > 0 {
		m.Jail, m.Run = runs[0].Jail, runs[0].ID
	}
	if m.Jail != "" {
		return
	}
	jails, err := sb.sessionJails(ctx, m.Session)
	if err != nil {
		return
	}
	for _, j := range slices.Backward(jails) {
		if j.State == jail.Running || j.State == jail.Paused {
			m.Jail = j.ID
			return
		}
	}
}

// subjectOf returns the policy subject of a member, with the policy agent of its run.
func (co *core) subjectOf(ctx context.Context, m autonomy.Member) (policy.Subject, error) {
	s := policy.Subject{Jail: m.Jail, Session: m.Session, Run: string(m.Run)}
	if m.Run == "" {
		return s, nil
	}
	r, err := co.cfg.Runs.Get(ctx, m.Run)
	if err != nil {
		return s, fmt.Errorf("read the run of the agent: %w", err)
	}
	a, err := co.agentOf(r.Agent)
	s.Agent = a.PolicyAgent
	return s, err
}

// EvaluateRequest evaluates whether a member may send a request to another. It is an
// autonomy.BrokerConfig.Policy.
func (sb *siblings) EvaluateRequest(ctx context.Context, from, to autonomy.Member, action, text string) (bool, string, error) {
	subject, err := sb.subjectOf(ctx, from)
	if err != nil {
		return false, "", err
	}
	q := policy.Question{Subject: subject, Action: policy.ActionCoordinate, Resource: memberName(to)}
	about, err := json.Marshal(map[string]string{"action": action, "context": text})
	if err != nil {
		return false, "", fmt.Errorf("encode the context of the request: %w", err)
	}
	ask := govern.Ask{Question: q, Context: about}
	if from.Run == "" {
		v, err := sb.cfg.Policy.Evaluate(ctx, ask)
		return v.Allow, v.Decision.Reason, err
	}
	r, err := sb.cfg.Runs.Get(ctx, from.Run)
	if err != nil {
		return false, "", err
	}
	v, err := sb.decisions.evaluateShared(ctx, r, ask)
	return v.Allow && v.Instead == "", v.Decision.Reason, err
}

// Deliver puts a request into the inbox of the receiving session. It implements
// autonomy.Deliverer. The request's id is the key of the message, so repeated calls deliver
// one message.
func (sb *siblings) Deliver(ctx context.Context, r autonomy.Request) error {
	text := "Request " + string(r.ID) + " of " + memberName(r.From) + ": " + r.Action
	if r.Context != "" {
		text += "\n\n" + r.Context
	}
	_, err := sb.cfg.Runs.Send(ctx, run.Message{Session: r.To.Session, From: memberName(r.From), Text: text, Key: string(r.ID)})
	if errors.Is(err, fault.Invalid) || errors.Is(err, fault.TooLarge) {
		return fault.New(fault.Unsupported, "gateway.Deliver", string(r.ID), err)
	}
	if err != nil {
		return fmt.Errorf("send request %s to session %s: %w", r.ID, r.To.Session, err)
	}
	return nil
}

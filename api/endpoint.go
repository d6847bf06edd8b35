package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/gateway"
	"glasshouse/agents/run"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/internal/linger"
	"glasshouse/internal/text"
	"glasshouse/policy"
	"glasshouse/policy/access"
)

// AgentGateway is the part of the gateway that serves agents. The listener identifies the calling
// agent.
type AgentGateway interface {
	Tools(ctx context.Context, c gateway.Caller) ([]gateway.Tool, error)
	Call(ctx context.Context, c gateway.Caller, u gateway.ToolUse) (gateway.ToolOutcome, error)
	Beat(ctx context.Context, c gateway.Caller) (run.Run, bool, error)
	Task(ctx context.Context, c gateway.Caller) (gateway.Task, error)
	SaveState(ctx context.Context, c gateway.Caller, reason string, state json.RawMessage) (run.Checkpoint, error)
	Inbox(ctx context.Context, c gateway.Caller, after int64) ([]run.Message, error)
	Post(ctx context.Context, c gateway.Caller, text, key string) (run.Message, error)
	Finish(ctx context.Context, c gateway.Caller, result json.RawMessage) (run.Run, error)
	Fail(ctx context.Context, c gateway.Caller, why string) (run.Run, error)
	Decide(ctx context.Context, c gateway.Caller, q policy.Question) (govern.Verdict, error)
	RecordAction(ctx context.Context, c gateway.Caller, q policy.Question) govern.Verdict
	Siblings(ctx context.Context, c gateway.Caller) ([]autonomy.Member, error)
	OwnsJail(ctx context.Context, c gateway.Caller, j id.Jail) bool
	Coordinate(ctx context.Context, c gateway.Caller, a autonomy.Ask) (gateway.RequestOutcome, error)
	PendingRequests(ctx context.Context, c gateway.Caller, wait time.Duration) ([]gateway.SiblingRequest, error)
	Reply(ctx context.Context, c gateway.Caller, q id.Request, answer string) (gateway.RequestOutcome, error)
	AskResources(ctx context.Context, c gateway.Caller, body []byte) (autonomy.Change, error)
	CreateTask(ctx context.Context, c gateway.Caller, n autonomy.NewTask) (gateway.CreatedTask, error)
}

// agentRoutes returns the routes of the agent endpoint in a jail. Only agents have their role.
func agentRoutes(h *agentHandler) []route {
	return []route{
		{"getOwnIdentity", "GET /whoami", access.Agent, call(ok, h.getOwnIdentity), "Show the calling agent."},
		{"getOwnRun", "GET /run", access.Agent, call(ok, h.getOwnRun), "Show the agent's run and its last checkpoint."},
		{"listOwnTools", "GET /run/tools", access.Agent, call(ok, h.listOwnTools), "List the agent's tools."},
		{"callTool", "POST /run/call", access.Agent, call(ok, h.callTool), "Call a tool, once for each key. Blocks while an approval is pending."},
		{"storeOwnCheckpoint", "POST /run/checkpoint", access.Agent, call(ok, h.storeOwnCheckpoint), "Store the agent's state as a checkpoint."},
		{"sendHeartbeat", "POST /run/heartbeat", access.Agent, call(ok, h.sendHeartbeat), "Report that the agent is alive."},
		{"readOwnInbox", "GET /run/inbox", access.Agent, call(ok, h.readOwnInbox), "Read the agent's messages; can wait for new ones."},
		{"sendOwnMessage", "POST /run/messages", access.Agent, call(ok, h.sendOwnMessage), "Send a message to the followers of the session."},
		{"finishOwnRun", "POST /run/finish", access.Agent, call(ok, h.finishOwnRun), "Report that the goal is reached."},
		{"failOwnRun", "POST /run/fail", access.Agent, call(ok, h.failOwnRun), "Report that the goal cannot be reached."},
		{"decideTool", "POST /decide", access.Agent, call(ok, h.decideTool), "Evaluate an action of the agent. Blocks while an approval is pending."},
		{"useCapability", "POST /capabilities/{capability}/call", access.Agent, call(ok, h.useCapability), "Call a capability."},
		{"recordDecision", "POST /sandbox/{id}/decisions", access.Agent, raw(h.recordDecision).gives(ok, wire.RecordedAction{}), "Record an action of the agent with the decision of the rules."},
		{"ownTrail", "GET /sandbox/{id}/decisions", access.Agent, call(ok, h.ownTrail), "List the decisions about the jail, oldest first."},
		{"coordinate", "POST /sandbox/{id}/coordinate", access.Agent, call(ok, h.coordinate), "Send a request to a sibling."},
		{"coordinateFrom", "POST /sandbox/{id}/coordinate/{to}", access.Agent, call(ok, h.coordinateFrom), "Send a request to a sibling."},
		{"siblingRequests", "GET /sandbox/{id}/requests", access.Agent, call(ok, h.siblingRequests), "List the siblings' requests to the agent; can wait for new ones."},
		{"replySibling", "POST /sandbox/{id}/requests/{request}/reply", access.Agent, call(ok, h.replySibling), "Reply to a sibling's request."},
		{"askResources", "POST /sandbox/{id}/resources", access.Agent, raw(h.askResources).gives(ok, wire.Resources{}), "Request minimum resources. Larger temporary grants are returned."},
		{"ownResources", "GET /sandbox/{id}/resources", access.Agent, call(ok, h.ownResources), "Show the jail's resource limits and the outcome of resource requests."},
		{"createTask", "POST /sandbox/{id}/tasks", access.Agent, call(ok, h.createTask), "Create a task in the backlog."},
	}
}

// agentHandler serves the agent endpoint.
type agentHandler struct {
	gateway  Gateway
	audit    *auditLog
	models   http.Handler                        // nil: none
	mcp      func(c gateway.Caller) http.Handler // nil: none
	problems *problems
}

// modelPaths are the path prefixes of the model proxy, which is not part of this API.
var modelPaths = []string{"/v1/", "/v1beta/"}

// agentKey is the context key of the calling agent.
type agentKey struct{}

func callerAt(ctx context.Context) gateway.Caller {
	c, _ := ctx.Value(agentKey{}).(gateway.Caller)
	return c
}

// ServeAgent serves the agent endpoint on a listener of the gateway until the listener is
// closed. The server must have a Gateway.
func (s *Server) ServeAgent(l net.Listener, who func(context.Context) (gateway.Caller, error)) error {
	srv := &http.Server{
		Handler:           linger.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serveAgent(w, r, who) })),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(s.closing, func() { srv.Close() })
	defer stop()
	defer srv.Close()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve the agent endpoint: %w", err)
	}
	return nil
}

// tokenHeader is the header that identifies an agent outside a jail.
const tokenHeader = "Glasshouse-Token"

// serveAgent serves a request of an agent. Only who, not the request, identifies the agent.
func (s *Server) serveAgent(w http.ResponseWriter, r *http.Request, who func(context.Context) (gateway.Caller, error)) {
	rec := &recorder{ResponseWriter: w, maxBody: s.o.MaxBody}
	defer s.observe(rec, r, time.Now())
	defer s.problems.recover(rec, r)
	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	c, err := who(r.Context())
	if err != nil {
		s.problems.fail(rec, r, err)
		return
	}
	if c.Token != "" && subtle.ConstantTimeCompare([]byte(c.Token), []byte(r.Header.Get(tokenHeader))) != 1 {
		s.problems.fail(rec, r, fault.Newf(fault.Unauthenticated, "api.serveAgent", "", "this endpoint belongs to another agent"))
		return
	}
	c.Token = ""
	r.Header.Del(tokenHeader)
	rec.caller = access.Caller{Role: access.Agent, Name: "agent of " + cmp.Or(string(c.Run), string(c.Jail))}
	ctx := access.WithCaller(context.WithValue(r.Context(), agentKey{}, c), rec.caller)
	r = r.WithContext(ctx)
	if _, pattern := s.agentMux.Handler(r); pattern == "" {
		s.problems.fail(rec, r, fault.Newf(fault.NotFound, "api.serveAgent", "", "%.200s is not a path of the gateway", r.URL.Path))
		return
	}
	s.agentMux.ServeHTTP(rec, r)
}

func (h *agentHandler) askModel(w http.ResponseWriter, r *http.Request) {
	if rec, ok := w.(*recorder); ok {
		rec.stream = true
	}
	if h.models == nil {
		writeProblem(w, h.problems.of(where(r), fault.Cannot("api.askModel", "no language models are configured", "set gateway.models in the daemon's configuration")))
		return
	}
	h.models.ServeHTTP(w, gateway.WithCaller(r, callerAt(r.Context())))
}

func (h *agentHandler) serveMCP(w http.ResponseWriter, r *http.Request) {
	if rec, ok := w.(*recorder); ok {
		rec.stream = true
	}
	if h.mcp == nil {
		writeProblem(w, h.problems.of(where(r), noAgents))
		return
	}
	h.mcp(callerAt(r.Context())).ServeHTTP(w, r)
}

func (h *agentHandler) getOwnIdentity(ctx context.Context, _, _ none) (wire.Whoami, error) {
	c := callerAt(ctx)
	w := wire.Whoami{Jail: c.Jail, Session: c.Session, Run: c.Run, Agent: c.Agent, Level: int(c.Level), Group: c.Group, Siblings: []wire.Sibling{}}
	all, err := h.gateway.Siblings(ctx, c)
	for _, m := range all {
		w.Siblings = append(w.Siblings, wire.Sibling{ID: cmp.Or(string(m.Jail), m.Session), Name: m.Name, Session: m.Session})
	}
	return w, err
}

func (h *agentHandler) getOwnRun(ctx context.Context, _, _ none) (wire.OwnRun, error) {
	t, err := h.gateway.Task(ctx, callerAt(ctx))
	if err != nil {
		return wire.OwnRun{}, err
	}
	r := runOf(t.Run)
	w := wire.OwnRun{
		Run: r.ID, Session: r.Session, Goal: t.Goal, State: r.State, Agent: t.Agent.Preset, Model: t.Agent.Model,
		Budget:        wire.OwnBudget{Limits: r.Budget.Limits, Consumed: r.Budget.Consumed, Remaining: r.Budget.Remaining},
		ContextTokens: t.Context, InboxAfter: t.Inbox, Until: r.Until, Skills: t.Skills,
	}
	if t.Checkpoint.ID != "" {
		w.Checkpoint = &wire.OwnCheckpoint{ID: t.Checkpoint.ID, State: t.Checkpoint.State}
	}
	return w, nil
}

func (h *agentHandler) listOwnTools(ctx context.Context, _, _ none) (wire.Tools, error) {
	all, err := h.gateway.Tools(ctx, callerAt(ctx))
	return wire.Tools{Tools: each(all, func(t gateway.Tool) wire.Tool { return wire.Tool(t) })}, err
}

func (h *agentHandler) callTool(ctx context.Context, _ none, b wire.UseTool) (wire.UsedTool, error) {
	u, err := h.gateway.Call(ctx, callerAt(ctx), gateway.ToolUse{Key: b.Key, Tool: b.Tool, Input: b.Input})
	return usedOf(u), err
}

func usedOf(u gateway.ToolOutcome) wire.UsedTool {
	w := wire.UsedTool{State: string(u.State), Output: u.Output}
	if u.Error != nil {
		w.Error = &wire.CallError{Kind: u.Error.Kind, Reason: u.Error.Message, Remedy: u.Error.Remedy}
		w.Error.Message = u.Error.Message
	}
	return w
}

type capabilityAt struct {
	ID string `path:"capability"`
}

func (h *agentHandler) useCapability(ctx context.Context, p capabilityAt, b wire.UseCapability) (wire.UsedTool, error) {
	key := cmp.Or(b.Key, keyOf(ctx), "call-"+string(id.NewCall()))
	u, err := h.gateway.Call(ctx, callerAt(ctx), gateway.ToolUse{Key: key, Tool: p.ID, Input: b.Input})
	return usedOf(u), err
}

func (h *agentHandler) storeOwnCheckpoint(ctx context.Context, _ none, b wire.OwnState) (wire.OwnCheckpointed, error) {
	c, err := h.gateway.SaveState(ctx, callerAt(ctx), b.Reason, b.State)
	return wire.OwnCheckpointed{Checkpoint: c.ID}, err
}

func (h *agentHandler) sendHeartbeat(ctx context.Context, _, _ none) (wire.Heartbeat, error) {
	r, stop, err := h.gateway.Beat(ctx, callerAt(ctx))
	return wire.Heartbeat{State: string(r.State), Stop: stop}, err
}

type readInbox struct {
	After int64  `query:"after" minimum:"0"`
	Wait  string `query:"wait" description:"Maximum time to wait, such as 20s."`
}

// maxWait is the maximum time that a request waits for messages.
const maxWait = time.Minute

func waited(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fault.Fieldf("api.waited", "wait", "%q is not a duration such as 20s", text.Clip(s, 64))
	}
	return min(d, maxWait), nil
}

func (h *agentHandler) readOwnInbox(ctx context.Context, p readInbox, _ none) (wire.Inbox, error) {
	w := wire.Inbox{Messages: []wire.InboxMessage{}}
	w.After = p.After
	wait, err := waited(p.Wait)
	if err != nil {
		return w, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	list, err := h.gateway.Inbox(ctx, callerAt(ctx), w.After)
	for _, m := range list {
		w.Messages = append(w.Messages, wire.InboxMessage{Seq: m.Seq, From: m.From, Text: m.Text, Labels: labelWords(m.Labels)})
		w.After = m.Seq
	}
	return w, err
}

func (h *agentHandler) sendOwnMessage(ctx context.Context, _ none, b wire.NewMessage) (wire.SentMessage, error) {
	m, err := h.gateway.Post(ctx, callerAt(ctx), b.Text, b.Key)
	return wire.SentMessage{ID: m.ID}, err
}

func (h *agentHandler) finishOwnRun(ctx context.Context, _ none, b wire.Finish) (wire.Finished, error) {
	r, err := h.gateway.Finish(ctx, callerAt(ctx), b.Result)
	return wire.Finished{State: string(r.State), Why: string(r.Why)}, err
}

func (h *agentHandler) failOwnRun(ctx context.Context, _ none, b wire.GiveUp) (wire.Finished, error) {
	r, err := h.gateway.Fail(ctx, callerAt(ctx), b.Error)
	return wire.Finished{State: string(r.State)}, err
}

func (h *agentHandler) decideTool(ctx context.Context, _ none, b wire.DecideTool) (wire.DecidedTool, error) {
	tool, own := gateway.ToolOf(b.Tool)
	if own { // the gateway evaluates the policy when the tool is used
		return wire.DecidedTool{Effect: "allow", Reason: "the gateway decides about its own tools when they are used"}, nil
	}
	v, err := h.gateway.Decide(ctx, callerAt(ctx), policy.Question{Action: tool, Resource: autonomy.ResourceOf(tool, b.Args), Attributes: attributesOf(b.Args)})
	if err != nil && !errors.Is(err, fault.Denied) {
		return wire.DecidedTool{}, err
	}
	w := wire.DecidedTool{Effect: "deny", Reason: v.Decision.Reason, Remedy: v.Decision.Remedy, By: v.By, Rule: fmt.Sprint(v.Decision.Rule)}
	if v.Allow && v.Instead == "" {
		w.Effect = "allow"
	} else if v.Instead != "" {
		w.Remedy = "do this instead: " + v.Instead
	}
	return w, nil
}

// own refuses a request that names another jail than the caller's.
func (h *agentHandler) own(ctx context.Context, j id.Jail) (gateway.Caller, error) {
	c := callerAt(ctx)
	if c.Jail == "" || !h.gateway.OwnsJail(ctx, c, j) {
		return c, fault.Newf(fault.Denied, "api.own", text.Visible(text.Clip(string(j), 64)), "an agent may act only for its own jail, %s", c.Jail)
	}
	return c, nil
}

// someJail contains an unverified jail id.
type someJail struct {
	ID string `path:"id"`
}

// recordDecision records an action that an agent's harness reports. It never waits for an
// approval; POST /decide does.
func (h *agentHandler) recordDecision(w http.ResponseWriter, r *http.Request, p someJail) error {
	c, err := h.own(r.Context(), id.Jail(p.ID))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody(w)))
	if err != nil {
		return tooLarge(err)
	}
	d, complaints, err := autonomy.ParseDecision(body)
	if err != nil {
		return err
	}
	out := wire.RecordedAction{}
	tool, own := gateway.ToolOf(d.Tool)
	switch {
	case d.Made:
		out.Reason = "already recorded when the action was announced"
	case own, d.Announced && gateway.RecordsToolUse(tool):
		out.Reason = "the gateway records it when the tool is used"
	default:
		out.Recorded = true
		q := policy.Question{Action: tool, Resource: autonomy.ResourceOf(tool, d.Args), Attributes: attributesOf(d.Args)}
		if !d.Time.IsZero() {
			q.Attributes["said"] = d.Time.Format(time.RFC3339Nano)
		}
		v := h.gateway.RecordAction(r.Context(), c, q)
		out.Allow, out.Tag, out.Reason, out.Complaints = v.Allow, string(v.Tag), v.Decision.Reason, complaints
	}
	a, err := jsonAnswer(ok, out)
	if err != nil {
		return fmt.Errorf("encode the answer to the decision: %w", err)
	}
	writeAnswer(w, a)
	return nil
}

// attributesOf returns the attributes that the audit log stores about the arguments of a call.
func attributesOf(args json.RawMessage) map[string]string {
	a := map[string]string{}
	if len(args) > 0 {
		a["args"] = fmt.Sprintf("sha256:%x", sha256.Sum256(args))
	}
	return a
}

func tooLarge(err error) error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.Newf(fault.TooLarge, "api.tooLarge", "", "the body exceeds %d bytes", e.Limit)
	}
	return fault.New(fault.Invalid, "api.tooLarge", "", err)
}

type ownTrail struct {
	ID string `path:"id"`
	trailFilter
}

func (h *agentHandler) ownTrail(ctx context.Context, p ownTrail, _ none) (wire.Page[wire.TrailEntry], error) {
	c, err := h.own(ctx, id.Jail(p.ID))
	if err != nil {
		return wire.Page[wire.TrailEntry]{}, err
	}
	return h.audit.decisions(ctx, trailParams{c.Jail, p.trailFilter})
}

func askOf(to string, b wire.Coordinate, key string) (autonomy.Ask, error) {
	a := autonomy.Ask{To: to, Action: b.Action, Context: b.Context, Key: key, ReplyWithin: 5 * time.Minute}
	if b.ReplyTimeoutMS != nil {
		wait, err := millis("reply_timeout_ms", *b.ReplyTimeoutMS)
		if err != nil {
			return a, err
		}
		a.ReplyWithin = wait
	}
	return a, nil
}

// coordinate sends a request to a sibling on behalf of the jail in the path; the sender in the
// body is ignored.
func (h *agentHandler) coordinate(ctx context.Context, p someJail, b wire.Coordinate) (wire.Coordinated, error) {
	ask, err := askOf(p.ID, b, keyOf(ctx))
	if err != nil {
		return wire.Coordinated{}, err
	}
	out, err := h.gateway.Coordinate(ctx, callerAt(ctx), ask)
	return coordinatedOf(out), err
}

type fromTo struct {
	ID string `path:"id"`
	To string `path:"to"`
}

func (h *agentHandler) coordinateFrom(ctx context.Context, p fromTo, b wire.Coordinate) (wire.Coordinated, error) {
	if _, err := h.own(ctx, id.Jail(p.ID)); err != nil {
		return wire.Coordinated{}, err
	}
	return h.coordinate(ctx, someJail{p.To}, b)
}

func coordinatedOf(a gateway.RequestOutcome) wire.Coordinated {
	return wire.Coordinated{
		Request: a.Request, State: string(a.State), To: a.To, Answer: a.Answer, Reason: a.Reason, Remedy: a.Remedy,
		RetryAfterMS: a.RetryAfter, Position: a.Position,
	}
}

type siblingRequestParams struct {
	ID   string `path:"id"`
	Wait string `query:"wait" description:"Maximum time to wait, such as 20s."`
}

func (h *agentHandler) siblingRequests(ctx context.Context, p siblingRequestParams, _ none) (wire.SiblingRequests, error) {
	w := wire.SiblingRequests{Requests: []wire.SiblingRequest{}}
	c, err := h.own(ctx, id.Jail(p.ID))
	if err != nil {
		return w, err
	}
	wait, err := waited(p.Wait)
	if err != nil {
		return w, err
	}
	list, err := h.gateway.PendingRequests(ctx, c, wait)
	for _, e := range list {
		w.Requests = append(w.Requests, wire.SiblingRequest(e))
	}
	return w, err
}

type replySiblingParams struct {
	ID      string     `path:"id"`
	Request id.Request `path:"request"`
}

func (h *agentHandler) replySibling(ctx context.Context, p replySiblingParams, b wire.ReplySibling) (wire.Coordinated, error) {
	c, err := h.own(ctx, id.Jail(p.ID))
	if err != nil {
		return wire.Coordinated{}, err
	}
	out, err := h.gateway.Reply(ctx, c, p.Request, b.Answer)
	return coordinatedOf(out), err
}

func (h *agentHandler) askResources(w http.ResponseWriter, r *http.Request, p someJail) error {
	c, err := h.own(r.Context(), id.Jail(p.ID))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody(w)))
	if err != nil {
		return tooLarge(err)
	}
	ch, err := h.gateway.AskResources(r.Context(), c, body)
	if err != nil {
		return err
	}
	out := wire.Resources{State: string(ch.Verdict), Why: ch.Why, By: ch.By, CPU: float64(ch.To.CPU) / 1000, MemoryMB: ch.To.Memory, DiskMB: ch.To.Disk, PIDs: ch.To.PIDs, Until: at(ch.Until)}
	if ch.Refusal != nil {
		out.Why, out.Remedy, out.RetryAfterMS = ch.Refusal.Reason, ch.Refusal.Remedy, ch.Refusal.RetryAfter.Milliseconds()
	}
	a, err := jsonAnswer(ok, out)
	if err != nil {
		return fmt.Errorf("encode the answer to the resource request: %w", err)
	}
	writeAnswer(w, a)
	return nil
}

func (h *agentHandler) createTask(ctx context.Context, p someJail, b wire.NewTask) (wire.TaskCreated, error) {
	c, err := h.own(ctx, id.Jail(p.ID))
	if err != nil {
		return wire.TaskCreated{}, err
	}
	t, err := h.gateway.CreateTask(ctx, c, autonomy.NewTask{Title: b.Title, Description: b.Description, Priority: autonomy.Priority(b.Priority)})
	return wire.TaskCreated(t), err
}

package test_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// An askResult is the result of a question.
type askResult struct {
	wire.Verdict
	err error
}

// ask asks a question as an agent, in the background, and waits until it is answered.
func (h *daemonHarness) ask(j id.Jail, action, resource string) <-chan askResult {
	h.Helper()
	c, ctx, done := h.Client, h.Context(), make(chan askResult, 1)
	go func() {
		v, err := c.Decide(ctx, j, wire.Decide{Question: wire.Question{Action: action, Resource: resource}, WaitMS: 60_000})
		done <- askResult{v, err}
	}()
	return done
}

// pendingApproval waits until a question has a pending approval, and returns it.
func (h *daemonHarness) pendingApproval(j id.Jail, resource string) wire.Approval {
	h.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		list, err := h.Approvals(h.Context(), "", j)
		if err != nil {
			h.Fatal(err)
		}
		for _, a := range list {
			if a.Question.Resource == resource {
				return a
			}
		}
	}
	h.Fatalf("%q has no pending approval", resource)
	return wire.Approval{}
}

// waitVerdict returns the verdict that the asking agent receives.
func (h *daemonHarness) waitVerdict(done <-chan askResult) wire.Verdict {
	h.Helper()
	select {
	case got := <-done:
		if got.err != nil {
			h.Fatalf("the agent received the error %v", got.err)
		}
		return got.Verdict
	case <-time.After(30 * time.Second):
		h.Fatal("the agent received no verdict")
	}
	return wire.Verdict{}
}

// decide returns the decision of a rule or a remembered answer, without waiting for an
// approval.
func (h *daemonHarness) decide(j id.Jail, action, resource string) wire.Verdict {
	h.Helper()
	return h.waitVerdict(h.ask(j, action, resource))
}

// needsApproval reports whether a question would require an approval, without leaving a pending one.
func (h *daemonHarness) needsApproval(j id.Jail, action, resource string) bool {
	h.Helper()
	x, err := h.ExplainPolicy(h.Context(), wire.Explain{Jail: j, Question: wire.Question{Action: action, Resource: resource}})
	if err != nil {
		h.Fatal(err)
	}
	return x.Decision.Effect == "ask"
}

// as returns a client that uses a token of the given role over the network.
func (h *daemonHarness) as(name, role string) *client.Client {
	h.Helper()
	token, err := h.CreateToken(h.Context(), wire.CreateToken{Name: name, Role: role})
	if err != nil {
		h.Fatal(err)
	}
	c, err := client.New(client.Options{Addr: "http://" + h.tcpAddr(), Token: token.Token})
	if err != nil {
		h.Fatal(err)
	}
	return c
}

// cause is an audit log entry with its content.
type cause struct {
	kind, tag, answer, by, outcome string
	seq, parent                    int64
}

// causes returns the entries that caused an entry, first cause first.
func (h *daemonHarness) causes(seq int64) []cause {
	h.Helper()
	entries, err := h.ChainCauses(h.Context(), seq)
	if err != nil {
		h.Fatal(err)
	}
	var all []cause
	for _, e := range entries {
		var b struct {
			Tag, Verdict, Outcome string
			By                    json.RawMessage
		}
		if err := json.Unmarshal(e.Body, &b); err != nil {
			h.Fatal(err)
		}
		all = append(all, cause{e.Kind, b.Tag, b.Verdict, string(b.By), b.Outcome, e.Seq, e.Parent})
	}
	return all
}

// checkCauses checks that a decision is in the audit log with its tag, after entries of the given
// kinds, each the cause of the next.
func (h *daemonHarness) checkCauses(v wire.Verdict, tag string, kinds ...string) {
	h.Helper()
	all := h.causes(v.Entry)
	var got []string
	for i, c := range all {
		got = append(got, c.kind)
		if i > 0 && c.parent != all[i-1].seq {
			h.Errorf("entry %d has the cause %d, want %d", c.seq, c.parent, all[i-1].seq)
		}
	}
	if last := all[len(all)-1]; !slices.Equal(got, append(kinds, "decision")) || last.tag != tag || v.Tag != tag {
		h.Errorf("got causes %q, tagged %s in the audit log and %s in the answer; want %q and then the decision, tagged %s", got, last.tag, v.Tag, kinds, tag)
	}
}

const askedKind, answeredKind, expiredKind = "approval.asked", "approval.answered", "approval.expired"

func TestApprovalAllowDenyAndChange(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Name: "worker", Policy: worker(t, 2)}).ID

	denied := h.decide(j, "bash", "rm -rf x")
	if denied.Allow || denied.Decision.Rule.Line != 13 || denied.Decision.Rule.File != "opencode.json" {
		t.Errorf("rm -rf x: got %+v, want denied by line 13", denied)
	}
	h.checkCauses(denied, "DENIED")
	h.checkCauses(h.decide(j, "bash", "npm test"), "WHITELISTED")
	h.checkCauses(h.decide(j, "bash", "git status"), "AUTONOMOUS")

	// Allowed: the agent continues after the approval, not before.
	push := h.ask(j, "bash", "git push")
	a := h.pendingApproval(j, "git push")
	if out := h.says("approval", "ls"); !strings.Contains(out, string(a.ID)) || !strings.Contains(out, "bash") && !strings.Contains(out, "git push") {
		t.Errorf("approvals lists\n%s", out)
	}
	if out := h.says("approval", "show", string(a.ID)); !strings.Contains(out, "git push") || !strings.Contains(out, "AGENTS.md") {
		t.Errorf("approvals show prints\n%s", out)
	}
	select {
	case got := <-push:
		t.Fatalf("got the verdict %+v before any answer", got)
	default:
	}
	h.says("approve", string(a.ID))
	v := h.waitVerdict(push)
	if !v.Allow || v.By == "" || v.Instead != "" {
		t.Errorf("git push: got %+v, want allowed", v)
	}
	h.checkCauses(v, "APPROVED", askedKind, answeredKind)
	if !h.needsApproval(j, "bash", "git push") {
		t.Error("an answer for once also applies to the next question")
	}

	// Denied, with a reason that the agent receives.
	push = h.ask(j, "bash", "git push")
	h.says("deny", string(h.pendingApproval(j, "git push").ID), "--reason", "on fridays we do not push")
	v = h.waitVerdict(push)
	if v.Allow || !strings.Contains(v.Decision.Reason, "on fridays we do not push") {
		t.Errorf("denied: got %+v", v)
	}
	h.checkCauses(v, "DENIED", askedKind, answeredKind)

	// Changed: another command is allowed instead, but none that a rule denies.
	push = h.ask(j, "bash", "git push")
	h.says("approve", string(h.pendingApproval(j, "git push").ID), "--instead", "git push origin topic")
	v = h.waitVerdict(push)
	if !v.Allow || v.Instead != "git push origin topic" {
		t.Errorf("changed: got %+v", v)
	}
	h.checkCauses(v, "APPROVED", askedKind, answeredKind)
	push = h.ask(j, "bash", "git push")
	h.says("approve", string(h.pendingApproval(j, "git push").ID), "--instead", "git push; rm -rf /")
	v = h.waitVerdict(push)
	if v.Allow || v.Instead != "" || v.Decision.Effect != "deny" || v.Decision.Rule.Line != 13 {
		t.Errorf("changed to a denied command: got %+v", v)
	}
	h.checkCauses(v, "DENIED", askedKind, answeredKind)

	// Identical concurrent questions share one request and its answer.
	var many []<-chan askResult
	for range 5 {
		many = append(many, h.ask(j, "bash", "git push origin main"))
	}
	a = h.pendingApproval(j, "git push origin main")
	for end := time.Now().Add(20 * time.Second); a.Waiting < 5 && time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		a = h.pendingApproval(j, "git push origin main")
	}
	if list, err := h.Approvals(t.Context(), "", j); err != nil || len(list) != 1 || a.Waiting != 5 {
		t.Errorf("got %d pending requests with %d waiters, %v; want 1 with 5", len(list), a.Waiting, err)
	}
	h.says("approve", string(a.ID))
	for _, one := range many {
		if v := h.waitVerdict(one); !v.Allow {
			t.Errorf("one of the waiters got %+v, want allowed", v)
		}
	}

	// A client whose wait times out gets an error, and can repeat the request.
	_, stderr, code := h.glasshouse(h.data, "decide", "worker", "bash", "git push origin late", "--wait", "1")
	if code == 0 || !strings.Contains(stderr, "the request is not answered yet") || !strings.Contains(stderr, "repeat the request") {
		t.Errorf("after a timeout of a second: exit code %d, %s", code, stderr)
	}
	h.says("approve", string(h.pendingApproval(j, "git push origin late").ID))
	if v := h.decide(j, "bash", "git push origin late"); !v.Allow {
		t.Errorf("the repeated question got %+v, want allowed", v)
	}

	// A request is withdrawn when its jail ends.
	push = h.ask(j, "bash", "git push --tags")
	a = h.pendingApproval(j, "git push --tags")
	if err := h.DeleteJail(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	v = h.waitVerdict(push)
	if v.Allow || !strings.Contains(v.Decision.Reason, "the jail has ended") {
		t.Errorf("verdict after the jail's end: got %+v", v)
	}
	h.checkCauses(v, "DENIED", askedKind, expiredKind)
	if a, err := h.Approval(t.Context(), a.ID, 0); err != nil || a.State != "withdrawn" {
		t.Errorf("request after the jail's end: got %+v, %v, want withdrawn", a, err)
	}
	if _, _, code := h.glasshouse(h.data, "approve", string(a.ID)); code == 0 {
		t.Error("a withdrawn request can be approved")
	}
}

func TestApprovalScopes(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Name: "worker", Policy: worker(t, 2)}).ID
	answer := func(resource, scope string) wire.Verdict {
		t.Helper()
		done := h.ask(j, "bash", resource)
		a := h.pendingApproval(j, resource)
		if rule := a.Writes[scope]; !strings.Contains(rule, resource) {
			t.Errorf("the rule that %s would write for %q is not shown: %q", scope, resource, a.Writes)
		}
		h.says("approve", string(a.ID), "--scope", scope)
		return h.waitVerdict(done)
	}
	for resource, scope := range map[string]string{"git push": "session", "git push origin main": "always"} {
		if v := answer(resource, scope); !v.Allow {
			t.Errorf("answer with scope %s: got %+v, want allowed", scope, v)
		}
		// The next question needs no approval. The audit log attributes it to the rule that the
		// answer added.
		if v := h.decide(j, "bash", resource); !v.Allow || !strings.HasPrefix(v.Decision.Rule.File, "answer") {
			t.Errorf("scope %s: next question got %+v, want allowed by the answer", scope, v)
		} else {
			h.checkCauses(v, "AUTONOMOUS")
		}
	}
	if !h.needsApproval(j, "bash", "git push origin other") {
		t.Error("an answer applies to more than the rule that was shown")
	}
	// A remembered answer never overrides a denial.
	done := h.ask(j, "bash", "git push && touch y")
	h.says("approve", string(h.pendingApproval(j, "git push && touch y").ID), "--scope", "always")
	h.waitVerdict(done)
	if _, err := h.SetPolicy(t.Context(), j, wire.Policy{Agent: "worker", Level: 2, Files: project(t), Answers: []wire.PolicyRule{
		{Action: "bash", Pattern: "git push origin main", Effect: "allow"}, {Action: "bash", Pattern: "rm -rf x", Effect: "allow"}, {Action: "*", Pattern: "*", Effect: "allow"},
	}}); err != nil {
		t.Fatal(err)
	}
	if v := h.decide(j, "bash", "rm -rf x"); v.Allow {
		t.Errorf("a denial is overridden: got %+v", v)
	}
	if _, err := h.SetPolicy(t.Context(), j, *worker(t, 2)); err != nil {
		t.Fatal(err)
	}
	if v := answer("git push origin main", "always"); !v.Allow {
		t.Errorf("always: got %+v, want allowed", v)
	}

	h.kill()
	h.start()
	made, err := h.BranchJail(t.Context(), j, wire.Branch{Count: 1})
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]id.Jail{"after a restart": j, "in a branch": made.Jails[0].ID} {
		if v := h.decide(k, "bash", "git push origin main"); !v.Allow {
			t.Errorf("%s: after always, got %+v, want allowed", name, v)
		}
		if v := h.decide(k, "bash", "rm -rf x"); v.Allow {
			t.Errorf("%s: the denied command got %+v, want denied", name, v)
		}
	}

	// A remembered denial takes precedence over what was allowed.
	done = h.ask(j, "bash", "git push origin next")
	h.says("deny", string(h.pendingApproval(j, "git push origin next").ID), "--scope", "always")
	h.waitVerdict(done)
	if v := h.decide(j, "bash", "git push origin next"); v.Allow {
		t.Errorf("after a permanent denial: got %+v, want denied", v)
	}
}

func TestElevatedApprovals(t *testing.T) {
	h := open(t, tools(), "--listen", "127.0.0.1:0")
	p := worker(t, 2)
	p.Tiers = []wire.PolicyTier{{Action: "bash", Pattern: "git push*", Tier: "elevated"}, {Action: "bash", Pattern: "rm *", Tier: "preapproved"}}
	j := h.running(wire.CreateJail{Policy: p}).ID

	// Approval by typing the phrase of the request.
	done := h.ask(j, "bash", "git push")
	a := h.pendingApproval(j, "git push")
	if a.Tier != "elevated" || a.Phrase == "" || len(a.Writes) != 0 {
		t.Errorf("got %+v, want an elevated request with a phrase and no rules", a)
	}
	if _, stderr, code := h.glasshouse(h.data, "approve", string(a.ID), "--phrase", "yes"); code == 0 {
		t.Errorf("a wrong phrase was accepted: %s", stderr)
	}
	h.says("approve", string(a.ID), "--phrase", a.Phrase)
	v := h.waitVerdict(done)
	if !v.Allow {
		t.Errorf("approved by its phrase: got %+v", v)
	}
	h.checkCauses(v, "APPROVED", askedKind, answeredKind)

	// An elevated request needs the approval of two different people. While the second one is
	// awaited, the first answer is shown.
	ann, ben, eve, viewer := h.as("ann", "operator"), h.as("ben", "operator"), h.as("eve", "agent"), h.as("vic", "viewer")
	done = h.ask(j, "bash", "git push origin main")
	a = h.pendingApproval(j, "git push origin main")
	yes := wire.AnswerApproval{Answer: "allow"}
	for range 2 {
		if got, err := ann.Answer(t.Context(), a.ID, yes); err != nil || got.State != "pending" || got.First != "ann" {
			t.Fatalf("the first of two: got %+v, %v", got, err)
		}
	}
	for name, c := range map[string]*client.Client{"agent": eve, "viewer": viewer} {
		if _, err := c.Answer(t.Context(), a.ID, yes); !errors.Is(err, fault.Denied) {
			t.Errorf("answer with a token of role %s: got %v, want denied", name, err)
		}
	}
	if got, err := ben.Answer(t.Context(), a.ID, yes); err != nil || got.State != "answered" {
		t.Errorf("the second of two: got %+v, %v", got, err)
	}
	v = h.waitVerdict(done)
	if !v.Allow || v.By != "ben" {
		t.Errorf("approved by two: got %+v", v)
	}
	h.checkCauses(v, "APPROVED", askedKind, answeredKind)
	if all, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {answeredKind}, "parent": {fmt.Sprint(h.causes(v.Entry)[0].seq)}})); err != nil || len(all) != 2 {
		t.Errorf("the audit log has %d answers, %v; want two", len(all), err)
	}

	// A pre-approved tier needs no approval; the decision is recorded.
	v = h.decide(j, "bash", "rm x")
	if !v.Allow {
		t.Errorf("pre-approved: got %+v, want allowed", v)
	}
	h.checkCauses(v, "APPROVED", answeredKind)

	// An agent cannot raise its level or relax any other restriction.
	for what, err := range map[string]error{
		"raise":  errOf(eve.SetLevel(t.Context(), j, 3)),
		"policy": errOf(eve.SetPolicy(t.Context(), j, wire.Policy{Level: 3})),
		"remove": eve.DeletePolicy(t.Context(), j),
		"egress": errOf(eve.SetEgress(t.Context(), j, wire.Egress{Ask: true})),
		"secret": eve.PutSecret(t.Context(), "S", wire.PutSecret{}),
		"grant":  errOf(eve.GrantSecret(t.Context(), "S", wire.GrantSecret{Jail: j})),
		"token":  errOf(eve.CreateToken(t.Context(), wire.CreateToken{Name: "x", Role: "admin"})),
		"list":   errOf(eve.Approvals(t.Context(), "", "")),
	} {
		if !errors.Is(err, fault.Denied) {
			t.Errorf("%s by an agent: got %v, want denied", what, err)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestApprovalExpiryAndRequestLimit(t *testing.T) {
	h := open(t, tools()+"approvals: {wait: 10s, limit: 3}\n")
	j := h.running(wire.CreateJail{Policy: worker(t, 2)}).ID
	var waiting []<-chan askResult
	for i := range 3 { // before the first request expires
		line := fmt.Sprintf("git push origin %d", i)
		waiting = append(waiting, h.ask(j, "bash", line))
		h.pendingApproval(j, line)
	}
	more := h.decide(j, "bash", "git push origin more")
	if more.Allow || !strings.Contains(more.Decision.Reason, "already has 3 pending approvals") {
		t.Errorf("a question above the limit: got %+v, want denied", more)
	}
	h.checkCauses(more, "DENIED")
	for _, w := range waiting {
		v := h.waitVerdict(w)
		if v.Allow || !strings.Contains(v.Decision.Reason, "no answer within 10s") {
			t.Errorf("an unanswered question: got %+v, want denied", v)
		}
		h.checkCauses(v, "DENIED", askedKind, expiredKind)
	}
	if list, err := h.Approvals(t.Context(), "expired", j); err != nil || len(list) != 3 {
		t.Errorf("got %d expired requests, %v; want 3", len(list), err)
	}
}

func TestApprovalEventsAndLongPoll(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Policy: worker(t, 2)}).ID
	first := h.ask(j, "bash", "git push")
	a := h.pendingApproval(j, "git push")

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var seen []string
	events := make(chan string)
	go func() {
		defer close(events)
		for e, err := range h.ApprovalEvents(ctx) {
			if err != nil {
				return
			}
			select {
			case events <- e.Kind + " " + e.Approval.Question.Resource:
			case <-ctx.Done():
				return
			}
		}
	}()
	next := func() {
		select {
		case e := <-events:
			seen = append(seen, e)
		case <-ctx.Done():
			t.Fatalf("no event after %q", seen)
		}
	}
	next() // the requests that are pending already
	settled := make(chan wire.Approval, 1)
	go func() { // a long poll
		got, _ := h.Approval(ctx, a.ID, time.Minute)
		settled <- got
	}()
	second := h.ask(j, "bash", "git push --all")
	b := h.pendingApproval(j, "git push --all")
	next()
	if len(settled) != 0 {
		t.Error("a long poll returned before the answer")
	}
	h.says("approve", string(a.ID))
	next()
	h.says("deny", string(b.ID))
	next()
	if want := []string{"asked git push", "asked git push --all", "answered git push", "answered git push --all"}; !slices.Equal(seen, want) {
		t.Errorf("got events %q, want %q", seen, want)
	}
	if got := <-settled; got.State != "answered" || got.Answer == nil || got.Answer.Answer != "allow" {
		t.Errorf("the long poll got %+v, want the answer", got)
	}
	h.waitVerdict(first)
	h.waitVerdict(second)
}

// A post is a request that a receiver got.
type post struct {
	header http.Header
	body   []byte
}

// receiver starts a third-party server that passes on the requests it gets.
func receiver(t *testing.T) (string, <-chan post) {
	t.Helper()
	got := make(chan post, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- post{r.Header, b}
	}))
	t.Cleanup(s.Close)
	return s.URL, got
}

func arrives(t *testing.T, c <-chan post) post {
	t.Helper()
	select {
	case p := <-c:
		return p
	case <-time.After(30 * time.Second):
		t.Fatal("no notification arrived")
	}
	return post{}
}

// TestApprovalByPushLink answers an approval with the links of a push notification. A
// signed webhook notifies another server.
func TestApprovalByPushLink(t *testing.T) {
	ntfy, pushed := receiver(t)
	hook, hooked := receiver(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"key": "a key to sign with\n", "token": "tk_ntfy\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := open(t, tools()+fmt.Sprintf(`approvals:
  links: http://phone.example/answers/
  pushes: [{name: ann, url: %q, topic: alerts, token_file: %q}]
  webhooks: [{name: pager, url: %q, secret_file: %q}]
`, ntfy, filepath.Join(dir, "token"), hook, filepath.Join(dir, "key")), "--listen", "127.0.0.1:0")
	j := h.running(wire.CreateJail{Policy: worker(t, 2)}).ID

	// The link contains the daemon's public address.
	tap := func(method, link string) (int, string) {
		t.Helper()
		at, ok := strings.CutPrefix(link, "http://phone.example")
		if !ok {
			t.Fatalf("got link %q, want one at http://phone.example", link)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.tcpAddr()+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "phone.example"
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	links := func(p post) map[string]string {
		t.Helper()
		var m struct {
			Topic, Title, Message string
			Actions               []struct{ Label, URL, Method string }
		}
		if err := json.Unmarshal(p.body, &m); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, a := range m.Actions {
			all[a.Label] = a.URL
			if a.Method != http.MethodPost {
				t.Errorf("button %s has method %s, want POST", a.Label, a.Method)
			}
		}
		if m.Topic != "alerts" || !strings.Contains(m.Message, "git push") || p.header.Get("Authorization") != "Bearer tk_ntfy" {
			t.Errorf("got push %q to %q with header %q", m.Message, m.Topic, p.header)
		}
		return all
	}

	done := h.ask(j, "bash", "git push")
	a := h.pendingApproval(j, "git push")
	buttons := links(arrives(t, pushed))
	if got := slices.Sorted(maps.Keys(buttons)); !slices.Equal(got, []string{"Allow once", "Deny"}) {
		t.Fatalf("got buttons %q", got)
	}
	p := arrives(t, hooked)
	sum := hmac.New(sha256.New, []byte("a key to sign with"))
	fmt.Fprintf(sum, "%s.%s.%s", p.header.Get("Webhook-Id"), p.header.Get("Webhook-Timestamp"), p.body)
	if got, want := p.header.Get("Webhook-Signature"), "v1,"+base64.StdEncoding.EncodeToString(sum.Sum(nil)); got != want || !strings.Contains(string(p.body), "approval.asked") {
		t.Errorf("webhook signature = %q, want %q: %s", got, want, p.body)
	}
	for range 2 { // link previews must not answer
		if code, text := tap(http.MethodGet, buttons["Allow once"]); code != 200 || !strings.Contains(text, "git push") || !strings.Contains(text, "Allow once</button>") {
			t.Errorf("GET %s: got %d %s", buttons["Allow once"], code, text)
		}
	}
	if got := h.pendingApproval(j, "git push"); got.State != "pending" || len(done) != 0 {
		t.Fatal("a GET of the link answered the request")
	}
	if code, text := tap(http.MethodPost, buttons["Allow once"]); code != 200 || !strings.Contains(text, "allowed by ann") {
		t.Errorf("one tap: got %d %s", code, text)
	}
	v := h.waitVerdict(done)
	if !v.Allow || v.By != "ann" {
		t.Errorf("allowed by a tap: got %+v", v)
	}
	h.checkCauses(v, "APPROVED", askedKind, answeredKind)
	if p := arrives(t, hooked); !strings.Contains(string(p.body), "approval.answered") {
		t.Errorf("got webhook %s, want approval.answered", p.body)
	}
	// Repeating the tap has no effect, the other link is no longer valid, and neither link answers
	// the next question.
	again := h.ask(j, "bash", "git push")
	b := h.pendingApproval(j, "git push")
	if code, _ := tap(http.MethodPost, buttons["Allow once"]); code != 200 {
		t.Errorf("the same tap again: got %d, want 200", code)
	}
	if code, _ := tap(http.MethodPost, buttons["Deny"]); code != http.StatusConflict {
		t.Errorf("the other tap: got %d, want 409", code)
	}
	if code, _ := tap(http.MethodPost, "http://phone.example/answers/"+strings.Repeat("A", 43)); code != http.StatusNotFound {
		t.Errorf("a link that was never sent: got %d, want 404", code)
	}
	if got, err := h.Approval(t.Context(), b.ID, 0); err != nil || got.State != "pending" || b.ID == a.ID {
		t.Errorf("the next question: got %+v, %v, want pending", got, err)
	}
	if code, _ := tap(http.MethodPost, links(arrives(t, pushed))["Deny"]); code != 200 {
		t.Errorf("deny: got %d, want 200", code)
	}
	if v := h.waitVerdict(again); v.Allow {
		t.Errorf("denied by a tap: got %+v", v)
	}
	// No link and no key is stored on disk or in the log.
	for what, needle := range map[string]string{"link": buttons["Allow once"][len("http://phone.example/answers/"):], "key": "a key to sign with", "token": "tk_ntfy"} {
		if where := h.findValue(needle); len(where) > 0 {
			t.Errorf("the %s is found in %q", what, where)
		}
	}
}

// TestPendingApprovalSurvivesDaemonKill asks one daemon, answers through the next one, and gets the
// verdict from a third one.
func TestPendingApprovalSurvivesDaemonKill(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Policy: worker(t, 2)}).ID
	lost := h.ask(j, "bash", "git push")
	a := h.pendingApproval(j, "git push")
	h.kill()
	if got := <-lost; got.err == nil {
		t.Fatalf("got the verdict %+v from a killed daemon", got)
	}
	h.start()
	if b := h.pendingApproval(j, "git push"); b.ID != a.ID || !b.Created.Equal(a.Created) || !b.Expires.Equal(a.Expires) {
		t.Fatalf("request after a restart = %+v, want %+v", b, a)
	}
	h.says("approve", string(a.ID))
	h.kill()
	h.start()
	v := h.decide(j, "bash", "git push") // as an agent does after a disconnect
	if !v.Allow {
		t.Errorf("got verdict %+v, want allowed", v)
	}
	h.checkCauses(v, "APPROVED", askedKind, answeredKind)
	if !h.needsApproval(j, "bash", "git push") {
		t.Error("an answer for once also applies to the next question")
	}
	if r, err := h.VerifyChain(t.Context(), true); err != nil || r.Bad != nil {
		t.Errorf("verifying the audit log: %+v, %v", r, err)
	}
}

func TestAutonomyLevelChanges(t *testing.T) {
	h := open(t, tools())
	p := worker(t, 2)
	p.Ceiling = 2
	j := h.running(wire.CreateJail{Name: "worker", Policy: p}).ID
	sudo := "git reset --hard" // denied by level 1; the file requires an approval
	allowed := func(level string, want string) {
		t.Helper()
		x, err := h.ExplainPolicy(t.Context(), wire.Explain{Jail: j, Question: wire.Question{Action: "bash", Resource: sudo}})
		if err != nil || x.Decision.Effect != want {
			t.Errorf("level %s, %q: got %+v, %v; want %s", level, sudo, x.Decision, err, want)
		}
	}
	allowed("2", "ask")
	if v := h.decide(j, "request_resources", "memory=4096"); !v.Allow {
		t.Errorf("at level 2: got %+v, want allowed", v)
	}
	if got := h.says("policy", "level", "worker", "1"); got != "level 1 of at most 2" {
		t.Errorf("lowered: got %q", got)
	}
	allowed("1", "deny")
	if v := h.decide(j, "bash", sudo); v.Allow || v.Decision.Effect != "deny" {
		t.Errorf("the next question: got %+v, want denied", v)
	}
	if _, stderr, code := h.glasshouse(h.data, "policy", "level", "worker", "3"); code == 0 || !strings.Contains(stderr, "level 3 is above the ceiling, 2") {
		t.Errorf("raised above the ceiling: exit code %d, %s", code, stderr)
	}
	h.kill()
	h.start()
	allowed("1, after a restart,", "deny")
	if got := h.says("policy", "level", "worker", "2"); got != "level 2 of at most 2" {
		t.Errorf("raised: got %q", got)
	}
	allowed("2", "ask")
	// The audit log records who changed the level.
	all, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {"policy.changed"}, "jail": {string(j)}}))
	if err != nil || len(all) != 2 || !strings.Contains(string(all[0].Body), "level 1") || all[0].Agent == "" {
		t.Errorf("got audit log entries %+v, %v", all, err)
	}
}

func TestPolicyLintAndExplain(t *testing.T) {
	h := open(t, tools())
	dir := t.TempDir()
	for _, f := range project(t) {
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, stderr, code := h.glasshouse(dir, "policy", "lint", "opencode.json", "AGENTS.md")
	if code != 1 || stderr != "" {
		t.Errorf("lint: exit code %d\n%s", code, stderr)
	}
	for _, want := range []string{"longest", `"*" after other patterns of "bash" (opencode.json:15)`, "finding  opencode.json:13: reading: ", "advice"} {
		if !strings.Contains(out, want) {
			t.Errorf("lint does not report %q:\n%s", want, out)
		}
	}
	for line, want := range map[string]string{
		"npm test && rm -rf x": "deny: ", "npm test": "allow: ", "git push --force": "ask: ",
	} {
		out, stderr, code := h.glasshouse(dir, "policy", "explain", "--policy", "opencode.json", "--policy", "AGENTS.md", "--level", "2", "bash", line)
		if code != 0 || !strings.HasPrefix(out, want) || !strings.Contains(out, "decides") {
			t.Errorf("explain %q: exit code %d\n%s%s", line, code, out, stderr)
		}
	}
	out, _, _ = h.glasshouse(dir, "policy", "explain", "--policy", "opencode.json", "bash", "npm test && rm -rf x")
	if !strings.Contains(out, `bash "rm -rf *": deny (opencode.json:13)`) {
		t.Errorf("explain does not name the deciding rule:\n%s", out)
	}
	// None of this created requests or audit log entries.
	if all, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {"decision," + askedKind}})); err != nil || len(all) != 0 {
		t.Errorf("got audit log entries %+v, %v; want none", all, err)
	}
}

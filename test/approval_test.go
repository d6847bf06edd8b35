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

// A told is what became of a question.
type told struct {
	wire.Verdict
	err error
}

// ask asks in an agent's name and waits, for the agent, until it is answered.
func (h *house) ask(j id.Jail, action, resource string) <-chan told {
	h.Helper()
	c, ctx, done := h.Client, h.Context(), make(chan told, 1)
	go func() {
		v, err := c.Decide(ctx, j, wire.Decide{Question: wire.Question{Action: action, Resource: resource}, WaitMS: 60_000})
		done <- told{v, err}
	}()
	return done
}

// pends returns the request of a question, once it waits for a person.
func (h *house) pends(j id.Jail, resource string) wire.Approval {
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
	h.Fatalf("%q does not wait for anybody", resource)
	return wire.Approval{}
}

// hears returns what an asker is told.
func (h *house) hears(done <-chan told) wire.Verdict {
	h.Helper()
	select {
	case got := <-done:
		if got.err != nil {
			h.Fatalf("whoever asked is told %v", got.err)
		}
		return got.Verdict
	case <-time.After(30 * time.Second):
		h.Fatal("whoever asked is told nothing")
	}
	return wire.Verdict{}
}

// decides asks what a rule or a remembered answer decides.
func (h *house) decides(j id.Jail, action, resource string) wire.Verdict {
	h.Helper()
	return h.hears(h.ask(j, action, resource))
}

// waits reports whether a question would wait for a person, without leaving one
// that does.
func (h *house) waits(j id.Jail, action, resource string) bool {
	h.Helper()
	x, err := h.ExplainPolicy(h.Context(), wire.Explain{Jail: j, Question: wire.Question{Action: action, Resource: resource}})
	if err != nil {
		h.Fatal(err)
	}
	return x.Decision.Effect == "ask"
}

// as returns a client of somebody with a token of that role, over the network.
func (h *house) as(name, role string) *client.Client {
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

// cause is an entry of the chain and what it says of itself.
type cause struct {
	kind, tag, answer, by, outcome string
	seq, parent                    int64
}

// causes returns the entries that led to one, the first cause first.
func (h *house) causes(seq int64) []cause {
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

// ledTo checks that a decision is in the chain with its tag, after entries of
// these kinds, each the cause of the next.
func (h *house) ledTo(v wire.Verdict, tag string, kinds ...string) {
	h.Helper()
	all := h.causes(v.Entry)
	var got []string
	for i, c := range all {
		got = append(got, c.kind)
		if i > 0 && c.parent != all[i-1].seq {
			h.Errorf("entry %d comes from %d, not from %d", c.seq, c.parent, all[i-1].seq)
		}
	}
	if last := all[len(all)-1]; !slices.Equal(got, append(kinds, "decision")) || last.tag != tag || v.Tag != tag {
		h.Errorf("%q, tagged %s in the chain and %s in the answer; want %q and then the decision, tagged %s", got, last.tag, v.Tag, kinds, tag)
	}
}

const askedKind, answeredKind, expiredKind = "approval.asked", "approval.answered", "approval.expired"

func TestAPersonIsAskedAndDecides(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Name: "worker", Policy: worker(t, 2)}).ID

	denied := h.decides(j, "bash", "rm -rf x")
	if denied.Allow || denied.Decision.Rule.Line != 13 || denied.Decision.Rule.File != "opencode.json" {
		t.Errorf("rm -rf x: %+v", denied)
	}
	h.ledTo(denied, "DENIED")
	h.ledTo(h.decides(j, "bash", "npm test"), "WHITELISTED")
	h.ledTo(h.decides(j, "bash", "git status"), "AUTONOMOUS")

	// Allowed: it goes on when somebody says so, and not before.
	push := h.ask(j, "bash", "git push")
	a := h.pends(j, "git push")
	if out := h.says("approvals"); !strings.Contains(out, string(a.ID)) || !strings.Contains(out, "bash") && !strings.Contains(out, "git push") {
		t.Errorf("what waits is listed as\n%s", out)
	}
	if out := h.says("approvals", "show", string(a.ID)); !strings.Contains(out, "git push") || !strings.Contains(out, "AGENTS.md") {
		t.Errorf("it is shown as\n%s", out)
	}
	select {
	case got := <-push:
		t.Fatalf("nobody has answered, and it is told %+v", got)
	default:
	}
	h.says("approve", string(a.ID))
	v := h.hears(push)
	if !v.Allow || v.By == "" || v.Instead != "" {
		t.Errorf("git push: %+v", v)
	}
	h.ledTo(v, "APPROVED", askedKind, answeredKind)
	if !h.waits(j, "bash", "git push") {
		t.Error("once was for good")
	}

	// Denied, with a reason that the agent reads.
	push = h.ask(j, "bash", "git push")
	h.says("deny", string(h.pends(j, "git push").ID), "--reason", "on fridays we do not push")
	v = h.hears(push)
	if v.Allow || !strings.Contains(v.Decision.Reason, "on fridays we do not push") {
		t.Errorf("denied: %+v", v)
	}
	h.ledTo(v, "DENIED", askedKind, answeredKind)

	// Changed: another line is allowed in its place, and nothing that a rule denies.
	push = h.ask(j, "bash", "git push")
	h.says("approve", string(h.pends(j, "git push").ID), "--instead", "git push origin topic")
	v = h.hears(push)
	if !v.Allow || v.Instead != "git push origin topic" {
		t.Errorf("changed: %+v", v)
	}
	h.ledTo(v, "APPROVED", askedKind, answeredKind)
	push = h.ask(j, "bash", "git push")
	h.says("approve", string(h.pends(j, "git push").ID), "--instead", "git push; rm -rf /")
	v = h.hears(push)
	if v.Allow || v.Instead != "" || v.Decision.Effect != "deny" || v.Decision.Rule.Line != 13 {
		t.Errorf("changed to what is denied: %+v", v)
	}
	h.ledTo(v, "DENIED", askedKind, answeredKind)

	// The same question of many is one, and all hear its answer.
	var many []<-chan told
	for range 5 {
		many = append(many, h.ask(j, "bash", "git push origin main"))
	}
	a = h.pends(j, "git push origin main")
	for end := time.Now().Add(20 * time.Second); a.Waiting < 5 && time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		a = h.pends(j, "git push origin main")
	}
	if list, err := h.Approvals(t.Context(), "", j); err != nil || len(list) != 1 || a.Waiting != 5 {
		t.Errorf("%d requests wait, for %d: %v", len(list), a.Waiting, err)
	}
	h.says("approve", string(a.ID))
	for _, one := range many {
		if v := h.hears(one); !v.Allow {
			t.Errorf("one of many hears %+v", v)
		}
	}

	// Who waits too briefly is told so, and misses nothing.
	_, stderr, code := h.glasshouse(h.data, "decide", "worker", "bash", "git push origin late", "--wait", "1")
	if code == 0 || !strings.Contains(stderr, "the request is not answered yet") || !strings.Contains(stderr, "repeat the request") {
		t.Errorf("after a second: exit code %d, %s", code, stderr)
	}
	h.says("approve", string(h.pends(j, "git push origin late").ID))
	if v := h.decides(j, "bash", "git push origin late"); !v.Allow {
		t.Errorf("who asks again hears %+v", v)
	}

	// A request of a jail that ends is nobody's any more.
	push = h.ask(j, "bash", "git push --tags")
	a = h.pends(j, "git push --tags")
	if err := h.DeleteJail(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	v = h.hears(push)
	if v.Allow || !strings.Contains(v.Decision.Reason, "the jail has ended") {
		t.Errorf("its jail is gone: %+v", v)
	}
	h.ledTo(v, "DENIED", askedKind, expiredKind)
	if a, err := h.Approval(t.Context(), a.ID, 0); err != nil || a.State != "withdrawn" {
		t.Errorf("its request is %+v, %v", a, err)
	}
	if _, _, code := h.glasshouse(h.data, "approve", string(a.ID)); code == 0 {
		t.Error("it can still be allowed")
	}
}

func TestAnAnswerHoldsAsLongAsItsScope(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Name: "worker", Policy: worker(t, 2)}).ID
	answer := func(resource, scope string) wire.Verdict {
		t.Helper()
		done := h.ask(j, "bash", resource)
		a := h.pends(j, resource)
		if rule := a.Writes[scope]; !strings.Contains(rule, resource) {
			t.Errorf("what %s would write of %q is not shown: %q", scope, resource, a.Writes)
		}
		h.says("approve", string(a.ID), "--scope", scope)
		return h.hears(done)
	}
	for resource, scope := range map[string]string{"git push": "session", "git push origin main": "always"} {
		if v := answer(resource, scope); !v.Allow {
			t.Errorf("%s: %+v", scope, v)
		}
		// The next question is not one for a person. That is in the chain as what
		// the rule that was written allows.
		if v := h.decides(j, "bash", resource); !v.Allow || !strings.HasPrefix(v.Decision.Rule.File, "answer") {
			t.Errorf("%s: the next is %+v", scope, v)
		} else {
			h.ledTo(v, "AUTONOMOUS")
		}
	}
	if !h.waits(j, "bash", "git push origin other") {
		t.Error("an answer is about more than was shown")
	}
	// A denial is never overridden by what is remembered.
	done := h.ask(j, "bash", "git push && touch y")
	h.says("approve", string(h.pends(j, "git push && touch y").ID), "--scope", "always")
	h.hears(done)
	if _, err := h.SetPolicy(t.Context(), j, wire.Policy{Agent: "worker", Level: 2, Files: project(t), Answers: []wire.PolicyRule{
		{Action: "bash", Pattern: "git push origin main", Effect: "allow"}, {Action: "bash", Pattern: "rm -rf x", Effect: "allow"}, {Action: "*", Pattern: "*", Effect: "allow"},
	}}); err != nil {
		t.Fatal(err)
	}
	if v := h.decides(j, "bash", "rm -rf x"); v.Allow {
		t.Errorf("a denial is overridden: %+v", v)
	}
	if _, err := h.SetPolicy(t.Context(), j, *worker(t, 2)); err != nil {
		t.Fatal(err)
	}
	if v := answer("git push origin main", "always"); !v.Allow {
		t.Errorf("always: %+v", v)
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
		if v := h.decides(k, "bash", "git push origin main"); !v.Allow {
			t.Errorf("%s always is %+v", name, v)
		}
		if v := h.decides(k, "bash", "rm -rf x"); v.Allow {
			t.Errorf("%s the denial is %+v", name, v)
		}
	}

	// A denial that is remembered denies, and is over what was allowed.
	done = h.ask(j, "bash", "git push origin next")
	h.says("deny", string(h.pends(j, "git push origin next").ID), "--scope", "always")
	h.hears(done)
	if v := h.decides(j, "bash", "git push origin next"); v.Allow {
		t.Errorf("what was denied for good is %+v", v)
	}
}

func TestWhatIsElevatedTakesMore(t *testing.T) {
	h := open(t, tools(), "--listen", "127.0.0.1:0")
	p := worker(t, 2)
	p.Tiers = []wire.PolicyTier{{Action: "bash", Pattern: "git push*", Tier: "elevated"}, {Action: "bash", Pattern: "rm *", Tier: "preapproved"}}
	j := h.running(wire.CreateJail{Policy: p}).ID

	// By one who types what it says.
	done := h.ask(j, "bash", "git push")
	a := h.pends(j, "git push")
	if a.Tier != "elevated" || a.Phrase == "" || len(a.Writes) != 0 {
		t.Errorf("it is %+v", a)
	}
	if _, stderr, code := h.glasshouse(h.data, "approve", string(a.ID), "--phrase", "yes"); code == 0 {
		t.Errorf("any phrase will do: %s", stderr)
	}
	h.says("approve", string(a.ID), "--phrase", a.Phrase)
	v := h.hears(done)
	if !v.Allow {
		t.Errorf("by its phrase: %+v", v)
	}
	h.ledTo(v, "APPROVED", askedKind, answeredKind)

	// By two, not by one twice; the first is known while the second is awaited.
	ann, ben, eve, viewer := h.as("ann", "operator"), h.as("ben", "operator"), h.as("eve", "agent"), h.as("vic", "viewer")
	done = h.ask(j, "bash", "git push origin main")
	a = h.pends(j, "git push origin main")
	yes := wire.AnswerApproval{Answer: "allow"}
	for range 2 {
		if got, err := ann.Answer(t.Context(), a.ID, yes); err != nil || got.State != "pending" || got.First != "ann" {
			t.Fatalf("the first of two: %+v, %v", got, err)
		}
	}
	for name, c := range map[string]*client.Client{"agent": eve, "viewer": viewer} {
		if _, err := c.Answer(t.Context(), a.ID, yes); !errors.Is(err, fault.Denied) {
			t.Errorf("a token of role %s answers: %v", name, err)
		}
	}
	if got, err := ben.Answer(t.Context(), a.ID, yes); err != nil || got.State != "answered" {
		t.Errorf("the second of two: %+v, %v", got, err)
	}
	v = h.hears(done)
	if !v.Allow || v.By != "ben" {
		t.Errorf("by two: %+v", v)
	}
	h.ledTo(v, "APPROVED", askedKind, answeredKind)
	if all, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {answeredKind}, "parent": {fmt.Sprint(h.causes(v.Entry)[0].seq)}})); err != nil || len(all) != 2 {
		t.Errorf("the chain has the word of %d people, %v; want two", len(all), err)
	}

	// Nobody is asked about what is pre-approved by its tier; it is recorded.
	v = h.decides(j, "bash", "rm x")
	if !v.Allow {
		t.Errorf("pre-approved: %+v", v)
	}
	h.ledTo(v, "APPROVED", answeredKind)

	// An agent cannot raise its level, nor loosen anything else.
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
			t.Errorf("%s by an agent: %v", what, err)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestNobodyAnswersAndNobodyIsFlooded(t *testing.T) {
	h := open(t, tools()+"approvals: {wait: 10s, limit: 3}\n")
	j := h.running(wire.CreateJail{Policy: worker(t, 2)}).ID
	var waiting []<-chan told
	for i := range 3 { // before the wait of the first is over
		line := fmt.Sprintf("git push origin %d", i)
		waiting = append(waiting, h.ask(j, "bash", line))
		h.pends(j, line)
	}
	more := h.decides(j, "bash", "git push origin more")
	if more.Allow || !strings.Contains(more.Decision.Reason, "wait for a person already") {
		t.Errorf("one too many: %+v", more)
	}
	h.ledTo(more, "DENIED")
	for _, w := range waiting {
		v := h.hears(w)
		if v.Allow || !strings.Contains(v.Decision.Reason, "nobody answered") {
			t.Errorf("nobody answers: %+v", v)
		}
		h.ledTo(v, "DENIED", askedKind, expiredKind)
	}
	if list, err := h.Approvals(t.Context(), "expired", j); err != nil || len(list) != 3 {
		t.Errorf("%d are over, %v", len(list), err)
	}
}

func TestWhoWatchesSeesWhatWaits(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Policy: worker(t, 2)}).ID
	first := h.ask(j, "bash", "git push")
	a := h.pends(j, "git push")

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
			t.Fatalf("nothing follows %q", seen)
		}
	}
	next() // what waits already
	settled := make(chan wire.Approval, 1)
	go func() { // a long poll
		got, _ := h.Approval(ctx, a.ID, time.Minute)
		settled <- got
	}()
	second := h.ask(j, "bash", "git push --all")
	b := h.pends(j, "git push --all")
	next()
	if len(settled) != 0 {
		t.Error("a long poll ends before there is an answer")
	}
	h.says("approve", string(a.ID))
	next()
	h.says("deny", string(b.ID))
	next()
	if want := []string{"asked git push", "asked git push --all", "answered git push", "answered git push --all"}; !slices.Equal(seen, want) {
		t.Errorf("seen is %q, want %q", seen, want)
	}
	if got := <-settled; got.State != "answered" || got.Answer == nil || got.Answer.Answer != "allow" {
		t.Errorf("the long poll has %+v", got)
	}
	h.hears(first)
	h.hears(second)
}

// A post is a request that a server of others got.
type post struct {
	header http.Header
	body   []byte
}

// receiver is somebody else's server, which tells what it gets.
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
		t.Fatal("nobody is told")
	}
	return post{}
}

// TestAPhoneAnswersWithOneTap is about who is far away: told by a push that has
// a link for each answer, while another's server is told by a signed webhook.
func TestAPhoneAnswersWithOneTap(t *testing.T) {
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

	// The link leads to the daemon by its public name.
	tap := func(method, link string) (int, string) {
		t.Helper()
		at, ok := strings.CutPrefix(link, "http://phone.example")
		if !ok {
			t.Fatalf("the link is %q", link)
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
				t.Errorf("the button %s is a %s", a.Label, a.Method)
			}
		}
		if m.Topic != "alerts" || !strings.Contains(m.Message, "git push") || p.header.Get("Authorization") != "Bearer tk_ntfy" {
			t.Errorf("the push says %q to %q by %q", m.Message, m.Topic, p.header)
		}
		return all
	}

	done := h.ask(j, "bash", "git push")
	a := h.pends(j, "git push")
	buttons := links(arrives(t, pushed))
	if got := slices.Sorted(maps.Keys(buttons)); !slices.Equal(got, []string{"Allow once", "Deny"}) {
		t.Fatalf("the buttons are %q", got)
	}
	p := arrives(t, hooked)
	sum := hmac.New(sha256.New, []byte("a key to sign with"))
	fmt.Fprintf(sum, "%s.%s.%s", p.header.Get("Webhook-Id"), p.header.Get("Webhook-Timestamp"), p.body)
	if got, want := p.header.Get("Webhook-Signature"), "v1,"+base64.StdEncoding.EncodeToString(sum.Sum(nil)); got != want || !strings.Contains(string(p.body), "approval.asked") {
		t.Errorf("the webhook is signed %q, want %q: %s", got, want, p.body)
	}
	for range 2 { // whatever looks at links before people do
		if code, text := tap(http.MethodGet, buttons["Allow once"]); code != 200 || !strings.Contains(text, "git push") || !strings.Contains(text, "Allow once</button>") {
			t.Errorf("looking at %s: %d %s", buttons["Allow once"], code, text)
		}
	}
	if got := h.pends(j, "git push"); got.State != "pending" || len(done) != 0 {
		t.Fatal("it was decided by looking")
	}
	if code, text := tap(http.MethodPost, buttons["Allow once"]); code != 200 || !strings.Contains(text, "allowed by ann") {
		t.Errorf("one tap: %d %s", code, text)
	}
	v := h.hears(done)
	if !v.Allow || v.By != "ann" {
		t.Errorf("allowed by a tap: %+v", v)
	}
	h.ledTo(v, "APPROVED", askedKind, answeredKind)
	if p := arrives(t, hooked); !strings.Contains(string(p.body), "approval.answered") {
		t.Errorf("the webhook is told %s", p.body)
	}
	// The same tap again changes nothing, the other comes too late, and neither
	// answers the next question.
	again := h.ask(j, "bash", "git push")
	b := h.pends(j, "git push")
	if code, _ := tap(http.MethodPost, buttons["Allow once"]); code != 200 {
		t.Errorf("the same tap again: %d", code)
	}
	if code, _ := tap(http.MethodPost, buttons["Deny"]); code != http.StatusConflict {
		t.Errorf("the other tap: %d", code)
	}
	if code, _ := tap(http.MethodPost, "http://phone.example/answers/"+strings.Repeat("A", 43)); code != http.StatusNotFound {
		t.Errorf("a link that nobody was given: %d", code)
	}
	if got, err := h.Approval(t.Context(), b.ID, 0); err != nil || got.State != "pending" || b.ID == a.ID {
		t.Errorf("the next question is %+v, %v", got, err)
	}
	if code, _ := tap(http.MethodPost, links(arrives(t, pushed))["Deny"]); code != 200 {
		t.Errorf("deny: %d", code)
	}
	if v := h.hears(again); v.Allow {
		t.Errorf("denied by a tap: %+v", v)
	}
	// No link and no key is on the disk, nor in the log.
	for what, needle := range map[string]string{"link": buttons["Allow once"][len("http://phone.example/answers/"):], "key": "a key to sign with", "token": "tk_ntfy"} {
		if where := h.sighted(needle); len(where) > 0 {
			t.Errorf("the %s is in %q", what, where)
		}
	}
}

// TestADaemonThatIsKilledForgetsNoQuestion asks one daemon, answers the next, and
// takes the answer from a third.
func TestADaemonThatIsKilledForgetsNoQuestion(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Policy: worker(t, 2)}).ID
	lost := h.ask(j, "bash", "git push")
	a := h.pends(j, "git push")
	h.kill()
	if got := <-lost; got.err == nil {
		t.Fatalf("a killed daemon answers %+v", got)
	}
	h.start()
	if b := h.pends(j, "git push"); b.ID != a.ID || !b.Created.Equal(a.Created) || !b.Expires.Equal(a.Expires) {
		t.Fatalf("after a restart it is %+v, was %+v", b, a)
	}
	h.says("approve", string(a.ID))
	h.kill()
	h.start()
	v := h.decides(j, "bash", "git push") // as an agent does that was cut off
	if !v.Allow {
		t.Errorf("the answer is %+v", v)
	}
	h.ledTo(v, "APPROVED", askedKind, answeredKind)
	if !h.waits(j, "bash", "git push") {
		t.Error("once was for good")
	}
	if r, err := h.VerifyChain(t.Context(), true); err != nil || r.Bad != nil {
		t.Errorf("verifying the chain: %+v, %v", r, err)
	}
}

func TestALevelIsLoweredAtOnceAndRaisedToItsCeiling(t *testing.T) {
	h := open(t, tools())
	p := worker(t, 2)
	p.Ceiling = 2
	j := h.running(wire.CreateJail{Name: "worker", Policy: p}).ID
	sudo := "git reset --hard" // denied by level 1, asked by the file
	allowed := func(level string, want string) {
		t.Helper()
		x, err := h.ExplainPolicy(t.Context(), wire.Explain{Jail: j, Question: wire.Question{Action: "bash", Resource: sudo}})
		if err != nil || x.Decision.Effect != want {
			t.Errorf("at level %s %q is %+v, %v; want %s", level, sudo, x.Decision, err, want)
		}
	}
	allowed("2", "ask")
	if v := h.decides(j, "request_resources", "memory=4096"); !v.Allow {
		t.Errorf("at level 2: %+v", v)
	}
	if got := h.says("policy", "level", "worker", "1"); got != "level 1 of at most 2" {
		t.Errorf("lowered: %q", got)
	}
	allowed("1", "deny")
	if v := h.decides(j, "bash", sudo); v.Allow || v.Decision.Effect != "deny" {
		t.Errorf("the next question: %+v", v)
	}
	if _, stderr, code := h.glasshouse(h.data, "policy", "level", "worker", "3"); code == 0 || !strings.Contains(stderr, "level 3 is above the ceiling, 2") {
		t.Errorf("raised above the ceiling: exit code %d, %s", code, stderr)
	}
	h.kill()
	h.start()
	allowed("1, after a restart,", "deny")
	if got := h.says("policy", "level", "worker", "2"); got != "level 2 of at most 2" {
		t.Errorf("raised: %q", got)
	}
	allowed("2", "ask")
	// Who changed it is in the chain.
	all, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {"policy.changed"}, "jail": {string(j)}}))
	if err != nil || len(all) != 2 || !strings.Contains(string(all[0].Body), "level 1") || all[0].Agent == "" {
		t.Errorf("the chain says %+v, %v", all, err)
	}
}

func TestAPolicyIsExplainedBeforeItCounts(t *testing.T) {
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
	for _, want := range []string{"longest", `"*" behind other patterns of "bash" (opencode.json:15)`, "finding  opencode.json:13: reading: ", "advice"} {
		if !strings.Contains(out, want) {
			t.Errorf("lint does not say %q:\n%s", want, out)
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
		t.Errorf("the deciding rule is not named:\n%s", out)
	}
	// Nothing of it was asked or recorded.
	if all, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {"decision," + askedKind}})); err != nil || len(all) != 0 {
		t.Errorf("the chain has %+v, %v", all, err)
	}
}

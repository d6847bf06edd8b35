package test_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
)

// A desk simulates agents that request approvals and approvers who answer while the daemon is
// killed. Its maps hold what must be true after each restart.
type desk struct {
	*daemonHarness
	jail id.Jail

	mu sync.Mutex
	// asked holds the questions whose agents have no verdict yet, by resource.
	// +checklocks:mu
	asked map[string]bool
	// verdicts holds the answers that agents got, by resource.
	// +checklocks:mu
	verdicts map[string]wire.Verdict
	// seen holds the requests that a daemon has listed.
	// +checklocks:mu
	seen map[id.Approval]wire.Approval
	// tried holds the answers that were sent, acknowledged those that the daemon confirmed.
	// +checklocks:mu
	tried map[id.Approval][]wire.AnswerApproval
	// +checklocks:mu
	acknowledged map[id.Approval]wire.AnswerApproval
	// links holds the tokens of the links sent to phones, by resource and answer.
	// +checklocks:mu
	links map[string]string
	// +checklocks:mu
	next int
}

func openDesk(t *testing.T) *desk {
	d := &desk{
		asked: map[string]bool{}, verdicts: map[string]wire.Verdict{}, seen: map[id.Approval]wire.Approval{},
		tried: map[id.Approval][]wire.AnswerApproval{}, acknowledged: map[id.Approval]wire.AnswerApproval{}, links: map[string]string{},
	}
	phone := httptest.NewServer(http.HandlerFunc(d.push))
	t.Cleanup(phone.Close)
	d.daemonHarness = open(t, fmt.Sprintf(`approvals:
  wait: 4s
  limit: 1000
  links: http://phone.example/answers/
  pushes: [{name: ann, url: %q, topic: alerts}]
`, phone.URL), "--listen", "127.0.0.1:0")
	d.jail = d.running(wire.CreateJail{Policy: worker(t, 2)}).ID
	return d
}

// push is the push server through which a phone receives its links.
func (d *desk) push(_ http.ResponseWriter, r *http.Request) {
	var m struct {
		Message string
		Actions []struct{ Label, URL string }
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil {
		return // the daemon was killed while it sent the request
	}
	i := strings.Index(m.Message, "git push origin ")
	if i < 0 {
		return
	}
	resource := strings.Join(strings.Fields(m.Message[i:])[:4], " ")
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range m.Actions {
		answer := map[string]string{"Allow once": "allow", "Deny": "deny"}[a.Label]
		d.links[resource+" "+answer] = strings.TrimPrefix(a.URL, "http://phone.example")
	}
}

// question returns a question that was asked before and has no verdict, or a new one.
func (d *desk) question() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q, waits := range d.asked {
		if !waits {
			d.asked[q] = true
			return q
		}
	}
	d.next++
	q := fmt.Sprintf("git push origin branch-%d", d.next)
	d.asked[q] = true
	return q
}

// agent asks one question after the other. It repeats a question if the daemon ended before the
// verdict.
func (d *desk) agent(ctx context.Context, c *client.Client) {
	for ctx.Err() == nil {
		q := d.question()
		v, err := c.Decide(ctx, d.jail, wire.Decide{Question: wire.Question{Action: "bash", Resource: q}, WaitMS: 60_000})
		d.mu.Lock()
		if err != nil {
			d.asked[q] = false
		} else {
			delete(d.asked, q)
			d.verdicts[q] = v
		}
		d.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// person answers requests by API or link, except those whose resource ends in 7.
func (d *desk) person(ctx context.Context, c *client.Client, addr string) {
	for ctx.Err() == nil {
		list, err := c.Approvals(ctx, "", d.jail)
		if err != nil {
			return
		}
		d.mu.Lock()
		for _, a := range list {
			d.seen[a.ID] = a
		}
		d.mu.Unlock()
		if len(list) == 0 {
			time.Sleep(time.Millisecond)
			continue
		}
		a := list[rand.IntN(len(list))]
		answers := []wire.AnswerApproval{{Answer: "allow", Scope: "once"}, {Answer: "deny", Scope: "once"}, {Answer: "allow", Scope: "always"}, {Answer: "deny", Scope: "always"}}
		answer := answers[rand.IntN(len(answers))]
		if strings.HasSuffix(a.Question.Resource, "7") {
			time.Sleep(time.Millisecond) // leave this request unanswered
			continue
		}
		d.mu.Lock()
		link := d.links[a.Question.Resource+" "+answer.Answer]
		byLink := link != "" && answer.Scope == "once" && rand.IntN(2) == 0
		d.tried[a.ID] = append(d.tried[a.ID], answer)
		d.mu.Unlock()
		if byLink {
			err = tapLink(ctx, addr, link)
		} else {
			_, err = c.Answer(ctx, a.ID, answer)
		}
		if err == nil {
			d.mu.Lock()
			d.acknowledged[a.ID] = answer
			d.mu.Unlock()
		}
	}
}

// tapLink answers a request with a link.
func tapLink(ctx context.Context, addr, link string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+link, nil)
	if err != nil {
		return err
	}
	req.Host = "phone.example"
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, %v", resp.Status, text, err)
	}
	return nil
}

// holds checks the daemon's state after a restart.
func (d *desk) holds(when string) {
	d.Helper()
	ctx := d.Context()
	if r, err := d.VerifyChain(ctx, true); err != nil || r.Bad != nil {
		d.Fatalf("%s: the audit log: %+v, %v", when, r, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	states := map[id.Approval]wire.Approval{}
	for aid := range d.seen {
		now, err := d.Approval(ctx, aid, 0)
		if err != nil {
			d.Errorf("%s: request %s, pending before, is lost: %v", when, aid, err)
			continue
		}
		states[aid] = now
	}
	// Read the log after the states, because requests expire in the meantime.
	ends := map[string][]string{}
	entries, err := client.Collect(d.Chain(ctx, map[string][]string{"kind": {askedKind + "," + answeredKind + "," + expiredKind}}))
	if err != nil {
		d.Fatal(err)
	}
	for _, e := range entries {
		var b struct{ Approval, Verdict, Outcome string }
		if err := json.Unmarshal(e.Body, &b); err != nil {
			d.Fatal(err)
		}
		if e.Kind == askedKind {
			b.Outcome = "asked"
		}
		ends[b.Approval] = append(ends[b.Approval], b.Outcome)
	}
	for aid, now := range states {
		if n := len(ends[string(aid)]); n == 0 || n > 2 || ends[string(aid)][0] != "asked" {
			d.Errorf("%s: audit log entries of %s = %q, want one request and at most one end", when, aid, ends[string(aid)])
		}
		want, acknowledged := d.acknowledged[aid]
		switch {
		case acknowledged && (now.State != "answered" || now.Answer.Answer != want.Answer || now.Answer.Scope != want.Scope):
			d.Errorf("%s: %s was answered with %s %s, got %s %+v", when, aid, want.Answer, want.Scope, now.State, now.Answer)
		case now.State == "answered" && !slices.ContainsFunc(d.tried[aid], func(a wire.AnswerApproval) bool {
			return a.Answer == now.Answer.Answer && a.Scope == now.Answer.Scope
		}):
			d.Errorf("%s: %s has the answer %+v, which was never sent", when, aid, now.Answer)
		case now.State == "answered" && now.Answer.Scope == "always":
			x, err := d.ExplainPolicy(ctx, wire.Explain{Jail: d.jail, Question: wire.Question{Action: "bash", Resource: now.Question.Resource}})
			if err != nil || x.Decision.Effect != now.Answer.Answer {
				d.Errorf("%s: %s has the permanent answer %s, but the policy decides %+v, %v", when, now.Question.Resource, now.Answer.Answer, x.Decision, err)
			}
		}
		if now.State == "answered" || now.State == "expired" || now.State == "withdrawn" {
			if n := len(ends[string(aid)]); n != 2 {
				d.Errorf("%s: %s is %s, but its audit log entries are %q", when, aid, now.State, ends[string(aid)])
			}
		}
	}
}

// TestApprovalsUnderKills kills the daemon while agents ask and approvers answer, by API and by
// link, once and permanently, and while some requests expire. No request is lost or ends twice,
// and an acknowledged answer holds.
func TestApprovalsUnderKills(t *testing.T) {
	kills := 5
	switch {
	case thorough:
		kills = 40
	case testing.Short():
		kills = 2
	}
	d := openDesk(t)
	for n := range kills {
		busy, stop := context.WithCancel(t.Context())
		c, addr := d.Client, d.tcpAddr()
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() { d.agent(busy, c) })
		}
		for range 2 {
			work.Go(func() { d.person(busy, c, addr) })
		}
		answered := func() int { d.mu.Lock(); defer d.mu.Unlock(); return len(d.acknowledged) }
		before := answered()
		if !within(time.Minute, func() bool { return answered() > before }) {
			t.Errorf("no answer was acknowledged before kill %d", n+1)
		}
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond)
		d.kill()
		stop()
		work.Wait()
		d.start()
		d.holds(fmt.Sprintf("kill %d", n+1))
		if t.Failed() {
			break
		}
	}
	// Each question gets a verdict.
	busy, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var work sync.WaitGroup
	d.mu.Lock()
	left := len(d.asked)
	d.mu.Unlock()
	for range left {
		work.Go(func() {
			q := d.question()
			if _, err := d.Decide(busy, d.jail, wire.Decide{Question: wire.Question{Action: "bash", Resource: q}, WaitMS: 30_000}); err != nil {
				t.Errorf("%s: %v", q, err)
			}
		})
	}
	work.Wait()
	d.holds("at the end")
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Logf("%d questions, %d requests, %d answers acknowledged", d.next, len(d.seen), len(d.acknowledged))
	if len(d.acknowledged) < kills {
		t.Error("too few acknowledged answers for a meaningful test")
	}
}

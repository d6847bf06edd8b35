package connector

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"glasshouse/agents/run"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/webhook"
)

// MaxBody is the maximum size of an inbound request in bytes.
const MaxBody = 1 << 20

// maxConcurrent is the maximum number of bodies that are read concurrently.
const maxConcurrent = 64

type hook struct {
	InboundWebhook
	entry
}

// An entry is a parsed Entry.
type entry struct {
	Entry
	session, text, goal template
}

func newHook(field string, h InboundWebhook) (*hook, error) {
	h.Scheme = cmp.Or(h.Scheme, webhook.Standard)
	switch {
	case h.Scheme != webhook.Standard && h.Scheme != webhook.GitHub:
		return nil, fault.Fieldf("connector.newHook", field+".scheme", "%.40q is neither standard nor github", string(h.Scheme))
	case h.Secret == "":
		return nil, fault.Fieldf("connector.newHook", field+".secret", "secret is required")
	}
	if len(h.Labels) == 0 {
		h.Labels = []manifest.Label{manifest.PII}
	}
	if err := checkLabels(field, h.Labels); err != nil {
		return nil, err
	}
	e, err := newEntry(field, h.Entry)
	return &hook{h, e}, err
}

func newEntry(field string, e Entry) (entry, error) {
	made := entry{Entry: e}
	for _, t := range []struct {
		name, text string
		to         *template
	}{{"session", e.Session, &made.session}, {"text", e.Text, &made.text}, {"goal", e.Goal, &made.goal}} {
		var err error
		if *t.to, err = parseTemplate(t.text); err != nil {
			return made, fault.Fieldf("connector.newEntry", field+"."+t.name, "%w", err)
		}
	}
	switch {
	case e.Session == "" && e.Goal == "":
		return made, fault.Fieldf("connector.newEntry", field+".session", "session or goal is required")
	case e.Session != "" && !made.session.fields() && !id.ValidSession(e.Session):
		return made, fault.Fieldf("connector.newEntry", field+".session", "%.140q is not a valid session name: want 1 to 128 of A-Z a-z 0-9 . _ : -", e.Session)
	case e.Goal == "" && (e.Agent != nil || len(e.Limits) > 0):
		return made, fault.Fieldf("connector.newEntry", field+".goal", "goal is required when agent or limits are set")
	}
	return made, nil
}

// A Received is the result of an inbound message.
type Received struct {
	Session string
	Message id.Message
	Run     id.Run // "": no run was started
}

// Enter waits for a free slot to read a body, or refuses the request. The caller must call
// leave after it has read the body.
func (c *Connectors) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case c.busy <- struct{}{}:
		return func() { <-c.busy }, nil
	default:
		return nil, fault.Newf(fault.Exhausted, "connector.Enter", "", "%d requests are in progress", maxConcurrent)
	}
}

// Receive processes a request to an inbound webhook. The message is stored when it returns.
// The error is the same for an invalid signature and for an unknown webhook.
func (c *Connectors) Receive(ctx context.Context, name string, h http.Header, body []byte) (Received, error) {
	to := c.hooks[name]
	if to == nil {
		return Received{}, webhook.ErrSignature
	}
	key, err := c.keys.get(ctx, name, to.Secret, "")
	var delivery string
	if err == nil {
		delivery, err = to.Scheme.Verify(key, h, body, time.Now())
	}
	if errors.Is(err, fault.Unauthenticated) {
		return Received{}, err
	}
	if err != nil {
		c.cfg.Log.Error("cannot verify an inbound webhook", "connector", name, "err", err)
		return Received{}, fault.Newf(fault.Unavailable, "connector.Receive", "", "the signature cannot be verified at the moment; see the daemon's log")
	}
	if !utf8.Valid(body) {
		return Received{}, fault.Newf(fault.Invalid, "connector.Receive", "", "the body is not UTF-8")
	}
	got := &arrival{connector: name, key: hexOf(delivery), text: string(body), body: body, labels: to.Labels}
	return c.enter(ctx, &to.entry, got)
}

func hexOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// An arrival is an authenticated inbound message.
type arrival struct {
	connector string
	key       string // idempotency key
	text      string
	body      []byte // JSON, if a template refers to a field
	labels    []manifest.Label
}

// enter stores a message and starts its run. It is idempotent.
func (c *Connectors) enter(ctx context.Context, e *entry, a *arrival) (Received, error) {
	var doc any
	if e.session.fields() || e.text.fields() || e.goal.fields() {
		var err error
		if doc, err = decode(a.body); err != nil {
			return Received{}, err
		}
	}
	got := Received{Session: fmt.Sprintf("%s-%s", a.connector, a.key[:12])}
	var goal string
	for _, t := range []struct {
		from template
		to   *string
		as   func(string) string
	}{{e.session, &got.Session, sessionWord}, {e.text, &a.text, verbatim}, {e.goal, &goal, verbatim}} {
		if len(t.from) == 0 {
			continue
		}
		var err error
		if *t.to, err = t.from.fill(doc, t.as); err != nil {
			return Received{}, err
		}
	}
	key, by := "connector/"+a.connector+"/"+a.key, "connector "+a.connector
	m, err := c.cfg.Runs.Send(ctx, run.Message{Session: got.Session, From: by, Text: a.text, Labels: a.labels, Key: key})
	if err != nil {
		return Received{}, err
	}
	if got.Message = m.ID; goal == "" {
		return got, nil
	}
	q := run.Request{Session: got.Session, Goal: goal, Agent: e.Agent, Limits: e.Limits, By: by, Key: key}
	if e.goal.fields() {
		q.Labels = a.labels
	}
	r, err := c.cfg.Start(ctx, q)
	got.Run = r.ID
	return got, err
}

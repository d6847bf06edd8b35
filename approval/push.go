package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A Push tells one person's phone of requests through ntfy or what speaks like
// it. It has a button for each answer, which posts to a link that can be used
// once; with no Config.Links it only tells.
type Push struct {
	Name  string
	URL   string // of the server: "https://ntfy.example/"
	Topic string
	Who   Person // who gets it, and so who answers by its links

	// Token returns the server's access token; nil means that it wants none.
	// It is not kept.
	Token func(ctx context.Context) ([]byte, error)
}

// What ntfy takes as a message is 4096 bytes; the rest is for what is around it.
const maxPushed = 2800

// A pushed is what ntfy is told, as JSON.
type pushed struct {
	Topic    string   `json:"topic"`
	Title    string   `json:"title"`
	Message  string   `json:"message"`
	Priority int      `json:"priority"`
	Tags     []string `json:"tags"`
	Click    string   `json:"click,omitempty"`
	Actions  []action `json:"actions,omitempty"`
}

type action struct {
	Action string `json:"action"`
	Label  string `json:"label"`
	URL    string `json:"url"`
	Method string `json:"method"`
	Clear  bool   `json:"clear"`
}

func (p Push) name() string      { return p.Name }
func (p Push) wants(k Kind) bool { return k == KindAsked || k == KindSeconded }

// bodies is one without text: what is sent has links in it, which are kept nowhere.
func (p Push) bodies(context.Context, Request, Kind, time.Time) ([]json.RawMessage, error) {
	return []json.RawMessage{nil}, nil
}

func (p Push) deliver(ctx context.Context, q *Queue, n Notice) error {
	r, err := q.store.Get(ctx, n.Approval)
	if err != nil {
		return err
	}
	if r.State != Pending || !r.Expires.After(time.Now()) {
		return nil // there is nothing to answer any more
	}
	msg, err := p.message(ctx, q, r)
	if err != nil {
		return err
	}
	body, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	if p.Token != nil {
		token, err := p.Token(ctx)
		if err != nil {
			return fmt.Errorf("the token of the push server: %w", err)
		}
		h.Set("Authorization", "Bearer "+string(token))
	}
	return sender.Post(ctx, p.URL, h, body)
}

// message writes what a phone shows. It can be allowed there only if all of it
// is shown.
func (p Push) message(ctx context.Context, q *Queue, r Request) (pushed, error) {
	v := Show(r, maxPushed)
	m := pushed{Topic: p.Topic, Title: v.Title, Message: v.text(), Priority: 4, Tags: []string{"lock"}}
	if r.Tier == Elevated {
		m.Priority, m.Tags = 5, []string{"warning"}
	}
	if len(m.Message) > 4000 {
		v.Details, v.Context = nil, ""
		m.Message = shorten(v.text(), 3900)
	}
	if q.cfg.Links == "" {
		return m, nil
	}
	for _, b := range []struct {
		label   string
		verdict Verdict
		shown   bool
	}{
		{"Allow once", Allow, r.Tier == Standard && v.Whole},
		{"Deny", Deny, true},
	} {
		if !b.shown {
			continue
		}
		to, err := q.NewLink(ctx, r.ID, b.verdict, p.Who)
		if err != nil {
			return m, err
		}
		m.Actions = append(m.Actions, action{Action: "http", Label: b.label, URL: to, Method: http.MethodPost, Clear: true})
		if m.Click == "" {
			m.Click = to // shows what would be decided, and decides nothing
		}
	}
	return m, nil
}

// text is a view as plain text.
func (v View) text() string {
	lines := []string{v.What, "", "Who: " + v.Who, "Why: " + v.Why, "Rule: " + v.Rule}
	lines = append(lines, v.Details...)
	if v.First != "" {
		lines = append(lines, "Allowed by: "+v.First+"; it takes one more")
	}
	if v.Phrase != "" {
		lines = append(lines, "Elevated: to allow it takes a second operator, or the phrase typed: "+v.Phrase)
	}
	if !v.Whole {
		lines = append(lines, "Not all of it is shown here: open it to see the whole before you allow it.")
	}
	lines = append(lines, "Denied at "+v.Expires.UTC().Format(time.DateTime)+" UTC if nobody answers", string(v.ID))
	return strings.Join(lines, "\n")
}

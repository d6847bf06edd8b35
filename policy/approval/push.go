package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A Push notifies one person's phone of requests through ntfy or a compatible server. The
// notification has a button for each answer, which posts to a single-use link. Without
// Config.Links it has no buttons.
type Push struct {
	Name      string
	URL       string // URL of the server: "https://ntfy.example/"
	Topic     string
	Recipient Person // the recipient, and the author of answers given through the links

	// Token returns the access token of the server. It is called for each delivery and the
	// token is not stored. nil: the server needs no token.
	Token func(ctx context.Context) ([]byte, error)
}

// ntfy limits a message to 4096 bytes. The difference is reserved for the text around the
// request.
const maxNtfyText = 2800

// An ntfyMessage is the JSON that ntfy accepts
// (https://docs.ntfy.sh/publish/#publish-as-json).
type ntfyMessage struct {
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

// bodies returns one notice without a body. The message contains links, which are not stored,
// so it is built at delivery.
func (p Push) bodies(context.Context, Request, Kind, time.Time) ([]json.RawMessage, error) {
	return []json.RawMessage{nil}, nil
}

func (p Push) deliver(ctx context.Context, q *Queue, n Notice) error {
	r, err := q.store.Get(ctx, n.Approval)
	if err != nil {
		return err
	}
	if r.State != Pending || !r.Expires.After(time.Now()) {
		return nil // already settled: no answer is needed
	}
	msg, err := p.message(ctx, q, r)
	if err != nil {
		return fmt.Errorf("create the message: %w", err)
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
			return fmt.Errorf("get the token of the push server: %w", err)
		}
		h.Set("Authorization", "Bearer "+string(token))
	}
	return sender.Post(ctx, p.URL, h, body)
}

// message builds the notification. It has a button to allow the request only if it shows the
// complete request.
func (p Push) message(ctx context.Context, q *Queue, r Request) (ntfyMessage, error) {
	v := Show(r, maxNtfyText)
	m := ntfyMessage{Topic: p.Topic, Title: v.Title, Message: v.text(), Priority: 4, Tags: []string{"lock"}}
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
		{"Allow once", Allow, r.Tier == Standard && v.Complete},
		{"Deny", Deny, true},
	} {
		if !b.shown {
			continue
		}
		to, err := q.NewLink(ctx, r.ID, b.verdict, p.Recipient)
		if err != nil {
			return m, err
		}
		m.Actions = append(m.Actions, action{Action: "http", Label: b.label, URL: to, Method: http.MethodPost, Clear: true})
		if m.Click == "" {
			m.Click = to // GET shows the request and changes nothing
		}
	}
	return m, nil
}

// text renders the view as plain text.
func (v View) text() string {
	lines := []string{v.What, "", "Who: " + v.Requester, "Why: " + v.Reason, "Rule: " + v.Rule}
	lines = append(lines, v.Details...)
	if v.First != "" {
		lines = append(lines, "Allowed by: "+v.First+"; a second operator is required")
	}
	if v.Phrase != "" {
		lines = append(lines, "Elevated: allowing it requires a second operator or this typed phrase: "+v.Phrase)
	}
	if !v.Complete {
		lines = append(lines, "Part of the request is not shown here. Open it to review all of it before you allow it.")
	}
	lines = append(lines, "Denied at "+v.Expires.UTC().Format(time.DateTime)+"UTC unless answered", string(v.ID))
	return strings.Join(lines, "\n")
}

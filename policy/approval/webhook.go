package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/internal/webhook"
)

// A Webhook receives every request and its outcome as a POST of JSON. It is signed as defined
// by Standard Webhooks: the header Webhook-Signature is "v1," followed by the base64 of the
// HMAC-SHA256 of the headers Webhook-Id and Webhook-Timestamp and the body, joined by dots. If
// the receiver does not respond with a 2xx status, the request is repeated with the same
// Webhook-Id.
type Webhook struct {
	Name string
	URL  string

	// Secret returns the signing key. It is called for each delivery and the key is not
	// stored. nil disables signing.
	Secret func(ctx context.Context) ([]byte, error)
}

// A WebhookBody is the JSON body of a webhook request.
type WebhookBody struct {
	Type     string    `json:"type"` // "approval." followed by the Kind
	At       time.Time `json:"timestamp"`
	Approval View      `json:"approval"`
	Answer   *Answer   `json:"answer,omitempty"`
}

func (w Webhook) name() string      { return w.Name }
func (w Webhook) wants(k Kind) bool { return k != KindRefused }

func (w Webhook) bodies(_ context.Context, r Request, k Kind, at time.Time) ([]json.RawMessage, error) {
	body, err := json.Marshal(WebhookBody{Type: "approval." + string(k), At: at, Approval: Show(r, maxResource), Answer: r.Answer})
	return []json.RawMessage{body}, err
}

func (w Webhook) deliver(ctx context.Context, _ *Queue, n Notice) error {
	var key []byte
	if w.Secret != nil {
		var err error
		key, err = w.Secret(ctx)
		if err != nil {
			return fmt.Errorf("get the signing key: %w", err)
		}
		if key == nil {
			key = []byte{} // webhook.Headers rejects an empty key
		}
	}
	h, err := webhook.Headers(key, n.ID, time.Now(), n.Body)
	if err != nil {
		return fmt.Errorf("sign the notice: %w", err)
	}
	return sender.Post(ctx, w.URL, h, n.Body)
}

// sender connects to any address, because the operator configured each of them.
var sender = webhook.NewSender(nil)

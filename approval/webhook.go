package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/internal/webhook"
)

// A Webhook is told of every request and of what becomes of it, by a POST of
// JSON that is signed as the Standard Webhooks say: the header Webhook-Signature
// is "v1," and the base64 of the HMAC-SHA256 of the headers Webhook-Id and
// Webhook-Timestamp and the body, with dots between. A receiver that does not
// answer with a 2xx is told again, with the same Webhook-Id.
type Webhook struct {
	Name string
	URL  string

	// Secret returns the key of the signature; nil means that nothing is
	// signed. The key is not kept.
	Secret func(ctx context.Context) ([]byte, error)
}

// A Hooked is the body of a webhook.
type Hooked struct {
	Type     string    `json:"type"` // "approval.asked" and so on: the Kind
	At       time.Time `json:"timestamp"`
	Approval View      `json:"approval"`
	Answer   *Answer   `json:"answer,omitempty"`
}

func (w Webhook) name() string      { return w.Name }
func (w Webhook) wants(k Kind) bool { return k != KindRefused }

func (w Webhook) bodies(_ context.Context, r Request, k Kind, at time.Time) ([]json.RawMessage, error) {
	body, err := json.Marshal(Hooked{Type: "approval." + string(k), At: at, Approval: Show(r, maxResource), Answer: r.Answer})
	return []json.RawMessage{body}, err
}

func (w Webhook) deliver(ctx context.Context, _ *Queue, n Notice) error {
	var key []byte
	if w.Secret != nil {
		var err error
		if key, err = w.Secret(ctx); err != nil {
			return fmt.Errorf("the key to sign with: %w", err)
		}
		if key == nil {
			key = []byte{} // which is refused
		}
	}
	h, err := webhook.Headers(key, n.ID, time.Now(), n.Body)
	if err != nil {
		return err
	}
	return sender.Post(ctx, w.URL, h, n.Body)
}

// sender goes wherever the operator says: he configured each address.
var sender = webhook.NewSender(nil)

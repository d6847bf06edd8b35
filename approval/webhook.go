package approval

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
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

func (w Webhook) body(r Request, k Kind, n Notice) (json.RawMessage, error) {
	return json.Marshal(Hooked{Type: "approval." + string(k), At: n.Created, Approval: Show(r, maxResource), Answer: r.Answer})
}

func (w Webhook) deliver(ctx context.Context, _ *Queue, n Notice) error {
	h := http.Header{}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	h.Set("Content-Type", "application/json")
	h.Set("Webhook-Id", n.ID)
	h.Set("Webhook-Timestamp", stamp)
	if w.Secret != nil {
		key, err := w.Secret(ctx)
		if err != nil {
			return fmt.Errorf("the key to sign with: %w", err)
		}
		if len(key) == 0 {
			return errors.New("the key to sign with is empty")
		}
		h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(sign(key, n.ID, stamp, n.Body)))
	}
	return post(ctx, w.URL, h, n.Body)
}

func sign(key []byte, nid, stamp string, body []byte) []byte {
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s.%s.", nid, stamp)
	m.Write(body)
	return m.Sum(nil)
}

// client goes where it is told and nowhere else: a redirect would carry the
// notice to a place that nobody configured.
var client = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       15 * time.Second,
}

func post(ctx context.Context, to string, h http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return redacted(err)
	}
	req.Header = h
	h.Set("User-Agent", "glasshouse")
	res, err := client.Do(req)
	if err != nil {
		return redacted(err)
	}
	defer res.Body.Close()
	io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("answered %s", res.Status)
	}
	return nil
}

// redacted takes the address away from an error: it may hold a secret.
func redacted(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

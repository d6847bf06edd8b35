package approval

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/SherClockHolmes/webpush-go"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/webhook"
)

// A Browser is a Web Push subscription (RFC 8030) for pending approvals. The browser receives
// notifications even if no page of the UI is open, for example on a phone. The subscription is
// valid as long as the login that created it.
type Browser struct {
	ID       id.Browser
	Login    id.Login
	Endpoint string // URL at its push service; a secret, because it allows sending to the browser
	Keys     BrowserKeys
	Created  time.Time

	Name, Role string // name and role of the login
}

// BrowserKeys encrypt messages to a browser, so that its push service cannot read them (RFC
// 8291).
type BrowserKeys struct {
	P256dh string // public key of the browser
	Auth   string
}

// A BrowserStore stores browsers. It does not return browsers whose login has ended.
type BrowserStore interface {
	// PushKey stores a pair of keys unless one is stored, and returns the stored pair.
	PushKey(ctx context.Context, private, public string) (kept, shown string, err error)

	// PutBrowser stores a browser and replaces one with the same endpoint. It returns
	// fault.Exhausted if the login already has most browsers.
	PutBrowser(ctx context.Context, b Browser, most int) error
	Browsers(ctx context.Context) ([]Browser, error)              // oldest first
	Browser(ctx context.Context, bid id.Browser) (Browser, error) // fault.NotFound
	DeleteBrowser(ctx context.Context, bid id.Browser) error      // no error if it does not exist
}

// BrowserConfig configures Web Push. The zero value disables it.
type BrowserConfig struct {
	Store   BrowserStore
	Contact string // https or mailto address of the operator, for the push services (RFC 8292, section 2.1)

	// Reach returns an error for addresses that the daemon must not connect to. The browsers
	// choose the addresses of their push services. nil: all addresses are allowed.
	Reach func(netip.Addr) error
}

// browsersChannel is the name of the Web Push channel. The names of configured channels
// contain no slash.
const browsersChannel = "browsers/"

// maxBrowsers is the limit per login. A browser that renews its subscription occupies two
// until the push service reports the old one as gone.
const maxBrowsers = 8

// browsers is the Web Push channel.
type browsers struct {
	cfg             BrowserConfig
	sender          *webhook.Sender
	private, public string
}

func openBrowsers(ctx context.Context, cfg BrowserConfig) (*browsers, error) {
	private, public, err := webpush.GenerateVAPIDKeys()
	if err != nil {
		return nil, fmt.Errorf("create the Web Push key: %w", err)
	}
	private, public, err = cfg.Store.PushKey(ctx, private, public)
	if err != nil {
		return nil, fmt.Errorf("load the Web Push key: %w", err)
	}
	cfg.Contact = cmp.Or(cfg.Contact, "https://localhost")
	b := &browsers{cfg: cfg, private: private, public: public}
	if cfg.Reach == nil {
		b.sender = webhook.NewSender(nil)
	} else {
		b.sender = webhook.NewSender(func(at netip.AddrPort) error { return cfg.Reach(at.Addr()) })
	}
	return b, nil
}

func (b *browsers) name() string      { return browsersChannel }
func (b *browsers) wants(k Kind) bool { return k == KindAsked || k == KindSeconded }

// browserNotice is the body of a notice: its recipient.
type browserNotice struct {
	Browser id.Browser `json:"browser"`
}

// bodies returns one body for each browser whose user may answer.
func (b *browsers) bodies(ctx context.Context, r Request, _ Kind, _ time.Time) ([]json.RawMessage, error) {
	list, err := b.cfg.Store.Browsers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the browsers: %w", err)
	}
	var bodies []json.RawMessage
	for _, browser := range list {
		if checkPerson(r, Person{ID: string(browser.Login), Role: browser.Role}) != nil {
			continue
		}
		body, err := json.Marshal(browserNotice{browser.ID})
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	return bodies, nil
}

// browserMessage is the notification that a browser displays. It contains no details of the
// request, because it appears on locked screens.
type browserMessage struct {
	Approval id.Approval `json:"approval"`
	Title    string      `json:"title"`
	Text     string      `json:"text"`
}

func (b *browsers) deliver(ctx context.Context, q *Queue, n Notice) error {
	var to browserNotice
	if err := json.Unmarshal(n.Body, &to); err != nil {
		return fmt.Errorf("decode the notice: %w", err)
	}
	r, err := q.store.Get(ctx, n.Approval)
	if err != nil {
		return err
	}
	left := time.Until(r.Expires)
	if r.State != Pending || left <= 0 {
		return nil // already settled: no answer is needed
	}
	browser, err := b.cfg.Store.Browser(ctx, to.Browser)
	if errors.Is(err, fault.NotFound) {
		return nil // unsubscribed or logged out
	}
	if err != nil {
		return err
	}
	message, err := json.Marshal(browserMessage{r.ID, "Approval required", shorten(summary(r), 200)})
	if err != nil {
		return err
	}
	status, err := b.push(ctx, browser, message, r, left)
	switch {
	case err != nil:
		return err
	case status == http.StatusNotFound || status == http.StatusGone:
		return b.cfg.Store.DeleteBrowser(ctx, browser.ID)
	case status < 200 || status > 299:
		return fmt.Errorf("the push service of a browser of %s returned status %d", Visible(browser.Name), status)
	}
	return nil
}

// summary names the requester and the action, without details.
func summary(r Request) string {
	who := string(r.Question.Subject.Jail)
	if who == "" {
		who = "unknown caller"
	}
	text := who + ": " + Visible(r.Question.Action)
	if r.Tier == Elevated {
		text += ", elevated"
	}
	return text
}

func (b *browsers) push(ctx context.Context, to Browser, message []byte, r Request, left time.Duration) (int, error) {
	res, err := webpush.SendNotificationWithContext(ctx, message, &webpush.Subscription{
		Endpoint: to.Endpoint, Keys: webpush.Keys{Auth: to.Keys.Auth, P256dh: to.Keys.P256dh},
	}, &webpush.Options{
		HTTPClient: b.sender, Subscriber: strings.TrimPrefix(b.cfg.Contact, "mailto:"), VAPIDPublicKey: b.public, VAPIDPrivateKey: b.private,
		TTL: int(left/time.Second) + 1, Urgency: webpush.UrgencyHigh, Topic: string(r.ID), // RFC 8030, section 5.4: a newer message replaces an undelivered one with the same topic
	})
	if err != nil {
		return 0, webhook.Redacted(err) // the endpoint URL is a secret
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return res.StatusCode, err
}

// PushKey returns the public key for browser subscriptions. It returns fault.Unsupported if
// Web Push is disabled.
func (q *Queue) PushKey() (string, error) {
	if q.browsers == nil {
		return "", fault.Cannot("approval.PushKey", "browser notifications are disabled in this daemon", "start the daemon with glasshouse serve")
	}
	return q.browsers.public, nil
}

// SubscribeBrowser adds a browser to the recipients of notifications, and returns it with its id.
func (q *Queue) SubscribeBrowser(ctx context.Context, b Browser) (Browser, error) {
	if _, err := q.PushKey(); err != nil {
		return b, err
	}
	if err := b.check(); err != nil {
		return b, err
	}
	b.ID, b.Created = id.NewBrowser(), time.Now().UTC()
	return b, q.browsers.cfg.Store.PutBrowser(ctx, b, maxBrowsers)
}

// Browsers returns the subscribed browsers, oldest first.
func (q *Queue) Browsers(ctx context.Context) ([]Browser, error) {
	if q.browsers == nil {
		return nil, nil
	}
	return q.browsers.cfg.Store.Browsers(ctx)
}

// Unsubscribe removes a browser from the recipients of notifications.
func (q *Queue) Unsubscribe(ctx context.Context, bid id.Browser) error {
	if _, err := q.PushKey(); err != nil {
		return err
	}
	if _, err := q.browsers.cfg.Store.Browser(ctx, bid); err != nil {
		return err
	}
	return q.browsers.cfg.Store.DeleteBrowser(ctx, bid)
}

// check validates the endpoint and the keys.
func (b Browser) check() error {
	const op = "approval.SubscribeBrowser"
	u, err := url.Parse(b.Endpoint)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || len(b.Endpoint) > 2048 {
		return fault.Fieldf(op, "endpoint", "must be an https URL of a push service")
	}
	key, err := decodeKey(b.Keys.P256dh)
	if err == nil {
		_, err = ecdh.P256().NewPublicKey(key)
	}
	if err != nil {
		return fault.Fieldf(op, "keys.p256dh", "must be a P-256 public key")
	}
	if auth, err := decodeKey(b.Keys.Auth); err != nil || len(auth) != 16 {
		return fault.Fieldf(op, "keys.auth", "must be 16 bytes")
	}
	return nil
}

// decodeKey decodes a key as sent by browsers: base64url, with or without padding.
func decodeKey(s string) ([]byte, error) {
	if len(s) > 200 {
		return nil, errors.New("too long")
	}
	return base64.RawURLEncoding.DecodeString(string(bytes.TrimRight([]byte(s), "=")))
}

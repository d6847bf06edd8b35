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

// A Browser is one that wants to be told when a person is asked, by Web Push (RFC
// 8030): also when no page of ours is open in it, as on a phone. It is told as long
// as the login is good that it was subscribed with.
type Browser struct {
	ID       id.Browser
	Login    id.Login
	Endpoint string // of its push service: who has it can tell the browser something
	Keys     BrowserKeys
	Created  time.Time

	Name, Role string // of the login
}

// BrowserKeys are what a browser reads messages with, so that its push service cannot.
type BrowserKeys struct {
	P256dh string // its public key
	Auth   string
}

// A BrowserStore keeps browsers. One whose login has ended is not there any more.
type BrowserStore interface {
	// PushKey keeps a pair of keys if there is none, and returns those that are kept.
	PushKey(ctx context.Context, private, public string) (kept, shown string, err error)

	// PutBrowser keeps a browser in place of one with the same endpoint;
	// fault.Exhausted if its login has as many.
	PutBrowser(ctx context.Context, b Browser, most int) error
	Browsers(ctx context.Context) ([]Browser, error)              // oldest first
	Browser(ctx context.Context, bid id.Browser) (Browser, error) // fault.NotFound
	DeleteBrowser(ctx context.Context, bid id.Browser) error      // of one that is not there, too
}

// BrowserConfig says how browsers are told. The zero value tells none.
type BrowserConfig struct {
	Store   BrowserStore
	Contact string // an https or mailto address, by which push services reach who runs this

	// Reach says whether a push service may be at an address: browsers name them,
	// and the daemon goes there. nil: it may be anywhere.
	Reach func(netip.Addr) error
}

// browsersChannel is the name of the channel that tells browsers. Configured channels
// have names of people and places, and none with a slash.
const browsersChannel = "browsers/"

// mostBrowsers is how many a login may have: a browser whose subscription is renewed
// has another one until the service says that the old one is gone.
const mostBrowsers = 8

// browsers is the channel that tells browsers.
type browsers struct {
	cfg             BrowserConfig
	sender          *webhook.Sender
	private, public string
}

func openBrowsers(ctx context.Context, cfg BrowserConfig) (*browsers, error) {
	private, public, err := webpush.GenerateVAPIDKeys()
	if err != nil {
		return nil, err
	}
	if private, public, err = cfg.Store.PushKey(ctx, private, public); err != nil {
		return nil, fmt.Errorf("the key that push services know: %w", err)
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

// toldBrowser is the body of a notice: whom it is for.
type toldBrowser struct {
	Browser id.Browser `json:"browser"`
}

// bodies is one for each browser of somebody who may answer.
func (b *browsers) bodies(ctx context.Context, r Request, _ Kind, _ time.Time) ([]json.RawMessage, error) {
	list, err := b.cfg.Store.Browsers(ctx)
	if err != nil {
		return nil, err
	}
	var bodies []json.RawMessage
	for _, one := range list {
		if permits(r, Person{ID: string(one.Login), Role: one.Role}) != nil {
			continue
		}
		body, err := json.Marshal(toldBrowser{one.ID})
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	return bodies, nil
}

// pushedToBrowser is what a browser shows. It has nothing of what would be done: it is
// on a screen that is locked.
type pushedToBrowser struct {
	Approval id.Approval `json:"approval"`
	Title    string      `json:"title"`
	Text     string      `json:"text"`
}

func (b *browsers) deliver(ctx context.Context, q *Queue, n Notice) error {
	var to toldBrowser
	if err := json.Unmarshal(n.Body, &to); err != nil {
		return err
	}
	r, err := q.store.Get(ctx, n.Approval)
	if err != nil {
		return err
	}
	left := time.Until(r.Expires)
	if r.State != Pending || left <= 0 {
		return nil // there is nothing to answer any more
	}
	one, err := b.cfg.Store.Browser(ctx, to.Browser)
	if errors.Is(err, fault.NotFound) {
		return nil // it wants to be told no more, or is logged out
	}
	if err != nil {
		return err
	}
	message, err := json.Marshal(pushedToBrowser{r.ID, "A person is asked", shorten(briefly(r), 200)})
	if err != nil {
		return err
	}
	status, err := b.push(ctx, one, message, r, left)
	switch {
	case err != nil:
		return err
	case status == http.StatusNotFound || status == http.StatusGone:
		return b.cfg.Store.DeleteBrowser(ctx, one.ID)
	case status < 200 || status > 299:
		return fmt.Errorf("the push service of a browser of %s answered %d", Visible(one.Name), status)
	}
	return nil
}

// briefly is who asks for what kind of thing.
func briefly(r Request) string {
	who := string(r.Question.Subject.Jail)
	if who == "" {
		who = "somebody"
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
		TTL: int(left/time.Second) + 1, Urgency: webpush.UrgencyHigh, Topic: string(r.ID), // the newest word on a request counts
	})
	if err != nil {
		return 0, webhook.Redacted(err) // the address is a secret of the browser's
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return res.StatusCode, err
}

// PushKey is what a browser subscribes with; fault.Unsupported if none is told here.
func (q *Queue) PushKey() (string, error) {
	if q.browsers == nil {
		return "", fault.Cannot("approval.PushKey", "no browser is told of anything here", "use a daemon that was started by glasshouse serve")
	}
	return q.browsers.public, nil
}

// Subscribed has a browser told from now on, and returns its id.
func (q *Queue) Subscribed(ctx context.Context, b Browser) (Browser, error) {
	if _, err := q.PushKey(); err != nil {
		return b, err
	}
	if err := b.check(); err != nil {
		return b, err
	}
	b.ID, b.Created = id.NewBrowser(), time.Now().UTC()
	return b, q.browsers.cfg.Store.PutBrowser(ctx, b, mostBrowsers)
}

// Browsers returns those that are told, oldest first.
func (q *Queue) Browsers(ctx context.Context) ([]Browser, error) {
	if q.browsers == nil {
		return nil, nil
	}
	return q.browsers.cfg.Store.Browsers(ctx)
}

// Unsubscribe has a browser told no more.
func (q *Queue) Unsubscribe(ctx context.Context, bid id.Browser) error {
	if _, err := q.PushKey(); err != nil {
		return err
	}
	if _, err := q.browsers.cfg.Store.Browser(ctx, bid); err != nil {
		return err
	}
	return q.browsers.cfg.Store.DeleteBrowser(ctx, bid)
}

// check refuses what nothing could be sent to.
func (b Browser) check() error {
	const op = "approval.Subscribed"
	u, err := url.Parse(b.Endpoint)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || len(b.Endpoint) > 2048 {
		return fault.Fieldf(op, "endpoint", "it is no https address of a push service")
	}
	key, err := decodeKey(b.Keys.P256dh)
	if err == nil {
		_, err = ecdh.P256().NewPublicKey(key)
	}
	if err != nil {
		return fault.Fieldf(op, "keys.p256dh", "it is no public key of P-256")
	}
	if auth, err := decodeKey(b.Keys.Auth); err != nil || len(auth) != 16 {
		return fault.Fieldf(op, "keys.auth", "it is not 16 bytes")
	}
	return nil
}

// decodeKey reads a key as browsers write them.
func decodeKey(s string) ([]byte, error) {
	if len(s) > 200 {
		return nil, errors.New("too long")
	}
	return base64.RawURLEncoding.DecodeString(string(bytes.TrimRight([]byte(s), "=")))
}

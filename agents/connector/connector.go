// Package connector implements inbound and outbound webhooks for sessions, and relays between
// sessions.
//
//	others ──▶ InboundWebhook ──▶ inbox, run          outbox ──▶ OutboundWebhook ──▶ others
//	                       ▲                   │
//	                       └────── Relay ◀─────┘
//
// An inbound message is stored before the response, and duplicates are detected. An outbound
// message is delivered at least once, always with the same id.
package connector

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"sync"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/webhook"
)

// An InboundWebhook is an inbound webhook, which accepts signed requests.
type InboundWebhook struct {
	Name   string
	Scheme webhook.Scheme
	Secret string           // name of the secret that verifies signatures
	Labels []manifest.Label // labels of inbound data; none: pii
	Entry
}

// An Entry defines how an inbound message is processed: as a message in a session's inbox and,
// if there is a goal, a run that reads it. In Session, Text and Goal, {{a.b}} is replaced by
// the field b of the field a of the JSON body.
type Entry struct {
	Session string          // "", with a goal: a new session for each run
	Text    string          // text of the message; "": the whole body
	Goal    string          // "": no run is started
	Agent   json.RawMessage // agent of the run; nil: the session's
	Limits  budget.Amounts  // limits of the run
}

// An OutboundWebhook is an outbound webhook, which delivers messages of sessions to an address.
type OutboundWebhook struct {
	Name     string
	Sessions []string // names, or patterns with *
	URL      string
	Secret   string           // name of the signing secret; "": unsigned
	Networks []netip.Prefix   // allowed destinations in addition to the Internet
	Labels   []manifest.Label // classes that are delivered in plain text; other personal data is replaced by its handle
}

// A Relay forwards messages of sessions to another session.
type Relay struct {
	Name     string
	Sessions []string         // names, or patterns with *
	Labels   []manifest.Label // as in OutboundWebhook
	Entry
}

// Runs manages sessions. *run.Manager implements it.
type Runs interface {
	Send(ctx context.Context, m run.Message) (run.Message, error)
	Message(ctx context.Context, mid id.Message) (run.Message, error)
	Reveal(ctx context.Context, handle string, who run.Reader) (string, error)

	TakeDeliveries(ctx context.Context, to string, limit int) ([]run.Delivery, error)
	Delivered(ctx context.Context, d run.Delivery) error
	NotDelivered(ctx context.Context, d run.Delivery, why error) (run.Delivery, error)
	Delivery(ctx context.Context, did string) (run.Delivery, error)
	Redeliver(ctx context.Context, d run.Delivery) (run.Delivery, error)
	DeliveriesTo(ctx context.Context, f run.DeliveryFilter) ([]run.Delivery, error)
	Undelivered(ctx context.Context, to string, s run.DeliveryState) (int64, error)

	Subscribe(f func(run.Event)) (cancel func())
}

// Config configures Connectors.
type Config struct {
	Hooks  []InboundWebhook
	Posts  []OutboundWebhook
	Relays []Relay

	Address string // public base address of inbound webhooks, https://host/hooks/; for display

	Runs  Runs
	Start func(ctx context.Context, q run.Request) (run.Run, error)                 // starts a run
	Key   func(ctx context.Context, connector, secret, host string) ([]byte, error) // returns a secret; host is its destination, or empty
	Reach func(a netip.Addr) error                                                  // refuses addresses that are not on the Internet

	Log *slog.Logger
}

// Connectors are the connectors of one daemon. They are safe for concurrent use.
type Connectors struct {
	cfg    Config
	hooks  map[string]*hook
	outs   []*out
	keys   keys
	busy   chan struct{} // semaphore: requests whose bodies are being read
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	unsubscribe func() // from the events of runs
}

// Kind is the kind of a connector.
type Kind string

const (
	KindHook  Kind = "hook"
	KindPost  Kind = "post"
	KindRelay Kind = "relay"
)

// An Info describes a connector.
type Info struct {
	Name     string
	Kind     Kind
	Address  string // the URL of an inbound webhook, or the host of an outbound one
	Sessions []string
	Session  string // destination, as configured
	Goal     string
	Pending  int64
	Dead     int64
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// New returns Connectors. They deliver nothing before Open.
func New(cfg Config) (*Connectors, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Connectors{cfg: cfg, hooks: map[string]*hook{}, keys: keys{fetch: cfg.Key}, busy: make(chan struct{}, maxConcurrent)}
	names := map[string]bool{}
	claim := func(field, name string) error {
		if !nameForm.MatchString(name) || names[name] {
			return fault.Fieldf("connector.New", field+".name", "%.60q is invalid or used by another connector: want 1 to 40 lower-case letters, digits and dashes", name)
		}
		names[name] = true
		return nil
	}
	for i, h := range cfg.Hooks {
		field := fmt.Sprintf("hooks[%d]", i)
		if err := claim(field, h.Name); err != nil {
			return nil, err
		}
		made, err := newHook(field, h)
		if err != nil {
			return nil, err
		}
		c.hooks[h.Name] = made
	}
	for i, p := range cfg.Posts {
		field := fmt.Sprintf("posts[%d]", i)
		if err := claim(field, p.Name); err != nil {
			return nil, err
		}
		made, err := c.newPost(field, p)
		if err != nil {
			return nil, err
		}
		c.outs = append(c.outs, made)
	}
	for i, r := range cfg.Relays {
		field := fmt.Sprintf("relays[%d]", i)
		if err := claim(field, r.Name); err != nil {
			return nil, err
		}
		made, err := c.newRelay(field, r)
		if err != nil {
			return nil, err
		}
		c.outs = append(c.outs, made)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.unsubscribe = func() {}
	return c, nil
}

// Open starts deliveries.
func (c *Connectors) Open() {
	c.unsubscribe = c.cfg.Runs.Subscribe(func(e run.Event) {
		if e.Kind == run.MessageOut {
			c.wake()
		}
	})
	for _, o := range c.outs {
		c.wg.Go(func() { c.deliverLoop(o) })
	}
}

// Close cancels deliveries in progress. They are retried after the next Open.
func (c *Connectors) Close() error {
	c.unsubscribe()
	c.cancel()
	c.wg.Wait()
	for _, o := range c.outs {
		if o.sender != nil {
			o.sender.Close()
		}
	}
	return nil
}

// List returns all connectors with the number of pending deliveries.
func (c *Connectors) List(ctx context.Context) ([]Info, error) {
	var all []Info
	for _, h := range c.cfg.Hooks {
		all = append(all, Info{Name: h.Name, Kind: KindHook, Address: c.cfg.Address + h.Name, Session: h.Session, Goal: h.Goal})
	}
	for _, o := range c.outs {
		i := o.info
		for state, n := range map[run.DeliveryState]*int64{run.Pending: &i.Pending, run.Dead: &i.Dead} {
			var err error
			if *n, err = c.cfg.Runs.Undelivered(ctx, i.Name, state); err != nil {
				return nil, fmt.Errorf("count the %s deliveries of connector %s: %w", state, i.Name, err)
			}
		}
		all = append(all, i)
	}
	return all, nil
}

// For returns the connectors that receive the messages of a session.
func (c *Connectors) For(session string) []string {
	var names []string
	for _, o := range c.outs {
		if o.wants(session) {
			names = append(names, o.info.Name)
		}
	}
	return names
}

// checkSessions refuses patterns that match nothing.
func checkSessions(field string, patterns []string) error {
	if len(patterns) == 0 {
		return fault.Fieldf("connector.checkSessions", field+".sessions", "no sessions are configured")
	}
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fault.Fieldf("connector.checkSessions", field+".sessions", "%.140q is neither a session nor a pattern such as ops-*", p)
		}
	}
	return nil
}

func checkLabels(field string, labels []manifest.Label) error {
	for _, l := range labels {
		if _, err := manifest.ParseLabel(string(l)); err != nil {
			return fault.Fieldf("connector.checkLabels", field+".labels", "%w", err)
		}
	}
	return nil
}

// hostOf returns the host of an address. The rest of the address may contain a secret and is
// not shown.
func hostOf(field, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", fault.Fieldf("connector.hostOf", field+".url", "not a URL such as https://host/path")
	}
	return u.Hostname(), nil
}

// keys caches secrets briefly. Each use of a secret is logged, and requests with invalid
// signatures must not flood the audit log.
type keys struct {
	fetch func(ctx context.Context, connector, secret, host string) ([]byte, error)

	mu sync.Mutex
	// +checklocks:mu
	kept map[string]keptKey // by connector
}

type keptKey struct {
	value []byte
	until time.Time
}

const keyTime = 30 * time.Second // delay until a changed secret takes effect

func (k *keys) get(ctx context.Context, connector, secret, host string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if got, ok := k.kept[connector]; ok && time.Now().Before(got.until) {
		return got.value, nil
	}
	value, err := k.fetch(ctx, connector, secret, host)
	if err != nil {
		return nil, fmt.Errorf("read the key of connector %s: %w", connector, err)
	}
	if k.kept == nil {
		k.kept = map[string]keptKey{}
	}
	k.kept[connector] = keptKey{value, time.Now().Add(keyTime)}
	return value, nil
}

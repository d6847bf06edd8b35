// Package connector joins sessions to what is outside of them.
//
//	others ──▶ Hook ──▶ inbox, run          outbox ──▶ Post ──▶ others
//	                       ▲                   │
//	                       └────── Relay ◀─────┘
//
// What comes in is kept before it is answered, and the same twice is one message. What
// goes out is delivered at least once, always under the same id.
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

	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/webhook"
	"glasshouse/manifest"
	"glasshouse/run"
)

// A Hook takes what others post to it, if they sign it.
type Hook struct {
	Name   string
	Scheme webhook.Scheme
	Secret string           // name of the secret that they sign with
	Labels []manifest.Label // of what comes; none: pii
	Entry
}

// An Entry says what becomes of what comes: a message in the inbox of a session, and a
// run that reads it, if there is a goal. In Session, Text and Goal, {{a.b}} stands for
// the field b of the field a of what comes, which is JSON then.
type Entry struct {
	Session string          // "", with a goal: one of its own for each run
	Text    string          // of the message; "": all that came
	Goal    string          // "": no run is begun
	Agent   json.RawMessage // of the run; nil: the session's
	Limits  budget.Amounts  // of the run
}

// A Post has what is said in sessions posted to an address.
type Post struct {
	Name     string
	Sessions []string // names, or patterns with *
	URL      string
	Secret   string           // name of the secret that it is signed with; "": it is not signed
	Networks []netip.Prefix   // where it may go besides the Internet
	Labels   []manifest.Label // what it may have as it is; of all else that is personal it has the handle
}

// A Relay tells one session what is said in others.
type Relay struct {
	Name     string
	Sessions []string         // names, or patterns with *
	Labels   []manifest.Label // as a Post's
	Entry
}

// Runs is where sessions are. *run.Manager is one.
type Runs interface {
	Send(ctx context.Context, m run.Message) (run.Message, error)
	Message(ctx context.Context, mid id.Message) (run.Message, error)
	Reveal(ctx context.Context, handle string, who run.Reader) (string, error)

	Take(ctx context.Context, to string, limit int) ([]run.Delivery, error)
	Delivered(ctx context.Context, d run.Delivery) error
	NotDelivered(ctx context.Context, d run.Delivery, why error) (run.Delivery, error)
	Delivery(ctx context.Context, did string) (run.Delivery, error)
	Redeliver(ctx context.Context, d run.Delivery) (run.Delivery, error)
	DeliveriesTo(ctx context.Context, f run.DeliveryFilter) ([]run.Delivery, error)
	Undelivered(ctx context.Context, to string, s run.DeliveryState) (int64, error)
}

// Config is what Connectors work with.
type Config struct {
	Hooks  []Hook
	Posts  []Post
	Relays []Relay

	Address string // where others find hooks: https://host/hooks/; for who configures them

	Runs  Runs
	Start func(ctx context.Context, q run.Request) (run.Run, error)                 // begins a run
	Key   func(ctx context.Context, connector, secret, host string) ([]byte, error) // lends a secret; host is where it goes, if it does
	Reach func(a netip.Addr) error                                                  // refuses an address that is not on the Internet

	Log *slog.Logger
}

// Connectors are the connectors of one daemon. They are safe for concurrent use.
type Connectors struct {
	cfg    Config
	hooks  map[string]*hook
	outs   []*out
	keys   keys
	busy   chan struct{} // has room for those whose bodies are read
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Kind is what a connector is.
type Kind string

const (
	KindHook  Kind = "hook"
	KindPost  Kind = "post"
	KindRelay Kind = "relay"
)

// An Info is what is shown of a connector.
type Info struct {
	Name     string
	Kind     Kind
	Address  string // of a hook: where it is found; of a post: whose host it goes to
	Sessions []string
	Session  string // that is told, as it is configured
	Goal     string
	Pending  int64
	Dead     int64
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// New returns Connectors that do nothing before Open.
func New(cfg Config) (*Connectors, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Connectors{cfg: cfg, hooks: map[string]*hook{}, keys: keys{fetch: cfg.Key}, busy: make(chan struct{}, atOnce)}
	names := map[string]bool{}
	claim := func(field, name string) error {
		if !nameForm.MatchString(name) || names[name] {
			return fault.Fieldf("connector", field+".name", "%.60q is no name, or another connector's: 1 to 40 letters in lower case, digits and dashes", name)
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
	return c, nil
}

// Open begins to deliver.
func (c *Connectors) Open() {
	for _, o := range c.outs {
		c.wg.Go(func() { c.deliverLoop(o) })
	}
}

// Close ends what is on its way: it is delivered again by whoever opens next.
func (c *Connectors) Close() error {
	c.cancel()
	c.wg.Wait()
	for _, o := range c.outs {
		if o.sender != nil {
			o.sender.Close()
		}
	}
	return nil
}

// List returns all connectors, with what of theirs waits.
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
				return nil, err
			}
		}
		all = append(all, i)
	}
	return all, nil
}

// For returns the connectors that what is said in a session goes to.
func (c *Connectors) For(session string) []string {
	var names []string
	for _, o := range c.outs {
		if o.wants(session) {
			names = append(names, o.info.Name)
		}
	}
	return names
}

// checkSessions refuses patterns that could match nothing.
func checkSessions(field string, patterns []string) error {
	if len(patterns) == 0 {
		return fault.Fieldf("connector", field+".sessions", "it is not said whose words it carries")
	}
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fault.Fieldf("connector", field+".sessions", "%.140q is neither a session nor a pattern such as ops-*", p)
		}
	}
	return nil
}

func checkLabels(field string, labels []manifest.Label) error {
	for _, l := range labels {
		if _, err := manifest.ParseLabel(string(l)); err != nil {
			return fault.Fieldf("connector", field+".labels", "%w", err)
		}
	}
	return nil
}

// hostOf is the host of an address, which is all of it that is shown: the rest may hold
// a secret.
func hostOf(field, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", fault.Fieldf("connector", field+".url", "it is not an address such as https://host/path")
	}
	return u.Hostname(), nil
}

// keys are secrets that were asked for a moment ago. Each use of a secret is recorded:
// strangers who send garbage must not fill the record.
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

const keyTime = 30 * time.Second // after which a secret that was changed counts

func (k *keys) get(ctx context.Context, connector, secret, host string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if got, ok := k.kept[connector]; ok && time.Now().Before(got.until) {
		return got.value, nil
	}
	value, err := k.fetch(ctx, connector, secret, host)
	if err != nil {
		return nil, fmt.Errorf("the key of connector %s: %w", connector, err)
	}
	if k.kept == nil {
		k.kept = map[string]keptKey{}
	}
	k.kept[connector] = keptKey{value, time.Now().Add(keyTime)}
	return value, nil
}

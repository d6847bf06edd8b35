package connector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"sync"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/webhook"
)

// An out is an active OutboundWebhook or Relay.
type out struct {
	info    Info
	labels  []manifest.Label
	wake    chan struct{}   // capacity 1
	sender  *webhook.Sender // for an OutboundWebhook
	deliver func(ctx context.Context, d run.Delivery, m run.Message) error
}

// A Posted is the body of an outbound request.
type Posted struct {
	Type string     `json:"type"` // session.message
	At   time.Time  `json:"timestamp"`
	Data PostedData `json:"data"`
}

// PostedData is a message of a session.
type PostedData struct {
	Session string           `json:"session_id"`
	Message id.Message       `json:"message_id"`
	Seq     int64            `json:"seq"`
	Run     id.Run           `json:"run,omitempty"`
	From    string           `json:"from,omitempty"`
	Text    string           `json:"text"`
	Labels  []manifest.Label `json:"labels,omitempty"`
}

func postedOf(m run.Message) Posted {
	return Posted{"session.message", m.At.UTC(), PostedData{m.Session, m.ID, m.Seq, m.Run, m.From, m.Text, m.Labels}}
}

func (c *Connectors) newOut(field string, i Info, labels []manifest.Label) (*out, error) {
	if err := checkSessions(field, i.Sessions); err != nil {
		return nil, err
	}
	return &out{info: i, labels: labels, wake: make(chan struct{}, 1)}, checkLabels(field, labels)
}

func (c *Connectors) newPost(field string, p OutboundWebhook) (*out, error) {
	host, err := hostOf(field, p.URL)
	if err != nil {
		return nil, err
	}
	o, err := c.newOut(field, Info{Name: p.Name, Kind: KindPost, Address: host, Sessions: p.Sessions}, p.Labels)
	if err != nil {
		return nil, err
	}
	o.sender = webhook.NewSender(func(at netip.AddrPort) error {
		if slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return n.Contains(at.Addr()) }) {
			return nil
		}
		return c.cfg.Reach(at.Addr())
	})
	o.deliver = func(ctx context.Context, d run.Delivery, m run.Message) error {
		var key []byte
		if p.Secret != "" {
			var err error // local to this delivery, because several run concurrently
			if key, err = c.keys.get(ctx, p.Name, p.Secret, host); err != nil {
				return err
			}
		}
		body, err := json.Marshal(postedOf(m))
		if err != nil {
			return fmt.Errorf("encode message %s: %w", m.ID, err)
		}
		h, err := webhook.Headers(key, d.ID, time.Now(), body)
		if err != nil {
			return fmt.Errorf("sign message %s: %w", m.ID, err)
		}
		return o.sender.Post(ctx, p.URL, h, body)
	}
	return o, nil
}

func (c *Connectors) newRelay(field string, r Relay) (*out, error) {
	e, err := newEntry(field, r.Entry)
	if err != nil {
		return nil, err
	}
	o, err := c.newOut(field, Info{Name: r.Name, Kind: KindRelay, Sessions: r.Sessions, Session: r.Session, Goal: r.Goal}, r.Labels)
	if err != nil {
		return nil, err
	}
	if !e.session.fields() && o.wants(r.Session) {
		return nil, fault.Fieldf("connector.newRelay", field+".session", "session %q would receive its own messages", r.Session)
	}
	o.deliver = func(ctx context.Context, d run.Delivery, m run.Message) error {
		body, err := json.Marshal(postedOf(m).Data)
		if err != nil {
			return fmt.Errorf("encode message %s: %w", m.ID, err)
		}
		labels := m.Labels
		if run.IsHandle(m.Text) {
			labels = nil // not personal data by itself
		}
		_, err = c.enter(ctx, &e, &arrival{connector: r.Name, key: hexOf(d.ID), text: m.Text, body: body, labels: labels})
		return err
	}
	return o, nil
}

func (o *out) wants(session string) bool {
	return slices.ContainsFunc(o.info.Sessions, func(p string) bool {
		ok, _ := path.Match(p, session) // New has validated the patterns
		return ok
	})
}

// wake triggers a check for pending deliveries.
func (c *Connectors) wake() {
	for _, o := range c.outs {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
}

const (
	pollInterval = time.Second // poll interval for retries and for deliveries of other processes
	maxParallel  = 4           // concurrent deliveries to one connector
)

// deliverLoop delivers the messages for one connector.
func (c *Connectors) deliverLoop(o *out) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		list, err := c.cfg.Runs.TakeDeliveries(c.ctx, o.info.Name, maxParallel)
		if err != nil && c.ctx.Err() == nil {
			c.cfg.Log.Error("cannot list pending deliveries", "connector", o.info.Name, "err", err)
		}
		var wg sync.WaitGroup
		for _, d := range list {
			wg.Go(func() { c.attempt(o, d) })
		}
		wg.Wait()
		if len(list) == maxParallel && c.ctx.Err() == nil {
			continue
		}
		select {
		case <-c.ctx.Done():
			return
		case <-o.wake:
		case <-tick.C:
		}
	}
}

// attempt makes one delivery attempt and records its outcome.
func (c *Connectors) attempt(o *out, d run.Delivery) {
	err := c.deliver(o, d)
	log := c.cfg.Log.With("connector", o.info.Name, "delivery", d.ID)
	ctx := context.WithoutCancel(c.ctx)
	if err == nil {
		if err := c.cfg.Runs.Delivered(ctx, d); err != nil {
			log.Error("cannot record a delivery; it will be repeated", "err", err)
		}
		return
	}
	if c.ctx.Err() != nil {
		return // interrupted: it may have arrived, and is repeated with the same id
	}
	now, kerr := c.cfg.Runs.NotDelivered(ctx, d, err)
	switch {
	case kerr != nil:
		log.Error("cannot record a failed delivery", "err", errors.Join(err, kerr))
	case now.State == run.Dead:
		log.Error("a message cannot be delivered", "attempts", now.Attempts, "err", err)
	}
}

// deliver reads the message of a delivery and sends it. It replaces a handle by its value if the
// connector is cleared for the message's labels.
func (c *Connectors) deliver(o *out, d run.Delivery) error {
	m, err := c.cfg.Runs.Message(c.ctx, d.Message)
	if err != nil {
		return fmt.Errorf("read message %s: %w", d.Message, err)
	}
	if run.IsHandle(m.Text) && manifest.Covered(o.labels, manifest.Join(m.Labels...)) {
		text, err := c.cfg.Runs.Reveal(c.ctx, m.Text, run.Reader{Name: "connector " + o.info.Name, Labels: o.labels})
		if err == nil {
			m.Text = text
		} else if !errors.Is(err, fault.NotFound) { // NotFound: the value has expired, so deliver the handle
			return fmt.Errorf("reveal the text of message %s: %w", m.ID, err)
		}
	}
	return o.deliver(c.ctx, d, m)
}

// Deliveries lists the deliveries of a connector.
func (c *Connectors) Deliveries(ctx context.Context, f run.DeliveryFilter) ([]run.Delivery, error) {
	if !slices.ContainsFunc(c.outs, func(o *out) bool { return o.info.Name == f.To }) {
		return nil, fault.Newf(fault.NotFound, "connector.Deliveries", sessionWord(f.To), "no outbound connector has this name")
	}
	return c.cfg.Runs.DeliveriesTo(ctx, f)
}

// Redeliver retries a dead letter.
func (c *Connectors) Redeliver(ctx context.Context, did string) (run.Delivery, error) {
	d, err := c.cfg.Runs.Delivery(ctx, did)
	if err == nil {
		d, err = c.cfg.Runs.Redeliver(ctx, d)
	}
	c.wake()
	return d, err
}

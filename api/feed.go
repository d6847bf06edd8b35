package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
)

// A topic is a group of audit log entries in the event stream.
type topic struct {
	name  string
	asked bool // sent only on request, because its volume can be high
	kinds []chain.Kind
}

// topics are the topics of GET /feed that consist of audit log entries. Two more have other
// sources.
var topics = []topic{
	{name: "jail", kinds: []chain.Kind{
		chain.JailCreated, chain.JailStarted, chain.JailPaused, chain.JailResumed, chain.JailStopped, chain.JailFailed, chain.JailDeleted,
		chain.JailBranched, chain.JailRewound, chain.JailLimited, chain.SnapshotTaken, chain.SnapshotDeleted,
	}},
	{name: "approval", kinds: []chain.Kind{chain.ApprovalAsked, chain.ApprovalAnswered, chain.ApprovalExpired}},
	{name: "run", kinds: []chain.Kind{
		chain.SessionOpened, chain.SessionClosed, chain.RunStarted, chain.RunMoved, chain.RunEnded, chain.CheckpointTaken, chain.CheckpointResumed,
	}},
	{name: "notice", kinds: []chain.Kind{
		chain.DaemonStarted, chain.BudgetSpent, chain.SecretStored, chain.SecretDeleted, chain.SecretGranted, chain.SecretRevoked, chain.SecretRefused, chain.BundleInstalled, chain.BundleRemoved, chain.PolicyChanged, chain.OperatorActed,
	}},
	{name: "step", asked: true, kinds: []chain.Kind{chain.CallStarted, chain.CallEnded, chain.LLMCalled, chain.SiblingTold}},
	{name: "decision", asked: true, kinds: []chain.Kind{chain.Decided}},
	{name: "egress", asked: true, kinds: []chain.Kind{chain.Egress}},
}

// feedHandler serves the event stream of user interfaces.
type feedHandler struct {
	chain     Chain     // nil: none
	approvals Approvals // nil: none
	schedules *scheduleHandler
	rates     *rates
	streams   *streams
	metrics   *metrics
	log       *slog.Logger
}

type feedParams struct {
	Topics string `query:"topics" description:"Topics, separated by commas. Default: jails, schedules, jail, approval, run, notice. Also available: step, decision, egress."`
}

// selection is the selection of a subscriber.
type selection struct {
	jails, schedules bool
	topics           []topic
	kinds            []chain.Kind
}

func (p feedParams) selection() (selection, error) {
	all := p.Topics == ""
	names := strings.Split(p.Topics, ",")
	w := selection{jails: all, schedules: all}
	known := func(name string) bool {
		return name == wire.FeedJails || name == wire.FeedSchedules || slices.ContainsFunc(topics, func(t topic) bool { return t.name == name })
	}
	for _, name := range names {
		if !all && !known(name) {
			return w, fault.Fieldf("api.selection", "topics", "%q is not a topic of the event stream", text.Clip(name, 64))
		}
		w.jails = w.jails || name == wire.FeedJails
		w.schedules = w.schedules || name == wire.FeedSchedules
	}
	for _, t := range topics {
		if all && !t.asked || slices.Contains(names, t.name) {
			w.topics = append(w.topics, t)
			w.kinds = append(w.kinds, t.kinds...)
		}
	}
	return w, nil
}

// topicOf returns the name of the topic of an entry.
func (w selection) topicOf(k chain.Kind) string {
	for _, t := range w.topics {
		if slices.Contains(t.kinds, k) {
			return t.name
		}
	}
	return ""
}

const (
	lookEvery     = 100 * time.Millisecond // maximum delay of an entry of the audit log
	scheduleEvery = 2 * time.Second
	feedPage      = 100
)

// streamFeed streams events for user interfaces.
//
// Entries come from the audit log, and the id of an event is the reader's position in it. A
// slow reader therefore needs no queue, and a reader that reconnects with Last-Event-ID
// receives each entry exactly once. Jail statistics are sent each second; a slow reader
// receives only the latest ones.
func (h *feedHandler) streamFeed(w http.ResponseWriter, r *http.Request, p feedParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	want, err := p.selection()
	if err != nil {
		return err
	}
	f := &feed{h: h, want: want, at: -1}
	var last *uint64
	if err := lastEvent(r, &last); err != nil {
		return err
	}
	f.chain = h.chain
	if f.chain != nil {
		f.at = f.chain.Last()
	}
	hello := wire.FeedHelloEvent{At: time.Now().UTC()}
	if last != nil {
		hello.Reset = f.chain == nil || *last > uint64(f.at)
		if !hello.Reset {
			f.at = int64(*last)
		}
	}
	ctx, cancel := h.streams.context(r)
	defer cancel()
	defer h.metrics.opened("feed")()
	f.out = startEvents(w, writeTime)
	err = f.send(wire.FeedHello, hello)
	if err == nil {
		err = f.run(ctx)
	}
	if ctx.Err() == nil && err != nil {
		h.log.Debug("event stream ended", "err", err)
	}
	return nil // the stream has no end event, so the client reconnects
}

// A feed is the state of one reader.
type feed struct {
	h     *feedHandler
	want  selection
	out   *events
	chain Chain
	at    int64 // number of the last processed entry; -1: no audit log

	tick      uint64 // tick of the last jail rows that were sent
	schedules []byte // as last sent
	looked    time.Time
}

func (f *feed) send(name string, v any) error {
	cursor := ""
	if f.at >= 0 {
		cursor = strconv.FormatInt(f.at, 10)
	}
	return f.out.send(cursor, name, v)
}

func (f *feed) run(ctx context.Context) error {
	var fresh <-chan struct{} // receives new rows each second
	if f.want.jails {
		var leave func()
		fresh, leave = f.h.rates.enter()
		defer leave()
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		if err := f.sendEntries(ctx); err != nil {
			return err
		}
		if err := f.sendSchedules(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		case <-beat.C:
			if err := f.out.beat(); err != nil {
				return err
			}
		case <-fresh:
			var rows wire.FeedJailsEvent
			rows, f.tick, fresh = f.h.rates.since(f.tick)
			if rows.All || len(rows.Jails) > 0 {
				if err := f.send(wire.FeedJails, rows); err != nil {
					return err
				}
			}
		}
	}
}

// sendEntries sends the entries that were appended since the last call.
func (f *feed) sendEntries(ctx context.Context) error {
	for f.at >= 0 && f.chain.Last() > f.at {
		upto := f.chain.Last()
		if len(f.want.kinds) == 0 {
			f.at = upto
			return nil
		}
		list, err := f.chain.Entries(ctx, chain.Query{Kinds: f.want.kinds, After: f.at, Limit: feedPage})
		if err != nil {
			return fmt.Errorf("read the audit log: %w", err)
		}
		for _, e := range list {
			f.at = e.Seq
			if err := f.send(f.want.topicOf(e.Kind), f.h.feedEvent(ctx, e)); err != nil {
				return err
			}
		}
		if len(list) < feedPage {
			f.at = max(f.at, upto) // the entries in between do not match the selection
		}
	}
	return nil
}

// feedEvent converts an entry to an event of the stream.
func (h *feedHandler) feedEvent(ctx context.Context, e chain.Entry) wire.FeedEvent {
	v := wire.FeedEvent{Seq: e.Seq, At: e.Time.UTC(), Kind: string(e.Kind), Jail: e.Jail, Session: e.Session, Run: id.Run(e.Run), Agent: e.Agent, Body: e.Body}
	var body struct {
		Approval id.Approval `json:"approval"`
		Verdict  string      `json:"verdict"`
	}
	switch e.Kind {
	case chain.ApprovalAsked, chain.ApprovalAnswered, chain.ApprovalExpired:
		if h.approvals == nil || json.Unmarshal(e.Body, &body) != nil || body.Approval == "" {
			return v
		}
		if r, err := h.approvalAfter(ctx, body.Approval, e.Kind); err == nil {
			a := approvalOf(r)
			v.Approval = &a
		}
	}
	return v
}

// keptTime is the maximum delay between an entry about an approval request and the stored
// request. After a crash in between, the request is never stored.
const keptTime = time.Second

// approvalAfter returns an approval request after its state reflects an entry of the audit
// log. The entry is written before the request.
func (h *feedHandler) approvalAfter(ctx context.Context, a id.Approval, k chain.Kind) (approval.Request, error) {
	for end := time.Now().Add(keptTime); ; {
		r, err := h.approvals.Get(ctx, a)
		kept := err == nil && (k == chain.ApprovalAsked || r.State != approval.Pending || r.First != nil)
		never := err != nil && (k != chain.ApprovalAsked || !errors.Is(err, fault.NotFound)) // for example, a request that was refused immediately
		if kept || never || time.Now().After(end) {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, fmt.Errorf("read approval %s: %w", a, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// sendSchedules sends the schedules if they changed since the last call.
func (f *feed) sendSchedules(ctx context.Context) error {
	if !f.want.schedules || f.h.schedules.schedules == nil || time.Since(f.looked) < scheduleEvery {
		return nil
	}
	f.looked = time.Now()
	page, err := f.h.schedules.listSchedules(ctx, listSchedules{Limit: maxPage}, none{})
	if err != nil {
		return fmt.Errorf("list the schedules: %w", err)
	}
	text, err := json.Marshal(page)
	if err != nil || string(text) == string(f.schedules) {
		return err
	}
	f.schedules = text
	return f.send(wire.FeedSchedules, json.RawMessage(text))
}

package acp

import (
	"context"
	"fmt"
	"slices"
)

// A Position is the state that another process needs to continue a conversation with the
// same running agent. Output after At may already have been processed. It is read again,
// and the Host receives it again with the same offsets.
type Position struct {
	Session     string  `json:"session,omitempty"` // empty: no session is open
	Agent       string  `json:"agent,omitempty"`
	At          int64   `json:"at"`                 // offset in the agent's output, at the beginning of a line
	Answered    []int64 `json:"answered,omitempty"` // offsets after At of requests that were answered
	InputBytes  int64   `json:"given"`              // bytes written to the agent's input
	PendingLine string  `json:"out,omitempty"`      // next line of the input, which may be partly or fully written
	Asked       int     `json:"asked,omitempty"`    // number of requests sent, including Out
	Prompt      bool    `json:"prompt,omitempty"`   // the last request is a prompt without a response before At
	Turns       int     `json:"turns,omitempty"`
	Turn        Turn    `json:"turn,omitzero"` // current or last turn, as of At
	Usage       Usage   `json:"usage,omitzero"`
}

// PositionStore is implemented by a Host whose sessions survive the death of this process. Keep
// stores a Position durably before it returns. Drive writes a line to the agent only after
// the Position that contains it is stored.
type PositionStore interface {
	SavePosition(ctx context.Context, p Position) error
}

const (
	// saveInterval is the number of bytes of output after which the Position is saved even
	// if no line is sent.
	saveInterval = 256 << 10

	// maxKeptOut is the size above which a written line is removed from the stored
	// Position immediately.
	maxKeptOut = 64 << 10
)

// An outgoing is a line for the agent.
type outgoing struct {
	line    []byte
	request int   // request id; 0: not a request
	prompt  bool  // the request is a prompt
	answers int64 // offset of the request that it answers; negative: not a response
}

// send saves a Position that contains the line and then writes the line to the agent.
func (d *driver) send(o outgoing) error {
	d.o.SendLock.Lock()
	defer d.o.SendLock.Unlock()
	err := d.savePosition(func(p *Position) {
		if o.answers >= 0 {
			p.Answered = append(p.Answered, o.answers)
		}
		if o.request > 0 {
			p.Asked, p.Prompt = o.request, o.prompt
			if o.prompt {
				p.Turn = Turn{}
			}
		}
		p.PendingLine = string(o.line)
	})
	if err != nil {
		return err
	}
	if o.answers >= 0 {
		d.transport.markAnswered(o.answers)
	}
	return d.writeOutgoing()
}

// writeOutgoing writes the saved line Position.PendingLine to the agent.
func (d *driver) writeOutgoing() error {
	d.mu.Lock()
	at, text := d.pos.InputBytes, d.pos.PendingLine
	d.mu.Unlock()
	if text == "" {
		return nil
	}
	if err := d.transport.conn.Write(at, []byte(text)); err != nil {
		return fmt.Errorf("write the saved line to the agent: %w", err)
	}
	n := int64(len(text))
	if len(text) > maxKeptOut {
		return d.savePosition(func(p *Position) { p.markGiven(n) })
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pos.markGiven(n)
	return nil
}

// markGiven records that all n bytes of Out are written.
func (p *Position) markGiven(n int64) { p.InputBytes, p.PendingLine = p.InputBytes+n, "" }

// savePosition changes the Position and stores it, if the Host is a PositionStore.
func (d *driver) savePosition(change func(*Position)) error {
	d.keepMu.Lock()
	defer d.keepMu.Unlock()
	d.mu.Lock()
	change(&d.pos)
	reached := d.pos.At
	d.pos.Answered = slices.DeleteFunc(d.pos.Answered, func(at int64) bool { return at < reached })
	now := d.pos
	now.Answered = slices.Clone(now.Answered)
	d.mu.Unlock()
	k, ok := d.host.(PositionStore)
	if !ok {
		return nil
	}
	if err := k.SavePosition(context.WithoutCancel(d.life), now); err != nil {
		return fmt.Errorf("store the position of the conversation: %w", err)
	}
	d.mu.Lock()
	d.savedAt = now.At
	d.mu.Unlock()
	return nil
}

// advancePosition moves the Position to the offset next if no earlier output is needed. It
// is called after each line of the agent.
func (d *driver) advancePosition(next int64) error {
	d.mu.Lock()
	settled := len(d.calls) == 0 && len(d.piece.text) == 0 && d.session != "" && !d.turnOver && !d.replay && d.transport.noRequests()
	if settled {
		d.setPosition(next)
	}
	due := d.pos.At-d.savedAt >= saveInterval
	d.mu.Unlock()
	if !due {
		return nil
	}
	return d.savePosition(func(*Position) {})
}

// setPosition moves the Position to offset at and copies the current state into it. The
// caller holds mu.
//
// +checklocks:d.mu
func (d *driver) setPosition(at int64) {
	p := &d.pos
	p.At, p.Session, p.Agent = at, d.session, d.result.Agent
	p.Turns, p.Usage = d.result.Turns, d.result.Usage
	p.Turn = d.now
	p.Turn.Text = d.turnText()
	p.Turn.Refused = slices.Clone(d.now.Refused)
}

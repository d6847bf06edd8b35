package acp

import (
	"context"
	"fmt"
	"slices"
)

// A Position is how far a conversation has come: what is needed to go on with it, with
// the same agent, when this process is gone. What the agent wrote behind At may have been
// dealt with: it is read again, and the Host sees it again, with the same places.
type Position struct {
	Session  string  `json:"session,omitempty"` // "": none is open
	Agent    string  `json:"agent,omitempty"`
	At       int64   `json:"at"`                 // of the agent's output: the begin of a line
	Answered []int64 `json:"answered,omitempty"` // places, behind At, of what it asked and was answered
	Given    int64   `json:"given"`              // bytes of its input
	Out      string  `json:"out,omitempty"`      // the line behind them, which it may have been given too
	Asked    int     `json:"asked,omitempty"`    // requests that it was sent, with Out
	Prompt   bool    `json:"prompt,omitempty"`   // the last of them is a prompt, and not answered before At
	Turns    int     `json:"turns,omitempty"`
	Turn     Turn    `json:"turn,omitzero"` // the last, as far as At
	Usage    Usage   `json:"usage,omitzero"`
}

// A Keeper is a Host that goes on after this process was killed. It keeps a Position,
// durably, before it returns. Nothing is sent to the agent that is not in one.
type Keeper interface {
	Keep(ctx context.Context, p Position) error
}

const (
	// keepEvery is how many bytes the agent may write before the Position is kept,
	// if it is sent nothing.
	keepEvery = 256 << 10

	// largeOut is of what size on a line that was sent is not kept any longer.
	largeOut = 64 << 10
)

// An out is one line for the agent.
type out struct {
	line    []byte
	request int   // of ours, its number; 0: it is none
	prompt  bool  // it is a prompt
	answers int64 // the place of what it answers; below 0: nothing
}

// give sends one line, once it is kept that it is sent.
func (d *driver) give(o out) error {
	d.o.Still.Lock()
	defer d.o.Still.Unlock()
	err := d.keep(func(p *Position) {
		if o.answers >= 0 {
			p.Answered = append(p.Answered, o.answers)
		}
		if o.request > 0 {
			p.Asked, p.Prompt = o.request, o.prompt
			if o.prompt {
				p.Turn = Turn{}
			}
		}
		p.Out = string(o.line)
	})
	if err != nil {
		return err
	}
	if o.answers >= 0 {
		d.gate.replied(o.answers)
	}
	return d.handOver()
}

// handOver gives the agent what is kept as sent.
func (d *driver) handOver() error {
	d.mu.Lock()
	at, text := d.pos.Given, d.pos.Out
	d.mu.Unlock()
	if text == "" {
		return nil
	}
	if err := d.gate.conn.Give(at, []byte(text)); err != nil {
		return err
	}
	n := int64(len(text))
	if len(text) > largeOut {
		return d.keep(func(p *Position) { p.sent(n) })
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pos.sent(n)
	return nil
}

// sent notes that the agent was given all of Out, which is n bytes.
func (p *Position) sent(n int64) { p.Given, p.Out = p.Given+n, "" }

// keep changes the Position, and has it kept.
func (d *driver) keep(change func(*Position)) error {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	d.mu.Lock()
	change(&d.pos)
	reached := d.pos.At
	d.pos.Answered = slices.DeleteFunc(d.pos.Answered, func(at int64) bool { return at < reached })
	now := d.pos
	now.Answered = slices.Clone(now.Answered)
	d.mu.Unlock()
	k, ok := d.host.(Keeper)
	if !ok {
		return nil
	}
	if err := k.Keep(context.WithoutCancel(d.life), now); err != nil {
		return fmt.Errorf("keep how far the agent has come: %w", err)
	}
	d.mu.Lock()
	d.kept = now.At
	d.mu.Unlock()
	return nil
}

// settle moves the Position to behind a line, when nothing before that is needed any
// more. It is called between the lines of the agent.
func (d *driver) settle(next int64) error {
	d.mu.Lock()
	quiet := len(d.calls) == 0 && len(d.piece.text) == 0 && d.session != "" && !d.turnOver && !d.replay && d.gate.nothingAsked()
	if quiet {
		d.here(next)
	}
	far := d.pos.At-d.kept >= keepEvery
	d.mu.Unlock()
	if !far {
		return nil
	}
	return d.keep(func(*Position) {})
}

// here moves the Position, with all that is known by now. The caller holds mu.
//
// +checklocks:d.mu
func (d *driver) here(at int64) {
	p := &d.pos
	p.At, p.Session, p.Agent = at, d.session, d.result.Agent
	p.Turns, p.Usage = d.result.Turns, d.result.Usage
	p.Turn = d.now
	p.Turn.Text = d.turnText()
	p.Turn.Refused = slices.Clone(d.now.Refused)
}

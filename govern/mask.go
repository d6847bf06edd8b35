package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"glasshouse/egress"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/internal/redact"
	"glasshouse/policy"
)

// mask returns a mask for the secrets that a subject has or had, and for those that have
// names. nil masks nothing.
func (k *Kernel) mask(ctx context.Context, who policy.Subject, names ...string) *redact.Mask {
	if k.cfg.Secrets == nil {
		return nil
	}
	return k.cfg.Secrets.Mask(ctx, who, names)
}

// masked returns a question as it may be recorded and shown to people.
func masked(m *redact.Mask, q policy.Question) policy.Question {
	if m == nil {
		return q
	}
	q.Resource = m.Text(q.Resource)
	if q.Attributes != nil {
		attributes := make(map[string]string, len(q.Attributes))
		for name, value := range q.Attributes {
			attributes[name] = m.Text(value)
		}
		q.Attributes = attributes
	}
	return q
}

// masked masks all that a record of a decision has from the asker.
func (d Decided) masked(m *redact.Mask) Decided {
	if m == nil {
		return d
	}
	q := masked(m, policy.Question{Resource: d.Resource, Attributes: d.Attributes})
	d.Resource, d.Attributes = q.Resource, q.Attributes
	d.Reason, d.Instead, d.Rule.Pattern = m.Text(d.Reason), m.Text(d.Instead), m.Text(d.Rule.Pattern)
	return d
}

// maskRecord masks what a record of the proxy has from the jail or the server.
func maskRecord(m *redact.Mask, r egress.Record) egress.Record {
	if m == nil {
		return r
	}
	r.Host, r.Path, r.Detail = m.Text(r.Host), m.Text(r.Path), m.Text(r.Detail)
	return r
}

// maskJSON returns JSON text masked.
func maskJSON(m *redact.Mask, text json.RawMessage) json.RawMessage {
	text, _, _ = m.JSON(text)
	return text
}

// maskError returns an error of a call as it may be answered and recorded. One in which
// there is a secret keeps its kinds, and wraps nothing: what it wrapped could print it.
func maskError(m *redact.Mask, err error) error {
	if m == nil || err == nil {
		return err
	}
	f, failed := errors.AsType[*engine.Failure](err)
	if failed {
		clean := *f
		clean.Reason, clean.Log = m.Clipped(f.Reason), m.Clipped(f.Log)
		if clean.Reason != f.Reason || clean.Log != f.Log || m.Text(err.Error()) != err.Error() {
			clean.Err = kindsOf(err)
			return &clean
		}
		return err
	}
	text := m.Clipped(err.Error())
	remedy := m.Text(fault.RemedyOf(err))
	if text == err.Error() && remedy == fault.RemedyOf(err) {
		return err
	}
	return &maskedError{text: text, kinds: kindsOf(err), remedy: remedy}
}

// A maskedError is an error whose text held a secret.
type maskedError struct {
	text, remedy string
	kinds        error
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() []error {
	return []error{e.kinds, &fault.Error{Remedy: e.remedy}}
}

// kindsOf returns what programs test an error for, without its text.
func kindsOf(err error) error {
	var kinds []error
	if kind := fault.KindOf(err); kind != "" {
		kinds = append(kinds, kind)
	}
	for _, known := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			kinds = append(kinds, known)
		}
	}
	return errors.Join(kinds...)
}

// secretNames are the secrets whose values the call can have: those of its
// capability, and of the capabilities that it is called by.
func (c *call) secretNames() []string {
	if c.cap == nil {
		return c.req.secrets
	}
	return slices.Concat(c.req.secrets, c.cap.Secrets)
}

// mask returns the mask for the call's secrets, as their values are now.
func (c *call) mask(ctx context.Context) *redact.Mask {
	return c.k.mask(context.WithoutCancel(ctx), c.req.Who, c.secretNames()...)
}

// maskOutput masks what the call answers. Masking happens after the output was checked:
// the type describes what the program returned.
func (c *call) maskOutput(m *redact.Mask) error {
	text, found, number := m.JSON(c.out.Output)
	if !found {
		return nil
	}
	if number {
		return &engine.Failure{Kind: engine.Garbled, Reason: "the output contains the value of a secret as a number, and is withheld"}
	}
	c.out.Output = text
	value, err := c.cap.Output.FromJSON(text)
	if err != nil {
		return &engine.Failure{Kind: engine.Garbled, Reason: fmt.Sprintf("the output contains the value of a secret, and is withheld: masked, it is not of the type that the manifest declares: %s", m.Text(err.Error()))}
	}
	c.out.value = value
	return nil
}

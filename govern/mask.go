package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"glasshouse/capability/engine"
	"glasshouse/fault"
	"glasshouse/internal/redact"
	"glasshouse/policy"
	"glasshouse/policy/egress"
)

// mask returns a mask for the secrets that a subject has or had, and for the named secrets. A
// nil mask changes nothing.
func (k *Engine) mask(ctx context.Context, who policy.Subject, names ...string) *redact.Mask {
	if k.cfg.Secrets == nil {
		return nil
	}
	return k.cfg.Secrets.Mask(ctx, who, names)
}

// masked returns a question with secrets masked, for recording and display.
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

// masked returns the record with all caller-supplied values masked.
func (d DecisionRecord) masked(m *redact.Mask) DecisionRecord {
	if m == nil {
		return d
	}
	q := masked(m, policy.Question{Resource: d.Resource, Attributes: d.Attributes})
	d.Resource, d.Attributes = q.Resource, q.Attributes
	d.Reason, d.Instead, d.Rule.Pattern = m.Text(d.Reason), m.Text(d.Instead), m.Text(d.Rule.Pattern)
	return d
}

// maskRecord masks the values in an egress record that come from the jail or the server.
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

// maskError returns an error for recording and display. If the text contains a secret, the
// result keeps the error kinds but wraps nothing: a wrapped error could print the secret.
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

// A maskedError replaces an error whose text contained a secret.
type maskedError struct {
	text, remedy string
	kinds        error
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() []error {
	return []error{e.kinds, &fault.Error{Remedy: e.remedy}}
}

// kindsOf returns the kinds of an error that errors.Is can test for, without its text.
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

// secretNames returns the secrets whose values the call can have: those of its capability and
// of the calling capabilities.
func (c *call) secretNames() []string {
	if c.cap == nil {
		return c.req.secrets
	}
	return slices.Concat(c.req.secrets, c.cap.Secrets)
}

// mask returns the mask for the current values of the call's secrets.
func (c *call) mask(ctx context.Context) *redact.Mask {
	return c.k.mask(context.WithoutCancel(ctx), c.req.Who, c.secretNames()...)
}

// maskOutput masks the output of the call. It runs after the output was checked, because the
// schema describes the unmasked output.
func (c *call) maskOutput(m *redact.Mask) error {
	text, found, number := m.JSON(c.out.Output)
	if !found {
		return nil
	}
	if number {
		return &engine.Failure{Kind: engine.Garbled, Reason: "the output contains the value of a secret as a number and is withheld"}
	}
	c.out.Output = text
	value, err := c.cap.Output.FromJSON(text)
	if err != nil {
		return &engine.Failure{Kind: engine.Garbled, Reason: fmt.Sprintf("the output contains the value of a secret and is withheld: the masked output does not match the schema of the manifest: %s", m.Text(err.Error()))}
	}
	c.out.value = value
	return nil
}

package run

import (
	"encoding/json"

	"glasshouse/internal/redact"
)

// mask returns the mask for secrets in the data that the run stores.
func (t *transaction) mask(r *Run) *redact.Mask {
	if t.cfg.Mask == nil {
		return nil
	}
	return t.cfg.Mask(t.ctx, t.local.id, []Run{*r})
}

// sessionMask returns the mask for a text in the session. Any unfinished run may have written
// it.
func (t *transaction) sessionMask() (*redact.Mask, error) {
	if t.cfg.Mask == nil {
		return nil, nil
	}
	unended, err := t.unfinished(Filter{Session: t.local.id})
	if err != nil {
		return nil, err
	}
	runs := make([]Run, len(unended))
	for i, r := range unended {
		runs[i] = *r
	}
	return t.cfg.Mask(t.ctx, t.local.id, runs), nil
}

// masked returns a move with masked texts.
func (v Move) masked(m *redact.Mask) Move {
	v.Reason, v.Error = m.Text(v.Reason), m.Text(v.Error)
	v.Result = maskJSON(m, v.Result)
	return v
}

func maskJSON(m *redact.Mask, text json.RawMessage) json.RawMessage {
	text, _, _ = m.JSON(text)
	return text
}

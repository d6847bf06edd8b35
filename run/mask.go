package run

import (
	"encoding/json"

	"glasshouse/internal/redact"
)

// mask returns the mask for what a run writes.
func (t *turn) mask(r *Run) *redact.Mask {
	if t.cfg.Mask == nil {
		return nil
	}
	return t.cfg.Mask(t.ctx, t.live.id, []Run{*r})
}

// sessionMask returns the mask for what is written in a session: any of its runs may
// have written it.
func (t *turn) sessionMask() (*redact.Mask, error) {
	if t.cfg.Mask == nil {
		return nil, nil
	}
	unended, err := t.unended(Filter{Session: t.live.id})
	if err != nil {
		return nil, err
	}
	runs := make([]Run, len(unended))
	for i, r := range unended {
		runs[i] = *r
	}
	return t.cfg.Mask(t.ctx, t.live.id, runs), nil
}

// masked returns a move with its texts masked.
func (v Move) masked(m *redact.Mask) Move {
	v.Reason, v.Error = m.Text(v.Reason), m.Text(v.Error)
	v.Result = maskJSON(m, v.Result)
	return v
}

func maskJSON(m *redact.Mask, text json.RawMessage) json.RawMessage {
	text, _, _ = m.JSON(text)
	return text
}

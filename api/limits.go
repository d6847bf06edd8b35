package api

import (
	"context"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/gateway"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// limitHandler serves the routes of the limits of jails.
type limitHandler struct {
	gateway   Gateway
	snapshots Snapshots // nil: none
}

func (h *limitHandler) updateJailLimits(ctx context.Context, p oneJail, b wire.Limits) (wire.Jail, error) {
	return shown(ctx, h.snapshots)(h.gateway.LimitJail(ctx, p.ID, jail.Limits(b), by(ctx)))
}

type limitsOfJail struct {
	ID    id.Jail `path:"id"`
	After int64   `query:"after" minimum:"0" description:"The 'next' value of the previous page."`
}

func (h *limitHandler) getJailLimits(ctx context.Context, p limitsOfJail, _ none) (wire.JailLimits, error) {
	if p.After < 0 {
		return wire.JailLimits{}, fault.Fieldf("api.getJailLimits", "after", "%d is negative", p.After)
	}
	l, err := h.gateway.JailLimits(ctx, p.ID, p.After)
	return lentOf(l), err
}

// ownResources responds with the limits of the agent's jail.
func (h *agentHandler) ownResources(ctx context.Context, p someJail, _ none) (wire.JailLimits, error) {
	c, err := h.own(ctx, id.Jail(p.ID))
	if err != nil {
		return wire.JailLimits{}, err
	}
	l, err := h.gateway.JailLimits(ctx, c.Jail, 0)
	return lentOf(l), err
}

func lentOf(l gateway.JailResources) wire.JailLimits {
	w := wire.JailLimits{Limits: wire.Limits(l.Now), Until: at(l.Until), History: []wire.LimitChange{}}
	if l.Own != l.Now {
		own := wire.Limits(l.Own)
		w.Own = &own
	}
	for _, c := range l.History {
		h := wire.LimitChange{N: c.N, At: c.At, State: string(c.Verdict), Why: c.Why, By: c.By, From: boundsOf(c.From), To: boundsOf(c.To), Until: at(c.Until), Entry: c.Entry}
		if c.Want != (autonomy.Limits{}) {
			want := boundsOf(c.Want)
			h.Want = &want
		}
		if c.Refusal != nil {
			h.Why = c.Refusal.Code + ": " + c.Refusal.Reason
		}
		w.History = append(w.History, h)
	}
	if n := len(l.History); n >= historyPage {
		w.Next = l.History[n-1].N
	}
	return w
}

// historyPage is the number of changes in a response.
const historyPage = 100

func boundsOf(l autonomy.Limits) wire.Bounds {
	return wire.Bounds{CPU: float64(l.CPU) / 1000, MemoryMB: l.Memory, DiskMB: l.Disk, PIDs: l.PIDs}
}

package api

import (
	"cmp"
	"context"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy/access"
)

// tokenHandler serves the routes of tokens and keys.
type tokenHandler struct {
	tokens *access.Tokens
	demand func(ctx context.Context) (map[id.Token]jail.Demand, error) // of the jails of each token; nil: unknown
	e2b    E2B
}

func (h *tokenHandler) createToken(ctx context.Context, _ none, b wire.CreateToken) (wire.Token, error) {
	role, err := access.ParseRole(b.Role)
	if err != nil {
		return wire.Token{}, err
	}
	t, secret, err := h.tokens.Create(ctx, b.Name, role, b.ExpiresAt, access.Quota(b.Quota))
	if err != nil {
		return wire.Token{}, err
	}
	w := tokenOf(t)
	w.Token = secret
	return w, nil
}

// E2B describes the listener for clients of the E2B protocol.
type E2B struct {
	URL    string   // "": not served
	Domain string   // parent domain of the host names of sandbox ports
	Reach  []string // hosts that sandboxes can reach; nil: those on the Internet
	CA     string   // CA certificate that clients must trust, PEM; "": a public CA
}

// reach returns the hosts that sandboxes can reach; "*" is the Internet.
func (e E2B) reach() []string {
	if e.Reach == nil {
		return []string{"*"}
	}
	return e.Reach
}

// createE2bKey creates an API key that is valid only on the E2B listener.
func (h *tokenHandler) createE2bKey(ctx context.Context, _ none, b wire.CreateE2BKey) (wire.E2BKey, error) {
	if h.e2b.URL == "" {
		return wire.E2BKey{}, fault.Cannot("api.createE2bKey", "the E2B API is disabled", "set e2b.listen in the daemon's configuration")
	}
	t, key, err := h.tokens.CreateKey(ctx, cmp.Or(b.Name, access.CallerOf(ctx).Name), nil, access.Quota(b.Quota))
	return wire.E2BKey{ID: t.ID, Key: key, URL: h.e2b.URL, Domain: h.e2b.Domain, CA: h.e2b.CA, Reach: h.e2b.reach()}, err
}

func (h *tokenHandler) listTokens(ctx context.Context, p paging, _ none) (wire.Page[wire.Token], error) {
	var used map[id.Token]jail.Demand
	if h.demand != nil {
		var err error
		used, err = h.demand(ctx)
		if err != nil {
			return wire.Page[wire.Token]{}, err
		}
	}
	return pageAfter(p.Limit, p.After, func() ([]access.Token, error) { return h.tokens.List(ctx) },
		func(t access.Token) string { return string(t.ID) }, func(t access.Token) wire.Token {
			w, d := tokenOf(t), wire.Demand(used[t.ID])
			w.Used = &d
			return w
		})
}

type oneToken struct {
	ID id.Token `path:"id"`
}

// updateToken changes the quota of a token. What exists is not affected.
func (h *tokenHandler) updateToken(ctx context.Context, p oneToken, b wire.EditToken) (wire.Token, error) {
	t, err := h.tokens.SetQuota(ctx, p.ID, access.QuotaChange(b.Quota))
	return tokenOf(t), err
}

func (h *tokenHandler) revokeToken(ctx context.Context, p oneToken, _ none) (none, error) {
	return none{}, h.tokens.Revoke(ctx, p.ID)
}

func tokenOf(t access.Token) wire.Token {
	return wire.Token{ID: t.ID, Name: t.Name, Role: string(t.Role), CreatedAt: t.Created.UTC(), ExpiresAt: utc(t.Expires), Quota: wire.Quota(t.Quota)}
}

package api

import (
	"context"
	"fmt"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
)

// browserHandler serves the routes of browsers that receive push notifications.
type browserHandler struct{ approvals Approvals }

func (h *browserHandler) getPushKey(_ context.Context, _, _ none) (wire.PushKey, error) {
	key, err := h.approvals.PushKey()
	return wire.PushKey{Key: key}, err
}

// subscribeBrowser subscribes the browser that sent the request to push notifications.
func (h *browserHandler) subscribeBrowser(ctx context.Context, _ none, b wire.SubscribeBrowser) (wire.PushBrowser, error) {
	caller := access.CallerOf(ctx)
	if caller.Login == "" {
		return wire.PushBrowser{}, fault.Newf(fault.Conflict, "api.subscribeBrowser", "", "the request has no browser login")
	}
	one, err := h.approvals.SubscribeBrowser(ctx, approval.Browser{
		Login: caller.Login, Name: caller.Name, Role: string(caller.Role), Endpoint: b.Endpoint, Keys: approval.BrowserKeys(b.Keys),
	})
	if err != nil {
		return wire.PushBrowser{}, err
	}
	return browserOf(one), nil
}

// listBrowsers lists the browsers of the caller's login, or all browsers for an administrator.
func (h *browserHandler) listBrowsers(ctx context.Context, _, _ none) (wire.Page[wire.PushBrowser], error) {
	page := wire.Page[wire.PushBrowser]{Items: []wire.PushBrowser{}}
	list, err := h.approvals.Browsers(ctx)
	for _, one := range list {
		if ownsBrowser(access.CallerOf(ctx), one) {
			page.Items = append(page.Items, browserOf(one))
		}
	}
	return page, err
}

type oneBrowser struct {
	ID id.Browser `path:"browser"`
}

func (h *browserHandler) unsubscribeBrowser(ctx context.Context, p oneBrowser, _ none) (none, error) {
	list, err := h.approvals.Browsers(ctx)
	if err != nil {
		return none{}, fmt.Errorf("list the browsers with notifications: %w", err)
	}
	for _, one := range list {
		if one.ID == p.ID && ownsBrowser(access.CallerOf(ctx), one) {
			return none{}, h.approvals.Unsubscribe(ctx, p.ID)
		}
	}
	return none{}, fault.Newf(fault.NotFound, "api.unsubscribeBrowser", string(p.ID), "no such browser")
}

func ownsBrowser(c access.Caller, b approval.Browser) bool {
	return c.Role == access.Admin || c.Login != "" && c.Login == b.Login
}

// browserOf omits the push endpoint and the keys.
func browserOf(b approval.Browser) wire.PushBrowser {
	w := wire.PushBrowser{ID: b.ID, Login: b.Login, Name: b.Name, CreatedAt: b.Created}
	if u, err := url.Parse(b.Endpoint); err == nil {
		w.Service = u.Host
	}
	return w
}

package api

import (
	"context"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
)

func (s *Server) getPushKey(_ context.Context, _, _ none) (wire.PushKey, error) {
	q, err := s.approvals()
	if err != nil {
		return wire.PushKey{}, err
	}
	key, err := q.PushKey()
	return wire.PushKey{Key: key}, err
}

// subscribeBrowser subscribes the browser that sent the request to push notifications.
func (s *Server) subscribeBrowser(ctx context.Context, _ none, b wire.SubscribeBrowser) (wire.PushBrowser, error) {
	q, err := s.approvals()
	if err != nil {
		return wire.PushBrowser{}, err
	}
	caller := access.CallerOf(ctx)
	if caller.Login == "" {
		return wire.PushBrowser{}, fault.Newf(fault.Conflict, "api.subscribeBrowser", "", "the request has no browser login")
	}
	one, err := q.SubscribeBrowser(ctx, approval.Browser{
		Login: caller.Login, Name: caller.Name, Role: string(caller.Role), Endpoint: b.Endpoint, Keys: approval.BrowserKeys(b.Keys),
	})
	if err != nil {
		return wire.PushBrowser{}, err
	}
	return browserOf(one), nil
}

// listBrowsers lists the browsers of the caller's login, or all browsers for an administrator.
func (s *Server) listBrowsers(ctx context.Context, _, _ none) (wire.Page[wire.PushBrowser], error) {
	page := wire.Page[wire.PushBrowser]{Items: []wire.PushBrowser{}}
	q, err := s.approvals()
	if err != nil {
		return page, err
	}
	list, err := q.Browsers(ctx)
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

func (s *Server) unsubscribeBrowser(ctx context.Context, p oneBrowser, _ none) (none, error) {
	q, err := s.approvals()
	if err != nil {
		return none{}, err
	}
	list, err := q.Browsers(ctx)
	if err != nil {
		return none{}, err
	}
	for _, one := range list {
		if one.ID == p.ID && ownsBrowser(access.CallerOf(ctx), one) {
			return none{}, q.Unsubscribe(ctx, p.ID)
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

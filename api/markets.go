package api

import (
	"context"
	"fmt"
	"os"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/capability/market"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/policy/access"
)

// Markets are the markets that offer bundles.
type Markets interface {
	Search(ctx context.Context, words []string) (map[string][]market.Offer, error)
	Outdated(ctx context.Context, all []registry.Bundle) (map[string][]market.Update, error)
	Fetch(ctx context.Context, name, version, dir string) (file string, err error)
}

// marketHandler serves the routes of markets.
type marketHandler struct {
	markets Markets
	bundles Bundles
}

var noMarkets = fault.Cannot("api.markets", "this daemon has no market configured", "start the daemon with glasshouse serve")

type searchMarket struct {
	Words string `query:"q" description:"Search words. Each must occur in the name, publisher or description."`
}

func (h *marketHandler) searchMarket(ctx context.Context, p searchMarket, _ none) (wire.Page[wire.Offer], error) {
	page := wire.Page[wire.Offer]{Items: []wire.Offer{}}
	installed := map[string]string{} // versions by publisher and name
	for _, b := range h.bundles.Bundles() {
		if b.Now != nil {
			installed[b.Now.Publisher+"/"+b.Name] = b.Now.Version
		}
	}
	found, err := h.markets.Search(ctx, strings.Fields(p.Words))
	for name, offers := range found {
		for _, o := range offers {
			w := offerOf(name, o)
			w.Installed = installed[o.Publisher+"/"+o.Name] // a bundle of another publisher with the same name is not an update
			page.Items = append(page.Items, w)
		}
	}
	if len(page.Items) > 0 {
		err = nil // the caller that fetches a market logs its errors
	}
	return page, err
}

func offerOf(name string, o market.Offer) wire.Offer {
	return wire.Offer{Market: name, Name: o.Name, Version: o.Version, Publisher: o.Publisher, Tier: string(o.Tier), Description: o.Description, Digest: o.Digest}
}

func (h *marketHandler) listOutdatedBundles(ctx context.Context, _ none, _ none) (wire.Page[wire.Offer], error) {
	page := wire.Page[wire.Offer]{Items: []wire.Offer{}}
	found, err := h.markets.Outdated(ctx, h.bundles.Bundles())
	for name, updates := range found {
		for _, u := range updates {
			w := offerOf(name, u.Newest)
			w.Installed = u.Installed
			page.Items = append(page.Items, w)
		}
	}
	return page, err
}

func (h *marketHandler) installFromMarket(ctx context.Context, _ none, b wire.MarketInstall) (wire.Bundle, error) {
	dir, err := os.MkdirTemp("", tempBundle)
	if err != nil {
		return wire.Bundle{}, fmt.Errorf("create a directory for the archive: %w", err)
	}
	defer os.RemoveAll(dir)
	file, err := h.markets.Fetch(ctx, b.Name, b.Version, dir)
	if err != nil {
		return wire.Bundle{}, err
	}
	got, err := h.bundles.Install(ctx, file, access.CallerOf(ctx).Name)
	return bundleOf(h.bundles, got), err
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"glasshouse/api/wire"
	"glasshouse/capability/bundle"
	"glasshouse/capability/market"
	"glasshouse/capability/registry"
	"glasshouse/fault"
)

// Market is a source of bundles.
type Market struct {
	Name string `yaml:"name"`
	Base string `yaml:"base"` // a directory, or a URL
	Key  string `yaml:"key"`  // public key that signs its index
}

// barredBundles reports whether all installed bundles are still trusted.
func (d *Daemon) barredBundles() wire.Probe {
	all := d.registry.Bundles()
	p := wire.Probe{Name: "bundles", Status: "ok", Need: Recommended, Purpose: "the capabilities of installed bundles", Detail: fmt.Sprintf("%d installed or being installed", len(all))}
	for _, b := range all {
		if why := d.registry.NotCallableReason(b.Name); why != nil {
			p.Status, p.Reason, p.Remedy = "unsupported", fmt.Sprintf("capabilities of %s cannot be called: %v", b.Name, why), fault.RemedyOf(why)
		}
	}
	return p
}

// markets are the configured markets, in the order of the configuration.
type markets struct {
	all   []*market.Market
	names []string
}

// openMarkets opens the configured markets.
func (d *Daemon) openMarkets() (*markets, error) {
	m := &markets{}
	for i, c := range d.Config.Markets {
		key, err := bundle.ParsePublicKey(c.Key)
		if err != nil {
			return nil, fault.Fieldf("config", fmt.Sprintf("markets[%d].key", i), "%w", err)
		}
		m.names = append(m.names, c.Name)
		m.all = append(m.all, &market.Market{Base: c.Base, Key: key, State: filepath.Join(d.Config.Data, "market-"+c.Name+".json")})
	}
	return m, nil
}

// validMarkets rejects names that are not valid file names or are not unique.
func validMarkets(all []Market) error {
	seen := map[string]bool{}
	for i, m := range all {
		if m.Name == "" || m.Name != filepath.Base(m.Name) || seen[m.Name] {
			return fault.Fieldf("config", fmt.Sprintf("markets[%d].name", i), "%q is not a valid file name or is already in use", m.Name)
		}
		seen[m.Name] = true
		if m.Base == "" {
			return fault.Fieldf("config", fmt.Sprintf("markets[%d].base", i), "must be a directory or a URL")
		}
	}
	return nil
}

// each calls do with the index of every market. An error of one market does not affect the
// others.
func (m *markets) each(ctx context.Context, do func(name string, x *market.Index)) error {
	var errs []error
	for i, one := range m.all {
		x, err := one.Index(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		do(m.names[i], x)
	}
	return errors.Join(errs...)
}

// Search implements api.Markets.
func (m *markets) Search(ctx context.Context, words []string) (map[string][]market.Offer, error) {
	found := map[string][]market.Offer{}
	err := m.each(ctx, func(name string, x *market.Index) { found[name] = x.Search(words...) })
	return found, err
}

// Outdated implements api.Markets.
func (m *markets) Outdated(ctx context.Context, all []registry.Bundle) (map[string][]market.Update, error) {
	var now []bundle.Installed
	for _, b := range all {
		if b.Now != nil {
			now = append(now, *b.Now)
		}
	}
	found := map[string][]market.Update{}
	err := m.each(ctx, func(name string, x *market.Index) { found[name] = x.Outdated(now) })
	return found, err
}

// Fetch implements api.Markets. It uses the first market that offers the bundle.
func (m *markets) Fetch(ctx context.Context, name, version, dir string) (file string, err error) {
	var errs []error
	for _, one := range m.all {
		x, err := one.Index(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		offer, err := x.Find(name, version)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return one.Fetch(ctx, offer, dir)
	}
	if len(m.all) == 0 {
		return "", fault.Cannot("daemon.Fetch", "no market is configured", "add one under markets in the configuration")
	}
	return "", errors.Join(errs...)
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"glasshouse/api/wire"
	"glasshouse/bundle"
	"glasshouse/fault"
	"glasshouse/market"
	"glasshouse/registry"
)

// Market is where others offer bundles.
type Market struct {
	Name string `yaml:"name"`
	Base string `yaml:"base"` // a directory, or a URL
	Key  string `yaml:"key"`  // the public key that signs its index
}

// barredBundles says whether what is installed is trusted still.
func (d *Daemon) barredBundles() wire.Probe {
	all := d.registry.Bundles()
	p := wire.Probe{Name: "bundles", Status: "ok", Detail: fmt.Sprintf("%d installed, or on their way", len(all))}
	for _, b := range all {
		if why := d.registry.Barred(b.Name); why != nil {
			p.Status, p.Reason, p.Remedy = "unsupported", fmt.Sprintf("nothing of %s is called: %v", b.Name, why), fault.RemedyOf(why)
		}
	}
	return p
}

// markets are those that the configuration names, in its order.
type markets struct {
	all   []*market.Market
	names []string
}

// openMarkets reads where bundles are offered.
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

// validMarkets refuses names that could be no file's, or are another's.
func validMarkets(all []Market) error {
	seen := map[string]bool{}
	for i, m := range all {
		if m.Name == "" || m.Name != filepath.Base(m.Name) || seen[m.Name] {
			return fault.Fieldf("config", fmt.Sprintf("markets[%d].name", i), "%q is no name, or another's", m.Name)
		}
		if seen[m.Name] = true; m.Base == "" {
			return fault.Fieldf("config", fmt.Sprintf("markets[%d].base", i), "it is a directory, or a URL")
		}
	}
	return nil
}

// each asks every market. One that does not answer does not silence the others.
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

// Fetch implements api.Markets: the first market that offers it counts.
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
		return "", fault.Cannot("market", "no market is configured", "name one under markets in the configuration")
	}
	return "", errors.Join(errs...)
}

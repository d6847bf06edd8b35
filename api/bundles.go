package api

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/capability/bundle"
	"glasshouse/capability/market"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
)

// Bundles is the registry of bundles as the API uses it.
type Bundles interface {
	Install(ctx context.Context, path, by string) (registry.Bundle, error)
	Bundles() []registry.Bundle
	RemoveBundle(ctx context.Context, name string) error
	NotCallableReason(name string) error
	TrustChanged(ctx context.Context) error
}

// Publishers is the trust store as the API uses it. *bundle.Trust implements it.
type Publishers interface {
	Publishers() []bundle.Publisher
	Add(name string, tier bundle.Tier, key bundle.PublicKey) error
	Rotate(old, key bundle.PublicKey) error
	RevokeKey(key bundle.PublicKey, reason string) error
	RevokeBundle(digest, reason string) error
	Remove(name string) error
}

// Markets are the markets that offer bundles.
type Markets interface {
	Search(ctx context.Context, words []string) (map[string][]market.Offer, error)
	Outdated(ctx context.Context, all []registry.Bundle) (map[string][]market.Update, error)
	Fetch(ctx context.Context, name, version, dir string) (file string, err error)
}

type installBundle struct {
	Name string `query:"name" required:"true" description:"File name of the archive. The extension determines the archive format."`
}

// maxBundle is the maximum size of an archive.
const maxBundle = 256 << 20

// maxName bounds the file name of an archive, in bytes (NAME_MAX in limits.h of Linux).
const maxName = 255

// tempBundle begins the names of directories for archives that are being installed.
const tempBundle = "glasshouse-bundle-"

// installBundle stores an uploaded archive and creates an approval request for its content.
func (s *Server) installBundle(w http.ResponseWriter, r *http.Request, p installBundle) error {
	caps, err := s.capabilities()
	if err != nil {
		return err
	}
	if p.Name != filepath.Base(p.Name) || len(p.Name) > maxName || strings.Contains(p.Name, "\x00") || !bundle.IsArchive(p.Name) {
		return fault.Fieldf("api.installBundle", "name", "%.80q is not an archive name: it must end in %s", p.Name, strings.Join(bundle.Archives, ", "))
	}
	dir, err := os.MkdirTemp("", tempBundle)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, p.Name) // errors about the bundle contain this file name
	body, done := patient(r.Context(), w, r)
	defer done()
	if err := receive(file, body); err != nil {
		return err
	}
	b, err := caps.Install(r.Context(), file, access.CallerOf(r.Context()).Name)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, bundleOf(caps, b))
}

func receive(file string, from io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(f, io.LimitReader(from, maxBundle+1))
	if err == nil && n > maxBundle {
		err = fault.Newf(fault.Exhausted, "api.receive", "", "the archive exceeds %d MiB", maxBundle>>20)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func bundleOf(caps Bundles, b registry.Bundle) wire.Bundle {
	w := wire.Bundle{Name: b.Name, Capabilities: append([]string{}, b.Capabilities...), Skill: b.Skill}
	if n := b.Now; n != nil {
		w.Version, w.Publisher, w.Tier, w.Digest, w.Installed = n.Version, n.Publisher, string(n.Tier), n.Digest, utc(&n.At)
		if !n.Until.IsZero() {
			w.Until = utc(&n.Until)
		}
		if why := caps.NotCallableReason(b.Name); why != nil {
			w.Barred, w.Remedy = why.Error(), fault.RemedyOf(why)
		}
	}
	if n := b.Next; n != nil {
		w.Next = &wire.BundleInstall{Version: n.Version, Digest: n.Digest, State: string(n.State), Approval: n.Approval, Why: n.Why}
	}
	return w
}

func (s *Server) listBundles(context.Context, none, none) (wire.Page[wire.Bundle], error) {
	page := wire.Page[wire.Bundle]{Items: []wire.Bundle{}}
	caps, err := s.capabilities()
	if err != nil {
		return page, err
	}
	for _, b := range caps.Bundles() {
		page.Items = append(page.Items, bundleOf(caps, b))
	}
	return page, nil
}

type oneBundle struct {
	Name string `path:"name"`
}

func (s *Server) deleteBundle(ctx context.Context, p oneBundle, _ none) (none, error) {
	caps, err := s.capabilities()
	if err != nil {
		return none{}, err
	}
	if err := caps.RemoveBundle(ctx, p.Name); err != nil {
		return none{}, err
	}
	s.auditAction(ctx, chain.BundleRemoved, map[string]string{"bundle": p.Name})
	return none{}, nil
}

// auditAction records an action of the caller in the audit log.
func (s *Server) auditAction(ctx context.Context, kind chain.Kind, body map[string]string) {
	if g, err := s.governor(); err == nil {
		g.Note(kind, policy.Subject{Agent: access.CallerOf(ctx).Name}, 0, body)
	}
}

func (s *Server) publishers() (Publishers, error) {
	if s.o.Publishers == nil {
		return nil, fault.Cannot("api.publishers", "this daemon does not support bundles", "start the daemon with glasshouse serve")
	}
	return s.o.Publishers, nil
}

func (s *Server) listPublishers(context.Context, none, none) (wire.Page[wire.Publisher], error) {
	page := wire.Page[wire.Publisher]{Items: []wire.Publisher{}}
	t, err := s.publishers()
	if err != nil {
		return page, err
	}
	for _, p := range t.Publishers() {
		w := wire.Publisher{Name: p.Name, Tier: string(p.Tier)}
		for _, k := range p.Keys {
			w.Keys = append(w.Keys, wire.PublisherKey{
				ID: k.Key.ID(), Key: k.Key.String(), Added: k.Added.UTC(), Retired: utc(k.Retired), Revoked: utc(k.Revoked), Reason: k.Reason,
			})
		}
		page.Items = append(page.Items, w)
	}
	return page, nil
}

func (s *Server) putPublisher(ctx context.Context, p oneBundle, b wire.AddPublisher) (none, error) {
	t, err := s.publishers()
	if err != nil {
		return none{}, err
	}
	key, err := bundle.ParsePublicKey(b.Key)
	if err != nil {
		return none{}, fault.Fieldf("api.putPublisher", "key", "%w", err)
	}
	if err := t.Add(p.Name, bundle.Tier(b.Tier), key); err != nil {
		return none{}, err
	}
	return none{}, s.auditTrustChange(ctx, map[string]string{"what": "publisher trusted", "publisher": p.Name, "tier": b.Tier, "key": key.ID()})
}

func (s *Server) deletePublisher(ctx context.Context, p oneBundle, _ none) (none, error) {
	t, err := s.publishers()
	if err != nil {
		return none{}, err
	}
	if err := t.Remove(p.Name); err != nil {
		return none{}, err
	}
	return none{}, s.auditTrustChange(ctx, map[string]string{"what": "publisher no longer trusted", "publisher": p.Name})
}

// rotatePublisherKey replaces a key of a publisher.
func (s *Server) rotatePublisherKey(ctx context.Context, _ none, b wire.RotateKey) (none, error) {
	t, err := s.publishers()
	if err != nil {
		return none{}, err
	}
	old, err := bundle.ParsePublicKey(b.Old)
	if err != nil {
		return none{}, fault.Fieldf("api.rotatePublisherKey", "old", "%w", err)
	}
	key, err := bundle.ParsePublicKey(b.Key)
	if err != nil {
		return none{}, fault.Fieldf("api.rotatePublisherKey", "key", "%w", err)
	}
	if err := t.Rotate(old, key); err != nil {
		return none{}, err
	}
	return none{}, s.auditTrustChange(ctx, map[string]string{"what": "key replaced", "old": old.ID(), "key": key.ID()})
}

// auditTrustChange records a change of the trust store in the audit log, and re-evaluates the
// installed bundles.
func (s *Server) auditTrustChange(ctx context.Context, what map[string]string) error {
	s.auditAction(ctx, chain.OperatorActed, what)
	caps, err := s.capabilities()
	if err != nil {
		return err
	}
	return caps.TrustChanged(context.WithoutCancel(ctx))
}

// revokePublisherTrust revokes trust in a key or a digest. Bundles with either are no longer
// accepted.
func (s *Server) revokePublisherTrust(ctx context.Context, _ none, b wire.RevokeTrust) (none, error) {
	t, err := s.publishers()
	if err != nil {
		return none{}, err
	}
	what := map[string]string{"what": "trust revoked", "key": b.Key, "digest": b.Digest, "reason": b.Reason}
	switch {
	case b.Key != "" && b.Digest == "":
		key, err := bundle.ParsePublicKey(b.Key)
		if err != nil {
			return none{}, fault.Fieldf("api.revokePublisherTrust", "key", "%w", err)
		}
		if err := t.RevokeKey(key, b.Reason); err != nil {
			return none{}, err
		}
	case b.Digest != "" && b.Key == "":
		if err := t.RevokeBundle(b.Digest, b.Reason); err != nil {
			return none{}, err
		}
	default:
		return none{}, fault.Fieldf("api.revokePublisherTrust", "key", "specify either a key or a digest")
	}
	return none{}, s.auditTrustChange(ctx, what)
}

func (s *Server) markets() (Markets, error) {
	if s.o.Markets == nil {
		return nil, fault.Cannot("api.markets", "this daemon has no market configured", "start the daemon with glasshouse serve")
	}
	return s.o.Markets, nil
}

type searchMarket struct {
	Words string `query:"q" description:"Search words. Each must occur in the name, publisher or description."`
}

func (s *Server) searchMarket(ctx context.Context, p searchMarket, _ none) (wire.Page[wire.Offer], error) {
	page := wire.Page[wire.Offer]{Items: []wire.Offer{}}
	m, err := s.markets()
	if err != nil {
		return page, err
	}
	caps, err := s.capabilities()
	if err != nil {
		return page, err
	}
	installed := map[string]string{} // versions by publisher and name
	for _, b := range caps.Bundles() {
		if b.Now != nil {
			installed[b.Now.Publisher+"/"+b.Name] = b.Now.Version
		}
	}
	found, err := m.Search(ctx, strings.Fields(p.Words))
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

func (s *Server) listOutdatedBundles(ctx context.Context, _ none, _ none) (wire.Page[wire.Offer], error) {
	page := wire.Page[wire.Offer]{Items: []wire.Offer{}}
	m, err := s.markets()
	if err != nil {
		return page, err
	}
	caps, err := s.capabilities()
	if err != nil {
		return page, err
	}
	found, err := m.Outdated(ctx, caps.Bundles())
	for name, updates := range found {
		for _, u := range updates {
			w := offerOf(name, u.Newest)
			w.Installed = u.Installed
			page.Items = append(page.Items, w)
		}
	}
	return page, err
}

func (s *Server) installFromMarket(ctx context.Context, _ none, b wire.MarketInstall) (wire.Bundle, error) {
	m, err := s.markets()
	if err != nil {
		return wire.Bundle{}, err
	}
	caps, err := s.capabilities()
	if err != nil {
		return wire.Bundle{}, err
	}
	dir, err := os.MkdirTemp("", tempBundle)
	if err != nil {
		return wire.Bundle{}, err
	}
	defer os.RemoveAll(dir)
	file, err := m.Fetch(ctx, b.Name, b.Version, dir)
	if err != nil {
		return wire.Bundle{}, err
	}
	got, err := caps.Install(ctx, file, access.CallerOf(ctx).Name)
	return bundleOf(caps, got), err
}

package api

import (
	"context"

	"glasshouse/api/wire"
	"glasshouse/capability/bundle"
	"glasshouse/fault"
	"glasshouse/policy/chain"
)

// Publishers is the trust store as the API uses it. *bundle.Trust implements it.
type Publishers interface {
	Publishers() []bundle.Publisher
	Add(ctx context.Context, name string, tier bundle.Tier, key bundle.PublicKey) error
	Rotate(ctx context.Context, old, key bundle.PublicKey) error
	RevokeKey(ctx context.Context, key bundle.PublicKey, reason string) error
	RevokeBundle(ctx context.Context, digest, reason string) error
	Remove(ctx context.Context, name string) error
}

// publisherHandler serves the routes of publishers and their keys.
type publisherHandler struct {
	publishers Publishers
	bundles    Bundles
	audit      *auditLog
}

var noPublishers = fault.Cannot("api.publishers", "this daemon does not support bundles", "start the daemon with glasshouse serve")

func (h *publisherHandler) listPublishers(context.Context, none, none) (wire.Page[wire.Publisher], error) {
	page := wire.Page[wire.Publisher]{Items: []wire.Publisher{}}
	for _, p := range h.publishers.Publishers() {
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

func (h *publisherHandler) putPublisher(ctx context.Context, p oneBundle, b wire.AddPublisher) (none, error) {
	key, err := bundle.ParsePublicKey(b.Key)
	if err != nil {
		return none{}, fault.Fieldf("api.putPublisher", "key", "%w", err)
	}
	if err := h.publishers.Add(ctx, p.Name, bundle.Tier(b.Tier), key); err != nil {
		return none{}, err
	}
	return none{}, h.auditTrustChange(ctx, map[string]string{"what": "publisher trusted", "publisher": p.Name, "tier": b.Tier, "key": key.ID()})
}

func (h *publisherHandler) deletePublisher(ctx context.Context, p oneBundle, _ none) (none, error) {
	if err := h.publishers.Remove(ctx, p.Name); err != nil {
		return none{}, err
	}
	return none{}, h.auditTrustChange(ctx, map[string]string{"what": "publisher no longer trusted", "publisher": p.Name})
}

// rotatePublisherKey replaces a key of a publisher.
func (h *publisherHandler) rotatePublisherKey(ctx context.Context, _ none, b wire.RotateKey) (none, error) {
	old, err := bundle.ParsePublicKey(b.Old)
	if err != nil {
		return none{}, fault.Fieldf("api.rotatePublisherKey", "old", "%w", err)
	}
	key, err := bundle.ParsePublicKey(b.Key)
	if err != nil {
		return none{}, fault.Fieldf("api.rotatePublisherKey", "key", "%w", err)
	}
	if err := h.publishers.Rotate(ctx, old, key); err != nil {
		return none{}, err
	}
	return none{}, h.auditTrustChange(ctx, map[string]string{"what": "key replaced", "old": old.ID(), "key": key.ID()})
}

// auditTrustChange records a change of the trust store in the audit log, and re-evaluates the
// installed bundles.
func (h *publisherHandler) auditTrustChange(ctx context.Context, what map[string]string) error {
	h.audit.note(ctx, chain.OperatorActed, what)
	return h.bundles.TrustChanged(context.WithoutCancel(ctx))
}

// revokePublisherTrust revokes trust in a key or a digest. Bundles with either are no longer
// accepted.
func (h *publisherHandler) revokePublisherTrust(ctx context.Context, _ none, b wire.RevokeTrust) (none, error) {
	what := map[string]string{"what": "trust revoked", "key": b.Key, "digest": b.Digest, "reason": b.Reason}
	switch {
	case b.Key != "" && b.Digest == "":
		key, err := bundle.ParsePublicKey(b.Key)
		if err != nil {
			return none{}, fault.Fieldf("api.revokePublisherTrust", "key", "%w", err)
		}
		if err := h.publishers.RevokeKey(ctx, key, b.Reason); err != nil {
			return none{}, err
		}
	case b.Digest != "" && b.Key == "":
		if err := h.publishers.RevokeBundle(ctx, b.Digest, b.Reason); err != nil {
			return none{}, err
		}
	default:
		return none{}, fault.Fieldf("api.revokePublisherTrust", "key", "specify either a key or a digest")
	}
	return none{}, h.auditTrustChange(ctx, what)
}

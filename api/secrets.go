package api

import (
	"context"
	"encoding/base64"
	"errors"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/policy/access"
	"glasshouse/policy/secret"
)

// Secrets stores secrets. *secret.Manager implements it.
type Secrets interface {
	List() []secret.Info
	Put(ctx context.Context, name string, value []byte, by string) error
	PutReference(ctx context.Context, name, reference, by string) error
	Delete(ctx context.Context, name, by string) error
	Grant(ctx context.Context, g secret.Grant) (secret.Grant, error)
	Revoke(ctx context.Context, g id.Grant, by string) error
	Rotate(ctx context.Context, by string) error
}

// secretHandler serves the routes of secrets and their grants.
type secretHandler struct {
	secrets Secrets
	jails   Manager
	fleet   Fleet // nil: this daemon is not in a fleet
}

var noSecrets = fault.Cannot("api.secrets", "this daemon has no secret store", "start the daemon with glasshouse serve")

func (h *secretHandler) listSecrets(_ context.Context, _ none, _ none) (wire.Page[wire.Secret], error) {
	page := wire.Page[wire.Secret]{Items: []wire.Secret{}}
	for _, i := range h.secrets.List() {
		w := wire.Secret{Name: i.Name, Owner: i.Owner, Provider: i.Provider, Path: i.Path, Created: i.Created.UTC(), Updated: i.Updated.UTC(), Used: utc(i.Used), Grants: []wire.Grant{}}
		for _, g := range i.Grants {
			w.Grants = append(w.Grants, grantOf(g))
		}
		page.Items = append(page.Items, w)
	}
	return page, nil
}

func grantOf(g secret.Grant) wire.Grant {
	return wire.Grant{
		ID: g.ID, Secret: g.Secret, Jail: g.To.Jail, Session: g.To.Session, Run: g.To.Run, Capability: g.To.Capability,
		Delivery: string(g.Delivery), Hosts: g.Hosts, Branches: g.Branches, From: g.From, By: g.By,
		Created: g.Created.UTC(), Expires: utc(g.Expires),
	}
}

type oneSecret struct {
	Name string `path:"name"`
}

func (h *secretHandler) putSecret(ctx context.Context, p oneSecret, b wire.PutSecret) (none, error) {
	by := access.CallerOf(ctx).Name
	switch {
	case b.Value != nil && b.Base64 == nil && b.Reference == "":
		return none{}, h.secrets.Put(ctx, p.Name, []byte(*b.Value), by)
	case b.Base64 != nil && b.Value == nil && b.Reference == "":
		value, err := base64.StdEncoding.DecodeString(*b.Base64)
		if err != nil {
			return none{}, fault.Fieldf("api.putSecret", "base64", "not valid base64") // the decoder's error would contain a part of the value
		}
		return none{}, h.secrets.Put(ctx, p.Name, value, by)
	case b.Reference != "" && b.Value == nil && b.Base64 == nil:
		return none{}, h.secrets.PutReference(ctx, p.Name, b.Reference, by)
	}
	return none{}, fault.Fieldf("api.putSecret", "value", "specify exactly one of value, base64 and reference")
}

func (h *secretHandler) deleteSecret(ctx context.Context, p oneSecret, _ none) (none, error) {
	return none{}, h.secrets.Delete(ctx, p.Name, access.CallerOf(ctx).Name)
}

func (h *secretHandler) grantSecret(ctx context.Context, p oneSecret, b wire.GrantSecret) (wire.Grant, error) {
	if b.Jail != "" {
		if err := h.findJail(ctx, b.Jail); err != nil {
			return wire.Grant{}, err
		}
	}
	g := secret.Grant{
		Secret: p.Name, To: secret.Scope{Jail: b.Jail, Session: b.Session, Run: b.Run, Capability: b.Capability},
		Delivery: secret.Delivery(b.Delivery), Hosts: b.Hosts, Branches: b.Branches, Expires: b.Expires, By: access.CallerOf(ctx).Name,
	}
	if g.Delivery == "" {
		g.Delivery = secret.File
	}
	g, err := h.secrets.Grant(ctx, g)
	if err != nil {
		return wire.Grant{}, err
	}
	return grantOf(g), nil
}

// findJail returns an error if no node of the fleet has a jail.
func (h *secretHandler) findJail(ctx context.Context, jid id.Jail) error {
	_, missing := h.jails.Get(ctx, jid)
	if h.fleet == nil || !errors.Is(missing, fault.NotFound) {
		return missing
	}
	node, err := h.fleet.Owner(ctx, fleet.Key{Kind: fleet.Jail, ID: string(jid)})
	if err != nil || node != "" {
		return err
	}
	return missing
}

type oneGrant struct {
	ID id.Grant `path:"grant"`
}

func (h *secretHandler) revokeGrant(ctx context.Context, p oneGrant, _ none) (none, error) {
	return none{}, h.secrets.Revoke(ctx, p.ID, access.CallerOf(ctx).Name)
}

func (h *secretHandler) rotateSecrets(ctx context.Context, _ none, _ none) (none, error) {
	return none{}, h.secrets.Rotate(ctx, access.CallerOf(ctx).Name)
}

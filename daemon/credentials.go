package daemon

import (
	"context"
	"fmt"
	"net/url"

	"glasshouse/capability/engine"
	"glasshouse/fault"
	"glasshouse/policy/secret"
)

// credentials returns the values of secrets to parts of the daemon.
type credentials struct{ secrets *secret.Manager }

// connectorKey returns the key of a connector. The secret is granted only to that connector,
// under a name that is not a valid capability ID.
func (c credentials) connectorKey(ctx context.Context, name, key, host string) ([]byte, error) {
	return c.keyOf(ctx, "connector:"+name, key, host)
}

// keyOf returns the value of a secret for a part of the daemon that is configured to use it.
// host is the destination; "" for no destination.
func (c credentials) keyOf(ctx context.Context, part, name, host string) ([]byte, error) {
	g := secret.Grant{Secret: name, To: secret.Scope{Capability: part}, Delivery: secret.File, By: "configuration"}
	if host != "" {
		g.Delivery, g.Hosts = secret.Inject, []string{host}
	}
	return c.borrow(ctx, g, host)
}

// borrow returns the value of a secret. On first use it creates the grant.
func (c credentials) borrow(ctx context.Context, g secret.Grant, host string) ([]byte, error) {
	use := secret.Use{Delivery: g.Delivery, Host: host}
	v, err := c.secrets.Resolve(ctx, g.To, g.Secret, use)
	if fault.KindOf(err) == fault.Denied {
		if _, err := c.secrets.Grant(ctx, g); err != nil {
			return nil, err
		}
		v, err = c.secrets.Resolve(ctx, g.To, g.Secret, use)
	}
	if err != nil {
		return nil, err
	}
	return v.Bytes(), nil
}

// modelKey returns a provider's key for one request. The secret is granted only to the
// gateway.
func (c credentials) modelKey(ctx context.Context, p Provider) ([]byte, error) {
	at, err := url.Parse(p.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("parse the base URL of provider %s: %w", p.Name, err)
	}
	return c.keyOf(ctx, modelScope(p.Name).Capability, p.Secret, at.Hostname())
}

// lend returns a secret's value for one request of a capability without a jail.
func (c credentials) lend(ctx context.Context, in *engine.Installed, name, host string) ([]byte, error) {
	v, err := c.borrow(ctx, secret.Grant{
		Secret: name, To: secret.Scope{Capability: in.ID}, Delivery: secret.Inject, Hosts: in.Network.Hosts, By: "capability " + in.ID + "@" + in.Version,
	}, host)
	if err != nil {
		return nil, fmt.Errorf("for %s: %w", host, err)
	}
	return v, nil
}

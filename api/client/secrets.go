package client

import (
	"context"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func secretPath(name, rest string) string { return "/secrets/" + url.PathEscape(name) + rest }

// Secrets returns the metadata of all secrets, by name.
func (c *Client) Secrets(ctx context.Context) ([]wire.Secret, error) {
	var p wire.Page[wire.Secret]
	err := c.do(ctx, request{method: "GET", path: "/secrets"}, &p)
	return p.Items, err
}

// PutSecret stores a secret, or a reference to an external secret.
func (c *Client) PutSecret(ctx context.Context, name string, s wire.PutSecret) error {
	return c.do(ctx, request{method: "PUT", path: secretPath(name, ""), json: s}, nil)
}

// DeleteSecret deletes a secret and revokes its grants.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.do(ctx, request{method: "DELETE", path: secretPath(name, "")}, nil)
}

// GrantSecret grants the use of a secret.
func (c *Client) GrantSecret(ctx context.Context, name string, g wire.GrantSecret) (wire.Grant, error) {
	var out wire.Grant
	err := c.do(ctx, request{method: "POST", path: secretPath(name, "/grants"), json: g}, &out)
	return out, err
}

// RevokeGrant revokes a grant. The revocation takes effect immediately.
func (c *Client) RevokeGrant(ctx context.Context, g id.Grant) error {
	return c.do(ctx, request{method: "DELETE", path: "/grants/" + url.PathEscape(string(g))}, nil)
}

// RotateSecrets re-encrypts all secrets with a new key.
func (c *Client) RotateSecrets(ctx context.Context) error {
	return c.do(ctx, request{method: "POST", path: "/secrets/rotate"}, nil)
}

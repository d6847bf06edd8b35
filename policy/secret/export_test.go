package secret

import "net/http"

// A low work factor keeps tests fast.
func init() { scryptWork = 10 }

// RequestURL exports requestURL.
func RequestURL(address, at string) string { return requestURL(address, at) }

// SetTransport replaces the transport of requests to Vault.
func (v *Vault) SetTransport(t http.RoundTripper) { v.client.Transport = t }

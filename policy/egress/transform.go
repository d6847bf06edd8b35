package egress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"glasshouse/internal/redact"
)

// A transform is a compiled Transform.
type transform struct {
	rule    // only its host matcher is used
	headers map[string]string
	filled  map[string][]Part
	owner   string
}

func (t Transform) compile() (*transform, error) {
	c := &transform{rule: rule{Rule: Rule{Host: t.Host}}, headers: t.Headers, filled: t.SecretHeaders, owner: t.Owner}
	if err := c.parseHost(); err != nil {
		return nil, fmt.Errorf("%q: %w", t.Host, err)
	}
	if c.any || c.prefix.IsValid() {
		return nil, fmt.Errorf("%q is neither a host name nor a host name after *.", t.Host)
	}
	if len(t.SecretHeaders) > 0 && t.Owner == "" {
		return nil, errors.New("owner of the secrets is missing")
	}
	check := func(name, text string) error {
		if !httpguts.ValidHeaderFieldName(name) || framing[http.CanonicalHeaderKey(name)] {
			return fmt.Errorf("header %q cannot be set", name)
		}
		if !httpguts.ValidHeaderFieldValue(text) {
			return fmt.Errorf("the value of %s is not a valid header value", name)
		}
		return nil
	}
	for name, value := range t.Headers {
		if err := check(name, value); err != nil {
			return nil, err
		}
	}
	for name, parts := range t.SecretHeaders {
		for _, part := range parts {
			if err := check(name, part.Text); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// transformOf returns the transform that applies to a request, or nil: the one for exactly its
// host, or the one with the longest matching suffix.
func (s *ruleset) transformOf(ask Request) *transform {
	if !ask.TLS {
		return nil
	}
	var best *transform
	for _, t := range s.transforms {
		switch {
		case t.exact != "" && t.exact == ask.Host:
			return t
		case t.suffix != "" && strings.HasSuffix(ask.Host, t.suffix) && (best == nil || len(t.suffix) > len(best.suffix)):
			best = t
		}
	}
	return best
}

// maxFilled limits the total size of the headers with secrets in one request: a short rule can
// reference a long secret many times. No server accepts more.
const maxFilled = 64 << 10

// transform sets the headers of a request to a host, if a transform applies. It returns the
// secrets in them, for the mask of the response, and their names. A refusal contains neither
// values nor names of secrets, because the jail receives it.
func (p *Proxy) transform(ctx context.Context, h http.Header, g grant, host string) (values, used []string, ref *refusal) {
	t := g.transform
	if t == nil {
		return nil, nil, nil
	}
	for name, value := range t.headers {
		h.Set(name, value)
	}
	had, size := map[string]string{}, 0
	for _, name := range slices.Sorted(maps.Keys(t.filled)) {
		var text strings.Builder
		for _, part := range t.filled[name] {
			if part.Secret == "" {
				text.WriteString(part.Text)
				continue
			}
			value, known := had[part.Secret]
			if !known {
				b, err := p.conf.OwnerSecret(ctx, t.owner, part.Secret, host)
				if err != nil {
					return nil, nil, refuse(ReasonSecret, g.label, "a secret for header %s of requests to %s is not available", name, host).with("create the secret, or change the rules")
				}
				var ok bool
				value, ok = writable(b)
				if !ok {
					return nil, nil, refuse(ReasonSecret, g.label, "a secret for header %s of requests to %s is not a valid header value", name, host)
				}
				had[part.Secret], used = value, append(used, part.Secret)
				if len(value) >= redact.MinLength { // a shorter value would be masked in any text
					values = append(values, value)
				}
			}
			size += len(value)
			if size > maxFilled {
				return nil, nil, refuse(ReasonSecret, g.label, "the headers with secrets of requests to %s are longer than %d bytes", host, maxFilled)
			}
			text.WriteString(value)
		}
		h.Set(name, text.String())
	}
	return values, used, nil
}

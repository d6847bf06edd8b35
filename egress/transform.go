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

// A transform is a Transform made ready.
type transform struct {
	rule    // for its host alone
	headers map[string]string
	filled  map[string][]Part
	owner   string
}

func (t Transform) compile() (*transform, error) {
	c := &transform{rule: rule{Rule: Rule{Host: t.Host}}, headers: t.Headers, filled: t.Filled, owner: t.Owner}
	if err := c.parseHost(); err != nil {
		return nil, fmt.Errorf("%q: %w", t.Host, err)
	}
	if c.any || c.prefix.IsValid() {
		return nil, fmt.Errorf("%q is not a name, nor one behind *.", t.Host)
	}
	if len(t.Filled) > 0 && t.Owner == "" {
		return nil, errors.New("it is not said whose the secrets are")
	}
	check := func(name, text string) error {
		if !httpguts.ValidHeaderFieldName(name) || framing[http.CanonicalHeaderKey(name)] {
			return fmt.Errorf("the header %q is not set", name)
		}
		if !httpguts.ValidHeaderFieldValue(text) {
			return fmt.Errorf("the value of %s cannot be written in a request", name)
		}
		return nil
	}
	for name, value := range t.Headers {
		if err := check(name, value); err != nil {
			return nil, err
		}
	}
	for name, parts := range t.Filled {
		for _, part := range parts {
			if err := check(name, part.Text); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// transformOf returns how a request is changed, if it is: by the transform of just its
// host, or of the longest name that it is below.
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

// maxFilled bounds what secrets may make of the headers of one request: few bytes of a rule
// can name a long one many times. No server takes as much.
const maxFilled = 64 << 10

// transform sets the headers of a request to a host, if they are to be set. It returns the
// secrets that are in them, for the mask of what is answered, and their names. No refusal
// says a value or a name: it is told to the jail.
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
				b, err := p.conf.Owned(ctx, t.owner, part.Secret, host)
				if err != nil {
					return nil, nil, refuse(ReasonSecret, g.label, "a secret for the header %s of requests to %s cannot be had", name, host).with("make it, or change the rules")
				}
				var ok bool
				if value, ok = writable(b); !ok {
					return nil, nil, refuse(ReasonSecret, g.label, "a secret for the header %s of requests to %s cannot be written in a request", name, host)
				}
				had[part.Secret], used = value, append(used, part.Secret)
				if len(value) >= redact.MinLength { // a shorter one is in every text
					values = append(values, value)
				}
			}
			if size += len(value); size > maxFilled {
				return nil, nil, refuse(ReasonSecret, g.label, "secrets make the headers of requests to %s longer than %d bytes", host, maxFilled)
			}
			text.WriteString(value)
		}
		h.Set(name, text.String())
	}
	return values, used, nil
}

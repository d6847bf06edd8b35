package egress

import (
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// A transform is a Transform made ready.
type transform struct {
	rule    // for its host alone
	headers map[string]string
}

func (t Transform) compile() (*transform, error) {
	c := &transform{rule: rule{Rule: Rule{Host: t.Host}}, headers: t.Headers}
	if err := c.parseHost(); err != nil {
		return nil, fmt.Errorf("%q: %w", t.Host, err)
	}
	if c.any || c.prefix.IsValid() {
		return nil, fmt.Errorf("%q is not a name, nor one behind *.", t.Host)
	}
	for name, value := range t.Headers {
		if !httpguts.ValidHeaderFieldName(name) || framing[http.CanonicalHeaderKey(name)] {
			return nil, fmt.Errorf("the header %q is not set", name)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("the value of %s cannot be written in a request", name)
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

// apply sets the headers. Nil does nothing.
func (t *transform) apply(h http.Header) {
	if t == nil {
		return
	}
	for name, value := range t.headers {
		h.Set(name, value)
	}
}

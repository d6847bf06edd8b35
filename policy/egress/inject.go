package egress

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// framing are the header fields that determine the end or the destination of a message. A
// secret is never placed in them.
var framing = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true,
	"Trailer": true, "Te": true, "Upgrade": true, "Keep-Alive": true, "Proxy-Connection": true,
}

func (in Inject) check() error {
	switch {
	case in.Secret == "":
		return fmt.Errorf("secret name is missing")
	case in.As == Header && (!httpguts.ValidHeaderFieldName(in.Name) || framing[http.CanonicalHeaderKey(in.Name)]):
		return fmt.Errorf("header %q cannot contain a secret", in.Name)
	case in.As == Query && in.Name == "":
		return fmt.Errorf("parameter name is missing")
	// The first colon ends the user name (RFC 7617, 2).
	case in.As == Basic && strings.ContainsAny(in.Name, ":\r\n\x00"):
		return fmt.Errorf("%q is not a valid user name", in.Name)
	case in.As != Bearer && in.As != Header && in.As != Query && in.As != Basic:
		return fmt.Errorf("%q is not one of bearer, header, query, basic", in.As)
	}
	return nil
}

// inject adds the secrets of the rule to a request. It returns their values, for the mask of
// the response, and their names. A refusal never contains a value.
func (p *Proxy) inject(ctx context.Context, r *http.Request, rule *rule) (values, used []string, ref *refusal) {
	for _, in := range rule.Inject {
		b, err := p.conf.Secret(ctx, in.Secret, r.URL.Hostname())
		if err != nil {
			return nil, nil, refuse(ReasonSecret, rule.label, "secret %s is not available", in.Secret).with("ask an administrator to set the secret and grant it to this jail")
		}
		value, ok := writable(b)
		if !ok {
			return nil, nil, refuse(ReasonSecret, rule.label, "secret %s contains characters that are not valid in a header", in.Secret)
		}
		values, used = append(values, value), append(used, in.Secret)
		switch in.As {
		case Bearer:
			r.Header.Set("Authorization", "Bearer "+value)
		case Basic:
			pair := in.Name + ":" + value
			values = append(values, base64.StdEncoding.EncodeToString([]byte(pair)))
			r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(pair)))
		case Header:
			r.Header.Set(in.Name, value)
		case Query:
			r.URL.RawQuery = setParameter(r.URL.RawQuery, in.Name, value)
		}
	}
	return values, used, nil
}

// writable returns a secret as a header value, if it is a valid one. Trailing line breaks are
// removed.
func writable(b []byte) (string, bool) {
	value := string(bytes.TrimRight(b, "\r\n"))
	return value, value != "" && httpguts.ValidHeaderFieldValue(value)
}

// setParameter sets one parameter of a query string and leaves the spelling of the others
// unchanged. It removes all existing parameters with that name, whatever their case and
// escaping.
func setParameter(query, name, value string) string {
	var keep []string
	for part := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(part, "=")
		// A part that cannot be decoded is removed: a lenient server may read it as this parameter.
		if k, err := url.QueryUnescape(key); part != "" && err == nil && !strings.EqualFold(k, name) {
			keep = append(keep, part)
		}
	}
	return strings.Join(append(keep, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
}

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

// framing are the fields that say where a message ends or who it is for. A secret
// is never put there.
var framing = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true,
	"Trailer": true, "Te": true, "Upgrade": true, "Keep-Alive": true, "Proxy-Connection": true,
}

func (in Inject) check() error {
	switch {
	case in.Secret == "":
		return fmt.Errorf("it is not said which secret")
	case in.As == Header && (!httpguts.ValidHeaderFieldName(in.Name) || framing[http.CanonicalHeaderKey(in.Name)]):
		return fmt.Errorf("%q cannot be a header for a secret", in.Name)
	case in.As == Query && in.Name == "":
		return fmt.Errorf("it is not said which parameter")
	case in.As == Basic && strings.ContainsAny(in.Name, ":\r\n\x00"):
		return fmt.Errorf("%q cannot be a user's name", in.Name)
	case in.As != Bearer && in.As != Header && in.As != Query && in.As != Basic:
		return fmt.Errorf("%q is not one of bearer, header, query, basic", in.As)
	}
	return nil
}

// inject puts the secrets of the rule into a request. It returns them for the mask of what
// is answered, and their names. No refusal says a value.
func (p *Proxy) inject(ctx context.Context, r *http.Request, rule *rule) (values, used []string, ref *refusal) {
	for _, in := range rule.Inject {
		b, err := p.conf.Secret(ctx, in.Secret, r.URL.Hostname())
		if err != nil {
			return nil, nil, refuse(ReasonSecret, rule.label, "the secret %s cannot be had", in.Secret).with("ask for it to be set and granted")
		}
		value, ok := writable(b)
		if !ok {
			return nil, nil, refuse(ReasonSecret, rule.label, "the secret %s cannot be written in a request", in.Secret)
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

// writable returns what is written of a secret in a request, if it can be.
func writable(b []byte) (string, bool) {
	value := string(bytes.TrimRight(b, "\r\n"))
	return value, value != "" && httpguts.ValidHeaderFieldValue(value)
}

// setParameter sets one parameter of a query and leaves the others as they are
// written. Parameters of that name in whatever spelling are taken out.
func setParameter(query, name, value string) string {
	var keep []string
	for part := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(part, "=")
		if k, err := url.QueryUnescape(key); part != "" && err == nil && !strings.EqualFold(k, name) {
			keep = append(keep, part)
		}
	}
	return strings.Join(append(keep, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
}

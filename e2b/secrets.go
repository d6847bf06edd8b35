package e2b

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/secret"
)

// A secret of a team's is a value that clients send once and never get back. It is sealed
// by the daemon's keeper, and put into headers of requests to hosts for which a rule of a
// sandbox says so, outside of the sandbox.

// Bounds of secrets, which are the protocol's but for the value's: what is longer no server
// takes in a header.
const (
	maxSecretName     = 128
	maxSecretValue    = 8 << 10
	maxMetadata       = 32
	maxMetadataKey    = 128
	maxMetadataValue  = 1 << 10
	maxMetadataAll    = 8 << 10
	maxHostSecrets    = 32 // by name, in the rules of one host
	secretID          = "sec_"
	secretPlaceholder = "${e2b.secrets."
)

// What is answered says nothing of what was sent: not the value, and not the name, which
// may say what it is for.
func badSecret(why string) error { return invalid("Invalid secrets request: %s", why) }

var (
	errNoSecret  = fault.Newf(fault.NotFound, "e2b", "", "Secret not found")
	errHasSecret = fault.Newf(fault.Conflict, "e2b", "", "Secret cannot be modified in its current state: there is one of that name, or there are too many")
)

var secretName = regexp.MustCompile(`^[a-z0-9_-]+$`)

// canonicalName returns the name of a secret as it is kept: however it is written, it is
// the same secret.
func canonicalName(s string) (string, bool) {
	s = strings.TrimSpace(s)
	low := strings.ToLower(s)
	return low, len(low) == len(s) && len(s) <= maxSecretName && secretName.MatchString(low) && !strings.HasPrefix(low, secretID)
}

// secretRef returns by what a secret is kept that is meant by its id or its name.
func secretRef(s string) (string, error) {
	if low := strings.ToLower(strings.TrimSpace(s)); strings.HasPrefix(low, secretID) {
		if !validID(low[len(secretID):]) {
			return "", badSecret("that is neither the id nor the name of a secret")
		}
		return low, nil
	}
	name, ok := canonicalName(s)
	if !ok {
		return "", badSecret("that is neither the id nor the name of a secret")
	}
	return name, nil
}

func checkSecret(value string, metadata map[string]string) error {
	all := 0
	for k, v := range metadata {
		if all += len(k) + len(v); len(k) > maxMetadataKey || len(v) > maxMetadataValue {
			return badSecret("a key of the metadata has at most 128 bytes, a value 1024")
		}
	}
	switch {
	case value == "":
		return badSecret("the value is empty")
	case len(value) > maxSecretValue:
		return badSecret("the value has more than 8192 bytes")
	case len(metadata) > maxMetadata || all > maxMetadataAll:
		return badSecret("metadata has at most 32 entries and 8192 bytes")
	}
	return nil
}

type wireSecret struct {
	ID       string            `json:"secretID"`
	Name     string            `json:"name"`
	Version  int64             `json:"currentVersion"`
	Metadata map[string]string `json:"metadata"`
	Created  time.Time         `json:"createdAt"`
	Updated  time.Time         `json:"updatedAt"`
}

func wireSecretOf(o secret.Own) wireSecret {
	if o.Metadata == nil {
		o.Metadata = map[string]string{}
	}
	return wireSecret{o.ID, o.Name, o.Version, o.Metadata, o.Created.UTC(), o.Updated.UTC()}
}

// withSecret answers with a secret, or with why there is none.
func withSecret(status int, o secret.Own, err error) (int, any, error) {
	switch {
	case errors.Is(err, fault.NotFound):
		return 0, nil, errNoSecret
	case errors.Is(err, fault.Conflict), errors.Is(err, fault.Exhausted):
		return 0, nil, errHasSecret
	}
	return status, wireSecretOf(o), err
}

type newSecret struct {
	Name     string             `json:"name"`
	Value    string             `json:"value"`
	Metadata *map[string]string `json:"metadata"`
}

// readSecret reads a body. What is wrong with it is not quoted.
func (r request) readSecret() (b newSecret, metadata map[string]string, err error) {
	if r.read(&b) != nil {
		return b, nil, badSecret("the body cannot be read")
	}
	if b.Metadata != nil {
		metadata = *b.Metadata
		if metadata == nil {
			metadata = map[string]string{}
		}
	}
	return b, metadata, checkSecret(b.Value, metadata)
}

func createSecret(r request) (int, any, error) {
	b, metadata, err := r.readSecret()
	if err != nil {
		return 0, nil, err
	}
	name, ok := canonicalName(b.Name)
	if !ok {
		return 0, nil, badSecret("a name is 1 to 128 letters, digits, - and _, and does not begin with sec_")
	}
	o := secret.Own{Owner: string(r.team), Name: name, ID: secretID + newID(), Metadata: metadata}
	o, err = r.s.cfg.Secrets.Add(r.Context(), o, []byte(b.Value), string(r.team))
	return withSecret(http.StatusCreated, o, err)
}

func listSecrets(r request) (int, any, error) {
	own, err := page(r, r.s.cfg.Secrets.Owned(string(r.team)), false, func(o secret.Own) place { return place{o.Created, o.ID} })
	if err != nil {
		return 0, nil, err
	}
	all := make([]wireSecret, 0, len(own))
	for _, o := range own {
		all = append(all, wireSecretOf(o))
	}
	return http.StatusOK, all, nil
}

func getSecret(r request) (int, any, error) {
	ref, err := secretRef(r.PathValue("secret"))
	if err != nil {
		return 0, nil, err
	}
	o, err := r.s.cfg.Secrets.FindOwned(string(r.team), ref)
	return withSecret(http.StatusOK, o, err)
}

func updateSecret(r request) (int, any, error) {
	ref, err := secretRef(r.PathValue("secret"))
	if err != nil {
		return 0, nil, err
	}
	b, metadata, err := r.readSecret()
	if err != nil {
		return 0, nil, err
	}
	o, err := r.s.cfg.Secrets.Renew(r.Context(), string(r.team), ref, []byte(b.Value), metadata, string(r.team))
	return withSecret(http.StatusOK, o, err)
}

func destroySecret(r request) (int, any, error) {
	ref, err := secretRef(r.PathValue("secret"))
	if err != nil {
		return 0, nil, err
	}
	err = r.s.cfg.Secrets.Drop(r.Context(), string(r.team), ref, string(r.team))
	if errors.Is(err, fault.NotFound) {
		err = errNoSecret
	}
	return http.StatusNoContent, nil, err
}

// Secrets keeps the secrets of teams, each its own alone. *secret.Keeper does.
type Secrets interface {
	Add(ctx context.Context, o secret.Own, value []byte, by string) (secret.Own, error)
	Renew(ctx context.Context, owner, ref string, value []byte, metadata map[string]string, by string) (secret.Own, error)
	Owned(owner string) []secret.Own
	FindOwned(owner, ref string) (secret.Own, error)
	Drop(ctx context.Context, owner, ref, by string) error
}

var errPlaceholder = errors.New("it has a placeholder that is not whole, or names no secret")

// parseHeader reads the value of a header in which placeholders stand for secrets:
// ${e2b.secrets.NAME}. One without is a single text.
func parseHeader(value string) (parts []egress.Part, err error) {
	for {
		text, rest, more := strings.Cut(value, secretPlaceholder)
		if strings.Contains(text, marker) {
			return nil, errors.New("it has a placeholder " + marker + "…} that nobody fills in here: workload identities are not served")
		}
		if text != "" {
			parts = append(parts, egress.Part{Text: text})
		}
		if !more {
			return parts, nil
		}
		written, after, whole := strings.Cut(rest, "}")
		name, ok := canonicalName(written)
		if !whole || !ok {
			return nil, errPlaceholder
		}
		parts = append(parts, egress.Part{Secret: name})
		value = after
	}
}

// checkHeaders refuses placeholders in the rules of one host that could never be filled in.
// Whether there is such a secret is seen when it is needed: it may be made until then.
func checkHeaders(host string, rules []Rule) error {
	secrets := map[string]bool{}
	for _, r := range rules {
		if r.Transform == nil {
			continue
		}
		for name, value := range r.Transform.Headers {
			parts, err := parseHeader(value)
			if err != nil {
				return invalid("header %q in the network rules of %q: %v", short(name), short(host), err)
			}
			for _, p := range parts {
				if p.Secret != "" {
					secrets[p.Secret] = true
				}
			}
		}
	}
	if len(secrets) > maxHostSecrets {
		return invalid("the network rules of %q have more than %d secrets", short(host), maxHostSecrets)
	}
	return nil
}

// transformOf is what rules say of the headers of requests to a host, for the proxy. Of
// headers with one name in different spellings the last counts.
func transformOf(team id.Token, host string, rules []Rule) egress.Transform {
	t := egress.Transform{Host: strings.ToLower(host), Headers: map[string]string{}}
	for _, rule := range rules {
		if rule.Transform == nil {
			continue
		}
		for _, written := range slices.Sorted(maps.Keys(rule.Transform.Headers)) {
			name, value := http.CanonicalHeaderKey(written), rule.Transform.Headers[written]
			delete(t.Headers, name)
			delete(t.Filled, name)
			if !strings.Contains(value, marker) {
				t.Headers[name] = value
				continue
			}
			parts, err := parseHeader(value)
			if err != nil {
				continue // it has been refused
			}
			if t.Filled == nil {
				t.Filled, t.Owner = map[string][]egress.Part{}, string(team)
			}
			t.Filled[name] = parts
		}
	}
	return t
}

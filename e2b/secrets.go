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

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/egress"
	"glasshouse/policy/secret"
)

// A team's secret is a value that a client sends and cannot read back. The daemon's
// secret.Manager encrypts it. The egress proxy puts it into headers of requests to the hosts that
// a sandbox's rules name. The value never enters the sandbox.

// Limits of secrets. They are the protocol's, except the limit of the value: no server accepts a
// longer header.
const (
	maxSecretName     = 128
	maxSecretValue    = 8 << 10
	maxMetadata       = 32
	maxMetadataKey    = 128
	maxMetadataValue  = 1 << 10
	maxMetadataAll    = 8 << 10
	maxHostSecrets    = 32 // names, in the rules of one host
	secretID          = "sec_"
	secretPlaceholder = "${e2b.secrets."
)

// badSecret returns an error that quotes neither the value nor the name of a secret, because a
// name may disclose its purpose.
func badSecret(why string) error { return invalid("Invalid secrets request: %s", why) }

var (
	errNoSecret  = fault.Newf(fault.NotFound, "e2b.secrets", "", "Secret not found")
	errHasSecret = fault.Newf(fault.Conflict, "e2b.secrets", "", "Secret cannot be modified in its current state: the name is in use, or the limit of secrets is reached")
)

var secretName = regexp.MustCompile(`^[a-z0-9_-]+$`)

// canonicalName returns the name under which a secret is stored. Different spellings of a name
// refer to the same secret.
func canonicalName(s string) (string, bool) {
	s = strings.TrimSpace(s)
	low := strings.ToLower(s)
	return low, len(low) == len(s) && len(s) <= maxSecretName && secretName.MatchString(low) && !strings.HasPrefix(low, secretID)
}

// secretRef converts an id or a name of a secret to the reference under which it is stored.
func secretRef(s string) (string, error) {
	if low := strings.ToLower(strings.TrimSpace(s)); strings.HasPrefix(low, secretID) {
		if !validID(low[len(secretID):]) {
			return "", badSecret("the reference is neither an id nor a name of a secret")
		}
		return low, nil
	}
	name, ok := canonicalName(s)
	if !ok {
		return "", badSecret("the reference is neither an id nor a name of a secret")
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

func wireSecretOf(o secret.OwnedSecret) wireSecret {
	if o.Metadata == nil {
		o.Metadata = map[string]string{}
	}
	return wireSecret{o.ID, o.Name, o.Version, o.Metadata, o.Created.UTC(), o.Updated.UTC()}
}

// withSecret returns a response with a secret, or its error.
func withSecret(status int, o secret.OwnedSecret, err error) (int, any, error) {
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

// readSecret reads a request body. Its errors do not quote the body.
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
	o := secret.OwnedSecret{Owner: string(r.team), Name: name, ID: secretID + newID(), Metadata: metadata}
	o, err = r.s.cfg.Secrets.AddOwned(r.Context(), o, []byte(b.Value), string(r.team))
	return withSecret(http.StatusCreated, o, err)
}

func listSecrets(r request) (int, any, error) {
	own, err := page(r, r.s.cfg.Secrets.Owned(string(r.team)), false, func(o secret.OwnedSecret) position { return position{o.Created, o.ID} })
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
	o, err := r.s.cfg.Secrets.FindOwned(r.Context(), string(r.team), ref)
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
	o, err := r.s.cfg.Secrets.UpdateOwned(r.Context(), string(r.team), ref, []byte(b.Value), metadata, string(r.team))
	return withSecret(http.StatusOK, o, err)
}

func destroySecret(r request) (int, any, error) {
	ref, err := secretRef(r.PathValue("secret"))
	if err != nil {
		return 0, nil, err
	}
	err = r.s.cfg.Secrets.DeleteOwned(r.Context(), string(r.team), ref, string(r.team))
	if errors.Is(err, fault.NotFound) {
		err = errNoSecret
	}
	return http.StatusNoContent, nil, err
}

// Secrets stores the secrets of teams; each team accesses only its own. *secret.Manager
// implements it.
type Secrets interface {
	AddOwned(ctx context.Context, o secret.OwnedSecret, value []byte, by string) (secret.OwnedSecret, error)
	UpdateOwned(ctx context.Context, owner, ref string, value []byte, metadata map[string]string, by string) (secret.OwnedSecret, error)
	Owned(owner string) []secret.OwnedSecret
	FindOwned(ctx context.Context, owner, ref string) (secret.OwnedSecret, error)
	DeleteOwned(ctx context.Context, owner, ref, by string) error
}

var errPlaceholder = errors.New("the value has an incomplete placeholder, or one without a secret name")

// parseHeader parses a header value with placeholders for secrets: ${e2b.secrets.NAME}. A value
// without placeholders is one text part.
func parseHeader(value string) (parts []egress.Part, err error) {
	for {
		text, rest, more := strings.Cut(value, secretPlaceholder)
		if strings.Contains(text, marker) {
			return nil, errors.New("the value has the unsupported placeholder " + marker + "…}: workload identities are not supported")
		}
		if text != "" {
			parts = append(parts, egress.Part{Text: text})
		}
		if !more {
			return parts, nil
		}
		written, after, closed := strings.Cut(rest, "}")
		name, ok := canonicalName(written)
		if !closed || !ok {
			return nil, errPlaceholder
		}
		parts = append(parts, egress.Part{Secret: name})
		value = after
	}
}

// checkHeaders rejects placeholders in the rules of one host that can never be filled in. It
// does not check that a secret exists: the secret may be created later.
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

// transformOf converts the header rules of a host for the egress proxy. If header names differ
// only in case, the last one is used.
func transformOf(team id.Token, host string, rules []Rule) egress.Transform {
	t := egress.Transform{Host: strings.ToLower(host), Headers: map[string]string{}}
	for _, rule := range rules {
		if rule.Transform == nil {
			continue
		}
		for _, written := range slices.Sorted(maps.Keys(rule.Transform.Headers)) {
			name, value := http.CanonicalHeaderKey(written), rule.Transform.Headers[written]
			delete(t.Headers, name)
			delete(t.SecretHeaders, name)
			if !strings.Contains(value, marker) {
				t.Headers[name] = value
				continue
			}
			parts, err := parseHeader(value)
			if err != nil {
				continue // checkHeaders has rejected it
			}
			if t.SecretHeaders == nil {
				t.SecretHeaders, t.Owner = map[string][]egress.Part{}, string(team)
			}
			t.SecretHeaders[name] = parts
		}
	}
	return t
}

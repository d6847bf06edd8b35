package secret

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Scope identifies a subject that uses a secret, or the subjects that a grant is for. An
// empty field in the scope of a grant matches any value; at least one field must be set.
type Scope struct {
	Capability string  `json:"capability,omitempty"`
	Jail       id.Jail `json:"jail,omitempty"`
	Session    string  `json:"session,omitempty"`
	Run        string  `json:"run,omitempty"`
}

// covers reports whether s includes the subject who.
func (s Scope) covers(who Scope) bool {
	match := func(grant, subject string) bool { return grant == "" || grant == subject }
	return s != Scope{} && match(s.Capability, who.Capability) && match(string(s.Jail), string(who.Jail)) &&
		match(s.Session, who.Session) && match(s.Run, who.Run)
}

func (s Scope) String() string {
	var parts []string
	for _, p := range [][2]string{{"capability", s.Capability}, {"jail", string(s.Jail)}, {"session", s.Session}, {"run", s.Run}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	if parts == nil {
		return "an empty scope"
	}
	return strings.Join(parts, ", ")
}

// A Delivery is the way in which a secret is provided.
type Delivery string

const (
	File   Delivery = "file"   // as /run/secrets/NAME in the jail
	Inject Delivery = "inject" // into egress requests; the jail never has the value
)

// A Grant is the permission to use one secret.
type Grant struct {
	ID       id.Grant   `json:"id"`
	Secret   string     `json:"secret"`
	To       Scope      `json:"to"`
	Delivery Delivery   `json:"delivery"`
	Hosts    []string   `json:"hosts,omitempty"`    // for Inject: "api.example.com", "*.example.com"
	Branches bool       `json:"branches,omitempty"` // branches of the jail inherit the grant
	From     id.Grant   `json:"from,omitempty"`     // the original grant, if this one was inherited
	By       string     `json:"by,omitempty"`       // the granting person
	Created  time.Time  `json:"created"`
	Expires  *time.Time `json:"expires,omitempty"`
}

// check validates a grant.
func (g *Grant) check(now time.Time) error {
	const op = "secret.Grant"
	switch {
	case g.To == Scope{}:
		return fault.Fieldf(op, "to", "want a capability, a jail, a session or a run")
	case g.To.Jail != "" && !id.Valid('j', string(g.To.Jail)):
		return fault.Fieldf(op, "to.jail", "%.40q is not a jail id", string(g.To.Jail))
	case g.Delivery != File && g.Delivery != Inject:
		return fault.Fieldf(op, "delivery", "%.40q is neither %q nor %q", g.Delivery, File, Inject)
	case g.Delivery == File && len(g.Hosts) > 0:
		return fault.Fieldf(op, "hosts", "hosts are only valid with delivery inject")
	case g.Delivery == Inject && len(g.Hosts) == 0:
		return fault.Fieldf(op, "hosts", "delivery inject requires at least one host")
	case g.Branches && g.To.Jail == "":
		return fault.Fieldf(op, "branches", "branches requires a grant to a jail")
	case g.Expires != nil && !g.Expires.After(now):
		return fault.Fieldf(op, "expires", "%s is in the past", g.Expires.Format(time.RFC3339))
	}
	for _, s := range []string{g.To.Capability, g.To.Session, g.To.Run, g.By} {
		if len(s) > 256 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fault.Fieldf(op, "to", "must be at most 256 bytes without control characters")
		}
	}
	for i, h := range g.Hosts {
		if err := checkHost(h); err != nil {
			return fault.Fieldf(op, fmt.Sprintf("hosts[%d]", i), "%w", err)
		}
	}
	return nil
}

// checkHost validates a host pattern. Patterns for all hosts or for a top-level domain are
// refused: they would allow sending the secret almost anywhere.
func checkHost(h string) error {
	name := strings.TrimPrefix(h, "*.")
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == ':' && name == h
	}
	switch {
	case name == "" || len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool { return !ok(r) }):
		return fmt.Errorf("%.80q is not a lower-case host name, an address, or a host name with the prefix *.", h)
	case name != h && !strings.Contains(name, "."):
		return fmt.Errorf("%q matches too many hosts", h)
	}
	return nil
}

// allows reports whether the grant permits a use.
func (g *Grant) allows(u Use) bool {
	if g.Delivery != u.Delivery {
		return false
	}
	return g.Delivery == File || slices.ContainsFunc(g.Hosts, func(h string) bool { return matches(h, u.Host) })
}

func matches(pattern, host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if suffix, wild := strings.CutPrefix(pattern, "*"); wild {
		return len(host) > len(suffix) && strings.HasSuffix(host, suffix)
	}
	return host == pattern
}

func (g *Grant) expired(now time.Time) bool { return g.Expires != nil && !now.Before(*g.Expires) }

// A Use is the intended use of a secret.
type Use struct {
	Delivery Delivery
	Host     string // for Inject: the destination host without a port
}

// A Kind is the kind of an Event.
type Kind string

const (
	Stored  Kind = "stored"
	Deleted Kind = "deleted"
	Rotated Kind = "rotated" // the encryption key
	Granted Kind = "granted"
	Revoked Kind = "revoked"
	Expired Kind = "expired"
	Used    Kind = "used"
	Refused Kind = "refused"
)

// An Event is recorded by the Recorder. It contains no values.
type Event struct {
	Time     time.Time `json:"time"`
	Kind     Kind      `json:"kind"`
	Secret   string    `json:"secret,omitempty"`
	Provider string    `json:"provider,omitempty"`
	Grant    id.Grant  `json:"grant,omitempty"`
	Who      Scope     `json:"who,omitzero"` // the subject of the grant or use
	Delivery Delivery  `json:"delivery,omitempty"`
	Host     string    `json:"host,omitempty"`
	By       string    `json:"by,omitempty"`
	Why      string    `json:"why,omitempty"`
}

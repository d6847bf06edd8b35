package secret

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Scope is who asks for a secret, or who may have it. What is empty in a
// grant's scope may be anything in that of who asks; at least one is set.
type Scope struct {
	Capability string  `json:"capability,omitempty"`
	Jail       id.Jail `json:"jail,omitempty"`
	Session    string  `json:"session,omitempty"`
	Run        string  `json:"run,omitempty"`
}

// covers reports whether who is one of those that s names.
func (s Scope) covers(who Scope) bool {
	may := func(grant, asker string) bool { return grant == "" || grant == asker }
	return s != Scope{} && may(s.Capability, who.Capability) && may(string(s.Jail), string(who.Jail)) &&
		may(s.Session, who.Session) && may(s.Run, who.Run)
}

func (s Scope) String() string {
	var parts []string
	for _, p := range [][2]string{{"capability", s.Capability}, {"jail", string(s.Jail)}, {"session", s.Session}, {"run", s.Run}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	if parts == nil {
		return "nobody"
	}
	return strings.Join(parts, ", ")
}

// A Delivery is how a secret gets to where it is used.
type Delivery string

const (
	File   Delivery = "file"   // as /run/secrets/NAME in the jail
	Inject Delivery = "inject" // into requests on their way out; the jail never has it
)

// A Grant is leave to use one secret.
type Grant struct {
	ID       id.Grant   `json:"id"`
	Secret   string     `json:"secret"`
	To       Scope      `json:"to"`
	Delivery Delivery   `json:"delivery"`
	Hosts    []string   `json:"hosts,omitempty"`    // of Inject: "api.example.com", "*.example.com"
	Branches bool       `json:"branches,omitempty"` // a branch of the jail gets a grant of its own
	From     id.Grant   `json:"from,omitempty"`     // that a branch has got this one by
	By       string     `json:"by,omitempty"`       // who granted it
	Created  time.Time  `json:"created"`
	Expires  *time.Time `json:"expires,omitempty"`
}

// check refuses a grant that nobody could have meant.
func (g *Grant) check(now time.Time) error {
	const op = "secret.Grant"
	switch {
	case g.To == Scope{}:
		return fault.Fieldf(op, "to", "a grant is to a capability, a jail, a session or a run")
	case g.To.Jail != "" && !id.Valid('j', string(g.To.Jail)):
		return fault.Fieldf(op, "to.jail", "%.40q is not the identifier of a jail", string(g.To.Jail))
	case g.Delivery != File && g.Delivery != Inject:
		return fault.Fieldf(op, "delivery", "%.40q is neither %q nor %q", g.Delivery, File, Inject)
	case g.Delivery == File && len(g.Hosts) > 0:
		return fault.Fieldf(op, "hosts", "a file is not sent to a host")
	case g.Delivery == Inject && len(g.Hosts) == 0:
		return fault.Fieldf(op, "hosts", "name the hosts that the secret may be sent to")
	case g.Branches && g.To.Jail == "":
		return fault.Fieldf(op, "branches", "only a jail has branches")
	case g.Expires != nil && !g.Expires.After(now):
		return fault.Fieldf(op, "expires", "%s is in the past", g.Expires.Format(time.RFC3339))
	}
	for _, s := range []string{g.To.Capability, g.To.Session, g.To.Run, g.By} {
		if len(s) > 256 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fault.Fieldf(op, "to", "at most 256 bytes, no control characters")
		}
	}
	for i, h := range g.Hosts {
		if err := checkHost(h); err != nil {
			return fault.Fieldf(op, fmt.Sprintf("hosts[%d]", i), "%w", err)
		}
	}
	return nil
}

// checkHost refuses what is no host: a pattern for all hosts of a whole
// top-level domain, or of the world, would be a grant to send the secret anywhere.
func checkHost(h string) error {
	name := strings.TrimPrefix(h, "*.")
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == ':' && name == h
	}
	switch {
	case name == "" || len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool { return !ok(r) }):
		return fmt.Errorf("%.80q is not a host name in lower case, an address, or one with *. before it", h)
	case name != h && !strings.Contains(name, "."):
		return fmt.Errorf("%q is too wide", h)
	}
	return nil
}

// allows reports whether the grant is for this use.
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

// A Use is what a secret is wanted for.
type Use struct {
	Delivery Delivery
	Host     string // of Inject: where the request goes, without a port
}

// A Kind is what happened to a secret.
type Kind string

const (
	Stored  Kind = "stored"
	Deleted Kind = "deleted"
	Rotated Kind = "rotated" // the key that all are sealed with
	Granted Kind = "granted"
	Revoked Kind = "revoked"
	Expired Kind = "expired"
	Used    Kind = "used"
	Refused Kind = "refused"
)

// An Event is told to the Recorder. It has names only.
type Event struct {
	Time     time.Time `json:"time"`
	Kind     Kind      `json:"kind"`
	Secret   string    `json:"secret,omitempty"`
	Provider string    `json:"provider,omitempty"`
	Grant    id.Grant  `json:"grant,omitempty"`
	Who      Scope     `json:"who,omitzero"` // to whom it was granted, or who asked
	Delivery Delivery  `json:"delivery,omitempty"`
	Host     string    `json:"host,omitempty"`
	By       string    `json:"by,omitempty"`
	Why      string    `json:"why,omitempty"`
}

package govern

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/egress"
)

// A Spec is the policy and egress configuration of a jail. The zero value allows nothing and
// permits no egress.
type Spec struct {
	Policy *Policy `json:"policy,omitempty"`
	Egress *Egress `json:"egress,omitempty"` // requires network mode proxy

	// CA names the certificate authority with which the proxy intercepts TLS. Only the Engine
	// sets it.
	CA id.CA `json:"ca,omitempty"`
}

// A Policy is a list of policy files and the settings for their evaluation.
type Policy struct {
	Files   []File        `json:"files,omitempty"`
	Match   policy.Match  `json:"match,omitempty"`   // empty: the default of the file format
	Agent   string        `json:"agent,omitempty"`   // agent whose rules apply if the subject names none
	Level   policy.Level  `json:"level,omitempty"`   // 0: level 1
	Ceiling policy.Level  `json:"ceiling,omitempty"` // maximum level; 0: Level
	Answers []policy.Rule `json:"answers,omitempty"` // remembered approvals
	Tiers   []Tier        `json:"tiers,omitempty"`   // approval tiers; the first match applies

	Home      string `json:"home,omitempty"`      // in the jail; empty: /root
	Workspace string `json:"workspace,omitempty"` // in the jail; empty: the jail's workspace or working directory
}

// A Tier sets the approval tier for matching questions.
type Tier struct {
	Action  string        `json:"action"`
	Pattern string        `json:"pattern"`
	Tier    approval.Tier `json:"tier"`
}

// A File is a permission file or a decision framework, depending on the extension of its name.
type File struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Egress is the configuration of the egress proxy.
type Egress struct {
	Allow []Rule `json:"allow,omitempty"`
	Ask   bool   `json:"ask,omitempty"` // request approval instead of denying if no rule allows
	Limit Limit  `json:"limit,omitzero"`
	Query bool   `json:"query,omitempty"` // record the query of URLs

	Transform []Transform `json:"transform,omitempty"`
}

// A Transform sets headers of requests to a host. See egress.Transform.
type Transform struct {
	Host          string                   `json:"host"`
	Headers       map[string]string        `json:"headers"`
	SecretHeaders map[string][]egress.Part `json:"filled,omitempty"`
	Owner         string                   `json:"owner,omitempty"`
}

// A Rule allows or denies egress. It is the JSON form of egress.Rule.
type Rule struct {
	Name       string   `json:"name,omitempty"`
	Host       string   `json:"host"`
	Ports      []uint16 `json:"ports,omitempty"`
	Methods    []string `json:"methods,omitempty"`
	Paths      []string `json:"paths,omitempty"`
	Capability string   `json:"capability,omitempty"`
	Limit      Limit    `json:"limit,omitzero"`
	Inject     []Inject `json:"inject,omitempty"`
	Intercept  bool     `json:"intercept,omitempty"`
	Internet   bool     `json:"internet,omitempty"`
	Deny       bool     `json:"deny,omitempty"`
}

// A Limit bounds requests and bytes. 0 is unlimited.
type Limit struct {
	Requests int   `json:"requests,omitempty"` // per PerMS, or per minute if that is 0
	PerMS    int64 `json:"per_ms,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"`
}

// An Inject adds a secret to requests.
type Inject struct {
	Secret string    `json:"secret"`
	As     egress.As `json:"as"`
	Name   string    `json:"name,omitempty"`
}

func (l Limit) limit() egress.Limit {
	return egress.Limit{Requests: l.Requests, Per: time.Duration(l.PerMS) * time.Millisecond, Bytes: l.Bytes}
}

// Env returns the environment variables of programs in a jail behind the proxy: the proxy
// address and, if the proxy intercepts TLS, the certificate authority.
func Env(raw json.RawMessage) map[string]string {
	const proxy, direct = "http://10.0.0.1:3128", "localhost,127.0.0.1,::1,10.0.0.2"
	env := map[string]string{
		"HTTP_PROXY": proxy, "http_proxy": proxy, "HTTPS_PROXY": proxy, "https_proxy": proxy,
		"NO_PROXY": direct, "no_proxy": direct,
	}
	if s, err := parse(raw); err == nil && s.Egress.interceptsTLS() {
		maps.Copy(env, egress.TrustEnv())
	}
	return env
}

func (e *Egress) rules() egress.Rules {
	if e == nil {
		return egress.Rules{}
	}
	all := egress.Rules{Limit: e.Limit.limit()}
	for _, r := range e.Allow {
		rule := egress.Rule{
			Name: r.Name, Host: r.Host, Ports: r.Ports, Methods: r.Methods, Paths: r.Paths,
			Capability: r.Capability, Limit: r.Limit.limit(), Intercept: r.Intercept,
			Internet: r.Internet, Deny: r.Deny,
		}
		for _, in := range r.Inject {
			rule.Inject = append(rule.Inject, egress.Inject(in))
		}
		all.Allow = append(all.Allow, rule)
	}
	for _, t := range e.Transform {
		all.Transform = append(all.Transform, egress.Transform(t))
	}
	return all
}

// Explain evaluates the egress rules for a hypothetical connection. It does not evaluate the
// policy or Ask, which apply if no egress rule allows the connection.
func (e *Egress) Explain(host string, port uint16) (egress.Explanation, error) {
	return e.rules().Explain(egress.Request{Kind: egress.KindConnect, Host: host, Port: port})
}

// unlisted is how the egress rules of a jail treat hosts that they do not list.
type unlisted int32

const (
	unlistedByPolicy unlisted = iota // there are no egress rules that allow a host
	unlistedAsk                      // request approval
	unlistedDeny                     // only a rule of the policy can allow another host
)

func (e *Egress) unlisted() unlisted {
	switch {
	case e == nil:
		return unlistedByPolicy
	case e.Ask:
		return unlistedAsk
	case slices.ContainsFunc(e.Allow, func(r Rule) bool { return !r.Deny }):
		return unlistedDeny
	}
	return unlistedByPolicy
}

// Unlisted returns the decision about a host that no egress rule allows, given that of the
// policy. A policy that allows connections only by default does not add to the egress rules.
func (e *Egress) Unlisted(d policy.Decision) policy.Decision { return e.unlisted().decide(d) }

func (u unlisted) decide(d policy.Decision) policy.Decision {
	switch {
	case d.Effect != policy.Allow || !d.Default || u == unlistedByPolicy:
		return d
	case u == unlistedAsk:
		return askUnruled
	}
	return policy.Decision{
		Effect: policy.Deny, Final: true,
		Rule:   policy.Rule{Action: policy.ActionConnect, Pattern: "*", Effect: policy.Deny, File: "egress"},
		Reason: "no egress rule allows it, and no rule of the policy names it",
		Remedy: "use a host that the egress rules allow",
	}
}

// recordsQuery reports whether the query of URLs is recorded.
func (e *Egress) recordsQuery() bool { return e != nil && e.Query }

// interceptsTLS reports whether a rule requires TLS interception.
func (e *Egress) interceptsTLS() bool {
	return e != nil && (len(e.Transform) > 0 || slices.ContainsFunc(e.Allow, func(r Rule) bool {
		return r.Intercept || len(r.Inject) > 0 || len(r.Methods) > 0 || len(r.Paths) > 0
	}))
}

// Inherit returns the default Spec of a jail that is created from a snapshot. Owned secrets
// are removed: their owner has released them to one jail only.
func Inherit(raw json.RawMessage) (json.RawMessage, error) {
	s, err := parse(raw)
	if err != nil || s.Egress == nil {
		return raw, err
	}
	hasSecret := func(t Transform) bool { return len(t.SecretHeaders) > 0 }
	if !slices.ContainsFunc(s.Egress.Transform, hasSecret) {
		return raw, nil // byte for byte
	}
	for i, t := range s.Egress.Transform {
		s.Egress.Transform[i] = Transform{Host: t.Host, Headers: t.Headers}
	}
	return json.Marshal(s)
}

// parse decodes a Spec. An unknown field is an error, since a misspelled denial must not be
// ignored.
func parse(raw json.RawMessage) (Spec, error) {
	var s Spec
	if len(raw) == 0 {
		return s, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, fault.Fieldf("govern.parse", "govern", "%w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return s, fault.Fieldf("govern.parse", "govern", "unexpected data after the JSON value")
	}
	return s, nil
}

// Digest returns the digest of a Spec for audit log entries, or "" if there is no Spec.
func Digest(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Limits of a Policy: the number of files, and the bytes of each.
const (
	maxFiles = 16
	maxText  = 1 << 20
)

// CurrentLevel returns the current autonomy level.
func (p *Policy) CurrentLevel() policy.Level { return p.level() }

// CheckAgent returns an Invalid error if a spec has no policy, or if no permission file of
// the policy defines the agent.
func CheckAgent(raw json.RawMessage, agent string) error {
	s, err := parse(raw)
	if err != nil {
		return err
	}
	if s.Policy == nil {
		return &fault.Error{Op: "govern.CheckAgent", Kind: fault.Invalid, Field: "policy.agent",
			Err: errors.New("the jail has no policy that defines agents"), Remedy: "give the jail a policy"}
	}
	set, err := s.Policy.compile("")
	if err != nil {
		return err
	}
	return checkAgent(set, agent)
}

func checkAgent(set *policy.Set, agent string) error {
	if set.HasAgent(agent) {
		return nil
	}
	return &fault.Error{Op: "govern.CheckAgent", Kind: fault.Invalid, Field: "policy.agent",
		Err: fmt.Errorf("no permission file defines the agent %.80q", agent), Remedy: "use an agent that the permission file defines, or add this one"}
}

// compile compiles a policy. The result is nil if p is nil.
func (p *Policy) compile(workspace string) (*policy.Set, error) {
	const op = "govern.Compile"
	if p == nil {
		return nil, nil
	}
	c := policy.Config{Match: p.Match, Level: p.level(), Home: p.Home, Workspace: p.Workspace}
	if c.Home == "" {
		c.Home = "/root"
	}
	if c.Workspace == "" {
		c.Workspace = workspace
	}
	if len(p.Files) > maxFiles {
		return nil, fault.Fieldf(op, "policy.files", "%d files exceed the maximum of %d", len(p.Files), maxFiles)
	}
	for i, f := range p.Files {
		field := fmt.Sprintf("policy.files[%d]", i)
		if len(f.Text) > maxText {
			return nil, fault.Fieldf(op, field, "%d bytes exceed the maximum of %d", len(f.Text), maxText)
		}
		switch {
		case strings.HasSuffix(f.Name, ".json") || strings.HasSuffix(f.Name, ".jsonc"):
			perms, err := policy.ReadPermissions(f.Name, []byte(f.Text))
			if err != nil {
				return nil, err
			}
			c.Permissions = append(c.Permissions, perms)
		case strings.EqualFold(path.Ext(f.Name), ".md"):
			framework, err := policy.ReadFramework(f.Name, []byte(f.Text))
			if err != nil {
				return nil, err
			}
			c.Frameworks = append(c.Frameworks, framework)
		default:
			return nil, fault.Fieldf(op, field, "%.80q is neither a permission file (.json, .jsonc) nor a decision framework (.md)", f.Name)
		}
	}
	for i, t := range p.Tiers {
		if !slices.Contains([]approval.Tier{approval.Preapproved, approval.Standard, approval.Elevated}, t.Tier) {
			return nil, fault.Fieldf(op, fmt.Sprintf("policy.tiers[%d].tier", i), "%.40q is not one of preapproved, standard, elevated", t.Tier)
		}
	}
	set, err := policy.Compile(c)
	if err != nil {
		return nil, err
	}
	if p.Ceiling != 0 && (!p.Ceiling.Valid() || p.Ceiling < p.level()) {
		return nil, fault.Fieldf(op, "policy.ceiling", "%d is not a valid level, or is below the level %d", p.Ceiling, p.level())
	}
	for _, r := range p.Answers {
		set = set.Remember(r)
	}
	return set, nil
}

func (p *Policy) level() policy.Level {
	if p.Level == 0 {
		return policy.Guided
	}
	return p.Level
}

// MaxLevel returns the maximum autonomy level.
func (p *Policy) MaxLevel() policy.Level { return max(p.Ceiling, p.level()) }

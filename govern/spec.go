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

	"glasshouse/approval"
	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
)

// A Spec is what a jail is governed by. The zero value decides nothing and lets
// nothing out.
type Spec struct {
	Policy *Policy `json:"policy,omitempty"`
	Egress *Egress `json:"egress,omitempty"` // of a jail in network mode proxy

	// CA names the certificate authority with which the proxy looks into TLS. It
	// is the kernel's to set.
	CA id.CA `json:"ca,omitempty"`
}

// A Policy is files that decide, and how they are read.
type Policy struct {
	Files   []File        `json:"files,omitempty"`
	Match   policy.Match  `json:"match,omitempty"`   // empty: as the files were written for
	Agent   string        `json:"agent,omitempty"`   // whose rules count where nobody says who asks
	Level   policy.Level  `json:"level,omitempty"`   // 0 is 1
	Ceiling policy.Level  `json:"ceiling,omitempty"` // to which it may be raised; 0 is the level it begins with
	Answers []policy.Rule `json:"answers,omitempty"` // that people wanted remembered
	Tiers   []Tier        `json:"tiers,omitempty"`   // what it takes to allow what is asked; the first that matches counts

	Home      string `json:"home,omitempty"`      // in the jail; empty: /root
	Workspace string `json:"workspace,omitempty"` // in the jail; empty: that of the jail, or its working directory
}

// A Tier says what it takes to allow some of what is asked.
type Tier struct {
	Action  string        `json:"action"`
	Pattern string        `json:"pattern"`
	Tier    approval.Tier `json:"tier"`
}

// A File is a permission file or a decision framework, as its name says.
type File struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Egress is what the proxy lets through.
type Egress struct {
	Allow []Rule `json:"allow,omitempty"`
	Ask   bool   `json:"ask,omitempty"` // what no rule allows a person is asked about, rather than refused
	Limit Limit  `json:"limit,omitzero"`
	Query bool   `json:"query,omitempty"` // paths are recorded with their query

	Transform []Transform `json:"transform,omitempty"`
}

// A Transform sets headers of what goes to a host: egress.Transform.
type Transform struct {
	Host    string                   `json:"host"`
	Headers map[string]string        `json:"headers"`
	Filled  map[string][]egress.Part `json:"filled,omitempty"`
	Owner   string                   `json:"owner,omitempty"`
}

// A Rule allows something to leave: egress.Rule, as people write it.
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

// A Limit bounds requests and bytes.
type Limit struct {
	Requests int   `json:"requests,omitempty"` // in a minute, or in PerMS
	PerMS    int64 `json:"per_ms,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"`
}

// An Inject puts a secret into requests.
type Inject struct {
	Secret string    `json:"secret"`
	As     egress.As `json:"as"`
	Name   string    `json:"name,omitempty"`
}

func (l Limit) limit() egress.Limit {
	return egress.Limit{Requests: l.Requests, Per: time.Duration(l.PerMS) * time.Millisecond, Bytes: l.Bytes}
}

// Env is what programs in a jail behind the proxy are told: where it is, and whom
// to trust where TLS is looked into.
func Env(raw json.RawMessage) map[string]string {
	const proxy, direct = "http://10.0.0.1:3128", "localhost,127.0.0.1,::1,10.0.0.2"
	env := map[string]string{
		"HTTP_PROXY": proxy, "http_proxy": proxy, "HTTPS_PROXY": proxy, "https_proxy": proxy,
		"NO_PROXY": direct, "no_proxy": direct,
	}
	if s, err := parse(raw); err == nil && s.Egress.looksInside() {
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

// Explain says what the rules say to a connection that nobody makes. What they do not
// allow is a question of policy, or of a person, only if the jail has a policy or is to
// be asked.
func (e *Egress) Explain(host string, port uint16) (egress.Answer, error) {
	return e.rules().Explain(egress.Request{Kind: egress.KindConnect, Host: host, Port: port})
}

// query reports whether paths are recorded with their query.
func (e *Egress) query() bool { return e != nil && e.Query }

// looksInside reports whether TLS is looked into for a rule.
func (e *Egress) looksInside() bool {
	return e != nil && (len(e.Transform) > 0 || slices.ContainsFunc(e.Allow, func(r Rule) bool {
		return r.Intercept || len(r.Inject) > 0 || len(r.Methods) > 0 || len(r.Paths) > 0
	}))
}

// Inherit returns what of raw is for a jail that is made of a snapshot, unless it is said
// otherwise: all but secrets that are their owner's alone, who has made them for one jail.
func Inherit(raw json.RawMessage) (json.RawMessage, error) {
	s, err := parse(raw)
	if err != nil || s.Egress == nil {
		return raw, err
	}
	lent := func(t Transform) bool { return len(t.Filled) > 0 }
	if !slices.ContainsFunc(s.Egress.Transform, lent) {
		return raw, nil // to the byte
	}
	for i, t := range s.Egress.Transform {
		s.Egress.Transform[i] = Transform{Host: t.Host, Headers: t.Headers}
	}
	return json.Marshal(s)
}

// parse reads a Spec. A word that it does not know is an error: a misspelt denial
// must not be a missing one.
func parse(raw json.RawMessage) (Spec, error) {
	var s Spec
	if len(raw) == 0 {
		return s, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, fault.Fieldf("govern", "govern", "%w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return s, fault.Fieldf("govern", "govern", "there is more behind its end")
	}
	return s, nil
}

// Digest names a Spec in the chain, where its text has no room. No Spec is "".
func Digest(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// maxFiles bounds a Policy.
const (
	maxFiles = 16
	maxText  = 1 << 20
)

// CurrentLevel is the autonomy level that holds now.
func (p *Policy) CurrentLevel() policy.Level { return p.level() }

// CheckAgent returns an Invalid error if a spec has no policy, or if no permission file of
// the policy defines the agent.
func CheckAgent(raw json.RawMessage, agent string) error {
	s, err := parse(raw)
	if err != nil {
		return err
	}
	if s.Policy == nil {
		return &fault.Error{Op: "govern.Policy", Kind: fault.Invalid, Field: "policy.agent",
			Err: errors.New("there is no policy that could define an agent"), Remedy: "give the jail a policy"}
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
	return &fault.Error{Op: "govern.Policy", Kind: fault.Invalid, Field: "policy.agent",
		Err: fmt.Errorf("no permission file defines the agent %.80q", agent), Remedy: "name an agent of the permission file, or add it there"}
}

// compile makes the rules of a policy ready to decide. No policy is nil.
func (p *Policy) compile(workspace string) (*policy.Set, error) {
	const op = "govern.Policy"
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
		return nil, fault.Fieldf(op, "policy.files", "%d files are more than %d", len(p.Files), maxFiles)
	}
	for i, f := range p.Files {
		field := fmt.Sprintf("policy.files[%d]", i)
		if len(f.Text) > maxText {
			return nil, fault.Fieldf(op, field, "%d bytes are more than %d", len(f.Text), maxText)
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
		return nil, fault.Fieldf(op, "policy.ceiling", "%d is no level, or under the level %d", p.Ceiling, p.level())
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

// Top is the level to which p's may be raised.
func (p *Policy) Top() policy.Level { return max(p.Ceiling, p.level()) }

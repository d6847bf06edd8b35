package daemon

import (
	"context"
	"encoding/json"
	"net/netip"
	"net/url"

	"glasshouse/budget"
	"glasshouse/connector"
	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/gateway"
	"glasshouse/internal/webhook"
	"glasshouse/manifest"
	"glasshouse/run"
	"glasshouse/secret"
)

// Connectors says what joins sessions to others.
type Connectors struct {
	Address string  `yaml:"address"` // how others reach /hooks/ of this daemon, such as https://host/hooks/
	Hooks   []Hook  `yaml:"hooks"`
	Posts   []Post  `yaml:"posts"`
	Relays  []Relay `yaml:"relays"`
}

// Hook takes what others post to /hooks/{name}.
type Hook struct {
	Name   string   `yaml:"name"`
	Scheme string   `yaml:"scheme"` // standard, github
	Secret string   `yaml:"secret"` // name of the secret that they sign with
	Labels []string `yaml:"labels"` // of what comes; default [pii]
	Entry  `yaml:",inline"`
}

// Entry says what becomes of what comes.
type Entry struct {
	Session string           `yaml:"session"`
	Text    string           `yaml:"text"`
	Goal    string           `yaml:"goal"`
	Agent   *ConnectedAgent  `yaml:"agent"`
	Budget  map[string]int64 `yaml:"budget"`
}

// ConnectedAgent is who pursues the goal.
type ConnectedAgent struct {
	Preset  string   `yaml:"preset"`
	Model   string   `yaml:"model"`
	Spawner string   `yaml:"spawner"`
	Argv    []string `yaml:"argv"`
	Skills  []string `yaml:"skills"`
	Level   int      `yaml:"level"`
}

// Post has what is said in sessions posted.
type Post struct {
	Name     string   `yaml:"name"`
	Sessions []string `yaml:"sessions"`
	URL      string   `yaml:"url"`
	Secret   string   `yaml:"secret"`   // name of the secret that it is signed with
	Networks []string `yaml:"networks"` // where it may go besides the Internet
	Labels   []string `yaml:"labels"`   // what it may have as it is
}

// Relay tells one session what is said in others.
type Relay struct {
	Name     string   `yaml:"name"`
	Sessions []string `yaml:"sessions"`
	Labels   []string `yaml:"labels"`
	Entry    `yaml:",inline"`
}

func (c Connectors) validate() error {
	if c.Address != "" {
		if err := checkURL("gateway.connectors.address", c.Address); err != nil {
			return err
		}
	}
	conf, err := c.config()
	if err == nil {
		_, err = connector.New(conf)
	}
	if err != nil {
		return fault.Fieldf("config", "gateway.connectors", "%w", err)
	}
	return nil
}

// hosts are the names by which others reach hooks.
func (c Connectors) hosts() []string {
	u, err := url.Parse(c.Address)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	return []string{u.Hostname()}
}

// config is what is configured, as connectors want it.
func (c Connectors) config() (connector.Config, error) {
	conf := connector.Config{Address: c.Address}
	for _, h := range c.Hooks {
		e, err := h.entry()
		if err != nil {
			return conf, err
		}
		conf.Hooks = append(conf.Hooks, connector.Hook{Name: h.Name, Scheme: webhook.Scheme(h.Scheme), Secret: h.Secret, Labels: labelsOf(h.Labels), Entry: e})
	}
	for _, p := range c.Posts {
		made := connector.Post{Name: p.Name, Sessions: p.Sessions, URL: p.URL, Secret: p.Secret, Labels: labelsOf(p.Labels)}
		for _, n := range p.Networks {
			prefix, err := netip.ParsePrefix(n)
			if err != nil {
				return conf, fault.Fieldf("config", "posts.networks", "%q is not a network such as 10.1.0.0/16", n)
			}
			made.Networks = append(made.Networks, prefix)
		}
		conf.Posts = append(conf.Posts, made)
	}
	for _, r := range c.Relays {
		e, err := r.entry()
		if err != nil {
			return conf, err
		}
		conf.Relays = append(conf.Relays, connector.Relay{Name: r.Name, Sessions: r.Sessions, Labels: labelsOf(r.Labels), Entry: e})
	}
	return conf, nil
}

func (e Entry) entry() (connector.Entry, error) {
	made := connector.Entry{Session: e.Session, Text: e.Text, Goal: e.Goal}
	for d, n := range e.Budget {
		if made.Limits == nil {
			made.Limits = budget.Amounts{}
		}
		made.Limits[budget.Dimension(d)] = n
	}
	if _, err := budget.New("run", nil, budget.State{Limits: made.Limits}, nil); err != nil {
		return made, err
	}
	if e.Agent == nil {
		return made, nil
	}
	a := *e.Agent
	var err error
	made.Agent, err = json.Marshal(gateway.Agent{Preset: a.Preset, Model: a.Model, Spawner: a.Spawner, Argv: a.Argv, Skills: a.Skills, Level: a.Level})
	return made, err
}

func labelsOf(words []string) []manifest.Label {
	var all []manifest.Label
	for _, w := range words {
		all = append(all, manifest.Label(w))
	}
	return all
}

// openConnectors joins sessions to others. Nothing is delivered yet.
func (d *Daemon) openConnectors() error {
	conf, err := d.Config.Gateway.Connectors.config()
	if err != nil {
		return err
	}
	conf.Runs, conf.Reach, conf.Key, conf.Log = d.runs, egress.Outside, d.connectorKey, d.log.With("part", "connector")
	conf.Start = func(ctx context.Context, q run.Request) (run.Run, error) {
		return d.gateway.Order(ctx, gateway.Order{Request: q})
	}
	c, err := connector.New(conf)
	if err != nil {
		return err
	}
	d.connectors.Store(c)
	return nil
}

// connectorKey is the key of a connector. It is lent to that one alone, under a name
// that no capability can have.
func (d *Daemon) connectorKey(ctx context.Context, name, key, host string) ([]byte, error) {
	return d.keyOf(ctx, "connector:"+name, key, host)
}

// keyOf returns the value of a secret to a part of the daemon that is configured to use
// it. host is where it goes; "": nowhere.
func (d *Daemon) keyOf(ctx context.Context, part, name, host string) ([]byte, error) {
	g := secret.Grant{Secret: name, To: secret.Scope{Capability: part}, Delivery: secret.File, By: "configuration"}
	if host != "" {
		g.Delivery, g.Hosts = secret.Inject, []string{host}
	}
	return d.borrow(ctx, g, host)
}

// borrow returns the value of a secret to who is to have it, by a grant that is made
// when it is asked for first.
func (d *Daemon) borrow(ctx context.Context, g secret.Grant, host string) ([]byte, error) {
	use := secret.Use{Delivery: g.Delivery, Host: host}
	v, err := d.secrets.Resolve(ctx, g.To, g.Secret, use)
	if fault.KindOf(err) == fault.Denied {
		if _, err := d.secrets.Grant(ctx, g); err != nil {
			return nil, err
		}
		v, err = d.secrets.Resolve(ctx, g.To, g.Secret, use)
	}
	if err != nil {
		return nil, err
	}
	return v.Bytes(), nil
}

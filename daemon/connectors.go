package daemon

import (
	"context"
	"encoding/json"
	"net/netip"
	"net/url"

	"glasshouse/agents/connector"
	"glasshouse/agents/gateway"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/internal/webhook"
	"glasshouse/policy/egress"
)

// Connectors configures webhooks and relays between sessions.
type Connectors struct {
	Address string  `yaml:"address"` // public URL of this daemon's /hooks/, such as https://host/hooks/
	Hooks   []Hook  `yaml:"hooks"`
	Posts   []Post  `yaml:"posts"`
	Relays  []Relay `yaml:"relays"`
}

// Hook is an inbound webhook at /hooks/{name}.
type Hook struct {
	Name   string   `yaml:"name"`
	Scheme string   `yaml:"scheme"` // standard, github
	Secret string   `yaml:"secret"` // name of the secret with the signing key
	Labels []string `yaml:"labels"` // data labels of received messages; default [pii]
	Entry  `yaml:",inline"`
}

// Entry describes how a received message is delivered.
type Entry struct {
	Session string           `yaml:"session"`
	Text    string           `yaml:"text"`
	Goal    string           `yaml:"goal"`
	Agent   *ConnectedAgent  `yaml:"agent"`
	Budget  map[string]int64 `yaml:"budget"`
}

// ConnectedAgent is the agent that pursues the goal.
type ConnectedAgent struct {
	Preset  string   `yaml:"preset"`
	Model   string   `yaml:"model"`
	Spawner string   `yaml:"spawner"`
	Argv    []string `yaml:"argv"`
	Skills  []string `yaml:"skills"`
	Level   int      `yaml:"level"`
}

// Post is an outbound webhook for the messages of sessions.
type Post struct {
	Name     string   `yaml:"name"`
	Sessions []string `yaml:"sessions"`
	URL      string   `yaml:"url"`
	Secret   string   `yaml:"secret"`   // name of the secret with the signing key
	Networks []string `yaml:"networks"` // allowed networks in addition to the Internet
	Labels   []string `yaml:"labels"`   // data labels that are sent without redaction
}

// Relay forwards messages of sessions to another session.
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

// hosts returns the host name of the public URL of inbound webhooks.
func (c Connectors) hosts() []string {
	u, err := url.Parse(c.Address)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	return []string{u.Hostname()}
}

// config converts the configuration for the connectors.
func (c Connectors) config() (connector.Config, error) {
	conf := connector.Config{Address: c.Address}
	for _, h := range c.Hooks {
		e, err := h.entry()
		if err != nil {
			return conf, err
		}
		conf.Hooks = append(conf.Hooks, connector.InboundWebhook{Name: h.Name, Scheme: webhook.Scheme(h.Scheme), Secret: h.Secret, Labels: labelsOf(h.Labels), Entry: e})
	}
	for _, p := range c.Posts {
		made := connector.OutboundWebhook{Name: p.Name, Sessions: p.Sessions, URL: p.URL, Secret: p.Secret, Labels: labelsOf(p.Labels)}
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

// openConnectors creates the connectors. It does not start delivery.
func (d *Daemon) openConnectors() error {
	conf, err := d.Config.Gateway.Connectors.config()
	if err != nil {
		return err
	}
	conf.Runs, conf.Reach, conf.Key, conf.Log = d.runs, egress.CheckInternetAddr, credentials{d.secrets}.connectorKey, d.log.With("part", "connector")
	conf.Start = func(ctx context.Context, q run.Request) (run.Run, error) {
		return d.gateway.CreateRun(ctx, gateway.RunOrder{Request: q})
	}
	d.connectors, err = connector.New(conf)
	return err
}

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"glasshouse/access"
	"glasshouse/approval"
	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/policy"
)

// Approvals says who is told of what waits for a person, and for how long it
// does.
type Approvals struct {
	Wait  time.Duration `yaml:"wait"`  // until a request expires, which denies it
	Limit int           `yaml:"limit"` // of requests of one jail that wait at once
	Keep  time.Duration `yaml:"keep"`  // how long what became of requests can be looked at; the chain has it for good
	Links string        `yaml:"links"` // how phones reach /answers/ of this daemon, such as https://host/answers/; "" means that they can only be told

	Webhooks []Webhook `yaml:"webhooks"`
	Pushes   []Push    `yaml:"pushes"`
}

// Webhook is told of every request, by a signed POST.
type Webhook struct {
	Name   string `yaml:"name"`
	URL    string `yaml:"url"`
	Secret string `yaml:"secret_file"` // holds the key of the signature
}

// Push is a person's phone, reached through ntfy or what speaks like it.
type Push struct {
	Name  string `yaml:"name"` // of the person: who answers by its links
	URL   string `yaml:"url"`
	Topic string `yaml:"topic"`
	Token string `yaml:"token_file"` // holds the server's access token
}

// validate refuses what could only be found out when somebody waits.
func (a Approvals) validate() error {
	const op = "config"
	seen := map[string]bool{}
	check := func(field, name, where string) error {
		if name == "" || seen[name] {
			return fault.Fieldf(op, field+".name", "%q is no name, or another's", name)
		}
		seen[name] = true
		return checkURL(field+".url", where)
	}
	for i, w := range a.Webhooks {
		if err := check(fmt.Sprintf("approvals.webhooks[%d]", i), w.Name, w.URL); err != nil {
			return err
		}
	}
	for i, p := range a.Pushes {
		field := fmt.Sprintf("approvals.pushes[%d]", i)
		if err := check(field, p.Name, p.URL); err != nil {
			return err
		}
		if p.Topic == "" {
			return fault.Fieldf(op, field+".topic", "a push needs a topic")
		}
	}
	if a.Wait < 0 || a.Limit < 0 || a.Keep < 0 {
		return fault.Fieldf(op, "approvals", "wait, limit and keep are not negative")
	}
	if a.Links != "" {
		return checkURL("approvals.links", a.Links)
	}
	return nil
}

// hosts are the names by which links lead here.
func (a Approvals) hosts() []string {
	u, err := url.Parse(a.Links)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	return []string{u.Hostname()}
}

func checkURL(field, s string) error {
	if u, err := url.Parse(s); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fault.Fieldf("config", field, "%q is not an address such as https://host/path", s)
	}
	return nil
}

// openApprovals opens the queue of what waits for a person.
func (d *Daemon) openApprovals(ctx context.Context) error {
	c := d.Config.Approvals
	conf := approval.Config{
		Wait: c.Wait, Limit: c.Limit, Keep: c.Keep, Links: c.Links,
		Remember: d.remember, Record: d.kernel.RecordApproval, Recorded: d.kernel.Recorded, Log: d.log.With("part", "approval"),
	}
	for _, w := range c.Webhooks {
		hook := approval.Webhook{Name: w.Name, URL: w.URL}
		if w.Secret != "" {
			hook.Secret = fromFile(w.Secret)
		}
		conf.Webhooks = append(conf.Webhooks, hook)
	}
	for _, p := range c.Pushes {
		push := approval.Push{Name: p.Name, URL: p.URL, Topic: p.Topic, Who: approval.Person{ID: "push " + p.Name, Name: p.Name, Role: string(access.Operator)}}
		if p.Token != "" {
			push.Token = fromFile(p.Token)
		}
		conf.Pushes = append(conf.Pushes, push)
	}
	conf.Browsers = approval.BrowserConfig{Store: d.store.Browsers(), Reach: egress.Outside}
	if strings.HasPrefix(c.Links, "https:") {
		conf.Browsers.Contact = c.Links
	}
	var err error
	if d.approvals, err = approval.New(ctx, d.store.Approvals(), conf); err != nil {
		return err
	}
	d.onClose(d.approvals.Close)
	d.kernel.Approvals(d.approvals)
	return nil
}

// fromFile reads a secret when it is used, so that it can be changed at any time.
func fromFile(name string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		b = bytes.TrimSpace(b)
		if len(b) == 0 { // a signature with an empty key can be made by anybody
			return nil, fault.Newf(fault.Invalid, "daemon", name, "the file of a secret is empty")
		}
		return b, nil
	}
}

// remember has an answer count from now on: for as long as the jail lives, or for
// good, with its policy.
func (d *Daemon) remember(ctx context.Context, r approval.Request, rule policy.Rule) error {
	if rule.File == "" {
		rule.File = "answer"
		if r.Answer != nil {
			rule.File = strings.TrimSpace("answer of " + r.Answer.By.Name)
		}
	}
	if r.Answer == nil || r.Answer.Scope != approval.Always {
		d.kernel.Recall(r, rule)
		return nil
	}
	jails := d.opened.Load()
	if jails == nil {
		return fault.Newf(fault.Unavailable, "daemon.remember", string(r.ID), "the jails are not open yet")
	}
	_, err := jails.Regovern(ctx, r.Question.Subject.Jail, func(raw json.RawMessage) (json.RawMessage, error) {
		return govern.Change(raw, func(s *govern.Spec) error { return s.Answered(rule) })
	})
	return err
}

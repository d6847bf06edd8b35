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

	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
	"glasshouse/policy/egress"
)

// Approvals configures approval requests: notifications, limits and retention.
type Approvals struct {
	Wait  time.Duration `yaml:"wait"`  // time until a pending request expires, which denies it
	Limit int           `yaml:"limit"` // maximum number of pending requests per jail
	Keep  time.Duration `yaml:"keep"`  // retention of completed requests; the audit log keeps them permanently
	Links string        `yaml:"links"` // public URL of this daemon's /answers/, such as https://host/answers/; "" disables answer links

	Webhooks []Webhook `yaml:"webhooks"`
	Pushes   []Push    `yaml:"pushes"`
}

// Webhook receives every request in a signed POST.
type Webhook struct {
	Name   string `yaml:"name"`
	URL    string `yaml:"url"`
	Secret string `yaml:"secret_file"` // file with the signing key
}

// Push is a phone that is notified through ntfy or a compatible server.
type Push struct {
	Name  string `yaml:"name"` // the person that answers through its links are attributed to
	URL   string `yaml:"url"`
	Topic string `yaml:"topic"`
	Token string `yaml:"token_file"` // file with the server's access token
}

// validate reports settings that would fail only when a request is pending.
func (a Approvals) validate() error {
	const op = "config"
	seen := map[string]bool{}
	check := func(field, name, where string) error {
		if name == "" || seen[name] {
			return fault.Fieldf(op, field+".name", "%q is empty or already in use", name)
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
			return fault.Fieldf(op, field+".topic", "a topic is required")
		}
	}
	if a.Wait < 0 || a.Limit < 0 || a.Keep < 0 {
		return fault.Fieldf(op, "approvals", "wait, limit and keep must not be negative")
	}
	if a.Links != "" {
		return checkURL("approvals.links", a.Links)
	}
	return nil
}

// hosts returns the host names of answer links.
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

// openApprovals opens the approval queue.
func (d *Daemon) openApprovals(ctx context.Context) error {
	c := d.Config.Approvals
	conf := approval.Config{
		Wait: c.Wait, Limit: c.Limit, Keep: c.Keep, Links: c.Links,
		Remember: d.remember, Record: d.kernel.RecordApproval, Recorded: d.kernel.RecoverApproval, Log: d.log.With("part", "approval"),
	}
	for _, w := range c.Webhooks {
		hook := approval.Webhook{Name: w.Name, URL: w.URL}
		if w.Secret != "" {
			hook.Secret = fromFile(w.Secret)
		}
		conf.Webhooks = append(conf.Webhooks, hook)
	}
	for _, p := range c.Pushes {
		push := approval.Push{Name: p.Name, URL: p.URL, Topic: p.Topic, Recipient: approval.Person{ID: "push " + p.Name, Name: p.Name, Role: string(access.Operator)}}
		if p.Token != "" {
			push.Token = fromFile(p.Token)
		}
		conf.Pushes = append(conf.Pushes, push)
	}
	conf.Browsers = approval.BrowserConfig{Store: d.store.Browsers(), Reach: egress.CheckInternetAddr}
	if strings.HasPrefix(c.Links, "https:") {
		conf.Browsers.Contact = c.Links
	}
	var err error
	if d.approvals, err = approval.New(ctx, d.store.Approvals(), conf); err != nil {
		return fmt.Errorf("open the approval queue: %w", err)
	}
	d.onClose(d.approvals.Close)
	d.kernel.Approvals(d.approvals)
	return nil
}

// fromFile returns a function that reads a secret on each use, so that the file can be changed
// at any time.
func fromFile(name string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the secret of a notification: %w", err)
		}
		b = bytes.TrimSpace(b)
		if len(b) == 0 { // anyone can compute a signature with an empty key
			return nil, fault.Newf(fault.Invalid, "daemon.fromFile", name, "the file of a secret is empty")
		}
		return b, nil
	}
}

// remember makes an answer apply to later requests: for the lifetime of the jail, or
// permanently in its policy.
func (d *Daemon) remember(ctx context.Context, r approval.Request, rule policy.Rule) error {
	if rule.File == "" {
		rule.File = "answer"
		if r.Answer != nil {
			rule.File = strings.TrimSpace("answer of " + r.Answer.By.Name)
		}
	}
	if r.Answer == nil || r.Answer.Scope != approval.Always {
		d.kernel.RememberApproval(r, rule)
		return nil
	}
	_, err := d.jails.ReplacePolicy(ctx, r.Question.Subject.Jail, func(raw json.RawMessage) (json.RawMessage, error) {
		return govern.Change(raw, func(s *govern.Spec) error { return s.AddAnswer(rule) })
	})
	if err != nil {
		return fmt.Errorf("add the rule to the policy of jail %s: %w", r.Question.Subject.Jail, err)
	}
	return nil
}

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// policyFlags are the flags that describe a policy.
type policyFlags struct {
	files          []string
	match, agent   string
	level, ceiling int
}

func (f *policyFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.files, "policy", nil, "permission file or decision framework; may be repeated")
	fs.StringVar(&f.match, "match", "", "rule matching: longest or last (default: that of the file)")
	fs.StringVar(&f.agent, "agent", "", "agent in the files whose rules apply")
	fs.IntVar(&f.level, "level", 0, "autonomy level: 1 guided (default), 2 intelligent, 3 full")
	fs.IntVar(&f.ceiling, "ceiling", 0, "highest autonomy level (default: --level)")
}

// request returns the policy, or nil if none of the flags was given.
func (f *policyFlags) request() (*wire.Policy, error) {
	if len(f.files) == 0 && f.match == "" && f.agent == "" && f.level == 0 && f.ceiling == 0 {
		return nil, nil
	}
	p := &wire.Policy{Match: f.match, Agent: f.agent, Level: f.level, Ceiling: f.ceiling}
	for _, name := range f.files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		p.Files = append(p.Files, wire.PolicyFile{Name: filepath.Base(name), Text: string(text)})
	}
	return p, nil
}

// changed returns the jail's policy with the settings of the flags replaced. It returns nil if
// no flag changes the policy.
func (f *policyFlags) changed(ctx context.Context, cl *client.Client, j id.Jail) (*wire.Policy, error) {
	if f.match == "" && f.level == 0 && f.ceiling == 0 {
		return nil, nil // --agent is part of the request, not of the policy
	}
	s, err := cl.Policy(ctx, j)
	if err != nil {
		return nil, err
	}
	if s.Policy == nil {
		return nil, fmt.Errorf("jail %s has no policy that --match, --level or --ceiling could change", j)
	}
	p := *s.Policy
	p.Match, p.Level, p.Ceiling = cmp.Or(f.match, p.Match), cmp.Or(f.level, p.Level), cmp.Or(f.ceiling, p.Ceiling)
	return &p, nil
}

// egressFlags are the flags that describe egress rules.
type egressFlags struct {
	file  string
	allow []string
	ask   bool
}

func (f *egressFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.allow, "allow", nil, "allow HOST[:PORT,...]; implies --network proxy")
	fs.StringVar(&f.file, "egress", "", "file of egress rules; implies --network proxy")
	fs.BoolVar(&f.ask, "ask", false, "require approval for other egress; implies --network proxy")
}

// request returns the egress rules, or nil if none of the flags was given.
func (f *egressFlags) request() (*wire.Egress, error) {
	if f.file == "" && len(f.allow) == 0 && !f.ask {
		return nil, nil
	}
	e := &wire.Egress{}
	if f.file != "" {
		if err := readYAML(f.file, e); err != nil {
			return nil, err
		}
	}
	for _, a := range f.allow {
		r, err := parseAllow(a)
		if err != nil {
			return nil, err
		}
		e.Allow = append(e.Allow, r)
	}
	e.Ask = e.Ask || f.ask
	return e, nil
}

// parseAllow parses HOST[:PORT,...]. An IPv6 address must be in brackets.
func parseAllow(s string) (wire.EgressRule, error) {
	host, ports := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, ports = s[:i], s[i+1:]
	}
	r := wire.EgressRule{Host: strings.Trim(host, "[]")}
	if host == "" {
		return r, usagef("--allow %q has no host", s)
	}
	for p := range strings.SplitSeq(ports, ",") {
		if ports == "" {
			break
		}
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return r, usagef("--allow %q: %q is not a port", s, p)
		}
		r.Ports = append(r.Ports, uint16(n))
	}
	return r, nil
}

// readYAML reads a YAML or JSON file with the field names of the API. An unknown field is an
// error.
func readYAML(name string, into any) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var words any
	if err := yaml.Unmarshal(text, &words); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	text, err = json.Marshal(words)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (c *command) policy() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Show, set and explain the policy of a jail", Args: cobra.NoArgs}
	cmd.AddCommand(c.policyShow(), c.policySet(), c.policyRemove(), c.policyLevel(), c.policyLint(), c.policyExplain())
	return cmd
}

func (c *command) policyShow() *cobra.Command {
	return &cobra.Command{
		Use: "show JAIL", Short: "Show the policy of a jail and its evaluation order", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error {
				p, err := cl.Policy(cmd.Context(), j)
				if err != nil {
					return err
				}
				return c.showPolicy(p)
			})
		},
	}
}

func (c *command) policySet() *cobra.Command {
	var f policyFlags
	cmd := &cobra.Command{
		Use: "set JAIL", Short: "Replace the policy of a jail, effective immediately", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.request()
			if err != nil {
				return err
			}
			if p == nil {
				return usagef("give --policy FILE or --level; to remove a policy, use glasshouse policy rm")
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error {
				state, err := cl.SetPolicy(cmd.Context(), j, *p)
				if err != nil {
					return err
				}
				return c.showPolicy(state)
			})
		},
	}
	f.add(cmd)
	return cmd
}

func (c *command) policyRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm JAIL", Short: "Remove the policy of a jail; what would need approval is denied", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error { return cl.DeletePolicy(cmd.Context(), j) })
		},
	}
}

func (c *command) policyLevel() *cobra.Command {
	return &cobra.Command{
		Use: "level JAIL 1|2|3", Short: "Change the autonomy level of a jail, effective immediately", Args: cobra.ExactArgs(2),
		Long: `Change the autonomy level of a jail, within its ceiling. The new level applies to all
later decisions.

  1 guided        actions without an allow rule need approval, destructive ones are denied
  2 intelligent   actions that the decision framework pre-approves need no approval
  3 full          siblings and resource requests need no approval either`,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return err
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error {
				p, err := cl.SetLevel(cmd.Context(), j, n)
				if err != nil {
					return err
				}
				return c.print(p, func(w io.Writer) { fmt.Fprintf(w, "level %d of at most %d\n", p.Level, p.Ceiling) })
			})
		},
	}
}

func (c *command) policyLint() *cobra.Command {
	var f policyFlags
	cmd := &cobra.Command{
		Use: "lint FILE...", Short: "Lint permission files", Args: cobra.MinimumNArgs(1),
		Long: `Lint permission files and decision frameworks. Findings are rules that depend on the
matching order, rules that never match, keys without effect, and patterns that known
forms of a command evade. The exit code is 1 if there are findings.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.files = args
			p, err := f.request()
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			state, err := cl.LintPolicy(cmd.Context(), *p)
			if err != nil {
				return err
			}
			if err := c.showPolicy(state); err != nil {
				return err
			}
			if len(state.Findings) > 0 {
				return exitCode(exitError)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&f.match, "match", "", "rule matching: longest or last (default: that of the file)")
	return cmd
}

func (c *command) policyExplain() *cobra.Command {
	var f policyFlags
	cmd := &cobra.Command{
		Use: "explain [JAIL] ACTION [RESOURCE]", Short: "Explain how the policy would decide, and by which rules",
		Long: `Explain how a policy decides a request, and which rules were evaluated. No approval is
requested, and nothing is recorded or done. The policy is that of a jail or, with
--policy and without a jail, that of the given files. With a jail, --agent, --level,
--match and --ceiling override the settings of its policy.`,
		Example: `  glasshouse policy explain j-abc bash 'git push --force'
  glasshouse policy explain j-abc --agent reviewer edit src/a.ts
  glasshouse policy explain --policy opencode.json bash 'npm test && rm -rf x'`,
		Args: cobra.RangeArgs(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			ofJail := len(f.files) == 0
			if ofJail && len(args) < 2 {
				return usagef("give a jail or --policy FILE, and an action")
			}
			p, err := f.request()
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			e := wire.Explain{Policy: p}
			if ofJail {
				e.Jail, err = jailNamed(cmd.Context(), cl, args[0])
				if err != nil {
					return err
				}
				e.Policy, err = f.changed(cmd.Context(), cl, e.Jail)
				if err != nil {
					return err
				}
				args = args[1:]
			}
			e.Question = wire.Question{Action: args[0], Resource: strings.Join(args[1:], " "), Agent: f.agent}
			x, err := cl.ExplainPolicy(cmd.Context(), e)
			if err != nil {
				return err
			}
			return c.print(x, func(w io.Writer) {
				if g := x.Egress; g != nil {
					fmt.Fprintf(w, "the proxy: %s\n", egressWord(g))
				}
				fmt.Fprintf(w, "%s: %s\n", x.Decision.Effect, text.Visible(x.Decision.Reason))
				if x.Decision.Remedy != "" {
					fmt.Fprintf(w, "  try: %s\n", text.Visible(x.Decision.Remedy))
				}
				var rows [][]string
				for _, r := range x.Considered {
					mark := ""
					switch {
					case r.Decides:
						mark = "decides"
					case r.Matches:
						mark = "matches"
					default:
						continue
					}
					rows = append(rows, []string{mark, text.Visible(r.Part), ruleText(r.Rule), text.Visible(r.Set)})
				}
				table(w, rows)
			})
		},
	}
	f.add(cmd)
	return cmd
}

// egressWord describes the decision of a jail's egress proxy by its rules.
func egressWord(g *wire.ExplainedEgress) string {
	switch {
	case g.Allow:
		return "allow, by " + text.Visible(g.Rule) + "; the policy is not asked"
	case g.Asks:
		return text.Visible(g.Detail) + "; the policy decides"
	default:
		return "refuse: " + text.Visible(g.Detail)
	}
}

func ruleText(r wire.PolicyRule) string {
	s := fmt.Sprintf("%s %q: %s", text.Visible(r.Action), r.Pattern, r.Effect)
	switch {
	case r.Line > 0:
		s += fmt.Sprintf(" (%s:%d)", text.Visible(r.File), r.Line)
	case r.File != "":
		s += " (" + text.Visible(r.File) + ")"
	}
	return s
}

func (c *command) showPolicy(p wire.PolicyState) error {
	return c.print(p, func(w io.Writer) {
		if p.Policy == nil {
			fmt.Fprintln(w, "no policy")
			return
		}
		var files []string
		for _, f := range p.Policy.Files {
			files = append(files, text.Visible(f.Name))
		}
		rows := [][]string{
			{"files", strings.Join(files, ", ")},
			{"match", p.Match + ", " + text.Visible(p.Why)},
			{"level", fmt.Sprintf("%d of at most %d", p.Level, p.Ceiling)},
		}
		for _, r := range p.Policy.Answers {
			rows = append(rows, []string{"remembered", ruleText(r)})
		}
		for _, a := range p.Advice {
			rows = append(rows, []string{"advice", fmt.Sprintf("%s:%d: %s", text.Visible(a.File), a.Line, text.Visible(a.Text))})
		}
		for _, f := range p.Findings {
			line := fmt.Sprintf("%s:%d: %s: %s", text.Visible(f.File), f.Line, f.Kind, text.Visible(f.Message))
			if f.Remedy != "" {
				line += "; " + text.Visible(f.Remedy)
			}
			rows = append(rows, []string{"finding", line})
		}
		table(w, rows)
	})
}

func (c *command) decide() *cobra.Command {
	var d wire.Decide
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "decide JAIL ACTION [RESOURCE]", Short: "Evaluate a policy decision, and wait for approval if one is required", Args: cobra.RangeArgs(2, 3),
		Long: `Evaluate the policy for an action on behalf of a jail, as the plugin of an agent does.
The decision is recorded in the audit log. The exit code is 1 if it is denied.`,
		Example: `  glasshouse decide j-abc bash 'npm test'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			d.Action, d.Resource, d.WaitMS = args[1], strings.Join(args[2:], " "), wait.Milliseconds()
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error {
				stop := c.reportApprovals(cmd.Context(), cl, j)
				v, err := cl.Decide(cmd.Context(), j, d)
				stop()
				if err != nil {
					return err
				}
				err = c.print(v, func(w io.Writer) {
					fmt.Fprintf(w, "%s: %s\n", v.Tag, text.Visible(v.Decision.Reason))
					if v.Instead != "" {
						fmt.Fprintf(w, "instead: %s\n", text.Visible(v.Instead))
					}
				})
				if err == nil && !v.Allow {
					err = exitCode(exitError)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&d.Agent, "agent", "", "name of the requesting agent")
	cmd.Flags().Var(durationValue{d: &wait, seconds: true}, "wait", "wait for approval, such as 90s or 10m (default 60s)")
	return cmd
}

func (c *command) egress() *cobra.Command {
	cmd := &cobra.Command{
		Use: "egress", Short: "Show and change the egress rules of a jail",
		Long: `Show and change what a jail in network mode proxy may reach. A change is effective
immediately: open connections that the new rules do not allow are closed.`,
		Example: `  glasshouse egress show j-4k2v9c7m1xqe
  glasshouse egress allow j-4k2v9c7m1xqe registry.npmjs.org git.example.com:22,443
  glasshouse egress deny j-4k2v9c7m1xqe registry.npmjs.org`,
	}
	cmd.AddCommand(c.egressShow(), c.egressSet(), c.egressAllow(), c.egressDeny(), c.egressLog())
	old := c.egressSet()
	replace := old.RunE
	old.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.ContainsFunc([]string{"allow", "egress", "ask"}, cmd.Flags().Changed) {
			return c.egressShow().RunE(cmd, args)
		}
		return replace(cmd, args)
	}
	c.acceptOld(cmd, old, "egress show\" or \"glasshouse egress set")
	return cmd
}

func (c *command) egressShow() *cobra.Command {
	return &cobra.Command{
		Use: "show JAIL", Short: "Show the egress rules of a jail and its traffic counters", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.printEgress(cmd, args[0], func(cl *client.Client, j id.Jail) (wire.EgressState, error) {
				return cl.Egress(cmd.Context(), j)
			})
		},
	}
}

func (c *command) egressSet() *cobra.Command {
	var f egressFlags
	cmd := &cobra.Command{
		Use: "set JAIL", Short: "Replace all egress rules of a jail", Args: cobra.ExactArgs(1),
		Long: `Replace all egress rules of a jail by those of --allow, --egress and --ask.

A file of egress rules has the fields of the API:

  allow:
    - host: api.example.com
      inject: [{secret: API_KEY, as: bearer}]
    - host: "*.npmjs.org"
      limit: {requests: 600}
    - host: git.example.com
      ports: [22, 443]
  ask: true`,
		Example: `  glasshouse egress set j-4k2v9c7m1xqe --egress rules.yaml
  glasshouse egress set j-4k2v9c7m1xqe --allow registry.npmjs.org --ask`,
		RunE: func(cmd *cobra.Command, args []string) error {
			next, err := f.request()
			if err != nil {
				return err
			}
			if next == nil {
				return usagef("give --allow, --egress or --ask; usage: %s", cmd.UseLine())
			}
			return c.printEgress(cmd, args[0], func(cl *client.Client, j id.Jail) (wire.EgressState, error) {
				return cl.SetEgress(cmd.Context(), j, *next)
			})
		},
	}
	f.add(cmd)
	return cmd
}

func (c *command) egressAllow() *cobra.Command {
	return &cobra.Command{
		Use: "allow JAIL HOST[:PORT,...]...", Short: "Add hosts to the egress rules of a jail", Args: cobra.MinimumNArgs(2),
		Long: `Add rules that allow hosts: a name, *.example.com, or an IP address or prefix. Without
ports, 80 and 443 are allowed. The other rules stay. A jail with such rules reaches
other hosts only if a rule of its policy allows them, or a person approves.`,
		Example: `  glasshouse egress allow j-4k2v9c7m1xqe registry.npmjs.org git.example.com:22,443`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var added []wire.EgressRule
			for _, a := range args[1:] {
				r, err := parseAllow(a)
				if err != nil {
					return err
				}
				added = append(added, r)
			}
			return c.changeEgress(cmd, args[0], func(e *wire.Egress) error {
				for _, r := range added {
					if !slices.ContainsFunc(e.Allow, func(has wire.EgressRule) bool { return reflect.DeepEqual(has, r) }) {
						e.Allow = append(e.Allow, r)
					}
				}
				return nil
			})
		},
	}
}

func (c *command) egressDeny() *cobra.Command {
	return &cobra.Command{
		Use: "deny JAIL HOST...", Short: "Remove hosts from the egress rules of a jail, or deny addresses", Args: cobra.MinimumNArgs(2),
		Long: `Remove all rules for a host. For an IP address or prefix, also add a rule that denies it,
whatever name resolves to it.`,
		Example: `  glasshouse egress deny j-4k2v9c7m1xqe registry.npmjs.org
  glasshouse egress deny j-4k2v9c7m1xqe 203.0.113.0/24`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeEgress(cmd, args[0], func(e *wire.Egress) error {
				var denied []wire.EgressRule
				for _, host := range args[1:] {
					before := len(e.Allow)
					e.Allow = slices.DeleteFunc(e.Allow, func(r wire.EgressRule) bool { return strings.EqualFold(r.Host, host) })
					_, err := netip.ParsePrefix(host)
					if err != nil {
						_, err = netip.ParseAddr(host)
					}
					switch {
					case err == nil:
						denied = append(denied, wire.EgressRule{Host: host, Deny: true})
					case len(e.Allow) == before:
						return fmt.Errorf("no rule allows %s; see glasshouse egress show", text.Visible(host))
					}
				}
				e.Allow = append(denied, e.Allow...) // the first matching rule applies
				return nil
			})
		},
	}
}

// changeEgress changes the egress rules of a jail and prints the result. It calls change again
// if the rules are changed elsewhere at the same time.
func (c *command) changeEgress(cmd *cobra.Command, jail string, change func(*wire.Egress) error) error {
	return c.printEgress(cmd, jail, func(cl *client.Client, j id.Jail) (wire.EgressState, error) {
		return cl.ChangeEgress(cmd.Context(), j, change)
	})
}

// printEgress prints the egress rules that do returns for a jail.
func (c *command) printEgress(cmd *cobra.Command, jail string, do func(*client.Client, id.Jail) (wire.EgressState, error)) error {
	return c.withJail(cmd, jail, func(cl *client.Client, j id.Jail) error {
		e, err := do(cl, j)
		if err != nil {
			return err
		}
		return c.print(e, func(w io.Writer) { showEgress(w, e) })
	})
}

func (c *command) egressLog() *cobra.Command {
	var span timeFlags
	cmd := &cobra.Command{
		Use: "log JAIL", Short: "Show the egress log of a jail", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{"kind": {"egress"}}
			if err := span.query(q); err != nil {
				return err
			}
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error {
				q.Set("jail", string(j))
				return c.listAuditLog(cmd.Context(), cl, q)
			})
		},
	}
	span.add(cmd.Flags())
	return cmd
}

func showEgress(w io.Writer, e wire.EgressState) {
	var rows [][]string
	for _, r := range e.Egress.Allow {
		rows = append(rows, []string{"allow", allowText(r)})
	}
	if e.Egress.Ask {
		rows = append(rows, []string{"ask", "about everything else"})
	} else {
		rows = append(rows, []string{"refuse", "everything else, unless the policy has rules for it"})
	}
	if s := e.Stats; s != nil {
		rows = append(rows,
			[]string{"connections", fmt.Sprintf("%d, %d open", s.Connections, s.Open)},
			[]string{"requests", fmt.Sprint(s.Requests)},
			[]string{"names", fmt.Sprint(s.Queries)},
			[]string{"sent", size(s.Sent)}, []string{"received", size(s.Received)})
		for _, reason := range slices.Sorted(maps.Keys(s.Refused)) {
			rows = append(rows, []string{"refused", fmt.Sprintf("%d for %s", s.Refused[reason], reason)})
		}
	}
	table(w, rows)
}

func allowText(r wire.EgressRule) string {
	s := text.Visible(r.Host)
	if len(r.Ports) > 0 {
		s += ":" + strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Ports), " ", ","), "[]")
	}
	for _, in := range r.Inject {
		s += " with " + text.Visible(in.Secret) + " as " + in.As
	}
	if r.Limit.Requests > 0 {
		s += fmt.Sprintf(", %d requests", r.Limit.Requests)
	}
	if r.Limit.Bytes > 0 {
		s += ", " + size(r.Limit.Bytes)
	}
	if r.Intercept {
		s += ", TLS intercepted"
	}
	return s
}

func (c *command) trail() *cobra.Command {
	var reported, observed bool
	cmd := &cobra.Command{
		Use: "trail JAIL", Short: "List the policy decisions about a jail, oldest first", Args: cobra.ExactArgs(1),
		Long: `List the policy decisions about a jail, oldest first: each requested action, the
decision and its reason. The list remains after the jail is removed. For a jail with
policy enforcement in the Linux kernel, --said excludes the decisions observed in the
kernel, and --observed shows only those.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJail(cmd, args[0], func(cl *client.Client, j id.Jail) error {
				q := url.Values{}
				if reported || observed {
					q.Set("observed", strconv.FormatBool(observed))
				}
				all, err := client.Collect(cl.Trail(cmd.Context(), j, q))
				if err != nil {
					return err
				}
				return c.print(all, func(w io.Writer) {
					for _, t := range all {
						fmt.Fprintf(w, "- %s\n", text.Visible(t.Line))
					}
				})
			})
		},
	}
	cmd.Flags().BoolVar(&reported, "said", false, "only decisions reported by agents and their harnesses")
	cmd.Flags().BoolVar(&observed, "observed", false, "only decisions observed in the Linux kernel")
	cmd.MarkFlagsMutuallyExclusive("said", "observed")
	return cmd
}

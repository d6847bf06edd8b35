package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) approval() *cobra.Command {
	cmd := &cobra.Command{
		Use: "approval", Short: "List, answer and cancel approval requests",
		Example: `  glasshouse approval ls
  glasshouse approval approve a-5kq2m8xw7pdn`,
	}
	approve, deny := c.approve(), c.deny()
	approve.Example = strings.ReplaceAll(approve.Example, "glasshouse approve", "glasshouse approval approve")
	deny.Example = "  glasshouse approval deny a-5kq2m8xw7pdn"
	cmd.AddCommand(c.approvalList(), c.approvalShow(), approve, deny, c.approvalCancel(), c.approvalNotices())
	return cmd
}

func (c *command) approvalList() *cobra.Command {
	var state string
	var follow, everywhere bool
	cmd := &cobra.Command{
		Use: "ls [JAIL]", Short: "List pending approvals", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			var j id.Jail
			if len(args) == 1 {
				j, err = jailNamed(cmd.Context(), cl, args[0])
				if err != nil {
					return err
				}
			}
			if follow {
				for e, err := range cl.ApprovalEvents(cmd.Context()) {
					if err != nil {
						return err
					}
					if j != "" && e.Approval.Jail != j {
						continue
					}
					if err := c.print(e, func(w io.Writer) {
						fmt.Fprintf(w, "%s %-9s %s  %s\n", e.At.Local().Format("15:04:05"), e.Kind, e.Approval.ID, text.Visible(e.Approval.Title))
					}); err != nil {
						return err
					}
				}
				return nil
			}
			var list []wire.Approval
			if everywhere {
				list, err = cl.ApprovalsOfAllNodes(cmd.Context(), j)
			} else {
				list, err = cl.Approvals(cmd.Context(), state, j)
			}
			if err != nil {
				return err
			}
			return c.print(list, func(w io.Writer) {
				rows := [][]string{{"ID", "JAIL", "TIER", "ASKED", "EXPIRES", "STATE", "WHAT"}}
				if everywhere {
					rows[0] = append(rows[0], "NODE")
				}
				for _, a := range list {
					row := []string{string(a.ID), string(a.Jail), a.Tier, ago(a.Created, time.Now()), in(a.Expires, time.Now()), a.State, text.Visible(a.Title)}
					if everywhere {
						row = append(row, a.Node)
					}
					rows = append(rows, row)
				}
				table(w, rows)
			})
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "pending (the default), answered, expired, withdrawn or all")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new requests")
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "pending requests of all nodes of the fleet, with their node")
	cmd.MarkFlagsMutuallyExclusive("all-nodes", "follow")
	cmd.MarkFlagsMutuallyExclusive("all-nodes", "state")
	return cmd
}

// in formats the time until t.
func in(t, now time.Time) string {
	if !t.After(now) {
		return "-"
	}
	return "in " + t.Sub(now).Round(time.Second).String()
}

func (c *command) approvalShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show an approval request in detail", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			a, err := cl.Approval(cmd.Context(), id.Approval(args[0]), 0)
			if err != nil {
				return err
			}
			return c.print(a, func(w io.Writer) { showApproval(w, a) })
		},
	}
}

// showApproval shows a request. The daemon has already escaped its text; it is escaped again in
// case the daemon is a foreign one.
func showApproval(w io.Writer, a wire.Approval) {
	rows := [][]string{
		{"id", string(a.ID)}, {"state", a.State}, {"tier", a.Tier}, {"who", text.Visible(a.Who)},
		{"why", text.Visible(a.Why)}, {"rule", text.Visible(a.Rule)},
	}
	for _, d := range a.Details {
		rows = append(rows, []string{"", text.Visible(d)})
	}
	rows = append(rows, []string{"expires", in(a.Expires, time.Now())})
	for _, scope := range slices.Sorted(maps.Keys(a.Writes)) {
		rows = append(rows, []string{"allow " + scope, "writes " + text.Visible(a.Writes[scope])})
	}
	if a.First != "" {
		rows = append(rows, []string{"allowed by", text.Visible(a.First) + "; one more approver is needed"})
	}
	if a.Phrase != "" && a.State == "pending" {
		rows = append(rows, []string{"to allow it without a second approver", "type: " + text.Visible(a.Phrase)})
	}
	if a.Answer != nil {
		rows = append(rows, []string{"answer", fmt.Sprintf("%s %s, by %s", a.Answer.Answer, a.Answer.Scope, text.Visible(a.Answer.By))})
	}
	if a.Outcome != "" {
		rows = append(rows, []string{"outcome", text.Visible(a.Outcome)})
	}
	table(w, rows)
	fmt.Fprintln(w)
	for line := range strings.Lines(a.What) {
		fmt.Fprintln(w, "  "+text.Visible(strings.TrimSuffix(line, "\n")))
	}
	if a.Context != "" {
		fmt.Fprintln(w)
		for line := range strings.Lines(a.Context) {
			fmt.Fprintln(w, "  "+text.Visible(strings.TrimSuffix(line, "\n")))
		}
	}
}

func (c *command) approvalCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "Cancel an approval request, so that the action is denied", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			_, err = cl.Withdraw(cmd.Context(), id.Approval(args[0]))
			return err
		},
	}
}

func (c *command) approvalNotices() *cobra.Command {
	var again []string
	cmd := &cobra.Command{
		Use: "notices", Short: "List notifications that could not be delivered", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			for _, nid := range again {
				if err := cl.Redeliver(cmd.Context(), nid); err != nil {
					return err
				}
			}
			list, err := cl.DeadNotices(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(list, func(w io.Writer) {
				rows := [][]string{{"ID", "APPROVAL", "CHANNEL", "KIND", "ATTEMPTS", "ERROR"}}
				for _, n := range list {
					rows = append(rows, []string{n.ID, string(n.Approval), text.Visible(n.Channel), n.Kind, fmt.Sprint(n.Attempts), text.Visible(n.Error)})
				}
				table(w, rows)
			})
		},
	}
	cmd.Flags().StringArrayVar(&again, "again", nil, "retry this one; may be repeated")
	return cmd
}

func (c *command) approve() *cobra.Command {
	var a wire.AnswerApproval
	cmd := &cobra.Command{
		Use: "approve ID", Short: "Approve a pending request", Args: cobra.ExactArgs(1),
		Long: `Approve a pending request, once or with a larger scope. For a larger scope, approval
show prints the rule that is written. Requests of high risk need a typed confirmation
phrase or a second approver.`,
		Example: `  glasshouse approve a-abc
  glasshouse approve a-abc --scope always
  glasshouse approve a-abc --instead 'git push origin topic'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			a.Answer = "allow"
			if a.Resource != "" {
				a.Answer = "modify"
			}
			return c.answer(cmd, id.Approval(args[0]), a)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&a.Scope, "scope", "", "once (the default), session or always")
	fs.StringVar(&a.Reason, "reason", "", "reason, shown to the agent")
	fs.StringVar(&a.Resource, "instead", "", "allow this resource instead")
	fs.StringVar(&a.Typed, "phrase", "", "confirmation phrase (default: from a prompt)")
	return cmd
}

func (c *command) deny() *cobra.Command {
	var a wire.AnswerApproval
	cmd := &cobra.Command{
		Use: "deny ID", Short: "Deny a pending request", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.Answer = "deny"
			return c.answer(cmd, id.Approval(args[0]), a)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&a.Scope, "scope", "", "once (the default), session or always")
	fs.StringVar(&a.Reason, "reason", "", "reason, shown to the agent")
	return cmd
}

func (c *command) answer(cmd *cobra.Command, aid id.Approval, a wire.AnswerApproval) error {
	cl, err := c.client(cmd.Context())
	if err != nil {
		return err
	}
	if a.Answer != "deny" && a.Typed == "" {
		r, err := cl.Approval(cmd.Context(), aid, 0)
		if err != nil {
			return err
		}
		if r.State == "pending" && r.Phrase != "" {
			showApproval(c.env.Stderr, r)
			fmt.Fprintf(c.env.Stderr, "\nTo allow it without a second approver, type its phrase; an empty line requires two approvers: ")
			line, err := bufio.NewReader(c.env.Stdin).ReadString('\n')
			if err != nil && err != io.EOF {
				return err
			}
			a.Typed = strings.TrimSpace(line)
		}
	}
	r, err := cl.Answer(cmd.Context(), aid, a)
	if err != nil {
		return err
	}
	became := ""
	if r.State != "pending" && r.Jail == "" && r.Question.Action == "install" {
		became, err = awaitInstall(cmd.Context(), cl, r.Question.Resource)
		if err != nil {
			return err
		}
	}
	return c.print(r, func(w io.Writer) {
		if r.State == "pending" {
			fmt.Fprintf(w, "%s needs one more approver\n", r.ID)
			return
		}
		fmt.Fprintf(w, "%s %s\n", r.ID, r.State)
		if became != "" {
			fmt.Fprintln(w, became)
		}
	})
}

// effectTimeout limits the wait for an answer about an installation to take effect.
const effectTimeout = time.Minute

// awaitInstall waits until the answer about a capability or a bundle takes effect, so that the
// next command sees it. It returns a line that describes the result.
func awaitInstall(ctx context.Context, cl *client.Client, what string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, effectTimeout, fault.Newf(fault.Timeout, "cli.Approve", what, "the answer is stored, but has not yet taken effect"))
	defer cancel()
	for {
		became, err := installResult(ctx, cl, what)
		if err != nil || became != "" {
			return became, err
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// installResult describes the result of an installation. It returns "" while the installation is
// in progress.
func installResult(ctx context.Context, cl *client.Client, what string) (string, error) {
	if name, ok := strings.CutPrefix(what, "bundle "); ok {
		all, err := cl.Bundles(ctx)
		name, version, _ := strings.Cut(name, "@")
		for _, b := range all {
			switch {
			case b.Name != name:
			case b.Next != nil && b.Next.State == "pending":
				return "", err
			case b.Version == version:
				return text.Visible(name+" "+version) + " is installed", err
			}
		}
		return text.Visible(name+" "+version) + " is not installed", err
	}
	cid, version, _ := strings.Cut(what, "@")
	c, err := cl.Capability(ctx, cid, version)
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return text.Visible(what) + " was removed in the meantime", nil
	case err != nil || c.State == "pending":
		return "", err
	}
	return text.Visible(what) + " is " + c.State, nil
}

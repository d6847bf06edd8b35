package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) session() *cobra.Command {
	cmd := &cobra.Command{
		Use: "session", Short: "Manage sessions (conversations with agents)", Args: cobra.NoArgs,
	}
	cmd.AddCommand(c.sessionOpen(), c.sessionList(), c.sessionShow(), c.sessionSend(), c.sessionMessages(), c.sessionEvents(), c.sessionClose())
	return cmd
}

func (c *command) sessionOpen() *cobra.Command {
	var o wire.OpenSession
	var budget []string
	var agent, jail string
	cmd := &cobra.Command{
		Use: "open [SESSION]", Short: "Open a session", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.ID = args[0]
			}
			var err error
			o.Budget, err = parseBudget(budget)
			if err != nil {
				return err
			}
			if agent != "" {
				o.Agent = &wire.RunAgent{Preset: agent}
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			if jail != "" {
				o.Jail, err = jailNamed(cmd.Context(), cl, jail)
				if err != nil {
					return err
				}
			}
			s, err := cl.OpenSession(cmd.Context(), o)
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) { fmt.Fprintln(w, text.Visible(s.ID)) })
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.Name, "name", "", "name of the session for its siblings")
	fs.StringVar(&o.Group, "group", "", "sibling group")
	fs.StringVar(&jail, "jail", "", "jail of all runs (default: one jail per run)")
	fs.StringVarP(&agent, "agent", "a", "", "default agent of runs")
	fs.StringSliceVar(&budget, "budget", nil, "limit DIMENSION=N for all runs together; may be repeated")
	return cmd
}

func (c *command) sessionList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List sessions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Sessions(cmd.Context()))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"SESSION", "NAME", "GROUP", "STATE", "JAIL", "SINCE"}}
				for _, s := range all {
					rows = append(rows, []string{text.Visible(s.ID), text.Visible(s.Name), text.Visible(s.Group), s.State, string(s.Jail), ago(s.Created, time.Now())})
				}
				table(w, rows)
			})
		},
	}
}

func (c *command) sessionShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SESSION", Short: "Show a session", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			s, err := cl.Session(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) {
				table(w, [][]string{{"id", text.Visible(s.ID)}, {"name", text.Visible(s.Name)}, {"group", text.Visible(s.Group)}, {"state", s.State}, {"jail", string(s.Jail)}})
			})
		},
	}
}

func (c *command) sessionSend() *cobra.Command {
	var m wire.SendMessage
	cmd := &cobra.Command{
		Use: "send SESSION TEXT…", Short: "Send a message to the agent of a session", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.Session, m.Text = args[0], strings.Join(args[1:], " ")
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			sent, err := cl.Send(cmd.Context(), m)
			if err != nil {
				return err
			}
			return c.print(sent, func(w io.Writer) { fmt.Fprintln(w, sent.ID) })
		},
	}
	cmd.Flags().StringSliceVar(&m.Labels, "label", nil, "data classification: redacted, pii or secret")
	return cmd
}

func (c *command) sessionMessages() *cobra.Command {
	var direction string
	cmd := &cobra.Command{
		Use: "messages SESSION", Short: "Show the messages of a session", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Messages(cmd.Context(), args[0], direction))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				for _, m := range all {
					fmt.Fprintf(w, "%s %-3s %s: %s\n", m.At.Local().Format("15:04:05"), m.Direction, text.Visible(m.From), text.Visible(m.Text))
				}
			})
		},
	}
	cmd.Flags().StringVar(&direction, "direction", "", "in: only messages to the agent; out: only from it")
	return cmd
}

func (c *command) sessionEvents() *cobra.Command {
	var after int64
	cmd := &cobra.Command{
		Use: "events SESSION", Short: "Follow the events of a session", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			for e, err := range cl.RunEvents(cmd.Context(), args[0], after) {
				if err != nil {
					return err
				}
				if err := c.print(e, func(w io.Writer) {
					fmt.Fprintf(w, "%6d %s %-16s %s %s\n", e.Seq, e.At.Local().Format("15:04:05"), text.Visible(e.Kind), runOrNone(e.Run), text.Visible(text.Columns(string(e.Body), 80)))
				}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&after, "after", 0, "only messages after this number")
	return cmd
}

func runOrNone(r id.Run) string {
	if r == "" {
		return "-"
	}
	return string(r)
}

func (c *command) sessionClose() *cobra.Command {
	return &cobra.Command{
		Use: "close SESSION", Short: "Close a session that has no active run", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.CloseSession(cmd.Context(), args[0])
		},
	}
}

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) connectors() *cobra.Command {
	cmd := &cobra.Command{
		Use: "connector", Short: "Manage inbound and outbound webhooks of sessions", Args: cobra.NoArgs,
		Long: `Connectors link sessions to other systems: inbound webhooks, outbound webhooks for
messages of agents, and relays between sessions. They are defined in the configuration
of the daemon.`,
	}
	cmd.AddCommand(c.connectorList(), c.connectorDeliveries(), c.connectorRedeliver())
	return cmd
}

func (c *command) connectorList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List connectors and their pending deliveries", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.Connectors(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"CONNECTOR", "KIND", "ADDRESS", "FROM", "TO", "PENDING", "DEAD"}}
				for _, k := range all {
					rows = append(rows, []string{k.Name, k.Kind, text.Visible(k.Address), text.Visible(strings.Join(k.Sessions, " ")), text.Visible(notifiedSession(k)), fmt.Sprint(k.Pending), fmt.Sprint(k.Dead)})
				}
				table(w, rows)
			})
		},
	}
}

// notifiedSession names the session that receives a connector's messages.
func notifiedSession(k wire.Connector) string {
	switch {
	case k.Kind == "post":
		return "-"
	case k.Session == "":
		return "a new session each"
	}
	return k.Session
}

func (c *command) connectorDeliveries() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use: "deliveries CONNECTOR", Short: "List deliveries of a connector", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Deliveries(cmd.Context(), args[0], state))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"DELIVERY", "SESSION", "STATE", "ATTEMPTS", "NEXT", "ERROR"}}
				for _, d := range all {
					next := "-"
					if d.Next != nil {
						next = in(*d.Next, time.Now())
					}
					rows = append(rows, []string{text.Visible(d.ID), text.Visible(d.Session), d.State, fmt.Sprint(d.Attempts), next, text.Visible(d.Error)})
				}
				table(w, rows)
			})
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "pending, delivered or dead (default: all)")
	return cmd
}

func (c *command) connectorRedeliver() *cobra.Command {
	var all string
	cmd := &cobra.Command{
		Use: "redeliver [DELIVERY…]", Short: "Retry deliveries that failed too often", Args: cobra.ArbitraryArgs,
		Example: `  glasshouse connector redeliver m-5f3k2x9qpa7b.ops
  glasshouse connector redeliver --all ops`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (all == "") == (len(args) == 0) {
				return usagef("give deliveries, or a connector with --all")
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			if all != "" {
				dead, err := client.Collect(cl.Deliveries(cmd.Context(), all, "dead"))
				if err != nil {
					return err
				}
				for _, d := range dead {
					args = append(args, d.ID)
				}
			}
			for _, d := range args {
				if _, err := cl.RedeliverMessage(cmd.Context(), d); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&all, "all", "", "retry all deliveries of this connector")
	return cmd
}

package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"glasshouse/api/client"
)

func (c *command) node() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Daemons that share the database of runs"}
	cmd.AddCommand(&cobra.Command{
		Use: "ls", Short: "List the daemons that share the database of runs", Args: cobra.NoArgs,
		Long: `List the daemons that share the database of runs (gateway.db).

A daemon executes the runs of its sessions while it has a lease, which it renews every
five seconds. A daemon that is lost did not renew it in time: the other daemons have
its sessions. The daemon that answers is marked with *.`,
		Example: `  glasshouse node ls
  glasshouse node ls -o json | jq -r '.[] | select(.state == "lost").name'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Nodes(cmd.Context()))
			if err != nil {
				return err
			}
			if len(all) == 0 {
				fmt.Fprintln(c.env.Stderr, "glasshouse: this daemon shares its database of runs with no other; gateway.db in the configuration sets a database that several daemons use")
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"", "ID", "NAME", "STATE", "VERSION", "LEASE", "SESSIONS", "RUNS"}}
				for _, n := range all {
					self, lease := "", "expired"
					if n.Self {
						self = "*"
					}
					if n.LeaseMS > 0 {
						lease = (time.Duration(n.LeaseMS) * time.Millisecond).Round(time.Second).String()
					}
					rows = append(rows, []string{self, n.ID, n.Name, n.State, n.Version, lease, strconv.Itoa(n.Sessions), strconv.Itoa(n.Runs)})
				}
				table(w, rows)
			})
		},
	})
	return cmd
}

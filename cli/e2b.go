package cli

import (
	"fmt"
	"io"

	"glasshouse/api/wire"

	"github.com/spf13/cobra"
)

func (c *command) e2b() *cobra.Command {
	var ask wire.CreateE2BKey
	cmd := &cobra.Command{
		Use: "e2b", Short: "Print what points clients of E2B here", Args: cobra.NoArgs,
		Long: `Print what points clients of E2B here: lines for a shell, with a key that is made
for it. A project that uses an E2B SDK then has its sandboxes made by this daemon.

Each key has sandboxes of its own, and sees no others. It opens nothing else of
the daemon. glasshouse token ls lists keys, glasshouse token rm revokes one. The
daemon must serve such clients: e2b.listen in its configuration.`,
		Example: `  eval "$(glasshouse e2b)"                      for this shell
  glasshouse e2b --name ci >>.env               for a project`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.dial() // a daemon that a command starts for itself serves nobody else
			if err != nil {
				return err
			}
			k, err := cl.CreateE2BKey(cmd.Context(), ask)
			if err != nil {
				return err
			}
			return c.print(k, func(w io.Writer) {
				fmt.Fprintf(w, "export E2B_API_KEY=%s\nexport E2B_API_URL=%s\nexport E2B_SANDBOX_URL=%s\nexport E2B_VOLUME_API_URL=%s\n", k.Key, k.URL, k.URL, k.URL)
			})
		},
	}
	cmd.Flags().StringVar(&ask.Name, "name", "", "whose key it is (default: yours)")
	return cmd
}

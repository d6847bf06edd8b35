package cli

import (
	"fmt"
	"io"
	"time"

	"glasshouse/capability/market"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) market() *cobra.Command {
	cmd := &cobra.Command{
		Use: "market", Short: "Search and publish markets of bundles", Args: cobra.NoArgs,
		Long: `A market is a directory of packed bundles with a signed index, on this host or on a
web server.`,
	}
	cmd.AddCommand(c.marketIndex(), c.marketSearch(), c.marketOutdated(), c.marketInstall())
	return cmd
}

func (c *command) marketIndex() *cobra.Command {
	var key, password string
	var good time.Duration
	cmd := &cobra.Command{
		Use: "index DIR", Short: "Write and sign the index of a directory of bundles", Args: cobra.ExactArgs(1),
		Long: `Write a signed index.json into a directory of packed bundles, with their metadata,
declared permissions and digests. A bundle that cannot be installed is an error. The
index expires, so that an attacker cannot serve an old one; run the command again
before it does.`,
		Example: `  glasshouse market index /srv/bundles --key market.key`,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := c.secretKey(key, password)
			if err != nil {
				return err
			}
			x, err := market.Publish(args[0], k, good)
			if err != nil {
				return err
			}
			return c.print(x, func(w io.Writer) {
				for _, o := range x.Offers {
					fmt.Fprintf(w, "%s %s by %s: %s\n", text.Visible(o.Name), text.Visible(o.Version), text.Visible(o.Publisher), text.Visible(o.File))
				}
				fmt.Fprintf(w, "%d offers, number %d, good until %s, signed by key %s\n", len(x.Offers), x.Serial, x.Expires, x.Key.ID())
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&key, "key", "market.key", "secret key file")
	fs.StringVar(&password, "password-file", "", "file with the key's password (default: from a prompt)")
	durationVar(fs, &good, "expires", 30*24*time.Hour, "validity of the index")
	return cmd
}

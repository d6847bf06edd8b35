package cli

import (
	"fmt"
	"io"
	"time"

	"glasshouse/internal/text"
	"glasshouse/market"

	"github.com/spf13/cobra"
)

func (c *command) market() *cobra.Command {
	cmd := &cobra.Command{
		Use: "market", Short: "Bundles that others offer", Args: cobra.NoArgs,
		Long: `A market is a directory of packed bundles with a signed index, here or behind any
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
		Long: `Write index.json into a directory of packed bundles: what they are, what they say
they need, and their digests, signed. Bundles that nobody could install are an error.
The index is good until it expires: run this again before, so that nobody can be
shown an old one.`,
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
	fs.StringVar(&key, "key", "market.key", "the secret key")
	fs.StringVar(&password, "password-file", "", "the file with the password of the key; else it is asked for")
	fs.DurationVar(&good, "expires", 30*24*time.Hour, "how long the index is good")
	return cmd
}

package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) bundleInstall() *cobra.Command {
	return &cobra.Command{
		Use: "install FILE", Short: "Install a bundle after approval of its permissions", Args: cobra.ExactArgs(1),
		Example: `  glasshouse bundle trust acme standard acme.pub
  glasshouse bundle install local-places-1.2.0.tar.gz`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			b, err := cl.InstallBundle(cmd.Context(), filepath.Base(args[0]), f)
			if err != nil {
				return err
			}
			return c.print(b, func(w io.Writer) { showInstall(w, b) })
		},
	}
}

// showInstall prints the state of an installation.
func showInstall(w io.Writer, b wire.Bundle) {
	switch n := b.Next; {
	case n == nil:
		fmt.Fprintf(w, "%s %s is installed\n", text.Visible(b.Name), text.Visible(b.Version))
	case n.State == "pending":
		fmt.Fprintf(w, "%s %s is pending approval\n  to see what it may do: glasshouse approval show %s\n  to allow it:           glasshouse approve %s\n",
			text.Visible(b.Name), text.Visible(n.Version), n.Approval, n.Approval)
	default:
		fmt.Fprintf(w, "%s %s is refused: %s\n", text.Visible(b.Name), text.Visible(n.Version), text.Visible(n.Why))
	}
}

func (c *command) bundleList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List installed bundles and pending installations", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.Bundles(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"BUNDLE", "VERSION", "PUBLISHER", "TIER", "STATE", "CAPABILITIES", "SKILL", "NEXT"}}
				for _, b := range all {
					next := ""
					if n := b.Next; n != nil {
						next = strings.TrimSpace(n.Version + " " + n.State + " " + string(n.Approval))
					}
					rows = append(rows, []string{text.Visible(b.Name), text.Visible(b.Version), text.Visible(b.Publisher), b.Tier, stateOfBundle(b), text.Visible(strings.Join(b.Capabilities, " ")), text.Visible(b.Skill), text.Visible(next)})
				}
				table(w, rows)
				for _, b := range all {
					if b.Barred != "" {
						fmt.Fprintf(w, "%s is disabled: %s\n  → %s\n", text.Visible(b.Name), text.Visible(b.Barred), text.Visible(b.Remedy))
					}
				}
			})
		},
	}
}

// stateOfBundle returns the state of a bundle as one word.
func stateOfBundle(b wire.Bundle) string {
	switch {
	case b.Version == "":
		return "-"
	case b.Barred != "":
		return "not called"
	}
	return "installed"
}

func (c *command) bundleRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Remove a bundle with its capabilities and its skill", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RemoveBundle(cmd.Context(), args[0])
		},
	}
}

func (c *command) bundleTrust() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trust PUBLISHER TIER KEY", Short: "Trust the bundles of a publisher, up to a tier", Args: cobra.ExactArgs(3),
		Long: `Trust bundles that are signed with a key (text or file), up to a tier: informational,
read-only, standard or elevated.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := publicKey(args[2])
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.TrustPublisher(cmd.Context(), args[0], wire.AddPublisher{Tier: args[1], Key: key.String()})
		},
	}
	return cmd
}

func (c *command) bundlePublishers() *cobra.Command {
	return &cobra.Command{
		Use: "publishers", Short: "List trusted publishers", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.Publishers(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"PUBLISHER", "TIER", "KEY", "STATE", "REASON"}}
				for _, p := range all {
					for _, k := range p.Keys {
						state := "good"
						switch {
						case k.Revoked != nil:
							state = "revoked"
						case k.Retired != nil:
							state = "retired"
						}
						rows = append(rows, []string{text.Visible(p.Name), p.Tier, k.ID, state, text.Visible(k.Reason)})
					}
				}
				table(w, rows)
			})
		},
	}
}

func (c *command) bundleRotate() *cobra.Command {
	return &cobra.Command{
		Use: "rotate OLD NEW", Short: "Replace the key of a publisher", Args: cobra.ExactArgs(2),
		Long: `Replace the key (text or file) of a publisher. Existing signatures of the old key stay
valid; later ones are rejected. If the old key was stolen, revoke it instead with
glasshouse bundle distrust --key.`,
		Example: `  glasshouse bundle rotate acme-2025.pub acme-2026.pub`,
		RunE: func(cmd *cobra.Command, args []string) error {
			old, err := publicKey(args[0])
			if err != nil {
				return err
			}
			key, err := publicKey(args[1])
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RotateKey(cmd.Context(), wire.RotateKey{Old: old.String(), Key: key.String()})
		},
	}
}

func (c *command) bundleDistrust() *cobra.Command {
	var key, digest, reason string
	cmd := &cobra.Command{
		Use: "distrust [PUBLISHER]", Short: "Revoke trust in a publisher, a key or a bundle digest", Args: cobra.MaximumNArgs(1),
		Long: `Revoke trust in a publisher, in a key, or in a bundle with a given digest. Installed
bundles stay but can no longer be called; glasshouse bundle ls marks them.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			given := 0
			for _, set := range []bool{len(args) == 1, key != "", digest != ""} {
				if set {
					given++
				}
			}
			if given != 1 {
				return usagef("either a publisher, or --key, or --digest")
			}
			if key != "" {
				k, err := publicKey(key)
				if err != nil {
					return err
				}
				key = k.String()
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return cl.RemovePublisher(cmd.Context(), args[0])
			}
			return cl.RevokeTrust(cmd.Context(), wire.RevokeTrust{Key: key, Digest: digest, Reason: reason})
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "public key (text or file)")
	cmd.Flags().StringVar(&digest, "digest", "", "digest of a bundle")
	cmd.Flags().StringVar(&reason, "reason", "", "reason")
	return cmd
}

func (c *command) marketSearch() *cobra.Command {
	return &cobra.Command{
		Use: "search [WORD...]", Short: "Search the bundles in markets", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.SearchMarket(cmd.Context(), strings.Join(args, " "))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) { offers(w, all) })
		},
	}
}

func offers(w io.Writer, all []wire.Offer) {
	rows := [][]string{{"BUNDLE", "VERSION", "INSTALLED", "PUBLISHER", "TIER", "MARKET", "WHAT"}}
	for _, o := range all {
		rows = append(rows, []string{text.Visible(o.Name), text.Visible(o.Version), text.Visible(o.Installed), text.Visible(o.Publisher), o.Tier, text.Visible(o.Market), text.Visible(o.Description)})
	}
	table(w, rows)
}

func (c *command) marketOutdated() *cobra.Command {
	return &cobra.Command{
		Use: "outdated", Short: "List installed bundles that have a newer version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.OutdatedBundles(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) { offers(w, all) })
		},
	}
}

func (c *command) marketInstall() *cobra.Command {
	return &cobra.Command{
		Use: "install NAME[@VERSION]", Short: "Install a bundle from a market after approval of its permissions", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			name, version := versioned(args[0])
			b, err := cl.InstallOffer(cmd.Context(), wire.MarketInstall{Name: name, Version: version})
			if err != nil {
				return err
			}
			return c.print(b, func(w io.Writer) { showInstall(w, b) })
		},
	}
}

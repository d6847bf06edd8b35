package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func (c *command) secret() *cobra.Command {
	cmd := &cobra.Command{
		Use: "secret", Short: "Manage secrets", Args: cobra.NoArgs,
		Long: `A secret is stored encrypted by the daemon, or in an external provider. A grant gives a
jail access to it in one of two ways: as a file in /run/secrets, which is in memory and
in no snapshot; or by injection into egress requests, so that the value never enters
the jail.`,
	}
	cmd.AddCommand(c.secretSet(), c.secretList(), c.secretRemove(), c.secretGrant(), c.secretRevoke(), c.secretRotate())
	return cmd
}

func (c *command) secretSet() *cobra.Command {
	var file, reference string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Store a secret, read from standard input", Args: cobra.ExactArgs(1),
		Long: `Store a secret. The value is read from standard input (without echo on a terminal) or
from a file; one line break at its end is removed. With --from, the value stays in an
external provider and is fetched for each use.`,
		Example: `  glasshouse secret set API_KEY < key.txt
  glasshouse secret set DB_PASSWORD --from vault:kv/data/db#password`,
		RunE: func(cmd *cobra.Command, args []string) error {
			put := wire.PutSecret{Reference: reference}
			if reference == "" {
				value, err := c.readSecret(args[0], file)
				if err != nil {
					return err
				}
				if text := string(value); utf8.Valid(value) {
					put.Value = &text
				} else {
					text = base64.StdEncoding.EncodeToString(value)
					put.Base64 = &text
				}
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.PutSecret(cmd.Context(), args[0], put)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "read the value from this file")
	cmd.Flags().StringVar(&reference, "from", "", "source: env:NAME, file:PATH, vault:MOUNT/data/PATH#KEY")
	return cmd
}

// readSecret reads a value, but never from an argument: all users of a host can read those
// (proc_pid_cmdline(5)).
func (c *command) readSecret(name, file string) ([]byte, error) {
	var value []byte
	var err error
	in, ok := c.env.Stdin.(*os.File)
	switch {
	case file != "":
		value, err = os.ReadFile(file)
	case ok && term.IsTerminal(int(in.Fd())):
		fmt.Fprintf(c.env.Stderr, "value of %s: ", name)
		value, err = term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(c.env.Stderr)
	default:
		value, err = io.ReadAll(io.LimitReader(c.env.Stdin, 1<<20))
	}
	return []byte(strings.TrimSuffix(strings.TrimSuffix(string(value), "\n"), "\r")), err
}

func (c *command) secretList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List secrets and their grants", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			list, err := cl.Secrets(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(list, func(w io.Writer) {
				rows := [][]string{{"NAME", "PROVIDER", "USED", "GRANT", "TO", "AS"}}
				for _, s := range list {
					used := "never"
					if s.Used != nil {
						used = ago(*s.Used, time.Now())
					}
					row := []string{s.Name, text.Visible(strings.TrimSuffix(s.Provider+":"+s.Path, ":")), used, "", "", ""}
					if s.Owner != "" {
						row[4] = "its owner's sandboxes"
					}
					if len(s.Grants) == 0 {
						rows = append(rows, row)
					}
					for _, g := range s.Grants {
						rows = append(rows, append(row[:3:3], string(g.ID), granteeText(g), strings.TrimSpace(g.Delivery+" "+strings.Join(g.Hosts, " "))))
						row = []string{"", "", "", "", "", ""}
					}
				}
				table(w, rows)
			})
		},
	}
}

func granteeText(g wire.Grant) string {
	var parts []string
	for _, p := range [][2]string{{"jail", string(g.Jail)}, {"session", g.Session}, {"run", g.Run}, {"capability", g.Capability}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+text.Visible(p[1]))
		}
	}
	return strings.Join(parts, ", ")
}

func (c *command) secretRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Remove a secret and all its grants", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.DeleteSecret(cmd.Context(), args[0])
		},
	}
}

func (c *command) secretGrant() *cobra.Command {
	var g wire.GrantSecret
	var until time.Duration
	var capability, models string
	grant := func(cmd *cobra.Command, cl *client.Client, name string) error {
		g.Delivery = "file"
		if len(g.Hosts) > 0 {
			g.Delivery = "inject"
		}
		if until > 0 {
			t := time.Now().Add(until).UTC()
			g.Expires = &t
		}
		made, err := cl.GrantSecret(cmd.Context(), name, g)
		if err != nil {
			return err
		}
		return c.print(made, func(w io.Writer) { fmt.Fprintln(w, made.ID) })
	}
	cmd := &cobra.Command{
		Use: "grant NAME [JAIL]", Short: "Grant a secret to a jail or to the model gateway, effective immediately", Args: cobra.RangeArgs(1, 2),
		Long: `Grant a jail a secret: as the file /run/secrets/NAME, which is in memory and readable
only by the user of the jail, or with --inject in egress requests to the given hosts,
where an egress rule defines the form.

With --models, the secret is the API key of a vendor of language models. The model gateway
adds it to the requests of agents, outside their jails, and agents can use the models of
the vendor: anthropic (claude-*), openai (gpt-* and others) or gemini (gemini-*). This
needs no configuration. If gateway.models.providers is configured, it applies instead.`,
		Example: `  glasshouse secret grant DB_PASSWORD j-abc
  glasshouse secret grant API_KEY j-abc --inject api.example.com
  glasshouse secret grant ANTHROPIC_API_KEY --models anthropic`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if models == "" {
				if len(args) < 2 {
					return usagef("a JAIL or --models is missing")
				}
				return c.withJail(cmd, args[1], func(cl *client.Client, j id.Jail) error {
					g.Jail, g.Capability = j, capability
					return grant(cmd, cl, args[0])
				})
			}
			if len(args) > 1 || capability != "" || g.Branches || len(g.Hosts) > 0 {
				return usagef("--models excludes a JAIL, --inject, --branches and --capability")
			}
			v := daemon.ModelVendors[slices.Index(vendors.words, models)] // checkValues has checked the name
			g.Capability, g.Hosts = v.Scope().Capability, []string{v.Host()}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return grant(cmd, cl, args[0])
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&g.Hosts, "inject", nil, "inject into requests to this host; may be repeated")
	fs.BoolVar(&g.Branches, "branches", false, "also grant it to branches of the jail")
	durationVar(fs, &until, "for", 0, "lifetime of the grant, such as 1h (default: unlimited)")
	fs.StringVar(&capability, "capability", "", "only for this capability")
	fs.StringVar(&models, "models", "", "the API key of a vendor of language models: anthropic, openai, gemini")
	return cmd
}

func (c *command) secretRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke GRANT", Short: "Revoke a grant, effective immediately", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RevokeGrant(cmd.Context(), id.Grant(args[0]))
		},
	}
}

func (c *command) secretRotate() *cobra.Command {
	return &cobra.Command{
		Use: "rotate", Short: "Encrypt all secrets with a new key", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RotateSecrets(cmd.Context())
		},
	}
}

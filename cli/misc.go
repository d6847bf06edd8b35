package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) backends() *cobra.Command {
	return &cobra.Command{
		Use: "backends", Short: "List the isolation backends of this host", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			bs, err := client.Collect(cl.Backends(cmd.Context()))
			if err != nil {
				return err
			}
			return c.print(bs, func(w io.Writer) {
				for _, b := range bs {
					if b.Usable {
						fmt.Fprintf(w, "ok  %s %s\n", b.Name, b.Runtime)
					} else {
						fmt.Fprintf(w, "no  %s %s: %s\n", b.Name, b.Runtime, text.Visible(b.Reason))
					}
					for _, what := range slices.Sorted(maps.Keys(b.Lacks)) {
						fmt.Fprintf(w, "      without %s: %s\n", what, text.Visible(b.Lacks[what]))
					}
				}
			})
		},
	}
}

func (c *command) health() *cobra.Command {
	return &cobra.Command{
		Use: "health", Short: "Check whether the daemon is ready", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.dial()
			if err != nil {
				return err
			}
			if err := cl.Ready(cmd.Context()); err != nil {
				return err
			}
			v, err := cl.Version(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "ok, version %s, started %s\n", v.Version, ago(v.StartedAt, time.Now()))
			})
		},
	}
}

// versions is the output of the command version.
type versions struct {
	Client   string        `json:"client"`
	Go       string        `json:"go"`
	Platform string        `json:"platform"`
	Daemon   *wire.Version `json:"daemon,omitempty"`
	Reason   string        `json:"reason,omitempty"`   // why there is no daemon
	Backends []string      `json:"backends,omitempty"` // backends that can run jails
}

func (c *command) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the versions of the client, the daemon, the kernel and the backends", Args: cobra.NoArgs,
		Long: `Print the version of this program and, if a daemon is running, the daemon's version,
the kernel of its host and the backends that can run jails there.

The command does not start a daemon. --version prints only the version of this program.`,
		Example: `  glasshouse version
  glasshouse version --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.dial()
			if err != nil {
				return err
			}
			v := versions{Client: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			d, err := cl.Version(cmd.Context())
			switch {
			case errors.Is(err, fault.Unavailable):
				v.Reason = err.Error()
			case err != nil:
				return err
			default:
				v.Daemon = &d
				bs, err := client.Collect(cl.Backends(cmd.Context()))
				if err != nil {
					return err
				}
				for _, b := range bs {
					if b.Usable {
						v.Backends = append(v.Backends, strings.TrimSpace(b.Name+" "+b.Runtime))
					}
				}
			}
			return c.print(v, func(w io.Writer) {
				rows := [][]string{{"client", v.Client + ", " + v.Go + ", " + v.Platform}}
				if v.Daemon == nil {
					rows = append(rows, []string{"daemon", "not reachable: " + v.Reason})
				} else {
					rows = append(rows,
						[]string{"daemon", d.Version + ", " + d.Go + ", started " + ago(d.StartedAt, time.Now())},
						[]string{"kernel", d.Kernel},
						[]string{"backends", cmp.Or(strings.Join(v.Backends, ", "), "none is usable; see glasshouse doctor")})
				}
				table(w, rows)
			})
		},
	}
}

func (c *command) token() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Create, list, limit and revoke bearer tokens"}
	var role string
	var ttl time.Duration
	var limits quotaFlags
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a token and print its secret once", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			quota, err := limits.quota(cmd)
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			req := wire.CreateToken{Name: args[0], Role: role, Quota: quota}
			if ttl > 0 {
				t := time.Now().Add(ttl)
				req.ExpiresAt = &t
			}
			tok, err := cl.CreateToken(cmd.Context(), req)
			if err != nil {
				return err
			}
			if tok.ExpiresAt == nil {
				fmt.Fprintf(c.env.Stderr, "glasshouse: this token does not expire; use --ttl to limit its lifetime, or revoke it with: glasshouse token rm %s\n", tok.ID)
			} else if !cmd.Flags().Changed("ttl") {
				fmt.Fprintf(c.env.Stderr, "glasshouse: this token expires on %s; --ttl sets another lifetime, and 0 is unlimited\n", tok.ExpiresAt.Local().Format(time.DateOnly))
			}
			return c.print(tok, func(w io.Writer) { fmt.Fprintln(w, tok.Token) })
		},
	}
	create.Flags().StringVar(&role, "role", "operator", "admin, operator, viewer or agent")
	const lifetime = 90 * 24 * time.Hour
	durationVar(create.Flags(), &ttl, "ttl", lifetime, "lifetime, such as 12h or 30d; 0 is unlimited")
	limits.add(create)

	list := &cobra.Command{
		Use: "ls", Short: "List tokens, without their secrets", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Tokens(cmd.Context()))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"ID", "NAME", "ROLE", "CREATED", "EXPIRES", "JAILS", "MEMORY", "DISK"}}
				for _, t := range all {
					expires := "never"
					if t.ExpiresAt != nil {
						expires = t.ExpiresAt.Local().Format(time.DateTime)
						if time.Now().After(*t.ExpiresAt) {
							expires += ", expired"
						}
					}
					rows = append(rows, append([]string{string(t.ID), t.Name, t.Role, ago(t.CreatedAt, time.Now()), expires}, quotaCells(t)...))
				}
				table(w, rows)
			})
		},
	}
	remove := &cobra.Command{
		Use: "rm ID", Aliases: []string{"revoke"}, Short: "Revoke a token", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RevokeToken(cmd.Context(), id.Token(args[0]))
		},
	}
	cmd.AddCommand(create, list, c.tokenQuota(), remove)
	return cmd
}

func (c *command) docs() *cobra.Command {
	cmd := &cobra.Command{
		Use: "docs", Short: "Print the manual as Markdown", Hidden: true,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return manual(c.env.Stdout, hostIndependentRoot()) },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "openapi", Short: "Print the OpenAPI document of the API",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				document, err := daemon.OpenAPI(version)
				if err != nil {
					return err
				}
				_, err = c.env.Stdout.Write(document)
				return err
			},
		},
		&cobra.Command{
			Use: "man DIRECTORY", Short: "Write man pages into a directory",
			Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				when, err := manDate(c.env.Getenv("SOURCE_DATE_EPOCH"))
				if err != nil {
					return err
				}
				return manPages(args[0], hostIndependentRoot(), when)
			},
		},
	)
	return cmd
}

// hostIndependentRoot returns the command tree without host or user settings, so that the
// generated manual is the same everywhere.
func hostIndependentRoot() *cobra.Command {
	c := &command{env: Env{Getenv: func(string) string { return "" }}}
	return c.root()
}

// manual writes the help of every command, and the common options once.
func manual(w io.Writer, root *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# The glasshouse command\n\nMade from the commands' own help by `make docs`.\n\n%s\n", root.Long)
	fmt.Fprintf(&b, "\nEvery command has these options:\n\n```\n%s```\n\n", root.PersistentFlags().FlagUsages())
	commands := leaves(root)
	for _, cmd := range commands {
		fmt.Fprintf(&b, "- [%s](#%s): %s\n", cmd.CommandPath(), strings.ReplaceAll(cmd.CommandPath(), " ", "-"), cmd.Short)
	}
	for _, cmd := range commands {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```\n%s\n", cmd.CommandPath(), cmp.Or(cmd.Long, cmd.Short+"."), cmd.UseLine())
		if cmd.Example != "" {
			fmt.Fprintf(&b, "\n%s\n", cmd.Example)
		}
		if flags := cmd.LocalNonPersistentFlags().FlagUsages(); flags != "" {
			fmt.Fprintf(&b, "\n%s", flags)
		}
		b.WriteString("```\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// leaves returns the runnable commands, in the order of their names.
func leaves(cmd *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, sub := range cmd.Commands() {
		switch {
		case sub.Hidden || sub.Name() == "help" || sub.Name() == "completion":
		case sub.HasSubCommands():
			if _, group := sub.Annotations[isGroup]; sub.Runnable() && !group {
				all = append(all, sub)
			}
			all = append(all, leaves(sub)...)
		default:
			all = append(all, sub)
		}
	}
	return all
}

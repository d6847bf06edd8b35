package cli

import (
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"

	"github.com/spf13/cobra"
)

func (c *command) ui() *cobra.Command {
	var show bool
	var ask wire.CreateLoginLink
	cmd := &cobra.Command{
		Use: "ui", Short: "Print a login link for the web UI", Args: cobra.NoArgs,
		Long: `Print a login link for the web UI.

The link is valid once, for ten minutes. The browser stays logged in until the user
logs out or for seven days without use. If the configuration sets a public address
(approvals.links), a second address is printed; using either of them consumes the
link.`,
		Example: `  glasshouse ui --open                          # in this machine's browser
  glasshouse ui --role operator --label phone   # for a phone that decides on approvals`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.dial() // a daemon that the CLI starts has no address for browsers
			if err != nil {
				return err
			}
			l, err := cl.CreateLoginLink(cmd.Context(), ask)
			if err != nil {
				return err
			}
			if show {
				return c.browse(l.URLs[0])
			}
			return c.print(l, func(w io.Writer) {
				for _, u := range l.URLs {
					fmt.Fprintln(w, u)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&show, "open", false, "open the link in a browser")
	cmd.Flags().StringVar(&ask.Role, "role", "", "role: admin, operator or viewer (default: yours)")
	cmd.Flags().StringVar(&ask.Label, "label", "", "owner of the login (default: you)")

	list := &cobra.Command{
		Use: "ls", Short: "List browsers that are logged in", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Logins(cmd.Context()))
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"ID", "NAME", "ROLE", "SINCE", "USED"}}
				for _, l := range all {
					rows = append(rows, []string{string(l.ID), l.Name, l.Role, ago(l.CreatedAt, time.Now()), ago(l.UsedAt, time.Now())})
				}
				table(w, rows)
			})
		},
	}
	remove := &cobra.Command{
		Use: "rm ID", Short: "Log a browser out", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.EndLogin(cmd.Context(), id.Login(args[0]))
		},
	}
	cmd.AddCommand(list, remove)
	return cmd
}

// browse opens a link in a browser. A command line is visible to every user of the machine, so
// browse does not put the code there. It passes a file of this user that redirects to the link.
func (c *command) browse(link string) error {
	opener, err := exec.LookPath("xdg-open")
	if err != nil {
		return &fault.Error{Op: "ui", Kind: fault.Unsupported, Err: errors.New("xdg-open, which opens browsers, is not installed"), Remedy: "glasshouse ui prints the link"}
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the cache directory: %w", err)
	}
	page := filepath.Join(dir, "glasshouse", "ui.html")
	if err := os.MkdirAll(filepath.Dir(page), 0o700); err != nil {
		return fmt.Errorf("create the directory of the login page: %w", err)
	}
	text := `<!doctype html><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0;url=` + html.EscapeString(link) + `">`
	if err := atomicfile.Write(page, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the login page: %w", err)
	}
	cmd := exec.Command(opener, page)
	cmd.Stderr = c.env.Stderr
	return cmd.Run()
}

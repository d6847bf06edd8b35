package cli

import (
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) files() *cobra.Command {
	cmd := &cobra.Command{
		Use: "files", Short: "List, create, move, remove and watch files of a jail",
		Long: "Work on the files of a running or stopped jail. Paths are JAIL:PATH, absolute in the jail.\nTo copy files in and out, use glasshouse cp.",
	}
	cmd.AddCommand(c.filesList(), c.filesStat(), c.filesMkdir(), c.filesRemove(), c.filesMove(), c.filesWatch())
	return cmd
}

// onFile returns a subcommand that operates on one file of one jail.
func (c *command) onFile(use, short string, f func(cmd *cobra.Command, cl *client.Client, at jailPath) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJailPath(cmd, args[0], func(cl *client.Client, at jailPath) error { return f(cmd, cl, at) })
		},
	}
}

func (c *command) filesList() *cobra.Command {
	return c.onFile("ls JAIL:PATH", "List a directory", func(cmd *cobra.Command, cl *client.Client, at jailPath) error {
		all, err := client.Collect(cl.Files(cmd.Context(), at.jail, at.path))
		if err != nil {
			return err
		}
		return c.print(all, func(w io.Writer) {
			var rows [][]string
			for _, f := range all {
				rows = append(rows, fileRow(f))
			}
			table(w, rows)
		})
	})
}

func fileRow(f wire.File) []string {
	name := text.Visible(f.Name)
	if f.Target != "" {
		name += " -> " + text.Visible(f.Target)
	}
	return []string{f.Type, f.Mode, fmt.Sprintf("%d:%d", f.UID, f.GID), strconv.FormatInt(f.Size, 10), f.MTime.Local().Format(time.DateTime), name}
}

func (c *command) filesStat() *cobra.Command {
	return c.onFile("stat JAIL:PATH", "Describe one file", func(cmd *cobra.Command, cl *client.Client, at jailPath) error {
		f, err := cl.Stat(cmd.Context(), at.jail, at.path)
		if err != nil {
			return err
		}
		return c.print(f, func(w io.Writer) { table(w, [][]string{fileRow(f)}) })
	})
}

func (c *command) filesMkdir() *cobra.Command {
	var mode string
	var bits uint64
	cmd := c.onFile("mkdir JAIL:PATH", "Create a directory and its missing parents", func(cmd *cobra.Command, cl *client.Client, at jailPath) error {
		f, err := cl.Mkdir(cmd.Context(), at.jail, at.path, fs.FileMode(bits).Perm(), true)
		if err != nil {
			return err
		}
		return c.print(f, func(io.Writer) {})
	})
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		bits, err = strconv.ParseUint(mode, 8, 12)
		if err != nil {
			return usagef("--mode %q is not octal permission bits", mode)
		}
		return nil
	}
	cmd.Flags().StringVar(&mode, "mode", "755", "permission bits, octal")
	return cmd
}

func (c *command) filesRemove() *cobra.Command {
	var recursive bool
	cmd := c.onFile("rm JAIL:PATH", "Remove a file or an empty directory", func(cmd *cobra.Command, cl *client.Client, at jailPath) error {
		return cl.Remove(cmd.Context(), at.jail, at.path, recursive)
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also remove directories and all that is in them")
	return cmd
}

func (c *command) filesMove() *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use: "mv JAIL:FROM TO", Short: "Rename a file or directory within a jail", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withJailPath(cmd, args[0], func(cl *client.Client, at jailPath) error {
				return cl.Move(cmd.Context(), at.jail, wire.MoveFile{From: at.path, To: args[1], Replace: replace})
			})
		},
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "replace an existing file")
	return cmd
}

func (c *command) filesWatch() *cobra.Command {
	var recursive bool
	cmd := c.onFile("watch JAIL:PATH", "Print changes as they happen, until interrupted", func(cmd *cobra.Command, cl *client.Client, at jailPath) error {
		events, err := cl.Watch(cmd.Context(), at.jail, at.path, recursive)
		if err != nil {
			return err
		}
		for e, err := range events {
			if err != nil {
				return err
			}
			if err := c.print(e, func(w io.Writer) { fmt.Fprintf(w, "%-8s %s\n", e.Op, text.Visible(e.Path)) }); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also below subdirectories")
	return cmd
}

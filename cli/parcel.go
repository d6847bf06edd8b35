package cli

import (
	"errors"
	"fmt"
	"io"

	"glasshouse/api/client"

	"github.com/spf13/cobra"
)

func (c *command) snapshotExport() *cobra.Command {
	return &cobra.Command{
		Use: "export SNAPSHOT", Short: "Write a snapshot to standard output, for another host", Args: cobra.ExactArgs(1),
		Long: `Write a snapshot to standard output, as a tar archive compressed with zstd: its
files, and all that was in the memory of its processes, secrets included. The root
filesystem below is not part of it.`,
		Example: `  glasshouse snapshot export before-upgrade > before-upgrade.tar.zst
  glasshouse snapshot export before-upgrade | ssh other glasshouse snapshot import`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(c.env.Stdout) {
				return usagef("an archive is nothing for a terminal: send it to a file or another program")
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			sid, err := snapshotNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			body, err := cl.ExportSnapshot(cmd.Context(), sid)
			if err != nil {
				return err
			}
			_, err = io.Copy(c.env.Stdout, body)
			return errors.Join(err, body.Close())
		},
	}
}

func (c *command) snapshotImport() *cobra.Command {
	var o client.ImportOptions
	cmd := &cobra.Command{
		Use: "import", Short: "Keep a snapshot that export wrote, from standard input", Args: cobra.NoArgs,
		Long: `Keep a snapshot that export wrote, here or on another host, and print its new id.
The root filesystem that it stands on must be here, with the same digest; the
architecture must be the same. Its processes are taken only if this host has the
processor they ran on, and no older a kernel: a program chooses its instructions when
it begins.

Import what you would run as root: the kernel mounts the files in the archive, and
what restores processes reads them, with all privileges.`,
		Example: `  glasshouse snapshot import < before-upgrade.tar.zst`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(c.env.Stdin) {
				return usagef("give the archive as standard input: glasshouse snapshot import < FILE")
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			s, err := cl.ImportSnapshot(cmd.Context(), c.env.Stdin, o)
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) { fmt.Fprintln(w, s.ID) })
		},
	}
	cmd.Flags().BoolVar(&o.FilesOnly, "files-only", false, "leave its processes behind")
	cmd.Flags().BoolVar(&o.Force, "force", false, "take its processes whatever the processor and the kernel: they may die of it")
	return cmd
}

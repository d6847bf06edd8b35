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
		Use: "export SNAPSHOT", Short: "Export a snapshot to standard output", Args: cobra.ExactArgs(1),
		Long: `Write a snapshot to standard output as a tar archive compressed with zstd. The archive
contains the files and the complete memory of the processes, including secrets. It
does not contain the root filesystem below.`,
		Example: `  glasshouse snapshot export before-upgrade > before-upgrade.tar.zst
  glasshouse snapshot export before-upgrade | ssh other glasshouse snapshot import`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(c.env.Stdout) {
				return usagef("refusing to write binary data to a terminal: redirect it to a file or another program")
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
		Use: "import", Short: "Import an exported snapshot from standard input", Args: cobra.NoArgs,
		Long: `Import a snapshot that export wrote, on this or another host, and print its new id. A
root filesystem with the same digest must be prepared, and the architecture must be
the same. Processes are imported only if this host has the same CPU and no older
kernel, because programs select CPU instructions at their start.

Import only archives that you would run as root: the kernel mounts the files in the
archive, and CRIU reads the process images with full privileges.`,
		Example: `  glasshouse snapshot import < before-upgrade.tar.zst`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(c.env.Stdin) {
				return usagef("give the archive on standard input: glasshouse snapshot import < FILE")
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
	cmd.Flags().BoolVar(&o.FilesOnly, "files-only", false, "export only the files, without processes")
	cmd.Flags().BoolVar(&o.Force, "force", false, "import processes from another CPU or kernel; they may crash")
	return cmd
}

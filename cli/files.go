package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) copy() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files between the host and a jail",
		Long: `Copy a file or a directory between the host and a running or stopped jail. One
argument is JAIL:PATH with an absolute path. - is standard input or output, for a
single file. A directory is copied as the target itself, not into it.`,
		Example: "  glasshouse cp j-4k2m9x7qpz3a:/etc/os-release -\n  glasshouse cp ./src j-4k2m9x7qpz3a:/work/src",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, _, fromJail := cutJailPath(args[0])
			_, _, toJail := cutJailPath(args[1])
			switch {
			case fromJail == toJail:
				return usagef("exactly one of the arguments must be JAIL:PATH")
			case fromJail:
				return c.withJailPath(cmd, args[0], func(cl *client.Client, at jailPath) error {
					return c.download(cmd.Context(), cl, at.jail, at.path, args[1])
				})
			}
			return c.withJailPath(cmd, args[1], func(cl *client.Client, at jailPath) error {
				return c.upload(cmd.Context(), cl, args[0], at.jail, at.path)
			})
		},
	}
}

// A jailPath is a path in a jail.
type jailPath struct {
	jail id.Jail
	path string
}

// cutJailPath splits JAIL:PATH. An argument with a slash before its colon is a local path.
func cutJailPath(s string) (jail, at string, ok bool) {
	jail, at, ok = strings.Cut(s, ":")
	return jail, at, ok && jail != "" && !strings.Contains(jail, "/") && path.IsAbs(at)
}

// withJailPath calls f with a client and the jail path that arg names.
func (c *command) withJailPath(cmd *cobra.Command, arg string, f func(*client.Client, jailPath) error) error {
	jail, at, ok := cutJailPath(arg)
	if !ok {
		return usagef("%q is not JAIL:PATH with an absolute path", arg)
	}
	return c.withJail(cmd, jail, func(cl *client.Client, j id.Jail) error { return f(cl, jailPath{j, at}) })
}

func (c *command) download(ctx context.Context, cl *client.Client, j id.Jail, from, to string) error {
	st, err := cl.Stat(ctx, j, from)
	if err != nil {
		return err
	}
	if st.Type == "dir" {
		if to == "-" {
			return usagef("%s is a directory", from)
		}
		return c.downloadDir(ctx, cl, j, from, to)
	}
	c.noProgress = to == "-" && isTerminal(c.env.Stdout)
	r, err := cl.ReadFile(ctx, j, from, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == "-" {
		_, err := io.Copy(c.env.Stdout, r)
		if err != nil {
			return fmt.Errorf("copy %s to the standard output: %w", from, err)
		}
		return nil
	}
	if fi, err := os.Stat(to); err == nil && fi.IsDir() {
		to = filepath.Join(to, path.Base(from))
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// downloadDir unpacks the jail's archive below to. Names and links in the archive come from the
// jail and are not trusted: os.Root keeps every write inside to.
func (c *command) downloadDir(ctx context.Context, cl *client.Client, j id.Jail, from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("create the local directory: %w", err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return fmt.Errorf("open the local directory: %w", err)
	}
	defer root.Close()
	r, err := cl.Tar(ctx, j, from)
	if err != nil {
		return err
	}
	defer r.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive of %s: %w", from, err)
		}
		if err := extract(root, h, tr); err != nil {
			return fmt.Errorf("unpack %s: %w", text.Visible(h.Name), err)
		}
	}
}

func extract(root *os.Root, h *tar.Header, r io.Reader) error {
	name := path.Clean(h.Name)
	perm := fs.FileMode(h.Mode) & fs.ModePerm
	switch h.Typeflag {
	case tar.TypeDir:
		if name == "." {
			return nil
		}
		return root.MkdirAll(name, perm|0o700)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, perm)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		root.Remove(name)
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		root.Remove(name)
		return root.Link(path.Clean(h.Linkname), name)
	}
	return nil // fifos, sockets and devices are not copied
}

func (c *command) upload(ctx context.Context, cl *client.Client, from string, j id.Jail, to string) error {
	if from == "-" {
		_, err := cl.WriteFile(ctx, j, to, c.env.Stdin, client.WriteOptions{Parents: true})
		return err
	}
	fi, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		if st, err := cl.Stat(ctx, j, to); err == nil && st.Type == "dir" {
			to = path.Join(to, filepath.Base(from))
		}
		_, err = cl.WriteFile(ctx, j, to, f, client.WriteOptions{Mode: fi.Mode().Perm(), Parents: true})
		return err
	}
	pr, pw := io.Pipe()
	go func() {
		tw := tar.NewWriter(pw)
		err := tw.AddFS(os.DirFS(from))
		pw.CloseWithError(errors.Join(err, tw.Close()))
	}()
	defer pr.Close()
	return cl.Untar(ctx, j, to, pr, true)
}

func (c *command) rootfs() *cobra.Command {
	cmd := &cobra.Command{Use: "rootfs", Short: "Prepare, list and prune root filesystems"}
	prepare := &cobra.Command{
		Use: "prepare [debian:SUITE|dir:PATH|oci:IMAGE|nix:PROFILE]", Short: "Prepare a root filesystem (default: the configured one)", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := parseRootfs(strings.Join(args, ""))
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			img, err := cl.PrepareImage(cmd.Context(), r)
			if err != nil {
				return err
			}
			return c.print(img, func(w io.Writer) { fmt.Fprintln(w, img.Source, img.Digest) })
		},
	}
	showImages := func(all []wire.Image) func(io.Writer) {
		return func(w io.Writer) {
			rows := [][]string{{"DIGEST", "SIZE", "CREATED", "SOURCE"}}
			for _, i := range all {
				rows = append(rows, []string{i.Digest, size(i.Size), ago(i.CreatedAt, time.Now()), strings.Join(i.Sources, ", ")})
			}
			table(w, rows)
		}
	}
	list := &cobra.Command{
		Use: "ls", Short: "List prepared root filesystems", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := client.Collect(cl.Images(cmd.Context()))
			if err != nil {
				return err
			}
			return c.print(all, showImages(all))
		},
	}
	prune := &cobra.Command{
		Use: "prune", Short: "Remove unused root filesystems", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			gone, err := cl.PruneImages(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(gone, showImages(gone))
		},
	}
	cmd.AddCommand(prepare, list, prune)
	return cmd
}

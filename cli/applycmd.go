package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/text"
)

// applyOptions are the flags of apply, and the directory to which run applies.
type applyOptions struct {
	dir                          string
	since                        time.Time
	force, dry, commit, rm, keep bool
	message                      string
}

func (c *command) apply() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use: "apply JAIL [PATH...]", Short: "Apply the changes of a jail to your working directory", Args: cobra.MinimumNArgs(1),
		Long: `Apply the workspace changes of a jail to the directory that the workspace is a copy
of. The jail and its files stay: after more work in the jail, apply again. With
paths, only changes at and below them are applied. A path is absolute or relative to
that directory, as --dry-run prints it. A renamed file is selected by either name.

Files that changed on the host since the run began are skipped, unless --force is given.
Changes below .git, such as commits that the jail made, are never applied: git on this
host could run code of the jail. To take over its commits, copy the .git of the running
jail to another directory with glasshouse cp, and fetch from there.

With --rm, the jail is removed if nothing is lost: the command fails and keeps the jail
if changes were skipped or not selected, or if the jail made commits that the repository
of that directory does not have. --force removes it in any case.

With --commit, the applied files become one commit in the git repository of that
directory. The author is the one in your git configuration. Ignored files are not
committed. The hooks of the repository do not run, because the jail may have changed the
programs that they start. The command fails before it applies anything if other changes
are staged.`,
		Example: `  glasshouse apply j-4k2v9c7m1xqe --dry-run
  glasshouse apply j-4k2v9c7m1xqe
  glasshouse apply j-4k2v9c7m1xqe src README.md
  glasshouse apply j-4k2v9c7m1xqe --commit -m "Fix the failing test"
  glasshouse apply j-4k2v9c7m1xqe --rm`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.keep {
				fmt.Fprintln(c.env.Stderr, "glasshouse: apply keeps the jail by default; --keep will be removed in the next release")
			}
			switch {
			case o.message != "" && !o.commit:
				return usagef("--message needs --commit")
			case o.dry && o.rm:
				return usagef("--dry-run and --rm exclude each other")
			case o.keep && o.rm:
				return usagef("--keep and --rm exclude each other")
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			jid, err := jailNamed(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			return c.applyJail(cmd.Context(), cl, jid, args[1:], o)
		},
	}
	cmd.Flags().BoolVarP(&o.dry, "dry-run", "n", false, "print what would be applied, and change nothing")
	cmd.Flags().BoolVar(&o.commit, "commit", false, "commit the applied files in the git repository")
	cmd.Flags().StringVarP(&o.message, "message", "m", "", "with --commit: the message (default: names the jail)")
	cmd.Flags().BoolVar(&o.force, "force", false, "overwrite files that changed meanwhile; with --rm: lose commits")
	cmd.Flags().BoolVar(&o.rm, "rm", false, "then remove the jail, if all its changes were applied")
	cmd.Flags().BoolVar(&o.keep, "keep", false, "keep the jail (the default)")
	cmd.Flags().MarkHidden("keep")
	return cmd
}

func (c *command) applyJail(ctx context.Context, cl *client.Client, jid id.Jail, paths []string, o applyOptions) error {
	j, err := cl.Jail(ctx, jid)
	if err != nil {
		return err
	}
	if j.Workspace == nil {
		return fmt.Errorf("jail %s has no workspace", j.ID)
	}
	o.dir, o.since = j.Workspace.Source, j.CreatedAt
	var repo *gitRepo
	if o.commit {
		repo, err = openGitRepo(ctx, o.dir)
		if err != nil {
			return err
		}
	}
	changes, err := workChanges(ctx, cl, j.ID)
	if err != nil {
		return err
	}
	all := changes
	changes, err = selectChanges(slices.Clone(all), o.dir, paths)
	if err != nil {
		return err
	}
	started, removed := false, false
	if !o.dry && len(changes) > 0 && (j.State == "stopped" || j.State == "created") { // files are read through the jail's init
		j, err = cl.StartJail(ctx, j.ID)
		if err != nil {
			return err
		}
		started = true
		defer func() {
			if !removed { // also after an interrupt, the jail returns to the state in which it was
				cl.StopJail(context.WithoutCancel(ctx), j.ID, 0)
			}
		}()
	}
	out, err := c.applyChanges(ctx, cl, j, o, changes)
	if err != nil {
		return err
	}
	if o.commit && !o.dry {
		message := o.message
		if message == "" {
			message = "Apply the changes of jail " + strings.TrimSpace(text.Visible(j.Name)+" "+string(j.ID))
		}
		out.Commit, err = repo.commit(ctx, out.Done, message)
		if err != nil {
			return fmt.Errorf("%s applied, but not committed: %w", count(len(out.Done), "change"), err)
		}
	}
	var unread error // the commits of a jail that is not running cannot be read
	if o.rm && !o.force {
		out.Unfetched, unread = unfetched(ctx, cl, j, o.dir, all)
	}
	if err := c.print(out, func(w io.Writer) { showApplied(w, out) }); err != nil || !o.rm {
		return err
	}
	files := func(list []wire.Change) int {
		return len(slices.DeleteFunc(slices.Clone(list), func(ch wire.Change) bool { return inGitDir(ch.Path) }))
	}
	switch left := files(all) - files(changes) + len(out.Skipped); {
	case left > 0 && !o.force:
		return &fault.Error{Op: "remove jail", On: string(j.ID), Kind: fault.Conflict,
			Err: fmt.Errorf("the jail is kept: %s not applied", count(left, "change")), Remedy: "apply all changes, or use --force"}
	case unread != nil:
		return fmt.Errorf("the jail is kept: %w", unread)
	case len(out.Unfetched) > 0:
		return keptForCommits(j, o.dir, out.Unfetched, started)
	}
	if err := cl.DeleteJail(ctx, j.ID); err != nil {
		return err
	}
	removed = true
	os.Remove(c.appliedFile(j.ID))
	return nil
}

// selectChanges returns the changes at and below paths, which are relative to dir or absolute.
// It adds the directories that the selected changes need.
func selectChanges(changes []wire.Change, dir string, paths []string) ([]wire.Change, error) {
	if len(paths) == 0 {
		return changes, nil
	}
	needed := map[string]bool{} // by path
	for _, arg := range paths {
		rel := filepath.Clean(arg)
		if filepath.IsAbs(arg) {
			var err error
			rel, err = filepath.Rel(dir, arg)
			if err != nil {
				return nil, err
			}
		}
		if !filepath.IsLocal(rel) {
			return nil, usagef("path %s is not in %s", arg, dir)
		}
		at, found := path.Join("/", rel), false
		below := func(p string) bool { return at == "/" || p == at || strings.HasPrefix(p, at+"/") }
		for _, ch := range changes {
			if !below(ch.Path) && (ch.From == "" || !below(ch.From)) {
				continue
			}
			found = true
			needed[ch.Path] = true
			if ch.Kind == "deleted" {
				continue
			}
			for p := path.Dir(ch.Path); p != "/"; p = path.Dir(p) {
				needed[p] = true
			}
		}
		if !found {
			return nil, &fault.Error{Op: "apply", On: arg, Kind: fault.NotFound,
				Err: errors.New("the jail has no changes there"), Remedy: "list the changes with --dry-run"}
		}
	}
	return slices.DeleteFunc(changes, func(ch wire.Change) bool { return !needed[ch.Path] }), nil
}

func (c *command) applyChanges(ctx context.Context, cl *client.Client, j wire.Jail, o applyOptions, changes []wire.Change) (applied, error) {
	root, err := os.OpenRoot(o.dir)
	if err != nil {
		return applied{}, fmt.Errorf("open the project directory: %w", err)
	}
	defer root.Close()
	in := func(p string) string { return path.Join(j.Workspace.Target, p) }
	a := &applier{
		root: root, since: o.since, force: o.force, dry: o.dry,
		own: readApplied(c.appliedFile(j.ID)),
		fetch: func(ctx context.Context, p string) (io.ReadCloser, error) {
			return cl.ReadFile(ctx, j.ID, in(p), 0, -1)
		},
		link: func(ctx context.Context, p string) (string, error) {
			f, err := cl.Stat(ctx, j.ID, in(p))
			return f.Target, err
		},
	}
	out, err := a.apply(ctx, changes)
	if o.dry || len(out.Done) == 0 {
		return out, err
	}
	if err := a.saveApplied(c.appliedFile(j.ID), out.Done); err != nil {
		complain(c.env.Stderr, fmt.Errorf("the next apply of this jail will need --force: %w", err))
	}
	return out, err
}

// appliedFile returns the file with the modification times of the files that apply wrote for a
// jail, or "" without a home directory. Without it, apply would take its own files for changes of
// the user when the jail changes them again.
func (c *command) appliedFile(j id.Jail) string {
	dir := c.env.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // the XDG Base Directory Specification ignores relative paths
		dir = c.env.Getenv("HOME")
		if !filepath.IsAbs(dir) {
			return ""
		}
		dir = filepath.Join(dir, ".local/state")
	}
	return filepath.Join(dir, "glasshouse/applied", string(j)+".json")
}

// readApplied reads a file that saveApplied wrote. Without it, no file is known.
func readApplied(file string) map[string]time.Time {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var own map[string]time.Time
	if json.Unmarshal(data, &own) != nil {
		return nil
	}
	return own
}

// saveApplied adds the applied files to those of earlier calls.
func (a *applier) saveApplied(file string, done []wire.Change) error {
	if file == "" {
		return nil
	}
	if a.own == nil {
		a.own = map[string]time.Time{}
	}
	for _, ch := range done {
		rel, err := localPath(ch.Path)
		if err != nil {
			return err
		}
		fi, err := a.root.Lstat(rel)
		if err == nil && !fi.IsDir() {
			a.own[rel] = fi.ModTime()
		}
	}
	data, err := json.Marshal(a.own)
	if err != nil {
		return fmt.Errorf("encode the record of applied changes: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), fs.FileMode(0o700)); err != nil {
		return fmt.Errorf("create the directory of records of applied changes: %w", err)
	}
	return atomicfile.Update(file, data, 0o600)
}

func showApplied(w io.Writer, out applied) {
	if out.DryRun {
		fmt.Fprintf(w, "%s would be applied\n", count(len(out.Done), "change"))
		showChanges(w, out.Done)
	} else {
		fmt.Fprintf(w, "%s applied\n", count(len(out.Done), "change"))
	}
	for _, s := range out.Skipped {
		fmt.Fprintf(w, "  skipped   %s: %s\n", text.Visible(s.Path[1:]), s.Reason)
	}
	if out.Git > 0 {
		fmt.Fprintf(w, "  %s below .git not applied\n", count(out.Git, "change"))
	}
	if out.Commit != "" {
		fmt.Fprintf(w, "committed as %s\n", out.Commit)
	}
}

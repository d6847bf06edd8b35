package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// runLabel marks the jails that run created. Its value is the workspace directory.
const runLabel = "glasshouse.run"

func (c *command) run() *cobra.Command {
	var jf jailFlags
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a new jail, on a copy of this directory",
		Long: `Run a command in a new jail. Its workspace is a copy-on-write view of the current
directory, whose files do not change. At the end, the list of changed files is printed
to standard error.

Output is forwarded immediately, and the exit code is that of the command. If standard
input and output are terminals, the command gets a terminal.

With --apply, the changes are applied if the command succeeds. Files that would make
git on this host run code of the jail (hooks, configuration) are never applied. Files
that changed on the host meanwhile are skipped, unless --force is given. The jail is kept
if it has skipped changes or commits that were not fetched. Without --apply, a jail with
changes is kept, and glasshouse apply can apply them later; --rm removes it in any case.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.runIn(cmd.Context(), &jf, o, args)
		},
	}
	cmd.Flags().SetInterspersed(false)
	jf.add(cmd)
	cmd.Flags().BoolVar(&o.apply, "apply", false, "apply the changes if the command succeeds")
	cmd.Flags().BoolVar(&o.force, "force", false, "with --apply: overwrite changed files, lose commits")
	cmd.Flags().BoolVar(&o.keep, "keep", false, "keep the jail running")
	cmd.Flags().BoolVar(&o.remove, "rm", false, "remove the jail even if its changes are not applied")
	cmd.Flags().BoolVar(&o.noWorkspace, "no-workspace", false, "do not mount the current directory")
	cmd.Flags().StringVarP(&o.workspace, "workspace", "C", "", "mount this directory instead of the current one")
	cmd.Flags().StringVarP(&o.workdir, "workdir", "w", "", "working directory in the jail (default: the workspace)")
	cmd.Flags().BoolVarP(&o.stdin, "stdin", "i", false, "forward standard input")
	durationVar(cmd.Flags(), &o.timeout, "timeout", 0, "time limit of the command, such as 90s (default: none)")
	return cmd
}

type runOptions struct {
	apply, force, keep, remove, noWorkspace, stdin bool
	workspace, workdir                             string
	timeout                                        time.Duration
}

func (c *command) runIn(ctx context.Context, jf *jailFlags, o runOptions, argv []string) error {
	req, err := jf.request(c.env.Getenv)
	if err != nil {
		return c.notStarted(err)
	}
	req.Start = true
	dir, err := o.directory()
	if err != nil {
		return c.notStarted(err)
	}
	if dir != "" {
		req.Workspace = &wire.Workspace{Source: dir}
		if req.Labels == nil {
			req.Labels = map[string]string{}
		}
		req.Labels[runLabel] = dir
	}
	cl, err := c.client(ctx)
	if err != nil {
		return c.notStarted(err)
	}

	begun := time.Now()
	j, err := cl.CreateJail(ctx, req)
	if err != nil {
		return c.notStarted(err)
	}
	r := &runner{c: c, cl: cl, jail: j, dir: dir, begun: begun, runOptions: o}
	err = r.do(ctx, argv)
	return errors.Join(err, r.finish(context.WithoutCancel(ctx), err == nil))
}

// directory returns the workspace directory, or "".
func (o runOptions) directory() (string, error) {
	if o.noWorkspace {
		return "", nil
	}
	dir := o.workspace
	if dir == "" {
		dir = "."
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if dir == "/" {
		return "", usagef("/ cannot be a workspace: change to a project's directory, or use --no-workspace")
	}
	return dir, nil
}

// A runner runs one command in one jail.
type runner struct {
	c     *command
	cl    *client.Client
	jail  wire.Jail
	dir   string
	begun time.Time
	runOptions
}

func (r *runner) do(ctx context.Context, argv []string) error {
	r.warnLacks(ctx)
	if isTerminal(r.c.env.Stdin) && isTerminal(r.c.env.Stdout) {
		return r.c.terminal(ctx, r.cl, r.jail.ID, client.TerminalOptions{Argv: argv, Cwd: r.workdir})
	}
	return r.c.stream(ctx, r.cl, r.jail.ID, wire.ExecRequest{
		Argv: argv, Cwd: r.workdir, StdinOpen: r.stdin, Lossless: true, TimeoutMS: r.timeout.Milliseconds(),
	})
}

// warnLacks prints the limits that the backend cannot enforce for this jail.
func (r *runner) warnLacks(ctx context.Context) {
	for b, err := range r.cl.Backends(ctx) {
		if err != nil {
			return
		}
		if b.Name != r.jail.Backend || b.Runtime != r.jail.Runtime {
			continue
		}
		for _, what := range []string{"memory", "cpu", "pids", "disk"} {
			if why, ok := b.Lacks[what]; ok {
				fmt.Fprintf(r.c.env.Stderr, "glasshouse: no limit on %s: %s\n", what, text.Visible(why))
			}
		}
	}
}

func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// finish shows the changes, applies them if requested, and removes the jail unless there is a
// reason to keep it. It prints its errors, because the exit code of a failed program hides them
// from the caller.
func (r *runner) finish(ctx context.Context, success bool) error {
	w := r.c.env.Stderr
	failed := func(format string, err error) error {
		complain(w, fmt.Errorf(format, r.jail.ID, err))
		return exitCode(exitDaemon)
	}
	changes, err := r.changes(ctx)
	if err != nil {
		return failed("jail %s is kept: %w", err)
	}
	pending := len(changes) > 0
	if pending {
		fmt.Fprintf(w, "%s in %s, not applied yet:\n", count(len(changes), "change"), r.dir)
		showChanges(w, changes)
	}
	if pending && r.apply && success {
		out, err := r.c.applyChanges(ctx, r.cl, r.jail, applyOptions{dir: r.dir, since: r.begun, force: r.force}, changes)
		if err != nil {
			return failed("jail %s is kept: %w", err)
		}
		showApplied(w, out)
		pending = len(out.Skipped) > 0
		if !r.force && !r.remove && !r.keep {
			refs, err := unfetched(ctx, r.cl, r.jail, r.dir, changes)
			if err != nil {
				return failed("jail %s is kept: %w", err)
			}
			if len(refs) > 0 {
				complain(w, keptForCommits(r.jail, r.dir, refs, true))
				pending = true
			}
		}
	}
	switch {
	case r.keep:
		fmt.Fprintf(w, "The jail keeps running:  glasshouse jail exec %s -- …\nActivity report:  glasshouse report %s\n", r.jail.ID, r.jail.ID)
		return nil
	case pending && !r.remove:
		fmt.Fprintf(w, "To apply them:  glasshouse apply %[1]s\nTo discard them:  glasshouse jail rm %[1]s\nActivity report:  glasshouse report %[1]s\n", r.jail.ID)
		if _, err := r.cl.StopJail(ctx, r.jail.ID, 0); err != nil {
			return failed("stop jail %s: %w", err)
		}
		return nil
	}
	if err := r.cl.DeleteJail(ctx, r.jail.ID); err != nil {
		return failed("remove jail %s: %w", err)
	}
	return nil
}

func (r *runner) changes(ctx context.Context) ([]wire.Change, error) {
	if r.dir == "" {
		return nil, nil
	}
	return workChanges(ctx, r.cl, r.jail.ID)
}

// workChanges returns the changes in a jail's workspace. A file that was rewritten with the same
// content is not a change.
func workChanges(ctx context.Context, cl *client.Client, jid id.Jail) ([]wire.Change, error) {
	all, err := client.Collect(cl.Changes(ctx, jid, client.ChangesOptions{Workspace: true}))
	return slices.DeleteFunc(all, func(ch wire.Change) bool {
		return ch.Kind == "metadata" && slices.Equal(ch.What, []string{"times"})
	}), err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxShown is the number of changes that are listed individually.
const maxShown = 50

// showChanges lists changes. Those below .git, which are many after a commit, are only counted.
func showChanges(w io.Writer, changes []wire.Change) {
	files := slices.DeleteFunc(slices.Clone(changes), func(ch wire.Change) bool { return inGitDir(ch.Path) })
	shown := files
	if len(files) > maxShown+1 {
		shown = files[:maxShown]
	}
	for _, ch := range shown {
		fmt.Fprintf(w, "  %-9s %s\n", ch.Kind, changeName(ch))
	}
	if n := len(files) - len(shown); n > 0 {
		fmt.Fprintf(w, "  … and %d more\n", n)
	}
	if n := len(changes) - len(files); n > 0 {
		fmt.Fprintf(w, "  %s below .git\n", count(n, "change"))
	}
}

// changeName names a change, including the old path of a renamed file.
func changeName(ch wire.Change) string {
	name := text.Visible(strings.TrimPrefix(ch.Path, "/"))
	if ch.From != "" {
		name = text.Visible(strings.TrimPrefix(ch.From, "/")) + " -> " + name
	}
	return name
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/fault"
)

// A gitRepo is the git repository of the directory dir, which is its root or below it.
type gitRepo struct{ dir string }

// openGitRepo returns the repository of dir, if commit can work in it: it has an author, and no
// changes are staged.
func openGitRepo(ctx context.Context, dir string) (*gitRepo, error) {
	g := &gitRepo{dir}
	if _, err := g.git(ctx, "", "rev-parse", "--show-toplevel"); err != nil {
		return nil, err
	}
	for _, ident := range []string{"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"} {
		if _, err := g.git(ctx, "", "var", ident); err != nil {
			return nil, &fault.Error{Op: "commit", On: dir, Kind: fault.Conflict, Err: fmt.Errorf("git has no author configured: %w", err),
				Remedy: `git config --global user.name "NAME" && git config --global user.email EMAIL`}
		}
	}
	staged, err := g.git(ctx, "", "diff", "--cached", "--name-only", "--no-ext-diff")
	if err != nil {
		return nil, err
	}
	if staged != "" {
		return nil, &fault.Error{Op: "commit", On: dir, Kind: fault.Conflict, Err: errors.New("changes are already staged"),
			Remedy: "commit them, or unstage them with git -C " + dir + " reset"}
	}
	return g, nil
}

// git runs git, and returns its output without the last line end.
func (g *gitRepo) git(ctx context.Context, stdin string, args ...string) (string, error) {
	// The jail may have changed the program of a hook, such as .husky/pre-commit. A path below
	// a file never exists, which disables all hooks.
	fixed := []string{"-C", g.dir, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"}
	cmd := exec.CommandContext(ctx, "git", append(fixed, args...)...)
	// Within a hook, these variables name another repository or index (githooks(5)).
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"}, name)
	})
	cmd.Stdin = strings.NewReader(stdin)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// commit commits exactly the applied changes, and returns the abbreviated hash of the commit. It
// returns "" if all of them are of ignored files.
func (g *gitRepo) commit(ctx context.Context, done []wire.Change, message string) (string, error) {
	var files []string
	add := func(p string) { files = append(files, strings.TrimPrefix(p, "/")) }
	for _, ch := range done {
		if ch.From != "" {
			add(ch.From)
		}
		if ch.Type != "dir" || ch.Kind == "modified" { // a modified directory was a file
			add(ch.Path)
		}
	}
	if len(files) == 0 {
		return "", nil
	}
	// A path that begins with ./ has no pathspec magic, such as :(glob) (gitglossary(7)).
	ignored, err := g.git(ctx, "./"+strings.Join(files, "\x00./")+"\x00", "check-ignore", "-z", "--stdin")
	exit, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && !(ok && exit.ExitCode() == 1) { // 1: no path is ignored (git-check-ignore(1))
		return "", err
	}
	skip := strings.Split(ignored, "\x00")
	files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains(skip, "./"+f) })
	if len(files) == 0 {
		return "", nil
	}
	// git add would also stage other files in a directory that was a file.
	if _, err := g.git(ctx, strings.Join(files, "\x00")+"\x00", "update-index", "--add", "--remove", "--replace", "-z", "--stdin"); err != nil {
		return "", err
	}
	staged, err := g.git(ctx, "", "diff", "--cached", "--name-only", "--no-ext-diff")
	if err != nil || staged == "" {
		return "", err
	}
	if _, err := g.git(ctx, message, "commit", "--quiet", "--no-verify", "--cleanup=whitespace", "-F", "-"); err != nil {
		return "", err
	}
	return g.git(ctx, "", "rev-parse", "--short", "HEAD")
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

// A gitRepo is a git repository of the user. git runs in the directory dir.
//
// git would take a directory with files such as HEAD and config for a bare repository, and run the
// programs that this config names. A jail can create such files, and apply writes them. So git
// searches for the repository only in a directory with .git, which apply does not write, and all
// later commands name the repository.
type gitRepo struct {
	dir      string
	selected []string // flags that select the repository
}

// repoWith returns the repository whose work tree begins at top, which has .git.
func repoWith(ctx context.Context, top string) (*gitRepo, error) {
	if _, err := os.Lstat(filepath.Join(top, ".git")); err != nil {
		return nil, &fault.Error{Op: "git", On: top, Kind: fault.Conflict, Err: errors.New("not a git repository")}
	}
	g := &gitRepo{dir: top}
	out, err := g.git(ctx, "", "rev-parse", "--absolute-git-dir", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	gitDir, tree, _ := strings.Cut(out, "\n")
	if filepath.Clean(gitDir) == filepath.Clean(tree) || tree == "" {
		return nil, &fault.Error{Op: "git", On: top, Kind: fault.Conflict, Err: errors.New(".git is not a repository")}
	}
	g.selected = []string{"--git-dir=" + gitDir, "--work-tree=" + tree}
	return g, nil
}

// openGitRepo returns the repository of dir, if commit can work in it: it has an author, and no
// changes are staged.
func openGitRepo(ctx context.Context, dir string) (*gitRepo, error) {
	top, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	for {
		if _, err := os.Lstat(filepath.Join(top, ".git")); err == nil || top == "/" {
			break
		}
		top = filepath.Dir(top)
	}
	g, err := repoWith(ctx, top)
	if err != nil {
		return nil, err
	}
	g.dir = dir
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
	fixed := []string{"-C", g.dir, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit"}
	cmd := exec.CommandContext(ctx, "git", slices.Concat(fixed, g.selected, args)...)
	// Within a hook, these variables name another repository or index (githooks(5)).
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"}, name)
	}), "GIT_NO_LAZY_FETCH=1") // of a partial clone, because the jail chooses names of objects
	cmd.Stdin = strings.NewReader(stdin)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// maxRefs bounds the size of a file with refs that is read from a jail.
const maxRefs = 1 << 20

// objectName matches the name of a git object, with SHA-1 or SHA-256.
var objectName = regexp.MustCompile(`\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b`)

// A changedRef is a file with refs that a jail changed.
type changedRef struct {
	file    string
	objects []string // their names
	lost    bool     // an object is known to be missing in the repository of the user
}

// unfetched returns the refs that a jail changed and whose commits the repositories in dir do not
// have. apply does not write below .git, so these commits are lost with the jail.
func unfetched(ctx context.Context, cl *client.Client, j wire.Jail, dir string, changes []wire.Change) (refs []string, err error) {
	// Changes are sorted by path, so the refs of a repository are checked together. The limit
	// bounds the memory for refs that a jail chose.
	var repo string
	var pending []changedRef
	size := 0
	check := func() {
		refs = append(refs, lostRefs(ctx, dir, repo, pending)...)
		pending, size = nil, 0
	}
	for _, ch := range changes {
		if !isRef(ch) {
			continue
		}
		rel, err := localPath(ch.Path)
		if err != nil {
			return nil, err
		}
		data, err := readRefs(ctx, cl, j, ch.Path)
		if err != nil {
			return nil, fmt.Errorf("read %s of the jail: %w", text.Visible(rel), err)
		}
		in, _, _ := strings.Cut(ch.Path, "/.git/")
		if in != repo || size+len(data) > maxRefs {
			check()
		}
		ref := changedRef{file: rel, lost: strings.Contains(ch.Path, "/reftable/") || len(data) >= maxRefs}
		if !ref.lost {
			ref.objects = objectName.FindAllString(string(data), -1)
			size += len(data)
		}
		repo, pending = in, append(pending, ref)
	}
	check()
	return refs, nil
}

// lostRefs returns the files of the refs whose objects the repository at the path repo in dir does
// not have.
func lostRefs(ctx context.Context, dir, repo string, refs []changedRef) (files []string) {
	var names []string
	for _, r := range refs {
		names = append(names, r.objects...)
	}
	have := presentObjects(ctx, dir, repo, names)
	for _, r := range refs {
		if r.lost || slices.ContainsFunc(r.objects, func(name string) bool { return !have[name] }) {
			files = append(files, r.file)
		}
	}
	return files
}

// readRefs returns the first maxRefs bytes of a file in the workspace of a jail.
func readRefs(ctx context.Context, cl *client.Client, j wire.Jail, p string) ([]byte, error) {
	r, err := cl.ReadFile(ctx, j.ID, path.Join(j.Workspace.Target, p), 0, maxRefs)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxRefs))
}

// isRef reports whether a change below .git is to a file with refs of the repository itself:
// HEAD, a loose ref, packed refs or a reftable (gitrepository-layout(5)).
func isRef(ch wire.Change) bool {
	_, name, ok := strings.Cut(ch.Path, "/.git/")
	if !ok || ch.Type != "file" || ch.Kind == "deleted" || ch.Kind == "metadata" {
		return false
	}
	parts := strings.Split(name, "/") // the first are modules/NAME in a submodule
	at := slices.IndexFunc(parts, func(s string) bool { return s == "refs" || s == "logs" || s == "reftable" })
	if at < 0 {
		last := parts[len(parts)-1]
		return last == "HEAD" || last == "packed-refs"
	}
	return parts[at] != "logs" && !(at+1 < len(parts) && parts[at+1] == "remotes")
}

// presentObjects returns which of the objects the repository at the path repo in dir has. The jail
// chooses the path: it must not lead out of dir.
func presentObjects(ctx context.Context, dir, repo string, names []string) map[string]bool {
	if len(names) == 0 {
		return nil
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	top, err := filepath.EvalSymlinks(filepath.Join(dir, repo))
	if err != nil || top != dir && !strings.HasPrefix(top, strings.TrimSuffix(dir, "/")+"/") {
		return nil
	}
	g, err := repoWith(ctx, top)
	if err != nil {
		return nil
	}
	out, err := g.git(ctx, strings.Join(names, "\n")+"\n", "cat-file", "--batch-check")
	lines := strings.Split(out, "\n") // one for each name (git-cat-file(1))
	if err != nil || len(lines) != len(names) {
		return nil
	}
	have := map[string]bool{}
	for i, name := range names {
		have[name] = !strings.HasSuffix(lines[i], " missing")
	}
	return have
}

// keptForCommits is the error of a jail that was not removed because of its commits. stopped tells
// that the jail is stopped, so that its workspace cannot be read.
func keptForCommits(j wire.Jail, dir string, refs []string, stopped bool) error {
	repo, _, _ := strings.Cut("/"+refs[0], "/.git/")
	copied, start := string(j.ID)+".git", ""
	if stopped {
		start = "glasshouse jail start " + string(j.ID) + " && "
	}
	return &fault.Error{Op: "remove jail", On: string(j.ID), Kind: fault.Conflict,
		Err: fmt.Errorf("the jail is kept: it has commits that %s does not have (%s)", dir, text.Visible(strings.Join(refs, ", "))),
		Remedy: fmt.Sprintf("fetch them: %sglasshouse cp %s:%s %s && git fetch ./%s 'refs/heads/*:refs/jail/*'\n  or use --force to lose them",
			start, j.ID, text.Visible(path.Join(j.Workspace.Target, repo, ".git")), copied, copied)}
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

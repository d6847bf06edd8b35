package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// newHostDir creates a directory with these files, which represent the state before the run.
func newHostDir(t *testing.T, files map[string]string) (dir string, a *applier) {
	t.Helper()
	dir = t.TempDir()
	before := time.Now().Add(-time.Hour)
	for name, content := range files {
		full := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(full), 0o755)
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(full, before, before)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return dir, &applier{
		root: root, since: time.Now().Add(-time.Minute),
		fetch: func(_ context.Context, p string) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("from the jail: " + p)), nil
		},
		link: func(context.Context, string) (string, error) { return "/etc/passwd", nil },
	}
}

func content(t *testing.T, dir string) []string {
	t.Helper()
	var got []string
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		switch {
		case rel == ".":
		case d.IsDir():
			got = append(got, rel+"/")
		case d.Type()&os.ModeSymlink != 0:
			l, _ := os.Readlink(p)
			got = append(got, rel+" -> "+l)
		default:
			data, _ := os.ReadFile(p)
			fi, _ := d.Info()
			got = append(got, fmt.Sprintf("%s %o %s", rel, fi.Mode().Perm(), data))
		}
		return nil
	})
	return got
}

func TestApplyChanges(t *testing.T) {
	dir, a := newHostDir(t, map[string]string{"keep": "k", "edit": "old", "gone/a/b": "x", "was-dir/f": "x", "was-file": "x", "mode": "m"})
	out, err := a.apply(t.Context(), []wire.Change{
		{Path: "/edit", Kind: "modified", Type: "file", Mode: "600"},
		{Path: "/gone", Kind: "deleted", Type: "dir"},
		{Path: "/gone/a", Kind: "deleted", Type: "dir"},
		{Path: "/gone/a/b", Kind: "deleted", Type: "file"},
		{Path: "/link", Kind: "added", Type: "symlink", Mode: "777"},
		{Path: "/mode", Kind: "metadata", Type: "file", Mode: "4755"},
		{Path: "/new/x", Kind: "added", Type: "file", Mode: "755"},
		{Path: "/new", Kind: "added", Type: "dir", Mode: "755"},
		{Path: "/was-dir", Kind: "modified", Type: "file", Mode: "644"},
		{Path: "/was-dir/f", Kind: "deleted", Type: "file"},
		{Path: "/was-file", Kind: "modified", Type: "dir", Mode: "755"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Skipped) > 0 {
		t.Errorf("skipped %v, want nothing", out.Skipped)
	}
	want := []string{
		"edit 600 from the jail: /edit", "keep 644 k", "link -> /etc/passwd", "mode 755 m",
		"new/", "new/x 755 from the jail: /new/x", "was-dir 644 from the jail: /was-dir", "was-file/",
	}
	if got := content(t, dir); !slices.Equal(got, want) {
		t.Errorf("after apply:\n%q\nwant\n%q", got, want)
	}
}

func TestApplyOmitsGitDirectories(t *testing.T) {
	dir, a := newHostDir(t, map[string]string{".git/config": "[core]", "sub/.git": "gitdir: x"})
	before := content(t, dir)
	out, err := a.apply(t.Context(), []wire.Change{
		{Path: "/.git/hooks/pre-commit", Kind: "added", Type: "file", Mode: "755"},
		{Path: "/.git/config", Kind: "modified", Type: "file", Mode: "644"},
		{Path: "/.git/modules/m/config", Kind: "added", Type: "file", Mode: "644"},
		{Path: "/.git/info/attributes", Kind: "added", Type: "file", Mode: "644"},
		{Path: "/.git/rebase-merge/git-rebase-todo", Kind: "added", Type: "file", Mode: "644"},
		{Path: "/.git/index", Kind: "deleted", Type: "file"},
		{Path: "/sub/.git", Kind: "modified", Type: "file", Mode: "644"},
	})
	if err != nil || len(out.Done) != 0 || out.Git != 7 {
		t.Errorf("apply = done %v, %d below .git, %v; want seven below .git", out.Done, out.Git, err)
	}
	if got := content(t, dir); !slices.Equal(got, before) {
		t.Errorf("the directory changed: %q", got)
	}
}

func TestApplySkipsConflictingUserChanges(t *testing.T) {
	dir, a := newHostDir(t, nil)
	os.WriteFile(filepath.Join(dir, "mine"), []byte("edited just now"), 0o644)
	changes := []wire.Change{{Path: "/mine", Kind: "modified", Type: "file", Mode: "644"}}
	if out, err := a.apply(t.Context(), changes); err != nil || len(out.Skipped) != 1 {
		t.Errorf("apply = %+v, %v; want a conflict", out, err)
	}
	a.force = true
	if out, err := a.apply(t.Context(), changes); err != nil || len(out.Done) != 1 {
		t.Errorf("forced apply = %+v, %v; want it done", out, err)
	}
}

func TestApplyStaysInsideDirectory(t *testing.T) {
	outside := t.TempDir()
	dir, a := newHostDir(t, nil)
	os.Symlink(outside, filepath.Join(dir, "out"))
	for _, p := range []string{"/out/planted", "/../planted", "planted", "/a/../../planted", "/"} {
		out, err := a.apply(t.Context(), []wire.Change{{Path: p, Kind: "added", Type: "file", Mode: "644"}})
		if err == nil && len(out.Done) > 0 {
			t.Errorf("apply of %q = done, want refused", p)
		}
	}
	if es, _ := os.ReadDir(outside); len(es) > 0 {
		t.Errorf("%d files outside of the directory, want none", len(es))
	}
}

func TestApplyRenameIsAtomic(t *testing.T) {
	dir, a := newHostDir(t, map[string]string{"old": "x", "dir/f": "x", "mine": "x", "taken": "here already", "hook": "x"})
	out, err := a.apply(t.Context(), []wire.Change{
		{Path: "/new", Kind: "renamed", From: "/old", Type: "file", Mode: "644"},
		{Path: "/dir", Kind: "modified", Type: "file", Mode: "644"}, // its file was moved out
		{Path: "/f", Kind: "renamed", From: "/dir/f", Type: "file", Mode: "600"},
		{Path: "/taken", Kind: "renamed", From: "/mine", Type: "file", Mode: "644"},
		{Path: "/.git/hooks/post-commit", Kind: "renamed", From: "/hook", Type: "file", Mode: "755"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"dir 644 from the jail: /dir", "f 600 from the jail: /f", "hook 644 x", "mine 644 x", "new 644 from the jail: /new", "taken 644 here already"}
	if got := content(t, dir); !slices.Equal(got, want) {
		t.Errorf("the directory holds %q, want %q", got, want)
	}
	if len(out.Done) != 3 || len(out.Skipped) != 1 || out.Git != 1 {
		t.Errorf("done %+v, skipped %+v, %d below .git; want three, one and one", out.Done, out.Skipped, out.Git)
	}
	for _, from := range []string{"/../x", "x", "/a//b"} {
		if _, err := a.apply(t.Context(), []wire.Change{{Path: "/n", Kind: "renamed", From: from, Type: "file", Mode: "644"}}); err == nil {
			t.Errorf("a file renamed from %q was applied", from)
		}
	}
}

// Files that the user adds to a directory are not in the jail's changes when the directory is
// deleted or replaced there.
func TestApplyKeepsUserFilesInDeletedDirectory(t *testing.T) {
	dir, a := newHostDir(t, map[string]string{"gone/mine": "m", "replaced/mine": "m", "linked/mine": "m"})
	changes := []wire.Change{
		{Path: "/gone", Kind: "deleted", Type: "dir"},
		{Path: "/replaced", Kind: "modified", Type: "file", Mode: "644"},
		{Path: "/linked", Kind: "modified", Type: "symlink", Mode: "777"},
	}
	before := content(t, dir)
	out, err := a.apply(t.Context(), changes)
	if err != nil || len(out.Done) != 0 || len(out.Skipped) != 3 {
		t.Errorf("apply = done %v, skipped %v, %v; want all three skipped", out.Done, out.Skipped, err)
	}
	if got := content(t, dir); !slices.Equal(got, before) {
		t.Errorf("the directory holds %q, want %q", got, before)
	}
	a.force = true
	if out, err := a.apply(t.Context(), changes); err != nil || len(out.Done) != 3 {
		t.Errorf("forced apply = %+v, %v; want all three done", out, err)
	}
}

func TestSelectChanges(t *testing.T) {
	all := []wire.Change{
		{Path: "/d", Kind: "added", Type: "dir"}, {Path: "/d/a", Kind: "added"}, {Path: "/d/b", Kind: "added"}, {Path: "/dd", Kind: "modified"},
		{Path: "/new", From: "/old", Kind: "renamed"}, {Path: "/x", Kind: "deleted", Type: "dir"}, {Path: "/x/y", Kind: "deleted"},
	}
	for _, tt := range []struct{ paths, want, err string }{
		{"", "/d /d/a /d/b /dd /new /x /x/y", ""},
		{".", "/d /d/a /d/b /dd /new /x /x/y", ""},
		{"/srv/project", "/d /d/a /d/b /dd /new /x /x/y", ""},
		{"d", "/d /d/a /d/b", ""},
		{"d/b ./dd", "/d /d/b /dd", ""}, // a new file needs its new directory
		{"/srv/project/d/a", "/d /d/a", ""},
		{"x/y", "/x/y", ""},
		{"old", "/new", ""},
		{"new", "/new", ""},
		{"d nothing", "", "the jail has no changes there"},
		{"../x", "", "is not in /srv/project"},
		{"/srv/other", "", "is not in /srv/project"},
	} {
		got, err := selectChanges(slices.Clone(all), "/srv/project", strings.Fields(tt.paths))
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("paths %q: error %v, want %q", tt.paths, err, tt.err)
			}
			continue
		}
		var paths []string
		for _, ch := range got {
			paths = append(paths, ch.Path)
		}
		if have := strings.Join(paths, " "); err != nil || have != tt.want {
			t.Errorf("paths %q: got %s, %v, want %s", tt.paths, have, err, tt.want)
		}
	}
}

// The jail changes a file again after its first change was applied.
func TestApplyAgainAfterMoreWork(t *testing.T) {
	w := newWorkspace(t, "", addedFile)
	w.env = map[string]string{"HOME": t.TempDir()}
	apply := func(want string) {
		t.Helper()
		if code, out, errs := w.run("", "apply", aJail); code != 0 || out != want || errs != "" {
			t.Errorf("apply = %d, %q, %q; want 0 and %q", code, out, errs, want)
		}
	}
	apply("1 change applied\n")
	w.answers["GET /jails/"+aJail+"/fs/diff"] = items(`{"path":"/new.txt","kind":"modified","type":"file","mode":"644"}`)
	w.answers["GET /jails/"+aJail+"/files"] = "more work\n"
	apply("1 change applied\n")
	if got := w.file("new.txt"); got != "more work\n" {
		t.Errorf("new.txt is %q, want the second version", got)
	}
	w.write("new.txt", "mine")
	apply("0 changes applied\n  skipped   new.txt: changed on the host since the run began\n")
	if got := w.file("new.txt"); got != "mine" {
		t.Errorf("new.txt is %q, want the user's", got)
	}
}

// write writes a file of the workspace, as its user does.
func (w *workspace) write(name, text string) {
	w.Helper()
	full := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
}

func (w *workspace) git(args ...string) string {
	w.Helper()
	cmd := exec.Command("git", append([]string{"-C", w.dir}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newRepository returns a workspace that is a git repository of Ann with one commit.
func newRepository(t *testing.T, changes ...string) *workspace {
	t.Helper()
	w := newWorkspace(t, "", changes...)
	w.git("init", "-q", "-b", "main")
	w.git("config", "user.name", "Ann")
	w.git("config", "user.email", "ann@example.com")
	for _, name := range []string{"edit", "gone", "old", "mine", "was-file", "was-dir/f"} {
		w.write(name, name+"\n")
	}
	w.write(".gitignore", "*.log\n")
	w.git("add", "-A")
	w.git("commit", "-q", "-m", "first")
	before := time.Now().Add(-time.Hour)
	for _, name := range []string{"edit", "gone", "old", "mine", "was-file", "was-dir/f", ".gitignore"} {
		os.Chtimes(filepath.Join(w.dir, name), before, before)
	}
	// The jail is as old as the workspace.
	path := "GET /jails/" + aJail
	w.answers[path] = strings.TrimSuffix(w.answers[path], "}") + `,"created_at":"` + before.Add(time.Minute).Format(time.RFC3339) + `"}`
	return w
}

func TestApplyCommit(t *testing.T) {
	w := newRepository(t,
		`{"path":"/edit","kind":"modified","type":"file","mode":"644"}`,
		`{"path":"/gone","kind":"deleted","type":"file"}`,
		`{"path":"/new name","from":"/old","kind":"renamed","type":"file","mode":"644"}`,
		`{"path":"/debug.log","kind":"added","type":"file","mode":"644"}`,
		`{"path":"/d","kind":"added","type":"dir","mode":"755"}`,
		`{"path":"/d/:(top)*","kind":"added","type":"file","mode":"755"}`,
		`{"path":"/was-dir","kind":"modified","type":"file","mode":"644"}`,
		`{"path":"/was-dir/f","kind":"deleted","type":"file"}`,
		`{"path":"/was-file","kind":"modified","type":"dir","mode":"755"}`,
		`{"path":"/was-file/g","kind":"added","type":"file","mode":"644"}`,
		`{"path":"/hooks/pre-commit","kind":"modified","type":"file","mode":"755"}`,
		`{"path":"/.git/index","kind":"modified","type":"file","mode":"644"}`,
		`{"path":"/.git/refs/heads/main","kind":"modified","type":"file","mode":"644"}`)
	// A hook whose program is in the work tree, where the jail can change it.
	w.write("hooks/pre-commit", "#!/bin/sh\n")
	w.git("config", "core.hooksPath", "hooks")
	w.git("add", "hooks")
	w.git("-c", "core.hooksPath=/dev/null", "commit", "-q", "-m", "hook")
	os.Chtimes(filepath.Join(w.dir, "hooks/pre-commit"), time.Now().Add(-time.Hour), time.Now().Add(-time.Hour))
	w.answers["GET /jails/"+aJail+"/files"] = "#!/bin/sh\ntouch ran; exit 1\n"
	w.write("mine", "not committed yet\n")
	w.write("d/mine", "not tracked\n")

	code, out, errs := w.run("", "apply", aJail, "--commit", "-m", "Fix it\n\n# 1")
	head := w.git("rev-parse", "--short", "HEAD")
	if want := "11 changes applied\n  2 changes below .git not applied\ncommitted as " + head + "\n"; code != 0 || out != want || errs != "" {
		t.Fatalf("apply = %d, %q, %q; want 0 and %q", code, out, errs, want)
	}
	if got, want := w.git("log", "-1", "--format=%an <%ae> %B"), "Ann <ann@example.com> Fix it\n\n# 1"; got != want {
		t.Errorf("commit: got %q, want %q", got, want)
	}
	want := "A\td/:(top)*\nM\tedit\nD\tgone\nM\thooks/pre-commit\nA\tnew name\nD\told\nA\twas-dir\nD\twas-dir/f\nD\twas-file\nA\twas-file/g"
	if got := w.git("show", "--format=", "--name-status", "--no-renames"); got != want {
		t.Errorf("committed:\n%s\nwant\n%s", got, want)
	}
	if got, want := w.git("status", "--porcelain"), "M mine\n?? d/mine"; got != want {
		t.Errorf("status after the commit:\n%s\nwant\n%s", got, want)
	}
	if got := w.file("ran"); got != "(none)" {
		t.Error("a hook that the jail wrote has run")
	}
}

func TestApplyCommitWithoutChanges(t *testing.T) {
	for _, changes := range [][]string{nil, {`{"path":"/debug.log","kind":"added","type":"file","mode":"644"}`}, {`{"path":"/empty","kind":"added","type":"dir","mode":"755"}`}} {
		w := newRepository(t, changes...)
		code, out, errs := w.run("", "apply", aJail, "--commit")
		if want := count(len(changes), "change") + " applied\n"; code != 0 || out != want || errs != "" {
			t.Errorf("%s: apply = %d, %q, %q; want 0 and %q", changes, code, out, errs, want)
		}
		if got := w.git("log", "--format=%s"); got != "first" {
			t.Errorf("%s: commits %q, want the first one alone", changes, got)
		}
	}
	w := newRepository(t, addedFile)
	if code, _, errs := w.run("", "apply", aJail, "--commit"); code != 0 {
		t.Errorf("apply: %s", errs)
	}
	if got, want := w.git("log", "-1", "--format=%s"), "Apply the changes of jail "+aJail; got != want {
		t.Errorf("message: got %q, want %q", got, want)
	}
}

// apply --commit reports what prevents the commit before it applies anything.
func TestApplyCommitRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(w *workspace)
		want    string
	}{
		"no repository":  {func(w *workspace) { os.RemoveAll(filepath.Join(w.dir, ".git")) }, "not a git repository"},
		"staged changes": {func(w *workspace) { w.write("mine", "staged"); w.git("add", "mine") }, "changes are already staged\n  try: commit them, or unstage them"},
		"no author": {func(w *workspace) {
			w.git("config", "user.useConfigOnly", "true")
			w.git("config", "--unset", "user.email")
		}, "git has no author configured"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			w := newRepository(t, addedFile)
			tt.prepare(w)
			code, out, errs := w.run("", "apply", aJail, "--commit")
			if code != 1 || out != "" || !strings.Contains(errs, tt.want) {
				t.Errorf("apply = %d, %q, %q; want 1 and %q", code, out, errs, tt.want)
			}
			if got := w.file("new.txt"); got != "(none)" {
				t.Errorf("new.txt is %q, want nothing applied", got)
			}
		})
	}
}

// A jail whose commits the host does not have is not removed after its changes were applied.
func TestApplyKeepsJailWithCommits(t *testing.T) {
	ref := func(path, kind string) string {
		return `{"path":"` + path + `","kind":"` + kind + `","type":"file","mode":"644"}`
	}
	const other = "1111111111111111111111111111111111111111"
	for _, tt := range []struct {
		name    string
		flags   string
		change  string
		content string // HEAD stands for the commit of the host
		kept    string // the ref in the message, or "" if the jail is removed
	}{
		{"a commit on a branch", "", ref("/.git/refs/heads/main", "modified"), other + "\n", ".git/refs/heads/main"},
		{"a commit that was fetched", "", ref("/.git/refs/heads/main", "modified"), "HEAD\n", ""},
		{"a commit, and force", "--force", ref("/.git/refs/heads/main", "modified"), other + "\n", ""},
		{"a branch named HEAD", "", ref("/.git/refs/heads/HEAD", "added"), other + "\n", ".git/refs/heads/HEAD"},
		{"a stash", "", ref("/.git/refs/stash", "added"), other + "\n", ".git/refs/stash"},
		{"a detached head", "", ref("/.git/HEAD", "modified"), other + "\n", ".git/HEAD"},
		{"another branch", "", ref("/.git/HEAD", "modified"), "ref: refs/heads/topic\n", ""},
		{"packed refs", "", ref("/.git/packed-refs", "modified"), "# pack-refs with: peeled\nHEAD refs/heads/main\n" + other + " refs/heads/topic\n", ".git/packed-refs"},
		{"packed refs that were fetched", "", ref("/.git/packed-refs", "modified"), "# pack-refs with: peeled\nHEAD refs/heads/main\n", ""},
		{"a reftable", "", ref("/.git/reftable/0x1-0x2.ref", "added"), "REFT", ".git/reftable/0x1-0x2.ref"},
		{"a new repository", "", ref("/sub/.git/refs/heads/main", "added"), other + "\n", "sub/.git/refs/heads/main"},
		{"a submodule", "", ref("/.git/modules/lib/refs/heads/main", "modified"), other + "\n", ".git/modules/lib/refs/heads/main"},
		{"a ref of a remote", "", ref("/.git/refs/remotes/origin/main", "modified"), other + "\n", ""},
		{"a log", "", ref("/.git/logs/refs/heads/main", "modified"), other + "\n", ""},
		{"a deleted branch", "", ref("/.git/refs/heads/topic", "deleted"), "", ""},
		{"only the index", "", ref("/.git/index", "modified"), other + "\n", ""},
	} {
		for _, command := range []string{"apply --rm " + aJail, "run --apply"} {
			t.Run(tt.name+", "+strings.Fields(command)[0], func(t *testing.T) {
				t.Parallel()
				w := newRepository(t, addedFile, tt.change)
				w.answers[execPath] = execStart("") + execExit(0)
				w.answers["GET /jails/"+aJail+"/files"] = strings.ReplaceAll(tt.content, "HEAD", w.git("rev-parse", "HEAD"))
				args := strings.Fields(command + " " + tt.flags)
				if args[0] == "run" {
					args = append(args, "-C", w.dir, "make")
				}
				code, _, errs := w.run("", args...)
				want := 0
				if tt.kept != "" && args[0] == "apply" {
					want = 1
				}
				if code != want {
					t.Errorf("exit code %d, want %d: %s", code, want, errs)
				}
				said := "the jail is kept: it has commits that " + w.dir + " does not have (" + tt.kept + ")\n  try: fetch them: glasshouse "
				if got := strings.Contains(errs, said) && strings.Contains(errs, "--force"); got != (tt.kept != "") {
					t.Errorf("stderr %q, want a message about commits: %v", errs, tt.kept != "")
				}
				if got := strings.Contains(w.asked(), "DELETE /jails/"+aJail); got != (tt.kept == "") {
					t.Errorf("the jail was removed: %v, want %v", got, tt.kept == "")
				}
				if got := w.file("new.txt"); got == "(none)" {
					t.Error("the change was not applied")
				}
			})
		}
	}
}

// The commits of a jail that could not be read do not hide what was applied and what is left.
func TestApplyReportsChangesAlthoughCommitsCannotBeRead(t *testing.T) {
	deleted := func(name string) string { return `{"path":"/` + name + `","kind":"deleted","type":"file"}` }
	commit := `{"path":"/.git/refs/heads/main","kind":"modified","type":"file","mode":"644"}`
	for _, tt := range []struct{ args, want string }{
		{"gone", "the jail is kept: 1 change not applied\n  try: apply all changes, or use --force\n"},
		{"", "the jail is kept: read .git/refs/heads/main of the jail: conflict: the file is on a mount\n  try: start the jail first\n"},
	} {
		w := newRepository(t, deleted("gone"), deleted("old"), commit)
		path := "GET /jails/" + aJail
		w.answers[path] = strings.Replace(w.answers[path], `"running"`, `"failed"`, 1)
		w.answers[path+"/files"] = `409 {"type":"/problems/conflict","title":"conflict","status":409,"detail":"the file is on a mount","remedy":"start the jail first"}`
		code, out, errs := w.run("", strings.Fields("apply --rm "+aJail+" "+tt.args)...)
		if code != 1 || !strings.HasSuffix(errs, tt.want) {
			t.Errorf("apply %s = %d, %q; want 1 and %q", tt.args, code, errs, tt.want)
		}
		if !strings.Contains(out, " applied\n") || w.file("gone") != "(none)" {
			t.Errorf("apply %s: output %q, gone is %q; want the deletion applied and reported", tt.args, out, w.file("gone"))
		}
		if strings.Contains(w.asked(), "DELETE /jails/"+aJail) {
			t.Errorf("apply %s removed the jail", tt.args)
		}
	}
}

// A jail can change thousands of refs.
func TestCommitsOfAllRefsAreCheckedTogether(t *testing.T) {
	const other = "1111111111111111111111111111111111111111"
	ref := func(path string) string { return `{"path":"` + path + `","kind":"added","type":"file","mode":"644"}` }
	w := newRepository(t, addedFile, ref("/.git/refs/heads/a"), ref("/.git/refs/heads/b"), ref("/.git/refs/heads/c"), ref("/.git/reftable/1.ref"), ref("/.git/refs/heads/d"))
	head := w.git("rev-parse", "HEAD")
	for name, content := range map[string]string{"refs/heads/a": head, "refs/heads/b": other, "refs/heads/c": head, "refs/heads/d": head + " " + other, "reftable/1.ref": ""} {
		w.answers["GET "+filesPath+"?bytes=1048576&offset=0&path="+url.QueryEscape("/work/.git/"+name)] = content + "\n"
	}
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	log := filepath.Join(bin, "log")
	script := "#!/bin/sh\necho \"$*\" >>" + log + "\nexec " + git + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	code, _, errs := w.run("", "apply", "--rm", aJail)
	if want := "(.git/refs/heads/b, .git/reftable/1.ref, .git/refs/heads/d)"; code != 1 || !strings.Contains(errs, want) {
		t.Errorf("apply = %d, %q; want 1 and %s", code, errs, want)
	}
	calls, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(calls), " cat-file --batch-check\n"); got != 1 || strings.Count(string(calls), "\n") != 2 {
		t.Errorf("commands of git:\n%swant one that finds the repository and one that finds objects", calls)
	}
}

// hostileConfig is the configuration of a repository that runs a program when git adds a file.
const hostileConfig = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n[filter \"x\"]\n\tclean = touch ran; cat\n\trequired = true\n[user]\n\tname = Eve\n\temail = eve@example.com\n"

// bareRepository returns changes that create what git takes for a repository with hostileConfig.
func (w *workspace) bareRepository() (changes []string) {
	for _, dir := range []string{"/objects", "/objects/info", "/refs", "/refs/heads"} {
		changes = append(changes, `{"path":"`+dir+`","kind":"added","type":"dir","mode":"755"}`)
	}
	for file, content := range map[string]string{"/HEAD": "ref: refs/heads/main\n", "/config": hostileConfig, "/.gitattributes": "* filter=x\n"} {
		changes = append(changes, `{"path":"`+file+`","kind":"added","type":"file","mode":"644"}`)
		w.answers["GET "+filesPath+"?offset=0&path="+url.QueryEscape("/work"+file)] = content
	}
	return changes
}

// The files of a jail can look like a bare repository, whose configuration names programs.
func TestApplyCommitIgnoresRepositoryOfTheJail(t *testing.T) {
	w := newWorkspace(t, "", addedFile)
	parent := filepath.Dir(w.dir)
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}} {
		if out, err := exec.Command("git", append([]string{"-C", parent}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	w.answers["GET /jails/"+aJail+"/fs/diff"] = items(append(w.bareRepository(), addedFile)...)
	code, out, errs := w.run("", "apply", aJail, "--commit")
	if got := w.file("ran"); got != "(none)" {
		t.Error("a program of the jail's configuration has run on the host")
	}
	if code != 0 || !strings.Contains(out, "committed as") {
		t.Errorf("apply = %d, %q, %q; want a commit", code, out, errs)
	}
	got, err := exec.Command("git", "--git-dir="+filepath.Join(parent, ".git"), "log", "-1", "--format=%an", "--name-only").Output()
	if err != nil || !strings.HasPrefix(string(got), "Ann\n") || !strings.Contains(string(got), filepath.Base(w.dir)+"/new.txt") {
		t.Errorf("the commit of the user's repository is %q, %v, want new.txt by Ann", got, err)
	}
}

func TestObjectsOfTheJailsRepositoryDoNotCount(t *testing.T) {
	w := newRepository(t)
	name := w.git("rev-parse", "HEAD")
	outside := t.TempDir()
	for _, args := range [][]string{{"clone", "-q", "--bare", w.dir, filepath.Join(w.dir, "bare")}, {"clone", "-q", w.dir, filepath.Join(w.dir, "nested")}, {"clone", "-q", w.dir, filepath.Join(outside, "r")}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	if err := errors.Join(os.Symlink(filepath.Join(outside, "r"), filepath.Join(w.dir, "link")), os.Symlink("nested", filepath.Join(w.dir, "inside"))); err != nil {
		t.Fatal(err)
	}
	for repo, want := range map[string]bool{"": true, "/nested": true, "/inside": true, "/bare": false, "/link": false, "/none": false} {
		if got := presentObjects(t.Context(), w.dir, repo, []string{name})[name]; got != want {
			t.Errorf("the repository at %q counts: %v, want %v", repo, got, want)
		}
	}
}

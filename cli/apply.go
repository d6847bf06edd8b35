package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"glasshouse/api/wire"
)

// An applier applies a jail's workspace changes to the directory that was the workspace's
// source. It does not trust the jail: it resolves every path inside the directory, and applies
// nothing below .git, where hooks, configuration and unfinished operations such as a rebase name
// programs that git on the host would run (githooks(5), git-config(1), git-rebase(1)).
type applier struct {
	root  *os.Root
	since time.Time            // files that the host changed after this time are conflicts
	own   map[string]time.Time // modification times of files that an earlier apply wrote, by path
	force bool                 // also apply conflicting changes
	dry   bool                 // only report what would be applied
	fetch func(ctx context.Context, path string) (io.ReadCloser, error)
	link  func(ctx context.Context, path string) (target string, err error)
}

// applied reports the applied and the skipped changes. After a dry run, these are the changes
// that would be applied and skipped.
type applied struct {
	DryRun  bool          `json:"dry_run,omitempty"`
	Done    []wire.Change `json:"done"`
	Skipped []skip        `json:"skipped,omitempty"`
	Git     int           `json:"git,omitempty"`    // number of changes below .git, which are not applied
	Commit  string        `json:"commit,omitempty"` // the git commit that contains the applied files

	Unfetched []string `json:"unfetched,omitempty"` // refs of the jail whose commits the host does not have
}

type skip struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// apply applies changes in an order that cannot fail on dependencies: deletions first, deepest
// path first, then the rest, parents first. A rename is a deletion and an addition. Both halves
// are applied or neither.
func (a *applier) apply(ctx context.Context, changes []wire.Change) (applied, error) {
	out := applied{DryRun: a.dry, Done: []wire.Change{}}
	var gone, come []wire.Change
	renamed := map[string]wire.Change{} // by new path
	for _, c := range changes {
		if inGitDir(c.Path) || inGitDir(c.From) {
			out.Git++
			continue
		}
		switch c.Kind {
		case "deleted":
			gone = append(gone, c)
		case "renamed":
			why, err := a.refuseRenamed(c)
			if err != nil {
				return out, err
			}
			if why != "" {
				out.Skipped = append(out.Skipped, skip{c.Path, why})
				continue
			}
			renamed[c.Path] = c
			was, is := splitRename(c)
			gone, come = append(gone, was), append(come, is)
		default:
			come = append(come, c)
		}
	}
	slices.SortFunc(gone, func(x, y wire.Change) int { return strings.Compare(y.Path, x.Path) })
	slices.SortFunc(come, func(x, y wire.Change) int { return strings.Compare(x.Path, y.Path) })
	for _, c := range append(gone, come...) {
		rel, err := localPath(c.Path)
		if err != nil {
			return out, err
		}
		if why := a.refuse(rel, c); why != "" {
			out.Skipped = append(out.Skipped, skip{c.Path, why})
			continue
		}
		if !a.dry {
			err := a.applyOne(ctx, rel, c)
			if errors.Is(err, syscall.ENOTEMPTY) && !a.force {
				out.Skipped = append(out.Skipped, skip{c.Path, "directory with other files on the host"})
				continue
			}
			if err != nil {
				return out, fmt.Errorf("apply %s: %w", c.Path, err)
			}
		}
		change, half := renamed[c.Path]
		switch {
		case half:
			out.Done = append(out.Done, change)
		case c.From == "": // not the deletion half of a rename
			out.Done = append(out.Done, c)
		}
	}
	return out, nil
}

// splitRename splits a renamed file into a deletion, whose From is the new path, and an
// addition.
func splitRename(c wire.Change) (was, is wire.Change) {
	was = wire.Change{Path: c.From, Kind: "deleted", Type: c.Type, From: c.Path}
	c.Kind, c.From = "added", ""
	return was, c
}

func (a *applier) refuseRenamed(c wire.Change) (why string, err error) {
	was, is := splitRename(c)
	for _, half := range []wire.Change{was, is} {
		rel, err := localPath(half.Path)
		if err != nil {
			return "", err
		}
		if why := a.refuse(rel, half); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// localPath converts the absolute path of a change to a relative one. It returns an error for a
// path that a correct daemon never sends.
func localPath(p string) (string, error) {
	rel, ok := strings.CutPrefix(p, "/")
	if !ok || rel == "" || path.Clean(p) != p {
		return "", fmt.Errorf("the daemon sent a path that is not clean: %q", p)
	}
	return rel, nil
}

// refuse returns the reason why a change is not applied, or "".
func (a *applier) refuse(rel string, c wire.Change) string {
	switch c.Type {
	case "file", "dir", "symlink":
	default:
		if c.Kind != "deleted" {
			return "files of type " + c.Type + " are not applied"
		}
	}
	fi, err := a.root.Lstat(rel)
	if err != nil || a.force {
		return ""
	}
	if c.Kind == "added" && !(c.Type == "dir" && fi.IsDir()) {
		return "created on the host since the run began"
	}
	own, ok := a.own[rel]
	if !fi.IsDir() && fi.ModTime().After(a.since) && !(ok && own.Equal(fi.ModTime())) {
		return "changed on the host since the run began"
	}
	return ""
}

// inGitDir reports whether a path is in a directory of git, or is a file named .git, which refers
// git to another directory (gitrepository-layout(5)).
func inGitDir(p string) bool {
	return slices.Contains(strings.Split(p, "/"), ".git")
}

func (a *applier) applyOne(ctx context.Context, rel string, c wire.Change) error {
	mode, err := strconv.ParseUint(c.Mode, 8, 32)
	if err != nil && c.Kind != "deleted" {
		return fmt.Errorf("mode %q: %w", c.Mode, err)
	}
	// The set-user-id bit would make the file run as the caller.
	perm := fs.FileMode(mode) & fs.ModePerm
	switch {
	case c.Kind == "deleted":
		return a.remove(rel)
	case c.Kind == "metadata":
		return a.root.Chmod(rel, perm)
	case c.Type == "dir":
		return a.dir(rel, perm)
	case c.Type == "symlink":
		return a.symlink(ctx, rel, c.Path)
	}
	return a.file(ctx, rel, c.Path, perm)
}

// remove removes a file or directory, if it exists. The content of a directory has changes of
// its own, which precede this one. Files that remain were changed on the host, so that only force
// removes them.
func (a *applier) remove(rel string) error {
	if a.force {
		return a.root.RemoveAll(rel)
	}
	err := a.root.Remove(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (a *applier) dir(rel string, perm fs.FileMode) error {
	if fi, err := a.root.Lstat(rel); err == nil && !fi.IsDir() {
		if err := a.root.Remove(rel); err != nil {
			return fmt.Errorf("replace the old file with a directory: %w", err)
		}
	}
	if err := a.root.Mkdir(rel, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return a.root.Chmod(rel, perm)
}

func (a *applier) symlink(ctx context.Context, rel, from string) error {
	target, err := a.link(ctx, from)
	if err != nil {
		return fmt.Errorf("read the link in the jail: %w", err)
	}
	if err := a.remove(rel); err != nil {
		return err
	}
	return a.root.Symlink(target, rel)
}

// file replaces rel atomically: an interrupted apply leaves either the old or the new content.
func (a *applier) file(ctx context.Context, rel, from string, perm fs.FileMode) (err error) {
	r, err := a.fetch(ctx, from)
	if err != nil {
		return fmt.Errorf("read the file in the jail: %w", err)
	}
	defer r.Close()
	if fi, err := a.root.Lstat(rel); err == nil && fi.IsDir() {
		if err := a.remove(rel); err != nil {
			return err
		}
	}
	tmp := path.Join(path.Dir(rel), ".glasshouse-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	w, err := a.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create a temporary file in the project: %w", err)
	}
	defer func() {
		if err != nil {
			w.Close()
			a.root.Remove(tmp)
		}
	}()
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("copy the content: %w", err)
	}
	if err := w.Chmod(perm); err != nil {
		return fmt.Errorf("set the mode of the temporary file: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("complete the temporary file: %w", err)
	}
	return a.root.Rename(tmp, rel)
}

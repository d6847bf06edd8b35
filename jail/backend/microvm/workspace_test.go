package microvm

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/jail"
)

// TestWorkspaceOfAnAttacker copies directories that contain all kinds of files, and one in which another
// process replaces a directory by a link meanwhile. No file of outside may reach the disk.
func TestWorkspaceOfAnAttacker(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	outside, source := filepath.Join(dir, "outside"), filepath.Join(dir, "source")
	const secret = "the host's secret"
	put(t, filepath.Join(outside, "a"), secret)
	put(t, filepath.Join(source, "a"), "fine")
	put(t, filepath.Join(source, "sub/a"), "below")
	put(t, filepath.Join(source, "mount/under"), "hidden by a mount")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(outside, filepath.Join(source, "link")))
	must(os.Symlink("../outside/a", filepath.Join(source, "sub/up")))
	must(os.Link(filepath.Join(source, "a"), filepath.Join(source, "sub/again")))
	must(unix.Mkfifo(filepath.Join(source, "fifo"), 0o644))
	must(unix.Mknod(filepath.Join(source, "device"), unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))))
	socket, err := net.Listen("unix", filepath.Join(source, "socket"))
	must(err)
	defer socket.Close()
	must(unix.Mount(outside, filepath.Join(source, "mount"), "", unix.MS_BIND, ""))
	defer unix.Unmount(filepath.Join(source, "mount"), unix.MNT_DETACH)

	p := jail.Plan{ID: "j-aaaaaaaaaaaa", Dir: dir, Workspace: &jail.Workspace{Source: source}}
	l := layout{dir}
	tool, err := disk.FindTool("debugfs")
	must(err)
	debugfs := func(command string) string {
		out, err := exec.Command(tool, "-R", command, l.workspace()).Output()
		must(err)
		return string(out)
	}
	check := func() {
		t.Helper()
		data, err := os.ReadFile(l.workspace())
		must(err)
		if strings.Contains(string(data), secret) {
			t.Fatal("a file of outside is on the disk")
		}
		if left, _ := filepath.Glob(l.workspace() + ".*"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
	must(makeWorkspace(t.Context(), p))
	check()
	for file, want := range map[string]string{"/root/a": "fine", "/root/sub/a": "below", "/root/sub/again": "fine"} {
		if got := debugfs("cat " + file); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	if got := debugfs("stat /root/link"); !strings.Contains(got, "Type: symlink") {
		t.Errorf("the link is %s", got)
	}
	if st, err := os.Stat(l.workspace()); err != nil || st.Size() != 64<<20 {
		t.Errorf("the disk has %v, %v, want 64 MiB", st, err)
	}

	must(os.Symlink(outside, filepath.Join(source, "other")))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, filepath.Join(source, "sub"), unix.AT_FDCWD, filepath.Join(source, "other"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	made := 0
	for range 8 {
		switch err := makeWorkspace(t.Context(), p); fault.KindOf(err) {
		case "":
			must(err)
			made++
		case fault.Conflict:
		default:
			t.Errorf("copy a directory that changes: %v", err)
		}
		check()
	}
	close(stop)
	<-stopped
	t.Logf("%d of 8 copies succeeded", made)

	before := maxWorkspace
	defer func() { maxWorkspace = before }()
	maxWorkspace.Files = 3
	if err := makeWorkspace(t.Context(), p); !errors.Is(err, fault.TooLarge) {
		t.Errorf("copy of too many files = %v, want too large", err)
	}
	check()
	maxWorkspace = before
	for what, change := range map[string]func(w *jail.Workspace){
		"a link":      func(w *jail.Workspace) { w.Source = filepath.Join(source, "link") },
		"a file":      func(w *jail.Workspace) { w.Source = filepath.Join(source, "a") },
		"not there":   func(w *jail.Workspace) { w.Source = filepath.Join(source, "missing") },
		"not a clean": func(w *jail.Workspace) { w.Source = source + "/../source" },
	} {
		q := p
		q.Workspace = &jail.Workspace{}
		change(q.Workspace)
		if err := makeWorkspace(t.Context(), q); err == nil {
			t.Errorf("%s was copied", what)
		}
	}
}

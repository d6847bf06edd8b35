package base

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

func TestMountPointStaysInsideJail(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("taking another id needs root")
	}
	outer := t.TempDir()
	root := filepath.Join(outer, "root")
	for _, dir := range []string{root, root + "/usr/share", outer + "/secret"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"share": "usr/share", "up": "../secret", "abs": "/usr/share", "out": outer + "/secret", "chain": "up",
		"loop": "loop", "nowhere": "absent/deep", "usr/share/back": "../../../../secret",
	} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}

	const id = 1234567
	for _, tt := range []struct {
		target string
		dir    bool
		want   string // "" means an error
	}{
		{"/usr/share", true, "/usr/share"},
		{"/share", true, "/usr/share"},
		{"/abs/new", true, "/usr/share/new"},
		{"/a/b/c", true, "/a/b/c"},
		{"/a/b/f", false, "/a/b/f"},
		{"/up", true, ""},             // secret does not exist in the jail
		{"/up/x", true, ""},           // nor anything below it
		{"/out/x", true, ""},          //
		{"/usr/share/back", true, ""}, //
		{"/chain", true, ""},          //
		{"/loop", true, ""},           //
		{"/nowhere", true, ""},        // a dangling link
		{"/file", true, ""},           // a directory needs a directory
		{"/usr", false, ""},           // a file needs a file
		{"/file", false, "/file"},     //
		{"/file/below", true, ""},     //
	} {
		got, err := MountPoint(root, tt.target, tt.dir, id)
		if tt.want == "" && err == nil {
			t.Errorf("MountPoint(%s) = %s, want an error", tt.target, got)
		}
		if tt.want != "" && (err != nil || got != tt.want) {
			t.Errorf("MountPoint(%s) = %s, %v, want %s", tt.target, got, err, tt.want)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(root+"/a/b/c", &st); err != nil || st.Uid != id || st.Gid != id {
		t.Errorf("owner of the mount point = %d:%d, %v, want %d", st.Uid, st.Gid, err, id)
	}
	if names, _ := os.ReadDir(outer + "/secret"); len(names) > 0 {
		t.Errorf("created outside of the root: %v", names)
	}
	if err := AsOwner(id, func() error { return fault.Conflict }); !errors.Is(err, fault.Conflict) {
		t.Errorf("asOwner does not return the error: %v", err)
	}
}

func TestMountPointDuringConcurrentRenames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("taking another id needs root")
	}
	root, other := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(root+"/run/app", 0o755), os.Mkdir(root+"/var", 0o755), os.Symlink("../run", root+"/var/run"),
		os.WriteFile(other+"/a", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for from, to := other+"/a", other+"/b"; err == nil; from, to = to, from {
			select {
			case <-end:
				ended <- nil
				return
			default:
				err = os.Rename(from, to)
			}
		}
		ended <- err
	}()
	for n := range 5000 {
		if got, err := MountPoint(root, "/var/run/app", true, 1234567); err != nil || got != "/run/app" {
			t.Fatalf("MountPoint(/var/run/app) = %s, %v after %d times, want /run/app", got, err, n)
		}
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

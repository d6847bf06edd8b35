package rootfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"glasshouse/fault"
	"glasshouse/jail"
)

func TestAddUser(t *testing.T) {
	const passwd = "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"
	lay := layoutWith(t, file("etc/passwd", passwd), file("etc/group", "root:x:0:\n"), file("bin/bash", "a shell"), file("a/b", "1"))
	p := open(t, allow("/"))
	base, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay})
	must(t, err)
	with, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay, User: "user"})
	must(t, err)
	if with.Digest == base.Digest || with.Dir == base.Dir {
		t.Fatalf("got the base tree %+v, want another tree", with)
	}
	for name, want := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/sh\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\n",
		"a/b":        "1",
	} {
		if got, err := os.ReadFile(filepath.Join(with.Dir, name)); string(got) != want || err != nil {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	if got, _ := os.ReadFile(filepath.Join(base.Dir, "etc/passwd")); string(got) != passwd {
		t.Errorf("/etc/passwd of the base tree has changed to %q", got)
	}
	home, err := os.Stat(filepath.Join(with.Dir, "home/user"))
	must(t, err)
	if st := home.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && st.Uid != 1000 {
		t.Errorf("the owner of the home is %d, want 1000", st.Uid)
	}
	one, err := os.Stat(filepath.Join(base.Dir, "a/b"))
	must(t, err)
	two, err := os.Stat(filepath.Join(with.Dir, "a/b"))
	must(t, err)
	if !os.SameFile(one, two) {
		t.Error("an unchanged file is not a hard link to that of the base tree")
	}
	again, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay, User: "user"})
	if err != nil || again.Digest != with.Digest {
		t.Errorf("the second Resolve = %+v, %v; want the same tree", again, err)
	}
	has, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay, User: "agent"})
	if err != nil || has.Digest != base.Digest {
		t.Errorf("with an existing user = %+v, %v; want the base tree", has, err)
	}
}

func TestRejectedUsers(t *testing.T) {
	p := open(t, allow("/"))
	lay := layoutWith(t, file("a", "1"))
	for _, name := range []string{"a:b", "a\nroot", "-x", "A", "../../etc", "a b"} {
		if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay, User: name}); !errors.Is(err, fault.Invalid) {
			t.Errorf("the user %q = %v, want invalid", name, err)
		}
	}
	dir := t.TempDir() // host directories are not modified
	if _, err := p.Resolve(t.Context(), jail.Rootfs{Dir: dir, User: "user"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a directory of the host = %v, want invalid", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("the directory was modified: %v", left)
	}
}

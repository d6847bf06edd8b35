package base

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
)

func TestWorkspaceOwnerAndRootAreSwapped(t *testing.T) {
	ids := jail.IDRange{First: 100000, Count: 65536}
	for _, tt := range []struct {
		owner uint32
		want  map[uint32]uint32 // on disk to in the jail
	}{
		{0, map[uint32]uint32{0: 0, 1: 1, 1000: 1000, 65535: 65535}},
		{1, map[uint32]uint32{0: 1, 1: 0, 2: 2, 65535: 65535}},
		{1000, map[uint32]uint32{1000: 0, 0: 1000, 1: 1, 999: 999, 1001: 1001, 65535: 65535}},
		{65535, map[uint32]uint32{65535: 0, 0: 65535, 1: 1, 65534: 65534}},
		{3000000, map[uint32]uint32{3000000: 0, 0: 65535, 1: 1, 65534: 65534}},
	} {
		m := swapOwner(tt.owner, ids)
		for disk, inside := range tt.want {
			if got := through(m, disk); got != int64(ids.First+inside) {
				t.Errorf("owner %d: id %d is mapped to %d, want %d", tt.owner, disk, got, ids.First+inside)
			}
		}
		seen := map[uint32]bool{}
		for _, r := range m {
			for i := range r.Count {
				if seen[r.Host+i] || r.Host+i < ids.First || r.Host+i >= ids.First+ids.Count {
					t.Fatalf("owner %d: id %d is mapped twice or out of range: %v", tt.owner, r.Host+i, m)
				}
				seen[r.Host+i] = true
			}
		}
	}
}

// through returns the id that id is mapped to, or -1.
func through(ms []overlay.Mapping, id uint32) int64 {
	for _, m := range ms {
		if id-m.Disk < m.Count && id >= m.Disk {
			return int64(m.Host + id - m.Disk)
		}
	}
	return -1
}

func TestOpenSource(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(dir, link), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{dir: true, file: false} {
		f, st, err := OpenSource("test", name)
		if err != nil || IsDir(st) != want {
			t.Errorf("OpenSource(%s) = %+v, %v, want a directory: %v", name, st, err, want)
			continue
		}
		f.Close()
	}
	for name, want := range map[string]fault.Kind{
		"file": fault.Invalid, dir + "/../x": fault.Invalid, link + "/file": fault.Invalid, pipe: fault.Invalid,
		dir + "/missing": fault.NotFound, file + "/below": fault.NotFound,
	} {
		if _, _, err := OpenSource("test", name); !errors.Is(err, want) {
			t.Errorf("OpenSource(%s): %v, want the kind %v", name, err, want)
		}
	}
}

func TestSealControlRejectsNonSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "init.sock")
	if err := os.Symlink("/run/docker.sock", socket); err != nil {
		t.Fatal(err)
	}
	if err := SealControl(socket, "test"); !errors.Is(err, fault.Denied) {
		t.Errorf("SealControl of a symbolic link: %v, want %v", err, fault.Denied)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(os.Chown(dir, 1000, 1000), os.Chown(socket, 1000, 1000), SealControl(socket, "test")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, socket} {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("%s belongs to %d:%d, %v, want 0:0", name, st.Uid, st.Gid, err)
		}
	}
}

func TestRecord(t *testing.T) {
	type record struct {
		procstat.Identity
		More string `json:"more"`
	}
	name := filepath.Join(t.TempDir(), "record.json")
	var got record
	if err := ReadRecord(name, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadRecord of a missing record: %v", err)
	}
	// The format is read by daemons of other releases.
	if err := os.WriteFile(name, []byte(`{"pid":7,"start":8,"boot":"b","more":"m"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	want := record{procstat.Identity{PID: 7, Start: 8, Boot: "b"}, "m"}
	if err := ReadRecord(name, &got); err != nil || got != want {
		t.Errorf("ReadRecord = %+v, %v, want %+v", got, err, want)
	}
	if err := WriteRecord(name, want); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(name); string(b) != `{"pid":7,"start":8,"boot":"b","more":"m"}` {
		t.Errorf("WriteRecord wrote %s", b)
	}
	if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReadRecord(name, &got); err == nil {
		t.Error("ReadRecord of a torn record succeeded")
	}
}

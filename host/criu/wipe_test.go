package criu

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// writeImage writes an image of the given records.
func writeImage(t *testing.T, name string, records ...proto.Message) {
	t.Helper()
	b := make([]byte, header)
	var err error
	for _, r := range records {
		b, err = appendRecord(b, r)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func vmaOf(from, to uint64, flags uint32, madv uint64) *vma.VmaEntry {
	return &vma.VmaEntry{
		Start: &from, End: &to, Pgoff: ptr(uint64(0)), Shmid: ptr(uint64(0)), Prot: ptr(uint32(3)),
		Flags: &flags, Status: ptr(uint32(0)), Fd: ptr(int64(-1)), Madv: &madv,
	}
}

func TestWipeZeroesUnsharedMemory(t *testing.T) {
	dir, page := t.TempDir(), pageSize
	const private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	space := &mm.MmEntry{
		MmStartCode: ptr(uint64(0)), MmEndCode: ptr(uint64(0)), MmStartData: ptr(uint64(0)), MmEndData: ptr(uint64(0)),
		MmStartStack: ptr(uint64(0)), MmStartBrk: ptr(uint64(0)), MmBrk: ptr(uint64(0)), MmArgStart: ptr(uint64(0)),
		MmArgEnd: ptr(uint64(0)), MmEnvStart: ptr(uint64(0)), MmEnvEnd: ptr(uint64(0)), ExeFileId: ptr(uint32(0)),
		Vmas: []*vma.VmaEntry{
			vmaOf(10*page, 13*page, private, 0),
			vmaOf(13*page, 15*page, private, 1<<unix.MADV_WIPEONFORK),
			vmaOf(20*page, 21*page, unix.MAP_DROPPABLE|unix.MAP_ANONYMOUS, 0),
			vmaOf(30*page, 31*page, unix.MAP_SHARED|unix.MAP_ANONYMOUS, 0),
			vmaOf(40*page, 42*page, private, 1<<unix.MADV_WIPEONFORK|1<<unix.MADV_DONTDUMP),
		},
	}
	run := func(at, n uint64, flags uint32) *pagemap.PagemapEntry {
		return &pagemap.PagemapEntry{Vaddr: ptr(at * page), CompatNrPages: ptr(uint32(n)), NrPages: &n, Flags: &flags}
	}
	writeImage(t, filepath.Join(dir, "mm-7.img"), space)
	writeImage(t, filepath.Join(dir, "pagemap-7.img"), &pagemap.PagemapHead{PagesId: ptr(uint32(3))},
		run(12, 3, isPresent), run(20, 1, isPresent), run(30, 1, isPresent), run(40, 1, 0), run(41, 1, isPresent|isLazy))
	writeImage(t, filepath.Join(dir, "pagemap-shmem-1.img"), &pagemap.PagemapHead{PagesId: ptr(uint32(4))})
	full := bytes.Repeat([]byte{0xaa}, int(page))
	empty := make([]byte, page)
	pages := filepath.Join(dir, "pages-3.img")
	if err := os.WriteFile(pages, bytes.Repeat(full, 6), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Wipe(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(pages)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]byte{full, empty, empty, empty, full, empty}
	if len(got) != len(want)*int(page) {
		t.Fatalf("pages file has %d bytes, want %d", len(got), len(want)*int(page))
	}
	for i, w := range want {
		if p := got[i*int(page) : (i+1)*int(page)]; !bytes.Equal(p, w) {
			t.Errorf("page %d starts with %x, want %x", i, p[:4], w[:4])
		}
	}
}

// releases are pairs of CRIU and kernel, and whether they work together.
var releases = []struct {
	criu, kernel string
	fits         bool
}{
	{"4.1", "6.1.0-40-amd64", true},
	{"4.1.1", "6.10.14", true},
	{"4.1.1", "6.11.0", false}, // vDSO getrandom
	{"4.1.1", "6.12.48+deb13-amd64", false},
	{"4.2", "6.12.48+deb13-amd64", true},
	{"4.1", "6.18.4", false},
	{"4.2.1", "6.18.4", true},
	{"5.0", "7.0.0", true},
	{"3.17.1", "6.18.4", false},
	{"3.19", "6.1.0", false},
}

func TestIncompatibleReleases(t *testing.T) {
	for _, tt := range releases {
		if why := incompatible(tt.criu, tt.kernel); (why == "") != tt.fits {
			t.Errorf("CRIU %s on Linux %s: reason %q, want compatible = %v", tt.criu, tt.kernel, why, tt.fits)
		}
	}
}

// scripts/setup.sh must not accept a CRIU that the backend rejects.
func TestSetupAcceptsTheSameReleases(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\n[ $1 = check ] || echo Version: $CRIU\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range releases {
		cmd := exec.Command("bash", "-c", `. ../../scripts/setup.sh; uname() { echo "$KERNEL"; }; ! criu_fits "$0" || echo fits`, fake)
		cmd.Env = append(os.Environ(), "CRIU="+tt.criu, "KERNEL="+tt.kernel)
		out, err := cmd.CombinedOutput()
		if want := map[bool]string{true: "fits\n"}[tt.fits]; err != nil || string(out) != want {
			t.Errorf("CRIU %s on Linux %s: setup.sh says %q, %v, want %q", tt.criu, tt.kernel, out, err, want)
		}
	}
}

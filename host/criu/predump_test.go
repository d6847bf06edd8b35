package criu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// TestMain lets the test binary act as a mock CRIU (see mockCRIU) or as a waiting process (see
// startWaiter).
func TestMain(m *testing.M) {
	if role := os.Getenv(stuckRole); role != "" {
		os.Exit(runWaiter(role))
	}
	if at := os.Getenv("GLASSHOUSE_TEST_CRIU"); at != "" {
		os.Exit(runMock(at))
	}
	os.Exit(m.Run())
}

// mockCRIU returns a mock CRIU that logs its requests to the file asked in dir at, writes
// images of three pages, and fails an operation NAME if a file fail-NAME exists.
func mockCRIU(t *testing.T) (tool *Tool, at string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	at = t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nGLASSHOUSE_TEST_CRIU=%s exec %s \"$@\"\n", at, self)
	if err := os.WriteFile(filepath.Join(at, "criu"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return New(filepath.Join(at, "criu"), ""), at
}

// runMock is one run of the mock CRIU.
func runMock(at string) int {
	if os.Args[1] == "check" {
		if _, err := os.Stat(filepath.Join(at, "fail-check")); err == nil {
			fmt.Println("Warn  (criu/cr-check.c:824): Dirty tracking is OFF. Memory snapshot will not work.")
			return 1
		}
		return 0
	}
	buf := make([]byte, maxMessage)
	n, err := unix.Read(3, buf)
	if err != nil {
		return 2
	}
	var req rpc.CriuReq
	if err := req.UnmarshalVT(buf[:n]); err != nil {
		return 2
	}
	o := req.GetOpts()
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getppid(), o.GetImagesDirFd()))
	if err != nil {
		return 2
	}
	name := req.GetType().String()
	asked, err := os.OpenFile(filepath.Join(at, "asked"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 2
	}
	fmt.Fprintf(asked, "%s to %s, track %t, parent %q, freezer %t, leave %t\n", name, filepath.Base(dir), o.GetTrackMem(), o.GetParentImg(), o.GetFreezeCgroup() != "", o.GetLeaveRunning())
	asked.Close()
	ok := true
	for _, why := range []string{"fail-" + name, "fail-" + name + "-" + o.GetParentImg()} {
		if _, err := os.Stat(filepath.Join(at, why)); err == nil {
			os.WriteFile(filepath.Join(dir, "half.img"), nil, 0o600)
			ok = false
		}
	}
	if ok {
		switch {
		case req.GetType() == rpc.CriuReqType_PRE_DUMP:
			err = write(dir, []run{{0x1000, 4, isPresent | isLazy}, {0x9000, 1, isPresent}}, "abcde")
		case o.GetParentImg() != "":
			err = os.Symlink(o.GetParentImg(), filepath.Join(dir, parentLink))
			if err == nil {
				err = write(dir, []run{{0x1000, 1, inParent}, {0x2000, 1, isPresent | isLazy}, {0x3000, 2, inParent}, {0x8000, 1, isPresent}, {0x9000, 1, inParent}}, "BX")
			}
		default:
			err = write(dir, []run{{0x1000, 4, isPresent | isLazy}}, "full")
		}
		if err != nil {
			return 2
		}
	}
	b, err := (&rpc.CriuResp{Type: req.Type, Success: &ok, Dump: &rpc.CriuDumpResp{}}).MarshalVT()
	if err != nil {
		return 2
	}
	if _, err := unix.Write(3, b); err != nil {
		return 2
	}
	return 0
}

// A run is a number of pages at an address.
type run struct {
	at    uint64
	n     int
	flags uint32
}

// write writes images of one process. Each page is filled with one letter.
func write(dir string, runs []run, letters string) error {
	image, err := appendRecord([]byte("magicnum"), &pagemap.PagemapHead{PagesId: ptr[uint32](7)})
	for _, r := range runs {
		if err == nil {
			image, err = appendRecord(image, &pagemap.PagemapEntry{Vaddr: ptr(r.at), CompatNrPages: ptr(uint32(r.n)), NrPages: ptr(uint64(r.n)), Flags: ptr(r.flags)})
		}
	}
	if err != nil {
		return err
	}
	var pages []byte
	for _, l := range []byte(letters) {
		pages = append(pages, bytes.Repeat([]byte{l}, os.Getpagesize())...)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "pagemap-1.img"), image, 0o600),
		os.WriteFile(filepath.Join(dir, "pages-7.img"), pages, 0o600))
}

// read returns the pages of an image: address, letter, and ~ if the page is lazy.
func read(t *testing.T, dir string) string {
	t.Helper()
	h, err := readPart(filepath.Join(dir, "pagemap-1.img"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := os.ReadFile(h.pages)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, e := range h.runs {
		for i := range pagesOf(e) {
			letter := "-"
			if stored(e) {
				if !bytes.Equal(pages[:pageSize], bytes.Repeat(pages[:1], int(pageSize))) {
					t.Errorf("page %#x contains different bytes", e.GetVaddr())
				}
				letter, pages = string(pages[:1]), pages[pageSize:]
			}
			lazy := ""
			if e.GetFlags()&isLazy != 0 {
				lazy = "~"
			}
			said = append(said, fmt.Sprintf("%x%s%s", e.GetVaddr()+i*pageSize, letter, lazy))
		}
	}
	if len(pages) > 0 {
		t.Errorf("%d bytes of the pages file are unreferenced", len(pages))
	}
	return strings.Join(said, " ")
}

func (s *mockDump) requests(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.at, "asked"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// A mockDump is a dump with a mock CRIU.
type mockDump struct {
	tool *Tool
	at   string
	dump Dump
}

func newMockDump(t *testing.T) *mockDump {
	tool, at := mockCRIU(t)
	tree, err := cgroup.New(fmt.Sprintf("glasshouse-criu-%d", os.Getpid()))
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { tree.Remove() })
	cg, err := tree.Create("stage", cgroup.Limits{})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { tree.Destroy(t.Context(), "stage") })
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "jail.json"), []byte("{}"), 0o600); err != nil { // belongs to another package
		t.Fatal(err)
	}
	return &mockDump{tool, at, Dump{PID: os.Getpid(), Netns: "/proc/self/ns/net", Cgroup: cg, Dir: dir}}
}

func (s *mockDump) failOn(t *testing.T, what string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.at, "fail-"+what), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *mockDump) files(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(s.dump.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestPreDumpDumpAndMerge(t *testing.T) {
	s := newMockDump(t)
	if err := s.tool.PreDump(t.Context(), s.dump); err != nil {
		t.Fatal(err)
	}
	if err := s.tool.Dump(t.Context(), s.dump); err != nil {
		t.Fatal(err)
	}
	want := "PRE_DUMP to ahead, track true, parent \"\", freezer false, leave false\n" +
		"DUMP to images, track true, parent \"ahead\", freezer true, leave true"
	if got := s.requests(t); got != want {
		t.Errorf("CRIU requests:\n%s\nwant\n%s", got, want)
	}
	for range 2 { // merging twice has no effect
		if err := MergePreDump(s.dump.Dir); err != nil {
			t.Fatal(err)
		}
		if got, want := read(t, s.dump.Dir), "1000a~ 2000B~ 3000c~ 4000d~ 8000X 9000e"; got != want {
			t.Errorf("pages = %s, want %s", got, want)
		}
		if got, want := s.files(t), "jail.json pagemap-1.img pages-7.img"; got != want {
			t.Errorf("files = %s, want %s", got, want)
		}
	}
	// The restoring CRIU reads the file as root of a jail, which is an unprivileged user here.
	if fi, err := os.Stat(filepath.Join(s.dump.Dir, "pages-7.img")); err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("mode of the merged file = %v, %v, want 0644", fi.Mode(), err)
	}
}

func TestFailedPreDumpLeavesFullDump(t *testing.T) {
	s := newMockDump(t)
	s.failOn(t, "PRE_DUMP")
	if err := s.tool.PreDump(t.Context(), s.dump); err == nil {
		t.Fatal("PreDump = nil, want an error")
	}
	if got, want := s.files(t), "jail.json"; got != want {
		t.Errorf("files after failure = %s, want %s", got, want)
	}
	if err := errors.Join(s.tool.Dump(t.Context(), s.dump), MergePreDump(s.dump.Dir)); err != nil {
		t.Fatal(err)
	}
	if got := s.requests(t); !strings.HasSuffix(got, "\nDUMP to images, track false, parent \"\", freezer true, leave true") {
		t.Errorf("CRIU requests:\n%s", got)
	}
	if got, want := read(t, s.dump.Dir), "1000f~ 2000u~ 3000l~ 4000l~"; got != want {
		t.Errorf("pages = %s, want %s", got, want)
	}
}

func TestDumpWithUnusablePreDumpWritesAll(t *testing.T) {
	s := newMockDump(t)
	if err := s.tool.PreDump(t.Context(), s.dump); err != nil {
		t.Fatal(err)
	}
	s.failOn(t, "DUMP-ahead")
	if err := errors.Join(s.tool.Dump(t.Context(), s.dump), MergePreDump(s.dump.Dir)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(s.requests(t), "\n"); n != 2 {
		t.Errorf("CRIU requests:\n%s", s.requests(t))
	}
	if got, want := s.files(t), "jail.json pagemap-1.img pages-7.img"; got != want {
		t.Errorf("files = %s, want %s", got, want)
	}
	if got, want := read(t, s.dump.Dir), "1000f~ 2000u~ 3000l~ 4000l~"; got != want {
		t.Errorf("pages = %s, want %s", got, want)
	}
	s.failOn(t, "DUMP")
	if err := s.tool.Dump(t.Context(), s.dump); err == nil {
		t.Error("Dump without a pre-dump = nil, want an error")
	}
}

func TestProbeDirtyTrackingReportsMissingKernelFeature(t *testing.T) {
	tool, at := mockCRIU(t)
	if err := tool.ProbeDirtyTracking(t.Context()); err != nil {
		t.Errorf("Tracks = %v", err)
	}
	if err := os.WriteFile(filepath.Join(at, "fail-check"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := tool.ProbeDirtyTracking(t.Context())
	if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" || strings.Contains(err.Error(), "will not work") {
		t.Errorf("Tracks = %v, remedy %q", err, fault.RemedyOf(err))
	}
}

func TestMergeRejectsInconsistentImages(t *testing.T) {
	for name, runs := range map[string][]run{
		"missing page":              {{0x5000, 1, inParent}},
		"too many pages":            {{0x1000, 5, inParent}},
		"not in the pre-dump":       {{0x8000, 2, inParent}},
		"pages missing in the dump": {{0x2000, 9, isPresent}, {0x9000, 1, inParent}},
	} {
		dir := t.TempDir()
		must := errors.Join(os.Mkdir(filepath.Join(dir, preDumpDir), 0o700),
			write(filepath.Join(dir, preDumpDir), []run{{0x1000, 4, isPresent}, {0x9000, 1, isPresent}}, "abcde"), write(dir, runs, "B"))
		if must != nil {
			t.Fatal(must)
		}
		if err := MergePreDump(dir); err == nil {
			t.Errorf("%s: MergePreDump = nil, want an error", name)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
			t.Errorf("%s: MergePreDump left %v", name, left)
		}
	}
}

func FuzzMerge(f *testing.F) {
	head, _ := appendRecord([]byte("magicnum"), &pagemap.PagemapHead{PagesId: ptr[uint32](7)})
	entry, _ := appendRecord(bytes.Clone(head), &pagemap.PagemapEntry{Vaddr: ptr[uint64](0x1000), NrPages: ptr[uint64](1), Flags: ptr[uint32](inParent)})
	here, _ := appendRecord(bytes.Clone(head), &pagemap.PagemapEntry{Vaddr: ptr[uint64](0x1000), NrPages: ptr[uint64](1), Flags: ptr[uint32](isPresent)})
	f.Add(entry, here)
	f.Add(head, head)
	f.Add(entry, []byte(nil))
	f.Add(binary.LittleEndian.AppendUint32([]byte("magicnum"), 1<<31), here)
	huge, _ := proto.Marshal(&pagemap.PagemapEntry{Vaddr: ptr[uint64](1 << 63), NrPages: ptr[uint64](1 << 60)})
	f.Add(append(binary.LittleEndian.AppendUint32(bytes.Clone(head), uint32(len(huge))), huge...), here)
	f.Fuzz(func(t *testing.T, now, was []byte) {
		dir := t.TempDir()
		page := make([]byte, os.Getpagesize())
		err := errors.Join(os.Mkdir(filepath.Join(dir, preDumpDir), 0o700),
			os.WriteFile(filepath.Join(dir, "pagemap-1.img"), now, 0o600), os.WriteFile(filepath.Join(dir, preDumpDir, "pagemap-1.img"), was, 0o600),
			os.WriteFile(filepath.Join(dir, "pages-7.img"), page, 0o600), os.WriteFile(filepath.Join(dir, preDumpDir, "pages-7.img"), page, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		if MergePreDump(dir) != nil {
			return
		}
		h, err := readPart(filepath.Join(dir, "pagemap-1.img"))
		if err != nil {
			return // nothing to merge, and not a pagemap
		}
		for _, e := range h.runs {
			if fromParent(e) {
				t.Errorf("%v still refers to the pre-dump", e)
			}
		}
	})
}

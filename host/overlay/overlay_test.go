package overlay_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
)

const first, count = 700000, 65536

// A stage is an ext4 volume for layers. The test fails if a mount remains.
type stage struct {
	t   testing.TB
	dir string
}

func newStage(t testing.TB) *stage {
	t.Helper()
	for _, probe := range []func() error{overlay.Probe, disk.Probe} {
		if err := probe(); errors.Is(err, fault.Unsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatalf("Probe was inconclusive: %v", err)
		}
	}
	top := t.TempDir()
	s := &stage{t, filepath.Join(top, "volume")}
	s.must(os.Chmod(filepath.Dir(top), 0o711)) // other users need access to the files
	s.must(os.Mkdir(s.dir, 0o755))
	s.must(disk.Make(t.Context(), top+"/disk.img", s.dir, 64, top))
	t.Cleanup(func() {
		s.must(overlay.UnmountBelow(s.dir))
		if left, err := overlay.MountsBelow(top); err != nil || len(left) != 0 {
			t.Errorf("mounts left: %v, %v", left, err)
		}
		s.must(disk.Unmount(s.dir))
		left, err := disk.Leftovers(top)
		for deadline := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond) // the kernel is still releasing mounts
			left, err = disk.Leftovers(top)
		}
		if err != nil || len(left) != 0 {
			t.Errorf("loop devices left: %v, %v", left, err)
		}
	})
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) mkdir(name string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	s.must(os.MkdirAll(path, 0o755))
	return path
}

func (s *stage) write(content string, elem ...string) {
	s.t.Helper()
	s.must(os.WriteFile(filepath.Join(elem...), []byte(content), 0o644))
}

func (s *stage) read(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func owner(path string) uint32 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return ^uint32(0)
	}
	return st.Uid
}

func (s *stage) idmap() *os.File {
	s.t.Helper()
	ids, err := overlay.IDMapFD(first, count)
	s.must(err)
	s.t.Cleanup(func() { ids.Close() })
	return ids
}

// as runs a shell command as another user.
func as(uid uint32, command string) error {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s as %d: %w: %s", command, uid, err, out)
	}
	return nil
}

// jail mounts the layers of a jail: lower and upper through the jail's id map.
func (s *stage) jail(lower string) (merged, upper string) {
	s.t.Helper()
	ids := s.idmap()
	low, rw, merged := s.mkdir("low"), s.mkdir("rw"), s.mkdir("merged")
	upper = s.mkdir("layers/upper")
	s.mkdir("layers/work")
	s.must(overlay.Clone(lower, low, overlay.CloneOptions{IDMap: ids, Options: overlay.Options{ReadOnly: true}}))
	s.must(overlay.Clone(filepath.Join(s.dir, "layers"), rw, overlay.CloneOptions{IDMap: ids}))
	s.must(overlay.Mount(merged, []string{low}, rw+"/upper", rw+"/work", overlay.Options{NoDev: true}))
	s.must(overlay.Unmount(low))
	s.must(overlay.Unmount(rw))
	return merged, upper
}

func TestIDMapping(t *testing.T) {
	for _, kernel := range []string{"this", "old"} {
		t.Run(kernel, func(t *testing.T) {
			if kernel == "old" {
				overlay.ByString(t)
			}
			s := newStage(t)
			lower := s.mkdir("image")
			s.write("from the image", lower, "base")
			s.write("secret", lower, "gone")
			s.must(os.Mkdir(lower+"/home", 0o755))
			s.must(os.Chown(lower+"/home", 5, 5))
			merged, upper := s.jail(lower)

			if got := owner(merged + "/base"); got != first {
				t.Errorf("root's file of the image shows as %d, want %d", got, first)
			}
			s.must(as(first+5, "echo mine > "+merged+"/home/new"))
			if got := owner(upper + "/home/new"); got != 5 {
				t.Errorf("a file written by id 5 of the jail is %d's on disk, want 5", got)
			}
			if got := s.read(upper, "home/new"); got != "mine\n" {
				t.Errorf("the upper layer holds %q", got)
			}
			if err := as(first+5, "echo no > "+merged+"/base"); err == nil {
				t.Error("id 5 of the jail wrote root's file")
			}

			s.must(as(first, "echo changed > "+merged+"/base; rm "+merged+"/gone"))
			if got := s.read(lower, "base") + s.read(lower, "gone"); got != "from the imagesecret" {
				t.Errorf("the image was changed to %q", got)
			}
			if _, err := os.Stat(merged + "/gone"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("stat of a removed file = %v", err)
			}
			var st unix.Stat_t
			s.must(unix.Lstat(upper+"/gone", &st))
			if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
				t.Errorf("a removed file left mode %o, want a whiteout", st.Mode)
			}
			if err := as(1000, "echo stranger > "+merged+"/home/r"); err == nil {
				t.Error("an ordinary user of the host wrote to the jail's files")
			}
			s.must(as(first+5, "mv "+merged+"/home/new "+merged+"/home/newer && echo more >> "+merged+"/home/newer"))
			if got := s.read(upper, "home/newer"); got != "mine\nmore\n" || owner(upper+"/home/newer") != 5 {
				t.Errorf("after moving it the file is %d's on disk and holds %q", owner(upper+"/home/newer"), got)
			}
		})
	}
}

func TestNamesWithSpecialCharacters(t *testing.T) {
	for _, kernel := range []string{"this", "old"} {
		t.Run(kernel, func(t *testing.T) {
			if kernel == "old" {
				overlay.ByString(t)
			}
			s := newStage(t)
			odd := `a:b,c\d e"` + "\n" + strings.Repeat("x", 200)
			low := []string{s.mkdir(odd + "/1"), s.mkdir(odd + "/2")}
			s.write("one", low[0], "f")
			s.write("two", low[1], "f")
			s.write("two", low[1], "g")
			up, work, merged := s.mkdir(odd+"/up"), s.mkdir(odd+"/work"), s.mkdir(odd+"/merged")
			s.must(overlay.Mount(merged, low, up, work, overlay.Options{}))
			if got := s.read(merged, "f") + s.read(merged, "g"); got != "onetwo" {
				t.Errorf("f and g read %q, want the topmost of each", got)
			}
			s.write("new", merged, "h")
			if got := s.read(up, "h"); got != "new" {
				t.Errorf("the upper layer holds %q", got)
			}
			got, err := overlay.MountsBelow(filepath.Join(s.dir, odd))
			s.must(err)
			if len(got) != 1 || got[0] != merged {
				t.Errorf("MountsBelow = %q, want %q", got, merged)
			}
			s.must(overlay.UnmountBelow(filepath.Join(s.dir, odd)))
			if _, err := os.Stat(merged + "/h"); err == nil {
				t.Error("still mounted")
			}
		})
	}
}

func TestMaxLayers(t *testing.T) {
	for _, kernel := range []string{"this", "old"} {
		for _, n := range []int{100, overlay.MaxLayers} {
			t.Run(fmt.Sprint(kernel, n), func(t *testing.T) {
				if kernel == "old" {
					overlay.ByString(t)
				}
				s := newStage(t)
				var lower []string
				for i := range n {
					dir := s.mkdir(fmt.Sprintf("%s/%d", strings.Repeat("long", 20), i))
					s.write(fmt.Sprint(i), dir, "top")
					s.write(fmt.Sprint(i), dir, fmt.Sprint("only", i))
					lower = append(lower, dir)
				}
				merged := s.mkdir("merged")
				s.must(overlay.Mount(merged, lower, "", "", overlay.Options{ReadOnly: true}))
				last := fmt.Sprint(n - 1)
				if top, bottom := s.read(merged, "top"), s.read(merged, "only"+last); top != "0" || bottom != last {
					t.Errorf("top reads %q and the lowest layer's file %q", top, bottom)
				}
				if err := os.WriteFile(merged+"/x", nil, 0o600); !errors.Is(err, unix.EROFS) {
					t.Errorf("write without an upper layer = %v", err)
				}
			})
		}
	}
}

func TestInvalidLayers(t *testing.T) {
	s := newStage(t)
	a, b := s.mkdir("a"), s.mkdir("b")
	for _, c := range []struct {
		why         string
		lower       []string
		upper, work string
	}{
		{"no layer", nil, "", ""},
		{"one layer and no upper", []string{a}, "", ""},
		{"upper without work", []string{a}, b, ""},
		{"too many", make([]string, overlay.MaxLayers+1), "", ""},
	} {
		if err := overlay.Mount(s.mkdir("m"), c.lower, c.upper, c.work, overlay.Options{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", c.why, err)
		}
	}
	if err := overlay.Mount(s.mkdir("m"), []string{a, s.dir + "/missing"}, "", "", overlay.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing layer: %v", err)
	}
	if err := overlay.Mount(s.mkdir("m"), []string{a}, b, "/proc/self", overlay.Options{}); err == nil {
		t.Error("a work directory on another filesystem was accepted")
	} else {
		t.Log("the kernel says:", err)
	}
}

func TestMountDetectsReadOnlyOverlay(t *testing.T) {
	s := newStage(t)
	jailOnly := []overlay.Mapping{{Disk: 0, Host: first, Count: count}} // no id for the host's root
	ids, err := overlay.IDMap(jailOnly, jailOnly)
	s.must(err)
	defer ids.Close()
	rw := s.mkdir("rw")
	s.mkdir("rw/upper")
	s.mkdir("rw/work")
	s.must(overlay.Clone(rw, rw, overlay.CloneOptions{IDMap: ids}))
	merged := s.mkdir("merged")
	if err := overlay.Mount(merged, []string{s.mkdir("low")}, rw+"/upper", rw+"/work", overlay.Options{}); !errors.Is(err, unix.EROFS) {
		t.Errorf("Mount = %v, want a read-only file system", err)
	}
	if got, _ := overlay.MountsBelow(merged); len(got) != 0 {
		t.Errorf("still mounted: %v", got)
	}
}

func TestUserDirectoryOwnedByJailRoot(t *testing.T) {
	s := newStage(t)
	src, dst := s.mkdir("home"), s.mkdir("seen")
	s.write("hello", src, "file")
	s.write("other", src, "other")
	s.must(os.Chown(src, 1000, 1001))
	s.must(os.Chown(src+"/file", 1000, 1001))

	ids, err := overlay.IDMap([]overlay.Mapping{{Disk: 1000, Host: first, Count: 1}}, []overlay.Mapping{{Disk: 1001, Host: first, Count: 1}})
	s.must(err)
	defer ids.Close()
	s.must(overlay.Clone(src, dst, overlay.CloneOptions{IDMap: ids}))
	s.must(as(first, "echo x >> "+dst+"/file; echo y > "+dst+"/new"))
	if got := owner(src + "/new"); got != 1000 {
		t.Errorf("a file made by the jail's root is %d's on disk, want 1000", got)
	}
	if got := owner(dst + "/other"); got != 65534 {
		t.Errorf("an unmapped owner shows as %d, want nobody", got)
	}
	if err := as(first+1, "echo z > "+dst+"/z"); err == nil {
		t.Error("an unmapped user of the jail wrote to the directory")
	}
}

func TestOpenFileIsShownAsUsers(t *testing.T) {
	s := newStage(t)
	name := filepath.Join(s.dir, "disk")
	s.must(os.WriteFile(name, []byte("x"), 0o600))
	ids, err := overlay.IDMap([]overlay.Mapping{{Disk: 0, Host: first, Count: 1}}, []overlay.Mapping{{Disk: 0, Host: first, Count: 1}})
	s.must(err)
	defer ids.Close()
	f, err := os.Open(name)
	s.must(err)
	defer f.Close()
	readOnly, err := overlay.OpenReadOnly(f, ids)
	s.must(err)
	defer readOnly.Close()
	for _, c := range []struct {
		what string
		f    *os.File
		do   string
		ok   bool
	}{
		{"read the read-only file", readOnly, "cat /proc/self/fd/3", true},
		{"write to the read-only file", readOnly, "echo more >> /proc/self/fd/3", false},
		{"change the mode of the read-only file", readOnly, "chmod 666 /proc/self/fd/3", false},
		{"read the file without a map", f, "cat /proc/self/fd/3", false},
	} {
		cmd := exec.Command("sh", "-c", c.do)
		cmd.ExtraFiles = []*os.File{c.f}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: first, Gid: first}}
		if out, err := cmd.CombinedOutput(); (err == nil) != c.ok {
			t.Errorf("the user can %s: %v, want %v: %s", c.what, err == nil, c.ok, out)
		}
	}
	if info, err := os.Stat(name); err != nil || s.read(name) != "x" || info.Mode() != 0o600 || owner(name) != 0 {
		t.Errorf("the file has %q, %v, %v and belongs to %d, want it unchanged", s.read(name), info, err, owner(name))
	}
	proc, err := os.Open("/proc/version")
	s.must(err)
	defer proc.Close()
	if _, err := overlay.OpenReadOnly(proc, ids); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("a mapped file of /proc = %v, want unsupported with a remedy", err)
	}
}

func TestCloneOptions(t *testing.T) {
	s := newStage(t)
	src, dst := s.mkdir("src"), s.mkdir("dst")
	s.write("x", src, "file")
	s.write("", dst+"-file")
	s.must(overlay.Clone(src+"/file", dst+"-file", overlay.CloneOptions{}))
	if got := s.read(dst + "-file"); got != "x" {
		t.Errorf("a cloned file reads %q", got)
	}
	s.must(overlay.Clone(src, dst, overlay.CloneOptions{Options: overlay.Options{ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true}}))
	if err := os.WriteFile(dst+"/file", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a read-only clone = %v", err)
	}
	s.must(os.WriteFile(src+"/file", nil, 0o600))
	var st unix.Statfs_t
	s.must(unix.Statfs(dst, &st))
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); st.Flags&want != want {
		t.Errorf("flags of the clone = %x", st.Flags)
	}

	below := s.mkdir("src/below")
	s.must(unix.Mount("t", below, "tmpfs", 0, ""))
	s.write("deep", below, "deep")
	plain, all := s.mkdir("plain"), s.mkdir("all")
	s.must(overlay.Clone(src, plain, overlay.CloneOptions{}))
	s.must(overlay.Clone(src, all, overlay.CloneOptions{Recursive: true}))
	if _, err := os.Stat(plain + "/below/deep"); err == nil {
		t.Error("a plain clone shows the mount below its source")
	}
	if got := s.read(all, "below/deep"); got != "deep" {
		t.Errorf("a recursive clone reads %q below", got)
	}
}

func TestCloneWithoutIDMapSupport(t *testing.T) {
	s := newStage(t)
	err := overlay.Clone("/proc", s.mkdir("p"), overlay.CloneOptions{IDMap: s.idmap()})
	if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("an idmapped clone of /proc = %v, want unsupported with a remedy", err)
	}
}

func TestUnmountStackedAndBusyMounts(t *testing.T) {
	s := newStage(t)
	a, b, dst := s.mkdir("a"), s.mkdir("b"), s.mkdir("dst")
	for range 3 {
		s.must(overlay.Clone(a, dst, overlay.CloneOptions{}))
		s.must(overlay.Mount(dst, []string{a, b}, "", "", overlay.Options{}))
	}
	held, err := os.Open(dst)
	s.must(err)
	defer held.Close()
	if got, _ := overlay.MountsBelow(dst); len(got) != 6 {
		t.Errorf("MountsBelow = %v, want 6 stacked", got)
	}
	for range 2 {
		s.must(overlay.Unmount(dst))
	}
	if got, _ := overlay.MountsBelow(dst); len(got) != 0 {
		t.Errorf("after Unmount %v is left", got)
	}
	s.must(overlay.Unmount(s.dir + "/never/was"))
	s.must(overlay.UnmountBelow(s.dir + "/never/was"))
}

func TestUnmountBelowKeepsOtherMounts(t *testing.T) {
	s := newStage(t)
	a := s.mkdir("a")
	in, next := s.mkdir("jail/m"), s.mkdir("jail-2/m")
	s.mkdir("a/deep")
	s.must(overlay.Clone(a, in, overlay.CloneOptions{}))
	s.must(overlay.Clone(a, in+"/deep", overlay.CloneOptions{}))
	s.must(overlay.Clone(a, next, overlay.CloneOptions{}))
	s.must(overlay.UnmountBelow(s.dir + "/jail"))
	if got, _ := overlay.MountsBelow(s.dir + "/jail"); len(got) != 0 {
		t.Errorf("left below jail: %v", got)
	}
	if got, _ := overlay.MountsBelow(s.dir + "/jail-2"); len(got) != 1 {
		t.Errorf("the neighbour has mounts %v, want its one", got)
	}
}

func TestIDMapsLeaveNoProcess(t *testing.T) {
	s := newStage(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				ids, err := overlay.IDMapFD(first, count)
				if err != nil {
					t.Error(err)
					return
				}
				ids.Close()
			}
		})
	}
	wg.Wait()
	_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
	if err != unix.ECHILD {
		t.Errorf("a child process is left: %v", err)
	}
	if _, err := overlay.IDMap([]overlay.Mapping{{Count: 0}}, []overlay.Mapping{{Count: 1}}); err == nil {
		t.Error("an empty map was accepted")
	}
	s.idmap()
}

// TestMain lets the test binary run as the victim process of TestKilledWhileMappingIDs.
func TestMain(m *testing.M) {
	for os.Getenv("GLASSHOUSE_OVERLAY_VICTIM") != "" {
		ids, err := overlay.IDMapFD(first, count)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		ids.Close()
	}
	os.Exit(m.Run())
}

func TestKilledWhileMappingIDs(t *testing.T) {
	newStage(t)
	for i := range 20 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "GLASSHOUSE_OVERLAY_VICTIM=yes")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Millisecond + time.Duration(i)*137*time.Microsecond)
		cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
			t.Fatalf("the victim exited by itself: %v", err)
		}
	}
	// Other tests on this host may also create such processes briefly.
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if len(idmappers(t)) == 0 {
			return
		}
	}
	t.Errorf("processes left: %v", idmappers(t))
}

// idmappers returns the processes that only hold an id map.
func idmappers(t *testing.T) (pids []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if b, _ := os.ReadFile(name); strings.HasPrefix(string(b), "glasshouse-idmap") {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

func BenchmarkIDMap(b *testing.B) {
	newStage(b)
	for b.Loop() {
		ids, err := overlay.IDMapFD(first, count)
		if err != nil {
			b.Fatal(err)
		}
		ids.Close()
	}
}

func BenchmarkOverlay(b *testing.B) {
	s := newStage(b)
	lower, low, rw, merged := s.mkdir("image"), s.mkdir("low"), s.mkdir("rw"), s.mkdir("merged")
	s.mkdir("layers/upper")
	s.mkdir("layers/work")
	for b.Loop() { // mount and unmount the root of a jail
		ids, err := overlay.IDMapFD(first, count)
		s.must(err)
		s.must(overlay.Clone(lower, low, overlay.CloneOptions{IDMap: ids, Options: overlay.Options{ReadOnly: true}}))
		s.must(overlay.Clone(s.dir+"/layers", rw, overlay.CloneOptions{IDMap: ids}))
		s.must(overlay.Mount(merged, []string{low}, rw+"/upper", rw+"/work", overlay.Options{}))
		s.must(overlay.Unmount(low))
		s.must(overlay.Unmount(rw))
		ids.Close()
		s.must(overlay.Unmount(merged))
	}
}

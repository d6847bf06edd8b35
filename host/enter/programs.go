package enter

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// xtables is the directory for the modules of iptables.
const xtables = "xtables"

// A set is programs and the libraries that they need.
type set struct {
	programs map[string]string // by name: file
	loaders  map[string]string // by name of a dynamically linked program: its interpreter
	libs     map[string]string // by path in the directory: file
	modules  []string          // of iptables
	digest   string            // of all contents
}

// collect finds this program and others, with their libraries.
func collect(names []string) (*set, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program of this process: %w", err)
	}
	s := &set{programs: map[string]string{"glasshouse": own}, loaders: map[string]string{}, libs: map[string]string{}}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find the program %s: %w", name, err)
		}
		s.programs[name] = path
	}
	for name, path := range s.programs {
		if err := s.link(name, path); err != nil {
			return nil, fmt.Errorf("find the libraries of %s: %w", path, err)
		}
	}
	if s.programs["iptables"] != "" {
		s.modules, err = filepath.Glob("/usr/lib/*/xtables/*.so")
		if err != nil {
			return nil, err
		}
		for _, m := range s.modules {
			if err := s.needed(s.loaders["iptables"], m); err != nil {
				return nil, fmt.Errorf("find the libraries of %s: %w", m, err)
			}
		}
	}
	s.digest, err = s.sum()
	return s, err
}

// link adds what a program needs to be executed.
func (s *set) link(name, path string) error {
	f, err := elf.Open(path)
	if _, bad := errors.AsType[*elf.FormatError](err); bad || errors.Is(err, io.EOF) {
		return fault.Newf(fault.Unsupported, op, path, "it is not an ELF program, so the host may lack what it needs")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
		if err != nil {
			return fmt.Errorf("read the interpreter: %w", err)
		}
		loader := strings.TrimRight(string(data), "\x00")
		s.loaders[name] = loader
		if err := s.library(loader, filepath.Base(loader), loader); err != nil {
			return err
		}
		return s.needed(loader, path)
	}
	return nil // statically linked
}

// needed adds the libraries of a program or library. The loader lists them (ld.so(8)).
func (s *set) needed(loader, path string) error {
	if loader == "" {
		return nil
	}
	out, err := exec.Command(loader, "--list", path).Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", loader, err)
	}
	for line := range strings.Lines(string(out)) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if !ok {
			continue // the loader itself, or the library of the kernel
		}
		file, _, _ := strings.Cut(rest, " (0x")
		if !filepath.IsAbs(file) {
			return fault.Newf(fault.NotFound, op, path, "its library %s is missing", name)
		}
		if err := s.library(loader, filepath.Base(name), file); err != nil {
			return err
		}
	}
	return nil
}

// libDir returns the directory for the libraries of programs with an interpreter. A C library and its
// interpreter must have the same version, and CRIU can have a newer one than the other programs.
func libDir(loader string) string {
	sum := sha256.Sum256([]byte(loader))
	return "lib/" + hex.EncodeToString(sum[:4])
}

func (s *set) library(loader, name, file string) error {
	to := libDir(loader) + "/" + name
	if old, ok := s.libs[to]; ok && old != file {
		return fault.Newf(fault.Conflict, op, name, "programs need different versions of the library: %s and %s", old, file)
	}
	s.libs[to] = file
	return nil
}

// files yields the files of the set in a fixed order, by their paths in the directory.
func (s *set) files(yield func(path, from string) bool) {
	all := map[string]string{}
	for name, from := range s.programs {
		all["bin/"+name] = from
	}
	for name, from := range s.libs {
		all[name] = from
	}
	for _, from := range s.modules {
		all[xtables+"/"+filepath.Base(from)] = from
	}
	paths := make([]string, 0, len(all))
	for path := range all {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if !yield(path, all[path]) {
			return
		}
	}
}

func (s *set) sum() (string, error) {
	h := sha256.New()
	for path, from := range s.files {
		fmt.Fprintf(h, "%s\n", path)
		err := read(from, func(f *os.File) error {
			n, err := io.Copy(h, f)
			fmt.Fprintf(h, "\n%d\n", n)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func read(path string, use func(*os.File) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open a program: %w", err)
	}
	defer f.Close()
	if err := use(f); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	return nil
}

// build copies the set to a temporary directory. Programs find their libraries in dir.
func (s *set) build(dir string) (tree string, err error) {
	tree, err = os.MkdirTemp("", "glasshouse-host-")
	if err != nil {
		return "", fmt.Errorf("create a directory for programs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tree))
		}
	}()
	for path, from := range s.files {
		to := filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", fmt.Errorf("create a directory for programs: %w", err)
		}
		err := read(from, func(f *os.File) error {
			out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
			if err != nil {
				return err
			}
			_, err = io.Copy(out, f)
			return errors.Join(err, out.Close())
		})
		if err != nil {
			return "", err
		}
	}
	for name, loader := range s.loaders {
		lib := filepath.Join(dir, libDir(loader))
		args := []string{"--force-rpath", "--set-rpath", lib, "--set-interpreter", filepath.Join(lib, filepath.Base(loader)), filepath.Join(tree, "bin", name)}
		if out, err := exec.Command("patchelf", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("set the libraries of %s: patchelf: %w: %s", name, err, out)
		}
	}
	return tree, nil
}

// install copies the programs to their directory on the host, unless they are there. Those of older
// daemons are removed, except the last ones: jails may execute them.
func install(built *os.Root, dir string) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(filepath.Dir(parent), 0o711); err != nil {
		return fmt.Errorf("create the data directory on the host: %w", err)
	}
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the directory of programs on the host: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(parent, &st); err != nil {
		return fmt.Errorf("examine the filesystem of %s: %w", parent, err)
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return fault.Cannot(op, "programs in "+parent+" cannot be executed: its filesystem is mounted with noexec", "use a data directory on another filesystem")
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		unfinished := dir + ".new"
		if err := os.RemoveAll(unfinished); err != nil {
			return fmt.Errorf("remove programs that were not installed completely: %w", err)
		}
		if err := os.CopyFS(unfinished, built.FS()); err != nil {
			return fmt.Errorf("copy the programs to the host: %w", err)
		}
		if err := syncAll(unfinished); err != nil { // the directory has its name only if it is complete
			return err
		}
		if err := os.Rename(unfinished, dir); err != nil {
			return fmt.Errorf("install the programs on the host: %w", err)
		}
	}
	now := time.Now()
	if err := os.Chtimes(dir, now, now); err != nil {
		return fmt.Errorf("mark the programs as used: %w", err)
	}
	link := filepath.Join(parent, current)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace the link to the programs: %w", err)
	}
	if err := os.Symlink(filepath.Base(dir), link); err != nil {
		return fmt.Errorf("link the programs: %w", err)
	}
	return removeOld(parent)
}

// syncAll writes the filesystem of a directory to disk.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the copied programs: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write the copied programs to disk: %w", err)
	}
	return nil
}

// empty removes the files of a directory of the container, which takes space as long as the daemon runs.
func empty(built *os.Root) error {
	entries, err := fs.ReadDir(built.FS(), ".")
	for _, e := range entries {
		err = errors.Join(err, built.RemoveAll(e.Name()))
	}
	if err != nil {
		return fmt.Errorf("remove the programs of the container: %w", err)
	}
	return nil
}

// kept is how many sets of programs stay.
const kept = 3

func removeOld(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("list the programs: %w", err)
	}
	var sets []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() {
			sets = append(sets, info)
		}
	}
	slices.SortFunc(sets, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, s := range sets[min(kept, len(sets)):] {
		if err := os.RemoveAll(filepath.Join(parent, s.Name())); err != nil {
			return fmt.Errorf("remove old programs: %w", err)
		}
	}
	return nil
}

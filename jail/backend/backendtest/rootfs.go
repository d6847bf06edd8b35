package backendtest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Prebuilt names an environment variable. If it is set, it is a directory with
// glasshouse-init, probe and perhaps other programs: internal/testrun builds them once
// for all packages, and some tests run as a user who cannot build.
const Prebuilt = "GLASSHOUSE_BACKENDTEST_BIN"

// tools are the host's programs in the small root filesystem. Missing ones are left out; the
// clauses need only bash and coreutils.
var tools = []string{
	"bash", "sh", "ls", "cat", "cp", "mv", "rm", "ln", "mkdir", "rmdir", "mknod", "mkfifo", "touch", "chmod", "chown",
	"stat", "id", "echo", "true", "false", "sleep", "seq", "head", "tail", "wc", "sort", "tr", "cut", "dd", "df", "du", "sync",
	"env", "date", "uname", "nproc", "readlink", "timeout", "truncate", "sha256sum", "find", "grep", "sed",
	"setsid", "mount", "umount", "unshare", "nsenter", "ip",
}

const (
	passwd = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
	group  = "root:x:0:\nnogroup:x:65534:\nagent:x:1000:\n"
)

// Rootfs returns a small root filesystem of this host's programs: bash, coreutils, a few more,
// and the suite's program probe. It is built once per process or, as root with Prebuilt set,
// once in that directory for all processes. Callers must not write to it.
func Rootfs(t testing.TB) string {
	t.Helper()
	fill := func(dir string) error {
		return buildRootfs(dir, helper(t, "probe", "./jail/backend/backendtest/probe"))
	}
	if common := os.Getenv(Prebuilt); common != "" && os.Geteuid() == 0 {
		dir := filepath.Join(common, "rootfs")
		if err := fillOnce(dir, fill); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	return tree.get(t, fill)
}

// fillOnce creates a directory unless another process has created it. Concurrent callers wait.
func fillOnce(dir string, fill func(dir string) error) error {
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	part := dir + ".part"
	err = errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o755), os.Chmod(part, 0o755)) // accessible for the host ids of jails
	if err == nil {
		err = fill(part)
	}
	if err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// Init returns the glasshouse-init binary, built once.
func Init(t testing.TB) string {
	t.Helper()
	return helper(t, "glasshouse-init", "./cmd/glasshouse-init")
}

// Build writes the programs that Rootfs and Init need to dir, which can then be the value of
// Prebuilt.
func Build(t testing.TB, dir string) {
	t.Helper()
	for name, pkg := range map[string]string{"glasshouse-init": "./cmd/glasshouse-init", "probe": "./jail/backend/backendtest/probe"} {
		if err := build(filepath.Join(dir, name), pkg); err != nil {
			t.Fatal(err)
		}
	}
}

func helper(t testing.TB, name, pkg string) string {
	t.Helper()
	if dir := os.Getenv(Prebuilt); dir != "" {
		return filepath.Join(dir, name)
	}
	dir := helpers[name].get(t, func(dir string) error { return build(filepath.Join(dir, name), pkg) })
	return filepath.Join(dir, name)
}

// Program returns the path of the glasshouse command, in a directory with
// glasshouse-init and glasshouse-agent.
func Program(t testing.TB) string {
	t.Helper()
	bin, err := Find("./cmd/glasshouse", "./cmd/glasshouse-init", "./cmd/glasshouse-agent", "./cmd/glasshouse-guest")
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Find returns the path of the first program, built from a package of this module, in a
// directory with the others. Each is built once per process if Prebuilt lacks it.
func Find(pkgs ...string) (string, error) {
	if dir := os.Getenv(Prebuilt); dir != "" {
		bin := filepath.Join(dir, filepath.Base(pkgs[0]))
		if _, err := os.Stat(bin); err == nil {
			return bin, nil
		}
	}
	commands.once.Do(func() { commands.dir, commands.err = makeDir(func(string) error { return nil }) })
	if commands.err != nil {
		return "", commands.err
	}
	building.Lock()
	defer building.Unlock()
	for _, pkg := range pkgs {
		bin := filepath.Join(commands.dir, filepath.Base(pkg))
		if _, err := os.Stat(bin); err == nil {
			continue
		}
		if err := build(bin, pkg); err != nil {
			return "", err
		}
	}
	return filepath.Join(commands.dir, filepath.Base(pkgs[0])), nil
}

func build(out, pkg string) error {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", out, pkg)
	cmd.Dir = strings.TrimSpace(string(root))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, msg)
	}
	return nil
}

// A shared directory is created for its first user, and removed when the process ends.
type shared struct {
	once sync.Once
	dir  string
	err  error
}

var (
	tree     shared
	commands shared
	building sync.Mutex // serializes builds
	helpers  = map[string]*shared{"glasshouse-init": {}, "probe": {}}
)

func (s *shared) get(t testing.TB, fill func(dir string) error) string {
	t.Helper()
	s.once.Do(func() { s.dir, s.err = makeDir(fill) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.dir
}

// removeAtEnd removes a directory after this process has ended, for any reason.
func removeAtEnd(dir string) error { return atEnd(`rm -rf "$1"`, dir) }

// atEnd runs a shell line after this process has ended: the shell waits for the end of a pipe
// whose write end only this process has.
func atEnd(line, arg string) error {
	cmd := exec.Command("/bin/sh", "-c", "read -r _; "+line, "sh", arg)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to our process group does not reach it
	cmd.Dir = "/"
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() // this goroutine also keeps the pipe open
	return nil
}

// SharedDir returns a new directory, which is removed after this process has ended, for any reason.
func SharedDir() (string, error) { return makeDir(func(string) error { return nil }) }

func makeDir(fill func(dir string) error) (string, error) {
	dir, err := os.MkdirTemp("", "glasshouse-test-")
	if err != nil {
		return "", err
	}
	err = os.Chmod(dir, 0o755) // accessible for the host ids of jails
	if err == nil {
		err = fill(dir)
	}
	if err == nil {
		err = removeAtEnd(dir)
	}
	if err != nil {
		os.RemoveAll(dir)
	}
	return dir, err
}

func buildRootfs(dir, probe string) error {
	for path, mode := range map[string]fs.FileMode{
		"usr/bin": 0o755, "proc": 0o755, "sys": 0o755, "dev": 0o755, "etc": 0o755, "run": 0o755, "root": 0o700, "home/agent": 0o755, "var/tmp": 0o777 | fs.ModeSticky, "tmp": 0o777 | fs.ModeSticky,
	} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, path), mode); err != nil {
			return err
		}
	}
	for path, content := range map[string]string{"etc/passwd": passwd, "etc/group": group, "etc/issue": "a small tree for tests\n"} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink("usr/bin", filepath.Join(dir, "bin")); err != nil {
		return err
	}
	for _, tool := range tools {
		src, err := exec.LookPath(tool)
		if err != nil {
			continue
		}
		if err := copyProgram(dir, src, filepath.Join("usr/bin", tool)); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(dir, "usr/bin/probe"), probe, 0o755); err != nil {
		return err
	}
	// A set-user-ID copy of the program, which prints its privileges.
	setuid := filepath.Join(dir, "usr/bin/setuid-probe")
	if err := copyFile(setuid, probe, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(setuid, 0o755|fs.ModeSetuid); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(filepath.Join(dir, "home/agent"), 1000, 1000)
}

// copyProgram copies a program of the host and the libraries it is linked with.
func copyProgram(dir, src, dst string) error {
	if err := copyFile(filepath.Join(dir, dst), src, 0o755); err != nil {
		return err
	}
	out, err := exec.Command("ldd", src).Output()
	if err != nil {
		return nil // statically linked
	}
	for _, field := range bytes.Fields(out) {
		lib := string(field)
		if !strings.HasPrefix(lib, "/") {
			continue
		}
		to := filepath.Join(dir, lib)
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := copyFile(to, lib, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(dst, src string, mode fs.FileMode) error {
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	return os.WriteFile(dst, data, mode)
}

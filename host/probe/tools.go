package probe

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"glasshouse/host/criu"
	"glasshouse/internal/text"
)

// find searches a program in the tools directory, on the PATH, and in system directories that an
// ordinary user's PATH lacks.
func (h Host) find(name string) string {
	if h.Tools != "" {
		if p, err := exec.LookPath(filepath.Join(h.Tools, name)); err == nil {
			return p
		}
	}
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}

// privateTools lists the programs that make setup has downloaded.
func privateTools(_ context.Context, h Host) (string, error) {
	if h.Tools == "" {
		return "", cannot("no data directory was given", "glasshouse --data DIR doctor")
	}
	entries, err := os.ReadDir(h.Tools)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if _, err := exec.LookPath(filepath.Join(h.Tools, e.Name())); err == nil {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return "", cannot("no programs in "+h.Tools+", so the programs of the system are used",
			"if these are too old, run make setup for this data directory, or set tools: in the configuration to the tools/bin of another one")
	}
	return strings.Join(names, ", ") + ", in " + h.Tools, nil
}

// command returns a program that is killed with its probe, including its children.
func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// tool runs a program to get its version.
func tool(name, remedy string) func(context.Context, Host) (string, error) {
	return func(ctx context.Context, h Host) (string, error) {
		path := h.find(name)
		if path == "" {
			return "", cannot("the program "+name+" is not installed", remedy)
		}
		v, err := version(ctx, path)
		if err != nil {
			return "", fmt.Errorf("get the version of %s: %w", path, err)
		}
		return v + ", " + path, nil
	}
}

// number matches a version number.
var number = regexp.MustCompile(`[0-9]+(\.[0-9]+)+[^\s,)]*|[a-z]+-20[0-9]{6}[^\s,]*`)

func version(ctx context.Context, path string) (string, error) {
	out, err := command(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return "", errors.Join(err, outputError(out))
	}
	first := firstWords(out)
	if v := number.FindString(first); v != "" {
		return v, nil
	}
	// A program that was built as a Go module, as gVisor by make setup, prints "runsc version
	// VERSION_MISSING" and the version of the OCI specification. Its version is in the build
	// information.
	if info, err := buildinfo.ReadFile(path); err == nil && strings.HasPrefix(info.Main.Version, "v") {
		return info.Main.Version, nil
	}
	return first, nil
}

func firstWords(out []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return text.Clip(string(line), 120)
}

// outputError returns an error with the last line of a program's output, or nil for no output.
func outputError(out []byte) error {
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return nil
	}
	return errors.New(string(out[bytes.LastIndexByte(out, '\n')+1:]))
}

// checkpoint checks with CRIU itself whether it works with this kernel.
func checkpoint(ctx context.Context, h Host) (string, error) {
	path := h.find("criu")
	if path == "" {
		path = "criu"
	}
	if err := criu.New(path, "").Probe(ctx); err != nil {
		return "", err
	}
	v, err := version(ctx, path)
	return v + ", " + path, err
}

// tracking checks with CRIU whether the kernel supports dirty page tracking, which pre-dumps
// need.
func tracking(ctx context.Context, h Host) (string, error) {
	path := h.find("criu")
	if path == "" {
		return "", cannot("the program criu is not installed", "make setup, to enable snapshots")
	}
	if os.Geteuid() != 0 {
		return "", cannot("checkpointing processes needs root", "run the daemon as root")
	}
	return "", criu.New(path, "").ProbeDirtyTracking(ctx)
}

// bubblewrap creates a sandbox with bwrap.
func bubblewrap(ctx context.Context, h Host) (string, error) {
	path := h.find("bwrap")
	if path == "" {
		return "", cannot("the program bwrap is not installed", "apt-get install bubblewrap, or make setup")
	}
	out, err := command(ctx, path, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
		"--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true").CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); ended && ctx.Err() == nil {
		return "", cannot("bubblewrap cannot create a sandbox: "+firstWords(out), unprivilegedRemedy())
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	v, err := version(ctx, path)
	if err != nil {
		return "", err
	}
	var major, minor int
	if _, err := fmt.Sscanf(v, "%d.%d", &major, &minor); err != nil {
		return "", fmt.Errorf("parse version %q of %s: %w", v, path, err)
	}
	if major == 0 && minor < 7 { // the backend bwrap uses options of 0.7
		return "", cannot("bubblewrap "+v+", "+path+", is too old: 0.7 is needed", "install bubblewrap 0.7 or newer")
	}
	return v + ", " + path, nil
}

// machineName returns the name of this architecture according to uname(2) and QEMU.
func machineName() string {
	return cmp.Or(map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH], runtime.GOARCH)
}

func qemuPackage() string {
	return cmp.Or(map[string]string{"amd64": "x86", "arm64": "arm"}[runtime.GOARCH], "misc")
}

// postgresql also searches Debian's server directory, which is not on the PATH.
func postgresql(ctx context.Context, h Host) (string, error) {
	path := h.find("postgres")
	if path == "" {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
		if len(found) > 0 {
			path = slices.Max(found)
		}
	}
	if path == "" {
		return "", cannot("no PostgreSQL server is installed here", "no action is needed: SQLite is the default, and --db takes the URL of a server elsewhere; or apt-get install postgresql")
	}
	v, err := version(ctx, path)
	if err != nil {
		return "", fmt.Errorf("get the version of %s: %w", path, err)
	}
	return strings.TrimSpace(v) + ", " + path, nil
}

// sleeper starts a process that is frozen and killed by the probe. reap kills it and waits for
// it.
func sleeper() (pid int, reap func(), err error) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start sleep: %w", err)
	}
	return cmd.Process.Pid, func() {
		cmd.Process.Kill()
		cmd.Wait()
	}, nil
}

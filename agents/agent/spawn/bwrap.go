package spawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"glasshouse/fault"
	"glasshouse/host/seccomp"
	"glasshouse/internal/undo"
)

// Bwrap starts agents in bubblewrap. An agent has private namespaces of every kind, no
// capabilities and no means to gain any, and a seccomp filter that allows listed system
// calls. It sees programs and some files of /etc read-only, a home and a /tmp in memory, the
// workspace, and a loopback with the gateway, and nothing else.
//
// If the daemon runs as root, each agent has a host user id of its own, and files of the
// workspace's owner appear as the agent's. Otherwise the agent runs as the daemon's user,
// and only the namespaces and the filter isolate it.
type Bwrap struct {
	*host
	next atomic.Uint32
}

var _ Spawner = (*Bwrap)(nil)

const (
	// Host user ids of agents that root starts. They are above those of jails.
	firstUser = 0x78000000
	users     = 1 << 16

	// shimTasks is the number of processes and threads reserved for bubblewrap and
	// glasshouse-agent.
	shimTasks = 32
)

// NewBwrap returns a spawner. It first removes the remains of an earlier one.
func NewBwrap(ctx context.Context, cfg Config) (*Bwrap, error) {
	if cfg.Bwrap == "" {
		cfg.Bwrap = "bwrap"
	}
	h, err := newHost(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Bwrap{host: h}, nil
}

// Name implements Spawner.
func (b *Bwrap) Name() string { return "bwrap" }

// Agent implements Spawner.
func (b *Bwrap) Agent() string { return shimPath }

// UnenforcedLimits implements Spawner.
func (b *Bwrap) UnenforcedLimits() map[string]string {
	lacks := b.lacks()
	if why, ok := lacks["memory"]; ok {
		lacks["memory"] = "the limit applies to each process of the agent, not to their sum: " + why
	}
	if os.Geteuid() != 0 {
		delete(lacks, "pids") // RLIMIT_NPROC is enforced per user, and the namespace has one user
	}
	return lacks
}

// Probe implements Spawner. It starts the program true as an agent.
func (b *Bwrap) Probe(ctx context.Context) error {
	p, err := b.launch(ctx, "spawn.Probe", Start{Argv: []string{"true"}})
	if err != nil {
		return err
	}
	exit, err := p.Wait()
	if err != nil {
		return fmt.Errorf("wait for the test program: %w", err)
	}
	if exit.Code != 0 {
		return fault.Cannot("spawn.Probe", fmt.Sprintf("a test program in bubblewrap ended with exit code %d", exit.Code), remedy())
	}
	return nil
}

// Start implements Spawner.
func (b *Bwrap) Start(ctx context.Context, s Start) (*Process, error) {
	const op = "spawn.Start"
	if err := s.check(op); err != nil {
		return nil, err
	}
	return b.launch(ctx, op, s)
}

func (b *Bwrap) launch(ctx context.Context, op string, s Start) (_ *Process, err error) {
	path, err := b.find(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := b.checkAgent(op); err != nil {
		return nil, err
	}
	filters, err := filters()
	if err != nil {
		return nil, err
	}
	in := &inheritedFiles{}
	var undone undo.Stack
	undone.Push("close files", func() error { in.close(); return nil })
	defer func() { err = errors.Join(err, undone.Run()) }()

	l := &launch{start: s, cwd: initialDir(s)}
	shim := []string{shimPath, "shim"}
	if s.Socket == "" {
		shim = append(shim, "-socket", "")
	} else {
		shim = append(shim, "-socket", socketPath)
	}
	var n int
	l.ready, n, err = in.addStatusPipe()
	if err != nil {
		return nil, err
	}
	undone.Push("close", l.ready.Close)
	shim = append(shim, "-ready-fd", strconv.Itoa(n))
	if len(s.Token) > 0 {
		n, err = in.addSecret(s.Token)
		if err != nil {
			return nil, err
		}
		shim = append(shim, "-token-fd", strconv.Itoa(n))
	}
	shim = append(shim, b.rlimits(s.Limits)...)

	v := b.view(s, path)
	bwrapArgs := &arguments{in: in}
	l.info, n, err = in.addStatusPipe()
	if err != nil {
		return nil, err
	}
	undone.Push("close", l.info.Close)
	bwrapArgs.add("--info-fd", strconv.Itoa(n))
	for _, filter := range filters {
		n, err = in.addData("filter", filter)
		if err != nil {
			return nil, err
		}
		bwrapArgs.add("--add-seccomp-fd", strconv.Itoa(n))
	}
	if err := bwrapArgs.describe(s, v); err != nil {
		return nil, err
	}
	// The arguments are passed in a file, because every user of the host can read the command
	// line (proc_pid_cmdline(5)).
	n, err = in.addData("arguments", []byte(strings.Join(bwrapArgs.list, "\x00")+"\x00"))
	if err != nil {
		return nil, err
	}
	l.cmd = &exec.Cmd{
		Path: v.bwrap.source, Args: append(append([]string{"bwrap", "--args", strconv.Itoa(n), "--"}, shim...), append([]string{"--"}, s.Argv...)...),
		Env: []string{}, Dir: "/", ExtraFiles: in.files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	v.apply(l)
	l.group, err = b.makeGroup(s.Limits, shimTasks)
	if err != nil {
		return nil, err
	}
	l.childFiles = in.files
	undone.Keep() // l.run releases the resources
	p, err := l.run(ctx)
	pathErr, ok := errors.AsType[*fs.PathError](err)
	if errors.Is(err, errSetupFailed) || ok && pathErr.Op == "fork/exec" {
		return nil, &fault.Error{Op: op, On: "bwrap", Kind: fault.Unsupported, Err: err, Remedy: remedy()}
	}
	return p, err
}

// filters returns the seccomp filters in the order of installation. The first filter must
// allow the installation of the second.
func filters() ([][]byte, error) {
	modes, err := noSetUID()
	if err != nil {
		return nil, fmt.Errorf("assemble the set-uid filter: %w", err)
	}
	calls, err := seccomp.BPF(runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("assemble the system call filter: %w", err)
	}
	return [][]byte{modes, calls}, nil
}

// rlimits returns the flags of glasshouse-agent for limits that no cgroup enforces.
func (b *Bwrap) rlimits(l Limits) (flags []string) {
	lacks := b.lacks()
	if lacks["memory"] != "" && l.Memory > 0 {
		flags = append(flags, "-data", strconv.FormatInt(l.Memory, 10))
	}
	if lacks["pids"] != "" && l.PIDs > 0 {
		flags = append(flags, "-nproc", strconv.FormatInt(l.PIDs+shimTasks, 10))
	}
	return flags
}

// find returns the path of bubblewrap. It returns fault.Unsupported if bubblewrap is missing
// or older than 0.7.0, the first version with all options that are used here.
func (b *Bwrap) find(ctx context.Context, op string) (string, error) {
	path, err := exec.LookPath(b.cfg.Bwrap)
	if err != nil {
		return "", fault.Cannot(op, "bubblewrap is not installed: "+err.Error(), installHint)
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find bubblewrap: %w", err)
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	var major, minor int
	if _, scan := fmt.Sscanf(string(out), "bubblewrap %d.%d", &major, &minor); err != nil || scan != nil {
		return "", fault.Cannot(op, fmt.Sprintf("%s is not bubblewrap: --version printed %.80q (%v)", path, out, err), installHint)
	}
	if major == 0 && minor < 7 {
		return "", fault.Cannot(op, strings.TrimSpace(string(out))+" is too old", "install bubblewrap 0.7 or newer: "+installHint)
	}
	return path, nil
}

const installHint = "install bubblewrap: apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora, RHEL), pacman -S bubblewrap (Arch), zypper install bubblewrap (openSUSE)"

// remedy returns the remedy for the most likely reason why bubblewrap fails on this host.
func remedy() string {
	setting := func(name string) string {
		b, _ := os.ReadFile("/proc/sys/" + name)
		return strings.TrimSpace(string(b))
	}
	switch {
	case os.Geteuid() != 0 && setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "allow bubblewrap to create user namespaces with an AppArmor profile that has the rule userns, or allow it for all programs: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0. Or " + installHint
	case os.Geteuid() != 0 && setting("kernel/unprivileged_userns_clone") == "0":
		return "allow users to create user namespaces: sysctl -w kernel.unprivileged_userns_clone=1. Or " + installHint
	case setting("user/max_user_namespaces") == "0":
		return "allow users to create user namespaces: sysctl -w user.max_user_namespaces=10000. Or " + installHint
	}
	return "allow user namespaces: sysctl -w user.max_user_namespaces=10000, and on Debian kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0. In a container, allow its users to create namespaces and mount /proc. Or " + installHint
}

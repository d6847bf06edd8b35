package bwrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/dirs"
	"glasshouse/jail/backend/base"
)

// stageCommand returns the command that runs this executable as a stage.
func stageCommand(what, dir string) *exec.Cmd {
	return &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{stageName, what, dir},
		Env:         []string{"PATH=" + defaultPath},
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
}

// maxReports limits the size of a stage's reports: a list of changes contains names of files
// that the jail created.
const maxReports = 64 << 20

// A stage is a stage process as the daemon sees it.
type stage struct {
	cmd     *exec.Cmd
	report  *os.File // pipe with its reports
	reports *json.Decoder
	control *os.File // pipe to the stage; closing it tells the stage to give up
	stderr  *os.File // error output of bwrap
}

// startStage starts a stage: launch in the current user namespace, all others in the jail's.
// As root each has at least its own mount namespace.
func (b *Backend) startStage(what string, o stageRequest) (_ *stage, err error) {
	s := &stage{}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			s.close()
			err = fmt.Errorf("start stage %s: %w", what, err)
		}
	}()
	data, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	fd, err := base.Memfd("orders", data)
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, os.NewFile(uintptr(fd), "orders"))
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the report pipe: %w", err)
	}
	s.report, s.reports, theirs = r, json.NewDecoder(io.LimitReader(r, maxReports)), append(theirs, w)
	r, w, err = os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the control pipe: %w", err)
	}
	s.control, theirs = w, append(theirs, r)
	s.stderr, err = base.OutputFile(4096)
	if err != nil {
		return nil, fmt.Errorf("make the error output: %w", err)
	}

	s.cmd = stageCommand(what, o.Plan.Dir)
	s.cmd.Stderr = s.stderr
	s.cmd.ExtraFiles = theirs
	switch {
	case o.Identity.Kind == asRoot:
		s.cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
		return s, s.cmd.Start()
	case what == stageLaunch:
		return s, s.cmd.Start()
	}
	return s, o.Identity.start(s.cmd, o.Plan.IDs)
}

// next waits for the stage's next report. It returns an error that the stage reports or, if
// the stage exits early, the error output of bwrap.
func (s *stage) next(ctx context.Context) (report, error) {
	stop := context.AfterFunc(ctx, func() { s.report.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var r report
	err := s.reports.Decode(&r)
	switch {
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case err != nil:
		return r, fmt.Errorf("the stage exited early (%w)%s", err, s.stderrText())
	case r.Error != nil:
		return r, r.Error.err()
	}
	return r, nil
}

// startBwrap tells the stage to start bwrap.
func (s *stage) startBwrap() error {
	if _, err := s.control.Write([]byte{1}); err != nil {
		return fmt.Errorf("let the stage start bwrap: %w", err)
	}
	return nil
}

func (s *stage) stderrText() string {
	if message := base.OutputText(s.stderr); message != "" {
		return ": " + message
	}
	return ""
}

// close closes the pipes and waits for the process, which exits when its pipe is closed.
func (s *stage) close() error {
	for _, f := range []*os.File{s.control, s.report, s.stderr} {
		if f != nil {
			f.Close()
		}
	}
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	return s.cmd.Wait()
}

// run runs a stage to completion.
func (b *Backend) run(ctx context.Context, what string, o stageRequest) error {
	s, err := b.startStage(what, o)
	if err != nil {
		return err
	}
	_, err = s.next(ctx)
	if errors.Is(err, io.EOF) {
		err = nil // nothing to report
	}
	if ended := s.close(); err == nil && ended != nil {
		err = fmt.Errorf("stage %s: %w", what, ended)
	}
	return err
}

// probe is the stage that checks whether the host supports jails by starting a minimal one.
func (o *stageRequest) probe() error {
	if o.Identity.Kind != asRoot {
		if err := o.probeOverlay(); err != nil {
			return fmt.Errorf("probe the overlay: %w", err)
		}
	}
	args := []string{"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"}
	out, err := exec.Command(o.Bwrap, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (o *stageRequest) probeOverlay() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	l := layout{o.Plan.Dir}
	if err := errors.Join(dirs.Make(l.volume(), l.identity()), o.makeLayout()); err != nil {
		return err
	}
	return mountOverlay(l.merged(), []string{l.identity()}, l.upper(), l.work())
}

// probeNamespaces runs the stage try and explains its failure.
func (b *Backend) probeNamespaces(ctx context.Context, path string, who identity) error {
	dir, err := os.MkdirTemp("", "glasshouse-probe-")
	if err != nil {
		return fmt.Errorf("probe bwrap: %w", err)
	}
	o := stageRequest{Bwrap: path, Identity: who}
	o.Plan.Dir = dir
	o.Plan.IDs.First, o.Plan.IDs.Count = 100000, 65536
	err = b.run(ctx, stageTry, o)
	if removed := b.removeDir(context.WithoutCancel(ctx), o); err == nil {
		err = removed
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fault.Cannot("bwrap.Probe", err.Error(), namespaceRemedy())
}

// namespaceRemedy returns the most likely way to allow users to create namespaces.
func namespaceRemedy() string {
	setting := func(name string) string {
		b, _ := os.ReadFile("/proc/sys/" + name)
		return strings.TrimSpace(string(b))
	}
	switch {
	case setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "allow user namespaces for this program with an AppArmor profile with the rule userns, or for all programs: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case setting("kernel/unprivileged_userns_clone") == "0":
		return "allow users to create user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
	case setting("user/max_user_namespaces") == "0":
		return "allow users to create user namespaces: sysctl -w user.max_user_namespaces=10000"
	}
	return "use Linux 5.11 or newer with user namespaces and overlayfs, outside of a container or in one that allows its users to create namespaces and mount /proc"
}

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
)

// stageCommand starts this executable again as a stage.
func stageCommand(what, dir string) *exec.Cmd {
	return &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{stageName, what, dir},
		Env:         []string{"PATH=" + defaultPath},
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
}

// maxReports bounds what a stage may report: a list of changes names files that
// the jail has made.
const maxReports = 64 << 20

// A stage is a stage process as the daemon sees it.
type stage struct {
	cmd     *exec.Cmd
	report  *os.File // what it reports
	reports *json.Decoder
	goAhead *os.File // closed, it means that nobody cares any more
	stderr  *os.File // where bwrap complains
}

// startStage starts a stage: launch in our own user namespace, every other in
// the jail's. As root each has at least a mount namespace of its own.
func (b *Backend) startStage(what string, o orders) (_ *stage, err error) {
	s := &stage{}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			s.end()
			err = fmt.Errorf("start stage %s: %w", what, err)
		}
	}()
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	fd, err := memoryFile("orders", data)
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, os.NewFile(uintptr(fd), "orders"))
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.report, s.reports, theirs = r, json.NewDecoder(io.LimitReader(r, maxReports)), append(theirs, w)
	r, w, err = os.Pipe()
	if err != nil {
		return nil, err
	}
	s.goAhead, theirs = w, append(theirs, r)
	if s.stderr, err = noticeBoard(); err != nil {
		return nil, err
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

// noticeBoard returns a file of fixed size for bwrap's complaints. The jail's
// init inherits it as its stderr, so it must not be a way to fill anything.
func noticeBoard() (*os.File, error) {
	const size = 4096
	fd, err := memoryFile("stderr", make([]byte, size))
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("seal: %w", err)
	}
	return os.NewFile(uintptr(fd), "stderr"), nil
}

// next waits for the stage's next report. An error it reports is returned, and
// if it ends instead, what bwrap has complained of.
func (s *stage) next(ctx context.Context) (report, error) {
	stop := context.AfterFunc(ctx, func() { s.report.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var r report
	err := s.reports.Decode(&r)
	switch {
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case err != nil:
		return r, fmt.Errorf("the stage ended early (%w)%s", err, s.complaint())
	case r.Error != nil:
		return r, r.Error.err()
	}
	return r, nil
}

// proceed gives the go.
func (s *stage) proceed() error {
	_, err := s.goAhead.Write([]byte{1})
	return err
}

func (s *stage) complaint() string {
	b := make([]byte, 4096)
	n, _ := s.stderr.ReadAt(b, 0)
	if said := strings.TrimSpace(strings.Trim(string(b[:n]), "\x00")); said != "" {
		return ": " + said
	}
	return ""
}

// end lets go of the stage and waits for its process, which ends by itself when
// nobody cares.
func (s *stage) end() error {
	for _, f := range []*os.File{s.goAhead, s.report, s.stderr} {
		if f != nil {
			f.Close()
		}
	}
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	return s.cmd.Wait()
}

// run runs a stage from its start to its end.
func (b *Backend) run(ctx context.Context, what string, o orders) error {
	s, err := b.startStage(what, o)
	if err != nil {
		return err
	}
	_, err = s.next(ctx)
	if errors.Is(err, io.EOF) {
		err = nil // nothing to report
	}
	if ended := s.end(); err == nil && ended != nil {
		err = fmt.Errorf("stage %s: %w", what, ended)
	}
	return err
}

// try is the stage that finds out whether this host lets us do what a jail
// needs, by a small jail without an init of ours.
func (o *orders) try() error {
	if o.Identity.Kind != asRoot {
		if err := o.tryOverlay(); err != nil {
			return err
		}
	}
	args := []string{"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"}
	out, err := exec.Command(o.Bwrap, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (o *orders) tryOverlay() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	l := layout{o.Plan.Dir}
	if err := errors.Join(dirs.Make(l.volume(), l.identity()), o.makeLayout()); err != nil {
		return err
	}
	return mountOverlay(l.merged(), []string{l.identity()}, l.upper(), l.work())
}

// tryNamespaces runs the stage try and explains its failure.
func (b *Backend) tryNamespaces(ctx context.Context, path string, who identity) error {
	dir, err := os.MkdirTemp("", "glasshouse-probe-")
	if err != nil {
		return fmt.Errorf("probe bwrap: %w", err)
	}
	o := orders{Bwrap: path, Identity: who}
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

// namespaceRemedy says what most likely keeps users from making namespaces.
func namespaceRemedy() string {
	setting := func(name string) string {
		b, _ := os.ReadFile("/proc/sys/" + name)
		return strings.TrimSpace(string(b))
	}
	switch {
	case setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "let this program make user namespaces by an AppArmor profile with the rule userns, or everybody: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case setting("kernel/unprivileged_userns_clone") == "0":
		return "let users make user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
	case setting("user/max_user_namespaces") == "0":
		return "let users make user namespaces: sysctl -w user.max_user_namespaces=10000"
	}
	return "use Linux 5.11 or newer with user namespaces and overlayfs, outside of a container or in one that lets its users make namespaces and mount /proc"
}

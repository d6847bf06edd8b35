package oci

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"glasshouse/fault"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/init/control"
)

// gVisor checkpoints its jails itself, because their state is in the memory of its own kernel,
// the sentry. The sentry must run during a checkpoint while the jail must not. So the sentry
// pauses the jail before the host freezes the cgroup, and all operations happen while the
// sentry is paused in that sense.

// sentrySince is the first release that is known to checkpoint these jails. Older releases
// fail with host networking.
const (
	sentrySince  = "20260905"
	sentryModule = "gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237"
)

// sentryDate returns the release date of runsc from its version or, if it was built by Go,
// from its module version. It returns "" if the date is unknown.
func sentryDate(path string) string {
	path, err := exec.LookPath(path)
	if err != nil {
		return ""
	}
	if info, err := buildinfo.ReadFile(path); err == nil {
		if date := dated.FindString(info.Main.Version); date != "" {
			return date
		}
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return dated.FindString(first)
}

var dated = regexp.MustCompile(`20[0-9]{6}`)

// checkSentry returns nil if this runsc can checkpoint jails.
func (b *Backend) checkSentry(op string) error {
	if date := b.releaseDate(); date < sentrySince {
		return fault.Cannot(op, fmt.Sprintf("this runsc (release %q) cannot checkpoint sockets, which every jail has", date),
			"put a newer one into the daemon's tools directory (go install "+sentryModule+"); or stop the jail first to snapshot only its files; or create jails with the runtime runc or crun")
	}
	return nil
}

// callSentry calls a method of the sentry's control server and waits for the result.
func (i *instance) callSentry(ctx context.Context, method string) error {
	at, err := i.backend.sentrySocket(string(i.plan.ID))
	if err != nil {
		return fmt.Errorf("find gVisor's control socket: %w", err)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", at)
	if err != nil {
		return fmt.Errorf("connect to gVisor's kernel: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	call := struct {
		Method string    `json:"method"`
		Arg    *struct{} `json:"arg"`
	}{Method: "containerManager." + method}
	if err := json.NewEncoder(c).Encode(call); err != nil {
		return fmt.Errorf("send request to gVisor's kernel: %w", err)
	}
	var answer struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
	}
	// A sentry that the jail has taken over must not fill the daemon's memory.
	if err := json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&answer); err != nil {
		return fmt.Errorf("read response of gVisor's kernel to %s: %w", method, errors.Join(err, ctx.Err()))
	}
	if !answer.Success {
		return fmt.Errorf("gVisor's kernel: %s: %s", method, answer.Err)
	}
	return nil
}

const maxAnswer = 64 << 10

// sentrySocket returns the path of the sentry's control socket from runsc's state file.
func (b *Backend) sentrySocket(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(b.state(), sentryState(name)))
	if err != nil {
		return "", err
	}
	var state struct {
		Sandbox struct {
			ControlSocketPath string `json:"controlSocketPath"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return "", fmt.Errorf("decode runsc's state of %s: %w", name, err)
	}
	if state.Sandbox.ControlSocketPath == "" {
		return "", fmt.Errorf("the runsc state of %s has no control socket", name)
	}
	return state.Sandbox.ControlSocketPath, nil
}

// sentryState returns the name of runsc's state file of a container.
func sentryState(name string) string { return name + "_sandbox:" + name + ".state" }

// Pause states of a gVisor jail. A paused jail has only its kernel running. The kernel counts
// pauses, and resuming a jail that is not paused would crash the kernel. So the state is
// recorded on disk before and after a pause.
const (
	statePausing = "stilling"
	statePaused  = "still"
)

// pauseSentry makes the sentry of a frozen jail pause all tasks and leaves the jail frozen.
func (i *instance) pauseSentry(ctx context.Context) error {
	if i.sentryPaused.Load() {
		return nil
	}
	if err := i.recordSentryState(statePausing); err != nil {
		return fmt.Errorf("record the beginning of the pause: %w", err)
	}
	if err := i.cgroup.Thaw(ctx); err != nil {
		return err
	}
	if err := i.callSentry(ctx, "Pause"); err != nil {
		return errors.Join(err, i.cgroup.Freeze(context.WithoutCancel(ctx)))
	}
	i.sentryPaused.Store(true)
	return errors.Join(i.recordSentryState(statePaused), i.cgroup.Freeze(ctx))
}

// resumeSentry undoes pauseSentry. The cgroup must be thawed.
func (i *instance) resumeSentry(ctx context.Context) error {
	if !i.sentryPaused.Load() {
		return nil
	}
	if err := i.startSentry(ctx); err != nil {
		return err
	}
	return i.recordSentryState("")
}

// startSentry resumes the sentry. Meanwhile the record marks the state as changing.
func (i *instance) startSentry(ctx context.Context) error {
	// gVisor panics if it is resumed twice. If the daemon dies before the new state is recorded, the
	// next one asks init whether the sentry is paused (recoverPause).
	if err := i.recordSentryState(statePausing); err != nil {
		return fmt.Errorf("record the beginning of the resumption: %w", err)
	}
	if err := i.callSentry(ctx, "Resume"); err != nil {
		return err
	}
	i.sentryPaused.Store(false)
	return nil
}

func (i *instance) recordSentryState(how string) error {
	var r record
	if err := base.ReadRecord(i.layout.record(), &r); err != nil {
		return err
	}
	r.SentryState = how
	return base.WriteRecord(i.layout.record(), r)
}

// recoverPause handles a pause that was interrupted by the end of a daemon. If init does not
// answer the sentry is paused, and recoverPause resumes it. The cgroup is frozen or thawed as
// before.
func (i *instance) recoverPause(ctx context.Context) (err error) {
	frozen, err := i.cgroup.Frozen()
	if err != nil {
		return err
	}
	if frozen {
		if err := i.cgroup.Thaw(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, i.cgroup.Freeze(context.WithoutCancel(ctx))) }()
	}
	asked, cancel := context.WithTimeout(ctx, base.AnswerTime)
	defer cancel()
	if _, err := control.Dial(i.layout.socket()).WaitReady(asked); err == nil {
		return i.recordSentryState("")
	}
	i.sentryPaused.Store(true)
	return i.resumeSentry(ctx)
}

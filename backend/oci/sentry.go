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
	"glasshouse/jailinit/control"
)

// Jails of gVisor are written down by gVisor: what they are is in the memory of
// its own kernel, the sentry. For that the sentry has to run, and the jail not to:
// so it is stilled from within before it is frozen from without, and everything
// that is done with it happens while it is still.

// sentrySince is the first release that was found to write down what jails are
// here. Older ones refuse where the network is the host's.
const (
	sentrySince  = "20260905"
	sentryModule = "gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237"
)

// sentryDate returns the date of the runtime's release, or "" if it has none: of a
// release, in its version; of one that Go has built, in its module's.
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

// sentryCan returns nil if this gVisor can write down jails.
func (b *Backend) sentryCan(op string) error {
	if date := b.released(); date < sentrySince {
		return fault.Cannot(op, fmt.Sprintf("this runsc, of %q, cannot write down sockets, and every jail has some", date),
			"put a newer one into the daemon's directory of tools (go install "+sentryModule+"), or stop the jail first: its files are kept then; or make jails with the runtime runc or crun")
	}
	return nil
}

// tell asks the sentry of a jail to do something, and returns when it has.
func (i *instance) tell(ctx context.Context, method string) error {
	at, err := i.backend.sentrySocket(string(i.plan.ID))
	if err != nil {
		return err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", at)
	if err != nil {
		return fmt.Errorf("reach gVisor's kernel: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	call := struct {
		Method string    `json:"method"`
		Arg    *struct{} `json:"arg"`
	}{Method: "containerManager." + method}
	if err := json.NewEncoder(c).Encode(call); err != nil {
		return fmt.Errorf("tell gVisor's kernel: %w", err)
	}
	var answer struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
	}
	if err := json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&answer); err != nil {
		return fmt.Errorf("gVisor's kernel does not answer to %s: %w", method, errors.Join(err, ctx.Err()))
	}
	if !answer.Success {
		return fmt.Errorf("gVisor's kernel: %s: %s", method, answer.Err)
	}
	return nil
}

const maxAnswer = 64 << 10

// sentrySocket returns where the sentry of a jail listens, which runsc has noted.
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
		return "", fmt.Errorf("what runsc noted of %s: %w", name, err)
	}
	if state.Sandbox.ControlSocketPath == "" {
		return "", fmt.Errorf("runsc has not noted where the kernel of %s listens", name)
	}
	return state.Sandbox.ControlSocketPath, nil
}

// sentryState is the file that runsc notes a container in.
func sentryState(name string) string { return name + "_sandbox:" + name + ".state" }

// A jail that is still has its kernel running and nothing else. The kernel counts:
// to let a jail go that is not still is the kernel's end. So it is written down
// before and after.
const (
	stilling = "stilling"
	still    = "still"
)

// beStill has the kernel of a frozen jail stop everything, and leaves it frozen.
func (i *instance) beStill(ctx context.Context) error {
	if i.still.Load() {
		return nil
	}
	if err := i.noteStill(stilling); err != nil {
		return err
	}
	if err := i.cgroup.Thaw(ctx); err != nil {
		return err
	}
	if err := i.tell(ctx, "Pause"); err != nil {
		return errors.Join(err, i.cgroup.Freeze(context.WithoutCancel(ctx)))
	}
	i.still.Store(true)
	return errors.Join(i.noteStill(still), i.cgroup.Freeze(ctx))
}

// goOn undoes beStill, for a jail that is thawed.
func (i *instance) goOn(ctx context.Context) error {
	if !i.still.Load() {
		return nil
	}
	if err := i.tell(ctx, "Resume"); err != nil {
		return err
	}
	i.still.Store(false)
	return i.noteStill("")
}

func (i *instance) noteStill(how string) error {
	r, err := readRecord(i.layout.record())
	if err != nil {
		return err
	}
	r.Still = how
	return r.write(i.layout.record())
}

// wasStilled finds out whether the kernel of a jail is still, of which a daemon
// that died had asked it: then nobody answers. It is not, at the end, and as frozen
// as it was.
func (i *instance) wasStilled(ctx context.Context) (err error) {
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
	asked, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if _, err := control.Dial(i.layout.socket()).WaitReady(asked); err == nil {
		return i.noteStill("")
	}
	i.still.Store(true)
	return i.goOn(ctx)
}

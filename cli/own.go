package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"glasshouse/api/client"
	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// A command that finds no daemon starts one that runs while it is in use. Every command holds a
// shared lock (flock(2)) on a file in the data directory until the command's process ends. The
// daemon waits for the exclusive lock and stops when it gets it. A command that starts while the
// daemon is stopping waits for its end and starts the next one.

// whileUsed is the flag of serve that starts such a daemon.
const whileUsed = "while-used"

// client returns a client of the daemon. It starts a daemon if none is running.
func (c *command) client(ctx context.Context) (*client.Client, error) {
	cl, err := c.dial()
	if err != nil || c.addr != "" || c.env.Getenv("GLASSHOUSE_ADDR") != "" {
		return cl, err
	}
	// Without write access to this directory, the daemon belongs to another user, and this
	// command must not start it.
	if err := c.holdUse(); err != nil {
		return cl, nil
	}
	if err := cl.Health(ctx); !errors.Is(err, fault.Unavailable) {
		return cl, err
	}
	owner, err := readService(c.dataDir())
	if err != nil {
		return nil, err
	}
	defer c.progress(func(context.Context) string { return "waiting for the start of the daemon" }).end()
	if owner != nil {
		return cl, c.awaitService(ctx, cl, *owner)
	}
	return cl, c.startOwn(ctx, cl)
}

// A service is a daemon that systemd or another supervisor starts with its own configuration. It
// may be restarting while a command finds no daemon. Its record stays in the data directory when
// it stops. A daemon that is not a service removes the record.
type service struct {
	Unit   string `json:"unit,omitempty"`   // systemd unit
	Config string `json:"config,omitempty"` // the configuration file
}

// serviceOf returns the service that this process runs as, or nil.
func serviceOf(config string, getenv func(string) string) *service {
	s := service{Config: config}
	if getenv("INVOCATION_ID") != "" && getenv("NOTIFY_SOCKET") != "" { // systemd.exec(5), sd_notify(3)
		s.Unit = "glasshouse"
	}
	if s == (service{}) {
		return nil
	}
	return &s
}

func serviceFile(dir string) string { return filepath.Join(dir, "service.json") }

// writeService records which service runs the daemon of a data directory. Without a service it
// removes the record.
func writeService(dir string, s *service) error {
	if s == nil {
		if err := os.Remove(serviceFile(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the record of the service: %w", err)
		}
		return nil
	}
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the record of the service: %w", err)
	}
	return atomicfile.Update(serviceFile(dir), append(text, '\n'), 0o644)
}

// readService returns the service that owns a data directory, or nil.
func readService(dir string) (*service, error) {
	text, err := os.ReadFile(serviceFile(dir))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("read the record of the service: %w", err)
	}
	s := new(service)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", serviceFile(dir), err)
	}
	return s, nil
}

// restartTime limits the wait for a service to restart.
var restartTime = 30 * time.Second

// awaitService waits for a service that restarts. A command never starts a daemon in place of a
// service, because that daemon would not have the service's configuration.
func (c *command) awaitService(ctx context.Context, cl *client.Client, s service) error {
	for end := time.Now().Add(restartTime); ; {
		err := cl.Health(ctx)
		if !errors.Is(err, fault.Unavailable) {
			return err
		}
		if time.Now().After(end) {
			remedy := "systemctl start " + s.Unit
			if s.Unit == "" {
				remedy = "glasshouse serve --data " + c.dataDir() + " --config " + s.Config
			}
			return &fault.Error{Op: "connect", On: c.dataDir(), Kind: fault.Unavailable,
				Err:    fmt.Errorf("the daemon of this data directory runs as a service and did not respond within %s", restartTime),
				Remedy: remedy + "; if it is no longer a service, remove " + serviceFile(c.dataDir())}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// holdUse holds the shared lock on the users file until this process ends.
func (c *command) holdUse() error {
	if c.usersLock != nil {
		return nil
	}
	f, err := usersFile(c.dataDir())
	if err != nil {
		return err
	}
	if err := flock(f, syscall.LOCK_SH); err != nil {
		f.Close()
		return fmt.Errorf("lock the file of users of the daemon: %w", err)
	}
	c.usersLock = f
	return nil
}

// usersFile opens the file that users of a data directory's daemon lock.
func usersFile(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	return os.OpenFile(filepath.Join(dir, "users"), os.O_CREATE|os.O_RDWR, 0o600)
}

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

// startTime limits the time that a daemon may take to start, which includes reattaching to its
// jails.
const startTime = time.Minute

// startOwn starts a daemon and waits until it responds. If two commands do so concurrently, the
// second daemon finds the data directory locked and exits; the first one serves both commands.
func (c *command) startOwn(ctx context.Context, cl *client.Client) error {
	log, err := os.OpenFile(filepath.Join(c.dataDir(), "daemon.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of the new daemon: %w", err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("find the end of the daemon's log: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", "serve", "--data", c.dataDir(), "--listen", "", "--"+whileUsed)
	cmd.Args[0] = "glasshouse"
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // terminal signals reach only this process
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(startTime); ; {
		err := cl.Health(ctx)
		if !errors.Is(err, fault.Unavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-ended:
			output, _ := io.ReadAll(io.NewSectionReader(log, from, 4<<10))
			if !strings.Contains(string(output), "another daemon") {
				return fault.Newf(fault.Unavailable, "start a daemon", c.dataDir(), "%w: %s", err, strings.TrimSpace(string(output)))
			}
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the daemon on %s does not respond; see %s", c.dataDir(), log.Name())
		}
	}
}

// idleLock is the file that stopWhenIdle locks. The runtime closes files that are unreachable,
// and the lock must last as long as the process.
var idleLock *os.File

// stopWhenIdle calls stop when no process uses the daemon. It does not block.
func stopWhenIdle(dir string, stop func()) error {
	f, err := usersFile(dir)
	if err != nil {
		return err
	}
	idleLock = f
	go func() {
		if err := flock(f, syscall.LOCK_EX); err == nil {
			stop()
		}
	}()
	return nil
}

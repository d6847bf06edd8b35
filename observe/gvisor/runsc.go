package gvisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A runsc runs the trace commands of runsc.
type runsc struct {
	path string
	root string // state directory
}

// maxOutput bounds the output read from a command, because part of it is controlled by the
// sandbox.
const maxOutput = 16 << 20

// command prepares runsc with arguments. When ctx ends, the process is killed and its output
// is no longer read.
func (r runsc) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.path, append([]string{"--root", r.root}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	return cmd
}

// run runs a command and returns its output.
func (r runsc) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := r.command(ctx, args...)
	out, complaint := &bounded{left: maxOutput}, &bounded{left: 4096}
	cmd.Stdout, cmd.Stderr = out, complaint
	err := cmd.Run()
	if err == nil && out.left == 0 {
		err = errors.New("the output is too large")
	}
	if err != nil {
		return nil, fmt.Errorf("runsc %s: %w%s", strings.Join(args, " "), errors.Join(err, ctx.Err()), complaint.text())
	}
	return out.Bytes(), nil
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.Buffer.Write(p[:n])
	return len(p), nil
}

// text returns the last line written, for error messages.
func (b *bounded) text() string {
	text := strings.TrimSpace(b.String())
	if text == "" {
		return ""
	}
	return ": " + text[strings.LastIndexByte(text, '\n')+1:]
}

// metadata lists the points that this build of runsc has.
func (r runsc) metadata(ctx context.Context) (points, error) {
	const op = "gvisor.Probe"
	remedy := "install the package runsc, or put the binary into the daemon's tools directory"
	if _, err := exec.LookPath(r.path); err != nil {
		return nil, fault.Cannot(op, fmt.Sprintf("%s is not installed", r.path), remedy)
	}
	out, err := r.run(ctx, "trace", "metadata")
	if err != nil {
		return nil, fault.Cannot(op, err.Error(), remedy)
	}
	ps, err := parsePoints(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	for _, name := range essential {
		if _, ok := ps[name]; !ok {
			return nil, fault.Cannot(op, fmt.Sprintf("%s has no trace point %s", r.path, name), "install a runsc of 2023 or later")
		}
	}
	return ps, nil
}

// dropped returns the number of points that the session of a jail could not deliver.
func (r runsc) dropped(ctx context.Context, jail id.Jail) (uint32, error) {
	out, err := r.run(ctx, "trace", "list", string(jail))
	if err != nil {
		return 0, err
	}
	return parseDropped(out)
}

func parseDropped(out []byte) (n uint32, err error) {
	_, rest, ok := bytes.Cut(out, []byte("dropped: "))
	if !ok {
		return 0, errors.New("runsc trace list: no session exists")
	}
	if _, err := fmt.Sscan(string(rest[:min(len(rest), 20)]), &n); err != nil {
		return n, fmt.Errorf("parse the count of dropped points: %w", err)
	}
	return n, nil
}

// remove removes the session of a jail.
func (r runsc) remove(ctx context.Context, jail id.Jail) error {
	_, err := r.run(ctx, "trace", "delete", "--name", sessionName, string(jail))
	return err
}

// errExists is returned if a session exists already.
var errExists = errors.New("a session already exists")

// create creates a session that connects to d. If a session exists and must not be replaced,
// create returns errExists.
func (r runsc) create(ctx context.Context, jail id.Jail, d *endpoint, session []byte, replace bool) (_ *conn, err error) {
	if err := os.WriteFile(d.path+"/"+configName, session, 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	args := []string{"trace", "create", "--config", inherited + configName}
	if replace {
		args = append(args, "--force")
	}
	cmd := r.command(ctx, append(args, string(jail))...)
	complaint := &bounded{left: 4096}
	cmd.Stderr = complaint
	cmd.ExtraFiles = []*os.File{d.dir}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("runsc trace create: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		cancel() // runsc has ended, so no connection will arrive
		ended <- err
	}()
	// runsc itself connects to the socket and then passes the connection to the sandbox, which can
	// still refuse the session (CreateTraceSession in runsc/sandbox/sandbox.go).
	c, err := d.accept(ctx, cmd.Process.Pid)
	if err != nil {
		cmd.Process.Kill()
	}
	failed := <-ended
	switch {
	case failed == nil && err == nil:
		return c, nil
	case strings.Contains(complaint.text(), "already exists"):
		err = errExists
	case failed != nil:
		err = fmt.Errorf("runsc trace create: %w%s", errors.Join(failed, err), complaint.text())
	}
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	return nil, err
}

// inherited is the descriptor of the socket's directory in runsc.
const inherited = "/proc/self/fd/3/"

// A resident is a process that existed when the session started.
type resident struct {
	Exe    string
	Args   []string
	CWD    string
	Start  int64 `json:"clone_ts"`
	Status struct {
		Comm     string
		PID      int32
		PPID     int32
		UID, GID struct{ Real uint32 }
	}

	recorded bool  // from the event log, not from runsc
	begin    int64 // monotonic start time, if recorded
}

// residents lists the processes of a jail. No process may exit meanwhile: gVisor's kernel
// crashes, and the jail with it, if a process exits while its descriptors are listed
// (runsc/boot/procfs/dump.go, getFDs: the root directory of an exiting process is nil).
func (r runsc) residents(ctx context.Context, jail id.Jail) ([]resident, error) {
	out, err := r.run(ctx, "trace", "procfs", string(jail))
	if err != nil {
		return nil, err
	}
	return parseResidents(bytes.NewReader(out))
}

// pids lists the process ids of a jail. It is safe while processes exit.
func (r runsc) pids(ctx context.Context, jail id.Jail) ([]int32, error) {
	out, err := r.run(ctx, "ps", "--format", "json", string(jail))
	if err != nil {
		return nil, err
	}
	var pids []int32
	if err := json.Unmarshal(out, &pids); err != nil {
		return nil, fmt.Errorf("runsc ps: %w", err)
	}
	return pids, nil
}

func parseResidents(r io.Reader) ([]resident, error) {
	var all []resident
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxOutput)
	for lines.Scan() {
		if !bytes.HasPrefix(lines.Bytes(), []byte("{")) {
			continue
		}
		var one resident
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("runsc trace procfs: %w", err)
		}
		all = append(all, one)
	}
	return all, lines.Err()
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// An outcome is the result of a command line in one branch.
type outcome struct {
	Branch     int        `json:"branch"`
	Jail       id.Jail    `json:"jail,omitempty"`
	Exec       *wire.Exec `json:"exec,omitempty"`
	DurationMS int64      `json:"duration_ms"`
	Output     string     `json:"output,omitempty"` // the last part
	Changes    *int       `json:"changes,omitempty"`
	Processes  *int       `json:"processes,omitempty"` // started by the line, including itself
	CPUMS      int64      `json:"cpu_ms"`
	MemoryPeak int64      `json:"memory_peak_bytes"`
	Error      string     `json:"error,omitempty"` // why the line did not run or did not finish
}

// eachBranch creates branches, runs a command line in all of them concurrently and compares the
// results.
func (c *command) eachBranch(ctx context.Context, cl *client.Client, arg string, req wire.Branch, o eachOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // the second interrupt has its default action
	c.caught = ctx.Done()
	// An interrupted request would leave branches behind.
	made, err := branches(context.WithoutCancel(ctx), cl, arg, req)
	if err != nil {
		return err
	}
	all := make([]outcome, len(made.Jails), len(made.Jails)+len(made.Errors))
	var wg sync.WaitGroup
	for i, j := range made.Jails {
		all[i] = outcome{Branch: j.Origin.Number, Jail: j.ID}
		wg.Go(func() { all[i].run(ctx, cl, o) })
	}
	wg.Wait()
	for _, e := range made.Errors {
		all = append(all, outcome{Branch: e.Number, Error: client.Error(e.Problem).Error()})
	}
	if !o.keep {
		err = removeBranches(context.WithoutCancel(ctx), cl, made)
	}
	err = errors.Join(err, c.print(all, func(w io.Writer) { table(w, outcomeRows(all)) }))
	for _, one := range all {
		if one.Error != "" && err == nil {
			err = exitCode(exitError)
		}
	}
	return err
}

// run runs the line in its branch and measures its resource use.
func (one *outcome) run(ctx context.Context, cl *client.Client, o eachOptions) {
	if err := one.try(ctx, cl, o); err != nil {
		one.Error = err.Error()
	}
}

func (one *outcome) try(ctx context.Context, cl *client.Client, o eachOptions) error {
	before, err := cl.Jail(ctx, one.Jail)
	if err != nil {
		return fmt.Errorf("read jail %s before the command: %w", one.Jail, err)
	}
	begun := time.Now()
	s, err := cl.Stream(ctx, one.Jail, wire.ExecRequest{
		Cmd:      strings.ReplaceAll(o.line, "{n}", strconv.Itoa(one.Branch)),
		Env:      map[string]string{"GLASSHOUSE_BRANCH": strconv.Itoa(one.Branch)},
		Lossless: true, TimeoutMS: o.timeout.Milliseconds(),
	})
	if err != nil {
		return fmt.Errorf("start the command in jail %s: %w", one.Jail, err)
	}
	defer s.Close()
	one.Output, err = lastOutput(s)
	if err != nil {
		return fmt.Errorf("read the output of the command: %w", err)
	}
	x := s.Exec()
	one.Exec, one.DurationMS = &x, time.Since(begun).Milliseconds()
	after, err := cl.Jail(ctx, one.Jail)
	if err != nil {
		return fmt.Errorf("read jail %s after the command: %w", one.Jail, err)
	}
	if after.Usage != nil {
		one.CPUMS, one.MemoryPeak = after.Usage.CPUMS, after.Usage.MemoryPeak
		if before.Usage != nil {
			one.CPUMS -= before.Usage.CPUMS
		}
	}
	one.Changes, err = countChanges(ctx, cl, before)
	if err != nil {
		return fmt.Errorf("count the changes in jail %s: %w", one.Jail, err)
	}
	one.Processes, err = countProcesses(ctx, cl, one.Jail, x)
	if err != nil {
		return fmt.Errorf("count the processes in jail %s: %w", one.Jail, err)
	}
	return nil
}

// countChanges counts the paths that differ between a branch and its snapshot.
func countChanges(ctx context.Context, cl *client.Client, j wire.Jail) (*int, error) {
	n := 0
	for _, err := range cl.Changes(ctx, j.ID, client.ChangesOptions{Against: string(j.Origin.Snapshot)}) {
		if err != nil {
			return nil, err
		}
		n++
	}
	return &n, nil
}

// maxOutput is the number of output bytes that are kept.
const maxOutput = 64 << 10

// lastOutput reads a command's output to its end and returns the last part of it.
func lastOutput(s *client.ExecStream) (string, error) {
	var kept []byte
	for {
		out, err := s.Next()
		if err != nil {
			end := strings.ToValidUTF8(text.Suffix(string(kept), maxOutput), "\uFFFD")
			if err == io.EOF {
				err = nil
			}
			return end, err
		}
		kept = text.AppendEnd(kept, out.Data, maxOutput)
	}
}

// settleTime limits the wait for the exit event of a command that has ended.
const settleTime = time.Second

// countProcesses counts the processes that a command started, including itself, in the jail's
// event log. It returns nil if processes are not recorded.
func countProcesses(ctx context.Context, cl *client.Client, jid id.Jail, x wire.Exec) (*int, error) {
	for deadline := time.Now().Add(settleTime); ; {
		all, err := cl.Processes(ctx, jid, "", true)
		if err != nil {
			return nil, err
		}
		n, ended := descendants(all.Items, int32(x.PID))
		if ended {
			return &n, nil
		}
		if time.Now().After(deadline) {
			return nil, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// descendants counts a process and its descendants, and reports whether the process's exit is
// recorded. Each process follows its parent in the list.
func descendants(all []wire.Process, pid int32) (n int, ended bool) {
	depth := -1 // depth of the process, while its descendants are listed
	for _, p := range all {
		if depth >= 0 && p.Depth <= depth {
			depth = -1
		}
		switch {
		case depth >= 0:
			n++
		case p.PID == pid && !p.Existing:
			depth, n, ended = p.Depth, n+1, p.State != "running"
		}
	}
	return n, ended
}

func outcomeRows(all []outcome) [][]string {
	rows := [][]string{{"BRANCH", "JAIL", "EXIT", "TIME", "FILES", "PROCESSES", "CPU", "PEAK MEMORY", "LAST LINE"}}
	for _, o := range all {
		row := []string{strconv.Itoa(o.Branch), string(o.Jail)}
		if o.Exec == nil {
			rows = append(rows, append(row, "-", "-", "-", "-", "-", "-", text.Visible(o.Error)))
			continue
		}
		last := lastLine(o.Output)
		if o.Error != "" {
			last = o.Error
		}
		rows = append(rows, append(row,
			exitText(*o.Exec), short(time.Duration(o.DurationMS)*time.Millisecond), countText(o.Changes), countText(o.Processes),
			short(time.Duration(o.CPUMS)*time.Millisecond), size(o.MemoryPeak), text.Visible(last)))
	}
	return rows
}

func exitText(x wire.Exec) string {
	switch {
	case x.TimedOut:
		return "timeout"
	case x.Signal != "":
		return "SIG" + x.Signal
	case x.ExitCode == nil:
		return "-"
	}
	return strconv.Itoa(*x.ExitCode)
}

func countText(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

// maxLine is the number of columns of a line that the table shows.
const maxLine = 80

// lastLine returns the last line of the output that is not blank.
func lastLine(output string) string {
	output = strings.TrimSpace(output)
	line := strings.TrimSpace(output[strings.LastIndexByte(output, '\n')+1:])
	if i := strings.LastIndexByte(line, '\r'); i >= 0 { // a progress bar overwrites its line after \r
		line = line[i+1:]
	}
	return text.Columns(line, maxLine)
}

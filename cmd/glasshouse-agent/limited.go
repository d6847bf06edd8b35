package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// errorFD is the descriptor on which the process reports why it could not execute the agent.
const errorFD = 3

// limitedMain lowers the limits of this process and executes the agent. It is a separate
// process because the limits apply to the agent only: glasshouse-agent must work after the
// agent has exhausted them.
func limitedMain(args []string, stderr io.Writer) int {
	unix.CloseOnExec(errorFD)
	errorPipe := os.NewFile(errorFD, "error")
	c := &child{}
	flags := flag.NewFlagSet("glasshouse-agent limited", flag.ContinueOnError)
	flags.SetOutput(stderr)
	c.flags(flags)
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	path, err := exec.LookPath(flags.Arg(0))
	if err == nil {
		err = c.become(path, flags.Args())
	}
	fmt.Fprint(errorPipe, err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return exitNotFound
	}
	return exitNotRun
}

// become returns only if it fails.
func (c *child) become(path string, argv []string) error {
	env := os.Environ()
	for what, most := range map[int]uint64{unix.RLIMIT_DATA: c.data, unix.RLIMIT_NPROC: c.nproc} {
		if most == 0 {
			continue
		}
		if err := limit(what, most); err != nil {
			return err
		}
	}
	return os.NewSyscallError("execve", unix.Exec(path, argv, env))
}

// limited changes a command to start a process that sets the limits and executes the agent.
// The returned function waits until it has, and returns the error if it could not.
func (c *child) limited(cmd *exec.Cmd) (became func() error, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Path = "/proc/self/exe"
	cmd.Args = append([]string{"glasshouse-agent", "limited", fmt.Sprintf("-data=%d", c.data), fmt.Sprintf("-nproc=%d", c.nproc), "--"}, c.argv...)
	cmd.Err = nil // the started process looks up the program
	cmd.ExtraFiles = []*os.File{w}
	return func() error {
		w.Close()
		defer r.Close()
		why, err := io.ReadAll(r)
		if err == nil && len(why) > 0 {
			err = errors.New(string(why))
		}
		return err
	}, nil
}

package cli

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// beneathInit runs this program again as a child of this process, which is the first process of
// a container. As pid 1, this process becomes the parent of orphaned processes, such as the
// first processes of jails, and reaps them so that none remains a zombie. The daemon itself
// cannot do so, because it waits for some children by pid. beneathInit returns when the child
// ends.
func beneathInit(args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to start: %w", err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	child, err := os.StartProcess(exe, args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return fmt.Errorf("start the child process: %w", err)
	}
	go func() {
		for s := range signals {
			child.Signal(s) // an error means that the child has ended, which Wait4 reports too
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case pid == child.Pid && status.Signaled():
			return exitCode(128 + int(status.Signal()))
		case pid == child.Pid && status.ExitStatus() == 0:
			return nil
		case pid == child.Pid:
			return exitCode(status.ExitStatus())
		}
	}
}

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// beneathInit runs this program again, as the child of this process, which is the first
// of a container: it is the parent of all whose own is gone, such as the first processes
// of jails, and waits for them so that none stays as a zombie. The daemon itself cannot,
// since it waits for some by name. It ends when that child does.
func beneathInit(args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	child, err := os.StartProcess(exe, args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	go func() {
		for s := range signals {
			child.Signal(s) // an error says that it has ended, which Wait4 tells too
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

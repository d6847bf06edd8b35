package fork

import (
	"os/exec"
	"sync"
)

// mapping is locked while a child waits for its id mappings.
var mapping sync.Mutex

// Mapped calls start, which starts a process with id mappings (syscall.SysProcAttr.UidMappings).
//
// Package syscall makes the child wait on a pipe until its parent has written the mappings. The
// child inherits the pipes of children that are started at the same time. If the parent is killed
// while two children wait, each holds the pipe of the other open, and both wait forever with copies
// of all descriptors of the parent, such as its lock on a directory. So Mapped starts one at a time.
func Mapped(start func() error) error {
	mapping.Lock()
	defer mapping.Unlock()
	return start()
}

// StartMapped starts a command, with Mapped if it has id mappings.
func StartMapped(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil || len(cmd.SysProcAttr.UidMappings) == 0 {
		return cmd.Start()
	}
	return Mapped(cmd.Start)
}

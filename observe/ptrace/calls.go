package ptrace

import (
	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// A call is the current call of a task.
type call struct {
	open bool // entered and not returned
	known
	nr    int32
	abi   abi
	args  [6]uint64
	begin int64

	want     bool // the call is recorded
	wantFile bool // its file operation is recorded
	forked   bool // it created a task
	flags    event.Flags

	path, to string // path arguments
	unread   bool   // the memory of the paths was not readable
	addr     string
	closing  string // path of the file that a close closes
	before   before // state before an open that may create a file
	hidden   uint64 // flags of clone that the tracer removed
}

// callStop handles a syscall-enter-stop or syscall-exit-stop.
func (tr *tracer) callStop(t *task) {
	info := &tr.info
	if !tr.oldStyle {
		switch err := getCallInfo(t.tid, info); err {
		case nil:
		case unix.EIO, unix.EINVAL:
			tr.oldStyle = true // before Linux 5.3
		default:
			return // killed meanwhile
		}
	}
	if tr.oldStyle {
		regs, err := getRegisters(t.tid)
		if err != nil {
			return
		}
		*info = callInfo{Op: unix.PTRACE_SYSCALL_INFO_ENTRY, Arch: regs.arch, NR: uint64(regs.nr), Args: regs.args}
		// Without PTRACE_GET_SYSCALL_INFO, the stops at entry and exit look the same, and the tracer
		// has to keep track of their sequence (ptrace(2)).
		if t.call.open {
			*info = callInfo{Op: unix.PTRACE_SYSCALL_INFO_EXIT, Arch: regs.arch, NR: uint64(regs.ret)}
		}
	}
	switch info.Op {
	case unix.PTRACE_SYSCALL_INFO_ENTRY:
		tr.enter(t, info)
	case unix.PTRACE_SYSCALL_INFO_EXIT:
		if !t.call.open {
			tr.wasInside(t)
			return
		}
		tr.returns(t, int64(info.NR))
	}
}

// enter begins a call.
func (tr *tracer) enter(t *task, info *callInfo) {
	tr.begins(t, info.Arch, int32(info.NR), info.Args)
	c := &t.call
	if t.partial {
		t.partial = false
		c.flags |= event.Partial
	}
	if c.want || c.wantFile {
		tr.readPaths(t)
		if c.shape.Addr != 0 && !c.shape.AddrOut {
			tr.readAddress(t)
		}
	}
	if c.wantFile {
		switch c.kind {
		case opens, opensAt, opensHow, creates:
			tr.lookBefore(t)
		}
		if c.shape.Closes {
			c.closing, _ = tr.descriptor(t, c.arg(c.shape.FD))
		}
	}
	if c.kind == makesTask || c.kind == makesTask3 {
		tr.insist(t)
	}
}

// begins sets the description of a call by its number.
func (tr *tracer) begins(t *task, arch uint32, nr int32, args [6]uint64) {
	a := abiOf(arch, nr)
	t.call = call{open: true, known: lookup(a, nr), nr: nr, abi: a, args: args}
	c := &t.call
	_, c.begin = tr.clock.now()
	c.want = tr.wanted(a, nr, c.name)
	c.wantFile = tr.wants.files && c.shape.Op != ""
}

// arg returns an argument, counted from 1.
func (c *call) arg(i int8) uint64 { return c.args[i-1] }

// readPaths reads the path arguments.
func (tr *tracer) readPaths(t *task) {
	c := &t.call
	c.unread = false
	for _, p := range [...]struct {
		arg  int8
		into *string
	}{{c.shape.Path, &c.path}, {c.shape.To, &c.to}} {
		if p.arg == 0 {
			continue
		}
		s, complete, ok := tr.readString(t.tid, c.arg(p.arg))
		if !complete && ok {
			c.flags |= event.Cut
		}
		if !ok {
			c.unread = true
			continue
		}
		*p.into = s
	}
}

// readAddress reads the socket address of a call.
func (tr *tracer) readAddress(t *task) {
	c := &t.call
	addr, size := c.arg(c.shape.Addr), uint64(128) // size of struct sockaddr_storage
	word := 8
	if c.abi == compat {
		word = 4
	}
	switch {
	case addr == 0:
		return
	case c.shape.Message:
		var ok bool
		if size, ok = readWord(t.tid, addr+uint64(word), 4); !ok {
			return
		}
		if addr, ok = readWord(t.tid, addr, word); !ok || addr == 0 {
			return
		}
	case c.shape.Len != 0 && c.shape.AddrOut:
		var ok bool
		if size, ok = readWord(t.tid, c.arg(c.shape.Len), 4); !ok {
			return
		}
	case c.shape.Len != 0:
		size = c.arg(c.shape.Len)
	}
	b := tr.text[:min(size, 128)]
	if n, err := readMemory(t.tid, addr, b); err == nil {
		c.addr = syscalls.Address(b[:n])
	}
}

// returns ends a call and records it.
func (tr *tracer) returns(t *task, ret int64) {
	c := &t.call
	tr.giveBack(t)
	if tr.leaving && restarts(ret) {
		tr.unfinished(t) // interrupted by the tracer; it continues unobserved
		return
	}
	c.open = false
	real := ""
	if c.want || c.wantFile {
		switch {
		case c.shape.Execs && ret == 0: // the execve call has replaced the memory with the arguments
		case c.unread:
			tr.readPaths(t) // the kernel has paged them in since
		case t.proc.tasks > 1 && c.shape.Path != 0:
			tr.readAgain(t)
		}
		if c.shape.AddrOut && ret >= 0 {
			tr.readAddress(t)
		}
		if c.shape.ReturnsFile && ret >= 0 {
			real, _ = tr.descriptor(t, uint64(ret))
		}
	}
	switch {
	case c.kind == prctl && ret == 0 && c.args[0] == unix.PR_SET_NAME:
		tr.rename(t)
	case c.kind == debugs && ret == 0 && len(tr.foreign) > 0 && c.args[0] == unix.PTRACE_DETACH:
		tr.takeOver("a debugger in the jail has detached")
	case (c.kind == forks || c.kind == makesTask || c.kind == makesTask3) && ret > 0 && !c.forked:
		// The flags of clone3 are in memory, where another thread can set CLONE_UNTRACED again
		// after insist has removed it.
		tr.takeOver("a process started untraced")
	}
	if c.want {
		e := tr.callRecord(t)
		e.Ret = ret
		if real != "" && real != c.path {
			e.Real = real
		}
		tr.append()
	}
	if c.wantFile {
		tr.fileRecords(t, ret, real)
	}
}

// readAgain detects paths that another thread has changed since the call began. It is unknown
// which version the kernel has read.
func (tr *tracer) readAgain(t *task) {
	c := &t.call
	path, to, flags := c.path, c.to, c.flags
	tr.readPaths(t)
	if !c.unread && (c.path != path || c.to != to) {
		flags |= event.Raced
	}
	c.path, c.to, c.flags = path, to, flags
}

// callRecord begins the event of a task's call.
func (tr *tracer) callRecord(t *task) *event.Event {
	c := &t.call
	e := tr.record(event.Syscall, t)
	e.NR, e.Name, e.ABI, e.Args = c.nr, c.name, abis[c.abi], c.args
	e.Path, e.To, e.Addr = c.path, c.to, c.addr
	e.Flags = c.flags
	if c.flags&event.Partial == 0 {
		_, now := tr.clock.now()
		e.Dur = now - c.begin
	}
	return e
}

// unfinished records a call that will not return.
func (tr *tracer) unfinished(t *task) {
	c := &t.call
	if !c.open {
		return
	}
	c.open = false
	if c.want {
		e := tr.callRecord(t)
		e.Flags |= event.Unfinished
		tr.append()
	}
}

// childReturns records the return of fork in the new task.
func (tr *tracer) childReturns(t *task) {
	regs, err := getRegisters(t.tid)
	if err != nil || regs.nr < 0 {
		return
	}
	tr.begins(t, regs.arch, int32(regs.nr), regs.args)
	t.call.open = false
	t.call.flags = event.Child
	if t.call.want {
		tr.callRecord(t).Dur = 0
		tr.append()
	}
}

// wasInside handles the first stop of a task that existed before the tracer. A call that it
// was in has completed or will be restarted because of the tracer.
func (tr *tracer) wasInside(t *task) {
	regs, err := getRegisters(t.tid)
	if err != nil || regs.nr < 0 {
		return
	}
	if restarts(regs.ret) {
		t.partial = true
		return
	}
	tr.begins(t, regs.arch, int32(regs.nr), regs.args)
	t.call.open = false
	t.call.flags = event.Partial
	if t.call.want {
		tr.callRecord(t).Ret = regs.ret
		tr.append()
	}
}

// restarts reports whether a call with this result is restarted if no signal handler runs
// (ERESTARTSYS and similar).
func restarts(ret int64) bool { return ret <= -512 && ret >= -516 && ret != -515 }

// insist removes CLONE_UNTRACED, which would create an untraced task (clone(2)).
func (tr *tracer) insist(t *task) {
	c := &t.call
	flags := c.args[0]
	if c.kind == makesTask3 {
		var ok bool
		if flags, ok = readWord(t.tid, c.args[0], 8); !ok {
			return
		}
	}
	if flags&unix.CLONE_UNTRACED == 0 {
		return
	}
	visible := flags &^ unix.CLONE_UNTRACED
	var err error
	if c.kind == makesTask3 {
		err = writeWord(t.tid, c.args[0], visible)
	} else {
		err = setFirstArg(t.tid, c.abi == compat, visible)
	}
	if err == nil {
		c.hidden = flags
	}
}

// giveBack restores the registers that insist has changed.
func (tr *tracer) giveBack(t *task) {
	c := &t.call
	switch {
	case c.hidden == 0:
	case c.kind == makesTask3:
		writeWord(t.tid, c.args[0], c.hidden)
	default:
		restoreFirstArg(t.tid, c.abi == compat, c.hidden)
	}
}

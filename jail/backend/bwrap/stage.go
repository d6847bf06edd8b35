package bwrap

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/seccomp"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// stageName is the name of a stage process. Its arguments are the operation and the jail's
// directory, by which Clean finds the process.
const stageName = "glasshouse-bwrap-stage"

// The operations of a stage. Creating a jail takes two stages: launch starts enter in the
// jail's user namespace and exits. Then enter, which becomes bwrap, is no child of the daemon,
// so it outlives the daemon and needs no one to wait for it.
const (
	stageLaunch = "launch"
	stageEnter  = "enter"
	stageHold   = "hold"   // mount a stopped jail's files until the daemon closes the control pipe
	stageRemove = "remove" // remove a jail's files
	stageDiff   = "diff"   // compare a jail's files with its layers
	stageTry    = "try"    // probe whether all this works on the host
)

// A stage's descriptors after the standard ones. bwrap writes errors to stderr.
const (
	fdRequest = 3 // a file with the stageRequest
	fdReport  = 4 // reports are written here, also by bwrap
	fdGo      = 5 // a byte means that bwrap may start; end of file means that the daemon gave up
	fdMapped  = 6 // a byte means that newuidmap has mapped the ids
)

// A stageRequest is the request that a stage executes.
type stageRequest struct {
	Bwrap     string    `json:"bwrap"` // path of bwrap
	Base      string    `json:"base"`
	Host      string    `json:"host,omitempty"` // the layer of the host tree
	Templates string    `json:"templates"`
	Plan      jail.Plan `json:"plan"`
	Identity  identity  `json:"identity"`
	Processes int64     `json:"processes"` // process limit of the jail's single user; 0 is none

	Compare comparison `json:"compare"`
}

// A report is the output of a stage, and of bwrap after it.
type report struct {
	Ready   int           `json:"ready,omitempty"`     // stage enter, which is ready to start bwrap: its pid
	Dir     string        `json:"dir,omitempty"`       // stage hold: path of the files in its mount namespace
	Child   int           `json:"child-pid,omitempty"` // from bwrap: the pid of the jail's init
	Changes []jail.Change `json:"changes,omitempty"`   // stage diff
	Error   *failure      `json:"error,omitempty"`
}

// A failure is an error that a stage reports.
type failure struct {
	Kind    fault.Kind `json:"kind"`
	Remedy  string     `json:"remedy"`
	Field   string     `json:"field"`
	Message string     `json:"message"`
}

func (f *failure) err() error {
	return &fault.Error{Kind: f.Kind, Remedy: f.Remedy, Field: f.Field, Err: fmt.Errorf("%s", f.Message)}
}

// Stage returns immediately in an ordinary process. In a process that this package has started
// as a stage it runs the stage and never returns. The main function of every program with a
// Backend, including tests, must call it with os.Args before anything else.
func Stage(args []string) {
	if len(args) < 2 || args[0] != stageName {
		return
	}
	if err := runStage(args[1]); err != nil {
		writeReport(report{Error: &failure{fault.KindOf(err), fault.RemedyOf(err), fault.FieldOf(err), err.Error()}})
		os.Exit(1)
	}
	os.Exit(0)
}

// writeReport writes a report. It ignores errors, because the reader may have exited.
func writeReport(r report) {
	b, err := json.Marshal(r)
	if err != nil {
		return
	}
	for b = append(b, '\n'); len(b) > 0; {
		n, err := unix.Write(fdReport, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		b = b[n:]
	}
}

func runStage(what string) error {
	for fd := fdRequest; fd <= fdMapped; fd++ {
		unix.CloseOnExec(fd)
	}
	o, err := readRequest()
	if err != nil {
		return fmt.Errorf("read stage request: %w", err)
	}
	syscall.Umask(0o022)
	if what != stageLaunch {
		if err := o.Identity.becomeRoot(); err != nil {
			return fmt.Errorf("become root of the jail: %w", err)
		}
	}
	switch what {
	case stageLaunch:
		return o.launch()
	case stageEnter:
		return o.enter()
	case stageHold:
		return o.mountFiles()
	case stageRemove:
		return os.RemoveAll(o.Plan.Dir)
	case stageDiff:
		return o.diff()
	case stageTry:
		return o.probe()
	}
	return fmt.Errorf("unknown stage %q", what)
}

// readRequest reads the request from the start of its file, because the next stage reads it
// again. It creates no os.File, whose finalizer would close the inherited descriptor.
func readRequest() (o stageRequest, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fdRequest, &st); err != nil {
		return o, fmt.Errorf("get the size of the request: %w", err)
	}
	data := make([]byte, st.Size)
	for n := 0; n < len(data); {
		m, err := unix.Pread(fdRequest, data[n:], int64(n))
		if err == nil && m == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return o, err
		}
		n += m
	}
	return o, json.Unmarshal(data, &o)
}

// launch starts the stage enter in the jail's user namespace. As root it first makes the
// mounts that root in the jail may not make. It already has its own mount namespace, and
// enter gets a copy of that.
func (o *stageRequest) launch() error {
	if o.Identity.Kind == asRoot {
		if err := o.mountAsRoot(); err != nil {
			return err
		}
	}
	cmd := stageCommand(stageEnter, o.Plan.Dir)
	cmd.Stderr = os.Stderr
	for _, fd := range []uintptr{fdRequest, fdReport, fdGo} {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(fd, "inherited"))
	}
	return o.Identity.start(cmd, o.Plan.IDs)
}

// enter makes the remaining mounts, waits for permission to continue, and becomes bwrap.
func (o *stageRequest) enter() error {
	if o.Identity.Kind != asRoot {
		if err := o.mountAsUser(); err != nil {
			return err
		}
	}
	if err := o.makeTargets(); err != nil {
		return err
	}
	limitUser(o.Processes)
	filter, err := filterFile()
	if err != nil {
		return fmt.Errorf("make the filter: %w", err)
	}
	writeReport(report{Ready: os.Getpid()})
	if n, err := unix.Read(fdGo, make([]byte, 1)); n != 1 {
		return fmt.Errorf("the daemon cancelled the start of the jail: %w", err)
	}
	// bwrap needs the report and filter descriptors. It does not pass them on to the jail.
	for _, fd := range []int{fdReport, filter} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("pass descriptor %d to bwrap: %w", fd, err)
		}
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	argv := append([]string{monitorName(o.Plan)}, o.arguments(fdReport, filter)...)
	return fmt.Errorf("start %s: %w", o.Bwrap, unix.Exec(o.Bwrap, argv, []string{"PATH=/usr/bin:/bin"}))
}

// dropCapabilities removes the capabilities that root in a jail may not have from the thread's
// bounding set. bwrap, which runs with all capabilities in its namespaces, would leave that
// set full. bwrap gets its own capabilities through the inheritable set.
func dropCapabilities() error {
	runtime.LockOSThread() // the thread that calls execve
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	for i := range caps {
		caps[i].Inheritable = caps[i].Permitted
	}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return base.DropBounding(base.KeptNumbers())
}

// monitorName returns the process name of the outer bwrap, which stays as the parent of the
// jail's init.
func monitorName(p jail.Plan) string { return "bwrap-" + string(p.ID) }

// mountFiles mounts the files of a stopped jail.
func (o *stageRequest) mountFiles() error {
	mount := o.mountAsUser
	if o.Identity.Kind == asRoot {
		mount = o.mountUnmapped
	}
	if err := mount(); err != nil {
		return err
	}
	writeReport(report{Dir: layout{o.Plan.Dir}.merged()})
	if _, err := io.Copy(io.Discard, os.NewFile(fdGo, "go")); err != nil {
		return fmt.Errorf("wait until the files may be unmounted: %w", err)
	}
	return nil
}

// makeTargets creates the mount points that bwrap uses.
func (o *stageRequest) makeTargets() error {
	l := layout{o.Plan.Dir}
	root, err := os.OpenRoot(l.merged())
	if err != nil {
		return fmt.Errorf("open the root of the jail: %w", err)
	}
	defer root.Close()
	for _, own := range jail.Reserved() {
		st, err := root.Lstat(own[1:])
		if err != nil || !st.IsDir() {
			return fault.Newf(fault.Conflict, "bwrap.Create", own, "this path must be a directory in the jail's files: %v", err)
		}
	}
	for _, b := range o.binds() {
		in, rel := root, b.target
		if b.inWorkspace {
			if in, err = os.OpenRoot(l.workspace()); err != nil {
				return fmt.Errorf("open the workspace: %w", err)
			}
			defer in.Close()
			rel = b.target[len(o.Plan.Workspace.At()):]
		}
		st, err := os.Stat(b.source)
		if err != nil {
			return fmt.Errorf("inspect the source of %s: %w", b.target, err)
		}
		if err := makeTarget(in, rel, st.IsDir()); err != nil {
			return err
		}
	}
	return nil
}

// filterFile returns a descriptor of the system call filter.
func filterFile() (int, error) {
	code, err := seccomp.BPF(runtime.GOARCH)
	if err != nil {
		return -1, err
	}
	return base.Memfd("seccomp", code)
}

// limitUser sets the resource limits of the jail's processes, and limits their number if no
// cgroup does.
func limitUser(processes int64) {
	const files = 65536
	set := func(resource int, n uint64) {
		var own syscall.Rlimit
		if syscall.Getrlimit(resource, &own) == nil {
			n = min(n, own.Max)
			syscall.Setrlimit(resource, &syscall.Rlimit{Cur: n, Max: n})
		}
	}
	set(unix.RLIMIT_CORE, 0)
	set(unix.RLIMIT_NOFILE, files)
	if processes > 0 {
		set(unix.RLIMIT_NPROC, uint64(processes+jail.InitThreads)+1) // one more for bwrap
	}
	os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(jail.InitOOMScore)), 0)
	// Forbid nested user namespaces. The seccomp filter already denies them and is the only
	// protection where /proc/sys is not writable.
	os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
}

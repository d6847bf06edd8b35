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
)

// stageName is the name of a stage process; its arguments are what it is to do
// and the jail's directory, by which Clean finds it.
const stageName = "glasshouse-bwrap-stage"

// What a stage does. Making a jail takes two: launch starts enter in the jail's
// user namespace and ends, so that enter, which becomes bwrap, is nobody's child
// and outlives the daemon without anybody to wait for it.
const (
	stageLaunch = "launch"
	stageEnter  = "enter"
	stageHold   = "hold"   // show a stopped jail's files until nobody wants them any more
	stageRemove = "remove" // remove a jail's files
	stageDiff   = "diff"   // compare a jail's files with its layers
	stageTry    = "try"    // find out whether all that works on this host
)

// A stage's descriptors beside the standard ones. On stderr bwrap complains.
const (
	fdOrders = 3 // a file with the orders
	fdReport = 4 // reports are written here, by bwrap too
	fdGo     = 5 // a byte comes when bwrap may be started; its end means that nobody cares
	fdMapped = 6 // a byte comes when newuidmap has done its work
)

// orders are what a stage is told.
type orders struct {
	Bwrap     string    `json:"bwrap"` // its path
	Base      string    `json:"base"`
	Host      string    `json:"host,omitempty"` // the layer for the host's own tree
	Templates string    `json:"templates"`
	Plan      jail.Plan `json:"plan"`
	Identity  identity  `json:"identity"`
	Processes int64     `json:"processes"` // limit for the jail's one user; 0 is none

	Compare comparison `json:"compare"`
}

// A report is what a stage tells, and bwrap after it.
type report struct {
	Ready   int           `json:"ready,omitempty"`     // of enter, which waits for the go: its pid
	Dir     string        `json:"dir,omitempty"`       // of hold: where the files are, seen from its root
	Child   int           `json:"child-pid,omitempty"` // of bwrap: the pid of the jail's init
	Changes []jail.Change `json:"changes,omitempty"`   // of diff
	Error   *failure      `json:"error,omitempty"`
}

// A failure is an error on its way out of a stage.
type failure struct {
	Kind    fault.Kind `json:"kind"`
	Remedy  string     `json:"remedy"`
	Field   string     `json:"field"`
	Message string     `json:"message"`
}

func (f *failure) err() error {
	return &fault.Error{Kind: f.Kind, Remedy: f.Remedy, Field: f.Field, Err: fmt.Errorf("%s", f.Message)}
}

// Stage returns at once in an ordinary process. In one that this package has
// started for a jail it does what that one is for and never returns. The main
// function of every program that has a Backend, tests too, calls it with os.Args
// before anything else.
func Stage(args []string) {
	if len(args) < 2 || args[0] != stageName {
		return
	}
	if err := runStage(args[1]); err != nil {
		tell(report{Error: &failure{fault.KindOf(err), fault.RemedyOf(err), fault.FieldOf(err), err.Error()}})
		os.Exit(1)
	}
	os.Exit(0)
}

// tell writes a report. If nobody reads it any more, nothing can be done.
func tell(r report) {
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
	for fd := fdOrders; fd <= fdMapped; fd++ {
		unix.CloseOnExec(fd)
	}
	o, err := readOrders()
	if err != nil {
		return fmt.Errorf("read a stage's orders: %w", err)
	}
	syscall.Umask(0o022)
	if what != stageLaunch {
		if err := o.Identity.settle(); err != nil {
			return err
		}
	}
	switch what {
	case stageLaunch:
		return o.launch()
	case stageEnter:
		return o.enter()
	case stageHold:
		return o.hold()
	case stageRemove:
		return os.RemoveAll(o.Plan.Dir)
	case stageDiff:
		return o.diff()
	case stageTry:
		return o.try()
	}
	return fmt.Errorf("there is no stage %q", what)
}

// readOrders reads the orders from the start: the next stage reads them again.
// No os.File is made of a descriptor that it is to inherit, because it would be
// closed whenever the garbage is collected.
func readOrders() (o orders, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fdOrders, &st); err != nil {
		return o, err
	}
	data := make([]byte, st.Size)
	for n := 0; n < len(data); {
		m, err := unix.Pread(fdOrders, data[n:], int64(n))
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

// launch starts the stage enter in the jail's user namespace. As root it mounts
// before that what the jail's root may not mount; it has a mount namespace of
// its own already, and enter gets a copy.
func (o *orders) launch() error {
	if o.Identity.Kind == asRoot {
		if err := o.mountAsRoot(); err != nil {
			return err
		}
	}
	cmd := stageCommand(stageEnter, o.Plan.Dir)
	cmd.Stderr = os.Stderr
	for _, fd := range []uintptr{fdOrders, fdReport, fdGo} {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(fd, "inherited"))
	}
	return o.Identity.start(cmd, o.Plan.IDs)
}

// enter mounts what is not mounted yet, waits for the go, and becomes bwrap.
func (o *orders) enter() error {
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
		return err
	}
	tell(report{Ready: os.Getpid()})
	if n, err := unix.Read(fdGo, make([]byte, 1)); n != 1 {
		return fmt.Errorf("nobody wants the jail any more: %w", err)
	}
	// bwrap writes its report and reads the filter; the jail gets neither.
	for _, fd := range []int{fdReport, filter} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	if err := capCapabilities(); err != nil {
		return err
	}
	argv := append([]string{monitorName(o.Plan)}, o.arguments(fdReport, filter)...)
	return fmt.Errorf("start %s: %w", o.Bwrap, unix.Exec(o.Bwrap, argv, []string{"PATH=/usr/bin:/bin"}))
}

// capCapabilities takes from the thread's bounding set, for good, what the jail's
// root may not have. bwrap, whose root may do everything in its namespaces, would
// leave that set full. It gets its own powers by inheritance.
func capCapabilities() error {
	runtime.LockOSThread() // which calls exec
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
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if _, ok := capabilities[c]; ok {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // older kernels know fewer
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}

// monitorName is what bwrap is called in the list of processes. It stays outside
// as the parent of the jail's init.
func monitorName(p jail.Plan) string { return "bwrap-" + string(p.ID) }

// hold shows the files of a jail that does not run.
func (o *orders) hold() error {
	mount := o.mountAsUser
	if o.Identity.Kind == asRoot {
		mount = o.mountNaturally
	}
	if err := mount(); err != nil {
		return err
	}
	tell(report{Dir: layout{o.Plan.Dir}.merged()})
	_, err := io.Copy(io.Discard, os.NewFile(fdGo, "go"))
	return err
}

// makeTargets makes the places that bwrap mounts on.
func (o *orders) makeTargets() error {
	l := layout{o.Plan.Dir}
	root, err := os.OpenRoot(l.merged())
	if err != nil {
		return err
	}
	defer root.Close()
	for _, own := range jail.Reserved() {
		st, err := root.Lstat(own[1:])
		if err != nil || !st.IsDir() {
			return fault.Newf(fault.Conflict, "bwrap.Create", own, "the jail's files have something else there than a directory: %v", err)
		}
	}
	for _, b := range o.binds() {
		in, rel := root, b.target
		if b.inWorkspace {
			if in, err = os.OpenRoot(l.workspace()); err != nil {
				return err
			}
			defer in.Close()
			rel = b.target[len(o.Plan.Workspace.At()):]
		}
		st, err := os.Stat(b.source)
		if err != nil {
			return err
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
	return memoryFile("seccomp", code)
}

// memoryFile returns a descriptor, closed on exec, of a file that is nowhere.
func memoryFile(name string, content []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if _, err := unix.Pwrite(fd, content, 0); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// limitUser bounds what the jail's processes may have each, and how many there
// may be where no cgroup does.
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
		set(unix.RLIMIT_NPROC, uint64(processes+jail.InitThreads)+1) // bwrap is one more
	}
	os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(jail.InitOOMScore)), 0)
	// No user namespaces below the jail's. The filter refuses them already;
	// where /proc/sys cannot be written it has to do alone.
	os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
}

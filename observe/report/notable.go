package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// A Notable is one kind of noteworthy activity that the person responsible for the jail may want to
// inspect. It states what happened, not that it was wrong.
type Notable struct {
	Kind   string        `json:"kind"`
	Level  string        `json:"level"` // alert, warning, note
	Title  string        `json:"title"`
	Count  int64         `json:"count"`
	Failed int64         `json:"failed"` // operations that failed
	Kinds  Count         `json:"kinds"`
	List   []NotableItem `json:"list"` // the most frequent first
	More   int64         `json:"more"`
	Events Link          `json:"events"`
}

// A NotableItem is one kind of occurrence and its count.
type NotableItem struct {
	What    Text       `json:"what"`
	Errno   string     `json:"errno,omitempty"` // set if the operation failed
	Count   int64      `json:"count"`
	AtLeast bool       `json:"at_least,omitempty"`
	PID     int32      `json:"pid,omitempty"` // PID of the first occurrence
	Comm    Text       `json:"comm,omitempty"`
	Began   *time.Time `json:"began,omitempty"` // time of the first occurrence
	Events  Link       `json:"events"`
}

// Times formats the count. Many operations may concern few files.
func (n Notable) Times() string {
	if n.Kind == kinds[kindOutside].name {
		return n.Kinds.of("file", "files") + ", " + count(n.Count, "operation", "operations")
	}
	return number(n.Count) + " ×"
}

// levels are ordered by severity, the most serious first.
var levels = []string{"alert", "warning", "note"}

// A kind is one kind of notable events. If query is empty, it is built from calls.
type kind struct {
	name, level, title string
	calls              []string
	query              string
}

// kinds lists all kinds.
var kinds = []kind{
	{"suid", "alert", "Files made setuid or setgid", nil, "type:syscall name:chmod,fchmod,fchmodat,fchmodat2"},
	{"memory-exec", "alert", "Programs run from memory, without a file", nil, "type:proc op:exec"},
	{"oom", "alert", "Processes killed from outside while memory was nearly exhausted", nil, "type:proc op:exit signal:SIGKILL"},
	{"kernel", "warning", "Use of kernel interfaces that few programs need", []string{
		"bpf", "perf_event_open", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "add_key", "keyctl", "request_key",
		"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "iopl", "ioperm", "open_by_handle_at",
		"name_to_handle_at", "reboot", "swapon", "swapoff", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "acct", "quotactl",
		"quotactl_fd", "fanotify_init", "lookup_dcookie", "vm86", "vm86old", "modify_ldt"}, ""},
	{"trace", "warning", "Inspection or control of other processes", []string{
		"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise"}, ""},
	{"mount", "warning", "Mounts and changes of the root directory", []string{
		"mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsmount", "fsconfig", "fspick", "mount_setattr"}, ""},
	{"namespace", "warning", "Creation or entry of namespaces", []string{"unshare", "setns", "clone"}, ""},
	{"denied", "warning", "Calls that seccomp denied", nil, "type:syscall flag:denied"},
	{"written-exec", "warning", "Programs run that were written in the jail", nil, "type:proc op:exec"},
	{"killed-outside", "warning", "Killed (SIGKILL) from outside: by Glasshouse, a limit, or the kernel", nil, "type:proc op:exit signal:SIGKILL"},
	{"crashed", "warning", "Crashed", nil, "type:proc op:exit signal:SIGSEGV,SIGBUS,SIGILL,SIGFPE,SIGABRT,SIGSYS,SIGTRAP"},
	{"gap", "warning", "Missing records", nil, "type:gap"},
	{"memfd", "note", "Files in memory", []string{"memfd_create", "memfd_secret"}, ""},
	{"identity", "note", "Changing user, group or capabilities", []string{
		"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid", "setfsgid", "capset",
		"setuid32", "setgid32", "setreuid32", "setregid32", "setresuid32", "setresgid32", "setgroups32", "setfsuid32", "setfsgid32"}, ""},
	{"executable", "note", "Files made executable", nil, "type:syscall name:chmod,fchmod,fchmodat,fchmodat2"},
	{"outside", "note", "Files changed outside the workspace and the temporary directories", nil, ""},
	{"refused", "note", "Connections that were refused, or could not be made", nil, "type:syscall name:connect ret:<0"},
	{"lineage", "note", "Snapshots, restores and branches", nil, "type:lineage"},
	{"killed", "note", "Ended by a signal", nil, "type:proc op:exit signal:*"},
}

// callRules defines how a system call is evaluated.
type callRules struct {
	kind     int                                 // index in kinds, or -1
	describe func(e *event.Event) (string, bool) // describes the call, and reports whether it is notable
	watch    func(f *fold, e *event.Event)       // updates other state
}

// rulesOf maps system calls to their rules.
var rulesOf = func() map[string]*callRules {
	m := map[string]*callRules{}
	for i, k := range kinds {
		for _, name := range k.calls {
			m[name] = &callRules{kind: i, describe: describeCall}
		}
	}
	m["clone"].describe = describeClone
	m["unshare"].describe = describeFlags
	m["setns"].describe = describeFlags
	m["ptrace"].describe = describePtrace
	for _, name := range kinds[kindOf("identity")].calls {
		m[name].describe = describeIDs
	}
	for name, arg := range map[string]int{"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2} {
		m[name] = &callRules{kind: -1, watch: func(f *fold, e *event.Event) { f.chmod(e, uint32(e.Args[arg])) }}
	}
	for name, arg := range map[string]int{"kill": 1, "tkill": 1, "tgkill": 2, "pidfd_send_signal": 1, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2} {
		m[name] = &callRules{kind: -1, watch: func(f *fold, e *event.Event) { f.kill(e, arg) }}
	}
	m["connect"] = &callRules{kind: -1, watch: func(f *fold, e *event.Event) { f.net.Add(e) }}
	return m
}()

func kindOf(name string) int {
	return slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
}

// describeCall returns the call and its paths.
func describeCall(e *event.Event) (string, bool) {
	switch {
	case e.Path != "" && e.To != "":
		return e.Name + " " + cut(e.Path) + " " + cut(e.To), true
	case e.Path != "":
		return e.Name + " " + cut(e.Path), true
	}
	return e.Name, true
}

var namespaces = []struct {
	flag uint64
	name string
}{
	{0x00000080, "time"}, {0x00020000, "mount"}, {0x02000000, "cgroup"}, {0x04000000, "uts"}, {0x08000000, "ipc"},
	{0x10000000, "user"}, {0x20000000, "pid"}, {0x40000000, "net"},
}

func namespacesIn(flags uint64) string {
	var names []string
	for _, ns := range namespaces {
		if flags&ns.flag != 0 {
			names = append(names, ns.name)
		}
	}
	return strings.Join(names, "+")
}

func describeFlags(e *event.Event) (string, bool) {
	flags := e.Args[0]
	if e.Name == "setns" {
		flags = e.Args[1]
	}
	names := namespacesIn(flags)
	// A setns without flags is notable, too: type 0 allows any namespace (setns(2)).
	if e.Name == "unshare" && names == "" {
		return "", false // shares files or memory only; no namespace
	}
	return strings.TrimSpace(e.Name + " " + names), true
}

// describeClone handles clone only: the flags of clone3 are in memory and not recorded. The lowest
// byte of clone's flags is the termination signal (clone(2)).
func describeClone(e *event.Event) (string, bool) {
	// CLONE_NEWTIME overlaps the signal. Only unshare and clone3 accept it (linux/sched.h).
	names := namespacesIn(e.Args[0] &^ 0xff)
	return "clone " + names, names != ""
}

var ptraceRequests = map[uint64]string{
	0: "TRACEME", 1: "PEEKTEXT", 2: "PEEKDATA", 3: "PEEKUSER", 4: "POKETEXT", 5: "POKEDATA", 6: "POKEUSER", 7: "CONT", 8: "KILL",
	12: "GETREGS", 13: "SETREGS", 16: "ATTACH", 17: "DETACH", 24: "SYSCALL", 0x4206: "SEIZE", 0x4207: "INTERRUPT",
}

func describePtrace(e *event.Event) (string, bool) {
	if name := ptraceRequests[e.Args[0]]; name != "" {
		return "ptrace " + name, true
	}
	return fmt.Sprintf("ptrace %#x", e.Args[0]), true
}

// describeIDs returns the call with the IDs that it sets. -1 leaves an ID unchanged.
func describeIDs(e *event.Event) (string, bool) {
	n := 1
	switch name := strings.TrimSuffix(e.Name, "32"); {
	case name == "capset" || name == "setgroups":
		return name, true
	case strings.HasPrefix(name, "setres"):
		n = 3
	case strings.HasPrefix(name, "setre"):
		n = 2
	}
	var ids []string
	for _, a := range e.Args[:n] {
		ids = append(ids, fmt.Sprint(int32(uint32(a))))
	}
	return fmt.Sprintf("%s(%s)", e.Name, strings.Join(ids, ", ")), true
}

type itemKey struct {
	what string
	ret  int64 // 0 if it succeeded
}

type item struct {
	count   int64
	pid     int32
	comm    string
	ts      int64    // time of the first occurrence
	packets bool     // observed as packets, not as a call
	terms   []string // terms of its query: alternating keys and values
	link    Link
}

type found struct {
	count, failed int64
	link          Link
	items         table[itemKey, item]
}

// notables collects notable events. Each kind has its own table, so that a flood of one kind
// does not displace others.
type notables struct {
	found   []found
	killed  map[int32]bool // PIDs to which the jail itself sent SIGKILL
	any     bool           // the jail sent SIGKILL to a group, or to more processes than are kept
	outside Text           // the query for changes outside the writable directories
	packets bool           // refused connections were observed as packets

	// Processes killed from outside are held here until it is known whether the whole jail
	// ended with them, which is not notable.
	deaths []death
	end    int64 // NS of the last end of the first process, or 0
}

type death struct {
	kind int
	e    event.Event
}

func newNotables() *notables {
	n := &notables{found: make([]found, len(kinds)), killed: map[int32]bool{}}
	for i := range n.found {
		t := &n.found[i].items
		t.keep = 256
		t.copyKey = func(k itemKey) itemKey { k.what = keep(k.what); return k }
		t.weight = func(i *item) int64 { return i.count }
	}
	return n
}

// add counts one event. The operation failed if ret is negative.
func (n *notables) add(kind int, what string, e *event.Event, ret int64) {
	f := &n.found[kind]
	f.count++
	if ret < 0 {
		f.failed++
	}
	f.link.saw(e.Seq)
	i, fresh := f.items.get(itemKey{cut(what), min(ret, 0)})
	if fresh {
		i.pid, i.comm, i.ts, i.terms = e.PID, keep(e.Comm), e.TS, terms(e)
	}
	i.count++
	i.link.saw(e.Seq)
}

// terms returns the query terms for events like e.
func terms(e *event.Event) []string {
	switch {
	case e.Type == event.File:
		return []string{"type", "file", "path", keep(e.Path)}
	case e.Type == event.Proc && e.Op == event.OpExec:
		return []string{"type", "proc", "op", "exec", "exe", keep(e.Exe)}
	case e.Type == event.Proc:
		return []string{"type", "proc", "op", "exit", "signal", keep(e.Signal), "comm", keep(e.Comm)}
	}
	if e.Type == event.Lineage {
		return []string{"type", "lineage", "snapshot", keep(string(e.Snapshot))}
	}
	t := []string{"type", "syscall", "name", keep(e.Name), "path", keep(e.Path)}
	if e.Flags&event.Denied != 0 {
		t = append(t, "flag", "denied")
	}
	return t
}

var (
	kindSuid     = kindOf("suid")
	kindMemory   = kindOf("memory-exec")
	kindOOM      = kindOf("oom")
	kindDenied   = kindOf("denied")
	kindWritten  = kindOf("written-exec")
	kindKilledBy = kindOf("killed-outside")
	kindCrashed  = kindOf("crashed")
	kindGap      = kindOf("gap")
	kindExec     = kindOf("executable")
	kindOutside  = kindOf("outside")
	kindRefused  = kindOf("refused")
	kindKilled   = kindOf("killed")
	kindLineage  = kindOf("lineage")
)

func (f *fold) syscall(e *event.Event) {
	c := f.calls.add(e)
	if c == nil {
		return
	}
	if denied(e) {
		f.notable.add(kindDenied, e.Name, e, e.Ret)
	}
	r := c.rules
	if r == nil {
		return
	}
	if r.watch != nil {
		r.watch(f, e)
	}
	if r.kind >= 0 {
		if what, ok := r.describe(e); ok {
			f.notable.add(r.kind, what, e, e.Ret)
		}
	}
}

func (f *fold) chmod(e *event.Event, mode uint32) {
	path := e.Real
	if path == "" {
		path = e.Path
	}
	what := fmt.Sprintf("%04o %s", mode&0o7777, cut(path))
	switch {
	case mode&0o6000 != 0:
		// S_ISUID and S_ISGID (chmod(2)). Failed attempts count, too.
		f.notable.add(kindSuid, what, e, e.Ret)
	case mode&0o111 != 0 && e.Ret >= 0:
		f.notable.add(kindExec, what, e, e.Ret)
	}
}

func (f *fold) kill(e *event.Event, arg int) {
	const sigkill = 9
	// The kernel uses 32 bits of the register; a program can set the others (kill(2): int sig).
	if int32(e.Args[arg]) != sigkill || e.Ret < 0 {
		return
	}
	n := f.notable
	pid := int32(e.Args[0])
	// 0 and negative numbers stand for groups of processes (kill(2)). The argument of
	// pidfd_send_signal(2) is a descriptor, that of tkill(2) a thread.
	if e.Name == "pidfd_send_signal" || e.Name == "tkill" || pid <= 0 || len(n.killed) >= 4096 {
		n.any = true
		return
	}
	n.killed[pid] = true
}

func (f *fold) file(e *event.Event) {
	if f.files.add(e) {
		f.notable.add(kindOutside, e.Path, e, 0)
	}
}

func (f *fold) proc(e *event.Event) {
	f.tree.Add(e)
	if len(f.tree.ended) > 2*keepEnded {
		f.tree.Prune(keepEnded)
	}
	if e.Flags&event.Thread != 0 {
		return
	}
	if e.PID == 1 {
		f.notable.firstProcess(e)
	}
	if e.Flags&event.Existing != 0 {
		return
	}
	switch e.Op {
	case event.OpExec:
		f.exec(e)
	case event.OpExit:
		if e.Signal != "" {
			f.killed(e)
		}
		delete(f.notable.killed, e.PID) // PIDs are reused
	}
}

func (f *fold) exec(e *event.Event) {
	switch exe := cut(e.Exe); {
	case strings.HasPrefix(exe, "/memfd:") || strings.HasPrefix(exe, "memfd:"):
		// The names of memory files begin with memfd: (memfd_create(2)), in links of procfs
		// after a slash.
		f.notable.add(kindMemory, exe, e, 0)
	case f.files.wrote(exe) || f.files.wrote(strings.TrimSuffix(exe, " (deleted)")):
		// procfs appends " (deleted)" to the path of an unlinked program (/proc/pid/exe in
		// proc(5)).
		f.notable.add(kindWritten, exe, e, 0)
	}
}

// crashes are the signals caused by the process's own instructions.
var crashes = []string{"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP"}

func (f *fold) killed(e *event.Event) {
	kind := kindKilled
	switch {
	case slices.Contains(crashes, e.Signal):
		kind = kindCrashed
	case e.Signal == "SIGKILL" && !f.notable.any && !f.notable.killed[e.PID]:
		kind = kindKilledBy
		// The exit status does not name the sender of the signal. The OOM killer is assumed if
		// the last usage sample was close to the limit.
		if f.o.Memory > 0 && f.usage.prev.Memory >= f.o.Memory/10*9 {
			kind = kindOOM
		}
		if e.PID != 1 {
			f.notable.holdDeath(kind, e)
		}
		return
	}
	f.notable.add(kind, e.Signal+" "+cut(e.Comm), e, 0)
}

// endWindow is the maximum time, in nanoseconds, between the ends of processes that end with
// their jail.
const endWindow = int64(time.Second)

// holdDeath holds back a process killed from outside.
func (n *notables) holdDeath(kind int, e *event.Event) {
	// When the first process of a PID namespace ends, the kernel kills the others
	// (pid_namespaces(7)). Their exit events can precede that of the first one.
	n.flushDeaths(e.NS)
	if n.end != 0 && e.NS >= n.end-endWindow {
		return // ended together with the first process
	}
	if len(n.deaths) < 1024 {
		n.deaths = append(n.deaths, death{kind, event.Event{Type: e.Type, Op: e.Op, Seq: e.Seq, TS: e.TS, NS: e.NS,
			PID: e.PID, Comm: keep(e.Comm), Signal: keep(e.Signal)}})
		return
	}
	n.add(kind, e.Signal+" "+cut(e.Comm), e, 0)
}

// flushDeaths adds the held deaths that were not followed by the end of the jail.
func (n *notables) flushDeaths(now int64) {
	waiting := n.deaths[:0]
	for _, d := range n.deaths {
		// A time far after now is from an earlier boot of the host, on another monotonic clock.
		if d.e.NS >= now-endWindow && d.e.NS <= now+endWindow {
			waiting = append(waiting, d)
		} else {
			n.add(d.kind, d.e.Signal+" "+d.e.Comm, &d.e, 0)
		}
	}
	n.deaths = waiting
}

// firstProcess handles the start or end of the jail's first process.
func (n *notables) firstProcess(e *event.Event) {
	n.flushDeaths(e.NS)
	n.end = 0
	if e.Op == event.OpExit {
		n.end = e.NS
		n.deaths = n.deaths[:0]
	}
}

// addDerived adds the notable events that other parts count: refused connections and gaps.
func (f *fold) addDerived(r *Report) {
	n := f.notable
	n.packets = f.net.refusals > 0
	note := func(kind int, what string, l Link, i item) {
		if kind != kindRefused || !n.packets || i.packets {
			n.found[kind].link.saw(l.First)
			n.found[kind].link.saw(l.Last)
		}
		it, _ := n.found[kind].items.get(itemKey{what: what})
		i.link = l
		*it = i
	}
	refused, gaps := &n.found[kindRefused], &n.found[kindGap]
	refused.count, gaps.count = f.net.refusals, f.complete.gaps
	for _, p := range r.Network.List {
		if p.Refused > 0 {
			note(kindRefused, p.Service()+" refused", p.Events, item{count: p.Refused, packets: true, ts: p.Began.UnixMilli(), pid: p.PID, comm: string(p.Comm)})
		}
	}
	for _, c := range r.Network.FailedConnects {
		if c.Errno == "ECONNREFUSED" && f.net.refusals > 0 {
			continue // counted as a packet
		}
		refused.count += c.Count
		note(kindRefused, "connect "+string(c.Addr)+" "+c.Errno, c.Events, item{count: c.Count, pid: c.PID, comm: string(c.Comm)})
	}
	for _, g := range r.Completeness.Gaps {
		note(kindGap, fmt.Sprintf("%s: %s", g.Source, g.Reason), g.Events, item{count: g.Gaps, ts: g.Began.UnixMilli()})
	}
}

func (n *notables) report(rows int) []Notable {
	for _, d := range n.deaths {
		n.add(d.kind, d.e.Signal+" "+d.e.Comm, &d.e, 0)
	}
	n.deaths = nil
	out := []Notable{}
	for i := range n.found {
		f, k := &n.found[i], kinds[i]
		if f.count == 0 {
			continue
		}
		d := Notable{Kind: k.name, Level: k.level, Title: k.title, Count: f.count, Failed: f.failed, Kinds: f.items.distinct(), List: []NotableItem{}, More: f.count, Events: f.link}
		d.Events.Query = k.filter()
		switch {
		case i == kindOutside:
			d.Events.Query = n.outside
		case i == kindRefused && n.packets:
			d.Events.Query = "type:net proto:tcp"
		}
		list := f.items.rows()
		for _, r := range list[:min(len(list), rows/2+1)] {
			it := &r.v
			x := NotableItem{What: Text(r.key.what), Count: it.count, AtLeast: r.late, PID: it.pid, Comm: Text(it.comm), Events: it.link}
			if r.key.ret < 0 {
				x.Errno = errno(r.key.ret)
			}
			if it.ts != 0 {
				x.Began = new(instant(it.ts))
			}
			if it.terms != nil {
				q := it.terms
				if r.key.ret < 0 {
					q = append(q, "ret", x.Errno)
				}
				x.Events.Query = query(q...)
			}
			d.More -= it.count
			d.List = append(d.List, x)
		}
		out = append(out, d)
	}
	slices.SortStableFunc(out, func(a, b Notable) int {
		return cmp.Compare(slices.Index(levels, a.Level), slices.Index(levels, b.Level))
	})
	return out
}

func (k *kind) filter() Text {
	if k.query != "" {
		return Text(k.query)
	}
	return Text("type:syscall name:" + strings.Join(k.calls, ","))
}

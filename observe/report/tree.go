package report

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// A Tree is the process tree of a jail, derived from its events. Events are added in log
// order, while the jail runs or later. It uses process, gap and lineage events; from other
// events it learns only new process names.
//
// A process is identified by its PID and start time, so that a reused PID is a different
// process. A Tree is not safe for concurrent use.
type Tree struct {
	live  map[int32]*proc
	ended map[procKey]*proc
	order []*proc // ended processes in the order of their end; forgotten ones are nil or stale
	gone  int     // number of nil entries at the front of order

	// began is called when a process starts to run a program. stopped is called when it stops to
	// run it: it ended or executed another program, possibly unobserved.
	began   func(p *proc, e *event.Event)
	stopped func(p *proc, e *event.Event)

	count, endings, failed, killed int64
	forgotten                      int64 // removed by Prune
	omitted                        int64 // omitted: too many running processes
	lost                           Lost
	text                           int // total size of the strings of programs
	instance, rewoundInstance      int // number of instances of the jail; and the value at the last rewind
}

// Lost counts lost events.
type Lost struct {
	Records int64 `json:"records"`           // a lower bound if Unknown is set
	Unknown bool  `json:"unknown,omitempty"` // a gap had an unknown number of lost events
}

func (l *Lost) add(e *event.Event) {
	if e.Lost < 0 {
		l.Unknown = true
	}
	l.Records = sum(l.Records, e.Lost)
}

// A procKey identifies a process. PIDs alone are reused.
type procKey struct {
	pid   int32
	begin int64
}

// A proc is one process.
type proc struct {
	procKey
	ppid, hostPID int32
	parent        int64 // start time of the parent; 0 if unknown
	uid, gid      uint32
	comm          string
	runs          *program
	history       []execution // the last few programs
	execs         int
	threads       int
	existing      bool
	instance      int    // the instance of the last event of the process
	first, last   uint64 // sequence numbers of its first and last event

	beganTS int64 // milliseconds
	runNS   int64 // start of the current program
	runTS   int64
	group   *command // the group of the current command; used by reports

	end, endTS       int64 // end is 0 while the process is running
	how              ending
	code             int32
	signal           string
	userNS, systemNS int64
	rss              int64
}

type ending uint8

const (
	alive   ending = iota
	exited         // by itself
	killed         // by a signal
	unknown        // ended, but its end was not observed
)

// A program is the program that a process runs. Forked processes share it.
type program struct {
	exe  string
	argv []string
	cwd  string
	cut  bool // the strings are truncated
	size int
	refs int
}

type execution struct {
	ts  int64
	seq uint64
	p   *program
}

const (
	maxLive    = 1 << 16  // maximum number of running processes
	maxProgram = 8 << 10  // maximum size of the strings of one program, in bytes
	maxTexts   = 32 << 20 // maximum size of all strings; beyond it, each program keeps 256 bytes
	maxHistory = 8
	slack      = int64(20 * time.Millisecond) // tolerance between the two kernel clocks that give a process's start time
)

// NewTree returns an empty tree.
func NewTree() *Tree {
	return &Tree{live: map[int32]*proc{}, ended: map[procKey]*proc{}}
}

// Add adds the next event. It retains no reference to e.
func (t *Tree) Add(e *event.Event) {
	switch {
	case e.Type == event.Proc:
		t.proc(e)
	case e.Type == event.Gap:
		if e.Source == event.Proc || e.Source == 0 {
			t.lost.add(e)
		}
	case e.Type == event.Lineage && e.Op == event.OpRewind:
		t.rewind(e)
	case e.PID != 0 && e.PID == e.TID && e.Type == event.Syscall:
		// Only the first thread counts: PR_SET_NAME names a thread (prctl(2)). A call that ended
		// before the last exec has the name of the previous program.
		if p := t.live[e.PID]; p != nil && p.comm != e.Comm && e.Comm != "" && e.NS > p.runNS {
			p.comm = keep(e.Comm)
		}
	}
}

func (t *Tree) proc(e *event.Event) {
	if e.Flags&event.Thread != 0 {
		if p := t.live[e.PID]; p != nil && e.Op == event.OpFork {
			p.threads++
		} else if p != nil && e.Op == event.OpExit {
			p.threads = max(1, p.threads-1)
		}
		return
	}
	t.relocate(e)
	p := t.find(e)
	fresh := p == nil
	if fresh {
		p = t.begin(e)
		if p == nil {
			return
		}
	}
	p.last = max(p.last, e.Seq)
	defer func() { p.instance = t.instance }()
	if p.how != alive {
		// An exit event from another CPU, after an event that implied the end.
		if p.how == unknown && e.Op == event.OpExit {
			p.exit(e)
			t.ending(p)
		}
		return
	}
	if e.PPID != p.ppid {
		t.child(p, e.PPID)
	}
	// A fork event of a known process arrives late, after events with newer values.
	if e.Op != event.OpFork || fresh {
		p.uid, p.gid = e.UID, e.GID
		if e.Comm != "" && e.Comm != p.comm {
			p.comm = keep(e.Comm)
		}
	}
	switch {
	case e.Flags&event.Existing != 0:
		p.threads = 1 // events of its other threads follow
		t.recordRunning(p, e)
	case e.Op == event.OpExec:
		p.execs++
		t.exec(p, e)
		p.runs.refs++
		p.history = append(p.history, execution{e.TS, e.Seq, p.runs})
		if len(p.history) > maxHistory {
			t.release(p.history[0].p)
			p.history = append(p.history[:0], p.history[1:]...)
		}
	case e.Op == event.OpExit:
		p.exit(e)
		t.finish(p, e)
	}
}

// relocate updates a process that was restored in another instance of its jail, where it has
// another host PID and start time. The first process is reported first.
func (t *Tree) relocate(e *event.Event) {
	p := t.live[e.PID]
	if p == nil || e.Flags&event.Existing == 0 || e.HostPID == p.hostPID || p.runs == nil {
		return
	}
	r := t.newProgram(e)
	same := r.key() == p.runs.key()
	t.release(r)
	if !same {
		return // another process with the same PID
	}
	if p.pid == 1 {
		t.instance++
	}
	was := p.begin
	p.hostPID = e.HostPID
	if e.Begin != 0 {
		p.begin = e.Begin
	}
	// A process refers to its parent by PID and start time.
	for _, child := range t.live {
		if child.ppid == p.pid && child.parent == was {
			child.parent = p.begin
		}
	}
}

// exit records how p ended.
func (p *proc) exit(e *event.Event) {
	p.userNS, p.systemNS, p.rss = e.UserNS, e.SystemNS, e.RSS
	p.code, p.how = e.Code, exited
	if e.Signal != "" {
		p.signal, p.how = keep(e.Signal), killed
	}
}

// ending counts the result of a process.
func (t *Tree) ending(p *proc) {
	switch {
	case p.how == killed:
		t.killed++
	case p.how == exited && p.code != 0:
		t.failed++
	}
}

// find returns the process that e refers to, or nil if it is not known. If e implies that an
// earlier process with the same PID has ended, find ends that process.
func (t *Tree) find(e *event.Event) *proc {
	p := t.live[e.PID]
	switch {
	case p == nil:
		return t.ended[procKey{e.PID, e.Begin}]
	case e.Begin == 0 && (e.Op != event.OpFork || e.Flags&event.Existing != 0):
		return p
	case e.Begin != 0 && e.Begin-p.begin <= slack && p.begin-e.Begin <= slack:
		return p
	case e.Begin != 0 && e.Begin < p.begin && e.NS >= p.begin:
		return t.ended[procKey{e.PID, e.Begin}] // the previous process with this PID
	}
	// e is of a later process with a reused PID or, if p began after e on the monotonic clock,
	// of a later boot of the host. The end of p was not observed.
	p.how = unknown
	t.finish(p, e)
	return nil
}

// begin adds the process that e refers to.
func (t *Tree) begin(e *event.Event) *proc {
	begin := e.Begin
	if begin == 0 {
		begin = e.NS
	}
	full := len(t.live) >= maxLive
	if !full || e.Op == event.OpFork {
		t.count++
	}
	if full || t.live[e.PID] != nil { // or a late event that cannot be attributed
		t.omitted++
		if e.Op == event.OpExit {
			var p proc
			p.exit(e)
			t.endings++
			t.ending(&p)
		}
		return nil
	}
	p := &proc{procKey: procKey{e.PID, begin}, hostPID: e.HostPID, ppid: -1, threads: 1, first: e.Seq,
		existing: e.Flags&event.Existing != 0}
	p.beganTS = e.TS
	if e.NS > begin {
		// Begin has no wall-clock time. It is computed from that of the event.
		p.beganTS -= (e.NS - begin) / int64(time.Millisecond)
	}
	p.runNS, p.runTS = begin, p.beganTS
	if e.PID == 1 {
		// The kernel kills all processes of a PID namespace when the first one ends
		// (pid_namespaces(7)). So a new one means that no earlier process exists.
		t.endBefore(p, e)
	}
	t.live[e.PID] = p
	if parent := t.live[e.PPID]; parent != nil && parent != p && e.Op == event.OpFork && parent.runs != nil {
		p.runs = parent.runs
		p.runs.refs++
	}
	return p
}

// child makes p a child of ppid.
func (t *Tree) child(p *proc, ppid int32) {
	p.ppid, p.parent = ppid, 0
	// A process that began after p only has the reused PID of the parent.
	if parent := t.live[ppid]; parent != nil && parent != p && parent.begin <= p.begin+slack {
		p.parent = parent.begin
	}
}

// recordRunning records the program that an observer found p running when it attached. If p still runs
// the same program, no new run is counted.
func (t *Tree) recordRunning(p *proc, e *event.Event) {
	if p.group != nil {
		r := t.newProgram(e)
		same := r.key() == p.runs.key()
		t.release(r)
		if same {
			return
		}
	}
	met := p.group == nil
	t.exec(p, e)
	if met {
		p.runNS, p.runTS = p.begin, p.beganTS
	}
}

// exec records that p executed the program in e.
func (t *Tree) exec(p *proc, e *event.Event) {
	if p.group != nil && t.stopped != nil {
		t.stopped(p, e)
	}
	p.group = nil
	t.release(p.runs)
	p.runs = t.newProgram(e)
	// execve(2) ends all other threads of the process.
	p.threads = 1
	p.runNS, p.runTS = e.NS, e.TS
	if t.began != nil {
		t.began(p, e)
	}
}

// newProgram creates a program from e, with one reference.
func (t *Tree) newProgram(e *event.Event) *program {
	// execve(2) accepts up to 6 MiB of arguments, and each running process keeps its program.
	room := maxProgram
	if t.text > maxTexts {
		room = 256
	}
	r := &program{refs: 1}
	take := func(s string) string {
		n := min(len(s), room)
		r.cut = r.cut || n < len(s)
		room -= n
		return strings.Clone(s[:n])
	}
	r.exe, r.cwd = take(e.Exe), take(e.Cwd)
	for _, a := range e.Argv {
		if room <= 0 {
			r.cut = true
			break
		}
		room -= 16 // overhead of one string
		r.argv = append(r.argv, take(a[:min(len(a), max(room, 0))]))
		r.cut = r.cut || len(r.argv[len(r.argv)-1]) < len(a)
	}
	r.cut = r.cut || e.Flags&event.Cut != 0
	r.size = len(r.exe) + len(r.cwd) + 16*len(r.argv)
	for _, a := range r.argv {
		r.size += len(a)
	}
	t.text += r.size
	return r
}

func (t *Tree) release(r *program) {
	if r == nil {
		return
	}
	if r.refs--; r.refs == 0 {
		t.text -= r.size
	}
}

// finish ends p at e. p.how is set.
func (t *Tree) finish(p *proc, e *event.Event) {
	if p.group != nil && t.stopped != nil {
		t.stopped(p, e)
	}
	p.group = nil
	p.ppid, p.parent = t.parentOf(p) // the parent at the time of its end
	// 0 would mean that the process is running.
	p.end, p.endTS = max(e.NS, 1), e.TS
	t.endings++
	t.ending(p)
	delete(t.live, p.pid)
	if old := t.ended[p.procKey]; old != nil { // the log contradicts itself
		t.forget(old)
	}
	t.ended[p.procKey] = p
	t.order = append(t.order, p)
}

// endBefore ends all processes that began before the first process of a namespace, because
// their namespace no longer exists. The two may be from different boots of the host, so only
// the wall clock is comparable.
func (t *Tree) endBefore(first *proc, e *event.Event) {
	for _, p := range t.live {
		if p.beganTS < first.beganTS-slack/int64(time.Millisecond) {
			p.how = unknown
			t.finish(p, e)
		}
	}
}

// rewind ends the processes that do not exist after a rewind: those that were not reported in
// the new instance or, if the instance is reported later, all.
func (t *Tree) rewind(e *event.Event) {
	for _, p := range t.live {
		if p.instance < t.instance || t.instance == t.rewoundInstance {
			p.how = unknown
			t.finish(p, e)
		}
	}
	t.rewoundInstance = t.instance
}

// parentOf returns the parent of a running process. Orphans are reparented to the first
// process. If the parent was never observed, parentOf returns the parent in the event.
func (t *Tree) parentOf(p *proc) (ppid int32, begin int64) {
	parent := t.live[p.ppid]
	switch {
	case parent == p:
		return p.ppid, 0
	case parent != nil && (p.parent == parent.begin || p.parent == 0 && parent.begin <= p.begin+slack):
		return p.ppid, parent.begin
	case p.parent == 0:
		return p.ppid, 0
	}
	// A child subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)) takes precedence, but is known only
	// from the next event of the orphan: see proc.
	if first := t.live[1]; first != nil && first != p {
		return 1, first.begin
	}
	return p.ppid, p.parent
}

// clone returns an independent copy of a tree that does not belong to a report.
func (t *Tree) clone() *Tree {
	c := *t
	// Forked processes share a program, and ended and order share processes. The copies share
	// them likewise.
	programs := map[*program]*program{nil: nil}
	own := func(r *program) *program {
		if _, done := programs[r]; !done {
			programs[r] = new(*r)
		}
		return programs[r]
	}
	procs := map[*proc]*proc{nil: nil}
	copied := func(p *proc) *proc {
		if _, done := procs[p]; !done {
			q := *p
			q.runs, q.history = own(p.runs), slices.Clone(p.history)
			for i := range q.history {
				q.history[i].p = own(q.history[i].p)
			}
			procs[p] = &q
		}
		return procs[p]
	}
	c.live = make(map[int32]*proc, len(t.live))
	for pid, p := range t.live {
		c.live[pid] = copied(p)
	}
	c.ended = make(map[procKey]*proc, len(t.ended))
	for b, p := range t.ended {
		c.ended[b] = copied(p)
	}
	c.order = slices.Clone(t.order)
	for i, p := range c.order {
		c.order[i] = copied(p)
	}
	return &c
}

// Prune removes ended processes, in the order of their end, until at most ended of them
// remain. A process is reparented before its parent ends, so no process in the tree loses its
// parent.
func (t *Tree) Prune(ended int) {
	for len(t.ended) > max(ended, 0) {
		p := t.order[t.gone]
		t.order[t.gone] = nil
		t.gone++
		if p != nil && t.ended[p.procKey] == p {
			t.forget(p)
		}
	}
	if t.gone > len(t.order)/2 {
		t.order = append([]*proc(nil), t.order[t.gone:]...)
		t.gone = 0
	}
}

func (t *Tree) forget(p *proc) {
	delete(t.ended, p.procKey)
	t.release(p.runs)
	for _, x := range p.history {
		t.release(x.p)
	}
	t.forgotten++
}

// TreeAt reads src to its end and returns the tree at an instant.
func TreeAt(src Events, at Instant) (*Tree, error) {
	t := NewTree()
	var e event.Event
	for {
		if _, err := src.Next(&e); errors.Is(err, io.EOF) {
			return t, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the events: %w", err)
		}
		// Events of several processors are slightly out of order, so earlier events may follow
		// a later one.
		if at.has(e.Seq, e.TS) {
			t.Add(&e)
			if len(t.ended) > 2*maxEndedAt {
				t.Prune(maxEndedAt)
			}
		}
	}
}

// maxEndedAt is how many ended processes TreeAt keeps.
const maxEndedAt = 1 << 14

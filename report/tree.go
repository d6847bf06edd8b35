package report

import (
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"glasshouse/event"
)

// A Tree is a jail's processes, as their records tell of them. It is fed records
// in the order of the log, while the jail runs or later. It takes those of
// processes and gaps; of others it learns only that a process has a new name.
//
// A process is known by its pid and the time it began, so one that got the pid
// of another is not taken for it. A Tree is not safe for concurrent use.
type Tree struct {
	live  map[int32]*proc
	ended map[birth]*proc
	order []*proc // of the ended, as they ended; the first gone are nil
	gone  int     // so many at the front of order

	// began is told that a process runs a program from now on, over that it does
	// no longer: it ended, or runs another, or may have done either unseen.
	began func(p *proc, e *event.Event)
	over  func(p *proc, e *event.Event)

	count, endings, failed, killed int64
	forgotten                      int64 // by Prune
	untold                         int64 // for want of room
	lost                           Lost
	text                           int // bytes held by programs
	body, rewound                  int // counts the bodies that the jail has had; and had when it was rewound
}

// Lost is how much is not known.
type Lost struct {
	Records int64 `json:"records"`           // at least
	Unknown bool  `json:"unknown,omitempty"` // some gap could not say how many
}

func (l *Lost) add(e *event.Event) {
	if e.Lost < 0 {
		l.Unknown = true
	}
	l.Records = sum(l.Records, e.Lost)
}

// A birth is which process is meant, for pids come back.
type birth struct {
	pid   int32
	begin int64
}

// A proc is one process.
type proc struct {
	birth
	ppid, hostPID int32
	parent        int64 // when the parent began; 0 is unknown
	uid, gid      uint32
	comm          string
	runs          *program
	history       []execution // the last few
	execs         int
	threads       int
	existing      bool
	body          int    // in which it was told of last
	first, last   uint64 // sequence numbers of its records

	beganTS int64 // milliseconds
	runNS   int64 // since when it runs what it runs
	runTS   int64
	group   *command // what runs, among its like; the report's

	end, endTS       int64 // end is 0 while it lives
	how              ending
	code             int32
	signal           string
	userNS, systemNS int64
	rss              int64
}

type ending uint8

const (
	lives   ending = iota
	exited         // by itself
	killed         // by a signal
	unknown        // its end was not seen, but it is certain
)

// A program is what a process runs. Processes that were forked share it.
type program struct {
	exe  string
	argv []string
	cwd  string
	cut  bool // more was said of it than is kept
	size int
	refs int
}

type execution struct {
	ts  int64
	seq uint64
	p   *program
}

const (
	maxLive    = 1 << 16  // processes that live at once
	maxProgram = 8 << 10  // bytes of one program's strings
	maxTexts   = 32 << 20 // of all; beyond it only beginnings are kept
	maxHistory = 8
	slack      = int64(20 * time.Millisecond) // of the kernel's two clocks for when a process began
)

// NewTree returns an empty tree.
func NewTree() *Tree {
	return &Tree{live: map[int32]*proc{}, ended: map[birth]*proc{}}
}

// Add takes the next record. It keeps no reference to e.
func (t *Tree) Add(e *event.Event) {
	switch {
	case e.Type == event.Proc:
		t.proc(e)
	case e.Type == event.Gap:
		if e.Source == event.Proc {
			t.lost.add(e)
		}
	case e.Type == event.Lineage && e.Op == event.OpRewind:
		t.rewind(e)
	case e.PID != 0 && e.PID == e.TID && e.Type == event.Syscall:
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
	t.move(e)
	p := t.find(e)
	fresh := p == nil
	if fresh {
		if p = t.begin(e); p == nil {
			return
		}
	}
	p.last = max(p.last, e.Seq)
	defer func() { p.body = t.body }()
	if p.how != lives {
		// From another processor, after what told us that it must have ended.
		if p.how == unknown && e.Op == event.OpExit {
			p.exit(e)
			t.ending(p)
		}
		return
	}
	if e.PPID != p.ppid {
		t.child(p, e.PPID)
	}
	if e.Op != event.OpFork || fresh {
		p.uid, p.gid = e.UID, e.GID
		if e.Comm != "" && e.Comm != p.comm {
			p.comm = keep(e.Comm)
		}
	}
	switch {
	case e.Flags&event.Existing != 0:
		p.threads = 1 // they are told of after it
		t.meet(p, e)
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

// move has a process go on that is found in another body of its jail: there it has
// another number on the host, and another beginning. The first process is told of
// first.
func (t *Tree) move(e *event.Event) {
	p := t.live[e.PID]
	if p == nil || e.Flags&event.Existing == 0 || e.HostPID == p.hostPID || p.runs == nil {
		return
	}
	r := t.hold(e)
	same := r.key() == p.runs.key()
	t.release(r)
	if !same {
		return // it only has its pid
	}
	if p.pid == 1 {
		t.body++
	}
	was := p.begin
	if p.hostPID = e.HostPID; e.Begin != 0 {
		p.begin = e.Begin
	}
	for _, child := range t.live {
		if child.ppid == p.pid && child.parent == was {
			child.parent = p.begin
		}
	}
}

// exit notes how p ended.
func (p *proc) exit(e *event.Event) {
	p.userNS, p.systemNS, p.rss = e.UserNS, e.SystemNS, e.RSS
	p.code, p.how = e.Code, exited
	if e.Signal != "" {
		p.signal, p.how = keep(e.Signal), killed
	}
}

// ending counts how a process ended.
func (t *Tree) ending(p *proc) {
	switch {
	case p.how == killed:
		t.killed++
	case p.how == exited && p.code != 0:
		t.failed++
	}
}

// find returns the process e is about, or nil if it has not been heard of. One
// that must have ended meanwhile, for e is about another with its pid, is ended.
func (t *Tree) find(e *event.Event) *proc {
	p := t.live[e.PID]
	switch {
	case p == nil:
		return t.ended[birth{e.PID, e.Begin}]
	case e.Begin == 0 && (e.Op != event.OpFork || e.Flags&event.Existing != 0):
		return p
	case e.Begin != 0 && e.Begin-p.begin <= slack && p.begin-e.Begin <= slack:
		return p
	case e.Begin != 0 && e.Begin < p.begin && e.NS >= p.begin:
		return t.ended[birth{e.PID, e.Begin}] // the earlier bearer of the pid
	}
	p.how = unknown
	t.finish(p, e)
	return nil
}

// begin makes the process e is about.
func (t *Tree) begin(e *event.Event) *proc {
	begin := e.Begin
	if begin == 0 {
		begin = e.NS
	}
	full := len(t.live) >= maxLive
	if !full || e.Op == event.OpFork {
		t.count++
	}
	if full || t.live[e.PID] != nil { // or a record too late to say of whom it is
		t.untold++
		if e.Op == event.OpExit {
			var p proc
			p.exit(e)
			t.endings++
			t.ending(&p)
		}
		return nil
	}
	p := &proc{birth: birth{e.PID, begin}, hostPID: e.HostPID, ppid: -1, threads: 1, first: e.Seq,
		existing: e.Flags&event.Existing != 0}
	p.beganTS = e.TS
	if e.NS > begin {
		p.beganTS -= (e.NS - begin) / int64(time.Millisecond)
	}
	p.runNS, p.runTS = begin, p.beganTS
	if e.PID == 1 {
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
	if parent := t.live[ppid]; parent != nil && parent != p && parent.begin <= p.begin+slack {
		p.parent = parent.begin
	}
}

// meet notes what an observer found p to run when it came, or came back. A run
// that it goes on with is not another.
func (t *Tree) meet(p *proc, e *event.Event) {
	if p.group != nil {
		r := t.hold(e)
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

// exec has p run what e says.
func (t *Tree) exec(p *proc, e *event.Event) {
	if p.group != nil && t.over != nil {
		t.over(p, e)
	}
	p.group = nil
	t.release(p.runs)
	p.runs = t.hold(e)
	p.threads = 1
	p.runNS, p.runTS = e.NS, e.TS
	if t.began != nil {
		t.began(p, e)
	}
}

// hold keeps what e says of a program.
func (t *Tree) hold(e *event.Event) *program {
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
		room -= 16 // what an empty one takes
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

// finish has p end, as how says, at e.
func (t *Tree) finish(p *proc, e *event.Event) {
	if p.group != nil && t.over != nil {
		t.over(p, e)
	}
	p.group = nil
	p.ppid, p.parent = t.parentOf(p) // as it was when it ended
	p.end, p.endTS = max(e.NS, 1), e.TS
	t.endings++
	t.ending(p)
	delete(t.live, p.pid)
	if old := t.ended[p.birth]; old != nil { // a log that contradicts itself
		t.forget(old)
	}
	t.ended[p.birth] = p
	t.order = append(t.order, p)
}

// endBefore ends all that began before the first process of a namespace: theirs
// is gone. The two may be of different boots of the host, so that only the
// clock on the wall tells.
func (t *Tree) endBefore(first *proc, e *event.Event) {
	for _, p := range t.live {
		if p.beganTS < first.beganTS-slack/int64(time.Millisecond) {
			p.how = unknown
			t.finish(p, e)
		}
	}
}

// rewind ends the processes that a jail had and has not: those that are not told
// of in its new body or, if that is told of later, all.
func (t *Tree) rewind(e *event.Event) {
	for _, p := range t.live {
		if p.body < t.body || t.body == t.rewound {
			p.how = unknown
			t.finish(p, e)
		}
	}
	t.rewound = t.body
}

// parentOf returns the parent of a living process. Orphans are given to the first
// process; a parent that was never heard of is what the record said.
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
	if first := t.live[1]; first != nil && first != p {
		return 1, first.begin
	}
	return p.ppid, p.parent
}

// clone returns a tree that goes its own way from here. Of a report's tree there is
// none.
func (t *Tree) clone() *Tree {
	c := *t
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
	c.ended = make(map[birth]*proc, len(t.ended))
	for b, p := range t.ended {
		c.ended[b] = copied(p)
	}
	c.order = slices.Clone(t.order)
	for i, p := range c.order {
		c.order[i] = copied(p)
	}
	return &c
}

// Prune forgets ended processes, those that ended first before the others, until
// no more than so many are known. A process ends after the children it still
// has, so what is forgotten leaves no gap in the tree.
func (t *Tree) Prune(ended int) {
	for len(t.ended) > max(ended, 0) {
		p := t.order[t.gone]
		t.order[t.gone] = nil
		t.gone++
		if p != nil && t.ended[p.birth] == p {
			t.forget(p)
		}
	}
	if t.gone > len(t.order)/2 {
		t.order = append([]*proc(nil), t.order[t.gone:]...)
		t.gone = 0
	}
}

func (t *Tree) forget(p *proc) {
	delete(t.ended, p.birth)
	t.release(p.runs)
	for _, x := range p.history {
		t.release(x.p)
	}
	t.forgotten++
}

// TreeAt reads src to its end and returns the tree as it was at an instant.
func TreeAt(src Events, at Instant) (*Tree, error) {
	t := NewTree()
	var e event.Event
	for {
		if _, err := src.Next(&e); errors.Is(err, io.EOF) {
			return t, nil
		} else if err != nil {
			return nil, err
		}
		// Records of several processors come a little out of order, so a late one
		// does not mean that no earlier follows.
		if at.has(e.Seq, e.TS) {
			t.Add(&e)
			if len(t.ended) > 2*keepAt {
				t.Prune(keepAt)
			}
		}
	}
}

// keepAt is how many ended processes TreeAt remembers.
const keepAt = 1 << 14

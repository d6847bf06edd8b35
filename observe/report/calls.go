package report

import (
	"cmp"
	"slices"

	"glasshouse/observe/event"
)

// Syscalls summarizes the system calls and their durations.
type Syscalls struct {
	Count      int64  `json:"count"`
	Total      int64  `json:"total_ns"`
	Unfinished int64  `json:"unfinished"` // calls that did not return: exit, or the caller died in the call
	Kinds      Count  `json:"kinds"`
	List       []Call `json:"list"` // the most frequent first
	More       int64  `json:"more"` // calls that are not in List
}

// A Call summarizes all calls of one system call.
type Call struct {
	Name    Text    `json:"name"`
	Count   int64   `json:"count"`
	AtLeast bool    `json:"at_least,omitempty"`
	Failed  int64   `json:"failed"`
	Denied  int64   `json:"denied"`
	Timed   int64   `json:"timed"` // calls with a known duration
	Latency Latency `json:"latency"`
	Events  Link    `json:"events"`
}

// Failures summarizes the system calls that failed.
type Failures struct {
	Count   int64     `json:"count"`   // calls that returned an error
	Denied  int64     `json:"denied"`  // denied by seccomp
	Refused int64     `json:"refused"` // failed with EPERM, EACCES or EROFS
	Kinds   Count     `json:"kinds"`
	List    []Failure `json:"list"` // denied first, then refused, then others; within a class the most frequent first
	More    int64     `json:"more"`
}

// A Failure is one system call and one error.
type Failure struct {
	Name    Text   `json:"name"`
	Errno   string `json:"errno"`
	Class   string `json:"class"` // denied, refused, failed
	Count   int64  `json:"count"`
	AtLeast bool   `json:"at_least,omitempty"`
	PID     int32  `json:"pid"` // PID, Comm and Path are those of the first call
	Comm    Text   `json:"comm"`
	Path    Text   `json:"path,omitempty"`
	Events  Link   `json:"events"`
}

type call struct {
	count, failed, denied int64
	h                     histogram
	link                  Link
	rules                 *callRules // rules for notable calls; may be nil
}

type failureKey struct {
	name   string
	ret    int64
	denied bool
}

type failure struct {
	count      int64
	pid        int32
	comm, path string
	link       Link
}

// calls folds system calls by name.
type calls struct {
	byName                             table[string, call]
	fails                              table[failureKey, failure]
	last                               string // name of lastCall: consecutive records often have the same name
	lastCall                           *call
	count, total, unfinished           int64
	failed, denied, refused, failTotal int64
}

func newCalls() *calls {
	c := &calls{}
	c.byName.keep, c.byName.copyKey = 1024, keep
	c.byName.weight = func(c *call) int64 { return c.count }
	c.fails.keep = 1024
	c.fails.copyKey = func(k failureKey) failureKey { k.name = keep(k.name); return k }
	c.fails.weight = func(f *failure) int64 { return f.count }
	return c
}

// add counts a call and returns the row of its system call. It returns nil if e is not a call,
// but the second return of a fork.
func (c *calls) add(e *event.Event) *call {
	if e.Flags&event.Child != 0 {
		return nil
	}
	k := c.lastCall
	if k == nil || c.last != e.Name {
		name := cut(e.Name)
		var fresh bool
		k, fresh = c.byName.get(name)
		if fresh {
			k.rules = rulesOf[name]
		}
		c.last, c.lastCall = name, k
	}
	c.count++
	k.count++
	k.link.saw(e.Seq)
	switch {
	case e.Flags&event.Unfinished != 0:
		c.unfinished++
		return k
	case denied(e):
		c.denied++
		k.denied++
		c.fail(e)
		return k
	case e.Ret < 0 && e.Ret >= -4095:
		// Lower values are results: an error is at least -MAX_ERRNO (include/linux/err.h).
		c.failed++
		k.failed++
		c.fail(e)
	}
	if timed(e) {
		k.h.add(e.Dur)
		c.total = sum(c.total, e.Dur)
	}
	return k
}

// denied reports whether seccomp denied a call. ENOSYS from clone3 is excluded: seccomp cannot
// inspect the flags of clone3, which are in memory. The usual profiles therefore return
// ENOSYS, and the C library falls back to clone, whose flags are checked
// (https://github.com/moby/moby/pull/42681). This happens for every new thread and process.
func denied(e *event.Event) bool {
	return e.Flags&event.Denied != 0 && !(e.Name == "clone3" && event.ErrnoName(e.Ret) == "ENOSYS")
}

// timed reports whether the duration of a call is known.
func timed(e *event.Event) bool {
	return e.Flags&(event.Partial|event.Unfinished|event.Denied) == 0 && e.Dur > 0
}

func (c *calls) fail(e *event.Event) {
	key := failureKey{cut(e.Name), e.Ret, denied(e)}
	f, fresh := c.fails.get(key)
	if fresh {
		f.pid, f.comm, f.path = e.PID, keep(e.Comm), keep(e.Path)
	}
	f.count++
	f.link.saw(e.Seq)
	c.failTotal++
	if key.class() == "refused" {
		c.refused++
	}
}

func (k failureKey) class() string {
	switch {
	case k.denied:
		return "denied"
	case slices.Contains(permission, event.ErrnoName(k.ret)):
		return "refused"
	}
	return "failed"
}

var permission = []string{"EPERM", "EACCES", "EROFS"}

func (c *calls) report(rows int) Syscalls {
	out := Syscalls{Count: c.count, Total: c.total, Unfinished: c.unfinished, Kinds: c.byName.distinct(), List: []Call{}, More: c.count}
	list := c.byName.rows()
	for _, r := range list[:min(len(list), rows)] {
		r.v.link.Query = query("type", "syscall", "name", r.key)
		out.More -= r.v.count
		out.List = append(out.List, Call{
			Name: Text(r.key), Count: r.v.count, AtLeast: r.late, Failed: r.v.failed, Denied: r.v.denied,
			Timed: r.v.h.n, Latency: r.v.h.latency(), Events: r.v.link,
		})
	}
	return out
}

func (c *calls) failures(rows int) Failures {
	out := Failures{Count: c.failed, Denied: c.denied, Refused: c.refused, Kinds: c.fails.distinct(), List: []Failure{}, More: c.failTotal}
	list := c.fails.rows()
	rank := func(r *row[failureKey, failure]) int {
		return slices.Index([]string{"denied", "refused", "failed"}, r.key.class())
	}
	slices.SortStableFunc(list, func(a, b *row[failureKey, failure]) int { return cmp.Compare(rank(a), rank(b)) })
	for _, r := range list[:min(len(list), rows)] {
		q := query("type", "syscall", "name", r.key.name, "ret", errno(r.key.ret))
		if r.key.denied {
			q = query("type", "syscall", "name", r.key.name, "flag", "denied")
		}
		r.v.link.Query = q
		out.More -= r.v.count
		out.List = append(out.List, Failure{
			Name: Text(r.key.name), Errno: errno(r.key.ret), Class: r.key.class(), Count: r.v.count, AtLeast: r.late,
			PID: r.v.pid, Comm: Text(r.v.comm), Path: Text(r.v.path), Events: r.v.link,
		})
	}
	return out
}

package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// changes tracks the files that a jail changed, according to its records. It has no information
// about which files existed before, so a file replaced by a rename is listed as added.
type changes struct {
	rows table[string, changeRow]
	lost Lost
}

// A Changed is a changed file.
type Changed struct {
	Path    Text      `json:"path"`
	Kind    string    `json:"kind"`           // added, modified, deleted, metadata, renamed
	Type    string    `json:"type,omitempty"` // file, dir, symlink, node; empty if unknown because the file existed before
	From    Text      `json:"from,omitempty"` // the old path of a renamed file
	Written int64     `json:"bytes_written,omitempty"`
	Changes int64     `json:"changes"`
	Time    time.Time `json:"time"` // Time, Seq, PID and Comm are those of the last change
	Seq     uint64    `json:"seq"`
	PID     int32     `json:"pid,omitempty"`
	Comm    Text      `json:"comm,omitempty"`
	Since   bool      `json:"since_snapshot,omitempty"` // changed after the nearest snapshot, so a branch of that snapshot does not have the change
}

type changeRow struct {
	kind, typ, from string
	written, count  int64
	ts              int64
	seq             uint64
	pid             int32
	comm            string
}

// Kinds of change, as in a comparison. A file that was added and deleted again no longer counts as
// changed. Its row is kept, because a process may still have it open and write to it.
const (
	added    = "added"
	modified = "modified"
	deleted  = "deleted"
	metadata = "metadata"
	renamed  = "renamed"
	gone     = "gone"
)

// keepChanged is the minimum number of files kept; the files changed last are kept.
const keepChanged = 8192

func newChanges() *changes {
	c := &changes{}
	c.rows.keep, c.rows.copyKey = keepChanged, keep
	c.rows.weight = func(r *changeRow) int64 { return signed(r.seq) }
	return c
}

func (c *changes) clone() *changes { return &changes{rows: *c.rows.clone(), lost: c.lost} }

func (c *changes) add(e *event.Event) {
	switch {
	case e.Type == event.Gap:
		if e.Source == event.File || e.Source == 0 {
			c.lost.add(e)
		}
		return
	case e.Type != event.File || e.Ret < 0 || !changing[e.Op] || e.Flags&(event.Injected|event.Unresolved) != 0,
		!strings.HasPrefix(e.Path, "/") || device(e.Path):
		return
	}
	path := cut(e.Path)
	switch e.Op {
	case event.OpCreate:
		c.made(path, "file", e)
	case event.OpMkdir:
		c.made(path, "dir", e)
	case event.OpMknod:
		c.made(path, "node", e)
	case event.OpSymlink:
		c.made(path, "symlink", e)
	case event.OpLink:
		if strings.HasPrefix(e.To, "/") {
			c.made(cut(e.To), "file", e)
		}
	case event.OpDelete:
		c.deleted(path, e)
	case event.OpRename:
		// rename(2) of a file to its own name does nothing.
		if strings.HasPrefix(e.To, "/") && e.To != e.Path {
			c.renamed(path, cut(e.To), e)
		}
	case event.OpExchange:
		if strings.HasPrefix(e.To, "/") && e.To != e.Path {
			c.exchanged(path, cut(e.To), e)
		}
	default:
		c.touched(path, e)
	}
}

// saw records the last change of a row.
func (r *changeRow) saw(e *event.Event) {
	r.count++
	r.ts, r.seq, r.pid = e.TS, e.Seq, e.PID
	if r.comm != e.Comm {
		r.comm = keep(e.Comm)
	}
}

// made records that a file was created at a path.
func (c *changes) made(path, typ string, e *event.Event) {
	r, fresh := c.rows.get(path)
	switch {
	case fresh || r.kind == gone:
		*r = changeRow{kind: added, count: r.count}
	case r.kind == deleted:
		r.kind = modified
	}
	r.typ = typ
	r.saw(e)
}

func (c *changes) deleted(path string, e *event.Event) {
	r, fresh := c.rows.get(path)
	r.saw(e)
	switch {
	case fresh:
		r.kind = deleted
	case r.kind == added:
		r.kind = gone
	case r.kind == renamed:
		// The deleted file existed before, under its old name.
		from := r.from
		r.kind, r.from = gone, ""
		switch was, fresh := c.rows.get(from); {
		case fresh, was.kind == gone:
			*was = changeRow{kind: deleted, count: was.count}
			was.saw(e)
		case was.kind == added: // another file has the old name
			was.kind = modified
		}
	case r.kind != gone:
		r.kind = deleted
	}
}

func (c *changes) renamed(path, to string, e *event.Event) {
	c.move(path, to).saw(e)
}

// exchanged records that two files exchanged their paths.
func (c *changes) exchanged(path, other string, e *event.Event) {
	// A file without a row existed before, because the call succeeded.
	existed := func(path string) bool {
		r := c.rows.find(path)
		return r == nil || r.kind == modified || r.kind == metadata
	}
	first, second := existed(path), existed(other)
	c.move(path, aside).seq = e.Seq // the table keeps the rows that changed last
	c.renamed(other, path, e)
	c.renamed(aside, other, e)
	for path, existed := range map[string]bool{path: first, other: second} {
		if r := c.rows.find(path); existed && r != nil && r.kind == added {
			r.kind = modified
		}
	}
}

// aside is the path of a file during an exchange. No file has it: paths contain no NUL byte.
const aside = "\x00"

// move moves the row of a file, and those below a directory, to its new path.
func (c *changes) move(path, to string) *changeRow {
	row := changeRow{kind: renamed, from: path}
	if r := c.rows.find(path); r != nil {
		row = *r
		c.rows.remove(path)
		if row.kind == modified || row.kind == metadata {
			row.kind, row.from = renamed, path
		}
	}
	// A file that existed before has no known type and may be a directory.
	if row.typ != "file" {
		c.moved(path, to)
	}
	at, fresh := c.rows.get(to)
	if !fresh && row.kind == added && at.kind != added && at.kind != gone {
		row.kind = modified // a file existed before
	}
	if row.from == to { // renamed back
		row.kind, row.from = modified, ""
	}
	row.from = keep(row.from)
	*at = row
	return at
}

// moved moves the rows of the files below a renamed directory. If the directory existed
// before, only the directory is listed as renamed, not each file in it.
func (c *changes) moved(path, to string) {
	var below []string
	for p := range c.rows.m {
		if len(p) > len(path) && p[len(path)] == '/' && strings.HasPrefix(p, path) {
			below = append(below, p)
		}
	}
	for _, p := range below {
		row := *c.rows.find(p)
		c.rows.remove(p)
		at, _ := c.rows.get(cut(to + p[len(path):]))
		*at = row
	}
}

// touched records a modification of the file at path.
func (c *changes) touched(path string, e *event.Event) {
	kind := modified
	switch e.Op {
	case event.OpMode, event.OpOwner, event.OpTimes, event.OpXattr:
		kind = metadata
	}
	r, fresh := c.rows.get(path)
	switch {
	case fresh, r.kind == metadata:
		r.kind = kind
	case r.kind == gone, r.kind == deleted:
		return // written through an open descriptor; no longer reachable by path
	}
	if e.Op == event.OpWrite {
		r.typ = cmp.Or(r.typ, "file")
		r.written = sum(r.written, e.Bytes)
	}
	r.saw(e)
}

// list returns the changed files, the last changed first.
func (c *changes) list() []Changed {
	list := make([]Changed, 0, len(c.rows.m))
	for path, row := range c.rows.m {
		r := &row.v
		if r.kind == gone {
			continue
		}
		list = append(list, Changed{
			Path: Text(path), Kind: r.kind, Type: r.typ, From: Text(r.from), Written: r.written, Changes: r.count,
			Time: instant(r.ts), Seq: r.seq, PID: r.pid, Comm: Text(r.comm),
		})
	}
	slices.SortFunc(list, func(a, b Changed) int { return cmp.Or(cmp.Compare(b.Seq, a.Seq), cmp.Compare(a.Path, b.Path)) })
	return list
}

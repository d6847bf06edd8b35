package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"glasshouse/event"
)

// changes are which files a jail had changed, as far as records tell: what was
// there before they do not know, so that a file that a rename has replaced looks
// added.
type changes struct {
	rows table[string, changeRow]
	lost Lost
}

// A Changed is a file that is not what it was.
type Changed struct {
	Path    Text      `json:"path"`
	Kind    string    `json:"kind"`           // added, modified, deleted, metadata, renamed
	Type    string    `json:"type,omitempty"` // file, dir, symlink, node; of what was there before it is not known
	From    Text      `json:"from,omitempty"` // of a renamed one
	Written int64     `json:"bytes_written,omitempty"`
	Changes int64     `json:"changes"`
	Time    time.Time `json:"time"` // of the last change, as are Seq, PID and Comm
	Seq     uint64    `json:"seq"`
	PID     int32     `json:"pid,omitempty"`
	Comm    Text      `json:"comm,omitempty"`
	Since   bool      `json:"since_snapshot,omitempty"` // it was changed after the nearest snapshot, so that a branch of that would not have it
}

type changeRow struct {
	kind, typ, from string
	written, count  int64
	ts              int64
	seq             uint64
	pid             int32
	comm            string
}

// Kinds of change, in the words of a comparison. gone is what was added and deleted
// again: it is remembered, for who has it open may write to it still.
const (
	added    = "added"
	modified = "modified"
	deleted  = "deleted"
	metadata = "metadata"
	renamed  = "renamed"
	gone     = "gone"
)

// keepChanged is how many files are remembered at least, those changed last.
const keepChanged = 8192

func newChanges() *changes {
	c := &changes{}
	c.rows.keep, c.rows.own = keepChanged, keep
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
		if strings.HasPrefix(e.To, "/") && e.To != e.Path {
			c.renamed(path, cut(e.To), e)
		}
	default:
		c.touched(path, e)
	}
}

// saw notes the last change of a row.
func (r *changeRow) saw(e *event.Event) {
	r.count++
	r.ts, r.seq, r.pid = e.TS, e.Seq, e.PID
	if r.comm != e.Comm {
		r.comm = keep(e.Comm)
	}
}

// made notes that something is at a path where nothing was.
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
		from := r.from
		r.kind, r.from = gone, ""
		was, _ := c.rows.get(from)
		*was = changeRow{kind: deleted, count: was.count}
		was.saw(e)
	case r.kind != gone:
		r.kind = deleted
	}
}

func (c *changes) renamed(path, to string, e *event.Event) {
	row := changeRow{kind: renamed, from: path}
	if r := c.rows.find(path); r != nil {
		row = *r
		c.rows.remove(path)
		if row.kind == modified || row.kind == metadata {
			row.kind, row.from = renamed, path
		}
	}
	if row.typ != "file" {
		c.moved(path, to)
	}
	at, fresh := c.rows.get(to)
	if !fresh && row.kind == added && at.kind != added && at.kind != gone {
		row.kind = modified // what was there before us
	}
	if row.from == to { // it is back
		row.kind, row.from = modified, ""
	}
	row.from = keep(row.from)
	*at = row
	at.saw(e)
}

// moved takes along what is known of below a directory. Below one that was there
// before, it is the directory that was renamed, and not each file in it.
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

// touched notes that something changed about what is at a path.
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
		return // by who has it open still: nobody else will see it
	}
	if e.Op == event.OpWrite {
		r.typ = cmp.Or(r.typ, "file")
		r.written = sum(r.written, e.Bytes)
	}
	r.saw(e)
}

// list returns what has changed, the last change first.
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

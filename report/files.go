package report

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"glasshouse/event"
)

// Files is what was done to files.
type Files struct {
	Total   FileUse  `json:"total"`
	Devices int64    `json:"devices"` // operations on devices and on files of the kernel; they are in Total and in no list
	Others  int64    `json:"others"`  // on pipes, sockets and what has no path; likewise
	Changed FileList `json:"changed"`
	Read    FileList `json:"read"`   // used and not changed
	Failed  FileList `json:"failed"` // tried only, each time in vain
}

// A FileList is the files most used, and the sum of the others.
type FileList struct {
	Paths Count   `json:"paths"`
	List  []File  `json:"list"`
	More  FileUse `json:"more"` // what was done to files that are not in List
}

// A File is what was done to one path.
type File struct {
	Path    Text  `json:"path"`
	To      Text  `json:"to,omitempty"`       // where it was renamed or linked to last
	AtLeast bool  `json:"at_least,omitempty"` // more may have been done, before or among too much else
	By      []Who `json:"by"`                 // the first few that used it
	ByMore  bool  `json:"by_more,omitempty"`  // others did, too
	Events  Link  `json:"events"`
	FileUse
}

// Who is a process.
type Who struct {
	PID  int32 `json:"pid"`
	Comm Text  `json:"comm"`
}

// FileUse counts operations. Bytes are those that were asked for and done.
type FileUse struct {
	Opens   int64 `json:"opens"`
	Reads   int64 `json:"reads"`
	Read    int64 `json:"bytes_read"`
	Writes  int64 `json:"writes"`
	Written int64 `json:"bytes_written"`
	Created int64 `json:"created"` // files, directories, links and nodes
	Deleted int64 `json:"deleted"`
	Renamed int64 `json:"renamed"`
	Modes   int64 `json:"chmod"`
	Others  int64 `json:"others"` // close, truncate, chown, xattr and so on
	Failed  int64 `json:"failed"` // in vain; not counted above
}

func (u *FileUse) add(e *event.Event) {
	if e.Ret < 0 {
		u.Failed++
		return
	}
	switch e.Op {
	case event.OpOpen:
		u.Opens++
	case event.OpRead:
		u.Reads += max(1, e.Calls)
		u.Read = sum(u.Read, e.Bytes)
	case event.OpWrite:
		u.Writes += max(1, e.Calls)
		u.Written = sum(u.Written, e.Bytes)
	case event.OpCreate, event.OpMkdir, event.OpMknod, event.OpLink, event.OpSymlink:
		u.Created++
	case event.OpDelete:
		u.Deleted++
	case event.OpRename:
		u.Renamed++
	case event.OpMode:
		u.Modes++
	default:
		u.Others++
	}
}

func (u *FileUse) fields() [11]*int64 {
	return [...]*int64{&u.Opens, &u.Reads, &u.Read, &u.Writes, &u.Written, &u.Created, &u.Deleted, &u.Renamed, &u.Modes, &u.Others, &u.Failed}
}

// plus adds v's counts sign times.
func (u *FileUse) plus(v *FileUse, sign int64) {
	from := v.fields()
	for i, f := range u.fields() {
		*f += sign * *from[i]
	}
}

// Operations is how many u counts.
func (u FileUse) Operations() int64 {
	return u.Opens + u.Reads + u.Writes + u.Created + u.Deleted + u.Renamed + u.Modes + u.Others + u.Failed
}

// Done is what u counts, in words: "created, 3 writes of 12 KiB".
func (u FileUse) Done() string {
	var parts []string
	say := func(n int64, word string) {
		if n == 1 {
			parts = append(parts, word)
		} else if n > 1 {
			parts = append(parts, word+" "+number(n)+" ×")
		}
	}
	say(u.Created, "created")
	if u.Writes > 0 {
		parts = append(parts, size(u.Written)+" in "+count(u.Writes, "write", "writes"))
	}
	say(u.Deleted, "deleted")
	say(u.Renamed, "renamed")
	say(u.Modes, "chmod")
	if u.Reads > 0 {
		parts = append(parts, size(u.Read)+" in "+count(u.Reads, "read", "reads"))
	}
	if u.Writes == 0 && u.Reads == 0 && u.Opens > 0 {
		parts = append(parts, "opened")
	}
	if u.Failed > 0 {
		parts = append(parts, number(u.Failed)+" in vain")
	}
	if len(parts) == 0 {
		return count(u.Others, "other operation", "other operations")
	}
	return strings.Join(parts, ", ")
}

// changing are the operations after which a file is not what it was. Shared
// memory may be written to unseen, so that to map it counts.
var changing = map[string]bool{
	event.OpCreate: true, event.OpWrite: true, event.OpDelete: true, event.OpRename: true, event.OpTruncate: true,
	event.OpAllocate: true, event.OpMode: true, event.OpOwner: true, event.OpLink: true, event.OpSymlink: true,
	event.OpMkdir: true, event.OpMknod: true, event.OpTimes: true, event.OpXattr: true, event.OpMmap: true,
}

// A fileClass is in which of the lists a path is. It only rises.
type fileClass uint8

const (
	tried fileClass = iota
	used
	changed
	classes
)

type fileRow struct {
	use     FileUse
	to      string
	by      []Who
	byMore  bool
	outside bool
	link    Link
}

type files struct {
	writable []string
	lists    [classes]table[string, fileRow]
	sums     [classes]FileUse
	total    FileUse
	devices  int64
	others   int64

	lastPath  string // looked up last, for operations on a file come in runs
	lastRow   *fileRow
	lastClass fileClass

	written  map[uint64]struct{} // hashes of paths that were written
	unlisted bool                // there were more than are remembered
}

// maxWritten is how many written paths are remembered, to tell which programs
// the jail made itself.
const maxWritten = 1 << 18

func newFiles(workspace []string) *files {
	f := &files{written: map[uint64]struct{}{}}
	for _, dir := range append([]string{"/tmp", "/var/tmp", "/dev/shm", "/run"}, workspace...) {
		f.writable = append(f.writable, strings.TrimRight(dir, "/"))
	}
	for i := range f.lists {
		f.lists[i].keep, f.lists[i].own = 2048, keep
		f.lists[i].weight = func(r *fileRow) int64 { return r.use.Operations() + (r.use.Written+r.use.Read)/4096 }
	}
	return f
}

// add counts e, and reports whether it changed a file outside the directories
// that are meant for it.
func (f *files) add(e *event.Event) (outside bool) {
	f.total.add(e)
	if !strings.HasPrefix(e.Path, "/") || e.Flags&event.Unresolved != 0 {
		f.others++
		return false
	}
	if device(e.Path) {
		f.devices++
		return false
	}
	class := used
	switch {
	case e.Ret < 0:
		class = tried
	case changing[e.Op]:
		class = changed
		f.write(e)
	}
	r := f.row(cut(e.Path), class)
	r.use.add(e)
	f.sums[f.lastClass].add(e)
	r.link.saw(e.Seq)
	if e.To != "" && e.Ret >= 0 && e.To != r.to {
		r.to = keep(e.To)
	}
	if n := len(r.by); (n == 0 || r.by[n-1].PID != e.PID) && !slices.ContainsFunc(r.by, func(w Who) bool { return w.PID == e.PID }) {
		if n < 4 {
			r.by = append(r.by, Who{e.PID, Text(keep(e.Comm))})
		} else {
			r.byMore = true
		}
	}
	return class == changed && r.outside
}

// row returns the row of path, which from now on is of class at least.
func (f *files) row(path string, class fileClass) *fileRow {
	if f.lastRow != nil && f.lastPath == path && f.lastClass >= class {
		return f.lastRow
	}
	found, at := (*fileRow)(nil), class
	for c := classes; c > 0 && found == nil; c-- {
		if found = f.lists[c-1].find(path); found != nil {
			at = c - 1
		}
	}
	switch {
	case found == nil:
		found, _ = f.lists[class].get(path)
		found.outside = f.isOutside(path)
	case at < class:
		moved := *found
		f.lists[at].remove(path)
		f.sums[at].plus(&moved.use, -1)
		f.sums[class].plus(&moved.use, 1)
		found, _ = f.lists[class].get(path)
		*found = moved
		at = class
	}
	f.lastPath, f.lastRow, f.lastClass = path, found, at
	return found
}

func (f *files) isOutside(path string) bool {
	for _, dir := range f.writable {
		if below(path, dir) {
			return false
		}
	}
	return true
}

// outside is the query for changes outside the directories meant for them.
func (f *files) outside() Text {
	ops := slices.Sorted(maps.Keys(changing))
	terms := []string{"type:file", "op:" + strings.Join(ops, ","), "ret:>=0", "-path:/dev,/proc,/sys"}
	for _, dir := range f.writable {
		if dir != "" {
			terms = append(terms, "-path:"+literal(dir))
		}
	}
	return allOf(terms...)
}

func below(path, dir string) bool {
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/' || dir == "")
}

// device reports whether a path is no file of the jail's: a device, or the
// kernel's word on something.
func device(path string) bool {
	return below(path, "/dev") && !below(path, "/dev/shm") || below(path, "/proc") || below(path, "/sys")
}

// write remembers that the file at e's path came from inside the jail.
func (f *files) write(e *event.Event) {
	switch e.Op {
	case event.OpCreate, event.OpWrite, event.OpMmap, event.OpTruncate:
		f.remember(e.Path)
	case event.OpRename, event.OpLink:
		if f.wrote(e.Path) {
			f.remember(e.To)
		}
	}
}

func (f *files) remember(path string) {
	h := maphash.String(hashSeed, path)
	if _, ok := f.written[h]; ok {
		return
	}
	if len(f.written) >= maxWritten {
		f.unlisted = true
		return
	}
	f.written[h] = struct{}{}
}

// wrote reports whether the jail wrote the file at path.
func (f *files) wrote(path string) bool {
	_, ok := f.written[maphash.String(hashSeed, path)]
	return ok
}

func (f *files) report(rows int) Files {
	out := Files{Total: f.total, Devices: f.devices, Others: f.others}
	for c, to := range map[fileClass]*FileList{changed: &out.Changed, used: &out.Read, tried: &out.Failed} {
		t := &f.lists[c]
		to.Paths, to.List, to.More = t.distinct(), []File{}, f.sums[c]
		list := t.rows()
		for _, r := range list[:min(len(list), rows)] {
			r.v.link.Query = query("type", "file", "path", r.key)
			to.More.plus(&r.v.use, -1)
			to.List = append(to.List, File{Path: Text(r.key), To: Text(r.v.to), AtLeast: r.late, By: r.v.by,
				ByMore: r.v.byMore, Events: r.v.link, FileUse: r.v.use})
		}
	}
	return out
}

// Users is who used a file, in words.
func (f File) Users() string {
	var parts []string
	for _, w := range f.By {
		parts = append(parts, w.String())
	}
	if f.ByMore {
		parts = append(parts, "others")
	}
	return strings.Join(parts, ", ")
}

// String is "curl (42)".
func (w Who) String() string { return fmt.Sprintf("%s (%d)", visible(string(w.Comm), 32), w.PID) }

package report

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"glasshouse/observe/event"
)

// Files summarizes operations on files.
type Files struct {
	Total   FileUse  `json:"total"`
	Devices int64    `json:"devices"` // operations on devices and kernel file systems; included in Total but not in a list
	Others  int64    `json:"others"`  // operations on pipes, sockets and files without a path; likewise
	Changed FileList `json:"changed"`
	Read    FileList `json:"read"`   // read or opened, not changed
	Failed  FileList `json:"failed"` // only failed operations
}

// A FileList lists the most used files and sums up the others.
type FileList struct {
	Paths Count   `json:"paths"`
	List  []File  `json:"list"`
	More  FileUse `json:"more"` // operations on files that are not in List
}

// A File summarizes the operations on one path.
type File struct {
	Path    Text  `json:"path"`
	To      Text  `json:"to,omitempty"`       // target of the last rename or link
	AtLeast bool  `json:"at_least,omitempty"` // earlier operations may have been dropped for lack of space
	By      []Who `json:"by"`                 // the first few processes that used it
	ByMore  bool  `json:"by_more,omitempty"`  // other processes also used it
	Events  Link  `json:"events"`
	FileUse
}

// Who identifies a process.
type Who struct {
	PID  int32 `json:"pid"`
	Comm Text  `json:"comm"`
}

// FileUse counts operations. Bytes are those transferred.
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
	Failed  int64 `json:"failed"` // failed operations, not included in the other counts
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
	case event.OpRename, event.OpExchange:
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

// plus adds v's counts multiplied by sign.
func (u *FileUse) plus(v *FileUse, sign int64) {
	from := v.fields()
	for i, f := range u.fields() {
		*f += sign * *from[i]
	}
}

// Operations returns the total number of operations.
func (u FileUse) Operations() int64 {
	return u.Opens + u.Reads + u.Writes + u.Created + u.Deleted + u.Renamed + u.Modes + u.Others + u.Failed
}

// Done describes the operations: "created, 12 KiB in 3 writes".
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
		parts = append(parts, number(u.Failed)+" failed")
	}
	if len(parts) == 0 {
		return count(u.Others, "other operation", "other operations")
	}
	return strings.Join(parts, ", ")
}

// changing are the operations that change a file. A memory mapping counts, because writes to
// shared memory are not observed.
var changing = map[string]bool{
	event.OpCreate: true, event.OpWrite: true, event.OpDelete: true, event.OpRename: true, event.OpTruncate: true,
	event.OpExchange: true, event.OpAllocate: true, event.OpMode: true, event.OpOwner: true, event.OpLink: true, event.OpSymlink: true,
	event.OpMkdir: true, event.OpMknod: true, event.OpTimes: true, event.OpXattr: true, event.OpMmap: true,
}

// A fileClass selects the list of a path. The class of a path only increases.
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

	lastPath  string // last lookup: consecutive records often have the same path
	lastRow   *fileRow
	lastClass fileClass

	written     map[uint64]struct{} // hashes of written paths
	writtenFull bool                // more paths were written than are kept
	moved       []move              // the last renames of paths that are not in written, oldest first
}

// maxWritten is how many written paths are kept, to detect programs that the jail created
// itself.
const maxWritten = 1 << 18

// maxMoved is how many renames are kept to find files below renamed directories.
const maxMoved = 256

// A move is a rename of a file or directory.
type move struct{ from, to string }

func newFiles(workspace []string) *files {
	f := &files{written: map[uint64]struct{}{}}
	for _, dir := range append([]string{"/tmp", "/var/tmp", "/dev/shm", "/run"}, workspace...) {
		f.writable = append(f.writable, strings.TrimRight(dir, "/"))
	}
	for i := range f.lists {
		f.lists[i].keep, f.lists[i].copyKey = 2048, keep
		f.lists[i].weight = func(r *fileRow) int64 { return r.use.Operations() + (r.use.Written+r.use.Read)/4096 }
	}
	return f
}

// add counts e and reports whether it changed a file outside the writable directories.
func (f *files) add(e *event.Event) (outside bool) {
	f.total.add(e)
	// Pipes and sockets have names such as pipe:[INODE] (/proc/pid/fd in proc(5)).
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

// row returns the row of path and raises its class to at least class.
func (f *files) row(path string, class fileClass) *fileRow {
	// Only this method changes the lists, so lastRow is still in one.
	if f.lastRow != nil && f.lastPath == path && f.lastClass >= class {
		return f.lastRow
	}
	found, at := (*fileRow)(nil), class
	for c := classes; c > 0 && found == nil; c-- {
		found = f.lists[c-1].find(path)
		if found != nil {
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

// outside returns the query for changes outside the writable directories.
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

// device reports whether a path is not a regular file of the jail, but a device or a file in
// /proc or /sys.
func device(path string) bool {
	// /dev/shm is a tmpfs, for POSIX shared memory (shm_overview(7)).
	return below(path, "/dev") && !below(path, "/dev/shm") || below(path, "/proc") || below(path, "/sys")
}

// write records that the file at e's path was written inside the jail.
func (f *files) write(e *event.Event) {
	switch e.Op {
	case event.OpCreate, event.OpWrite, event.OpMmap, event.OpTruncate:
		f.remember(e.Path)
	case event.OpRename, event.OpLink:
		// A jail must not be able to hide a program that it wrote by renaming it.
		if f.wrote(e.Path) {
			f.remember(e.To)
		} else if e.Op == event.OpRename && e.Ret >= 0 { // it can be a directory
			f.move(e.Path, e.To)
		}
	case event.OpExchange:
		if !strings.HasPrefix(e.To, "/") {
			return
		}
		// Both paths keep the mark of a written file, so the report may name a program that the
		// jail did not write.
		first, second := f.wrote(e.Path), f.wrote(e.To)
		if first {
			f.remember(e.To)
		}
		if second {
			f.remember(e.Path)
		}
		// Each can be a directory.
		f.move(e.Path, aside)
		f.move(e.To, e.Path)
		f.move(aside, e.To)
	}
}

// move records a rename for wrote.
func (f *files) move(from, to string) {
	if len(f.moved) == maxMoved {
		f.moved = slices.Delete(f.moved, 0, 1)
	}
	f.moved = append(f.moved, move{from, to})
}

func (f *files) remember(path string) {
	h := maphash.String(hashSeed, path)
	if _, ok := f.written[h]; ok {
		return
	}
	if len(f.written) >= maxWritten {
		f.writtenFull = true
		return
	}
	f.written[h] = struct{}{}
}

// wrote reports whether the jail wrote the file at path, or at the path that it had before
// directories above it were renamed.
func (f *files) wrote(path string) bool {
	if _, ok := f.written[maphash.String(hashSeed, path)]; ok {
		return true
	}
	for _, m := range slices.Backward(f.moved) {
		if !below(path, m.to) {
			continue
		}
		path = m.from + path[len(m.to):]
		if _, ok := f.written[maphash.String(hashSeed, path)]; ok {
			return true
		}
	}
	return false
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

// Users names the processes that used a file.
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

// String returns a text like "curl (42)".
func (w Who) String() string { return fmt.Sprintf("%s (%d)", visible(string(w.Comm), 32), w.PID) }

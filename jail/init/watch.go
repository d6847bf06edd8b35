package jailinit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// maxWatched is the number of directories that one watch covers. Others are reported as
// overflow.
const maxWatched = 8192

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVED_FROM |
	unix.IN_MOVED_TO | unix.IN_MOVE_SELF | unix.IN_ATTRIB

// watch reports changes until the client disconnects or the watched file is removed.
func (in *Init) watch(c *conn, q *protocol.Request) error {
	w, err := in.openWatch(q.Path, q.Recursive)
	if err != nil {
		return err
	}
	if err := c.reply(nil); err != nil {
		w.file.Close()
		return nil
	}
	go func() {
		c.r.Next()
		w.file.Close() // ends the read in run
	}()
	in.parkable(c, func() {
		c.net.SetWriteDeadline(past)
		w.file.SetReadDeadline(past)
	})
	err = w.run(func(e protocol.FileEvent) error { return c.w.JSON(protocol.FrameEvent, e) })
	if c.isParked() {
		c.sendParked(protocol.Parked{})
		return nil
	}
	return err
}

// A watcher is an inotify instance. A path is the one at the time when its watch was added, or
// after the last observed rename of its directory.
type watcher struct {
	in         *Init
	file       *os.File
	root       string
	recursive  bool
	paths      map[int32]string
	incomplete bool // not all directories are watched
	last       protocol.FileEvent
}

func (in *Init) openWatch(name string, recursive bool) (*watcher, error) {
	in.files.slots <- struct{}{}
	defer func() { <-in.files.slots }()
	info, err := in.files.root.Stat(context.Background(), name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fault.Newf(fault.Exhausted, "init.Watch", name, "the jail's user has too many watches: %w", err)
	}
	w := &watcher{in: in, file: os.NewFile(uintptr(fd), "inotify"), root: info.Path, recursive: recursive, paths: map[int32]string{}}
	if err := w.add(w.root, 0); err != nil {
		w.file.Close()
		return nil, err
	}
	if recursive {
		w.addBelow(w.root, nil)
	}
	return w, nil
}

// add adds a watch for one file or directory. It returns fault.Exhausted at the limit of watches.
func (w *watcher) add(name string, flags uint32) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("access the inotify descriptor: %w", err)
	}
	var wd int
	var addErr error
	if err := raw.Control(func(fd uintptr) {
		wd, addErr = unix.InotifyAddWatch(int(fd), name, watchMask|flags)
	}); err != nil {
		return fmt.Errorf("access the inotify descriptor: %w", err)
	}
	switch addErr {
	case nil:
		w.paths[int32(wd)] = name
		return nil
	case unix.ENOSPC: // inotify_add_watch(2): the limit of watches, not a full disk
		return fault.Newf(fault.Exhausted, "init.Watch", name, "the user's limit of inotify watches is reached: sysctl fs.inotify.max_user_watches")
	case unix.ENOENT: // removed meanwhile
		return fault.New(fault.NotFound, "init.Watch", name, addErr)
	}
	return fmt.Errorf("watch %s: %w", name, addErr)
}

// addBelow adds watches for the directories below dir, breadth first. It reports existing
// entries to found, because they may have been created before the watch.
func (w *watcher) addBelow(dir string, found func(protocol.FileEvent) error) error {
	for queue := []string{dir}; len(queue) > 0; queue = queue[1:] {
		entries, err := os.ReadDir(queue[0])
		if err != nil {
			continue // removed, or not a directory
		}
		for _, e := range entries {
			name := path.Join(queue[0], e.Name())
			if found != nil {
				if err := found(protocol.FileEvent{Path: name, Op: "create", Dir: e.IsDir()}); err != nil {
					return err
				}
			}
			if !e.IsDir() || name == "/proc" || name == "/sys" || name == secretsDir { // no events, or hidden
				continue
			}
			if len(w.paths) >= maxWatched {
				w.incomplete = true
				continue
			}
			if err := w.add(name, unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW); errors.Is(err, fault.Exhausted) {
				w.incomplete = true
			}
			queue = append(queue, name)
		}
		if w.incomplete {
			return nil
		}
	}
	return nil
}

// run passes events to send until send fails or no watch is left.
func (w *watcher) run(send func(protocol.FileEvent) error) error {
	defer w.file.Close()
	reported := false
	buf := make([]byte, 64<<10)
	for len(w.paths) > 0 {
		if w.incomplete && !reported {
			reported = true
			if send(protocol.FileEvent{Path: w.root, Op: "overflow", Dir: true}) != nil {
				return nil
			}
		}
		n, err := w.file.Read(buf)
		if err != nil {
			return nil // the client has disconnected, or init is being parked
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			if end > len(b) {
				break
			}
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
			b = b[end:]
			if err := w.event(wd, mask, name, send); err != nil {
				return nil
			}
		}
		w.last = protocol.FileEvent{}
	}
	return nil
}

var watchOps = []struct {
	mask uint32
	op   string
}{
	{unix.IN_CREATE | unix.IN_MOVED_TO, "create"},
	{unix.IN_MODIFY, "write"},
	{unix.IN_DELETE, "delete"},
	{unix.IN_MOVED_FROM, "rename"},
	{unix.IN_ATTRIB, "attrib"},
}

// event converts one inotify event and passes it to send.
func (w *watcher) event(wd int32, mask uint32, name string, send func(protocol.FileEvent) error) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return send(protocol.FileEvent{Path: w.root, Op: "overflow", Dir: true})
	}
	dir, ok := w.paths[wd]
	if !ok {
		return nil
	}
	e := protocol.FileEvent{Path: path.Join(dir, name), Dir: mask&unix.IN_ISDIR != 0}
	switch {
	case mask&unix.IN_IGNORED != 0:
		delete(w.paths, wd)
		return nil
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		if dir != w.root { // the parent's watch reports it
			return nil
		}
		clear(w.paths) // the root has been removed: the watch ends
		e.Op = "delete"
		if mask&unix.IN_MOVE_SELF != 0 {
			e.Op = "rename"
		}
		return send(e)
	}
	for _, o := range watchOps {
		if mask&o.mask != 0 {
			e.Op = o.op
		}
	}
	if e.Op == "" || e == w.last {
		return nil
	}
	w.last = e
	if err := send(e); err != nil || !e.Dir || !w.recursive {
		return err
	}
	switch e.Op {
	case "create":
		return w.addTree(e.Path, send)
	case "rename":
		w.dropTree(e.Path)
	}
	return nil
}

// addTree adds watches for a new directory tree and reports its entries.
func (w *watcher) addTree(dir string, send func(protocol.FileEvent) error) error {
	w.in.files.slots <- struct{}{}
	defer func() { <-w.in.files.slots }()
	if len(w.paths) >= maxWatched {
		w.incomplete = true
		return nil
	}
	if err := w.add(dir, unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW); err != nil {
		w.incomplete = w.incomplete || errors.Is(err, fault.Exhausted)
		return nil
	}
	return w.addBelow(dir, func(e protocol.FileEvent) error {
		<-w.in.files.slots // send may block
		defer func() { w.in.files.slots <- struct{}{} }()
		return send(e)
	})
}

// dropTree removes the watches of a directory that was moved away, because their paths are
// wrong. If it is still in the tree, it is reported as created under its new path.
func (w *watcher) dropTree(dir string) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	for wd, name := range w.paths {
		if name == dir || len(name) > len(dir) && name[:len(dir)+1] == dir+"/" {
			raw.Control(func(fd uintptr) { unix.InotifyRmWatch(int(fd), uint32(wd)) })
			delete(w.paths, wd)
		}
	}
}

package pages

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A branch is one jail: the address spaces of its processes, including later forks.
type branch struct {
	server *Server
	name   string
	marker string // a file that exists as long as the branch needs the server
	tasks  Map
	files  map[string][]byte // mapped pages files of the tasks

	socket *net.UnixListener
	asked  context.Context // canceled if the requester disconnects before all processes exist
	forgo  context.CancelFunc
	gone   chan struct{} // closed when all memory is loaded or memory is lost

	mu sync.Mutex
	// +checklocks:mu
	spaces map[*space]struct{}
	// +checklocks:mu
	complete bool // all processes of the branch exist
	// +checklocks:mu
	ended bool // gone is closed
	// +checklocks:mu
	err error // why memory is lost
}

// The names are CRIU's: it connects there from its working directory.
const (
	restorerSocket = "lazy-pages.socket"
	mapFile        = "lazy.map"
)

// newBranch registers a branch and listens for the restorer, which opens one connection.
func (s *Server) newBranch(name, dir, marker string) (*branch, error) {
	encoded, err := os.ReadFile(filepath.Join(dir, mapFile))
	if err != nil {
		return nil, fmt.Errorf("read the map of missing memory: %w", err)
	}
	asked, forgo := context.WithCancel(context.Background())
	b := &branch{asked: asked, forgo: forgo, server: s, name: name, marker: marker, files: map[string][]byte{}, gone: make(chan struct{}), spaces: map[*space]struct{}{}}
	if b.tasks, err = Decode(encoded, pageSize); err != nil {
		return nil, fmt.Errorf("%s: %w", mapFile, err)
	}
	for _, t := range b.tasks { // map them now, while the files exist
		if b.files[t.File], err = s.mapped(dir, t); err != nil {
			return nil, fmt.Errorf("map the pages of process %d: %w", t.PID, err)
		}
	}
	if b.socket, err = listen(filepath.Join(dir, restorerSocket)); err != nil {
		return nil, fmt.Errorf("listen for the restorer: %w", err)
	}
	return b, nil
}

// receive accepts the address spaces as the processes are created.
func (b *branch) receive() {
	err := b.receiveAll()
	b.socket.Close()
	b.mu.Lock()
	if err != nil {
		b.end(err)
	} else {
		b.complete = true
		b.settle()
	}
	spaces := b.all()
	b.mu.Unlock()
	for _, s := range spaces {
		if err != nil {
			s.fd.Close()
		} else {
			s.hurry()
		}
	}
}

// finished is the message of the restorer after all processes were created.
const finished = 0x52535446

func (b *branch) receiveAll() error {
	conn, err := b.socket.AcceptUnix()
	if err != nil {
		return fmt.Errorf("accept the restorer: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(b.asked, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	for {
		var word [4]byte
		if _, err := io.ReadFull(conn, word[:]); err != nil {
			return fmt.Errorf("the processes were not restored: %w", err)
		}
		pid := binary.NativeEndian.Uint32(word[:])
		switch {
		case pid == finished:
			return nil
		case int32(pid) <= 0: // a zombie, which has no memory
			continue
		}
		fd, err := receiveFile(conn)
		if err != nil {
			return fmt.Errorf("serve address space of process %d: %w", pid, err)
		}
		t, err := b.tasks.task(int(pid))
		if err != nil {
			fd.Close()
			return fmt.Errorf("serve address space of process %d: %w", pid, err)
		}
		b.add(&space{branch: b, file: b.files[t.File], fd: fd, soon: t.Eager, missing: slices.Clone(runs(t.Runs))})
	}
}

// receiveFile receives a descriptor, which is sent with one byte of data.
func receiveFile(conn *net.UnixConn) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil || n == 0 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, errors.New("received no descriptor"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(err, errors.New("received more than one descriptor"))
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "userfaultfd"), nil
}

// add serves one more address space.
func (b *branch) add(s *space) {
	b.mu.Lock()
	b.spaces[s] = struct{}{}
	many := len(b.spaces)
	b.mu.Unlock()
	if many%crowd == 0 {
		b.server.look()
	}
	go s.run()
}

// crowd is the number of address spaces from which on they are checked for exited processes.
// The kernel sends no event when a process exits or executes another program.
const crowd = 64

// drop forgets an address space.
func (b *branch) drop(s *space) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.spaces, s)
	b.settle()
}

// settle ends the branch if no memory is missing. The caller holds mu.
//
// +checklocks:b.mu
func (b *branch) settle() {
	if b.complete && len(b.spaces) == 0 && b.err == nil {
		b.end(nil)
	}
}

// lose ends the branch because its memory is lost.
func (b *branch) lose(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(err)
}

// end closes gone. The caller holds b.mu.
//
// +checklocks:b.mu
func (b *branch) end(err error) {
	if b.ended {
		return
	}
	b.ended, b.err = true, err
	if err == nil {
		os.Remove(b.marker) // a notified client need not connect again
	}
	close(b.gone)
	if err == nil || !b.complete {
		b.server.forget(b)
	}
}

// all returns the address spaces. The caller holds b.mu.
//
// +checklocks:b.mu
func (b *branch) all() (all []*space) {
	for s := range b.spaces {
		all = append(all, s)
	}
	return all
}

func (b *branch) now() []*space {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all()
}

// look drops the address spaces without a process.
func (b *branch) look() {
	b.mu.Lock()
	complete := b.complete
	b.mu.Unlock()
	if !complete { // an address space under construction does not yet have its final process
		return
	}
	for _, s := range b.now() {
		s.alive()
	}
}

// fill loads all missing memory, including that of processes forked meanwhile.
func (b *branch) fill() error {
	for {
		idle := true
		for _, s := range b.now() {
			if s.fill() {
				idle = false
			}
		}
		select {
		case <-b.gone:
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.err
		default:
		}
		if idle {
			time.Sleep(again)
		}
	}
}

// left returns the number of missing bytes.
func (b *branch) left() (n int64) {
	for _, s := range b.now() {
		n += s.left()
	}
	return n
}

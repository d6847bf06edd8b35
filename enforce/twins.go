package enforce

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"path"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// twins knows the programs of a jail's image by what was compiled into them, so
// that a copy under another name is known for what it is.
type twins struct {
	mu   sync.Mutex
	byID map[string]string // names, by build id. guarded by mu
}

// of returns the name that the image has for a program which is somewhere else,
// or "".
func (t *twins) of(p *process, at *place) string {
	if at.kind() != unix.S_IFREG || inPath(path.Dir(at.path)) {
		return ""
	}
	id := buildID("/proc/self/fd/" + strconv.Itoa(at.fd))
	if id == "" {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]string{}
		root, err := p.rootDir()
		if err != nil {
			return ""
		}
		for _, dir := range systemPath {
			t.learn(root, dir)
		}
	}
	return t.byID[id]
}

// learn reads the programs of one directory.
func (t *twins) learn(root int, dir string) {
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close()
	entries, _ := d.ReadDir(-1)
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if id := buildID("/proc/self/fd/" + strconv.Itoa(fd) + "/" + e.Name()); id != "" && t.byID[id] == "" {
			t.byID[id] = e.Name()
		}
	}
}

// maxNotes is more than the notes of a program take.
const maxNotes = 64 << 10

// buildID reads what the linker has given a program as its name. Whoever wants to
// can take it away: it is for copies, not for those who make programs.
func buildID(name string) string {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		return ""
	}
	for _, s := range e.Progs {
		if s.Type != elf.PT_NOTE || s.Filesz > maxNotes {
			continue
		}
		notes, err := io.ReadAll(io.LimitReader(s.Open(), maxNotes))
		if err != nil {
			continue
		}
		if id := gnuID(notes, e); id != "" {
			return id
		}
	}
	return ""
}

// gnuID finds the build id among notes.
func gnuID(notes []byte, e *elf.File) string {
	const buildID = 3
	round := func(n uint32) int { return (int(n) + 3) &^ 3 }
	for len(notes) >= 12 {
		name, size, kind := e.ByteOrder.Uint32(notes), e.ByteOrder.Uint32(notes[4:]), e.ByteOrder.Uint32(notes[8:])
		notes = notes[12:]
		if name > maxNotes || size > maxNotes || round(name)+round(size) > len(notes) {
			return ""
		}
		if kind == buildID && bytes.Equal(notes[:name], []byte("GNU\x00")) {
			return string(notes[round(name) : round(name)+int(size)])
		}
		notes = notes[round(name)+round(size):]
	}
	return ""
}

package enforce

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// twins finds the programs of a jail's image that have copies in other files: by
// the build id, and by the code, since a build id can be removed. A copy whose code
// was changed as well is a program of its own.
type twins struct {
	mu sync.Mutex
	// +checklocks:mu
	learned bool
	// +checklocks:mu
	byID map[string][]original
	// +checklocks:mu
	bySize map[uint64][]original // by the size of their code
}

// An original is a program of the image, as it was when it was learned.
type original struct {
	path string // in the jail
	stat unix.Stat_t
}

// of returns the names that the image has for a program which is somewhere else.
func (t *twins) of(p *process, at *place) (names []string) {
	if at.kind() != unix.S_IFREG {
		return nil
	}
	f := openRegular("/proc/self/fd/" + strconv.Itoa(at.fd))
	if f == nil {
		return nil
	}
	defer f.Close()
	copied, err := readProgram(f)
	if err != nil {
		return nil
	}
	root, err := p.rootDir()
	if err != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.learn(root)
	for _, o := range t.bySize[copied.code.Filesz] {
		if !sameInode(&o.stat, &at.stat) && o.hasCode(root, copied) {
			names = append(names, path.Base(o.path))
		}
	}
	if copied.id != "" {
		for _, o := range t.byID[copied.id] {
			if !sameInode(&o.stat, &at.stat) {
				names = append(names, path.Base(o.path))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// hasCode reports whether the program in the jail with the given root has the code of
// p, or may have had it: a program that has been replaced since cannot be compared.
func (o *original) hasCode(root int, p *elfProgram) bool {
	f := openIn(root, o.path)
	if f == nil {
		return true
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || !sameInode(&st, &o.stat) || st.Ctim != o.stat.Ctim {
		return true
	}
	own, err := readProgram(f)
	return err != nil || sameBytes(own.codeBytes(), p.codeBytes())
}

// learn reads the programs of the image, once. The caller holds t.mu.
//
// +checklocks:t.mu
func (t *twins) learn(root int) {
	if t.learned {
		return
	}
	t.learned, t.byID, t.bySize = true, map[string][]original{}, map[uint64][]original{}
	seen := map[[2]uint64]bool{} // where /bin is a link to /usr/bin
	for _, dir := range systemPath {
		fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
		if err != nil {
			continue
		}
		d := os.NewFile(uintptr(fd), dir)
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && !seen[[2]uint64{st.Dev, st.Ino}] {
			seen[[2]uint64{st.Dev, st.Ino}] = true
			entries, _ := d.ReadDir(-1)
			for _, e := range entries {
				if e.Type().IsRegular() {
					t.add(root, path.Join(dir, e.Name()))
				}
			}
		}
		d.Close()
	}
}

// add learns one program. The caller holds t.mu.
//
// +checklocks:t.mu
func (t *twins) add(root int, name string) {
	f := openIn(root, name)
	if f == nil {
		return
	}
	defer f.Close()
	p, err := readProgram(f)
	o := original{path: name}
	if err != nil || unix.Fstat(int(f.Fd()), &o.stat) != nil {
		return
	}
	t.bySize[p.code.Filesz] = append(t.bySize[p.code.Filesz], o)
	if p.id != "" {
		t.byID[p.id] = append(t.byID[p.id], o)
	}
}

func sameInode(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }

// readFlags open what may be anything: neither a pipe nor a terminal is waited for.
const readFlags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY

// openIn opens a file below root to be read, or returns nil.
func openIn(root int, name string) *os.File {
	how := unix.OpenHow{Flags: readFlags, Resolve: unix.RESOLVE_IN_ROOT}
	for range 100 {
		switch fd, err := unix.Openat2(root, name, &how); err {
		case nil:
			return os.NewFile(uintptr(fd), name)
		case unix.EAGAIN: // a rename or mount elsewhere on the host while ".." of a link was followed
		default:
			return nil
		}
	}
	return nil
}

// openRegular opens a file to be read, or returns nil.
func openRegular(name string) *os.File {
	fd, err := unix.Open(name, readFlags, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

// An elfProgram is what the kernel and the linker know of a program.
type elfProgram struct {
	file io.ReaderAt
	id   string     // the build id that the linker gave it, which is easily removed
	code elf.Prog64 // its executable segment
}

const (
	maxHeaders = 128      // of segments; programs have about 13
	maxNotes   = 64 << 10 // more than the notes of a program take
)

var errNoProgram = errors.New("no program of this machine")

// readProgram reads what the kernel reads to run a program: the header of the file and
// those of its segments, elf(5). Sections mean nothing to the kernel, and need not be
// there.
func readProgram(f io.ReaderAt) (*elfProgram, error) {
	var h elf.Header64
	if err := binary.Read(io.NewSectionReader(f, 0, int64(binary.Size(h))), binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	var one elf.Prog64
	if !bytes.HasPrefix(h.Ident[:], []byte(elf.ELFMAG)) || elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		int(h.Phentsize) != binary.Size(one) || h.Phnum == 0 || h.Phnum > maxHeaders {
		return nil, errNoProgram
	}
	segments := make([]elf.Prog64, h.Phnum)
	size := int64(binary.Size(one)) * int64(h.Phnum)
	if err := binary.Read(io.NewSectionReader(f, int64(h.Phoff), size), binary.LittleEndian, segments); err != nil {
		return nil, err
	}
	p := &elfProgram{file: f}
	for _, s := range segments {
		switch {
		case elf.ProgType(s.Type) == elf.PT_LOAD && elf.ProgFlag(s.Flags)&elf.PF_X != 0 && s.Filesz > p.code.Filesz:
			p.code = s
		case elf.ProgType(s.Type) == elf.PT_NOTE && s.Filesz <= maxNotes && p.id == "":
			notes, err := io.ReadAll(io.NewSectionReader(f, int64(s.Off), int64(s.Filesz)))
			if err == nil {
				p.id = gnuID(notes)
			}
		}
	}
	if p.code.Filesz == 0 {
		return nil, errNoProgram
	}
	return p, nil
}

// codeBytes reads the executable segment, without its beginning: where linkers do not
// keep code apart (ld -z noseparate-code), the headers and the build id are there.
func (p *elfProgram) codeBytes() io.Reader {
	skip := min(p.code.Filesz/4, 4096)
	return io.NewSectionReader(p.file, int64(p.code.Off+skip), int64(p.code.Filesz-skip))
}

// sameBytes reports whether two readers give the same.
func sameBytes(a, b io.Reader) bool {
	var x, y [64 << 10]byte
	for {
		n, errA := io.ReadFull(a, x[:])
		m, errB := io.ReadFull(b, y[:])
		if !bytes.Equal(x[:n], y[:m]) {
			return false
		}
		if errA != nil || errB != nil {
			return errA == errB && (errA == io.EOF || errA == io.ErrUnexpectedEOF)
		}
	}
}

// gnuID finds the build id among notes.
func gnuID(notes []byte) string {
	const buildID = 3 // NT_GNU_BUILD_ID
	round := func(n uint32) int { return (int(n) + 3) &^ 3 }
	for len(notes) >= 12 {
		name, size, kind := binary.LittleEndian.Uint32(notes), binary.LittleEndian.Uint32(notes[4:]), binary.LittleEndian.Uint32(notes[8:])
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

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

// imagePrograms finds the programs of a jail's image that a given file is a copy of. It
// compares build ids and code, because a build id can be removed. A copy with changed code
// counts as another program.
type imagePrograms struct {
	mu sync.Mutex
	// +checklocks:mu
	scanned bool
	// +checklocks:mu
	byID map[string][]original
	// +checklocks:mu
	bySize map[uint64][]original // by the size of their code segment
}

// An original is a program of the image at the time of the scan.
type original struct {
	path string // in the jail
	stat unix.Stat_t
}

// copyNames returns the names of the image's programs that the given file is a copy of.
func (t *imagePrograms) copyNames(p *process, at *target) (names []string) {
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
	t.scan(root)
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

// hasCode reports whether the program in the jail with the given root has the code of p. It
// returns true if the program was replaced since the scan, because the original code is then
// unknown.
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

// scan reads the programs of the image, once. The caller holds t.mu.
//
// +checklocks:t.mu
func (t *imagePrograms) scan(root int) {
	if t.scanned {
		return
	}
	t.scanned, t.byID, t.bySize = true, map[string][]original{}, map[uint64][]original{}
	seen := map[[2]uint64]bool{} // /bin may be a link to /usr/bin
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

// add indexes one program. The caller holds t.mu.
//
// +checklocks:t.mu
func (t *imagePrograms) add(root int, name string) {
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

// readFlags open an untrusted file without blocking on a pipe or terminal.
const readFlags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY

// openIn opens a file below root for reading, or returns nil.
func openIn(root int, name string) *os.File {
	how := unix.OpenHow{Flags: readFlags, Resolve: unix.RESOLVE_IN_ROOT}
	for range 100 {
		switch fd, err := unix.Openat2(root, name, &how); err {
		case nil:
			return os.NewFile(uintptr(fd), name)
		case unix.EAGAIN: // a concurrent rename or mount on the host while ".." was resolved (openat2(2))
		default:
			return nil
		}
	}
	return nil
}

// openRegular opens a file for reading, or returns nil.
func openRegular(name string) *os.File {
	fd, err := unix.Open(name, readFlags, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

// An elfProgram is an ELF executable as the kernel loads it.
type elfProgram struct {
	file io.ReaderAt
	id   string     // the build id set by the linker, which is easily removed
	code elf.Prog64 // its executable segment
}

const (
	maxHeaders = 128      // maximum number of segments; programs have about 13
	maxNotes   = 64 << 10 // more than the notes of a program take
)

var errNotELF = errors.New("not a 64-bit ELF executable")

// readProgram reads the ELF header and the program headers (elf(5)). The kernel ignores
// sections, so they may be missing.
func readProgram(f io.ReaderAt) (*elfProgram, error) {
	var h elf.Header64
	if err := binary.Read(io.NewSectionReader(f, 0, int64(binary.Size(h))), binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	var one elf.Prog64
	if !bytes.HasPrefix(h.Ident[:], []byte(elf.ELFMAG)) || elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		int(h.Phentsize) != binary.Size(one) || h.Phnum == 0 || h.Phnum > maxHeaders {
		return nil, errNotELF
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
		return nil, errNotELF
	}
	return p, nil
}

// codeBytes reads the executable segment without its beginning. With ld -z noseparate-code the
// beginning contains the headers and the build id.
func (p *elfProgram) codeBytes() io.Reader {
	skip := min(p.code.Filesz/4, 4096)
	return io.NewSectionReader(p.file, int64(p.code.Off+skip), int64(p.code.Filesz-skip))
}

// sameBytes reports whether two readers have the same content.
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

// Package wasi is the system that WebAssembly modules of WASI preview 1 see: their
// arguments, descriptors and files. Every path stays beneath the directory through
// which it is opened: the kernel resolves it (openat2, RESOLVE_BENEATH), so no
// symbolic link, "..", rename or race leads out, for reading or for writing.
package wasi

import (
	"context"
	"errors"
	"fmt"
	stdio "io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Options say what a module finds when it starts.
type Options struct {
	Args   []string
	Env    []string // "K=V"
	Stdin  stdio.Reader
	Stdout stdio.Writer
	Stderr stdio.Writer
	Dirs   []Dir // opened as descriptors 3, 4, … in this order
	Files  int   // that may be open at once, each one of this process's; 0: 1024
}

// A Dir is a directory of the host that a module sees.
type Dir struct {
	Host     string
	Below    string // the directory that Host is relative to, and does not lead out of; empty: none
	Guest    string
	ReadOnly bool
	Volume   *Volume // counts what is written; nil: nobody counts

	// Make makes the directory when the module uses it for the first time, and
	// says what Host and Volume would. nil: it is there. Most modules do not use it.
	Make func() (host string, v *Volume, err error)
}

// A Process is what the instance of a module has open and was told. It serves one
// instance, which has one thread.
type Process struct {
	args, env []string
	files     []*file // by number; nil: closed
	most      int     // of them

	exited  bool
	code    uint32
	full    bool
	written int64
}

// New opens the directories of a process. The caller closes it.
func New(o Options) (*Process, error) {
	p := &Process{args: o.Args, env: o.Env, most: o.Files}
	if p.most == 0 {
		p.most = 1024
	}
	if len(o.Dirs) > 0 {
		if err := beneath(); err != nil {
			return nil, err
		}
	}
	p.files = make([]*file, 3)
	p.SetStdio(o.Stdin, o.Stdout, o.Stderr)
	for _, d := range o.Dirs {
		f, err := openDir(d)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.files = append(p.files, f)
	}
	return p, nil
}

func openDir(d Dir) (*file, error) {
	f := &file{fd: -1, kind: directory, guest: d.Guest, preopened: true, readOnly: d.ReadOnly, volume: d.Volume}
	if d.Make != nil {
		f.make = func() (err error) {
			if d.Host, f.volume, err = d.Make(); err == nil {
				f.fd, err = d.open()
			}
			return err
		}
		return f, nil
	}
	fd, err := d.open()
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fault.New(fault.NotFound, "wasi.New", d.Host, err)
	case errors.Is(err, unix.ENOTDIR):
		return nil, fault.New(fault.Invalid, "wasi.New", d.Host, err)
	case err != nil:
		return nil, fmt.Errorf("open %s for a module: %w", d.Host, err)
	}
	f.fd = fd
	return f, nil
}

func (d Dir) open() (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	if d.Below == "" {
		return unix.Open(d.Host, flags, 0)
	}
	below, err := unix.Open(d.Below, flags, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(below)
	return openBeneath(below, d.Host, flags, 0)
}

// SetStdio gives a process other standard streams. What is nil is empty, or takes
// everything.
func (p *Process) SetStdio(in stdio.Reader, out, err stdio.Writer) {
	if in == nil {
		in = strings.NewReader("")
	}
	if out == nil {
		out = stdio.Discard
	}
	if err == nil {
		err = stdio.Discard
	}
	p.files[0], p.files[1], p.files[2] = stream(in, nil), stream(nil, out), stream(nil, err)
}

// Exited returns the code that the module passed to proc_exit, if it did.
func (p *Process) Exited() (code uint32, ok bool) { return p.code, p.exited }

// Full reports whether something was refused because its Volume was full, since Full
// was last asked.
func (p *Process) Full() bool {
	full := p.full
	p.full = false
	return full
}

// Written is how many bytes the module has written to files.
func (p *Process) Written() int64 { return p.written }

// Close closes all descriptors.
func (p *Process) Close() error {
	var errs []error
	for n, f := range p.files {
		if f != nil {
			errs = append(errs, f.close())
			p.files[n] = nil
		}
	}
	return errors.Join(errs...)
}

// file looks a descriptor up, to use it.
func (p *Process) file(n uint32) (*file, errno) {
	f, e := p.look(n)
	if e != eOK || f.make == nil {
		return f, e
	}
	if err := f.make(); err != nil {
		return nil, number(err)
	}
	f.make = nil
	return f, eOK
}

// look looks a descriptor up, to say what it is.
func (p *Process) look(n uint32) (*file, errno) {
	if int64(n) >= int64(len(p.files)) || p.files[n] == nil {
		return nil, eBadf
	}
	return p.files[n], eOK
}

// add gives a file the lowest free number behind the standard streams.
func (p *Process) add(f *file) (uint32, errno) {
	for n := 3; n < len(p.files); n++ {
		if p.files[n] == nil {
			p.files[n] = f
			return uint32(n), eOK
		}
	}
	if len(p.files) >= p.most {
		return 0, eMfile
	}
	p.files = append(p.files, f)
	return uint32(len(p.files) - 1), eOK
}

type processKey struct{}

// With returns a context whose calls into modules see p.
func With(ctx context.Context, p *Process) context.Context {
	return context.WithValue(ctx, processKey{}, p)
}

func processOf(ctx context.Context) *Process {
	p, _ := ctx.Value(processKey{}).(*Process)
	return p
}

// Types of files, in preview 1's numbers.
const (
	unknown         = 0
	blockDevice     = 1
	characterDevice = 2
	directory       = 3
	regular         = 4
	socket          = 6
	symbolicLink    = 7
)

// A file is an open descriptor: one of the host's, or a standard stream.
type file struct {
	fd   int // of the host; -1: a stream that is none
	kind uint8

	read, write bool
	flags       uint16 // fdflags
	readOnly    bool   // beneath a directory of which nothing may be changed
	volume      *Volume
	held        inode // in volume

	make      func() error // opens it, the first time that it is used; nil: it is open
	guest     string       // the path of a directory that was there from the start
	preopened bool

	in  stdio.Reader // of a stream
	out stdio.Writer
}

func (f *file) stream() bool { return f.in != nil || f.out != nil }

// stream makes a standard stream.
func stream(in stdio.Reader, out stdio.Writer) *file {
	f := &file{fd: -1, in: in, out: out, read: in != nil, write: out != nil}
	host, _ := in.(*os.File)
	if w, ok := out.(*os.File); ok {
		host = w
	}
	if host == nil {
		return f
	}
	f.fd = int(host.Fd())
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) == nil {
		f.kind = kindOf(st.Mode)
	}
	return f
}

// close closes what the process has opened; streams are their owner's.
func (f *file) close() error {
	if f.stream() || f.fd < 0 {
		return nil
	}
	if f.volume != nil && f.held != (inode{}) {
		return f.volume.release(f)
	}
	return unix.Close(f.fd)
}

func kindOf(mode uint32) uint8 {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return regular
	case unix.S_IFDIR:
		return directory
	case unix.S_IFLNK:
		return symbolicLink
	case unix.S_IFCHR:
		return characterDevice
	case unix.S_IFBLK:
		return blockDevice
	case unix.S_IFSOCK:
		return socket
	}
	return unknown
}

// Package wasi implements the functions of WASI preview 1 for WebAssembly modules: arguments,
// descriptors and files. Every path stays beneath the directory through which it is opened.
// The kernel enforces this (openat2(2), RESOLVE_BENEATH), so symbolic links, "..", renames and
// races cannot lead out of the directory.
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

// Options are the arguments, environment and files of a module.
type Options struct {
	Args   []string
	Env    []string // "K=V"
	Stdin  stdio.Reader
	Stdout stdio.Writer
	Stderr stdio.Writer
	Dirs   []Dir // opened as descriptors 3, 4, … in this order
	Files  int   // limit of open files, which are descriptors of this process; 0: 1024
}

// A Dir is a directory of the host that a module can access.
type Dir struct {
	Host     string
	Below    string // Host is relative to this directory and cannot lead out of it; empty: none
	Guest    string
	ReadOnly bool
	Volume   *Volume // quota accounting; nil: none

	// Make creates the directory when the module first uses it, and returns the values for
	// Host and Volume. nil: the directory exists. Creating it late saves time, because most
	// modules do not use it.
	Make func() (host string, v *Volume, err error)
}

// A Process is the state of one instance of a module: its arguments, environment and open
// files. It is not safe for concurrent use; an instance has one thread.
type Process struct {
	args, env []string
	files     []*file // by number; nil: closed
	most      int     // maximum number of files

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

// SetStdio replaces the standard streams. A nil reader is empty; a nil writer discards its
// input.
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

// Full reports whether an operation failed because a Volume was full since the last call of
// Full.
func (p *Process) Full() bool {
	full := p.full
	p.full = false
	return full
}

// Written returns the number of bytes that the module has written to files.
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

// file returns the file of a descriptor. It creates the directory of a Dir with Make.
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

// look returns the file of a descriptor, which need not be open yet.
func (p *Process) look(n uint32) (*file, errno) {
	if int64(n) >= int64(len(p.files)) || p.files[n] == nil {
		return nil, eBadf
	}
	return p.files[n], eOK
}

// add assigns the lowest free descriptor above the standard streams to a file.
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

// With returns a context for calls into modules that use p.
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
	fd   int // descriptor of the host; -1: none
	kind uint8

	read, write bool
	flags       uint16 // fdflags
	readOnly    bool   // it is in a read-only Dir
	volume      *Volume
	held        inode // counted in volume.open

	make      func() error // opens it at its first use; nil: it is open
	guest     string       // path of a preopened directory
	preopened bool

	in  stdio.Reader // for a standard stream
	out stdio.Writer
}

func (f *file) stream() bool { return f.in != nil || f.out != nil }

// stream returns a standard stream.
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

// close closes a file. It does not close a standard stream, which belongs to the caller of
// New.
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

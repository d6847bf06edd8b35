package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

const (
	// recordAttr is the extended attribute of a tree that keeps its record. Every
	// cgroup file system stores trusted attributes (kernfs_vfs_xattr_set in
	// fs/kernfs/inode.c); they need CAP_SYS_ADMIN and end with the cgroup.
	recordAttr = "trusted.glasshouse"

	treePrefix = "glasshouse-" // prefix of the names of trees that have records

	recordTime = 10 * time.Second // wait limit for other processes that read or write records
)

// A Lock tree belongs to this process until Close.
type Lock struct {
	tree *Tree
	f    *os.File
}

// A Neighbour is another tree on this host, with its record.
type Neighbour struct {
	Name   string
	Record []byte // nil without a record
	Held   bool   // a process holds it

	tree Tree
}

// InUse reports whether a process holds the tree or is in its cgroups. Unless the tree is held, it
// reads every cgroup of the tree, while other processes wait for the records.
func (n *Neighbour) InUse() (bool, error) {
	if n.Held {
		return true, nil
	}
	busy, err := n.tree.populated()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // removed by an administrator
	}
	return busy, err
}

// recordRoot is the hierarchy that has the records and the locks of trees: that of
// cgroup v2 where it is mounted.
func (t *Tree) recordRoot() string {
	if t.unified != "" {
		return t.unified
	}
	return t.hierarchies()[0]
}

// lockRecords keeps other processes from holding trees and from reading or writing
// records until the returned function is called. All processes that see the host's
// cgroups share the lock, whatever their mount namespaces are.
func (t *Tree) lockRecords(ctx context.Context) (unlock func(), err error) {
	f, err := os.Open(t.recordRoot())
	if err != nil {
		return nil, fmt.Errorf("lock the records of cgroups: %w", err)
	}
	deadline := time.Now().Add(recordTime)
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		if time.Now().After(deadline) {
			err = fault.Newf(fault.Unavailable, "cgroup.Lock", f.Name(), "another process has locked the cgroups for %v", recordTime)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	f.Close()
	return nil, fmt.Errorf("lock the records of cgroups: %w", err)
}

// Lock creates the tree and locks it until the result is closed, or returns a fault.Conflict if
// another process has locked it. Processes that share the host's cgroups share this lock, even if they
// are in different containers. Only the process that has locked a tree may remove it.
func (t *Tree) Lock(ctx context.Context) (*Lock, error) {
	unlock, err := t.lockRecords(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(t.recordRoot(), t.prefix)
	for {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make cgroup %s: %w", dir, err)
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its last holder removed it meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("lock cgroup %s: %w", dir, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fault.Newf(fault.Conflict, "cgroup.Lock", dir, "another process has locked it")
			}
			return nil, fmt.Errorf("lock cgroup %s: %w", dir, err)
		}
		locked, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock cgroup %s: %w", dir, err)
		}
		if now, err := os.Stat(dir); err == nil && os.SameFile(locked, now) {
			return &Lock{t, f}, nil
		}
		f.Close() // removed after it was opened
	}
}

// Close releases the tree. Its cgroups and its record stay.
func (h *Lock) Close() error { return h.f.Close() }

// Record returns the record of the tree, or nil without a record. Another process may hold the
// tree.
func (t *Tree) Record() ([]byte, error) { return readRecord(filepath.Join(t.recordRoot(), t.prefix)) }

// Update replaces the tree's record by the result of f, which gets the current record and the
// other trees on this host. Until Update returns no other process reads or writes records. f may
// remove neighbours that are neither held nor busy with drop.
func (h *Lock) Update(ctx context.Context, f func(own []byte, others []Neighbour, drop func(name string) error) ([]byte, error)) error {
	t := h.tree
	unlock, err := t.lockRecords(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	own, err := t.Record()
	if err != nil {
		return err
	}
	others, err := t.neighbours()
	if err != nil {
		return err
	}
	drop := func(name string) error {
		other := *t
		other.prefix = name
		return other.Remove()
	}
	record, err := f(own, others, drop)
	if err != nil {
		return err
	}
	if err := unix.Fsetxattr(int(h.f.Fd()), recordAttr, record, 0); err != nil {
		return fmt.Errorf("write the record of cgroup %s: %w", t.prefix, err)
	}
	return nil
}

// neighbours lists the other trees of this host. The caller must have locked the records.
func (t *Tree) neighbours() ([]Neighbour, error) {
	entries, err := os.ReadDir(t.recordRoot())
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	var all []Neighbour
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), treePrefix) || e.Name() == t.prefix {
			continue
		}
		n := Neighbour{Name: e.Name(), tree: *t}
		n.tree.prefix = n.Name
		dir := filepath.Join(t.recordRoot(), n.Name)
		n.Record, err = readRecord(dir)
		if err == nil {
			n.Held, err = isHeld(dir)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by an administrator
		}
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// populated reports whether any process is in a cgroup of the tree.
func (t *Tree) populated() (bool, error) {
	names, err := t.List()
	if err != nil {
		return false, err
	}
	for _, name := range names {
		c, err := t.cgroup(name)
		if err != nil {
			return false, err
		}
		if busy, err := c.Populated(); busy || err != nil && !errors.Is(err, fault.NotFound) && !gone(err) {
			return busy, err
		}
	}
	return false, nil
}

func isHeld(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("try to lock cgroup %s: %w", dir, err)
	}
	return false, nil
}

// readRecord returns nil if the cgroup at dir, or its record, does not exist.
func readRecord(dir string) ([]byte, error) {
	for {
		n, err := unix.Getxattr(dir, recordAttr, nil)
		var record []byte
		if err == nil {
			record = make([]byte, n)
			n, err = unix.Getxattr(dir, recordAttr, record)
		}
		switch {
		case err == nil:
			return record[:n], nil
		case errors.Is(err, unix.ERANGE): // the value has grown
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOENT):
			return nil, nil
		default:
			return nil, &fs.PathError{Op: "read the record of", Path: dir, Err: err}
		}
	}
}

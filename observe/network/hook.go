package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"glasshouse/fault"
	"glasshouse/observe"
)

// hook attaches the programs that associate sockets with processes to a cgroup. Unless the
// watch already has hooks, it removes those of an earlier daemon at other cgroups of the jail.
func (w *watch) hook(dir string) (links []link.Link, err error) {
	if dir == "" {
		return nil, nil
	}
	cgroup, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	// The inode distinguishes the pins of two cgroups, which a jail has during Move.
	id := fmt.Sprintf("-%x", inode(cgroup))
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("attach to cgroup %s: %w", dir, err), w.unhook(links))
			links = nil
		}
	}()
	p := &w.source.programs
	for _, h := range []struct {
		name string
		at   ebpf.AttachType
		prog *ebpf.Program
	}{
		{"create", ebpf.AttachCGroupInetSockCreate, p.Create},
		{"bind4", ebpf.AttachCGroupInet4PostBind, p.Bind4},
		{"bind6", ebpf.AttachCGroupInet6PostBind, p.Bind6},
		{"connect4", ebpf.AttachCGroupInet4Connect, p.Connect4},
		{"connect6", ebpf.AttachCGroupInet6Connect, p.Connect6},
		{"send4", ebpf.AttachCGroupUDP4Sendmsg, p.Send4},
		{"send6", ebpf.AttachCGroupUDP6Sendmsg, p.Send6},
	} {
		l, err := w.source.pinned(w.pin(h.name+id), h.prog, func() (link.Link, error) {
			return link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: h.at, Program: h.prog})
		})
		if err != nil {
			return links, fmt.Errorf("attach the program %s: %w", h.name, err)
		}
		links = append(links, l)
		// A daemon that was killed during Move leaves hooks at both cgroups. During Move of this
		// daemon, w.hooks are still in use.
		if w.adopted && w.hooks == nil {
			if err := w.dropOthers(h.name, id); err != nil {
				return links, err
			}
		}
	}
	return links, nil
}

// dropOthers removes the pinned hooks of all cgroups except the one with the given ID.
func (w *watch) dropOthers(hook, id string) error {
	all, err := filepath.Glob(w.pin(hook + "*"))
	for _, name := range all {
		if filepath.Base(name) == hook || strings.HasPrefix(filepath.Base(name), hook+"-") && filepath.Base(name) != hook+id {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// unhook closes and unpins hook links.
func (w *watch) unhook(links []link.Link) error {
	var errs []error
	for _, l := range links {
		if w.source.pins() {
			if err := l.Unpin(); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("unpin: %w", err))
			}
		}
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Move implements observe.Mover. A jail that is restored in another cgroup, with other
// processes but in the same network namespace, is recorded without interruption: the packet
// programs stay attached.
func (w *watch) Move(ctx context.Context, t observe.Target) (bool, error) {
	const op = "network.Move"
	netns, err := nsID(netnsOf(t))
	if err != nil {
		return false, fault.New(fault.NotFound, op, string(t.Jail), err)
	}
	if netns != w.netns {
		return false, nil
	}
	pidns, err := nsID(fmt.Sprintf("/proc/%d/ns/pid", t.PID))
	if err != nil {
		return false, fault.New(fault.NotFound, op, string(t.Jail), err)
	}
	otherCgroup := hooksOf(t) != hooksOf(w.target)
	hooks := w.hooks
	if otherCgroup {
		// The old hooks stay attached until the new ones are, so that no socket is missed.
		hooks, err = w.hook(hooksOf(t))
		if err != nil {
			return false, err
		}
	}
	w.mu.Lock()
	k := w.key
	k.Pidns = pidns
	err = w.put(k)
	w.mu.Unlock()
	if err != nil { // the watch stays at its target
		if otherCgroup {
			err = errors.Join(err, w.unhook(hooks))
		}
		return false, err
	}
	old := w.hooks
	w.hooks = hooks
	w.target.PID, w.target.CgroupDir, w.target.Cgroup = t.PID, t.CgroupDir, t.Cgroup
	if otherCgroup {
		err = w.unhook(old)
	}
	return err == nil, err
}

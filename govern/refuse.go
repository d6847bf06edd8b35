package govern

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/enforce"
	"glasshouse/policy"
)

// A Refuser has the machine's kernel refuse, without asking, what the processes of
// a cgroup may not do at all: enforce.LSM.
type Refuser interface {
	Refuse(cgroup uint64, r enforce.Refusals) error
	Forget(cgroup uint64) error
}

// refuse has the machine's kernel refuse what rules deny without exception, as far
// as it knows the names of it. All else is decided when it is asked. w.mu is held.
func (w *ward) refuse(set *policy.Set, agent string) {
	r := w.k.cfg.Refuser
	if r == nil {
		return
	}
	to := w.guard.Cgroup
	if w.guard.Listener == nil || set == nil {
		to = 0
	}
	if w.refused != 0 && w.refused != to {
		w.refuseNothing()
	}
	if to == 0 {
		return
	}
	all, err := refusals(fmt.Sprintf("/proc/%d/root", w.guard.Init), set.Denials(agent))
	if err == nil {
		w.refused = to
		err = r.Refuse(to, all)
	}
	for _, f := range append(all.Run, all.Write...) {
		f.Close()
	}
	if err != nil {
		w.k.cfg.Log.Error("what is denied is refused when it is asked, and not before", "jail", w.jid, "err", err)
	}
}

// refuseNothing takes that back. w.mu is held.
func (w *ward) refuseNothing() {
	if w.refused == 0 {
		return
	}
	if err := w.k.cfg.Refuser.Forget(w.refused); err != nil {
		w.k.cfg.Log.Error("a jail that has ended is still refused something", "jail", w.jid, "err", err)
	}
	w.refused = 0
}

// refusals are what denials name: files and directories there are below root,
// programs, and addresses. The files are the caller's.
func refusals(root string, denials []policy.Rule) (all enforce.Refusals, err error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return all, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	for _, d := range denials {
		if policy.Matches(d.Action, policy.ActionEdit) {
			if f := writable(dir, d.Pattern); f != nil {
				all.Write = append(all.Write, f)
			}
		}
		if policy.Matches(d.Action, policy.ActionRun) {
			all.Run = append(all.Run, programs(dir, d.Pattern)...)
		}
		if policy.Matches(d.Action, policy.ActionConnect) {
			if p, ok := network(d.Pattern); ok {
				all.Connect = append(all.Connect, p)
			}
		}
	}
	return all, nil
}

// within opens the file or directory of a name in the jail whose root dir is, or
// returns nil if there is none, or only another one by a link: that has rules of
// its own.
func within(dir int, name string, directory bool) *os.File {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || directory != (st.Mode&unix.S_IFMT == unix.S_IFDIR) ||
		!directory && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1) { // by its other names it may be allowed
		f.Close()
		return nil
	}
	return f
}

// writable opens the file that a pattern is the name of, or the directory below
// which it matches everything.
func writable(dir int, pattern string) *os.File {
	name, below := strings.CutSuffix(pattern, "/*")
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsAny(name, "*?") {
		return nil
	}
	return within(dir, name, below)
}

// searched are directories in which programs are.
var searched = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// programs opens the files that a pattern over command lines denies whatever their
// arguments are. A file with other names is another program by those.
func programs(dir int, pattern string) []*os.File {
	word, always := strings.CutSuffix(pattern, " *")
	if !always || word == "" || strings.ContainsAny(word, "*? \t\n'\"\\$") {
		return nil
	}
	names := []string{word}
	if !strings.Contains(word, "/") {
		names = names[:0]
		for _, in := range searched {
			names = append(names, path.Join(in, word))
		}
	} else if !path.IsAbs(word) {
		return nil
	}
	var all []*os.File
	for _, name := range names {
		if f := within(dir, name, false); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// network is the addresses that a pattern denies at all ports: one ("10.0.0.1:*",
// "[fd00::1]:*") or those with the same beginning ("10.0.*").
func network(pattern string) (netip.Prefix, bool) {
	host, all := strings.CutSuffix(pattern, ":*")
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); all && err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	begin, more := strings.CutSuffix(host, ".*")
	parts := strings.Split(begin, ".")
	if !more || len(parts) > 3 {
		return netip.Prefix{}, false
	}
	a, err := netip.ParseAddr(begin + strings.Repeat(".0", 4-len(parts)))
	return netip.PrefixFrom(a, 8*len(parts)), err == nil
}

package govern

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/policy"
	"glasshouse/policy/enforce"
)

// A Refuser makes the Linux kernel refuse unconditional denials for the processes of a cgroup,
// without asking the daemon. *enforce.LSM implements it.
type Refuser interface {
	Refuse(cgroup uint64, r enforce.Refusals) error
	Forget(cgroup uint64) error
}

// installRefusals makes the Linux kernel refuse operations that the rules deny without exception
// and that name files, programs or addresses. The seccomp listener decides all other operations.
// The caller holds jp.mu.
func (jp *jailPolicy) installRefusals(set *policy.Set, agent string) {
	r := jp.k.cfg.Refuser
	if r == nil {
		return
	}
	cgroup := jp.guard.Cgroup
	if jp.guard.Listener == nil || set == nil {
		cgroup = 0
	}
	if jp.refusedCgroup != 0 && jp.refusedCgroup != cgroup {
		jp.removeRefusals()
	}
	if cgroup == 0 {
		return
	}
	all, err := refusals(fmt.Sprintf("/proc/%d/root", jp.guard.Init), set.Denials(agent))
	if err == nil {
		jp.refusedCgroup = cgroup
		err = r.Refuse(cgroup, all)
	}
	for _, f := range append(all.Run, all.Write...) {
		f.Close()
	}
	if err != nil {
		jp.k.cfg.Log.Error("could not install kernel-level denials; the seccomp listener still enforces them", "jail", jp.jid, "err", err)
	}
}

// removeRefusals removes the refusals. The caller holds jp.mu.
func (jp *jailPolicy) removeRefusals() {
	if jp.refusedCgroup == 0 {
		return
	}
	if err := jp.k.cfg.Refuser.Forget(jp.refusedCgroup); err != nil {
		jp.k.cfg.Log.Error("could not remove the kernel-level denials of a jail", "jail", jp.jid, "err", err)
	}
	jp.refusedCgroup = 0
}

// refusals returns the existing files, directories and programs below root and the addresses
// that denials name. The caller closes the files.
func refusals(root string, denials []policy.Rule) (all enforce.Refusals, err error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return all, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	for _, d := range denials {
		if policy.Matches(d.Action, policy.ActionEdit) {
			if f := writeTarget(dir, d.Pattern); f != nil {
				all.Write = append(all.Write, f)
			}
		}
		if policy.Matches(d.Action, policy.ActionRun) {
			all.Run = append(all.Run, execTargets(dir, d.Pattern)...)
		}
		if policy.Matches(d.Action, policy.ActionConnect) {
			if p, ok := deniedPrefix(d.Pattern); ok {
				all.Connect = append(all.Connect, p)
			}
		}
	}
	return all, nil
}

// openInRoot opens a file or directory in the jail whose root is dir. It returns nil if the
// name does not exist or contains a symbolic link, whose target has rules of its own.
func openInRoot(dir int, name string, directory bool) *os.File {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || directory != (st.Mode&unix.S_IFMT == unix.S_IFDIR) ||
		!directory && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1) { // another hard link may be allowed
		f.Close()
		return nil
	}
	return f
}

// writeTarget opens the file that a pattern names, or the directory of a pattern that ends in
// /*.
func writeTarget(dir int, pattern string) *os.File {
	name, below := strings.CutSuffix(pattern, "/*")
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsAny(name, "*?") {
		return nil
	}
	return openInRoot(dir, name, below)
}

// programDirs are the directories searched for programs.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// execTargets opens the programs that a command line pattern denies regardless of arguments.
// Files with several names are skipped: another name may be allowed.
func execTargets(dir int, pattern string) []*os.File {
	word, always := strings.CutSuffix(pattern, " *")
	if !always || word == "" || strings.ContainsAny(word, "*? \t\n'\"\\$") {
		return nil
	}
	names := []string{word}
	if !strings.Contains(word, "/") {
		names = names[:0]
		for _, in := range programDirs {
			names = append(names, path.Join(in, word))
		}
	} else if !path.IsAbs(word) {
		return nil
	}
	var all []*os.File
	for _, name := range names {
		if f := openInRoot(dir, name, false); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// deniedPrefix returns the addresses that a pattern denies on all ports: one address
// ("10.0.0.1:*", "[fd00::1]:*") or a range ("10.0.*").
func deniedPrefix(pattern string) (netip.Prefix, bool) {
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

package jailinit

import (
	"bufio"
	"context"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"glasshouse/fault"
)

// maxAccounts bounds what is read of /etc/passwd and /etc/group, which are the
// jail's to write.
const maxAccounts = 4 << 20

// user is whom a command runs as.
type user struct {
	given  bool // somebody asked for it; otherwise init's own ids are kept
	uid    uint32
	gid    uint32
	groups []uint32
	name   string // empty if /etc/passwd does not know the uid
	home   string
}

// lookUp reads "name", "uid", "name:group" or "uid:gid" with the jail's own
// /etc/passwd and /etc/group. Empty is root.
func (in *Init) lookUp(spec string) (user, error) {
	if spec == "" {
		return user{uid: uint32(os.Getuid()), gid: uint32(os.Getgid())}, nil
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	u := user{given: true}
	uid, numeric := number(name)
	found := in.accounts("/etc/passwd", 7, func(f []string) bool {
		return f[0] == name || numeric && f[2] == name
	}, func(f []string) { u.fill(f) })
	switch {
	case !found && !numeric:
		return user{}, fault.Fieldf(opExec, "user", "%q is not in the jail's /etc/passwd", name)
	case !found:
		u.uid = uid
	}
	if !hasGroup {
		in.supplementary(&u)
		return u, nil
	}
	gid, numeric := number(group)
	found = in.accounts("/etc/group", 4, func(f []string) bool { return f[0] == group },
		func(f []string) { u.gid, _ = number(f[2]) })
	switch {
	case !found && !numeric:
		return user{}, fault.Fieldf(opExec, "user", "group %q is not in the jail's /etc/group", group)
	case !found:
		u.gid = gid
	}
	return u, nil
}

// fill takes a line of /etc/passwd.
func (u *user) fill(f []string) {
	u.name, u.home = f[0], f[5]
	u.uid, _ = number(f[2])
	u.gid, _ = number(f[3])
}

// supplementary adds the groups that list u as a member.
func (in *Init) supplementary(u *user) {
	if u.name == "" {
		return
	}
	in.accounts("/etc/group", 4, func(f []string) bool {
		if !slices.Contains(strings.Split(f[3], ","), u.name) {
			return false
		}
		if gid, ok := number(f[2]); ok && len(u.groups) < 1024 {
			u.groups = append(u.groups, gid)
		}
		return false // go on to the next line
	}, nil)
}

// accounts calls take with the fields of the first line that match likes.
// A file that cannot be read has no lines.
func (in *Init) accounts(path string, fields int, match func([]string) bool, take func([]string)) bool {
	f, _, err := in.files.Read(context.Background(), path, 0, maxAccounts)
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxAccounts))
	for lines.Scan() {
		line := strings.Split(lines.Text(), ":")
		if len(line) < fields || line[0] == "" {
			continue
		}
		if _, ok := number(line[2]); ok && match(line) {
			take(line)
			return true
		}
	}
	return false
}

func number(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1 // -1 means "leave as it is" to the kernel
}

// directory is where a command that was given dir runs.
func (u *user) directory(in *Init, dir string) string {
	switch {
	case dir == "":
		return "/"
	case !inHome(dir):
		return dir
	}
	u.known(in)
	return path.Join("/", u.home, dir[1:])
}

// known looks up whom nobody asked for: init's own user.
func (u *user) known(in *Init) {
	if u.given || u.home != "" {
		return
	}
	uid := strconv.Itoa(int(u.uid))
	in.accounts("/etc/passwd", 7, func(f []string) bool { return f[2] == uid },
		func(f []string) { u.name, u.home = f[0], f[5] })
}

// complete adds HOME and USER to an environment without them.
func (u user) complete(in *Init, env []string) []string {
	has := func(key string) bool {
		return slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, key) })
	}
	noHome, noUser := !has("HOME="), !has("USER=")
	if !noHome && !noUser {
		return env
	}
	u.known(in)
	env = slices.Clone(env)
	if noHome {
		home := u.home
		if home == "" {
			home = "/"
		}
		env = append(env, "HOME="+home)
	}
	if noUser && u.name != "" {
		env = append(env, "USER="+u.name)
	}
	return env
}

// credential is what the command changes to, or nil if it stays what init is.
func (u user) credential() *syscall.Credential {
	if !u.given {
		return nil
	}
	c := &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups, NoSetGroups: !maySetGroups()}
	if c.NoSetGroups && int(u.uid) == os.Getuid() && int(u.gid) == os.Getgid() {
		return nil
	}
	return c
}

// maySetGroups is false in a user namespace made without privilege.
func maySetGroups() bool {
	deny, err := os.ReadFile("/proc/self/setgroups")
	return err != nil || strings.TrimSpace(string(deny)) != "deny"
}

// own gives f to the user, so that opening it by name works as well.
func (u user) own(f *os.File) {
	if !u.given || int(u.uid) == os.Getuid() {
		return
	}
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { syscall.Fchown(int(fd), int(u.uid), -1) })
	}
}

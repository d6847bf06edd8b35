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

// maxAccounts bounds the bytes that are read of /etc/passwd and /etc/group, which the jail
// controls.
const maxAccounts = 4 << 20

// user is the user of a command.
type user struct {
	requested bool // named in the request; otherwise init's own ids are kept
	uid       uint32
	gid       uint32
	groups    []uint32
	name      string // empty if the uid is not in /etc/passwd
	home      string
}

// lookUp resolves "name", "uid", "name:group" or "uid:gid" with the jail's /etc/passwd and
// /etc/group. Empty is init's own user.
func (fs *fileService) lookUp(spec string) (user, error) {
	if spec == "" {
		return user{uid: uint32(os.Getuid()), gid: uint32(os.Getgid())}, nil
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	u := user{requested: true}
	uid, numeric := number(name)
	found := fs.accounts("/etc/passwd", 7, func(f []string) bool {
		return f[0] == name || numeric && f[2] == name
	}, func(f []string) { u.fill(f) })
	switch {
	case !found && !numeric:
		return user{}, fault.Fieldf(opExec, "user", "%q is not in the jail's /etc/passwd", name)
	case !found:
		u.uid = uid
	}
	if !hasGroup {
		fs.supplementary(&u)
		return u, nil
	}
	gid, numeric := number(group)
	found = fs.accounts("/etc/group", 4, func(f []string) bool { return f[0] == group },
		func(f []string) { u.gid, _ = number(f[2]) })
	switch {
	case !found && !numeric:
		return user{}, fault.Fieldf(opExec, "user", "group %q is not in the jail's /etc/group", group)
	case !found:
		u.gid = gid
	}
	return u, nil
}

// fill sets the fields from a line of /etc/passwd.
func (u *user) fill(f []string) {
	u.name, u.home = f[0], f[5]
	u.uid, _ = number(f[2])
	u.gid, _ = number(f[3])
}

// supplementary adds the groups that list u as a member.
func (fs *fileService) supplementary(u *user) {
	if u.name == "" {
		return
	}
	fs.accounts("/etc/group", 4, func(f []string) bool {
		if !slices.Contains(strings.Split(f[3], ","), u.name) {
			return false
		}
		if gid, ok := number(f[2]); ok && len(u.groups) < 1024 {
			u.groups = append(u.groups, gid)
		}
		return false // continue with the next line
	}, nil)
}

// accounts calls take with the fields of the first line for which match returns true. It
// reports whether it has found a line. A file that cannot be read has no lines.
func (fs *fileService) accounts(path string, fields int, match func([]string) bool, take func([]string)) bool {
	f, _, err := fs.root.Read(context.Background(), path, 0, maxAccounts)
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxAccounts))
	lines.Buffer(nil, maxAccounts) // a group can have many members; a Scanner ends at a longer line
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
	return uint32(n), err == nil && n != 1<<32-1 // chown(2): -1 means unchanged
}

// directory returns the working directory of a command that requested dir.
func (u *user) directory(fs *fileService, dir string) string {
	switch {
	case dir == "":
		return "/"
	case !inHome(dir):
		return dir
	}
	u.lookUpName(fs)
	return path.Join("/", u.home, dir[1:])
}

// lookUpName resolves the name and home of init's own user.
func (u *user) lookUpName(fs *fileService) {
	if u.requested || u.home != "" {
		return
	}
	uid := strconv.Itoa(int(u.uid))
	fs.accounts("/etc/passwd", 7, func(f []string) bool { return f[2] == uid },
		func(f []string) { u.name, u.home = f[0], f[5] })
}

// addHomeAndUser adds HOME and USER to an environment that lacks them.
func (u user) addHomeAndUser(fs *fileService, env []string) []string {
	has := func(key string) bool {
		return slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, key) })
	}
	noHome, noUser := !has("HOME="), !has("USER=")
	if !noHome && !noUser {
		return env
	}
	u.lookUpName(fs)
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

// credential returns the ids that the command switches to, or nil if it keeps those of init.
func (u user) credential() *syscall.Credential {
	if !u.requested {
		return nil
	}
	c := &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups, NoSetGroups: !maySetGroups()}
	if c.NoSetGroups && int(u.uid) == os.Getuid() && int(u.gid) == os.Getgid() {
		return nil
	}
	return c
}

// maySetGroups returns false in a user namespace that was created without privilege
// (user_namespaces(7)).
func maySetGroups() bool {
	deny, err := os.ReadFile("/proc/self/setgroups")
	return err != nil || strings.TrimSpace(string(deny)) != "deny"
}

// chown changes the owner of f to the user, so that it can be opened by name, for example as
// /dev/stdout.
func (u user) chown(f *os.File) {
	if !u.requested || int(u.uid) == os.Getuid() {
		return
	}
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { syscall.Fchown(int(fd), int(u.uid), -1) })
	}
}

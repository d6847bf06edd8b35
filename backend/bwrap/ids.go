package bwrap

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/jail"
)

// kind is whose ids a jail's are outside.
type kind int

const (
	asRoot      kind = iota // those of the jail's range
	subordinate             // the user's own and subordinate ones
	single                  // the user's own alone
)

// An identity is what ids this process can give to jails.
type identity struct {
	Kind     kind   `json:"kind"`
	UID, GID uint32 // our own
	SubUID   span   // of a subordinate identity
	SubGID   span
}

// A span is a block of ids.
type span struct{ First, Count uint32 }

func ownIdentity() (identity, error) {
	who := identity{Kind: single, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if who.UID == 0 {
		who.Kind = asRoot
		return who, nil
	}
	for _, helper := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(helper); err != nil {
			return who, nil
		}
	}
	u, err := user.LookupId(strconv.Itoa(int(who.UID)))
	if err != nil {
		return who, nil // the two refuse to work for a user without a name
	}
	names := []string{u.Uid, u.Username}
	if who.SubUID, err = findSpan("/etc/subuid", names); err != nil {
		return who, err
	}
	if who.SubGID, err = findSpan("/etc/subgid", names); err != nil {
		return who, err
	}
	if who.SubUID.Count > 0 && who.SubGID.Count > 0 {
		who.Kind = subordinate
	}
	return who, nil
}

// findSpan returns the largest block that file gives to one of the names, or an
// empty one.
func findSpan(file string, names []string) (span, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return span{}, nil
	}
	if err != nil {
		return span{}, fmt.Errorf("subordinate ids: %w", err)
	}
	defer f.Close()
	var best span
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		if s := parseSpan(scan.Text(), names); s.Count > best.Count {
			best = s
		}
	}
	return best, scan.Err()
}

// parseSpan reads "name:first:count", or returns an empty span for a line that
// is another's or says something else.
func parseSpan(line string, names []string) span {
	fields := strings.Split(strings.TrimSpace(line), ":")
	if len(fields) != 3 {
		return span{}
	}
	for _, name := range names {
		if fields[0] != name {
			continue
		}
		first, err1 := strconv.ParseUint(fields[1], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 32)
		if err1 != nil || err2 != nil || first == 0 || first+count > 1<<32-1 {
			return span{}
		}
		return span{uint32(first), uint32(count)}
	}
	return span{}
}

// mappings returns how the jail's ids map to the host's.
func (who identity) mappings(ids jail.IDRange) (uids, gids []syscall.SysProcIDMap) {
	m := func(inside, outside, count uint32) syscall.SysProcIDMap {
		return syscall.SysProcIDMap{ContainerID: int(inside), HostID: int(outside), Size: int(count)}
	}
	if who.Kind == asRoot {
		all := []syscall.SysProcIDMap{m(0, ids.First, ids.Count)}
		return all, all
	}
	uids, gids = append(uids, m(0, who.UID, 1)), append(gids, m(0, who.GID, 1))
	if who.Kind == subordinate {
		uids = append(uids, m(1, who.SubUID.First, min(who.SubUID.Count, ids.Count-1)))
		gids = append(gids, m(1, who.SubGID.First, min(who.SubGID.Count, ids.Count-1)))
	}
	return uids, gids
}

// start starts a stage in a new user namespace with the mapped ids, as its root,
// and in a new mount namespace.
func (who identity) start(cmd *exec.Cmd, ids jail.IDRange) error {
	uids, gids := who.mappings(ids)
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	if who.Kind != subordinate {
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = uids, gids
		if who.Kind == asRoot { // whom nothing maps: the stage takes the jail's root's ids
			cmd.SysProcAttr.GidMappingsEnableSetgroups = true
			cmd.SysProcAttr.Credential = &syscall.Credential{}
		}
		return cmd.Start()
	}
	// Only newuidmap may map other ids than our own, and only those of a
	// process that is there. Until it has, the stage is nobody, and an exec by
	// nobody keeps only ambient capabilities.
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if kept, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && kept == 1 {
			cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, c)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	defer r.Close()
	for len(cmd.ExtraFiles) < fdMapped-3 {
		cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, r)
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := writeMaps(cmd.Process.Pid, uids, gids); err != nil {
		return err // and the stage reads the end of the pipe
	}
	_, err = w.Write([]byte{1})
	return err
}

// settle makes a stage root of the user namespace it was started in.
func (who identity) settle() error {
	if who.Kind != subordinate {
		return nil
	}
	if n, err := unix.Read(fdMapped, make([]byte, 1)); n != 1 {
		return fmt.Errorf("no ids were mapped: %w", err)
	}
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return fmt.Errorf("setgid: %w", err)
	}
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		return fmt.Errorf("setuid: %w", err)
	}
	return nil
}

// writeMaps maps the ids of a process in a new user namespace with the help of
// the two setuid programs that check /etc/subuid and /etc/subgid.
func writeMaps(pid int, uids, gids []syscall.SysProcIDMap) error {
	for helper, maps := range map[string][]syscall.SysProcIDMap{"newuidmap": uids, "newgidmap": gids} {
		args := []string{strconv.Itoa(pid)}
		for _, m := range maps {
			args = append(args, strconv.Itoa(m.ContainerID), strconv.Itoa(m.HostID), strconv.Itoa(m.Size))
		}
		if out, err := exec.Command(helper, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", helper, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// uncountable says why the kernel cannot hold a jail's number of processes by
// its limit for users, or returns "" if it can. Since Linux 5.14 that limit
// counts a user of a user namespace by itself, which for a jail with a single
// id is the jail.
func (who identity) uncountable() string {
	if who.Kind != single {
		return "the limit for users holds each id of the jail by itself, not the jail"
	}
	var u unix.Utsname
	var major, minor int
	unix.Uname(&u)
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	if major < 5 || major == 5 && minor < 14 {
		return "before Linux 5.14 the limit for users counts all their processes, not those of a jail"
	}
	return ""
}

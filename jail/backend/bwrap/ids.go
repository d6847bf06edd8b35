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

	"glasshouse/internal/fork"
	"glasshouse/jail"
)

// kind selects the ids of a jail on the host.
type kind int

const (
	asRoot      kind = iota // the jail's range of ids
	subordinate             // the user's id and its subordinate ids
	single                  // only the user's id
)

// An identity describes the ids that this process can give to jails.
type identity struct {
	Kind     kind   `json:"kind"`
	UID, GID uint32 // effective ids of this process
	SubUID   span   // set if Kind is subordinate
	SubGID   span
}

// A span is a range of ids.
type span struct{ First, Count uint32 }

func currentIdentity() (identity, error) {
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
		return who, nil // the helpers fail for a user without a name
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

// findSpan returns the largest range that file assigns to one of the names, or an empty range.
func findSpan(file string, names []string) (span, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return span{}, nil
	}
	if err != nil {
		return span{}, fmt.Errorf("read subordinate ids: %w", err)
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

// parseSpan parses "name:first:count" (subuid(5)). It returns an empty span for an invalid
// line or another name.
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

// mappings returns the id maps of the jail's user namespace.
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

// start starts a stage as root of a new user namespace with the mapped ids, and in a new mount
// namespace.
func (who identity) start(cmd *exec.Cmd, ids jail.IDRange) error {
	uids, gids := who.mappings(ids)
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	if who.Kind != subordinate {
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = uids, gids
		if who.Kind == asRoot { // root of the host is not mapped, so the stage switches to root of the jail
			cmd.SysProcAttr.GidMappingsEnableSetgroups = true
			cmd.SysProcAttr.Credential = &syscall.Credential{}
		}
		return fork.StartMapped(cmd)
	}
	// Only newuidmap(1) can map ids other than our own, and only for an existing process.
	// Until then the stage has the overflow id, and an exec keeps only ambient capabilities
	// (capabilities(7)).
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if kept, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && kept == 1 {
			cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, c)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make the pipe of the id map: %w", err)
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
		return err // the stage then reads end of file
	}
	if _, err := w.Write([]byte{1}); err != nil {
		return fmt.Errorf("report the id map to the stage: %w", err)
	}
	return nil
}

// becomeRoot makes a stage root of its user namespace after the ids have been mapped.
func (who identity) becomeRoot() error {
	if who.Kind != subordinate {
		return nil
	}
	if n, err := unix.Read(fdMapped, make([]byte, 1)); n != 1 {
		return fmt.Errorf("wait for the id map: %w", err)
	}
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return fmt.Errorf("setgid: %w", err)
	}
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		return fmt.Errorf("setuid: %w", err)
	}
	return nil
}

// writeMaps maps the ids of a process in a new user namespace with the setuid programs
// newuidmap and newgidmap, which check /etc/subuid and /etc/subgid.
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

// whyNoPIDLimit returns why RLIMIT_NPROC cannot limit the number of a jail's processes, or ""
// if it can. Since Linux 5.14 the limit counts processes per user and user namespace
// (kernel/ucount.c). For a jail with a single id that is the whole jail.
func (who identity) whyNoPIDLimit() string {
	if who.Kind != single {
		return "the per-user limit applies to each id of the jail separately, not to the jail"
	}
	var u unix.Utsname
	var major, minor int
	unix.Uname(&u)
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	if major < 5 || major == 5 && minor < 14 {
		return "before Linux 5.14 the per-user limit counts all processes of the user, not those of a jail"
	}
	return ""
}

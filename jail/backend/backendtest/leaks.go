package backendtest

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/jail"
)

// Leaks returns resources that the host still holds for a cleaned jail: processes, mounts, loop
// devices, cgroups, network namespaces and links. It ignores other jails of this host, including
// those of other tests.
func Leaks(p jail.Plan) []string {
	var leaks []string
	for _, find := range finders {
		leaks = append(leaks, find(p)...)
	}
	return leaks
}

// finders find leftovers of a jail, the slowest last.
var finders = []func(jail.Plan) []string{mountsOf, netnsOf, loopsOf, linksOf, cgroupsOf, processesOf}

func mustNotLeak(t *testing.T, p jail.Plan) {
	t.Helper()
	if leaks := LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
		t.Errorf("resources of jail %s left on the host:\n\t%s", p.ID, strings.Join(leaks, "\n\t"))
	}
}

// LeaksAfter returns resources that the host holds for a jail for longer than some time. A
// process that has left its cgroup may take a moment to exit.
func LeaksAfter(p jail.Plan, some time.Duration) []string {
	end := time.Now().Add(some)
	for pause := 10 * time.Millisecond; time.Now().Before(end); pause = min(2*pause, 200*time.Millisecond) {
		if !slices.ContainsFunc(finders, func(find func(jail.Plan) []string) bool { return len(find(p)) > 0 }) {
			return nil
		}
		time.Sleep(pause)
	}
	return Leaks(p)
}

// processesOf returns the jail's processes on the host: those with one of its ids, with its name
// in their arguments, in a cgroup of its name, or with its directory mounted.
func processesOf(p jail.Plan) []string {
	ours, _ := os.Readlink("/proc/self/ns/mnt")
	mounted := map[string]bool{ours: false} // whether a mount namespace has the jail's directory mounted
	return processes(func(dir string, status []byte) bool {
		return isProcessOf(dir, status, p) || seesMounts(dir, mounted, p) && !isForeign(status)
	})
}

// processes describes the host's processes for which which returns true. It skips zombies, which
// hold no resources, and kernel threads.
func processes(which func(dir string, status []byte) bool) []string {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	var found []string
	for _, pid := range names {
		if pid[0] < '1' || pid[0] > '9' || pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		dir := "/proc/" + pid
		status := readProc(dir, "status")
		if len(status) > 0 && field(status, "PPid") != "2" && !strings.HasPrefix(field(status, "State"), "Z") && which(dir, status) {
			found = append(found, describe(dir))
		}
	}
	return found
}

func isProcessOf(dir string, status []byte, p jail.Plan) bool {
	for uid := range strings.FieldsSeq(field(status, "Uid")) {
		n, err := strconv.ParseUint(uid, 10, 32)
		if err == nil && uint32(n)-p.IDs.First < p.IDs.Count {
			return true
		}
	}
	name := []byte(p.ID)
	if bytes.Contains(readProc(dir, "cmdline"), name) && !isTest(dir) {
		return true
	}
	return bytes.Contains(readProc(dir, "cgroup"), name)
}

// seesMounts reports whether a process has the jail's directory mounted, in a mount namespace
// for which mounted is not false.
func seesMounts(dir string, mounted map[string]bool, p jail.Plan) bool {
	namespace, err := os.Readlink(dir + "/ns/mnt")
	if err != nil {
		return false
	}
	sees, known := mounted[namespace]
	if !known {
		mountinfo := readProc(dir, "mountinfo")
		sees = bytes.Contains(mountinfo, []byte(p.ID))
		if len(mountinfo) > 0 { // the process has not exited in the meantime
			mounted[namespace] = sees
		}
	}
	return sees
}

// isForeign reports whether a process is a child of an unrelated process. If it has its own
// mount namespace, the jail's mounts in it are copies of the host's.
func isForeign(status []byte) bool {
	for {
		parent := field(status, "PPid")
		if parent == strconv.Itoa(os.Getpid()) {
			return false
		}
		if parent == "1" || parent == "0" || parent == "" {
			break
		}
		dir := "/proc/" + parent
		if exe, _ := os.Readlink(filepath.Join(dir, "exe")); strings.HasSuffix(exe, ".test") || strings.HasSuffix(exe, "/go") {
			return true
		}
		status = readProc(dir, "status")
	}
	return false
}

// isTest reports whether a process is a child of the suite that has the jail's name in its
// arguments but does not belong to it.
func isTest(dir string) bool {
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	self, _ := os.Executable()
	return err == nil && exe == self && bytes.Contains(readProc(dir, "cmdline"), []byte("-test."))
}

func describe(dir string) string {
	cmdline := strings.TrimSpace(strings.ReplaceAll(string(readProc(dir, "cmdline")), "\x00", " "))
	if len(cmdline) > 120 {
		cmdline = cmdline[:120] + "…"
	}
	return fmt.Sprintf("process %s (%s) %s", filepath.Base(dir), field(readProc(dir, "status"), "State"), cmdline)
}

func mountsOf(p jail.Plan) []string {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, string(p.ID)) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found
}

func loopsOf(p jail.Plan) []string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var found []string
	for _, f := range files {
		if image, _ := os.ReadFile(f); bytes.Contains(image, []byte(p.ID)) {
			found = append(found, fmt.Sprintf("loop device %s of %s", strings.Split(f, "/")[3], bytes.TrimSpace(image)))
		}
	}
	return found
}

func cgroupsOf(p jail.Plan) []string {
	var found []string
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return nil // already gone, or not readable
		case strings.Contains(d.Name(), string(p.ID)):
			found = append(found, "cgroup "+path)
			return fs.SkipDir
		}
		return nil
	})
	return found
}

func netnsOf(p jail.Plan) []string {
	found, _ := filepath.Glob("/run/netns/*" + string(p.ID) + "*")
	for i, name := range found {
		found[i] = "network namespace " + name
	}
	return found
}

// linksOf returns the host's links named after the jail. A link's name has room only for the
// distinct part of the jail's name.
func linksOf(p jail.Plan) []string {
	links, _ := net.Interfaces()
	var found []string
	for _, l := range links {
		alias, _ := os.ReadFile(filepath.Join("/sys/class/net", l.Name, "ifalias"))
		if strings.Contains(l.Name, string(p.ID[2:10])) || bytes.Contains(alias, []byte(p.ID)) {
			found = append(found, "link "+l.Name)
		}
	}
	return found
}

func readProc(dir, name string) []byte {
	b, _ := os.ReadFile(filepath.Join(dir, name)) // a process may exit while it is read
	return b
}

// field returns the value of a line of /proc/PID/status.
func field(status []byte, name string) string {
	_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	return string(bytes.TrimSpace(value))
}

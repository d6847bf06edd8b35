package interpreter

import (
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inBranch changes the host name, as a branch of the sandbox does before its
// processes run.
const inBranch = "import socket; socket.sethostname('branch')"

// startedAlone is served with a host name of its own.
func startedAlone(t *testing.T) (url string) {
	t.Helper()
	url, _ = startedWith(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUTS | unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: syscall.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: syscall.Getgid(), Size: 1}},
		}
	})
	return url
}

func TestGeneratorsAreSeededAgainInABranch(t *testing.T) {
	url := startedAlone(t)
	for _, step := range []struct{ language, code, want string }{
		// The state is set without the functions that mean that code wants this state.
		{"python", "import random; state = random.getstate(); first = random.random(); random._inst.setstate(state)", ""},
		{"python", "random.random() == first", "result True"},
		{"python", "random._inst.setstate(state); " + inBranch, ""},
		{"python", "random.random() == first", "result False"},
		{"python", "random._inst.setstate(state)", ""},
		{"python", "random.random() == first", "result True"}, // once in a branch

		// What code seeds with a value it wants to repeat.
		{"python", "random.seed(7); socket.sethostname('another')", ""},
		{"python", "random.random() == random.Random(7).random()", "result True"},
		{"python", "random.seed(); random._inst.setstate(state); socket.sethostname('third')", ""},
		{"python", "random.random() == first", "result False"},

		{"bash", "RANDOM=5; echo $RANDOM >first; RANDOM=5", ""},
		{"bash", "[ $RANDOM = $(cat first) ] && echo equal; RANDOM=5", "stdout equal\n"},
		{"python", "socket.sethostname('fourth')", ""},
		{"bash", "[ $RANDOM = $(cat first) ] || echo different", "stdout different\n"},

		{"javascript", "const first = Math.random; first === Math.random", "result true"},
		{"python", "socket.sethostname('fifth')", ""},
		{"javascript", "first === Math.random", "result false"},
		{"javascript", "const a = Array.from({length: 1000}, Math.random); a.every((x) => 0 <= x && x < 1) && new Set(a).size", "result 1000"},
	} {
		if step.language == "javascript" {
			if _, err := exec.LookPath("node"); err != nil {
				continue
			}
		}
		if got := executedIn(t, url, step.language, step.code); got != step.want {
			t.Errorf("%s: %s says %q, want %q", step.language, step.code, got, step.want)
		}
	}
}

package interpreter

import (
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inBranch changes the host name, as a branch of the sandbox does before its processes run.
const inBranch = "import socket; socket.sethostname('branch')"

// noticed writes the branch notice file. The host name does not change.
const noticed = `import os; os.makedirs("/run/glasshouse", exist_ok=True); open("/run/glasshouse/branch.json", "wb").write(b'{"seed": "%s"}' % os.urandom(32).hex().encode()) and None`

// startedAlone starts the interpreter with its own host name and its own /run.
func startedAlone(t *testing.T) (url string) {
	t.Helper()
	url, _ = startedWith(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUTS | unix.CLONE_NEWNS | unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: syscall.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: syscall.Getgid(), Size: 1}},
		}
	})
	if got := executed(t, url, "import subprocess; subprocess.run(['mount', '-t', 'tmpfs', 'run', '/run']).returncode"); got != "result 0" {
		t.Fatalf("mount /run: %s", got)
	}
	return url
}

func TestGeneratorsAreReseededInBranch(t *testing.T) {
	url := startedAlone(t)
	for _, step := range []step{
		// The state is set without the functions by which code requests a certain state.
		{"python", "import random; state = random.getstate(); first = random.random(); random._inst.setstate(state)", ""},
		{"python", "random.random() == first", "result True"},
		{"python", "random._inst.setstate(state); " + inBranch, ""},
		{"python", "random.random() == first", "result False"},
		{"python", "random._inst.setstate(state)", ""},
		{"python", "random.random() == first", "result True"}, // seeded once per branch

		// A branch with the same host name, and a branch of that branch.
		{"python", "random._inst.setstate(state); " + noticed, ""},
		{"python", "random.random() == first", "result False"},
		{"python", "random._inst.setstate(state); " + noticed, ""},
		{"python", "random.random() == first", "result False"},
		{"python", "random._inst.setstate(state)", ""},
		{"python", "random.random() == first", "result True"},

		// OpenSSL gets new entropy once per branch.
		{"python", "import ssl; added = []; ssl.RAND_add = lambda b, n: added.append((len(set(b)) > 8, n)); " + noticed, ""},
		{"python", "added", "result [(True, 32)]"},
		{"python", "added", "result [(True, 32)]"},

		// A package that looks like numpy.
		{"python", `import os, sys; os.mkdir("numpy"); open("numpy/__init__.py", "w").close(); open("numpy/random.py", "w").write("seeds = 0\ndef seed(v=None):\n    global seeds; seeds += 1\n") and None`, ""},
		{"python", "import numpy.random; numpy.random.seeds", "result 0"},
		{"python", noticed, ""},
		{"python", "numpy.random.seeds", "result 1"},
		{"python", "numpy.random.seed(3); " + noticed, ""},
		{"python", "numpy.random.seeds", "result 2"},

		// A generator that code has seeded with a value keeps its state.
		{"python", "random.seed(7); socket.sethostname('another')", ""},
		{"python", "random.random() == random.Random(7).random()", "result True"},
		{"python", "random.seed(); random._inst.setstate(state); socket.sethostname('third')", ""},
		{"python", "random.random() == first", "result False"},

		{"bash", "RANDOM=5; echo $RANDOM >first; RANDOM=5", ""},
		{"bash", "[ $RANDOM = $(cat first) ] && echo equal; RANDOM=5", "stdout equal\n"},
		{"python", "socket.sethostname('fourth')", ""},
		{"bash", "[ $RANDOM = $(cat first) ] || echo different; RANDOM=5", "stdout different\n"},
		{"python", noticed, ""},
		{"bash", "[ $RANDOM = $(cat first) ] || echo different; RANDOM=5", "stdout different\n"},
		{"bash", "[ $RANDOM = $(cat first) ] && echo equal", "stdout equal\n"},
		// A shell without SRANDOM, before bash 5.1. With an empty value, RANDOM would be seeded
		// with 0.
		{"bash", "unset SRANDOM; RANDOM=; echo $RANDOM >first", ""},
		{"python", noticed, ""},
		{"bash", "[ $RANDOM = $(cat first) ] || echo different", "stdout different\n"},
	} {
		step.run(t, url)
	}
}

// OpenSSL is replaced by constants, as if all branches drew the same numbers from it.
func TestNodeUsesKernelRandomnessInBranch(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed")
	}
	const numbers = `
const crypto = require('crypto'), { webcrypto } = crypto
const draws = () => [Math.random() * 2 ** 48, crypto.randomInt(2 ** 40), crypto.randomBytes(16).toString('hex'), crypto.randomUUID(), webcrypto.randomUUID(), webcrypto.getRandomValues(new Uint32Array(4)).join()].map(String)
const four = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/
Math.random = () => 0.5
crypto.randomBytes = crypto.randomUUID = webcrypto.randomUUID = webcrypto.getRandomValues = () => [0]
null`
	url := startedAlone(t)
	for _, step := range []step{
		{"javascript", numbers, "result null"},
		{"javascript", "Math.random()", "result 0.5"},
		{"javascript", "const fs = require('fs'), branch = 1, path = 2; branch", "result 1"}, // these names are the cells'
		{"python", noticed, ""},
		{"javascript", "const a = draws(); four.test(a[3]) && four.test(a[4])", "result true"},
		{"javascript", "const b = draws(); new Set(a.concat(b)).size", "result 12"},
		{"javascript", "const some = Array.from({length: 2000}, Math.random); some.every((x) => 0 <= x && x < 1) && new Set(some).size", "result 2000"},
		{"javascript", "const dice = Array.from({length: 600}, () => crypto.randomInt(1, 7)); [...new Set(dice)].sort().join()", "result 1,2,3,4,5,6"},
		{"javascript", "await new Promise((done) => crypto.randomInt(5, 6, (e, n) => done([e, n])))", "result [ null, 5 ]"},
		{"javascript", "await new Promise((done) => crypto.randomBytes(3, (e, b) => done([e, b.length])))", "result [ null, 3 ]"},
		{"javascript", "crypto.randomInt(6, 5)", "RangeError"},
		{"javascript", "crypto.randomInt('a')", "TypeError"},
		{"javascript", "const r = Math.random; 1", "result 1"},
		{"javascript", "r === Math.random", "result true"}, // replaced once per branch
		{"python", noticed, ""},
		{"javascript", "r === Math.random", "result false"}, // numbers that r has drawn ahead are replaced in this branch too
	} {
		step.run(t, url)
	}
}

// A step is code of a language and its expected output.
type step struct{ language, code, want string }

func (s step) run(t *testing.T, url string) {
	t.Helper()
	if got := executedIn(t, url, s.language, s.code); got != s.want {
		t.Errorf("%s: output of %s = %q, want %q", s.language, s.code, got, s.want)
	}
}

// Command testrun runs tests in parallel and prints their events as go test -json does,
// for gotestsum.
//
//	testrun [-jobs N] [-dir DIR] [-built DIR] [-host PATTERN] [-short] [-skip PATTERN] [-results DIR -state TEXT] [-compile] PACKAGE...
//
// With -compile it only compiles. Packages that do not match PATTERN are tested by go test, which
// caches their results. Each of the others is tested by one process, or by several processes with
// a few tests each if it is listed in split. If testrun runs as root, each process has its own
// mount namespace, so that a package does not see, hold or count the mounts of another. Programs
// that most packages need are built once, into a directory that tests find by
// GLASSHOUSE_BACKENDTEST_BIN. Temporary files are below -dir, which scripts/leaks.sh checks
// afterwards. The file times in -dir has a line for each process: seconds of CPU time, elapsed
// seconds, package, tests.
//
// Programs are built in -built (default: -dir). Programs of an earlier run that are up to date
// are not linked again. Their paths do not change, because cached test results depend on the
// paths.
//
// With -results, a process is not run if the directory has the events of one that passed with the
// same tests, programs, files of the module and state. New events are written to the directory
// results in -dir, so that the caller can discard them if the tests have left something behind.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// split is the maximum number of tests per process, for packages that take minutes. A panic ends
// only the process in which it happens.
var split = map[string]int{
	"glasshouse/test":                     4,
	"glasshouse/jail/snapshot":            6,
	"glasshouse/agents/agent/spawn":       4,
	"glasshouse/jail/backend/bwrap":       100, // one process, which is started early
	"glasshouse/jail/init":                100,
	"glasshouse/jail/backend/oci":         1,
	"glasshouse/jail/backend/microvm":     8, // each process makes a template of its own
	"glasshouse/capability/engine/jailed": 6,
	"glasshouse/policy/enforce":           8,
	"glasshouse/observe/kernel":           8,
	"glasshouse/observe/network":          10,
	"glasshouse/observe/gvisor":           10,
	"glasshouse/observe/ptrace":           12,
}

// programs are built once, for tests that look them up with backendtest.Find.
var programs = []string{"./cmd/glasshouse", "./cmd/glasshouse-init", "./cmd/glasshouse-agent", "./cmd/glasshouse-guest", "./jail/backend/microvm/fcshim", "./jail/backend/microvm/testguest", "./jail/backend/backendtest/probe",
	"./test/attack", "./test/escape", "./test/talker"}

// A job is one process of tests.
type job struct {
	pkg, dir, bin string
	run           string // pattern; "" is all
	key           string // names the file with its events; "" if they are not kept
	past          []byte // events of an earlier process with the same key

	// Of the process and its waited-for children, set when it has ended.
	processor, elapsed time.Duration
}

func main() {
	jobs := flag.Int("jobs", 4, "processes of tests at a time")
	dir := flag.String("dir", "", "directory for programs and temporary files")
	kept := flag.String("built", "", "directory for programs, which later runs can use again (default: -dir)")
	host := flag.String("host", "", "regular expression of the packages that are not tested by go test")
	results := flag.String("results", "", "directory with the events of processes that passed (default: run all)")
	state := flag.String("state", "", "text that changes whenever the host changes, for -results")
	short := flag.Bool("short", false, "pass -short to the tests")
	skip := flag.String("skip", "", "pass -skip to the tests")
	only := flag.Bool("compile", false, "compile the tests and do not run them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Descriptors that this process has inherited belong to mounts outside of the
	// namespaces of tests, and CRIU refuses to dump a process that has one.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, "testrun: inherited descriptors stay open in tests:", err)
	}
	own, err := regexp.Compile(*host)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(2)
	}
	r := runner{dir: *dir, kept: cmp.Or(*kept, *dir), results: *results, state: *state, workers: *jobs, host: own, only: *only}
	if *short {
		r.flags = append(r.flags, "-test.short")
	}
	if *skip != "" {
		r.flags = append(r.flags, "-test.skip="+*skip)
	}
	ok, err := r.run(ctx, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// A runner has the options.
type runner struct {
	dir, kept, results, state string
	workers                   int
	host                      *regexp.Regexp
	only                      bool
	flags                     []string // of tests
}

func (r *runner) run(ctx context.Context, patterns []string) (ok bool, err error) {
	if r.dir == "" {
		return false, errors.New("-dir is missing")
	}
	built := filepath.Join(r.kept, "bin")
	for _, d := range []string{r.dir, r.kept, built} {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o755)); err != nil { // users of jails run programs from it
			return false, err
		}
	}
	if err := goTool(ctx, nil, append([]string{"build", "-trimpath", "-o", built + "/"}, programs...)...); err != nil {
		return false, err
	}
	all, err := list(ctx, patterns)
	if err != nil {
		return false, err
	}
	sink := &sink{w: bufio.NewWriter(os.Stdout), failed: map[string]bool{}, run: map[string]bool{}}
	var cached []string
	all = slices.DeleteFunc(all, func(j *job) bool {
		if r.host.MatchString(j.pkg) {
			return false
		}
		cached = append(cached, j.pkg)
		return true
	})
	ctx, cancel := context.WithCancel(ctx)
	var left sync.WaitGroup
	defer left.Wait()
	defer cancel()
	if len(cached) > 0 && !r.only {
		left.Go(func() { goTest(ctx, slices.Concat(r.flags, cached), built, sink) })
	}
	if err := compile(ctx, filepath.Join(r.kept, "tests"), all); err != nil {
		return false, err
	}
	if r.only {
		return true, nil
	}
	queue, err := plan(all)
	if err != nil {
		return false, err
	}
	if r.results != "" {
		if err := r.recall(ctx, built, queue); err != nil {
			return false, err
		}
	}
	r.work(ctx, built, queue, sink)
	left.Wait()
	return ctx.Err() == nil && !sink.anyFailed(), nil
}

// goTest runs packages with go test, which caches results as long as the files and the
// environment variables that the tests read do not change. The variable with the directory of the
// programs differs in each run, so it is not set.
func goTest(ctx context.Context, flagsAndPackages []string, bin string, to *sink) {
	args := append([]string{"go", "test", "-json", "-vet=off", "-ldflags=-w", "-p=2", "-timeout=20m"}, flagsAndPackages...)
	cmd := exec.CommandContext(ctx, "env", isolated(args...)...)
	cmd.Env = append(os.Environ(), "GLASSHOUSE_BACKENDTEST_BIN="+bin)
	if err := stream(cmd, to.pass); err != nil {
		fmt.Fprintln(os.Stderr, "testrun: go test:", err)
		to.fail("go test")
	}
}

// isolated returns the arguments for env(1) that run a command with default signal handlers and,
// as root, in its own mount namespace.
func isolated(command ...string) []string {
	// test2json ignores SIGINT and SIGQUIT, and its children inherit that (execve(2)):
	// a program that a test interrupts would not end.
	args := []string{"--default-signal=INT,QUIT"}
	if os.Geteuid() == 0 {
		args = append(args, "unshare", "--mount", "--propagation", "private")
	}
	return append(args, command...)
}

// stream runs a command and calls each with the lines of its standard output. When the
// command's context ends, so do the processes it has started.
func stream(cmd *exec.Cmd, each func(line []byte)) error {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadBytes('\n')
		each(line)
		if err != nil {
			return cmd.Wait()
		}
	}
}

// list returns the packages that have tests.
func list(ctx context.Context, patterns []string) ([]*job, error) {
	var out strings.Builder
	args := append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"}, patterns...)
	if err := goTool(ctx, &out, args...); err != nil {
		return nil, err
	}
	var all []*job
	for line := range strings.Lines(out.String()) {
		if pkg, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			all = append(all, &job{pkg: pkg, dir: dir})
		}
	}
	return all, nil
}

// compile builds the tests. One go test -c builds several packages, but names the
// programs by the last element of their paths, which must be unique in each.
func compile(ctx context.Context, dir string, all []*job) error {
	var groups []map[string]*job
	for _, j := range all {
		name := filepath.Base(j.dir)
		i := slices.IndexFunc(groups, func(g map[string]*job) bool { return g[name] == nil })
		if i < 0 {
			i, groups = len(groups), append(groups, map[string]*job{})
		}
		groups[i][name] = j
	}
	for i, g := range groups {
		into := filepath.Join(dir, strconv.Itoa(i)) + "/"
		args := []string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", into} // without debug information, which takes the linker long
		for name, j := range g {
			j.bin = filepath.Join(into, name+".test")
			args = append(args, j.pkg)
		}
		if err := os.MkdirAll(into, 0o755); err != nil {
			return err
		}
		if err := goTool(ctx, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// plan returns the processes to run. Those of split packages come first, because they take the
// longest in total. They take turns, so that processes of one package, which need the same part of
// the machine, seldom run at the same time.
func plan(all []*job) ([]*job, error) {
	var queue []*job
	turns := map[*job]int{} // 0 is a package with one process
	for _, j := range all {
		n := split[j.pkg]
		if n == 0 {
			queue = append(queue, j)
			continue
		}
		cmd := exec.Command(j.bin, "-test.list", ".")
		cmd.Dir = j.dir
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list the tests of %s: %w", j.pkg, err)
		}
		var names []string
		for name := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example") {
				names = append(names, name)
			}
		}
		turn := 0
		for chunk := range slices.Chunk(names, n) {
			part := *j
			part.run = "^(" + strings.Join(chunk, "|") + ")$"
			turn++
			turns[&part] = turn
			queue = append(queue, &part)
		}
	}
	slices.SortStableFunc(queue, func(a, b *job) int {
		return cmp.Or(cmp.Compare(min(1, turns[b]), min(1, turns[a])), cmp.Compare(turns[a], turns[b]))
	})
	return queue, nil
}

// recall sets the keys of jobs, and the events of those that have passed before.
func (r *runner) recall(ctx context.Context, built string, queue []*job) error {
	if err := os.MkdirAll(filepath.Join(r.dir, "results"), 0o755); err != nil {
		return err
	}
	var tracked strings.Builder
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Stdout, cmd.Stderr = &tracked, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("list the files of the module: %w", err)
	}
	// Go code is part of the programs, except for that of testdata.
	files := map[bool]hash.Hash{false: sha256.New(), true: sha256.New()}
	for name := range strings.SplitSeq(strings.TrimSuffix(tracked.String(), "\x00"), "\x00") {
		if strings.HasSuffix(name, ".go") && !strings.Contains(name, "testdata/") {
			continue
		}
		sum, err := digest(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for all, h := range files {
			if all || !endToEnd.MatchString(name) {
				fmt.Fprintf(h, "%s %s\n", name, sum)
			}
		}
	}
	common := sha256.New()
	fmt.Fprintln(common, r.state, r.flags)
	for _, p := range programs {
		sum, err := digest(filepath.Join(built, filepath.Base(p)))
		if err != nil {
			return err
		}
		fmt.Fprintln(common, p, sum)
	}
	tests := map[string]string{} // digests by path
	for _, j := range queue {
		if tests[j.bin] == "" {
			sum, err := digest(j.bin)
			if err != nil {
				return err
			}
			tests[j.bin] = sum
		}
		read := files[j.pkg == "glasshouse/test"]
		j.key = fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%x %x %s %s %s", common.Sum(nil), read.Sum(nil), j.pkg, tests[j.bin], j.run)))
		past, err := os.ReadFile(filepath.Join(r.results, j.key))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		j.past = past
	}
	return nil
}

// endToEnd matches files that only tests in the directory test read.
var endToEnd = regexp.MustCompile(`^(test/|web/|sdk/|examples/|docs/(how-to|tutorials|concepts|project|images)/|[A-Z]+\.md$)`)

// digest returns the SHA-256 of a file, or of the target of a symbolic link.
func digest(path string) (string, error) {
	h := sha256.New()
	if to, err := os.Readlink(path); err == nil {
		fmt.Fprintln(h, "link to", to)
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// work runs the queue.
func (r *runner) work(ctx context.Context, built string, queue []*job, sink *sink) {
	next := make(chan int)
	go func() {
		defer close(next)
		for i := range queue {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	}()
	parts := map[string]int{}
	for _, j := range queue {
		parts[j.pkg]++
	}
	sink.expect(parts)
	var wg sync.WaitGroup
	for range r.workers {
		wg.Go(func() {
			for i := range next {
				j := queue[i]
				sink.end(j, r.test(ctx, j, filepath.Join(r.dir, strconv.Itoa(i)), built, sink))
			}
		})
	}
	wg.Wait()
	var times strings.Builder
	for _, j := range queue {
		fmt.Fprintf(&times, "%.1f\t%.1f\t%s\t%s\n", j.processor.Seconds(), j.elapsed.Seconds(), j.pkg, j.run)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "times"), []byte(times.String()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
}

// test runs one process, unless there are events of an earlier one, and copies its events.
func (r *runner) test(ctx context.Context, j *job, tmp, bin string, to *sink) error {
	if j.past != nil {
		for line := range bytes.Lines(j.past) {
			to.event(line)
		}
		return nil
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	args := []string{"tool", "test2json", "-t", "-p", j.pkg, "env"}
	args = append(args, isolated(j.bin, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=20m")...)
	args = append(args, r.flags...)
	if j.run != "" {
		args = append(args, "-test.run="+j.run)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = j.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "GLASSHOUSE_BACKENDTEST_BIN="+bin)
	began := time.Now()
	var events bytes.Buffer
	err := stream(cmd, func(line []byte) {
		events.Write(line)
		to.event(line)
	})
	if cmd.ProcessState != nil {
		j.processor = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	j.elapsed = time.Since(began)
	if err != nil || j.key == "" {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "results", j.key), events.Bytes(), 0o644)
}

// A sink prints the events of many processes as if each package had been tested by one process.
type sink struct {
	mu sync.Mutex
	// +checklocks:mu
	w *bufio.Writer
	// +checklocks:mu
	failed map[string]bool // packages
	// +checklocks:mu
	parts map[string]int // processes that have not ended, by package
	// +checklocks:mu
	run map[string]bool // packages with a process that has run
}

type event struct {
	Action, Package, Test string
}

func (s *sink) expect(parts map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts = parts
}

func (s *sink) fail(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[what] = true
}

func (s *sink) anyFailed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failed) > 0
}

// pass prints a line unchanged.
func (s *sink) pass(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.Write(line)
	s.w.Flush()
}

// event prints an event, except for the end of a package, which the method end prints.
func (s *sink) event(line []byte) {
	var e event
	if len(line) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := json.Unmarshal(line, &e)
	if err == nil && e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
		return
	}
	if err == nil && e.Action == "fail" {
		s.failed[e.Package] = true
	}
	s.w.Write(line)
	s.w.Flush()
}

// end records the end of a process, and prints the end of its package after the last process.
func (s *sink) end(j *job, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed[j.pkg] = true
		s.write(map[string]any{"Action": "output", "Package": j.pkg, "Output": fmt.Sprintf("FAIL %s %s: %v\n", j.pkg, j.run, err)})
	}
	s.run[j.pkg] = s.run[j.pkg] || j.past == nil
	s.parts[j.pkg]--
	if s.parts[j.pkg] > 0 {
		return
	}
	action := "pass"
	if s.failed[j.pkg] {
		action = "fail"
	}
	if !s.run[j.pkg] { // as go test prints it
		s.write(map[string]any{"Action": "output", "Package": j.pkg, "Output": "ok  \t" + j.pkg + "\t(cached)\n"})
	}
	s.write(map[string]any{"Action": action, "Package": j.pkg})
}

// write prints an event. The caller holds mu.
//
// +checklocks:s.mu
func (s *sink) write(e map[string]any) {
	data, _ := json.Marshal(e) // strings cannot fail
	s.w.Write(append(data, '\n'))
	s.w.Flush()
}

// goTool runs the go command.
func goTool(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if out == nil {
		cmd.Stdout = os.Stderr
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args[:min(3, len(args))], " "), err)
	}
	return nil
}

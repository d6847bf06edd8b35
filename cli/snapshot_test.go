package cli

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

func TestMain(m *testing.M) {
	if play := roles[os.Args[0]]; play != nil {
		os.Exit(play(os.Args[1:]))
	}
	os.Exit(apitest.Main(m))
}

// startJail starts the test jail.
func (d *testEnv) startJail() {
	d.t.Helper()
	if _, err := d.jails.Start(d.t.Context(), d.jail); err != nil {
		d.t.Fatal(err)
	}
}

// output returns the output of a command line without the final newline.
func (d *testEnv) output(line string) string {
	d.t.Helper()
	return strings.TrimSpace(d.wantOutput(line))
}

func TestSnapshotCommands(t *testing.T) {
	d := newTestEnv(t)
	d.startJail()
	s := d.output("snapshot JAIL --name base --label a=b --layering stacked")
	if !id.Valid('s', s) {
		t.Fatalf("a snapshot is %q", s)
	}
	list := d.wantOutput("snapshot ls", "ID", "OWN", "SHARED", s, string(d.jail), "base", "just now", "asked", "64 MiB", "12.35ms", "3 MiB", "5 MiB")
	if list != d.wantOutput("snapshots JAIL") {
		t.Error("the jail's snapshots are not all there are")
	}
	if got := d.output("snapshots -q"); got != s {
		t.Errorf("-q prints %q", got)
	}
	d.wantOutput("snapshots --json", `"own_bytes": 3145728`, `"paused_us": 12345`)
	d.wantOutput("snapshot show base", s, "stacked", "3 MiB own, 5 MiB shared", "up to 7")
	d.wantOutput("jail show JAIL", "nearest", s)

	var ids []string
	for line := range strings.Lines(d.wantOutput("branch base -n 3 --name try --memory 1g")) {
		ids = append(ids, strings.TrimSpace(line))
	}
	if len(ids) != 3 || !id.Valid('j', ids[2]) {
		t.Fatalf("three branches are %q", ids)
	}
	d.wantOutput("jail show "+ids[2], "try-3", "made from", s+" of "+string(d.jail)+", number 3", "1 GiB")
	again := d.output("restore " + s + " --network full")
	d.wantOutput("jail show "+again, "full")
	if got := d.output("rewind JAIL --last"); got != string(d.jail) {
		t.Errorf("rewind prints %q", got)
	}
	d.wantOutput("rewind try-1 base", ids[0])
	d.wantOutput("rewind try-1 base --keep-connections", ids[0])
	d.wantOutput("snapshot warm base -n 2", "2\n")
	if code, out, errs := d.run("snapshot warm base -n 5"); code != 0 || out != "3\n" || !strings.Contains(errs, "3 of 5") {
		t.Errorf("warm: exit code %d, %q, %q; want three and the reason", code, out, errs)
	}
	d.wantOutput("snapshot delete base", s)
	if got := d.output("snapshots -q"); got != "" {
		t.Errorf("snapshots after the deletion: %q", got)
	}
	d.wantOutput("snapshots --json", "[]")

	d.wantOutput("snapshot JAIL --stop")
	d.wantOutput("jail show JAIL", "stopped")
	d.wantOutput("snapshot JAIL")
	d.wantOutput("snapshots JAIL", " - ") // neither memory nor pause
	d.wantOutput("jail delete JAIL --snapshots")
	if got := d.output("snapshots -q"); got != "" {
		t.Errorf("snapshots after the deletion of the jail: %q", got)
	}
}

func TestUndo(t *testing.T) {
	d := newTestEnv(t)
	d.startJail()
	if code, _, errs := d.run("undo JAIL"); code == 0 || !strings.Contains(errs, "snapshot") {
		t.Errorf("without a snapshot: exit code %d, %q", code, errs)
	}
	first := d.output("snapshot JAIL --name base")
	got := d.wantOutput("undo JAIL", string(d.jail)+" has the state of "+first+"  base  just now  asked\n")
	_, saved, _ := strings.Cut(got, "to return: glasshouse rewind "+string(d.jail)+" ")
	d.wantOutput("snapshot show "+strings.TrimSpace(saved), "before undo")
	if got := d.output("undo JAIL --discard"); strings.Contains(got, "to return") {
		t.Errorf("undo --discard prints %q", got)
	}
	d.wantOutput("snapshot JAIL --name later")
	d.wantOutput("undo JAIL --steps 2 --discard", first)
}

func TestAmbiguousNames(t *testing.T) {
	d := newTestEnv(t)
	d.startJail()
	for range 2 {
		d.wantOutput("snapshot JAIL --name twice")
	}
	d.wantOutput("snapshot JAIL --name both")
	if _, err := d.jails.Create(t.Context(), jail.Spec{Name: "both"}); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"snapshot delete twice": "2 objects have the name", "snapshot show nothing": "no snapshot has", "snapshot nobody": "no jail has",
		"branch both": "2 objects have the name", "branch neither": "no snapshot or jail has", "rewind JAIL": "--last", "rewind JAIL both --last": "--last",
		"branch both --keep": "--each", "branch JAIL -n 0": "count", "branch JAIL -n 999": "count", "snapshot JAIL --layering thick": "layering",
		"branch JAIL --memory lots": "--memory", "rewind both --last": "2", "snapshot delete s-aaaaaaaaaaaa": "no such snapshot",
	} {
		if line == "rewind both --last" { // one jail has this name, and it has no snapshot
			want = "no snapshot to rewind to"
		}
		if code, out, errs := d.run(line); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s%s; want an error with %q", line, code, out, errs, want)
		}
	}
	both := d.wantOutput("snapshots -q")
	if code, out, _ := d.run("snapshot delete nothing both"); code != 1 || strings.Count(out, "\n") != 1 || !strings.Contains(both, strings.TrimSpace(out)) {
		t.Errorf("removal of an existing and a missing snapshot: %q, exit code %d", out, code)
	}
}

func TestBranchReportsPartialFailure(t *testing.T) {
	d := newTestEnv(t)
	d.startJail()
	d.kept.Fail = func(op string) error {
		if op == "branch 2" {
			return fault.Newf(fault.Exhausted, "", "", "no memory")
		}
		return nil
	}
	code, out, errs := d.run("branch JAIL -n 3")
	if code != 1 || strings.Count(out, "j-") != 2 || !strings.Contains(errs, "branch 2: ") || !strings.Contains(errs, "no memory") {
		t.Errorf("exit code %d, %q, %q; want two ids and the error of the second", code, out, errs)
	}
}

func TestLineageTree(t *testing.T) {
	d := newTestEnv(t)
	d.startJail()
	first := d.output("snapshot JAIL --name one\u202e")
	kid := d.output("branch " + first)
	second := d.output("snapshot " + kid)
	third := d.output("snapshot JAIL")
	d.wantOutput("rewind JAIL " + first)
	fourth := d.output("snapshot JAIL")
	got := d.wantOutput("lineage " + kid)
	if strings.Contains(got, "\u202e") {
		t.Errorf("a name contains control characters: %q", got)
	}
	got = strings.NewReplacer(string(d.jail), "JAIL", kid, "KID", first, "FIRST", second, "SECOND", third, "THIRD", fourth, "FOURTH").Replace(got)
	want := `JAIL  running
├─ FIRST  one\u202e  just now  asked
│  └─ 1:  KID  running
│     └─ SECOND  just now  asked *
├─ THIRD  just now  asked
└─ FOURTH  just now  asked, from FIRST *
`
	if got != want {
		t.Errorf("the lineage is drawn as\n%swant\n%s", got, want)
	}
	if all := d.wantOutput("lineage"); strings.Count(all, "\n") != 6 {
		t.Errorf("the complete lineage is\n%s", all)
	}
	var trees []wire.LineageJail
	if err := json.Unmarshal([]byte(d.wantOutput("lineage --json")), &trees); err != nil || len(trees) != 1 || len(trees[0].Snapshots) != 3 {
		t.Errorf("as JSON %+v, %v", trees, err)
	}
}

func TestBranchEach(t *testing.T) {
	d := newTestEnvWith(t, apitest.Start(t))
	d.startJail()
	d.jails.Diff = []jail.Change{{Path: "/made", Kind: "added", Type: "file"}}
	args := []string{"branch", "JAIL", "-n", "3", "--each", `echo first; echo "{n} of $GLASSHOUSE_BRANCH"; exit {n}`}
	code, out, errs := d.runArgs(args...)
	if code != 0 {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if len(rows) != 4 || !strings.HasPrefix(rows[0], "BRANCH") {
		t.Fatalf("the table is\n%s", out)
	}
	for n, row := range rows[1:] {
		want := strings.ReplaceAll(`^N +j-\w+ +N +\S+ +1 +- +0s +0 B +N of N$`, "N", strconv.Itoa(n+1))
		if !regexp.MustCompile(want).MatchString(row) {
			t.Errorf("row %d is %q, want %s", n+1, row, want)
		}
	}
	if left := d.output("jail ls -q"); left != string(d.jail) {
		t.Errorf("jails afterwards: %q", left)
	}
	if left := d.output("snapshots -q"); left != "" {
		t.Errorf("the temporary snapshot remains: %q", left)
	}

	base := d.output("snapshot JAIL --name base")
	code, out, errs = d.runArgs("branch", "base", "-n", "2", "--json", "--keep", "--timeout", "10s", "--each", "seq {n}00000")
	var all []outcome
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all) != 2 {
		t.Fatalf("exit code %d, %v, %s%s", code, err, out, errs)
	}
	for i, o := range all {
		if o.Branch != i+1 || o.Exec == nil || *o.Exec.ExitCode != 0 || len(o.Output) > maxOutput || lastLine(o.Output) != string(rune('1'+i))+"00000" || *o.Changes != 1 {
			t.Errorf("branch %d: %.300s", i+1, out)
		}
	}
	if left := d.wantOutput("jail ls -q"); strings.Count(left, "j-") != 3 || !strings.Contains(left, string(all[1].Jail)) {
		t.Errorf("with --keep the jails are %q", left)
	}
	if left := d.output("snapshots -q"); left != base {
		t.Errorf("the snapshots are %q, want the one that existed before", left)
	}
}

func TestBranchEachFailures(t *testing.T) {
	d := newTestEnvWith(t, apitest.Start(t))
	d.startJail()
	d.kept.Fail = func(op string) error {
		if op == "branch 2" {
			return fault.Newf(fault.Exhausted, "", "", "no memory")
		}
		return nil
	}
	code, out, _ := d.runArgs("branch", "JAIL", "-n", "3", "--timeout", "100ms", "--each", "echo begun; sleep 100")
	if code != 1 || strings.Count(out, "timeout") != 2 || strings.Count(out, "begun") != 2 || !strings.Contains(out, "no memory") {
		t.Errorf("exit code %d,\n%s", code, out)
	}
	d.kept.Fail = nil
	d.jails.Fail = func(op string) error {
		if op == "exec" {
			return fault.Newf(fault.Conflict, "", "", "not in this state\x1b[2J")
		}
		return nil
	}
	code, out, _ = d.runArgs("branch", "JAIL", "-n", "2", "--each", "true")
	if code != 1 || strings.Count(out, `not in this state\x1b[2J`) != 2 {
		t.Errorf("exit code %d,\n%s", code, out)
	}
	if left := d.output("jail ls -q"); left != string(d.jail) {
		t.Errorf("jails afterwards: %q", left)
	}
}

// The list of processes is ordered like the tree.
func TestDescendants(t *testing.T) {
	p := func(pid int32, depth int, state string) wire.Process {
		return wire.Process{PID: pid, Depth: depth, State: state, Existing: pid < 10}
	}
	all := []wire.Process{p(1, 0, "running"), p(5, 1, "running"), p(10, 1, "exited"), p(11, 2, "exited"), p(12, 3, "killed"), p(13, 2, "running"), p(14, 1, "running")}
	for pid, want := range map[int32]struct {
		n     int
		ended bool
	}{10: {4, true}, 11: {2, true}, 14: {1, false}, 5: {0, false}, 99: {0, false}} {
		if n, ended := descendants(all, pid); n != want.n || ended != want.ended {
			t.Errorf("descendants(%d) = %d, ended %v; want %+v", pid, n, ended, want)
		}
	}
}

func TestLastLine(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "\n\n": "", "a\nb\n": "b", "a\n  b  \n\n": "b", "10%\r50%\r100%\n": "100%", strings.Repeat("é", 100): strings.Repeat("é", 79) + "…",
	} {
		if got := lastLine(in); got != want {
			t.Errorf("the last line of %q is %q, want %q", in, got, want)
		}
	}
}

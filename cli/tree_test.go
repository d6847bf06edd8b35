package cli

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"glasshouse/api/wire"
)

// eachCommand calls f for every command except the root, with the arguments that name it.
func eachCommand(f func(cmd *cobra.Command, path []string)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			f(sub, strings.Fields(sub.CommandPath())[1:])
			walk(sub)
		}
	}
	walk(hostIndependentRoot())
}

// withoutAction reports whether a group of commands does nothing of its own.
func withoutAction(cmd *cobra.Command) bool {
	_, old := cmd.Annotations[isGroup]
	return !cmd.Runnable() || old
}

// unreachable is the address of no daemon.
const unreachable = "http://127.0.0.1:1"

// sampleArguments are valid arguments by placeholder. Others are x.
var sampleArguments = map[string]string{
	"JAIL": aJail, "JAIL|SNAPSHOT": aJail, "SNAPSHOT|JAIL": aJail, "SNAPSHOT": aSnapshot, "SNAPSHOT|--last": aSnapshot, "JAIL:PATH": aJail + ":/x", "JAIL:FROM": aJail + ":/x",
	"SOURCE": aJail + ":/x", "TARGET": "-", "1|2|3": "1", "STATE": "done", "TIER": "standard", "KEY": "RWQ", "N": "1", "SEQ": "1", "INSTANT": "1",
	"debian:SUITE|dir:PATH|oci:IMAGE|nix:PROFILE": "oci:alpine", "INPUT": "{}",
}

// samplesOf returns valid arguments of a command: one for each placeholder.
func samplesOf(cmd *cobra.Command) (args []string) {
	for _, a := range argumentsOf(cmd) {
		args = append(args, cmp.Or(sampleArguments[a.name], "x"))
	}
	return args
}

func TestUsageErrorsOfEveryCommandExitWith2(t *testing.T) {
	groups, commands := 0, 0
	check := func(want string, args ...string) {
		t.Helper()
		env := map[string]string{"HOME": "/nonexistent", "GLASSHOUSE_ADDR": unreachable}
		code, out, errs := runWithoutDaemon(t, env, args...)
		if code != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("glasshouse %s: exit code %d, %q, %q; want 2 and %q", strings.Join(args, " "), code, out, errs, want)
		}
	}
	eachCommand(func(cmd *cobra.Command, path []string) {
		check("unknown flag: --frobnicate", append(slices.Clone(path), "--frobnicate")...)
		if withoutAction(cmd) {
			groups++
			check("needs a command", path...)
			check("needs a command", append(slices.Clone(path), "--json")...)
			if !cmd.Runnable() {
				check(`unknown command "frobnicate" for "glasshouse `+strings.Join(path, " ")+`"`, append(slices.Clone(path), "frobnicate")...)
			}
			return
		}
		commands++
		args := append(slices.Clone(path), samplesOf(cmd)...)
		if all := argumentsOf(cmd); len(all) == 0 || !all[len(all)-1].more {
			want := "arg(s)"
			if len(all) == 0 {
				want = "unknown command"
			}
			check(want, append(args, "x")...)
		}
		if _, use, _ := strings.Cut(strings.ReplaceAll(cmd.Use, "[flags] ", ""), " "); use != "" && !strings.HasPrefix(use, "[") {
			check("arg(s)", path...)
		}
	})
	if groups < 15 || commands < 140 {
		t.Errorf("checked %d groups and %d commands, want at least 15 and 140", groups, commands)
	}
}

func TestInvalidValuesExitWith2(t *testing.T) {
	for _, line := range []string{
		"jail create --memory lots", "create --disk 0", "run --memory 1.0001g true", "jail limits J --cpus many", "branch J --cpus 0", "restore S --memory -1",
		"jail create --network wlan", "create --backend docker", "run --runtime kata true", "create --observe colour=red", "create --snapshots sometimes", "create --rootfs floppy", "create -m /src",
		"jail create --level 4", "create --ceiling 0x", "policy set J --match best", "policy level J 0", "policy level J high", "create --pids -1", "create --allow host:port",
		"jail stop J --grace soon", "jail stop J --grace -1s", "exec --timeout -1s J true", "run --timeout 5 true", "token create x --ttl 1w", "secret grant S J --for -1d", "decide J bash --wait soon",
		"events J --since yesterday", "events J --until 5", "syscalls J --since x", "egress log J --until x", "audit ls --since x", "net J --since x", "report J --until x", "export otel --since x",
		"events J --color pink", "diff J --color pink", "net J --color pink", "events J --tail -1", "events J --limit many", "ps J --at noon", "at J noon",
		"goal x --at noon", "goal x --budget steps=1.5", "goal x --budget network-bytes=2XB", "goal x --memory lots", "goal x --protocol http", "goal x --missed never", "goal x --until {", "goal x --on-exceed panic",
		"agent ls --state asleep", "agent move r done2", "agent resume r --budget x", "jail ls --state asleep", "jail ls -l =", "approval ls --state open", "approve a --scope forever",
		"session messages s --direction up", "connector deliveries c --state lost", "token create x --role king", "ui --role agent", "schedule edit h --jitter x", "schedule edit h --overlap x",
		"bundle trust acme verified key", "snapshot create J --layering flat", "audit show first", "replay first", "snapshot warm S -n x", "jail ls -o xml", "files mkdir J:/x --mode rwx",
		"call a.b {", "cp a b", "files ls J", "mcp --listen 0.0.0.0:1",
	} {
		env := map[string]string{"HOME": t.TempDir(), "GLASSHOUSE_ADDR": unreachable}
		args := strings.Fields(line)
		for i := range args {
			switch args[i] {
			case "J":
				args[i] = aJail
			case "S":
				args[i] = aSnapshot
			}
		}
		if code, _, errs := runWithoutDaemon(t, env, args...); code != exitUsage || errs == "" {
			t.Errorf("glasshouse %s: exit code %d, %q; want 2 and why", line, code, errs)
		}
	}
}

// Without a daemon, every command fails with the documented exit code.
func TestUnreachableDaemon(t *testing.T) {
	local := map[string]string{ // commands that need no daemon
		"bundle keygen": "", "bundle sign": "", "bundle verify": "", "market index": "", "skill import": "", "opencode init": "", "wasm run": "", "serve": "", "fleet init": "", "node join": "calls another daemon", "mock-llm": "", "docs": "", "docs man": "", "docs openapi": "",
		"rtfs check": "", "rtfs eval": "", "rtfs fmt": "", "rtfs repl": "", "rtfs run": "", "rtfs validate": "", "doctor": "probes without a daemon", "mcp": "begins when a client does", "version": "reports that there is none",
	}
	more := map[string][]string{ // required by the command
		"policy set": {"--level", "1"}, "egress set": {"--ask"}, "schedule edit": {"--when", "@hourly"}, "schedules edit": {"--when", "@hourly"},
	}
	checked := 0
	t.Chdir(t.TempDir())
	eachCommand(func(cmd *cobra.Command, path []string) {
		name := strings.Join(path, " ")
		if _, skip := local[name]; skip || withoutAction(cmd) {
			return
		}
		args := samplesOf(cmd)
		switch name {
		case "capability register", "bundle install", "skill add", "policy lint", "mcp import", "bundle trust", "bundle rotate":
			return // read a file first
		}
		checked++
		want := exitError
		if last := path[len(path)-1]; last == "exec" || last == "terminal" || name == "run" {
			want = exitDaemon
		}
		env := map[string]string{"HOME": t.TempDir(), "GLASSHOUSE_ADDR": unreachable}
		code, out, errs := runWithoutDaemon(t, env, append(append(path, more[name]...), args...)...)
		if code != want || out != "" || !strings.Contains(errs, "cannot connect to the daemon") {
			t.Errorf("glasshouse %s %q: exit code %d, %q, %q; want %d and that no daemon is reachable", name, args, code, out, errs, want)
		}
	})
	if checked < 110 {
		t.Errorf("checked %d commands, want at least 110", checked)
	}
}

// Every command has help, every flag and argument a known set of values, and every set its
// completion.
func TestEveryFlagAndArgumentIsCompleted(t *testing.T) {
	used := map[string]bool{"addr": true, "data": true, "node": true} // of the root
	checkKinds := func(where string, v valueSet) {
		for _, kind := range v.kinds {
			if completers[kind] == nil {
				t.Errorf("%s: nothing completes %s", where, kind)
			}
		}
	}
	eachCommand(func(cmd *cobra.Command, path []string) {
		where := "glasshouse " + strings.Join(path, " ")
		if cmd.Short == "" {
			t.Errorf("%s has no short help", where)
		}
		if f := cmd.Flag("output"); f == nil || f.Shorthand != "o" {
			t.Errorf("%s has no flag -o", where)
		}
		if cmd.Runnable() && cmd.ValidArgsFunction == nil {
			t.Errorf("%s does not complete its arguments", where)
		}
		for _, a := range argumentsOf(cmd) {
			checkKinds(where+" "+a.name, a.valueSet)
			if reflect.DeepEqual(a.valueSet, valueSet{}) {
				t.Errorf("%s: argumentValues has no %s", where, a.name)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" || f.Name == "help" {
				return
			}
			if _, ok := cmd.GetFlagCompletionFunc(f.Name); !ok {
				t.Errorf("%s --%s has no completion", where, f.Name)
			}
			v, ok := valuesOf(cmd, f.Name)
			checkKinds(where+" --"+f.Name, v)
			number := strings.HasPrefix(f.Value.Type(), "int") || f.Value.Type() == "duration"
			if !ok && !number {
				t.Errorf("%s: flagValues has no --%s", where, f.Name)
			}
			used[f.Name], used[strings.Join(path, " ")+" --"+f.Name] = true, true
		})
	})
	for name := range flagValues {
		if !used[name] {
			t.Errorf("flagValues has %q, which is no flag", name)
		}
	}
}

// The closed sets of the command line are those of the API.
func TestClosedSetsAreThoseOfTheAPI(t *testing.T) {
	enum := func(v any, field string) string {
		f, ok := reflect.TypeOf(v).FieldByName(field)
		if !ok {
			t.Fatalf("%T has no field %s", v, field)
		}
		return f.Tag.Get("enum")
	}
	for flag, want := range map[string]string{
		"network": enum(wire.CreateJail{}, "Network"), "layering": enum(wire.TakeSnapshot{}, "Layering"), "match": enum(wire.Policy{}, "Match"), "scope": enum(wire.AnswerApproval{}, "Scope"),
		"missed": enum(wire.StartRun{}, "Missed"), "overlap": enum(wire.StartRun{}, "Overlap"), "on-exceed": enum(wire.StartRun{}, "OnExceed"),
		"protocol": enum(wire.RunAgent{}, "Protocol"), "spawner": enum(wire.RunAgent{}, "Spawner"), "token create --role": enum(wire.CreateToken{}, "Role"), "ui --role": enum(wire.CreateLoginLink{}, "Role"),
		"jail ls --state": enum(wire.Jail{}, "State"), "agent ls --state": enum(wire.Run{}, "State"), "approval ls --state": enum(wire.Approval{}, "State") + ",all", "direction": enum(wire.Message{}, "Direction"),
	} {
		if got := strings.Join(append(flagValues[flag].words, flagValues[flag].also...), ","); got != want || want == "" {
			t.Errorf("--%s is one of %s, in the API one of %s", flag, got, want)
		}
	}
	if got, want := strings.Join(tiers.words, ","), enum(wire.Publisher{}, "Tier"); got != want {
		t.Errorf("tiers: %s, in the API %s", got, want)
	}
	if got, want := strings.Join(argumentValues["agent STATE"].words, ","), enum(wire.MoveRun{}, "State"); got != want {
		t.Errorf("states of agent move: %s, in the API %s", got, want)
	}
}

// Flags that mean the same have one form in all commands.
func TestFlagsAreUniform(t *testing.T) {
	type form struct{ shorthand, kind, usage string }
	forms := map[string]form{
		"since": {"", "string", "start: a time (2026-11-28 14:00, RFC 3339) or an age (10m)"}, "until": {"", "string", "end: a time or an age, as --since"},
		"color": {"", "string", "auto, on a terminal without NO_COLOR; always; never"}, "cpus": {"", "string", "processor weight in processors, such as 1.5 (256 shares each)"},
		"workdir": {"w", "string", ""}, "memory": {"", "string", ""}, "disk": {"", "string", ""}, "follow": {"f", "bool", ""}, "budget": {"", "stringSlice", ""},
	}
	seen := map[string]int{}
	eachCommand(func(cmd *cobra.Command, path []string) {
		where := strings.Join(path, " ")
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "duration" {
				if f.Value.Set("1d12h") != nil || f.Value.String() != "36h0m0s" || f.Value.Set("-1s") == nil || f.Value.Set("1w") == nil {
					t.Errorf("%s --%s is not a duration such as 1d12h", where, f.Name)
				}
			}
			want, ok := forms[f.Name]
			if !ok || f.Name == "until" && (where == "goal" || where == "agent run") { // a condition
				return
			}
			seen[f.Name]++
			if got := (form{f.Shorthand, f.Value.Type(), f.Usage}); got.shorthand != want.shorthand || got.kind != want.kind || want.usage != "" && got.usage != want.usage {
				t.Errorf("%s --%s is %v, want %v", where, f.Name, got, want)
			}
		})
		for _, pair := range [][2]string{{"since", "until"}, {"cpus", "memory"}, {"memory", "disk"}, {"disk", "pids"}} {
			if cmd.LocalFlags().Lookup(pair[0]) != nil && cmd.LocalFlags().Lookup(pair[1]) == nil {
				t.Errorf("%s has --%s without --%s", where, pair[0], pair[1])
			}
		}
	})
	for name, least := range map[string]int{"since": 7, "until": 7, "color": 3, "cpus": 8, "workdir": 4} {
		if seen[name] < least {
			t.Errorf("%d commands have --%s, want at least %d", seen[name], name, least)
		}
	}
}

// Each old name works, and warns once.
func TestOldNamesWork(t *testing.T) {
	type old struct {
		line, now string
		request   string
	}
	var all []old
	eachCommand(func(cmd *cobra.Command, path []string) {
		if !cmd.Hidden && !(cmd.HasParent() && cmd.Parent().Hidden) || path[0] == "docs" || path[0] == "runs" || withoutAction(cmd) {
			return
		}
		line := strings.Join(append(path, samplesOf(cmd)...), " ")
		if line == "schedules edit x" {
			line += " --when @hourly"
		}
		all = append(all, old{line: line})
	})
	if len(all) < 15 {
		t.Errorf("found %d old commands, want at least 15", len(all))
	}
	all = append(all,
		old{"snapshot " + aJail + " --name x", "glasshouse snapshot create", "POST /jails/" + aJail + "/snapshot"},
		old{"egress " + aJail, `glasshouse egress show" or "glasshouse egress set`, "GET /jails/" + aJail + "/egress"},
		old{"egress " + aJail + " --ask", `glasshouse egress show" or "glasshouse egress set`, "PUT /jails/" + aJail + "/egress"},
		old{"approvals", "glasshouse approval ls", "GET /approvals"},
		old{"approvals withdraw a-1", "glasshouse approval cancel", "DELETE /approvals/a-1"},
		old{"snapshots", "glasshouse snapshot ls", "GET /snapshots"},
		old{"schedules pause h-1", "glasshouse schedule pause", "POST /schedules/h-1/pause"},
		old{"connectors ls", "glasshouse connector ls", "GET /connectors"},
		old{"exec --cwd /x " + aJail + " true", "--workdir", "POST /jails/" + aJail + "/exec"},
		old{"jail terminal --cwd /x " + aJail, "--workdir", ""},
		old{"events --colour never " + aJail, "--color", "GET /jails/" + aJail + "/events"},
		old{"diff --colour never " + aJail, "--color", "GET /jails/" + aJail},
		old{"net --colour never " + aJail, "--color", "GET /jails/" + aJail + "/network/log"},
		old{"export otel --from 1h --run r-1", "--since", ""},
		old{"export otel --to 1h --run r-1", "--until", ""},
		old{"skill import /nonexistent --out x", "--output", ""},
		old{"apply --keep " + aJail, "by default", "GET /jails/" + aJail},
	)
	for _, c := range all {
		d := newScriptedDaemon(t, nil)
		code, _, errs := d.run("", strings.Fields(c.line)...)
		if n := strings.Count(errs, "will be removed in the next release"); n != 1 || !strings.Contains(errs, c.now) {
			t.Errorf("glasshouse %s: %d warnings in %q, want one that names %q", c.line, n, errs, c.now)
		}
		if code == exitUsage || !strings.Contains(d.asked(), c.request) {
			t.Errorf("glasshouse %s: exit code %d, requests %q, want %s", c.line, code, d.asked(), c.request)
		}
	}
}

// The commands goal and runs are agent run and the other commands of agent.
func TestGoalAndRunsAreAliases(t *testing.T) {
	root := hostIndependentRoot()
	find := func(args ...string) *cobra.Command {
		cmd, _, err := root.Find(args)
		if err != nil || cmd.Name() != args[len(args)-1] {
			t.Fatalf("no command %q: %v", args, err)
		}
		return cmd
	}
	pairs := map[*cobra.Command]*cobra.Command{find("goal"): find("agent", "run"), find("runs"): find("agent", "ls"), find("runs", "follow"): find("agent", "logs")}
	for _, name := range []string{"show", "steps", "checkpoint", "checkpoints", "resume", "pause", "cancel", "move"} {
		pairs[find("runs", name)] = find("agent", name)
	}
	flags := func(cmd *cobra.Command) (all []string) {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { all = append(all, f.Name+" "+f.Shorthand+" "+f.Usage) })
		return all
	}
	for alias, now := range pairs {
		if got, want := flags(alias), flags(now); !slices.Equal(got, want) || alias.Short != now.Short {
			t.Errorf("%s: flags %q, %q; want as %s %q", alias.CommandPath(), alias.Short, got, now.CommandPath(), want)
		}
	}
	for _, line := range []string{"goal x -d --at 2027-01-31T09:00:00Z", "agent run x -d --at 2027-01-31T10:00:00+01:00"} {
		d := newScriptedDaemon(t, map[string]string{"POST /chat/run": runIn("scheduled")})
		if code, _, errs := d.run("", strings.Fields(line)...); code != 0 || errs != "" || !strings.Contains(d.asked(), `"next_run_at":"2027-01-31T09:00:00Z"`) {
			t.Errorf("%s: exit code %d, %q, requests %s; want the time", line, code, errs, d.asked())
		}
	}
}

func TestCreateIsJailCreate(t *testing.T) {
	const file = "name: web\nlimits: {memory_mb: 1024}\nstart: true\n"
	for _, line := range []string{"create -f -", "jail create -f -"} {
		d := newScriptedDaemon(t, map[string]string{"POST /jails": jailJSON})
		code, out, errs := d.run(file, strings.Fields(line)...)
		if want := `POST /jails {"name":"web","limits":{"memory_mb":1024},"start":true}`; code != 0 || out != aJail+"\n" || errs != "" || !strings.HasPrefix(d.asked(), want) {
			t.Errorf("%s: exit code %d, %q, %q, requests %s; want %s", line, code, out, errs, d.asked(), want)
		}
	}
	cmd, _, err := hostIndependentRoot().Find([]string{"create"})
	if err != nil || cmd.GroupID != "Jails" {
		t.Errorf("create is in the group %q, %v; want Jails", cmd.GroupID, err)
	}
}

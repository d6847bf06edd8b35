package cli

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"glasshouse/daemon"
	"glasshouse/policy/chain"
)

// A valueSet describes the possible values of a flag or an argument. The shell completes them, and
// other values of a closed set are usage errors.
type valueSet struct {
	kinds []string // keys of completers: objects of the daemon
	words []string // a fixed set
	also  []string // other names for some of the words, which are not completed
	open  bool     // there are other values than words
	files bool     // names of files
	dirs  bool     // names of directories
	path  bool     // a path in the object follows, after a colon
	part  bool     // a word is only the beginning of a value
}

// of returns the set of the ids and names of objects.
func of(kinds ...string) valueSet { return valueSet{kinds: kinds} }

// oneOf returns a closed set.
func oneOf(words ...string) valueSet { return valueSet{words: words} }

// such returns an open set with frequent values.
func such(words ...string) valueSet { return valueSet{words: words, open: true} }

// begins returns an open set of values that begin with one of the words.
func begins(words ...string) valueSet { return valueSet{words: words, open: true, part: true} }

var (
	aText      = valueSet{open: true} // has no completions
	aFile      = valueSet{files: true, open: true}
	aDirectory = valueSet{dirs: true, open: true}

	vendors  = oneOf(vendorNames()...)
	agents   = such("builtin", "claude", "codex", "opencode", "gemini", "shell")
	levels   = oneOf("1", "2", "3")
	networks = valueSet{words: []string{"isolated", "proxy", "bridged", "full"}, also: []string{"Isolated", "FullAccess"}}
	rootfs   = begins("host", "debian:", "dir:", "oci:", "nix:")
	labels   = such("public", "redacted", "pii", "secret") // optionally with a subclass, such as pii.email
	tiers    = oneOf("informational", "read-only", "standard", "elevated")
)

// flagValues are the values of flags by name. An entry with the path of a command, such as
// "agent run --agent", precedes the one of the flag alone. Boolean flags, numbers and durations
// have none.
var flagValues = map[string]valueSet{
	"addr": aText, "node": of("NODE"), "ca": aText, "token": aText, "data": aDirectory, "stored": aText, "output": oneOf(formats...),
	"report --output": aFile, "skill import --output": aDirectory, "bundle sign --output": aFile,

	"config": aFile, "cursor": aFile, "db": aFile, "serve --db": aText, "egress": aFile, "export": aFile, "file": aFile,
	"key": aFile, "out": aFile, "password-file": aFile, "pcap": aFile, "policy": aFile, "script": aFile,
	"dir": aDirectory, "keys": aDirectory, "kubernetes-secret": aText, "mount": aDirectory, "workspace": aDirectory,

	"again": of("NOTICE"), "all": of("CONNECTOR"), "attach": of("EXEC"), "capability": of("CAPABILITY"), "jail": of("JAIL"),
	"jail ls --name": of("JAIL"), "parent": of("RUN"), "run": of("RUN"), "session": of("SESSION"), "skill": of("SKILL"),
	"checkpoint": aFile, "agent resume --checkpoint": of("CHECKPOINT"), "runs resume --checkpoint": of("CHECKPOINT"),

	"backend": oneOf("oci", "microvm", "bwrap"), "runtime": oneOf("runc", "crun", "runsc"), "network": networks, "layering": oneOf("copied", "stacked"),
	"rootfs": rootfs, "color": oneOf("auto", "always", "never"),
	"observe": such("full", "security", "flows", "off"), "snapshots": begins("every=", "before=exec:", "after=exec", "keep=last:", "connections=keep"),
	"match": oneOf("longest", "last"), "level": levels, "ceiling": levels, "scope": oneOf("once", "session", "always"),
	"missed": oneOf("skip", "once", "all"), "overlap": oneOf("skip", "queue", "allow"), "on-exceed": oneOf("pause", "stop"),
	"protocol": oneOf("run", "acp"), "spawner": oneOf("jail", "bwrap", "process"),
	"agent run --agent": agents, "goal --agent": agents, "session open --agent": agents, "agent": aText,
	"budget":       begins("steps=", "llm-tokens=", "cost-micros=", "wall-clock-ms=", "sandbox-cpu-ms=", "network-bytes=", "storage-bytes="),
	"call --label": labels, "session send --label": labels, "label": aText, "direction": oneOf("in", "out"), "kind": such(chainKinds()...),
	"token create --role": oneOf("admin", "operator", "viewer", "agent"), "ui --role": oneOf("admin", "operator", "viewer"),
	"jail ls --state":              oneOf("created", "starting", "running", "paused", "stopped", "failed"),
	"agent ls --state":             oneOf("scheduled", "active", "paused", "done", "failed", "cancelled"),
	"runs --state":                 oneOf("scheduled", "active", "paused", "done", "failed", "cancelled"),
	"approval ls --state":          oneOf("pending", "answered", "expired", "withdrawn", "all"),
	"approvals --state":            oneOf("pending", "answered", "expired", "withdrawn", "all"),
	"connector deliveries --state": oneOf("pending", "delivered", "dead"), "connectors deliveries --state": oneOf("pending", "delivered", "dead"),
	"agent run --until": such("manual"), "goal --until": such("manual"),
	"schedule": such("@hourly", "@daily", "@weekly"), "when": such("@hourly", "@daily", "@weekly"), "tz": such("UTC"),

	"allow": aText, "at": aText, "cpus": aText, "digest": aText, "disk": aText, "each": aText, "endpoint": aText, "env": aText, "from": aText,
	"group": aText, "hostname": aText, "inject": aText, "instead": aText, "listen": aText, "max-disk": aText, "max-memory": aText, "memory": aText, "message": aText, "mode": aText,
	"model": aText, "models": vendors, "name": aText, "network-group": aText, "phrase": aText, "policy-agent": aText, "reason": aText, "result": aText,
	"since": aText, "until": aText, "user": aText, "workdir": aText, "wait": aText,
}

func vendorNames() (names []string) {
	for _, v := range daemon.ModelVendors {
		names = append(names, v.Name)
	}
	return names
}

func chainKinds() (names []string) {
	for _, k := range chain.Kinds() {
		names = append(names, string(k))
	}
	return names
}

// argumentValues are the values of arguments by their placeholder in the usage of a command. An
// entry with the path of the command or of its group, such as "token ID", precedes the one of the
// placeholder alone.
var argumentValues = map[string]valueSet{
	"JAIL": of("JAIL"), "JAIL|SNAPSHOT": of("JAIL", "SNAPSHOT"), "SNAPSHOT|JAIL": of("SNAPSHOT", "JAIL"), "SNAPSHOT": of("SNAPSHOT"), "SNAPSHOT|--last": of("SNAPSHOT"),
	"JAIL:PATH": {kinds: []string{"JAIL"}, path: true}, "JAIL:FROM": {kinds: []string{"JAIL"}, path: true},
	"SOURCE": {kinds: []string{"JAIL"}, path: true, files: true}, "TARGET": {kinds: []string{"JAIL"}, path: true, files: true},
	"RUN": of("RUN"), "SESSION": of("SESSION"), "SCHEDULE": of("SCHEDULE"), "EXEC": of("EXEC"), "CONNECTOR": of("CONNECTOR"), "GRANT": of("GRANT"), "NODE": of("NODE"), "ADDRESS": aText, "PUBLISHER": of("PUBLISHER"),
	"approval ID": of("APPROVAL"), "approvals ID": of("APPROVAL"), "approve ID": of("APPROVAL"), "deny ID": of("APPROVAL"), "token ID": of("TOKEN"), "ui ID": of("LOGIN"),
	"call ID": of("CAPABILITY"), "capability ID": of("CAPABILITY"),
	"bundle NAME": of("BUNDLE"), "secret NAME": of("SECRET"), "skill NAME": of("SKILL"), "market NAME": aText, "token NAME": aText,
	"agent STATE": oneOf("active", "paused", "done", "failed", "cancelled"), "runs STATE": oneOf("active", "paused", "done", "failed", "cancelled"),
	"1|2|3": levels, "TIER": tiers, "debian:SUITE|dir:PATH|oci:IMAGE|nix:PROFILE": rootfs,
	"FILE": aFile, "MODULE": aFile, "KEY": aFile, "OLD": aFile, "NEW": aFile, "FILE|DIR": aFile, "DIR": aDirectory, "DIRECTORY": aDirectory,
	"apply PATH": aFile, "PATH": aText,
	"ACTION": such("bash", "edit", "read", "webfetch"), "ARG": aText, "run ARG": aFile, "wasm run ARG": aFile, "COMMAND": aText, "run COMMAND": aFile, "DELIVERY": aText, "DIGEST": aText, "EXPRESSION": aText, "FILTER": aText, "GOAL": aText,
	"HOST": aText, "INPUT": aText, "INSTANT": aText, "N": aText, "RESOURCE": aText, "SEQ": aText, "TERM": aText, "TEXT": aText, "TO": aText,
	"TYPE": aText, "VALUE": aText, "WHEN": aText, "WORD": aText,
}

// valuesOf returns the values of a flag. It returns false for a flag without an entry.
func valuesOf(cmd *cobra.Command, flag string) (valueSet, bool) {
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	v, ok := flagValues[path+" --"+flag]
	if !ok {
		v, ok = flagValues[flag]
	}
	return v, ok
}

// An argument is a placeholder in the usage of a command.
type argument struct {
	name string
	valueSet
	more bool // further arguments are of the same set
}

// argumentsOf reads the arguments of a command from its usage.
func argumentsOf(cmd *cobra.Command) (all []argument) {
	use := strings.ReplaceAll(cmd.Use, " | PATH...]", "]...") // of diff: both forms begin alike
	for _, word := range strings.Fields(use)[1:] {
		if word == "[flags]" || strings.HasPrefix(word, "[--") {
			continue
		}
		var a argument
		word = strings.TrimPrefix(word, "[")
		a.name, a.more = strings.ReplaceAll(word, "…", "..."), strings.Contains(word, "...") || strings.Contains(word, "…")
		a.name, _, _ = strings.Cut(strings.TrimRight(a.name, "]."), "[") // ID[@VERSION], HOST[:PORT,...]
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		group, _, _ := strings.Cut(path, " ")
		for _, key := range []string{path + " " + a.name, group + " " + a.name, a.name} {
			v, ok := argumentValues[key]
			if ok {
				a.valueSet = v
				break
			}
		}
		all = append(all, a)
	}
	return all
}

// argumentAt returns the argument at position n, or the zero argument.
func argumentAt(all []argument, n int) argument {
	if n < len(all) {
		return all[n]
	}
	if len(all) > 0 && all[len(all)-1].more {
		return all[len(all)-1]
	}
	return argument{}
}

// checkValues returns a usage error for a flag or an argument that is not of its closed set, and
// for a negative number.
func checkValues(cmd *cobra.Command, args []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		v, _ := valuesOf(cmd, f.Name)
		given := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			given = list.GetSlice()
		}
		for _, s := range given {
			switch {
			case err != nil || s == f.DefValue || s == "":
			case !v.has(s):
				err = usagef("--%s %q is not one of %s", f.Name, s, strings.Join(v.words, ", "))
			case strings.HasPrefix(f.Value.Type(), "int") && negative(s):
				err = usagef("--%s %s is negative", f.Name, s)
			}
		}
	})
	if err != nil {
		return err
	}
	all := argumentsOf(cmd)
	for i, s := range args {
		if a := argumentAt(all, i); !a.has(s) {
			return usagef("%q is not one of %s", s, strings.Join(a.words, ", "))
		}
	}
	return nil
}

// has reports whether s may be a value of the set.
func (v valueSet) has(s string) bool {
	return v.open || len(v.words) == 0 || slices.Contains(v.words, s) || slices.Contains(v.also, s)
}

func negative(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n < 0
}

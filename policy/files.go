package policy

import (
	"path"
	"slices"
	"strings"

	"glasshouse/policy/shell"
)

// A located is a path in the forms that rules are written in.
type located struct {
	subject
	outside string // its absolute path, if it is not in the workspace
	unknown bool   // parts of it are not known
}

// locate makes a path ready to match. cwd is where it starts; "" is the
// workspace.
func (s *Set) locate(action, name, cwd string) located {
	at := located{subject: subject{action: action}}
	name = expandHome(slashes(name), s.config.Home)
	if !path.IsAbs(name) && cwd != "" {
		name = expandHome(slashes(cwd), s.config.Home) + "/" + name
	}
	if i := strings.LastIndexByte(name, hole); i >= 0 {
		// What stands before a step up tells nothing either.
		rest := strings.TrimPrefix(name[i+1:], "/")
		if up := strings.LastIndex(rest, "../"); up >= 0 {
			rest = rest[up+len("../"):]
		}
		at.unknown = true
		at.forms[0] = shell.Hole + rest
		return at
	}
	root := s.config.Workspace
	switch {
	case name == "":
		return at
	case root == "":
		at.forms[0] = path.Clean(name)
		if path.IsAbs(name) || leads(at.forms[0]) {
			at.outside = at.forms[0]
		}
		return at
	}
	abs := name
	if !path.IsAbs(name) {
		abs = root + "/" + name
	}
	abs = path.Clean(abs)
	switch rest, inside := strings.CutPrefix(abs, strings.TrimSuffix(root, "/")+"/"); {
	case abs == root:
		at.forms = [2]string{".", abs}
	case inside:
		at.forms = [2]string{rest, abs}
	default:
		at.outside = abs
		at.forms = [2]string{relative(root, abs), abs}
	}
	return at
}

// leads reports whether a clean relative path leads out of where it starts.
func leads(name string) bool { return name == ".." || strings.HasPrefix(name, "../") }

// relative is the path from root to abs, as OpenCode names files outside.
func relative(root, abs string) string {
	up := ""
	for root != "/" {
		if rest, under := strings.CutPrefix(abs, strings.TrimSuffix(root, "/")+"/"); under {
			return up + rest
		}
		up += "../"
		root = path.Dir(root)
	}
	return up + strings.TrimPrefix(abs, "/")
}

// Which rules are looked at for a file.
const (
	everyRule = iota
	someFiles // those that are about some files, not about all
)

// file decides that a file is read or written. cwd is where its name starts.
func (j *judge) file(action, name, cwd string, which int) {
	at := j.s.locate(action, name, j.start(cwd))
	looked := 0
	if j.trace != nil {
		looked = len(*j.trace)
	}
	v := j.weigh(&at.subject)
	switch {
	case which == someFiles && (v.by == nil || v.by.on.any): // the command's own rule says it
		v = verdict{effect: Allow}
		if j.trace != nil {
			*j.trace = (*j.trace)[:looked]
		}
	case at.unknown && v.effect == Allow:
		v = j.guessFile(&at.subject, v)
	}
	if which == everyRule || v.effect != Allow {
		j.add(v, action+" "+printable(name))
	}
	if at.outside != "" {
		j.outside(at)
	}
}

// guessFile makes a question of a file of which not all is known. Who allows
// all of bash is asked only if a rule that is not the kernel's may be about it.
func (j *judge) guessFile(x *subject, v verdict) verdict {
	const why = "which file it is follows from what the line does not tell"
	if !j.s.free(j.v) {
		return verdict{effect: Ask, by: notUnderstood, why: why}
	}
	may := func(e *entry) bool {
		return e.rule.Effect != Allow && e.origin != setKernel && e.action.matches(x.action) && e.on.mayMatch(x.forms[0])
	}
	if i := slices.IndexFunc(j.s.strict.entries, may); i >= 0 {
		return verdict{effect: Ask, by: j.s.strict.entries[i], why: why}
	}
	for _, e := range j.v.base.entries {
		if e == v.base {
			break // what follows counts less
		}
		if may(e) {
			return verdict{effect: Ask, by: e, why: why}
		}
	}
	return v
}

// start is where names of files start in a command that runs in cwd.
func (j *judge) start(cwd string) string {
	began := j.q.Attributes["cwd"]
	switch {
	case cwd == "" || cwd == began:
		return began
	case began == "" || path.IsAbs(cwd) || cwd[0] == '~' || cwd[0] == hole:
		return cwd
	}
	return began + "/" + cwd
}

// outside decides that something outside the workspace is touched.
func (j *judge) outside(at located) {
	x := subject{action: ActionOutside, forms: [2]string{at.outside}}
	v := j.weigh(&x)
	j.add(j.seen(v, x.forms), ActionOutside+" "+at.outside)
}

// seen makes of a verdict on something outside the workspace that on what the
// machine saw there: every file of every program, of which nobody could answer
// all. What no file says counts as a question to the agent only, and a rule
// over everything outside is not about where programs keep what is theirs.
func (j *judge) seen(v verdict, forms [2]string) verdict {
	if j.q.Attributes["observed"] != "true" || v.by == nil || v.final && v.by.origin != originFiles {
		return v
	}
	byDefault := v.by.origin != originFiles && v.by.origin != originFramework && v.by.origin != setRemembered
	own := v.by.on.any && (j.scratch(forms[0]) || j.scratch(forms[1]))
	if own || byDefault && v.effect == Ask {
		return verdict{effect: Allow, by: seenOutside}
	}
	return v
}

var seenOutside = &entry{
	rule:   Rule{Action: ActionOutside, Pattern: "*", Effect: Allow, File: setKernel},
	origin: setKernel,
	reason: "what programs do outside the workspace is asked of the agent that starts them",
}

// caches are directories under the home in which programs keep what they could
// make again.
var caches = []string{".cache", ".npm", ".pnpm-store", ".yarn", ".bun/install", ".cargo/registry", ".cargo/git", ".gradle/caches",
	".m2/repository", ".local/state", ".local/share/pnpm", "go/pkg"}

// scratch reports whether programs keep temporary files and caches there.
func (j *judge) scratch(abs string) bool {
	under := func(dir string) bool { return abs == dir || strings.HasPrefix(abs, dir+"/") }
	home := j.s.config.Home
	return under("/tmp") || under("/var/tmp") || under("/dev") || under("/proc/self") ||
		home != "" && slices.ContainsFunc(caches, func(dir string) bool { return under(home + "/" + dir) })
}

// everybodys allows what is no file but what every program has.
var everybodys = &entry{
	rule:   Rule{Action: "*", Pattern: "/dev/*", Effect: Allow, File: setKernel},
	origin: setKernel,
	on:     compilePattern("/dev/*", ""),
	reason: "it is no file but a device that every program has",
}

// device reports whether a name is no file but what every program has.
func device(name string) bool {
	rest, ok := strings.CutPrefix(name, "/dev/")
	switch {
	case !ok:
		return false
	case slices.Contains([]string{"null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "tty"}, rest):
		return true
	}
	n, ok := strings.CutPrefix(rest, "fd/")
	return ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// network reports whether bash takes a redirection for a connection.
func network(name string) (hostport string, ok bool) {
	rest, ok := strings.CutPrefix(name, "/dev/tcp/")
	if !ok {
		if rest, ok = strings.CutPrefix(name, "/dev/udp/"); !ok {
			return "", false
		}
	}
	host, port, ok := strings.Cut(rest, "/")
	return host + ":" + port, ok
}

// printable shows what is not known as an ellipsis.
func printable(s string) string { return strings.ReplaceAll(s, "\x00", "…") }

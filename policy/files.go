package policy

import (
	"path"
	"slices"
	"strings"

	"glasshouse/policy/shell"
)

// A located is a path in the forms that rules use.
type located struct {
	subject
	outside string // absolute path, if outside the workspace
	unknown bool   // parts of it are unknown
}

// locate prepares a path for matching. cwd is its base directory; "" is the workspace.
func (s *Set) locate(action, name, cwd string) located {
	at := located{subject: subject{action: action}}
	name = expandHome(slashes(name), s.config.Home)
	if !path.IsAbs(name) && cwd != "" {
		name = expandHome(slashes(cwd), s.config.Home) + "/" + name
	}
	if i := strings.LastIndexByte(name, hole); i >= 0 {
		// The path before ".." is unknown as well.
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

// leads reports whether a clean relative path leaves its base directory.
func leads(name string) bool { return name == ".." || strings.HasPrefix(name, "../") }

// relative returns the path from root to abs, the form in which OpenCode names files outside
// the workspace.
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

// The rules that apply to a file.
const (
	everyRule = iota
	someFiles // only rules about some files, not about all
)

// file decides access to a file. cwd is the base of its name.
func (j *judge) file(action, name, cwd string, which int) {
	at := j.s.locate(action, name, j.start(cwd))
	looked := 0
	if j.trace != nil {
		looked = len(*j.trace)
	}
	v := j.weigh(&at.subject)
	switch {
	case which == someFiles && (v.by == nil || v.by.on.any): // the rule for the command decides
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

// guessFile changes the verdict to a question if parts of the path are unknown. If all of bash
// is allowed, it asks only if a rule other than a built-in one could match.
func (j *judge) guessFile(x *subject, v verdict) verdict {
	const why = "the path depends on an unknown part of the command line"
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
			break // later entries have no effect
		}
		if may(e) {
			return verdict{effect: Ask, by: e, why: why}
		}
	}
	return v
}

// start returns the base directory of file names for a command that runs in cwd.
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

// outside decides access to a path outside the workspace.
func (j *judge) outside(at located) {
	x := subject{action: ActionOutside, forms: [2]string{at.outside}}
	v := j.weigh(&x)
	j.add(j.seen(v, x.forms), ActionOutside+" "+at.outside)
}

// seen adjusts a verdict on a path outside the workspace for accesses observed by the Linux
// kernel. Those are too many for approval, since they include every file of every program:
// without a rule in a file the question counts as answered, and a rule over all outside paths
// does not apply to temporary files and caches.
func (j *judge) seen(v verdict, forms [2]string) verdict {
	if j.q.Attributes["observed"] != "true" || v.by == nil || v.final && v.by.origin != originFiles {
		return v
	}
	own := v.by.on.any && (j.scratch(forms[0]) || j.scratch(forms[1]))
	if own || v.by.builtIn() && v.effect == Ask {
		return verdict{effect: Allow, by: seenOutside}
	}
	return v
}

// builtIn reports whether the rule is neither of a file nor an answer.
func (e *entry) builtIn() bool {
	return e.origin != originFiles && e.origin != originFramework && e.origin != setRemembered
}

var seenOutside = &entry{
	rule:   Rule{Action: ActionOutside, Pattern: "*", Effect: Allow, File: setKernel},
	origin: setKernel,
	reason: "accesses of programs outside the workspace need no approval of their own",
}

// caches are directories in the home directory with data that programs can recreate.
var caches = []string{".cache", ".npm", ".pnpm-store", ".yarn", ".bun/install", ".cargo/registry", ".cargo/git", ".gradle/caches",
	".m2/repository", ".local/state", ".local/share/pnpm", "go/pkg"}

// scratch reports whether a path is in a directory for temporary files or caches.
func (j *judge) scratch(abs string) bool {
	under := func(dir string) bool { return abs == dir || strings.HasPrefix(abs, dir+"/") }
	home := j.s.config.Home
	return under("/tmp") || under("/var/tmp") || under("/dev") || under("/proc/self") ||
		home != "" && slices.ContainsFunc(caches, func(dir string) bool { return under(home + "/" + dir) })
}

// everybodys allows the devices that every program has.
var everybodys = &entry{
	rule:   Rule{Action: "*", Pattern: "/dev/*", Effect: Allow, File: setKernel},
	origin: setKernel,
	on:     compilePattern("/dev/*", ""),
	reason: "it is a device that every program may use",
}

// device reports whether a name is a device that every program has.
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

// network reports whether bash opens a redirection as a connection.
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

// printable replaces unknown parts by an ellipsis.
func printable(s string) string { return strings.ReplaceAll(s, "\x00", "…") }

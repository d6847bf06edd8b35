package policy

import (
	"path"
	"slices"
	"strings"

	"glasshouse/policy/shell"
)

// command decides one command of a line. It applies the rules for commands, and the rules for files
// that the shell opens for the command or that the command is known to write.
func (j *judge) command(c *command) {
	switch {
	case len(c.Argv) > 0:
		j.program(c)
	case c.Opaque != "" && !j.s.free(j.v):
		j.add(j.opaque(verdict{effect: Allow}, c.Opaque), printable(c.Text))
	}
	for _, name := range c.Writes {
		j.redirect(ActionEdit, name, c.Cwd)
	}
	for _, name := range c.Reads {
		j.redirect(ActionRead, name, c.Cwd)
	}
	for _, name := range c.operands {
		j.operand(c, name)
	}
}

// program decides which program a command starts.
func (j *judge) program(c *command) {
	x := c.subject
	v := j.weigh(&x)
	if c.startsOthers && !j.v.off && v.by != nil && v.by.on.any {
		v = verdict{effect: Allow, by: v.by, base: v.base, listed: true}
	} else {
		j.commands++
	}
	if len(c.Unknown) > 0 && v.effect == Allow && !c.startsOthers {
		v = j.guess(c, &x, v)
	}
	v = j.opaque(v, c.Opaque)
	j.unlisted = j.unlisted || !v.listed
	j.add(v, c.shown)
}

// redirect decides a redirection: a file, or a name that bash opens as a connection.
func (j *judge) redirect(action, name, cwd string) {
	hostport, connects := network(name)
	switch {
	case device(name):
	case connects:
		x := subject{action: ActionConnect, forms: [2]string{hostport}}
		j.add(j.weigh(&x), name)
	default:
		j.file(action, name, cwd, everyRule)
	}
}

// commandSubject returns a command in the forms that rules use: as written, as executed, and
// with the base name of its program.
func commandSubject(c *shell.Command) subject {
	x := subject{action: ActionRun, argv: c.Argv}
	plain := slashes(strings.Join(c.Argv, " "))
	program := c.Argv[0]
	if strings.ContainsAny(program, " \t\n") {
		// A file may be called "npm test": such a name matches no rule that allows.
		x.loose[0] = plain
	} else {
		x.forms[0] = plain
	}
	if len(c.Via) == 0 { // otherwise the text is that of the command it starts
		x.forms[1] = slashes(c.Text)
	}
	if base := shell.Base(program); base != program {
		x.loose[1] = base + plain[len(slashes(program)):]
	}
	return x
}

// guess changes the verdict on an allowed command to a question if its unknown parts could
// match another rule that asks or denies.
func (j *judge) guess(c *command, x *subject, v verdict) verdict {
	without := strings.ReplaceAll(x.forms[0], " "+shell.Hole, "")
	may := func(e *entry) bool {
		answered := v.by.origin == setRemembered && e.rule.Effect == Ask && !e.final
		if e.rule.Effect == Allow || answered || !e.action.matches(ActionRun) {
			return false
		}
		if e.flags != nil && e.flags.mayMatch(c.Argv) {
			return true
		}
		for _, f := range [...]string{x.forms[0], x.loose[1], without} {
			if f != "" && e.on.mayMatch(f) {
				return true
			}
		}
		return false
	}
	ask := func(e *entry) verdict {
		return verdict{effect: Ask, by: e, why: "an unknown part of the command line could match it", final: e.final && e.rule.Effect == Ask}
	}
	if i := slices.IndexFunc(j.s.strict.entries, may); i >= 0 {
		return ask(j.s.strict.entries[i])
	}
	for _, e := range j.v.base.entries {
		if e == v.base {
			break // later entries have no effect
		}
		if may(e) {
			return ask(e)
		}
	}
	return v
}

// operand decides a file that a command is known to write or a directory that it enters. Rules
// over all files do not apply, because the rule for the command does.
func (j *judge) operand(c *command, name string) {
	if strings.Contains(name, shell.Hole) || strings.Contains(c.Cwd, shell.Hole) {
		return
	}
	if reads[shell.Base(c.Argv[0])] {
		if at := j.s.locate(ActionRead, name, j.start(c.Cwd)); at.outside != "" && !device(name) {
			j.outside(at)
		}
		return
	}
	if !device(name) {
		j.file(ActionEdit, name, c.Cwd, someFiles)
	}
}

// reads are commands that OpenCode checks with external_directory and that write nothing.
var reads = map[string]bool{"cd": true, "chdir": true, "pushd": true, "popd": true, "cat": true}

// writes are commands that write to all their arguments.
var writes = map[string]bool{
	"rm": true, "rmdir": true, "unlink": true, "shred": true, "mkdir": true, "touch": true, "truncate": true,
	"tee": true, "chmod": true, "chown": true, "chgrp": true,
}

// copies are commands that write to their last argument, or into it if it is a directory.
var copies = map[string]bool{"cp": true, "mv": true, "ln": true, "install": true}

// operands returns the files that a command is known to write, and the directory that it
// enters.
func operands(argv []string) []string {
	base := shell.Base(argv[0])
	switch {
	case reads[base], writes[base]:
		return arguments(argv)
	case copies[base]:
		return targets(base, argv)
	case base == "dd":
		for _, a := range argv[1:] {
			if name, ok := strings.CutPrefix(a, "of="); ok {
				return []string{name}
			}
		}
	case (base == "sed" || base == "perl") && hasShort(argv, 'i'):
		return arguments(argv)
	}
	return nil
}

// arguments returns the elements of argv that are not options.
func arguments(argv []string) []string {
	var all []string
	for i, a := range argv[1:] {
		if a == "--" {
			return append(all, argv[i+2:]...)
		}
		if len(a) > 0 && a[0] != '-' {
			all = append(all, a)
		}
	}
	return all
}

// targets returns the files that a copy writes: its target and, in case that is a directory,
// the files in it. A move also writes its sources.
func targets(base string, argv []string) []string {
	names := arguments(argv)
	dir := ""
	for i, a := range argv {
		switch {
		case a == "-t" && i+1 < len(argv):
			dir = argv[i+1]
		case strings.HasPrefix(a, "--target-directory="):
			dir = strings.TrimPrefix(a, "--target-directory=")
		}
	}
	if dir == "" && len(names) > 0 {
		dir, names = names[len(names)-1], names[:len(names)-1]
	}
	all := []string{dir}
	for _, n := range names {
		all = append(all, path.Join(dir, path.Base(n)))
		if base == "mv" {
			all = append(all, n)
		}
	}
	return all
}

package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// builtins lists the builtin commands of bash and of other shells.
var builtins = set(`: . [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs
	disown echo enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile
	popd printf pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset
	ulimit umask unalias unset wait`)

// builtin records a builtin and applies its effect on the shell to s.
func (r *reader) builtin(s *scope, c call) {
	args := c.args[1:]
	switch name := c.args[0].text; name {
	case "command", "builtin", "exec":
		r.passing(s, c)
		return
	case "eval":
		r.eval(s, c)
		return
	case "trap":
		r.trap(s, c)
		return
	case ".", "source":
		c.opaque = "runs a file in the current shell, which may change the effect of later commands"
		s.forget()
		s.cwd = Hole
		s.given = false
	case "alias", "enable", "bind", "fc", "complete", "compgen", "coproc":
		if len(args) > 0 || name == "fc" {
			r.opaque(name + " redefines commands or runs commands that are not in the line")
		}
	case "hash":
		if len(args) > 0 && (args[0].hole() || args[0].loose() || strings.HasPrefix(args[0].text, "-") && args[0].text != "-r") {
			r.opaque("hash changes the lookup of commands")
		}
	case "cd", "pushd", "popd":
		r.record(s, c, Command{Builtin: true})
		r.cd(s, name, args)
		return
	case "set":
		s.given = false
		for _, a := range args {
			if a.text == "--" {
				break
			}
			if a.hole() || a.loose() || strings.HasPrefix(a.text, "-") && strings.Contains(a.text, "k") {
				r.opaque("set changes the parsing of words")
			}
		}
	case "shift":
		s.given = false
	case "declare", "typeset", "local", "export", "readonly":
		for _, a := range args {
			if a.loose() {
				r.opaque("a declaration of an unknown name")
				s.forget()
				continue
			}
			r.declareOption(s, a.text)
			if plain, _, _ := strings.Cut(a.text, "="); (name == "readonly" || name == "local") && identifier.MatchString(plain) {
				r.fix(s, plain)
			}
		}
	case "let":
		r.opaque("unsupported arithmetic")
		s.forget()
	case "read", "mapfile", "readarray", "getopts", "unset", "printf", "wait":
		r.setter(s, name, args)
	case "test", "[":
		for _, a := range args {
			if a.multi || a.text == "-v" || a.text == "-R" {
				c.opaque = evaluated
			}
		}
	}
	r.record(s, c, Command{Builtin: true})
}

// setter records a builtin that assigns variables named by its arguments.
func (r *reader) setter(s *scope, name string, args []field) {
	if name == "printf" && !(len(args) > 0 && (args[0].hole() || args[0].loose() || strings.HasPrefix(args[0].text, "-v"))) {
		return
	}
	for _, implied := range map[string][]string{
		"read": {"REPLY"}, "mapfile": {"MAPFILE"}, "readarray": {"MAPFILE"}, "getopts": {"OPTARG", "OPTIND"},
	}[name] {
		r.set(s, implied, unknown)
	}
	for _, a := range args {
		text := a.text
		if name == "printf" {
			text = strings.TrimPrefix(text, "-v")
		}
		if a.loose() || a.hole() && name != "printf" || strings.Contains(text, "[") && name != "printf" && strings.ContainsAny(text, "$`"+Hole) {
			r.opaque(name + " with an unknown variable name")
			s.forget()
			return
		}
		if (name == "mapfile" || name == "readarray") && strings.HasPrefix(text, "-C") {
			r.opaque(name + " calls a callback command")
		}
		if name == "printf" && strings.Contains(text, "[") && a.text == args[min(1, len(args)-1)].text {
			r.opaque("printf -v with an unknown variable name")
		}
		if identifier.MatchString(text) {
			if steers(text) && name != "printf" {
				r.opaque("sets " + text + ", which changes the behaviour of programs")
			}
			r.set(s, text, unknown)
			if _, defined := s.funcs[text]; defined && name == "unset" {
				s.funcs[text] = false
			}
		}
	}
}

func (r *reader) cd(s *scope, name string, args []field) {
	r.set(s, "PWD", unknown)
	r.set(s, "OLDPWD", unknown)
	physical := false
	for len(args) > 0 && len(args[0].text) > 1 && strings.HasPrefix(args[0].text, "-") && !args[0].loose() {
		physical = physical || strings.Contains(args[0].text, "P")
		args = args[1:]
	}
	switch {
	case name == "popd" || len(args) > 1 || name == "pushd" && len(args) == 0:
		s.cwd = Hole
	case len(args) == 0 && s.get("HOME").text == home:
		s.cwd = "~"
	case len(args) == 0 || args[0].loose() || args[0].text == "-" || strings.HasPrefix(args[0].text, "+"):
		s.cwd = Hole
	case physical && strings.Contains(args[0].text, ".."):
		s.cwd = Hole
	default:
		s.chdir(args[0].text)
	}
}

// passing records a builtin that starts the command in its arguments.
func (r *reader) passing(s *scope, c call) {
	o := map[string]options{"command": {flags: "pvV"}, "builtin": {}, "exec": {flags: "cl", args: "a"}}[c.args[0].text]
	got, n, bad := o.split(c.args[1:])
	rest := c.args[1+n:]
	switch {
	case bad != "":
		r.fail(s, c, bad)
		s.forget()
		return
	case len(rest) == 0 || has(got, "v", "V"):
		r.record(s, c, Command{Builtin: true})
		return
	}
	inner := c.by(rest, c.args[0].text != "exec")
	r.record(s, c, Command{Builtin: true, Wrapper: true})
	if inner.shell && !rest[0].hole() {
		outer := s.funcs
		s.funcs = map[string]bool{} // functions are bypassed
		defer func() { s.funcs = outer }()
		if !builtins[rest[0].text] {
			inner.shell = c.args[0].text == "builtin"
		}
	}
	r.start(s, inner)
}

func (r *reader) eval(s *scope, c call) {
	var parts []string
	for _, a := range c.args[1:] {
		if a.hole() || a.loose() {
			s.forget()
			s.cwd = Hole
			r.opaque("eval of unknown text")
			r.fail(s, c, "runs unknown text")
			return
		}
		parts = append(parts, a.text)
	}
	r.record(s, c, Command{Builtin: true, Wrapper: true})
	for name, v := range c.env {
		r.set(s, name, v)
	}
	r.script(s, strings.TrimPrefix(strings.Join(parts, " "), "-- "), r.posix, append(slices.Clip(c.via), "eval"))
	for name := range c.env {
		r.set(s, name, unknown)
	}
}

// trap walks a command that runs at a later, unknown time.
func (r *reader) trap(s *scope, c call) {
	args := c.args[1:]
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	if len(args) < 2 || args[0].text == "-" || args[0].text == "" || args[0].text == "-p" || args[0].text == "-l" {
		if len(args) > 0 && (args[0].hole() || args[0].loose()) {
			r.opaque("trap with unknown text")
		}
		r.record(s, c, Command{Builtin: true})
		return
	}
	if args[0].hole() || args[0].loose() {
		r.opaque("trap with unknown text")
		r.fail(s, c, "runs unknown text")
		return
	}
	r.record(s, c, Command{Builtin: true, Wrapper: true})
	later := s.fresh()
	later.cwd = Hole
	r.script(later, args[0].text, r.posix, append(slices.Clip(c.via), "trap"))
	if file, err := syntax.NewParser().Parse(strings.NewReader(args[0].text), ""); err == nil {
		r.vary(s, assignedIn(file))
	}
}

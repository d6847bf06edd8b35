package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// A call is a command whose effect is being determined.
type call struct {
	args   []field
	text   string
	via    []string
	files  files
	in     *input // nil: the standard input of the line's shell
	env    map[string]value
	shell  bool   // the name is resolved by a shell: builtins and functions take precedence
	opaque string // reason why the call is opaque, if known already
}

// by returns the call of args that c starts, through the program or builtin c.
func (c call) by(args []field, shell bool) call {
	return call{args: args, text: c.text, via: append(slices.Clip(c.via), Base(c.args[0].text)), in: c.in, env: c.env, shell: shell}
}

// call walks a simple command.
func (r *reader) call(s *scope, st *syntax.Stmt, n *syntax.CallExpr, in *input) {
	c := call{text: r.written(st), via: r.via, in: in, shell: true}
	c.args = r.fields(s, n.Args)
	var own *input
	c.files, own = r.redirects(s, st)
	if own != nil {
		c.in = own
	}
	c.opaque = c.files.opaque
	c.env = map[string]value{}
	for _, a := range n.Assigns {
		if a.Name == nil {
			continue
		}
		c.env[a.Name.Value] = r.assigned(s, a)
		if steers(a.Name.Value) {
			c.opaque = "sets " + a.Name.Value + ", which changes the behaviour of programs"
		}
	}
	if len(c.args) == 0 { // $EMPTY: only assignments and redirections remain
		for name, v := range c.env {
			r.set(s, name, v)
		}
		if c.opaque != "" {
			r.opaque(c.opaque)
		}
		if !c.files.none() {
			r.record(s, c, Command{})
		}
		return
	}
	r.start(s, c)
}

// record emits c as a command. more contains further properties of it.
func (r *reader) record(s *scope, c call, more Command) {
	for i, a := range c.args {
		more.Argv = append(more.Argv, a.text)
		if a.hole() {
			more.Unknown = append(more.Unknown, i)
		}
		if a.glob {
			more.Globs = append(more.Globs, i)
		}
	}
	more.Text, more.Via = c.text, c.via
	more.Writes = append(c.files.writes, more.Writes...)
	more.Reads = append(c.files.reads, more.Reads...)
	if c.opaque != "" {
		more.Opaque = c.opaque
	}
	r.emit(s, more)
}

// start determines which commands a call starts.
func (r *reader) start(s *scope, c call) {
	r.depth++
	defer func() { r.depth-- }()
	for _, a := range c.args {
		r.work += len(a.text)
	}
	if r.full() {
		return
	}
	name := c.args[0]
	if name.hole() || name.loose() {
		c.opaque = "the name of the command is unknown"
		r.record(s, c, Command{})
		if c.shell { // it may be a builtin such as eval or cd
			s.forget()
			s.cwd = Hole
		}
		return
	}
	if c.shell {
		// Assignments before a builtin or a function may persist after it.
		if _, isFunc := s.funcs[name.text]; isFunc || builtins[name.text] {
			defer func() {
				for env := range c.env {
					r.set(s, env, unknown)
				}
			}()
		}
		if sure, defined := s.funcs[name.text]; defined {
			if !sure {
				c.opaque = "may be a function that the line defines"
				r.record(s, c, Command{})
			} else if !c.files.none() {
				c.args = nil
				r.record(s, c, Command{})
			}
			return
		}
		if builtins[name.text] {
			r.builtin(s, c)
			return
		}
	}
	base := Base(name.text)
	if programs[base] {
		r.program(s, c)
		return
	}
	if w, there := wrappers[base]; there {
		r.wrapper(s, c, w)
		return
	}
	if reason, there := starters[base]; there {
		r.fail(s, c, reason)
		return
	}
	if i, there := interpreters[language(base)]; there {
		r.interpreter(s, c, i)
		return
	}
	r.record(s, c, Command{})
}

// fail records a command whose effect cannot be determined.
func (r *reader) fail(s *scope, c call, reason string) {
	if c.opaque == "" {
		c.opaque = reason
	}
	r.record(s, c, Command{})
}

// within walks a script that c starts, in the scope s.
func (r *reader) within(s *scope, c call, text field, posix bool) {
	if text.hole() || text.loose() {
		r.opaque("a script with unknown text")
		return
	}
	r.script(s, text.text, posix, append(slices.Clip(c.via), Base(c.args[0].text)))
}

// hides reports whether a function of that name would shadow a command with a known meaning.
func hides(name string) bool {
	if builtins[name] || programs[name] {
		return true
	}
	if _, there := wrappers[name]; there {
		return true
	}
	if _, there := starters[name]; there {
		return true
	}
	if _, there := interpreters[language(name)]; there {
		return true
	}
	return strings.Contains(name, "/") || common[name] || name == "command_not_found_handle"
}

// common lists programs whose names have a generally known meaning.
var common = set(`apt apt-get basename cargo cat chgrp chmod chown clear cmp comm cp curl cut date dd df diff
	dirname dnf docker dpkg du expand file fmt fold gcc getent go grep egrep fgrep groups gzip gunzip head hostname id
	install iptables java javac join jq kubectl less link ln ls lsblk make md5sum mkdir mkfifo mknod mktemp more mount mv
	nl npm npx pnpm yarn od patch paste pip pip3 pr ps readlink realpath rg rm rmdir rsync scp seq service sftp sha256sum
	shred shuf sleep sort split stat sync systemctl tac tail tar tee touch tr tree truncate tsort tty umount uname uniq
	unlink unzip uptime uv vi vim nano wc wget whereis which who whoami xz yum zip zcat`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

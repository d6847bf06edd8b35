package shell

import "strings"

// quiet lists settings of git that start no programs.
var quiet = set(`user.name user.email author.name author.email committer.name committer.email core.quotepath core.autocrlf
	core.filemode core.ignorecase core.abbrev core.longpaths core.compression init.defaultbranch commit.gpgsign tag.gpgsign
	advice.detachedhead safe.directory color.ui color.diff color.status color.branch log.showsignature diff.renames
	diff.context merge.conflictstyle merge.ff pull.rebase pull.ff push.default push.autosetupremote gc.auto fetch.prune
	rebase.autostash status.short http.postbuffer protocol.version submodule.recurse feature.manyfiles index.threads
	pack.threads i18n.commitencoding column.ui`)

func (r *reader) git(s *scope, c call) {
	o := options{flags: "pPhv", args: "Cc", longs: `git-dir= work-tree= namespace= no-pager paginate bare no-replace-objects
		literal-pathspecs glob-pathspecs noglob-pathspecs icase-pathspecs no-optional-locks no-advice html-path man-path info-path
		help version exec-path super-prefix=`}
	got, n, bad := o.split(c.args[1:])
	if bad != "" {
		r.fail(s, c, "git: "+bad)
		return
	}
	for _, g := range got {
		key, _, _ := strings.Cut(g.value.text, "=")
		if g.name == "c" && (g.value.loose() || !quiet[strings.ToLower(key)]) {
			c.opaque = "git uses the setting " + printable(key)
		}
	}
	for _, a := range c.args[1+n:] {
		if strings.HasPrefix(a.text, "ext::") || strings.Contains(a.text, Hole+"::") {
			c.opaque = "the git remote is a command"
		}
	}
	rest := c.args[1+n:]
	if len(rest) == 0 {
		r.record(s, c, Command{})
		return
	}
	if rest[0].hole() || rest[0].loose() {
		r.fail(s, c, "an unknown git command")
		return
	}
	text, found := r.gitText(&c, rest[0].text, rest[1:])
	r.record(s, c, Command{})
	in := s.fresh()
	in.cwd = Hole
	for _, t := range text {
		r.within(in, c, t, true)
	}
	if found != nil {
		r.start(in, c.by(found, false))
	}
}

// gitText returns the commands that a git command starts: texts for a shell, or an argument
// vector.
func (r *reader) gitText(c *call, name string, args []field) (text []field, cmd []field) {
	for i, a := range args {
		if a.multi || strings.HasPrefix(a.text, Hole) {
			switch name {
			case "submodule", "bisect", "rebase", "config", "filter-branch", "difftool", "mergetool", "for-each-repo":
				c.opaque = "git has an unknown argument"
			}
		}
		value := field{text: Hole, multi: true}
		if i+1 < len(args) {
			value = args[i+1]
		}
		option, attached, is := strings.Cut(a.text, "=")
		if is {
			value = field{text: attached}
		}
		switch {
		case name == "rebase" && (option == "--exec" || a.text == "-x"):
			text = append(text, value)
		case name == "rebase" && strings.HasPrefix(a.text, "-x"):
			text = append(text, field{text: a.text[2:]})
		case strings.HasPrefix(option, "--") && len(option) > 2 && startsFor(name, option):
			c.opaque = "git starts another program: " + printable(option)
		case (name == "clone" || name == "ls-remote") && a.text == "-u", name == "grep" && strings.HasPrefix(a.text, "-O"),
			name == "difftool" && a.text == "-x", name == "clone" && a.text == "-c":
			c.opaque = "git starts another program: " + a.text
		}
	}
	switch {
	case name == "submodule" || name == "bisect":
		verb := map[string]string{"submodule": "foreach", "bisect": "run"}[name]
		for i, a := range args {
			if a.text != verb {
				continue
			}
			args = args[i+1:]
			if name == "bisect" {
				return text, args
			}
			for len(args) > 0 && (args[0].text == "--recursive" || args[0].text == "-q" || args[0].text == "--quiet") {
				args = args[1:]
			}
			return append(text, joined(args)), nil
		}
	case name == "config":
		r.gitConfig(c, args)
	case name == "filter-branch" || name == "for-each-repo" || name == "mergetool" || name == "difftool" || name == "instaweb" ||
		name == "send-email" || name == "citool" || name == "gui" || name == "shell" || name == "upload-pack" || name == "receive-pack":
		c.opaque = "git " + name + " starts other programs"
	}
	return text, nil
}

// startsFor reports whether an option, or an option that it may abbreviate, names a program.
func startsFor(name, option string) bool {
	for _, o := range []string{"--upload-pack", "--receive-pack", "--exec", "--open-files-in-pager", "--extcmd", "--config", "--template", "--config-env"} {
		if strings.HasPrefix(o, option) || option == o {
			switch o {
			case "--config", "--template":
				if name == "clone" || name == "init" {
					return true
				}
			case "--exec":
				if name == "push" || name == "archive" || name == "ls-remote" || name == "fetch" || name == "send-pack" || name == "fetch-pack" {
					return true
				}
			default:
				return true
			}
		}
	}
	return false
}

// gitConfig checks a persistent setting, which affects later commands.
func (r *reader) gitConfig(c *call, args []field) {
	var operands []string
	for _, a := range args {
		switch {
		case a.text == "--edit" || a.text == "-e" || a.text == "edit":
			c.opaque = "git config starts an editor"
		case strings.HasPrefix(a.text, "-"):
			if a.text == "--get" || a.text == "--get-all" || a.text == "--list" || a.text == "-l" || a.text == "--unset" {
				return
			}
		default:
			operands = append(operands, a.text)
		}
	}
	if len(operands) > 1 && (operands[0] == "set" || operands[0] == "add") {
		operands = operands[1:]
	}
	if len(operands) > 1 && operands[0] != "get" && operands[0] != "list" && operands[0] != "unset" && !quiet[strings.ToLower(operands[0])] {
		c.opaque = "git uses the setting " + printable(operands[0])
	}
}

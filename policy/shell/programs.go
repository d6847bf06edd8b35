package shell

import (
	"path"
	"slices"
	"strings"
)

// programs lists the programs that can start others by their own means.
var programs = set(`bash rbash sh dash ash xargs find ssh su runuser git awk gawk mawk nawk original-awk sed gsed parallel
	tar bsdtar cpio rsync scp sftp man sort split wget ip nix npx npm deno bun psql mysql mariadb sqlite3 tcpdump zip rpm apt
	apt-get go gcc g++ cc cmake rg fd fdfind ag ack bat`)

func (r *reader) program(s *scope, c call) {
	switch base := Base(c.args[0].text); base {
	case "bash", "rbash", "sh", "dash", "ash":
		r.shell(s, c)
	case "xargs":
		r.xargs(s, c)
	case "find":
		r.find(s, c)
	case "ssh":
		r.ssh(s, c)
	case "su", "runuser":
		r.su(s, c)
	case "git":
		r.git(s, c)
	case "sed", "gsed":
		r.sed(s, c)
	case "awk", "gawk", "mawk", "nawk", "original-awk":
		r.awk(s, c)
	case "parallel":
		r.fail(s, c, "inserts its input into the text of a shell command")
	default:
		r.risky(s, c, base)
	}
}

// shell records a POSIX shell or bash, and walks the script that it runs.
func (r *reader) shell(s *scope, c call) {
	posix := Base(c.args[0].text) != "bash" && Base(c.args[0].text) != "rbash"
	args := c.args[1:]
	command, stdin := false, false
	for len(args) > 0 {
		a := args[0]
		if a.loose() || strings.HasPrefix(a.text, Hole) {
			r.fail(s, c, "an option with unknown text")
			return
		}
		if a.text == "--" || a.text == "-" {
			args = args[1:]
			break
		}
		if len(a.text) < 2 || a.text[0] != '-' && a.text[0] != '+' {
			break
		}
		args = args[1:]
		switch a.text {
		case "--login", "--noprofile", "--norc", "--posix", "--restricted", "--verbose":
			continue
		case "--version", "--help":
			r.record(s, c, Command{})
			return
		}
		for _, o := range a.text[1:] {
			switch {
			case o == 'c':
				command = true
			case o == 's':
				stdin = true
			case o == 'o' || o == 'O':
				if len(args) == 0 || args[0].loose() {
					r.fail(s, c, "an option with unknown text")
					return
				}
				args = args[1:]
			case !strings.ContainsRune("abefhlmnprtuvxBCEHPT", o):
				r.fail(s, c, "unknown option "+printable(a.text))
				return
			}
		}
	}
	in := s.fresh()
	for name, v := range c.env {
		in.vars[name] = v
	}
	switch {
	case command && len(args) > 0:
		in.params, in.given = args[1:], true
		if len(args) == 1 {
			in.params = c.args[:1]
		}
		if args[0].hole() || args[0].loose() {
			r.fail(s, c, "runs a script with unknown text")
			return
		}
		r.record(s, c, Command{Wrapper: true})
		r.within(in, c, args[0], posix)
	case command:
		r.record(s, c, Command{})
	case stdin || len(args) == 0 || isStdin(args[0].text):
		if c.in == nil || !c.in.known {
			r.fail(s, c, "runs its standard input, which is unknown")
			return
		}
		in.params, in.given = args, true
		if stdin || len(args) == 0 { // otherwise $0 is the file
			in.params = append(c.args[:1:1], args...)
		}
		r.record(s, c, Command{Wrapper: true})
		self := len(r.line.Commands)
		r.within(in, c, field{text: c.in.text}, posix)
		if r.readsItself(self) {
			r.line.Commands[self-1].Opaque = "its commands may read the rest of the script"
		}
	case fromDescriptor(args[0]):
		r.fail(s, c, "runs its standard input, which is unknown")
	default:
		r.record(s, c, Command{})
	}
}

// leaving lists programs that do not read their standard input. A shell that reads its script
// from there continues with the next command after them.
var leaving = set(`basename cargo chgrp chmod chown cp date df dirname du env go hostname id ln ls make mkdir mktemp mv nice
	nohup npm pnpm ps pytest readlink realpath rm rmdir sleep stat sync timeout touch uname whoami yarn`)

// readsItself reports whether a command from index n may read the script that it is part of, so
// that the following commands are not reliable.
func (r *reader) readsItself(n int) bool {
	return r.selects || slices.ContainsFunc(r.line.Commands[n:], func(c Command) bool {
		if slices.ContainsFunc(c.Reads, isStdin) || len(c.Argv) > 0 && c.Opaque != "" {
			return true
		}
		if len(c.Argv) == 0 {
			return false
		}
		name := Base(c.Argv[0])
		if slices.Contains([]string{"cp", "ln", "mv", "rm"}, name) {
			for _, a := range c.Argv[1:] { // -i prompts and reads the answer
				if strings.HasPrefix(a, "-") && strings.Contains(a, "i") || strings.HasPrefix(a, Hole) {
					return true
				}
			}
		}
		return !leaving[name] && (!builtins[name] || name == "read" || name == "mapfile" || name == "readarray")
	})
}

func isStdin(file string) bool {
	return slices.Contains([]string{"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}, path.Clean(file))
}

// fromDescriptor reports whether a file may be an open descriptor instead of a named file, so
// that its text cannot be inspected later.
func fromDescriptor(a field) bool {
	return a.loose() || strings.HasPrefix(a.text, Hole) || isStdin(a.text) ||
		strings.HasPrefix(path.Clean(a.text), "/dev/") || strings.HasPrefix(path.Clean(a.text), "/proc/")
}

func (r *reader) xargs(s *scope, c call) {
	o := options{flags: "0prtxo", args: "adEILnPs", maybe: "eil",
		longs: "null arg-file= delimiter= eof? replace? max-lines? max-args= max-procs= interactive no-run-if-empty max-chars= verbose exit show-limits open-tty process-slot-var= help version"}
	got, n, bad := o.split(c.args[1:])
	if bad != "" {
		r.fail(s, c, bad)
		return
	}
	if file, there := find(got, "a", "arg-file"); there {
		c.files.reads = append(c.files.reads, file.text)
	}
	rest := slices.Clone(c.args[1+n:])
	if len(rest) == 0 || has(got, "help", "version") {
		r.record(s, c, Command{Wrapper: true}) // without a command, xargs runs echo
		return
	}
	r.record(s, c, Command{Wrapper: true})
	mark, replaced := find(got, "I", "i", "replace")
	if !replaced {
		rest = append(rest, field{text: Hole, multi: true})
	} else {
		if mark.text == "" {
			mark.text = "{}"
		}
		for i := range rest {
			rest[i].text = strings.ReplaceAll(rest[i].text, mark.text, Hole)
		}
	}
	inner := c.by(rest, false)
	inner.in = piped
	r.start(s.fresh(), inner)
}

// arity is the number of arguments of the supported expressions of find.
var arity = func() map[string]int {
	m := map[string]int{"-fprintf": 2}
	for name := range set(`-print -print0 -prune -quit -ls -depth -d -mount -xdev -daystart -follow -noleaf -warn -nowarn -nogroup
		-nouser -empty -readable -writable -executable -true -false -not -and -or -a -o -ignore_readdir_race
		-noignore_readdir_race -H -L -P -help --help -version --version ( ) ! ,`) {
		m[name] = 0
	}
	for name := range set(`-name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type -xtype -size -perm
		-user -group -uid -gid -newer -anewer -cnewer -mtime -mmin -atime -amin -ctime -cmin -maxdepth -mindepth -inum -links
		-samefile -fstype -regextype -printf -used -context -fprint -fprint0 -fls -files0-from`) {
		m[name] = 1
	}
	return m
}()

func (r *reader) find(s *scope, c call) {
	var started [][]field
	args := c.args[1:]
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a.multi || strings.HasPrefix(a.text, Hole) || a.glob && (matches(a.text, "-exec") || matches(a.text, "-delete")) {
			r.fail(s, c, "an expression with unknown text")
			return
		}
		n, there := arity[a.text]
		switch {
		case there:
			if strings.HasPrefix(a.text, "-f") && n > 0 && a.text != "-fstype" && a.text != "-files0-from" && i+1 < len(args) {
				c.files.writes = append(c.files.writes, args[i+1].text)
			}
			i += n
		case a.text == "-exec" || a.text == "-execdir" || a.text == "-ok" || a.text == "-okdir":
			end := i + 1
			for end < len(args) && args[end].text != ";" && !(args[end].text == "+" && args[end-1].text == "{}") {
				end++
			}
			started = append(started, args[i+1:end])
			i = end
		case a.text == "-delete":
			c.opaque = "deletes the files that it finds"
		case strings.HasPrefix(a.text, "-newer") && len(a.text) == 8:
			i++
		case strings.HasPrefix(a.text, "-O") || !strings.HasPrefix(a.text, "-"):
		default:
			c.opaque = "an unknown expression: " + printable(a.text)
		}
	}
	r.record(s, c, Command{})
	for _, cmd := range started {
		inner := slices.Clone(cmd)
		for i := range inner {
			if strings.Contains(inner[i].text, "{}") {
				inner[i].text = strings.ReplaceAll(inner[i].text, "{}", Hole)
				inner[i].multi = inner[i].multi || inner[i].text == Hole
			}
		}
		if len(inner) > 0 {
			in := s.fresh()
			in.cwd = Hole
			call := c.by(inner, false)
			r.start(in, call)
		}
	}
}

func matches(glob, name string) bool {
	ok, err := path.Match(glob, name)
	return ok || err != nil
}

// quietSSH lists settings of ssh that start no programs.
var quietSSH = set(`stricthostkeychecking userknownhostsfile connecttimeout batchmode loglevel serveraliveinterval
	serveralivecountmax port user identityfile identitiesonly passwordauthentication preferredauthentications compression`)

func (r *reader) ssh(s *scope, c call) {
	o := options{flags: "46AaCfGgKkMNnqsTtVvXxYy", args: "BbcDEeFIiJLlmOoPpQRSWw"}
	got, n, bad := o.split(c.args[1:])
	rest := c.args[1+n:]
	if bad == "" && len(rest) > 0 { // options may follow the host
		var more []option
		if rest[0].loose() {
			bad = "an unknown host"
		}
		more, n, bad2 := o.split(rest[1:])
		if bad == "" {
			bad = bad2
		}
		got, rest = append(got, more...), rest[1+n:]
	}
	for _, g := range got {
		key, _, _ := strings.Cut(strings.ReplaceAll(g.value.text, " ", "="), "=")
		if g.name == "F" || g.name == "I" || g.name == "S" || g.name == "o" && !quietSSH[strings.ToLower(key)] {
			bad = "an option that can start other programs"
		}
	}
	switch {
	case bad != "":
		r.fail(s, c, bad)
	case has(got, "V", "Q", "O", "N", "W", "s", "G"):
		r.record(s, c, Command{})
	case len(rest) == 0:
		r.fail(s, c, startsShell)
	default:
		r.record(s, c, Command{})
		in := r.newScope()
		in.lost, in.remote, in.cwd = true, true, Hole
		r.within(in, c, joined(rest), true)
	}
}

func (r *reader) su(s *scope, c call) {
	o := options{flags: "flmpP-", args: "cgGswu", longs: "command= session-command= group= supp-group= shell= whitelist-environment= user= fast login preserve-environment pty help version"}
	var got []option
	var operands []field
	for args := c.args[1:]; len(args) > 0; { // options and operands may be mixed
		more, n, bad := o.split(args)
		if bad != "" {
			r.fail(s, c, bad)
			return
		}
		got = append(got, more...)
		if args = args[n:]; len(args) > 0 {
			if n > 0 && c.args[len(c.args)-len(args)-1].text == "--" {
				operands = append(operands, args...)
				break
			}
			operands, args = append(operands, args[0]), args[1:]
		}
	}
	text, there := find(got, "c", "command", "session-command")
	switch {
	case has(got, "help", "version"):
		r.record(s, c, Command{})
	case has(got, "s", "shell"):
		r.fail(s, c, "starts an unknown shell")
	case !there && has(got, "u", "user") && len(operands) > 0:
		r.record(s, c, Command{})
		in := s.clone()
		in.remote = true
		inner := c.by(operands, false)
		inner.in = piped // su reads a password first
		r.start(in, inner)
	case !there || len(operands) > 2:
		r.fail(s, c, startsShell)
	case text.hole() || text.loose():
		r.fail(s, c, "runs a script with unknown text")
	default:
		r.record(s, c, Command{})
		in := s.fresh()
		in.remote = true
		r.within(in, c, text, true)
	}
}

// risks maps programs to the options with which they start others.
var risks = map[string]string{
	"tar":     "-I -F --to-command --checkpoint-action --use-compress-program --rmt-command --rsh-command --info-script --new-volume-script",
	"bsdtar":  "--use-compress-program",
	"rsync":   "-e --rsh --rsync-path",
	"man":     "-P -H --pager --html --preprocessor",
	"sort":    "--compress-program",
	"split":   "--filter",
	"wget":    "-e --execute --use-askpass",
	"cpio":    "--rsh-command -F",
	"scp":     "-S -o -F",
	"sftp":    "-S -o -F -b -s",
	"rpm":     "--eval --define --pipe --load --macros -E -D",
	"apt":     "-o -c --option --config-file",
	"apt-get": "-o -c --option --config-file",
	"go":      "-exec -toolexec -vettool",
	"gcc":     "-wrapper -fplugin -specs --specs",
	"g++":     "-wrapper -fplugin -specs --specs",
	"cc":      "-wrapper -fplugin -specs --specs",
	"cmake":   "-E -P",
	"rg":      "--pre --hostname-bin",
	"fd":      "-x -X --exec --exec-batch",
	"fdfind":  "-x -X --exec --exec-batch",
	"ag":      "--pager",
	"ack":     "--pager",
	"bat":     "--pager",
	"tcpdump": "-z",
	"zip":     "-T --unzip-command",
	"npx":     "-c --call",
	"npm":     "-c --call --script-shell",
	"ip":      "exec -b -batch -force",
	"nix":     "-c --command run shell develop repl eval --expr --option",
	"deno":    "eval repl -",
	"bun":     "-e --eval -p --print exec repl -",
	"psql":    `\!`,
	"mysql":   `\! system --pager`,
	"mariadb": `\! system --pager`,
	"sqlite3": ".sh .sy .import .load .once .output .excel -init edit( load_extension",
}

// risky records a program that starts others only with certain options.
func (r *reader) risky(s *scope, c call, base string) {
	database := base == "psql" || base == "mysql" || base == "mariadb" || base == "sqlite3"
	for _, a := range c.args[1:] {
		for risk := range strings.FieldsSeq(risks[base]) {
			name, _, _ := strings.Cut(a.text, "=")
			short := len(risk) == 2 && risk[0] == '-'
			long := strings.HasPrefix(risk, "--")
			switch {
			case a.multi || strings.HasPrefix(a.text, Hole) || database && a.hole(),
				short && strings.HasPrefix(a.text, "-") && !strings.HasPrefix(a.text, "--") && strings.Contains(a.text, risk[1:]),
				base == "tar" && short && strings.Contains(c.args[1].text, risk[1:]) && !strings.ContainsAny(c.args[1].text, "/.-"),
				long && len(name) > 2 && strings.HasPrefix(risk, name), // GNU options may be abbreviated (getopt_long(3))
				!long && !short && risk[0] == '-' && "-"+strings.TrimLeft(name, "-") == risk,
				!strings.HasPrefix(risk, "-") && (a.text == risk || database && strings.Contains(a.text, risk)):
				r.fail(s, c, "may start other programs: "+risk)
				return
			}
		}
	}
	if database && (c.in == nil || !c.in.known || strings.ContainsAny(c.in.text, `\.`) || strings.Contains(c.in.text, "system")) && len(c.args) < 3 {
		r.fail(s, c, "runs its standard input, which is unknown")
		return
	}
	r.record(s, c, Command{})
}

package shell

import "strings"

// A wrapper is a program that starts the command at the end of its arguments.
type wrapper struct {
	options
	operands int    // number before the command, such as timeout's duration
	assigns  bool   // NAME=VALUE may precede the command
	changes  bool   // changes the user, the root or the namespaces of the command
	none     string // options with which no command is started
	bare     string // reason for Opaque if the command is missing
}

const startsShell = "starts a shell with unknown input"

var wrappers = map[string]wrapper{
	"env": {options: options{flags: "i0v", args: "uCSa",
		longs: "ignore-environment null unset= chdir= split-string= block-signal? default-signal? ignore-signal? list-signal-handling debug argv0="},
		assigns: true},
	"nice":    {options: options{args: "n", longs: "adjustment=", digit: true}},
	"nohup":   {},
	"setsid":  {options: options{flags: "cfw", longs: "ctty fork wait"}},
	"stdbuf":  {options: options{args: "ioe", longs: "input= output= error="}},
	"timeout": {options: options{flags: "fpv", args: "ks", longs: "foreground preserve-status verbose kill-after= signal="}, operands: 1},
	"time":    {options: options{flags: "apqv", args: "fo", longs: "append portability quiet verbose format= output="}},
	"ionice": {options: options{flags: "t", args: "cnpPu", longs: "ignore class= classdata= pid= pgid= uid="},
		none: "p P u pid pgid uid"},
	"choom":     {options: options{args: "np", longs: "adjust= pid="}, none: "p pid"},
	"taskset":   {options: options{flags: "acp", longs: "all-tasks cpu-list pid"}, operands: 1, none: "p pid"},
	"eatmydata": {},
	"unbuffer":  {options: options{flags: "p"}},
	"catchsegv": {},
	"flock":     {options: options{flags: "sxeunoFv", args: "wE", longs: "shared exclusive unlock nonblock nonblocking nb timeout= wait= conflict-exit-code= close no-fork verbose"}, operands: 1},
	"watch":     {options: options{flags: "bcCefgprtwx", args: "nqs", maybe: "d", longs: "beep color no-color differences? errexit follow chgexit interval= precise equexit= no-rerun shotsdir= no-title no-wrap exec"}},
	"busybox":   {},
	"toybox":    {},
	"fakeroot":  {options: options{flags: "uv", args: "lfsib", longs: "lib= faked= unknown-is-real"}, changes: true, bare: startsShell},
	"gosu":      {operands: 1, changes: true},
	"su-exec":   {operands: 1, changes: true},
	"pkexec":    {options: options{longs: "disable-internal-agent keep-cwd user="}, changes: true, bare: startsShell},
	"doas":      {options: options{flags: "Lns", args: "aCu"}, changes: true, none: "L C", bare: startsShell},
	"chroot":    {options: options{longs: "groups= userspec= skip-chdir"}, operands: 1, changes: true, bare: startsShell},
	"sudo": {options: options{flags: "AbBeHiKklnNPSsVv", args: "CDghpRrtTUu",
		longs: "askpass background bell edit set-home login remove-timestamp reset-timestamp list non-interactive no-update preserve-env? preserve-groups stdin shell validate close-from= chdir= group= host= prompt= chroot= role= type= command-timeout= other-user= user="},
		assigns: true, changes: true, none: "l list v validate K k remove-timestamp reset-timestamp V", bare: startsShell},
	"unshare": {options: options{flags: "muinpCTUrcf", args: "RwSGl",
		longs: "mount? uts? ipc? net? pid? user? cgroup? time? mount-proc? map-user= map-group= map-users= map-groups= map-root-user map-current-user map-auto map-subids keep-caps fork kill-child? propagation= setgroups= monotonic= boottime= root= wd= setuid= setgid="},
		changes: true, bare: startsShell},
	"nsenter": {options: options{flags: "aeFZ", args: "tSGWN", maybe: "muinpCUTrw",
		longs: "all target= mount? uts? ipc? net? pid? cgroup? user? time? setuid= setgid= preserve-credentials root? wd? wdns= env no-fork follow-context"},
		changes: true, bare: startsShell},
}

// wrapper records a wrapper and the command that it starts.
func (r *reader) wrapper(s *scope, c call, w wrapper) {
	base := Base(c.args[0].text)
	w.longs += " help version"
	got, n, bad := w.split(c.args[1:])
	rest := c.args[1+n:]
	switch {
	case bad != "":
		r.fail(s, c, bad)
		return
	case has(got, strings.Fields(w.none+" help version")...) && (len(rest) == 0 || !has(got, "k", "K")):
		r.record(s, c, Command{})
		return
	case has(got, "S", "split-string") && base == "env":
		r.envSplit(s, c, got, rest)
		return
	case base == "sudo" && has(got, "e", "edit"):
		r.fail(s, c, "starts an unknown editor")
		return
	case len(rest) < w.operands:
		r.record(s, c, Command{})
		return
	}
	for _, a := range rest[:w.operands] {
		if a.loose() {
			r.fail(s, c, "an argument with unknown text")
			return
		}
	}
	operands, rest := rest[:w.operands], rest[w.operands:]
	in := r.wrapped(s, &c, base, got, operands)
	if w.assigns {
		if base == "env" && len(rest) > 0 && rest[0].text == "-" {
			rest = rest[1:]
		}
		rest = environment(&c, rest)
	}
	if len(rest) == 0 {
		if w.bare != "" || base == "sudo" {
			c.opaque = w.bare
		}
		r.record(s, c, Command{})
		return
	}
	if w.changes {
		in.remote = true
	}
	r.record(s, c, Command{Wrapper: !w.changes})
	switch {
	case base == "watch" && !has(got, "x", "exec"), base == "flock" && (rest[0].text == "-c" || rest[0].text == "--command"):
		if base == "flock" {
			rest = rest[1:]
		}
		r.within(in.fresh(), c, joined(rest), true)
	case (base == "busybox" || base == "toybox") && strings.HasPrefix(rest[0].text, "-"):
	default:
		inner := c.by(rest, false)
		if base == "sudo" && has(got, "S", "stdin") || base == "doas" || base == "pkexec" {
			inner.in = piped // the program reads a password first
		}
		r.start(in, inner)
	}
}

// wrapped returns the scope of the command that a wrapper starts. It adds the files that the
// wrapper opens to c.
func (r *reader) wrapped(s *scope, c *call, base string, got []option, operands []field) *scope {
	in := s.clone()
	switch base {
	case "env", "sudo":
		if dir, there := find(got, map[string]string{"env": "C", "sudo": "D"}[base], "chdir"); there {
			in.chdir(dir.text)
		}
		if has(got, "R", "chroot", "i", "login") && base == "sudo" {
			in.cwd = Hole
		}
	case "chroot", "unshare", "nsenter":
		if base == "chroot" || has(got, "R", "r", "w", "W", "m", "a", "root", "wd", "mount", "all", "wdns") {
			in.cwd = Hole
		}
	case "time":
		if file, there := find(got, "o", "output"); there {
			c.files.writes = append(c.files.writes, file.text)
		}
	case "flock":
		if !descriptor(operands[0].text) {
			c.files.writes = append(c.files.writes, operands[0].text)
		}
	}
	return in
}

// environment removes the assignments before a command.
func environment(c *call, rest []field) []field {
	env := map[string]value{}
	for name, v := range c.env {
		env[name] = v
	}
	for len(rest) > 0 && !rest[0].loose() {
		name, v, there := strings.Cut(rest[0].text, "=")
		if !there || strings.Contains(name, Hole) {
			break
		}
		if steers(name) {
			c.opaque = "sets " + printable(name) + ", which changes the behaviour of programs"
		}
		env[name] = known(v)
		rest = rest[1:]
	}
	c.env = env
	return rest
}

// envSplit handles env -S, which splits a string into arguments. Quotes, backslashes and
// variables are unsupported.
func (r *reader) envSplit(s *scope, c call, got []option, rest []field) {
	text, _ := find(got, "S", "split-string")
	if text.hole() || strings.ContainsAny(text.text, "'\"\\$#") {
		r.fail(s, c, "env -S splits an unsupported text")
		return
	}
	args := []field{c.args[0]}
	for part := range strings.FieldsSeq(text.text) {
		args = append(args, field{text: part})
	}
	args = append(args, rest...)
	r.record(s, c, Command{Wrapper: true})
	if len(args) == 1 {
		return
	}
	again := c.by(args, false)
	again.via = c.via
	r.start(s, again)
}

// joined returns the concatenation that ssh and similar programs make of several arguments.
func joined(args []field) field {
	var all []string
	f := field{}
	for _, a := range args {
		all = append(all, a.text)
		f.multi = f.multi || a.loose()
	}
	f.text = strings.Join(all, " ")
	return f
}

// starters lists programs that start others by means that are not analysed.
var starters = func() map[string]string {
	m := map[string]string{}
	add := func(reason, names string) {
		for name := range strings.FieldsSeq(names) {
			m[name] = reason
		}
	}
	add("is a shell with an unsupported language", "ksh ksh93 mksh lksh pdksh zsh fish csh tcsh yash elvish nu xonsh pwsh powershell rc es oil osh ysh")
	add("starts other programs", `strace ltrace gdb lldb valgrind perf script systemd-run bwrap firejail proot fakechroot xvfb-run
		dbus-run-session start-stop-daemon tmux screen dtach abduco at batch crontab entr inotifywait watchexec nodemon tini dumb-init
		setpriv runcon chrt numactl prlimit cgexec setarch linux32 linux64 i386 x86_64 chpst softlimit run-parts runit sv
		capsh newgrp sg machinectl systemd-nspawn lxc-attach rlwrap expect socat ncat nc netcat telnet ld.so
		ld-linux-x86-64.so.2 ld-linux.so.2 ld-linux-aarch64.so.1 ld-musl-x86_64.so.1 nix-shell torsocks proxychains proxychains4
		torify sshpass autossh mosh rsh rlogin rexec pdsh clush ansible sem logsave daemonize daemon forever ifne
		chronic mispipe pee trickle cpulimit faketime tsocks annotate-output hyperfine multitime reptyr fzf ssh-agent
		dbus-launch systemd-inhibit systemd-cat run0 wine xterm urxvt rxvt gnome-terminal konsole x-terminal-emulator kitty alacritty
		xdg-open`)
	add("is an editor that can start other programs", "vi vim nvim view rvim vimdiff gvim ex ed red emacs emacsclient")
	add("runs program text", "m4 dc bc gnuplot maxima gp jshell ghci irb iex clisp scheme debugfs")
	return m
}()

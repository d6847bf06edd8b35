package shell

import (
	"maps"
	"path"
	"regexp"
	"strings"
)

// A value is the value of a variable, with Holes for unknown parts.
type value struct {
	text   string
	number bool // a number, possibly an unknown one
}

var (
	unknown    = value{text: Hole}
	someNumber = value{text: Hole, number: true}
)

func known(text string) value {
	return value{text: text, number: isNumber(text)}
}

var numeral = regexp.MustCompile(`^-?[0-9]*$`)

func isNumber(s string) bool { return numeral.MatchString(s) }

// A scope is the known state of a shell at one point of a script.
type scope struct {
	vars   map[string]value // assigned by the line; all others are unknown
	lost   bool             // any variable may have been assigned
	funcs  map[string]bool  // defined functions; false if the definition is uncertain
	params []field          // $0, $1, …
	given  bool             // params are known
	cwd    string           // as in Command
	work   *int             // the walker's work counter, for copies
	remote bool             // on another machine, or with another user's home
}

func (w *walker) newScope() *scope {
	return &scope{work: &w.work, vars: map[string]value{}, funcs: map[string]bool{}}
}

// clone returns an independent copy of s.
func (s *scope) clone() *scope {
	*s.work += 10 + 50*(len(s.vars)+len(s.funcs))
	c := *s
	c.vars, c.funcs = maps.Clone(s.vars), maps.Clone(s.funcs)
	return &c
}

// fresh returns the scope of a shell that s starts: it inherits the directory, and its
// variables are unknown.
func (s *scope) fresh() *scope {
	return &scope{work: s.work, vars: map[string]value{}, funcs: map[string]bool{}, cwd: s.cwd, remote: s.remote, lost: true}
}

// join sets s to the state that all branches have in common. One of them may have run.
func (s *scope) join(branches ...*scope) {
	for _, b := range branches {
		for name, v := range b.vars {
			s.vars[name] = either(s.vars, name, v)
		}
		for name, v := range s.vars {
			if _, there := b.vars[name]; !there {
				s.vars[name] = either(b.vars, name, v)
			}
		}
		for name, sure := range b.funcs {
			s.funcs[name] = s.funcs[name] && sure
		}
		for name, sure := range s.funcs {
			s.funcs[name] = b.funcs[name] && sure
		}
		if b.cwd != s.cwd {
			s.cwd = Hole
		}
		s.lost = s.lost || b.lost
		s.given = s.given && b.given
	}
}

func either(vars map[string]value, name string, v value) value {
	switch o, there := vars[name]; {
	case there && o == v:
		return v
	case there && o.number && v.number:
		return someNumber
	}
	return unknown
}

// numbers lists the variables that the shell sets itself, always to numbers.
var numbers = map[string]bool{
	"?": true, "#": true, "$": true, "!": true,
	"RANDOM": true, "SECONDS": true, "LINENO": true, "UID": true, "EUID": true, "PPID": true,
	"BASHPID": true, "EPOCHSECONDS": true, "SHLVL": true, "SRANDOM": true,
}

func (s *scope) get(name string) value {
	if v, there := s.vars[name]; there {
		return v
	}
	switch {
	case numbers[name]:
		return someNumber
	case name == "HOME" && !s.lost && !s.remote:
		return known(home)
	}
	return unknown
}

// forget marks all variables as unknown.
func (s *scope) forget() {
	s.vars, s.lost = map[string]value{}, true
}

// dynamic lists the variables that bash sets itself or protects from assignment. Their values
// may differ from the assigned ones.
var dynamic = set(`_ FUNCNAME GROUPS DIRSTACK PIPESTATUS EPOCHREALTIME HISTCMD COLUMNS LINES COMP_WORDBREAKS COMP_LINE
	COMP_POINT COMP_KEY COMP_TYPE COMP_WORDS COMP_CWORD`)

func (w *walker) set(s *scope, name string, v value) {
	if dynamic[name] || numbers[name] || strings.HasPrefix(name, "BASH") {
		return
	}
	if len(v.text) > maxValue {
		v = unknown
	}
	numeric, volatile := w.volatile[name]
	switch {
	case w.allVolatile:
		v = unknown
	case volatile && numeric && v.number:
		v = someNumber
	case volatile:
		v = unknown
	}
	s.vars[name] = v
}

// fix marks a variable as unknown permanently: it is read-only, and the effect of an assignment
// depends on its form.
func (w *walker) fix(s *scope, name string) {
	w.volatile[name] = false
	w.set(s, name, unknown)
}

// chdir changes the directory of s. dir may contain Holes.
func (s *scope) chdir(dir string) {
	switch {
	case strings.Contains(dir, Hole):
		s.cwd = Hole
	case path.IsAbs(dir) || dir == "~" || strings.HasPrefix(dir, "~/"):
		s.cwd = path.Clean(dir)
	case s.cwd != Hole:
		s.cwd = path.Join(s.cwd, dir)
	}
	if s.cwd == "." {
		s.cwd = ""
	}
}

// steering lists variables that change the behaviour of programs or select which programs
// start. Assigning one of them makes the effect of a line unknown.
var steering = map[string]bool{
	"PATH": true, "IFS": true, "BASH_ENV": true, "ENV": true, "PROMPT_COMMAND": true,
	"PS0": true, "PS1": true, "PS2": true, "PS3": true, "PS4": true,
	"SHELLOPTS": true, "BASHOPTS": true, "BASH_CMDS": true, "BASH_ALIASES": true, "BASH_LOADABLES_PATH": true,
	"BASH_XTRACEFD": true, "CDPATH": true, "GLOBIGNORE": true, "POSIXLY_CORRECT": true, "EXECIGNORE": true,
	"HOME": true, "SHELL": true, "ZDOTDIR": true, "XDG_CONFIG_HOME": true, "XDG_CONFIG_DIRS": true,
	"EDITOR": true, "VISUAL": true, "PAGER": true, "MANPAGER": true, "BROWSER": true, "FCEDIT": true,
	"LESS": true, "LESSOPEN": true, "LESSCLOSE": true, "LESSKEY": true, "EXINIT": true, "VIMINIT": true,
	"SSH_ASKPASS": true, "SUDO_ASKPASS": true, "SUDO_EDITOR": true, "RSYNC_RSH": true, "CVS_RSH": true,
	"PERL5LIB": true, "PERL5OPT": true, "PERL5DB": true, "PERLLIB": true, "RUBYOPT": true, "RUBYLIB": true,
	"NODE_OPTIONS": true, "NODE_PATH": true, "CLASSPATH": true, "JAVA_TOOL_OPTIONS": true, "_JAVA_OPTIONS": true,
	"JDK_JAVA_OPTIONS": true, "MAVEN_OPTS": true, "MAKEFLAGS": true, "MFLAGS": true, "GNUMAKEFLAGS": true, "MAKEFILES": true,
	"AWKPATH": true, "AWKLIBPATH": true, "LUA_INIT": true, "LUA_PATH": true, "LUA_CPATH": true, "PHPRC": true, "PHP_INI_SCAN_DIR": true,
	"GCONV_PATH": true, "LOCPATH": true, "NLSPATH": true, "TERMINFO": true, "TERMCAP": true,
	"TAR_OPTIONS": true, "RIPGREP_CONFIG_PATH": true, "CURL_HOME": true, "WGETRC": true, "INPUTRC": true,
	"GOFLAGS": true, "GOROOT": true, "GOTOOLDIR": true, "RUSTC": true, "RUSTC_WRAPPER": true, "RUSTFLAGS": true,
	"CC": true, "CXX": true, "CPP": true, "LD": true, "AR": true, "DOCKER_HOST": true, "DOCKER_CONFIG": true, "KUBECONFIG": true,
	"GLIBC_TUNABLES": true, "MALLOC_TRACE": true, "OPENSSL_CONF": true, "OPENSSL_MODULES": true,
}

var steeringPrefixes = []string{
	"LD_", "DYLD_", "BASH_FUNC_", "PYTHON", "npm_config_", "NPM_CONFIG_", "CARGO_", "GIT_", "HG",
}

// harmless lists variables that match a steering prefix but contain only names or numbers.
var harmless = map[string]bool{
	"GIT_AUTHOR_NAME": true, "GIT_AUTHOR_EMAIL": true, "GIT_AUTHOR_DATE": true,
	"GIT_COMMITTER_NAME": true, "GIT_COMMITTER_EMAIL": true, "GIT_COMMITTER_DATE": true,
	"GIT_TERMINAL_PROMPT": true, "GIT_OPTIONAL_LOCKS": true,
	"PYTHONUNBUFFERED": true, "PYTHONDONTWRITEBYTECODE": true, "PYTHONHASHSEED": true, "PYTHONIOENCODING": true, "PYTHONUTF8": true,
	"CARGO_TERM_COLOR": true, "CARGO_INCREMENTAL": true,
}

// steers reports whether assigning a variable makes the effect of the line unknown.
func steers(name string) bool {
	if steering[name] {
		return true
	}
	for _, p := range steeringPrefixes {
		if strings.HasPrefix(name, p) {
			return !harmless[name]
		}
	}
	return false
}

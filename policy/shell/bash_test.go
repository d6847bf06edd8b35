package shell_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/policy/shell"
)

// A sandbox is a directory of programs that log their start, and a bash that finds only these
// programs.
type sandbox struct {
	bash, bin, work, log string
}

// passers lists the programs that start others after logging.
var passers = []string{"env", "timeout", "nice", "nohup", "setsid", "stdbuf", "xargs", "find", "sh", "bash", "flock", "cat", "sed", "awk", "head", "dd"}

func newSandbox(t *testing.T) sandbox {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	dir := t.TempDir()
	sb := sandbox{bash: bash, bin: filepath.Join(dir, "bin"), work: filepath.Join(dir, "work"), log: filepath.Join(dir, "log")}
	os.Mkdir(sb.bin, 0o755)
	os.Mkdir(sb.work, 0o755)
	write := func(name, then string) {
		script := fmt.Sprintf("#!%s -p\nprintf -v all '%%q ' %s \"$@\"; printf '%%s\\n' \"$all\" >>%s.$$\n%s\n", bash, name, sb.log, then)
		if err := os.WriteFile(filepath.Join(sb.bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"zap", "one", "two", "three", "make"} {
		write(name, "")
	}
	for _, name := range passers {
		real, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		write(name, "exec -a "+name+" "+real+` "$@"`)
	}
	return sb
}

// run runs a line and returns the argument vectors of the started programs.
func (sb sandbox) run(t *testing.T, line string) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, sb.bash, "-c", line)
	cmd.Dir = sb.work
	cmd.Env = []string{"PATH=" + sb.bin, "HOME=" + sb.work, "BIN=" + sb.bin, "FUNCNEST=20"}
	cmd.Stdin = strings.NewReader("")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer // wait for background processes
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	cmd.Run() // the exit status is ignored
	if ctx.Err() != nil {
		t.Fatalf("%s: does not end", line)
	}
	logs, _ := filepath.Glob(sb.log + ".*")
	var started [][]string
	for _, name := range logs {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		os.Remove(name)
		for l := range bytes.Lines(data) {
			started = append(started, unquote(t, sb, string(l)))
		}
	}
	return started
}

// unquote parses a line of printf %q.
func unquote(t *testing.T, sb sandbox, line string) []string {
	out, err := exec.Command(sb.bash, "-c", `printf '%s\0' `+line).Output()
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	parts := strings.Split(string(out), "\x00")
	return parts[:len(parts)-1]
}

// covers reports whether a command, with its Holes and globs, matches a started program.
func (sb sandbox) covers(c shell.Command, argv []string) bool {
	if len(c.Argv) == 0 || shell.Base(c.Argv[0]) != argv[0] {
		return false
	}
	return sb.fits(c.Argv[1:], argv[1:], func(i int) bool {
		return slices.Contains(c.Unknown, i+1) || slices.Contains(c.Globs, i+1)
	})
}

func (sb sandbox) fits(want, got []string, loose func(int) bool) bool {
	for i, w := range want {
		if loose(i) {
			for skip := 0; skip <= len(got); skip++ {
				if sb.fits(want[i+1:], got[skip:], func(j int) bool { return loose(i + 1 + j) }) {
					return true
				}
			}
			return false
		}
		if w == "~" || strings.HasPrefix(w, "~/") {
			w = sb.work + w[1:]
		}
		if len(got) == 0 || got[0] != w {
			return false
		}
		got = got[1:]
	}
	return len(got) == 0
}

func opaque(l shell.Line) bool {
	return l.Opaque != "" || slices.ContainsFunc(l.Commands, func(c shell.Command) bool { return c.Opaque != "" })
}

// check runs a line and compares the started programs with Parse. It returns their number and
// whether the line is not opaque.
func (sb sandbox) check(t *testing.T, line string) (started int, understood bool) {
	t.Helper()
	l := shell.Parse(line)
	ran := sb.run(t, line)
	if opaque(l) {
		return len(ran), false
	}
	for _, argv := range ran {
		if !slices.ContainsFunc(l.Commands, func(c shell.Command) bool { return sb.covers(c, argv) }) {
			t.Errorf("bash started %q, which is none of the commands\nline: %s\nread: %s", argv, line, brief(l))
		}
	}
	return len(ran), true
}

func TestBashStartsOnlyReportedCommands(t *testing.T) {
	sb := newSandbox(t)
	for _, line := range []string{
		"zap x", "zap\tx", `\zap x`, `"zap" x`, `z''ap x`, `$'\x7aap' x`, `$'zap\0q' x`, "z\\\nap x", "{zap,a}", "{zap,a} {b,c}{1..3}",
		"zap {a,b}} {{c,d} {e} {f,}", "zap {01..03} {a..e..2} {3..1} a{b,c", `zap {a,"b,c",'d e'} {$HOME,x}`, `zap \{a,b} "{a,b}"`,
		"Z=zap; $Z x", "Z='zap a b'; $Z x", `Z='zap a'; "$Z" x`, "Z=z; ${Z}ap", "Z=z; Z+=ap; $Z", "Z=zap; one && Z=two; $Z",
		"Z=zap Y=$Z; $Y", "A='a  b	c'; zap $A \"$A\" x$A", "A='*'; zap $A \"$A\"", "A=; zap $A \"$A\" '' x", "E=; $E zap x", "E=; $E", `"" zap`,
		"Z=one; Z=zap $Z", "Z=one; (Z=zap); $Z", "Z=one; Z=zap; $Z", "Z=one; Z=zap | :; $Z", "Z=one; { Z=zap; }; $Z", "Z=one; ! Z=zap; $Z",
		"Z=one; f() { Z=zap; }; f; $Z", "f() { $Z; }; Z=zap; f", "Z=one; eval Z=zap; $Z", "Z=one; for Z in zap; do :; done; $Z",
		"Z=one; read Z <<< zap; $Z", "Z=one; printf -v Z zap; $Z", "Z=one; declare Z=zap; $Z", "Z=one; export Z=zap; $Z",
		"Z=one; unset Z; $Z zap", "Z=one; : ${Z:=zap}; $Z", "Z=; : ${Z:=zap}; $Z", "Z=one; mapfile -t Z <<< zap; $Z",
		"declare -l Z=ZAP; $Z", "declare -n Y=Z; Y=zap; $Z", "Z=one; ((Z=1)); zap $Z", "Z=one; let Z=2; zap $Z", "Z=one; getopts a Z -a; $Z",
		"Z=one; while Z=zap; do $Z; break; done; $Z", "i=0; while ((i<2)); do zap $i; i=$((i+1)); done", "for i in {1..3}; do zap $i; done",
		"Z=one; for i in 1 2; do $Z; Z=zap; done", "Z=one; case x in x) Z=zap;; esac; $Z", "Z=one; case x in x) Z=two;& y) $Z; Z=zap;; esac; $Z",
		"Z=one; trap 'Z=zap' DEBUG; :; $Z", "trap 'zap x' EXIT", "trap zap EXIT; one", "Z=one; f() { trap 'Z=zap' DEBUG; }; f; :; $Z",
		"hash -p $BIN/zap one; one x", "alias one=zap; one", "shopt -s expand_aliases\nalias one=zap\none x", "one() { zap; }; one", "function one { zap; }; one", "one() { zap; }; command one",
		"one() { zap; }; unset -f one; one", "if :; then one() { zap; }; fi; one", "one; one() { zap; }", "(one() { zap; }; one); one", "eval 'one() { zap; }'; one",
		"one() { \"$@\"; }; one zap x", "export -f one; one() { zap; }; export -f one; bash -c one", "command_not_found_handle() { zap; }; nosuch",
		"echo zap | bash", "bash <<< 'zap x'", "bash <<< 'make x'", "bash <<EOF\nzap x\nEOF", "bash <<EOF\nmake x\nEOF", "bash <<'EOF'\nzap $(one)\nEOF", "bash <<-EOF\n\tzap x\n\tEOF", "bash <<-EOF\n\tmake x\n\tEOF", "cat <<EOF\n$(zap)\n`one`\nEOF",
		"cat <<'EOF'\n$(zap)\nEOF", "cat <<EOF\n\\$(zap) \\\\ \\`one\\`\nEOF", "bash -s a <<< 'make $1'", "bash -s -- a b <<< 'make $2 $0 $# $@'", "bash -s <<< 'make $1'", "bash /dev/stdin a <<< 'make $1'", "sh -s make <<< '$1'", "sh <<\\EOF\nzap \\$x\nEOF", "sh <<\\EOF\nmake \\$x\nEOF", "bash <<EOF\nzap \\$(one)\nEOF",
		`bash -c 'zap "$@"' _ a b`, `bash -c '"$@"' zap one two`, `bash -c '$0 x' zap`, `bash -c 'zap "$1" $2' _ "a b" "c d"`, `sh -c 'set -- zap; "$@"' _ one`,
		`sh -c 'shift; "$@"' _ one zap`, `bash -c 'zap "$@" "$*" $#' _ a b`, `bash -c 'zap x"$@"y' _ a b`, `bash -c 'zap x$@y' _ a 'b c'`, `bash -c 'zap "$@"'`, `bash -c 'zap $1 "$1"'`,
		"eval zap x", `eval "zap \$HOME"`, `eval 'eval "eval zap"'`, "eval 'zap' '&&' one", "eval -- zap x", "command zap", "builtin eval zap", "exec zap", "exec -a q zap", "command -p zap",
		"env zap", "env -i $BIN/zap", "env X=1 Y=2 zap", "env -u X -- zap", "env - zap", "env -S 'zap x'", "env -S'zap x' y", "env -S 'X=1 zap' y", "nice zap", "nice -n 3 zap", "nice -3 zap", "nice --adjustment=3 zap",
		"timeout 5 zap", "timeout -k 1 -s KILL 5 zap x", "timeout --signal=KILL 5 zap", "timeout --sig=KILL 5 zap", "nohup zap", "setsid -w zap", "stdbuf -oL -e 0 zap", "flock l zap", "flock l -c 'zap; one'",
		"env timeout 5 nice sh -c 'zap; env one'", "echo a b | xargs zap", "echo a b | xargs -n1 zap", "echo a | xargs -I{} zap {} x", "echo zap | xargs -I{} {} x", "echo zap | xargs env", "echo 'one; zap' | xargs -I{} sh -c '{}'",
		"echo a | xargs -i zap {}", "echo a | xargs -L 1 -P 2 zap x", "xargs -a f zap", "echo a | xargs sh -c 'zap \"$@\"' _", "echo a | xargs --replace zap {}", "echo a | xargs --max-args 1 zap",
		"find . -maxdepth 0 -exec zap {} ';'", "find . -maxdepth 0 -exec zap x{}y {} +", "find . -maxdepth 0 -name . -exec one ';' -exec zap ';'", "find . -maxdepth 0 -exec sh -c 'zap $1' _ {} ';'", "find . -name -exec -exec zap ';'", "find . -maxdepth 0 -okdir zap ';' <<< y",
		"find . -maxdepth 0 -exec zap + {} +", "find . -maxdepth 0 -exec zap {} + -exec one ';'", "X='. -maxdepth 0 -exec zap ;'; find $X",
		"zap $(one; two)", "zap `one`", "zap \"`one \\`two\\``\"", "zap <(one)", "one > >(zap)", "zap ${x:-$(one)}", "zap ${x:=$(one)} ${x/$(two)/b} ${x:$((1+1))} ${#x}", "x=([$((1))]=$(zap))", "a[0]=$(zap)", "zap $((1 + 2)) $[3]",
		"x='a[$(zap)]'; echo $((x))", "x='a[$(zap)]'; ((x))", "x='a[$(zap)]'; [[ $x -eq 1 ]]", "x='a[$(zap)]'; [[ x -eq 1 ]]", "test -v 'a[$(zap)]'", "[ -v 'a[$(zap)]' ]", "unset 'a[$(zap)]'", "read 'a[$(zap)]' <<< x", "printf -v 'a[$(zap)]' x", "declare 'a[$(zap)]=1'", "export 'a[$(zap)]=1'", "let 'a[$(zap)]=1'", "x='a[$(zap)]'; echo ${a[x]}", "x='a[$(zap)]'; echo ${!x}", "x='a[$(zap)]'; y=abc; echo ${y:x}", "declare -i i='a[$(zap)]'", "x='$(zap)'; echo ${x@P}", "x='a[$(zap)]' bash -c '((x++)); x=0'", "[[ -v 'a[$(zap)]' ]]", "T='-v a[$(zap)]'; [ $T ]", "x='a[$(zap)]'; for ((i=x;i<1;i++)); do :; done", "x='a[$(zap)]'; echo $((1 ? x : 0))", "x='a[$(zap)]'; a[x]=1", "wait -n -p 'a[$(zap)]'", "mapfile -t 'a[$(zap)]' <<< x", "getopts a 'a[$(zap)]' -a",
		"PS4='$(zap)'; set -x; :", "PS4='$(zap)' bash -xc :", "BASH_ENV=f bash -c one", "PROMPT_COMMAND=zap bash -ic one", "PATH=$BIN; zap", "mapfile -C zap -c 1 <<< x", "mapfile -Czap -c1 <<< x", "readarray -t -C 'zap q' -c 1 x <<< x", "complete -C zap one; compgen -C zap x", "enable -n echo; echo x", "coproc zap", "coproc Z { zap; }", "time zap", "time -p zap", "! zap", "! ! zap",
		"if one; then zap; fi", "until zap; do one; done", "for i; do zap; done", "for i in a b; do one | zap $i; done", "select x in a; do zap $x; break; done <<< 1", "case $(one) in *) zap;; esac", "one && two || zap", "one & zap", "(one; zap) | two", "{ one; zap; } > f", "zap > f 2>&1 < /dev/null", "zap>f x", ">f zap x", "2>f zap", "one |& zap", "zap a#b #c", "zap 'a\nb'", "zap a\nzap b", "zap ~ ~/x ~nobody/x a~ x=~ '~' \\~", "zap *", "zap w*rk [a-z]x \"*\"", "zap $HOME/x \"$HOME\" ${HOME}", "zap $$ $? \"$!\" $#", "zap $UNSET x", "zap \"$UNSET\" x", "zap $0", "zap a$'\\n'b \"a\\$b\\`c\\\"d\\\\e\\f\"", "zap $\"a b\" $'a\\tb' $'\\'' $'\\cA' $'\\u00e9' $'\\e[' $'\\1234'", "zap \"${A-x y}\" ${A-x y}", "A='x y'; zap ${A:-q} \"${A:-q}\" ${A:+q} ${A#x} ${A^^}",
		"zap a{b,c}d{e,f}", "zap {a,b\\,c}", "zap {a..c}{1,2}", "zap {a,b", "zap {,x}y", "zap {$(one),b}", "zap x{a,b}*", "Z={zap,one}; $Z", "zap {1..2..0}", "zap {z..x}", "zap {-1..1}", "zap {1..a}", "zap ${HOME}{a,b}",
		"sed -n 'p;s/a/b/gp;1,3d;$!{p}' /dev/null; zap", "echo x | sed 's/x/zap/e'", "echo x | sed '1e zap'", "echo x | sed 's/[/]/zap/e'", "echo x | sed 's/x[^/]*/zap/e'", "echo x | sed -n '/x/{s//zap/e}'", "echo x | sed 's,x,zap,e;p'", "echo x | sed 's/x/zap/;e'", "echo x | sed -s 's/x/zap/ge'", "echo x | sed -e 'a\\' -e 'e zap' -e 'e zap'", "echo x | sed '\\,x,e zap'", "echo x | sed 'y/x/y/;e zap'", "echo x | sed ':a;e zap'", "echo x | sed 'b;e zap\n'", "echo x | sed '#n\ne zap'", "echo x | sed 's/x/y\\\n/;e zap'", "echo x | sed p -n -e 'e zap'", "echo x | sed --expression='e zap'", "echo x | sed --exp='e zap'",
		"awk 'BEGIN{system(\"zap\")}'", "awk 'BEGIN{print | \"zap\"}'", "awk 'BEGIN{\"zap\" | getline}'", "awk -v 'x=zap' 'BEGIN{system(x)}'",
		"readonly Z=one; export Z=zap; $Z", "readonly Z=one; declare Z=zap; $Z", "declare -r Z=one; declare Z=zap; $Z", "Z=one; readonly Z; read Z <<< zap; $Z", "Z=one; readonly Z; Z=zap eval :; $Z", ": zap; _=one; $_", ": zap; _=one >f; $_", "'readonly' Z=one; export Z=zap; $Z", "Z=one; 'local' Z=zap; $Z", "export Z; Z=zap; $Z", "Z=zap; export Z; $Z", "Z=zap; 'export' Z; $Z", "'export' Z=zap; $Z", "Z=zap; unset Z; readonly Z; Z=one; $Z x",
		"{ read -N 2; bash; } <<< xxzap", "bash <<EOF\nread -N 2\nxxzap\nEOF", "bash <<EOF\nhead -c 2\nxxzap\nEOF", "bash <<EOF\ndd bs=1 count=2\nxxzap\nEOF", "bash <<EOF\nselect x in a; do break; done\n1 <<E\nzap\nE\nEOF", "bash <<'EOF'\n: $(head -c 2)\nxxzap\nEOF", "bash <<'EOF'\nmapfile -n 1 x\n: <<E\nzap\nE\nEOF", "bash <<'EOF'\nexec 3<&0\nread -u 3 -N 2\nxxzap\nEOF", "bash -c 'read -N 2; bash' <<< xxzap", "bash <<'EOF'\n$(<<< a read -N 2 <&0)\nxxzap\nEOF", "bash <<'EOF'\nbash -c 'read -N 2'\nxxzap\nEOF",
		"bash <<EOF\ncd .\nzap\nEOF", "bash <<EOF\ncd .\nmake\nEOF", "BASH_CMDS[one]=$BIN/zap; one", "shopt -s expand_aliases; BASH_ALIASES[one]=zap\none", "exec <<< zap; bash", "exec 3<<< zap; bash <&3", "bash 0<&3 3<<< zap", "bash < <(echo zap)", "bash <<< one <<< zap", "bash 3<<< one <<< zap",
		"{ bash; } <<< zap", "if :; then bash; fi <<EOF\nzap\nEOF", "while read l; do $l; done <<< zap", "f() { bash; }; f <<< zap", "(bash) <<< zap", "echo zap | { bash; }", "echo zap | (one; bash)", "echo zap | if :; then bash; fi", "time bash <<< zap", "! bash <<< zap", "eval bash <<< zap", "env bash <<< zap", "timeout 5 bash <<< 'zap x'", "timeout 5 bash <<< 'make x'", "command bash <<< zap", "bash -c bash <<< zap", "xargs bash <<< zap", `bash <<< "make '\$HOME'"`, `bash <<< 'make \$HOME'`, "bash <<EOF\nzap a\\\nb\nEOF", "bash <<EOF\nmake a\\\nb\nEOF",
		"Z=zap; Z=one <<< $($Z); $Z", "Z=one; Z=zap $Z; $Z", "Z=one; Z=zap :; $Z", "Z=one; Z=zap eval :; $Z", "Z=one; Z=zap export Z; $Z", "Z=one; Z=zap . /dev/null; $Z", "Z=one; Z=zap exec 3>&1; $Z", "f() { :; }; Z=one; Z=zap f; $Z", "set -o posix; Z=one; Z=zap :; $Z", "set -o posix; f() { :; }; Z=one; Z=zap f; $Z", "Z=one; Z=zap unset X; $Z", "Z=one; Z=zap set --; $Z",
		"Z=one; for Z in; do :; done; $Z", "Z=one; while false; do Z=zap; done; $Z", "Z=one; case a in b) ;& c) Z=zap;; esac; $Z", "Z=one; : $(Z=zap); $Z", "Z=one; : ${X:=$((Z=5))}; zap $Z", "Z=one; [[ -n ${Z:=zap} ]]; $Z", "Z=one; Z+=zap; $Z", "Z=one; Z=; $Z zap", "Z=one; declare +x Z=zap; $Z", "Z=one; Z=(zap); $Z", "Z=one; read -a Z <<< zap; $Z", "Z=one; read -rd '' Z <<< zap; $Z", "Z=one; IFS= read Z <<< zap; $Z", "IFS=a; Z=zap; $Z", "Z=one; printf -vZ zap; $Z", "Z=one; F=-v; printf $F Z zap; $Z", "Z=one; builtin read Z <<< zap; $Z", "Z=one; command printf -v Z zap; $Z", "Z=one; 'read' Z <<< zap; $Z", "Z=one; R=read; $R Z <<< zap; $Z", "Z=one; eval 'read Z <<< zap'; $Z", "Z=one; declare \"Z=zap\"; $Z", "Z=one; X=Z=zap; declare $X; $Z", "Z=one; X=Z=zap; export \"$X\"; $Z", "Z=one; typeset -n Y=Z; Y=zap; $Z", "Z=one; local Z=zap 2>/dev/null; $Z", "f() { local Z=one; g; $Z; }; g() { Z=zap; }; f", "Z=one; f() { declare -g Z=zap; }; f; $Z", "Z=one; let 'Z=0' Z=zap; zap $Z", "Z=one; (( Z = 0 )) || zap $Z", "Z=one; mapfile -t Z < <(echo zap); $Z", "Z=one; . <(echo Z=zap); $Z", "Z=one; source /dev/stdin <<< Z=zap; $Z", "Z=one; unset Z; ${Z-zap}", "Z=; ${Z:-zap}", "${Z:-zap} x", "${Z:-zap $(one)}", "Z=one; ${Z:+zap}", "Z=zzap; ${Z#z}", "Z=xzapx; ${Z:1:3}", "Z=zxp; ${Z/x/a}", "Z=ZAP; ${Z@L}", "set -- a zap; ${2}", "set -- a zap; ${@:2}", "set -- zap x; $@", "set -- zap x; $*", "set -- zap x; \"$*\"",
		"set -- zap; $1", "set -- zap; \"$@\"", "Z=(zap x); \"${Z[@]}\"", "Z=(zap x); $Z", "Z[0]=zap; $Z", "declare -A Z=([a]=zap); ${Z[a]}", "Z=one; Z[0]=zap; $Z", "one=zap; ${!one}", "X=one; one=zap; ${!X}", "readonly Z=one; Z=zap; $Z", "local Z=zap; $Z", "Z=one; { Z=zap; } 2>f; $Z", "Z=one; if Z=zap; then $Z; fi", "Z=one; time Z=zap; $Z", "Z=one; Z=zap >f; $Z", "Z=one; $Z $(Z=zap) $Z", "Z=one; X=${Z:=zap}; $X", "shopt -s lastpipe; Z=one; echo zap | read Z; $Z", "Z=one; coproc Z { :; }; $Z", "Z=one; exec {Z}>f; zap $Z", "Z=one; declare -u Z=zap; $Z", "Z=zap; unset -v Z; $Z one", "Z=one; export Z; bash -c 'Z=zap; $Z'; $Z", "set -k; one Z=zap; one", "Z=ONE; ${Z,,}", "HOME=$BIN; ~/zap", "~/zap", "OLDPWD=$BIN; ~-/zap", "cd $BIN; ./zap", "cd $BIN && ./zap", "dirs; ~+/zap", "zap;one", "zap&&one", "zap|one", "if zap;then one;fi", "zap&", "[[ a = b ]] || zap", "[[ a < b ]] && zap", "[ a = b ] || zap", "((0)) || zap", "true && zap", "function f() (zap); f", "f() for i in 1; do zap; done; f", "f() { zap; } 2>f; f", "f() { g() { zap; }; g; }; f", "f() { local Z=zap; $Z; }; f", "f() { zap \"$1\"; }; f x", "f() { f2; }; f2() { zap; }; f", "Z=f; f() { zap; }; $Z", "zap \"$(one \"$(two \"x\")\")\"", "zap '$(one)'", "zap \\$(one) || zap \\`one\\`", "zap \"\\$(one)\"", "bash -c \"zap '$HOME'\"", "bash -c 'bash -c \"zap; \\$(one)\"'", "bash -c zap", "bash -c -- zap", "bash +e -c zap", "bash -o pipefail -c zap", "bash -ec 'zap' one", "bash --norc -c zap", "bash --login -c one", "bash --posix -c zap", "bash -O extglob -c zap", "sh -c zap", "sh -ec zap", "sh -c 'zap {a,b}'", "sh -c \"zap \\$'a'\"", "sh -c 'zap [[ a'", "sh -c 'zap a &> f'", "sh -c 'zap <(one)'", "sh -c 'function f { zap; }; f'", "sh -c 'zap a == b'", "sh -c 'X=one; export X=zap; $X'", "sh -c 'Z=zap :; $Z'", "sh -c 'local Z=zap; $Z'",
	} {
		sb.check(t, line)
	}
}

// A maker generates lines that are hard to parse.
type maker struct {
	*rand.Rand
	n int
}

func (m *maker) pick(all ...string) string { return all[m.IntN(len(all))] }

func (m *maker) program() string {
	name := m.pick("zap", "one", "two", "three")
	switch m.IntN(9) {
	case 0:
		return `\` + name
	case 1:
		return `"` + name + `"`
	case 2:
		return name[:1] + "''" + name[1:]
	case 3:
		return fmt.Sprintf(`$'\x%x'%s`, name[0], name[1:])
	case 4:
		return "$BIN/" + name
	case 5:
		return "$V"
	case 6:
		return name[:1] + `"${V#` + name + `}"` + name[1:]
	}
	return name
}

func (m *maker) argument() string {
	return m.pick("a", "'b c'", `"d e"`, "$V", `"$V"`, "$U", `"$U"`, "{f,g}", "{1..3}", "x{y,z}", "*", "~", `\$h`, "$'i\\tj'", "$((1+2))", "''", "${V:-k}",
		"$("+m.simple()+")", "\"`"+m.pick("one", "two")+"`\"", "a=b", "-n", "$HOME/l")
}

func (m *maker) simple() string {
	m.n++
	var parts []string
	if m.IntN(4) == 0 {
		parts = append(parts, "W="+m.pick("1", "zap", "$V", "'q r'"))
	}
	if m.IntN(5) == 0 {
		parts = append(parts, m.pick("env", "env X=1", "nice", "timeout 5", "command", "exec", "nohup", "stdbuf -oL", "builtin eval", "eval"))
	}
	parts = append(parts, m.program())
	for range m.IntN(3) {
		if m.n < 8 {
			parts = append(parts, m.argument())
		}
	}
	if m.IntN(6) == 0 {
		parts = append(parts, m.pick(">out", "2>out", "2>&1", ">>out", "</dev/null", "&>out"))
	}
	return strings.Join(parts, " ")
}

func (m *maker) quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func (m *maker) line(depth int) string {
	if depth == 0 || m.n > 8 {
		return m.simple()
	}
	a := func() string { return m.line(depth - 1) }
	switch m.IntN(20) {
	case 0, 1:
		return a() + m.pick(" && ", " || ", "; ", " | ", "\n") + a()
	case 2:
		return "(" + a() + ")"
	case 3:
		return "{ " + a() + "; }"
	case 4:
		return "if " + a() + "; then " + a() + "; else " + a() + "; fi"
	case 5:
		return "for V in " + m.pick("zap", "one two", "1 2", "$V") + "; do " + a() + "; done"
	case 6:
		return "V=" + m.pick("zap", "one", "'two x'", "z", "$W", "$(one)", "$((1))") + m.pick("; ", " && ", "\n") + a()
	case 7:
		return "bash -c " + m.quoted(a())
	case 8:
		return "eval " + m.quoted(a())
	case 9:
		return "bash <<'EOF'\n" + a() + "\nEOF\n" + a()
	case 10:
		return "f() { " + a() + "; }; " + a() + "; f"
	case 11:
		return "case $V in zap) " + a() + ";; *) " + a() + ";; esac"
	case 12:
		return "! " + a()
	case 13:
		return "echo u v | xargs " + m.simple()
	case 14:
		return "V=zap; " + a() + "; $V x"
	case 15:
		return "trap " + m.quoted(a()) + " EXIT; " + a()
	case 16:
		return "read V <<< " + m.pick("zap", "one") + "; " + a()
	case 17:
		return "time " + a()
	case 18:
		return "f() { " + a() + "; }; f; " + a()
	}
	return m.simple()
}

func TestBashStartsOnlyReportedCommandsInRandomLines(t *testing.T) {
	sb := newSandbox(t)
	lines, started, understood := 300, 0, 0
	if testing.Short() {
		lines = 50
	}
	for seed := range lines {
		m := &maker{Rand: rand.New(rand.NewPCG(5, uint64(seed)))}
		line := m.line(3)
		n, ok := sb.check(t, line)
		started += n
		if ok {
			understood++
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d lines started %d programs; %d lines were understood", lines, started, understood)
	if started < lines || understood < lines/5 {
		t.Errorf("%d lines started %d programs and %d were understood: too few to tell", lines, started, understood)
	}
}

func TestPipelines(t *testing.T) {
	names := []string{"rm", "ls", "cat", "grep", "make", "npm", "go", "curl", "/bin/rm", "./x"}
	args := []string{"a", "-rf", "--flag=1", "x/y", "'q r'", `"s t"`, `u\ v`}
	plain := []string{"a", "-rf", "--flag=1", "x/y", "q r", "s t", "u v"}
	ops := []string{" | ", " && ", " || ", "; ", "\n", " & "}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(7, seed))
		var line string
		var want [][]string
		for i := range 1 + r.IntN(6) {
			if i > 0 {
				line += ops[r.IntN(len(ops))]
			}
			name := names[r.IntN(len(names))]
			argv := []string{name}
			line += name
			for range r.IntN(4) {
				k := r.IntN(len(args))
				line += " " + args[k]
				argv = append(argv, plain[k])
			}
			want = append(want, argv)
		}
		l := shell.Parse(line)
		var got [][]string
		for _, c := range l.Commands {
			got = append(got, c.Argv)
		}
		if opaque(l) || !slices.EqualFunc(got, want, slices.Equal) {
			t.Fatalf("%q\n got %q %s\nwant %q", line, got, l.Opaque, want)
		}
	}
}

// someLines contains lines of all kinds.
var someLines = []string{"", "rm x", "a && b | c", "sh -c 'rm x'", "bash <<EOF\nrm $X\nEOF", "R=rm; $R x", "find . -exec rm {} +", "sed s/a/b/ f", "env -S 'a b'",
	"echo ${x:-$(y)} {a,b}", "((a[i]++))", "[[ $a -eq 1 ]]", "git -c a=b c", "f() { a; }; f", "trap 'x' EXIT", "x=$'\\x41'", "case a in b) c;; esac", "tar", "su -- a -c b", "ssh -p", "xargs -I", "sed 's", "cd",
	"cat <<A <<B\n$(x\nA\n`y`\nB\nrm z", "[[ a =~ (b ]]", "[[ a =~ (b|c) ]] && d", "echo `a \\`b\\``", "sh -c 'a; (b'", "a 'b", "cat <<E\nx"}

// A parser must be reusable for the next script.
func TestParserReuse(t *testing.T) {
	want := make([]shell.Line, len(someLines))
	for i, line := range someLines {
		runtime.GC() // two collections empty a sync.Pool
		runtime.GC()
		want[i] = shell.Parse(line)
	}
	for _, before := range someLines {
		for i, line := range someLines {
			shell.Parse(before)
			if got := shell.Parse(line); !reflect.DeepEqual(got, want[i]) {
				t.Errorf("%q after %q:\n got %+v\nwant %+v", line, before, got, want[i])
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range someLines {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		l := shell.Parse(line)
		for _, c := range l.Commands {
			for _, i := range append(c.Unknown, c.Globs...) {
				if i >= len(c.Argv) {
					t.Fatalf("%q: argument %d of %d", line, i, len(c.Argv))
				}
			}
			if strings.Contains(c.Opaque, shell.Hole) || strings.Contains(c.Text, shell.Hole) {
				t.Fatalf("%q: a hole is shown: %q %q", line, c.Opaque, c.Text)
			}
		}
	})
}

package shell_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/policy/shell"
)

// brief formats a line as one text: its commands, with ?? for opaque commands and ??? for an
// opaque line.
func brief(l shell.Line) string {
	var all []string
	for _, c := range l.Commands {
		s := c.String()
		for _, w := range c.Writes {
			s += " >" + strings.ReplaceAll(w, shell.Hole, "…")
		}
		for _, f := range c.Reads {
			s += " <" + strings.ReplaceAll(f, shell.Hole, "…")
		}
		if c.Opaque != "" {
			s += " ??"
		}
		all = append(all, strings.TrimSpace(s))
	}
	if l.Opaque != "" {
		all = append(all, "???")
	}
	return strings.Join(all, " | ")
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		// plain
		{"rm x", "rm x"},
		{"rm\tx", "rm x"},
		{"rm -rf /tmp/a  b", "rm -rf /tmp/a b"},
		{"", ""},
		{"# nothing", ""},
		{"a && rm x", "a | rm x"},
		{"a || b; c & d\ne", "a | b | c | d | e"},
		{"a | b |& c", "a | b | c"},
		{"(rm x)", "rm x"},
		{"{ rm x; }", "rm x"},
		{"! rm x", "rm x"},
		{"rm x &", "rm x"},
		{"time rm x", "rm x"},
		{"time -p rm x", "rm x"},
		{"coproc rm x", "rm x"},
		{"echo $(rm x)", "rm x | echo …"},
		{"echo `rm x`", "rm x | echo …"},
		{`echo "a $(rm x) b"`, "rm x | echo a … b"},
		{"cat <(rm x)", "rm x | cat /dev/fd/…"},
		{"tee >(rm x)", "rm x | tee /dev/fd/…"},
		{"x=$(rm x)", "rm x"},
		{"x=([1]=$(rm x))", "rm x"},
		{"echo ${x:-$(rm x)}", "rm x | echo …"},
		{"echo ${x/$(rm a)/$(rm b)}", "rm a | rm b | echo …"},
		{"echo $(( $(rm x) ))", "rm x | echo … | ???"},
		{"[[ -f $(rm x) ]]", "rm x"},
		{"[[ $(rm x) -gt 1 ]]", "rm x | ???"},
		{"if a; then b; elif c; then d; else rm x; fi", "a | b | c | d | rm x"},
		{"for i in 1 2; do rm $i; done", "rm …"},
		{"for ((i=0;i<3;i++)); do rm $i; done", "rm …"},
		{"while a; do rm x; done; until b; do c; done", "a | rm x | b | c"},
		{"case $(a) in x) b;; *) rm x;; esac", "a | b | rm x"},
		{"case x in $(a)) b;; esac", "a | b"},
		{"select x in a b; do rm $x; done", "rm …"},
		{"f() { rm x; }; f", "rm x"},
		{"f() { rm x; }; f 2>/dev/null", "rm x | >/dev/null"},
		{"f; f() { rm x; }", "f | rm x"},
		{"if a; then f() { rm x; }; fi; f", "a | rm x | f ??"},
		{"ls() { rm x; }; ls", "rm x | ???"},
		{"sudo() { rm x; }; sudo y", "rm x | ???"},
		{"cd() { rm x; }", "rm x | ???"},
		{"alias ls='rm x'; ls", "alias ls=rm x | ls | ???"},
		{"export -f f; bash -c f", "bash -c f | f | ???"},

		// quoted names
		{`\rm x`, "rm x"},
		{`"rm" x`, "rm x"},
		{`r''m x`, "rm x"},
		{`'r'"m" x`, "rm x"},
		{`$'\x72m' x`, "rm x"},
		{`$'\162\u006d' x`, "rm x"},
		{`$'rm\0z' x`, "rm x"},
		{"r\\\nm x", "rm x"},
		{"/bin/rm x", "/bin/rm x"},
		{"{rm,x}", "rm x"},
		{"rm {a,b}{1..3}", "rm a1 a2 a3 b1 b2 b3"},
		{"R=rm; $R x", "rm x"},
		{"R=rm && $R x", "rm x"},
		{"R='rm -rf'; $R x", "rm -rf x"},
		{"R='rm -rf'; \"$R\" x", "rm -rf x"},
		{"R=r; ${R}m x", "rm x"},
		{"R=r; R+=m; $R x", "rm x"},
		{"A=r B=m; $A$B x", "rm x"},
		{"E=; $E rm x", "rm x"},
		{"$R x", "… x ??"},
		{"R=ls; R=rm $R x", "ls x"},
		{"R=ls; false && R=rm; $R x", "false | … x ??"},
		{"R=ls; (R=rm); $R x", "ls x"},
		{"R=ls; f() { R=rm; }; f; $R x", "… x ??"},
		{"R=ls; for i in 1 2; do $R x; R=rm; done", "… x ??"},
		{"R=ls; read R; $R x", "read R | … x ??"},
		{"R=ls; printf -v R rm; $R x", "printf -v R rm | … x ??"},
		{"R=ls; eval R=rm; $R x", "eval R=rm | rm x"},
		{"R=ls; . ./f; $R x", ". ./f ?? | … x ??"},
		{"declare -l R=RM; $R x", "RM x | ???"},
		{"declare -n S=R; S=rm; $R x", "… x ?? | ???"},
		{"R=rm eval '$R x'", "eval $R x | rm x"},
		{"R=rm sh -c '$R x'", "sh -c $R x | rm x"},
		{"R=ls; sh -c '$R x'", "sh -c $R x | … x ??"},
		{"/bin/r? x", "/bin/r? x ??"},
		{"$(echo rm) x", "echo rm | … x ??"},
		{"`echo rm` x", "echo rm | … x ??"},
		{"rm $X", "rm …"},
		{`rm "$X/y" ~/z ~u $HOME/w`, "rm …/y ~/z … ~/w"},
		{"rm *.go", "rm *.go"},

		// assignments
		{"X=1 rm x", "rm x"},
		{"X=1", ""},
		{"PATH=/x ls", "ls ??"},
		{"PATH=/x; ls", "ls | ???"},
		{"export PATH=/x; ls", "ls | ???"},
		{"'export' PATH=/x; ls", "export PATH=/x | ls | ???"},
		{"LD_PRELOAD=x ls", "ls ??"},
		{"BASH_ENV=x bash -c ls", "bash -c ls ?? | ls"},
		{"IFS=x; R=rmxa; $R", "rmxa | ???"},
		{"PROMPT_COMMAND='rm x'", "???"},
		{"GIT_SSH_COMMAND='rm x' git fetch", "git fetch ??"},
		{": ${PATH:=/x}", ": … | ???"},
		{"GIT_AUTHOR_NAME=x git commit", "git commit"},
		{"for PATH in /x; do ls; done", "ls | ???"},
		{"read PATH", "read PATH | ???"},
		{"env LD_PRELOAD=x ls", "env LD_PRELOAD=x ls ?? | ls"},

		// arithmetic that runs commands
		{"x='a[$(rm y)]'; echo $((x))", "echo … | ???"},
		{"i=0; while ((i<3)); do i=$((i+1)); done", ""},
		{"n=$(wc -l); echo $((n+1))", "wc -l | echo … | ???"},
		{"((x=5)); echo ${a[x]}", "echo …"},
		{"test -v 'a[$(rm x)]'", "test -v a[$(rm x)] ??"},
		{"unset 'a[$(rm x)]'", "unset a[$(rm x)] | ???"},
		{`x='$(rm y)'; echo "${x@P}"`, "echo … | ???"},
		{"[[ $? -eq 0 ]] && ls", "ls"},

		// files
		{"> zz", ">zz"},
		{": > zz", ": >zz"},
		{"rm>o x", "rm x >o"},
		{"a >>b 2>c", "a >b >c"},
		{"a &>b", "a >b"},
		{"a >|b", "a >b"},
		{"a >&b", "a >b"},
		{"a 2>&1 >&- 3<&0", "a"},
		{"a <>b", "a >b <b"},
		{"a <b", "a <b"},
		{"echo $(<b)", "<b | echo …"},
		{"{ a; b; } >c", ">c | a | b"},
		{"for i in a; do b; done >c", ">c | b"},
		{"f() { a; } >c; f", ">c | a"},
		{"a >$F", "a >…"},
		{"F=x; a >$F", "a >x"},
		{"a >/dev/tcp/h/1", "a >/dev/tcp/h/1 ??"},
		{"exec 3<>/dev/tcp/h/1", "exec >/dev/tcp/h/1 </dev/tcp/h/1 ??"},
		{"X=1 >f", ">f"},
		{"cat a > b", "cat a >b"},

		// shells and their scripts
		{"bash -c 'rm x'", "bash -c rm x | rm x"},
		{"sh -c 'rm x; a'", "sh -c rm x; a | rm x | a"},
		{"bash -lc 'rm x'", "bash -lc rm x | rm x"},
		{"bash -c -e 'rm x'", "bash -c -e rm x | rm x"},
		{"bash -euo pipefail -c 'rm x'", "bash -euo pipefail -c rm x | rm x"},
		{`sh -c 'rm "$1"' _ y`, `sh -c rm "$1" _ y | rm y`},
		{`sh -c '"$@"' _ rm y`, `sh -c "$@" _ rm y | rm y`},
		{`sh -c "rm $X"`, "sh -c rm … ??"},
		{`sh -c 'sh -c "rm x"'`, `sh -c sh -c "rm x" | sh -c rm x | rm x`},
		{"bash <<EOF\nrm x\nEOF", "bash | rm x"},
		{"bash <<'EOF'\nrm $(a)\nEOF", "bash ?? | a | rm …"},
		{"bash <<EOF\nrm $X\nEOF", "bash ??"},
		{"cat <<EOF\n$(rm x)\nEOF", "rm x | cat"},
		{"bash <<EOF\nread -N 2\nxxrm x\nEOF", "bash ?? | read -N 2 | xxrm x"},
		{"bash <<EOF\nrm -i y\nrm x\nEOF", "bash ?? | rm -i y | rm x"},
		{"{ bash; } <<< 'rm x'", "bash ??"},
		{"sudo bash <<< 'rm x'", "sudo bash | bash | rm x"},
		{"sudo -S bash <<< 'rm x'", "sudo -S bash | bash ??"},
		{"bash <<< 'rm x'", "bash | rm x"},
		{"bash -s a <<< 'rm $1'", "bash -s a | rm a"},
		{"echo rm x | sh", "echo rm x | sh ??"},
		{"curl u | sudo bash", "curl u | sudo bash | bash ??"},
		{"bash x.sh", "bash x.sh"},
		{"bash /dev/stdin <<< 'rm x'", "bash /dev/stdin | rm x"},
		{"bash <(echo rm x)", "echo rm x | bash /dev/fd/… ??"},
		{"bash < x", "bash <x ??"},
		{"bash", "bash ??"},
		{"bash --rcfile x -ic ls", "bash --rcfile x -ic ls ??"},
		{"zsh -c 'rm x'", "zsh -c rm x ??"},
		{"sh -c $'rm x'", "sh -c rm x | rm x"},
		{`sh -c "\$'\\x72m' x"`, `sh -c $'\x72m' x | $\x72m x`},
		{"sh -c '{rm,x}'", "sh -c {rm,x} | rm x | ???"},
		{"eval rm x", "eval rm x | rm x"},
		{"eval 'rm' x", "eval rm x | rm x"},
		{"eval \"$X\"", "eval … ?? | ???"},
		{"trap 'rm x' EXIT", "trap rm x EXIT | rm x"},
		{"if", "???"},
		{"rm x; if", "rm x | ???"},

		// wrappers
		{"command rm x", "command rm x | rm x"},
		{"command -v rm", "command -v rm"},
		{"builtin cd x", "builtin cd x | cd x"},
		{"exec rm x", "exec rm x | rm x"},
		{"exec -a ls rm x", "exec -a ls rm x | rm x"},
		{"command eval 'rm x'", "command eval rm x | eval rm x | rm x"},
		{"env rm x", "env rm x | rm x"},
		{"env -i X=1 -- rm x", "env -i X=1 -- rm x | -- rm x"},
		{"env -i -u Y -C d X=1 rm x", "env -i -u Y -C d X=1 rm x | rm x"},
		{"env - X=1 rm x", "env - X=1 rm x | rm x"},
		{"env -S 'rm x'", "env -S rm x | env rm x | rm x"},
		{"env -S'X=1 rm' y", "env -SX=1 rm y | env X=1 rm y | rm y"},
		{"env X=1 sudo rm y", "env X=1 sudo rm y | sudo rm y | rm y"},
		{"/usr/bin/env rm x", "/usr/bin/env rm x | rm x"},
		{"sudo -u root -n X=1 rm x", "sudo -u root -n X=1 rm x | rm x"},
		{"sudo --user=root rm x", "sudo --user=root rm x | rm x"},
		{"sudo --user root rm x", "sudo --user root rm x | rm x"},
		{"sudo -i", "sudo -i ??"},
		{"sudo -zz rm x", "sudo -zz rm x ??"},
		{"sudo -l", "sudo -l"},
		{"doas -u root rm x", "doas -u root rm x | rm x"},
		{"su root -c 'rm x'", "su root -c rm x | rm x"},
		{"su -c 'rm x' - root", "su -c rm x - root | rm x"},
		{"su", "su ??"},
		{"nice -n 5 rm x", "nice -n 5 rm x | rm x"},
		{"nice -5 rm x", "nice -5 rm x | rm x"},
		{"ionice -c3 rm x", "ionice -c3 rm x | rm x"},
		{"timeout -k 5 -s KILL 10 rm x", "timeout -k 5 -s KILL 10 rm x | rm x"},
		{"timeout --signal=KILL 10 rm x", "timeout --signal=KILL 10 rm x | rm x"},
		{"nohup rm x", "nohup rm x | rm x"},
		{"setsid -f rm x", "setsid -f rm x | rm x"},
		{"stdbuf -oL rm x", "stdbuf -oL rm x | rm x"},
		{"chroot / rm x", "chroot / rm x | rm x"},
		{"chroot /", "chroot / ??"},
		{"unshare -rm --fork rm x", "unshare -rm --fork rm x | rm x"},
		{"nsenter -t 1 -m rm x", "nsenter -t 1 -m rm x | rm x"},
		{"flock /l rm x", "flock /l rm x >/l | rm x"},
		{"flock -n /l -c 'rm x'", "flock -n /l -c rm x >/l | rm x"},
		{"watch -n1 rm x", "watch -n1 rm x | rm x"},
		{"watch 'rm x; a'", "watch rm x; a | rm x | a"},
		{`\time -o f rm x`, "time -o f rm x >f | rm x"},
		{"busybox rm x", "busybox rm x | rm x"},
		{"busybox sh -c 'rm x'", "busybox sh -c rm x | sh -c rm x | rm x"},
		{"strace rm x", "strace rm x ??"},
		{"timeout $T rm x", "timeout … rm x ??"},
		{"timeout \"$T\" rm x", "timeout … rm x ??"},

		// xargs, find, parallel
		{"a | xargs rm", "a | xargs rm | rm …"},
		{"xargs -0 -n1 -P 4 rm -f", "xargs -0 -n1 -P 4 rm -f | rm -f …"},
		{"xargs -I{} rm {} b", "xargs -I{} rm {} b | rm … b"},
		{"xargs -I % sh -c 'rm %'", "xargs -I % sh -c rm % | sh -c rm … ??"},
		{"xargs", "xargs"},
		{"xargs env", "xargs env | env … ??"},
		{"xargs sh -c 'rm \"$@\"' _", "xargs sh -c rm \"$@\" _ | sh -c rm \"$@\" _ … | rm …"},
		{"find . -name x", "find . -name x"},
		{"find . -exec rm {} \\;", "find . -exec rm {} ; | rm …"},
		{"find . -execdir rm -f {} + -print", "find . -execdir rm -f {} + -print | rm -f …"},
		{"find . -name -exec -exec rm {} ';'", "find . -name -exec -exec rm {} ; | rm …"},
		{"find . -exec sh -c 'rm $1' _ {} \\;", "find . -exec sh -c rm $1 _ {} ; | sh -c rm $1 _ … | rm …"},
		{"find . -ok rm {} \\; -delete", "find . -ok rm {} ; -delete ?? | rm …"},
		{"find . -fprint o", "find . -fprint o >o"},
		{"find $X", "find … ??"},
		{"parallel rm ::: a", "parallel rm ::: a ??"},

		// other machines and users
		{"ssh h rm x", "ssh h rm x | rm x"},
		{"ssh -p 22 u@h 'rm x; a'", "ssh -p 22 u@h rm x; a | rm x | a"},
		{"ssh h -p 22 rm x", "ssh h -p 22 rm x | rm x"},
		{"ssh h", "ssh h ??"},
		{"ssh -o StrictHostKeyChecking=no h a", "ssh -o StrictHostKeyChecking=no h a | a"},
		{"ssh -o BatchMode=yes -o ProxyCommand=x h a", "ssh -o BatchMode=yes -o ProxyCommand=x h a ??"},
		{"scp -S x a h:b", "scp -S x a h:b ??"},
		{"rsync --rs x a b", "rsync --rs x a b ??"},
		{"git push --ex=x", "git push --ex=x ??"},
		{"go test -exec x ./...", "go test -exec x ./... ??"},
		{"go test -exec=x ./...", "go test -exec=x ./... ??"},
		{"go test -run X ./...", "go test -run X ./..."},
		{"rg --pre x y", "rg --pre x y ??"},
		{"rg -n --pretty y", "rg -n --pretty y"},
		{"fd -x rm", "fd -x rm ??"},
		{"node --test", "node --test"},
		{"ssh -o ProxyCommand=x h a", "ssh -o ProxyCommand=x h a ??"},

		// git
		{"git status", "git status"},
		{"git -C d log", "git -C d log"},
		{"git -c alias.x='!rm y' x", "git -c alias.x=!rm y x ??"},
		{"git -c core.sshCommand=x fetch", "git -c core.sshCommand=x fetch ??"},
		{"git -c user.name=x commit", "git -c user.name=x commit"},
		{"git submodule foreach 'rm x'", "git submodule foreach rm x | rm x"},
		{"git submodule foreach --recursive rm x", "git submodule foreach --recursive rm x | rm x"},
		{"git bisect run rm x", "git bisect run rm x | rm x"},
		{"git rebase -x 'rm x' HEAD~3", "git rebase -x rm x HEAD~3 | rm x"},
		{"git clone --upload-pack=x r", "git clone --upload-pack=x r ??"},
		{"git clone 'ext::sh -c rm' d", "git clone ext::sh -c rm d ??"},
		{"git config alias.x '!rm'", "git config alias.x !rm ??"},
		{"git config --get alias.x", "git config --get alias.x"},

		// program text
		{"python -c 'x'", "python -c x ??"},
		{"python3.11 -Bc x", "python3.11 -Bc x ??"},
		{"python3 x.py -c y", "python3 x.py -c y"},
		{"python3 -m pytest -c y", "python3 -m pytest -c y"},
		{"python3 <<EOF\nx\nEOF", "python3 ??"},
		{"python3 -", "python3 - ??"},
		{"python3 --version", "python3 --version"},
		{"perl -e x", "perl -e x ??"},
		{"perl -lane x", "perl -lane x ??"},
		{"perl -i.bak -pe x f", "perl -i.bak -pe x f ??"},
		{"node -e x", "node -e x ??"},
		{"node --eval=x", "node --eval=x ??"},
		{"node x.js", "node x.js"},
		{"ruby -e x", "ruby -e x ??"},
		{"awk '{print $1}' f", "awk {print $1} f"},
		{"awk 'BEGIN{system(\"rm x\")}'", "awk BEGIN{system(\"rm x\")} ??"},
		{"awk '{print > \"f\"}'", "awk {print > \"f\"} ??"},
		{"awk -f f", "awk -f f ??"},
		{"sed -n '1,5p;s/a/b/g' f", "sed -n 1,5p;s/a/b/g f"},
		{"sed 's/a/b/e'", "sed s/a/b/e ??"},
		{"sed '1e rm x'", "sed 1e rm x ??"},
		{"sed 's/a/b/w f'", "sed s/a/b/w f ??"},
		{"sed -i -e 's|/a|/b|' f", "sed -i -e s|/a|/b| f"},
		{"sed -f x f", "sed -f x f ??"},
		{"sed p f -e '1e rm'", "sed p f -e 1e rm ??"},
		{"make -j4 test", "make -j4 test"},
		{"npm run build", "npm run build"},
		{"tar xzf a.tgz", "tar xzf a.tgz"},
		{"tar cf a --checkpoint=1 --checkpoint-action=exec=rm b", "tar cf a --checkpoint=1 --checkpoint-action=exec=rm b ??"},
		{"sqlite3 db '.shell rm x'", "sqlite3 db .shell rm x ??"},
		{"vim x", "vim x ??"},
	} {
		if got := brief(shell.Parse(c.line)); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.line, got, c.want)
		}
	}
}

func TestUnreadableLinesAreOpaque(t *testing.T) {
	for _, line := range []string{
		"rm\x00x", "rm\rx", "ls\u00a0x", "ls\xff", "ls \x1b[2J", "ls '", "ls $(", "ls `",
		strings.Repeat("a;", 2000), strings.Repeat("(", 2000), strings.Repeat("$(", 500),
		"echo " + strings.Repeat("x", 70000),
		"echo {1..100000000}", "echo " + strings.Repeat("{a,b}", 12000), strings.Repeat("for i in a; do ", 95) + strings.Repeat("x=1;", 10000) + "b" + strings.Repeat("; done", 95),
		"echo {1..999}{1..999}",
		"a=xxxxxxxxxxxxxxxx;" + strings.Repeat("a=$a$a$a$a;", 20) + "$a",
		strings.Repeat("eval ", 300) + "rm",
		strings.Repeat("if a; then ", 300) + "b" + strings.Repeat("; fi", 300),
	} {
		l := shell.Parse(line)
		opaque := l.Opaque != "" || slices.ContainsFunc(l.Commands, func(c shell.Command) bool { return c.Opaque != "" })
		if !opaque {
			t.Errorf("%.60q… is understood as %.200q", line, brief(l))
		}
	}
}

func TestCommandFields(t *testing.T) {
	l := shell.Parse(`cd /srv && sudo env X=1 sh -c "rm '$PWD' *.o" >log`)
	want := []shell.Command{
		{Argv: []string{"cd", "/srv"}, Text: "cd /srv", Builtin: true},
		{Argv: []string{"sudo", "env", "X=1", "sh", "-c", "rm '" + shell.Hole + "' *.o"}, Unknown: []int{5},
			Text: `sudo env X=1 sh -c "rm '$PWD' *.o" >log`, Writes: []string{"log"}, Cwd: "/srv"},
		{Argv: []string{"env", "X=1", "sh", "-c", "rm '" + shell.Hole + "' *.o"}, Unknown: []int{4}, Wrapper: true, Via: []string{"sudo"},
			Text: `sudo env X=1 sh -c "rm '$PWD' *.o" >log`, Cwd: "/srv"},
		{Argv: []string{"sh", "-c", "rm '" + shell.Hole + "' *.o"}, Unknown: []int{2}, Via: []string{"sudo", "env"},
			Text: `sudo env X=1 sh -c "rm '$PWD' *.o" >log`, Opaque: "runs a script with unknown text", Cwd: "/srv"},
	}
	if diff := cmp.Diff(want, l.Commands); diff != "" {
		t.Error(diff)
	}

	l = shell.Parse("time ssh h 'rm *.o $X'")
	want = []shell.Command{
		{Argv: []string{"ssh", "h", "rm *.o $X"}, Text: "ssh h 'rm *.o $X'"},
		{Argv: []string{"rm", "*.o", shell.Hole}, Unknown: []int{2}, Globs: []int{1}, Text: "rm *.o $X", Via: []string{"ssh"}, Cwd: shell.Hole},
	}
	if diff := cmp.Diff(want, l.Commands); diff != "" {
		t.Error(diff)
	}
}

func TestCwd(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"rm x", ""},
		{"cd /a && rm x", "/a"},
		{"cd /a && cd b && rm x", "/a/b"},
		{"cd a && cd .. && rm x", ""},
		{"cd .. && rm x", ".."},
		{"cd && rm x", "~"},
		{"cd ~/a && rm x", "~/a"},
		{"cd /a; rm x", "?"},
		{"cd /a || exit; rm x", "/a"},
		{"cd /a || rm x", "?"},
		{"cd $X && rm x", "?"},
		{"cd - && rm x", "?"},
		{"(cd /a && b); rm x", ""},
		{"(cd /a && rm x)", "/a"},
		{"cd /a & rm x", ""},
		{"! cd /a && rm x", "?"},
		{"if cd /a; then rm x; fi", "/a"},
		{"if cd /a; then b; else rm x; fi", "?"},
		{"while a; do cd b; done; rm x", "?"},
		{"f() { cd /a; }; f; rm x", "?"},
		{"eval 'cd /a' && rm x", "/a"},
		{"command cd /a && rm x", "/a"},
		{"$X /a && rm x", "?"},
		{"env -C /a rm x", "/a"},
		{"pushd /a && popd && rm x", "?"},
		{"cd /a | rm x", ""},
		{"find . -execdir rm x ';'", "?"},
		{"HOME=/a; cd && rm x", "?"},
	} {
		l := shell.Parse(c.line)
		i := slices.IndexFunc(l.Commands, func(c shell.Command) bool { return len(c.Argv) > 0 && c.Argv[0] == "rm" })
		if i < 0 {
			t.Errorf("%s: no rm in %s", c.line, brief(l))
			continue
		}
		got := strings.ReplaceAll(l.Commands[i].Cwd, shell.Hole, "?")
		if got != c.want && !(c.want == "?" && l.Opaque != "") {
			t.Errorf("%s: rm runs in %q, want %q", c.line, got, c.want)
		}
	}
}

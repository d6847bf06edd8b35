package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"glasshouse/policy"
)

// file returns a set of one permission file without a framework.
func file(t testing.TB, text string, change ...func(*policy.Config)) *policy.Set {
	t.Helper()
	c := policy.Config{
		Permissions: []*policy.Permissions{permissions(t, "opencode.json", text)},
		Level:       policy.Full,
		Home:        "/root",
		Workspace:   "/work",
	}
	for _, f := range change {
		f(&c)
	}
	return compile(t, c)
}

// These forms of a command bypass the patterns in OpenCode itself.
func TestDeniedCommandInEveryForm(t *testing.T) {
	denied := []string{
		"rm x", "rm", "a && rm x", "a; rm x", "a\nrm x", "a | rm x", "(rm x)", "a $(rm x)", "a `rm x`",
		"if true; then rm x; fi", "for i in 1 2; do rm $i; done", "while true; do rm x; done", "case x in x) rm x;; esac",
		"f(){ rm x; }; f", "cat <(rm x)", "! rm x", "rm x &", "rm x 2>/dev/null",
		// OpenCode allows these.
		"rm\tx", "X=1 rm x", `bash -c "rm x"`, `sh -c 'rm x'`, `eval "rm x"`, "command rm x", "env rm x", "env X=1 sudo rm x",
		"timeout 5 rm x", "nice rm x", "sudo rm x", "echo x | xargs rm", "find . -exec rm {} \\;", "/bin/rm x", `\rm x`, `"rm" x`, "r''m x",
		"R=rm; $R x", "rm>o x", "time rm x", "exec rm x", "bash <<EOF\nrm x\nEOF", "nohup rm x", "busybox rm x",
	}
	for _, m := range []policy.Match{policy.Longest, policy.Last} {
		s := file(t, `{"permission": {"bash": {"*": "allow", "rm *": "deny"}}}`, match(m))
		for _, line := range denied {
			if d := decide(s, "", "bash", line); d.Effect != policy.Deny || d.Rule.Pattern != "rm *" || !d.Final {
				t.Errorf("match %s: %q = %s by %s, want deny by rm *", m, line, d.Effect, d.Rule)
			}
		}
		for _, line := range []string{`eval "$X"`, "$X y", "python -c 'import os'", `. ./x`, "rm x )", "a ${b"} {
			if d := decide(s, "", "bash", line); d.Effect == policy.Allow {
				t.Errorf("match %s: %q is allowed, but its commands are unknown", m, line)
			}
		}
		for _, line := range []string{"ls", "rmdir x", "echo rm x", "git rm x", `echo "rm x"`, "cd src && ls -l | wc"} {
			if d := decide(s, "", "bash", line); d.Effect != policy.Allow {
				t.Errorf("match %s: %q = %s: %s, want allow", m, line, d.Effect, d.Reason)
			}
		}
	}
}

// An allowed pattern allows one program, not programs with similar names.
func TestAllowedCommandOnlyInIntendedForm(t *testing.T) {
	s := file(t, `{"permission": {"bash": {"*": "ask", "npm *": "allow", "git status": "allow", "./run.sh *": "allow", "timeout *": "allow"}}}`, match(policy.Last))
	tests := []struct {
		line string
		want policy.Effect
	}{
		{"npm test", policy.Allow},
		{`"npm" test`, policy.Allow},
		{"npm   test", policy.Allow},
		{"(cd x; npm test)", policy.Allow},
		{"npm test | npm run x", policy.Allow},
		{"timeout 60 npm test", policy.Allow},
		{"timeout 60 rm x", policy.Ask},
		{"./run.sh a", policy.Allow},
		{"run.sh a", policy.Ask},
		{"./npm test", policy.Ask},
		{"/tmp/npm test", policy.Ask},
		{`"npm test"`, policy.Ask},
		{`"npm /x"`, policy.Ask},
		{"PATH=/tmp npm test", policy.Ask},
		{"LD_PRELOAD=x npm test", policy.Ask},
		{"npm test; echo", policy.Ask},
		{"npm $(echo x)", policy.Ask},
		{"npm() { rm x; }; npm", policy.Ask},
		{"alias npm='rm x'; npm test", policy.Ask},
		{"hash -p /tmp/npm npm; npm test", policy.Ask},
		{"PATH=/tmp; npm test", policy.Ask},
		{"export PATH=/tmp:$PATH && npm test", policy.Ask},
		{". ./env; npm test", policy.Ask},
		{"trap 'rm x' EXIT; npm test", policy.Ask},
		{"npm test <<< $(rm x)", policy.Ask},
		{"npm test ${x:=$(rm x)}", policy.Ask},
		{"npm test $((a[$(rm x)]))", policy.Ask},
		{"npm run x & rm x", policy.Ask},
		{"npm\\\n test", policy.Allow},
		{"npm test\nrm x", policy.Ask},
		{"npm test\r\nrm x", policy.Ask},
		{"coproc rm x", policy.Ask},
		{"[[ -n $(rm x) ]] && npm test", policy.Ask},
		{"git status", policy.Allow},
		{"git status -s", policy.Ask},
		{"git $X", policy.Ask},
		{"", policy.Ask},
		{"# npm", policy.Ask},
	}
	for _, tt := range tests {
		if d := decide(s, "", "bash", tt.line); d.Effect != tt.want {
			t.Errorf("%q = %s: %s, want %s", tt.line, d.Effect, d.Reason, tt.want)
		}
	}
}

func TestUnknownPartsMayMatchDenial(t *testing.T) {
	s := file(t, `{"permission": {"bash": {"*": "allow", "git push *": "deny", "curl * --upload *": "ask"}}}`, match(policy.Last))
	for line, want := range map[string]policy.Effect{
		"git $X":              policy.Ask,
		"git push $X":         policy.Deny,
		"git log $X":          policy.Allow,
		"curl x $Y":           policy.Ask,
		`echo "$X"`:           policy.Allow,
		"curl $U --upload $F": policy.Ask,
	} {
		if d := decide(s, "", "bash", line); d.Effect != want {
			t.Errorf("%q = %s: %s, want %s", line, d.Effect, d.Reason, want)
		}
	}
}

func TestRedirectionsAreEdits(t *testing.T) {
	s := file(t, `{"permission": {"bash": "allow", "edit": {"*": "allow", "pkg.json": "deny", "lib/*": "ask", "*.lock": "deny"},
		"read": {"*": "allow", "*.key": "deny"}, "external_directory": {"*": "deny", "/data/*": "allow"}, "connect": "deny"}}`, match(policy.Last))
	tests := []struct {
		line string
		want policy.Effect
	}{
		{"echo hacked > pkg.json", policy.Deny},
		{"echo x >> ./pkg.json", policy.Deny},
		{"> pkg.json", policy.Deny},
		{"echo x > sub/../pkg.json", policy.Deny},
		{"cat a > /work/pkg.json", policy.Deny},
		{"cd lib && echo x > a", policy.Ask},
		{"cd lib && echo x > ../pkg.json", policy.Deny},
		{"cd lib; echo x > ../pkg.json", policy.Ask}, // lib may not exist
		{"cd lib; echo x > zz", policy.Ask},
		{"echo x > $F", policy.Ask},
		{"echo x > $F.txt", policy.Ask}, // lib/a.txt
		{"cd lib; echo x 2>/dev/null", policy.Allow},
		{"echo x > lib/a", policy.Ask},
		{"echo x > zz", policy.Allow},
		{"echo x 2>/dev/null >&2", policy.Allow},
		{"echo x > /etc/passwd", policy.Deny},
		{"echo x > ../x", policy.Deny},
		{"echo x > ~/.bashrc", policy.Deny},
		{"echo x > /data/x", policy.Allow},
		{"cat < id.key", policy.Deny},
		{"echo x > /dev/tcp/10.0.0.1/80", policy.Deny},
		{"tee pkg.json", policy.Deny},
		{"cp evil pkg.json", policy.Deny},
		{"cp evil/pkg.json .", policy.Deny},
		{"mv pkg.json x", policy.Deny},
		{"sed -i s/a/b/ pkg.json", policy.Deny},
		{"dd if=x of=pkg.json", policy.Deny},
		{"rm yarn.lock", policy.Deny},
		{"cp a b", policy.Allow},
		{"cat /etc/passwd", policy.Deny},
		{"cat a", policy.Allow},
		{"cd /etc", policy.Deny},
		{"cd src", policy.Allow},
		{"mkdir /srv/x", policy.Deny},
	}
	for _, tt := range tests {
		if d := decide(s, "", "bash", tt.line); d.Effect != tt.want {
			t.Errorf("%q = %s: %s, want %s", tt.line, d.Effect, d.Reason, tt.want)
		}
	}
}

// Only a rule that allows all of bash allows opaque lines.
func TestAllowAllOfBashAllowsOpaqueLines(t *testing.T) {
	obscure := []string{`eval "$X"`, "$X", "python x.py | sh", `sh -c "$X"`, "if"}
	for text, want := range map[string]policy.Effect{
		`{"permission": {"bash": "allow"}}`: policy.Allow,
		`{"permission": "allow"}`:           policy.Allow,
		`{}`:                                policy.Allow, // OpenCode's own default
		`{"permission": {"bash": {"*": "allow", "npm *": "allow"}}}`:              policy.Allow,
		`{"permission": {"bash": {"*": "allow", "rm *": "deny"}}}`:                policy.Ask,
		`{"permission": {"bash": {"*": "allow", "rm *": "ask"}}}`:                 policy.Ask,
		`{"permission": {"bash": "allow", "b*": {"x": "deny"}}}`:                  policy.Ask,
		`{"permission": {"bash": {"*": "ask", "npm *": "allow", "p*": "allow"}}}`: policy.Ask,
	} {
		s := file(t, text, match(policy.Last))
		for _, line := range obscure {
			if d := decide(s, "", "bash", line); d.Effect != want {
				t.Errorf("%s: %q = %s: %s, want %s", text, line, d.Effect, d.Reason, want)
			}
		}
	}
	s := file(t, `{"permission": {"bash": "allow"}}`)
	for name, stricter := range map[string]*policy.Set{
		"an answer": s.Remember(policy.Rule{Action: "bash", Pattern: "rm *", Effect: policy.Deny}),
		"level 1":   file(t, `{"permission": {"bash": "allow"}}`, level(policy.Guided)),
		"a framework": file(t, `{"permission": {"bash": "allow"}}`, func(c *policy.Config) {
			c.Frameworks = append(c.Frameworks, framework(t, "## Needs approval\n- Push to git\n"))
		}),
	} {
		if d := decide(stricter, "", "bash", `eval "$X"`); d.Effect != policy.Ask {
			t.Errorf("all of bash is allowed except %s, but opaque lines are %s", name, d.Effect)
		}
	}
}

func TestReasonNamesDecidingPart(t *testing.T) {
	s := project(t)
	d := decide(s, "worker", "bash", "npm test && rm -rf node_modules; git push")
	if !strings.Contains(d.Reason, "rm -rf node_modules") || !strings.Contains(d.Reason, "opencode.json:13") || d.Rule.Line != 13 || d.Remedy == "" {
		t.Errorf("Reason = %q, remedy %q, rule %s; want the part, the file and the line", d.Reason, d.Remedy, d.Rule)
	}
	d = decide(s, "worker", "bash", `eval "$X"`)
	if d.Effect != policy.Ask {
		t.Errorf("eval = %s, want ask", d.Effect)
	}
}

// The structure of a line does not weaken the decision.
func TestLineIsAsStrictAsStrictestCommand(t *testing.T) {
	s := project(t)
	commands := []string{"npm test", "git status", "echo hi", "git push", "rm -rf x", "sudo id", "git add ."}
	for _, a := range commands {
		for _, b := range commands {
			for _, join := range []string{"%s && %s", "%s; %s", "%s | %s", "%s || %s", "(%s) & %s", "if %s; then %s; fi", "{ %s; } 2>/dev/null; %s"} {
				line := fmt.Sprintf(join, a, b)
				want := policy.Stricter(decide(s, "worker", "bash", a).Effect, decide(s, "worker", "bash", b).Effect)
				if d := decide(s, "worker", "bash", line); d.Effect != want {
					t.Errorf("%q = %s: %s, want %s", line, d.Effect, d.Reason, want)
				}
			}
		}
	}
}

// Wrappers need no approval unless a rule names them. The commands that they start are decided.
func TestWrappersNeedNoApproval(t *testing.T) {
	s := project(t)
	tests := []struct {
		line   string
		want   policy.Effect
		listed bool
	}{
		{"timeout 60 npm test", policy.Allow, true},
		{`bash -c "npm test"`, policy.Allow, true},
		{`sh -c "cd src && npm test"`, policy.Allow, true},
		{"/usr/bin/env npm test", policy.Allow, true},
		{"nice timeout 5 git status", policy.Allow, false},
		{"echo src | xargs git add", policy.Ask, false}, // echo
		{"timeout 60 rm x", policy.Ask, false},
		{"timeout 60 rm -rf x", policy.Deny, false},
		{"env", policy.Ask, false}, // starts nothing
		{"env LD_PRELOAD=x npm test", policy.Ask, false},
		{"./timeout 60 npm test", policy.Ask, false},
		{"/tmp/bash -c 'npm test'", policy.Ask, false},
		{"sudo npm test", policy.Deny, false},
		{`bash -c "$X"`, policy.Ask, false},
		{"bash x.sh", policy.Ask, false},
		{`bash -c ""`, policy.Ask, false},
	}
	for _, tt := range tests {
		if d := decide(s, "worker", "bash", tt.line); d.Effect != tt.want || d.Listed != tt.listed {
			t.Errorf("%q = %s listed %t: %s, want %s listed %t", tt.line, d.Effect, d.Listed, d.Reason, tt.want, tt.listed)
		}
	}
	for _, line := range []string{"cd src", `bash -c "cd src"`, "timeout 5 npm test"} {
		if d := decide(s, "reviewer", "bash", line); d.Effect != policy.Deny {
			t.Errorf("%q of an agent without bash = %s: %s, want deny", line, d.Effect, d.Reason)
		}
	}
	s = file(t, `{"permission": {"bash": {"*": "allow", "timeout *": "ask", "bash -c *": "deny"}}}`, match(policy.Last))
	for line, want := range map[string]policy.Effect{"timeout 5 ls": policy.Ask, `bash -c "ls"`: policy.Deny, `sh -c "ls"`: policy.Allow} {
		if d := decide(s, "", "bash", line); d.Effect != want {
			t.Errorf("%q = %s: %s, want %s, by the rule that names it", line, d.Effect, d.Reason, want)
		}
	}
}

// The Linux kernel reports every file of every program. Default rules do not ask about these
// accesses; rules in files apply.
func TestObservedOutsideAccess(t *testing.T) {
	none := file(t, `{}`)
	asks := file(t, `{"permission": {"external_directory": "ask"}}`)
	denies := project(t)
	tests := []struct {
		set      *policy.Set
		action   string
		resource string
		said     policy.Effect // for a request of the agent
		seen     policy.Effect // for an observed access
	}{
		{none, "external_directory", "/usr/lib/x", policy.Ask, policy.Allow},
		{none, "edit", "/usr/lib/x", policy.Ask, policy.Allow},
		{none, "edit", "/tmp/x", policy.Ask, policy.Allow},
		{asks, "edit", "/usr/lib/x", policy.Ask, policy.Ask},
		{asks, "edit", "/tmp/x", policy.Ask, policy.Allow},
		{denies, "external_directory", "/etc/x", policy.Deny, policy.Deny},
		{denies, "edit", "/etc/x", policy.Deny, policy.Deny},
		{denies, "edit", "/root/.bashrc", policy.Deny, policy.Deny},
		{denies, "edit", "/root/.npm/_logs/x", policy.Deny, policy.Allow},
		{denies, "external_directory", "/tmp/npm-1", policy.Deny, policy.Allow},
		{denies, "edit", "/tmp/../etc/x", policy.Deny, policy.Deny},
		{denies, "edit", "package.json", policy.Ask, policy.Ask},
		{denies, "edit", "/.glasshouse/init.sock", policy.Deny, policy.Deny},
		{denies, "bash", "cat /etc/passwd", policy.Deny, policy.Deny},
	}
	for _, tt := range tests {
		q := policy.Question{Action: tt.action, Resource: tt.resource}
		if d := tt.set.Decide(q); d.Effect != tt.said {
			t.Errorf("%s %q, said = %s: %s, want %s", tt.action, tt.resource, d.Effect, d.Reason, tt.said)
		}
		q.Attributes = map[string]string{"observed": "true"}
		if d := tt.set.Decide(q); d.Effect != tt.seen {
			t.Errorf("%s %q, seen = %s: %s, want %s", tt.action, tt.resource, d.Effect, d.Reason, tt.seen)
		}
	}
}

func TestTruncatedLineIsOpaque(t *testing.T) {
	s := project(t)
	q := policy.Question{Action: "bash", Resource: "npm test", Attributes: map[string]string{"cut": "true"}}
	if d := s.Decide(q); d.Effect != policy.Ask {
		t.Errorf("npm test and more = %s, want ask", d.Effect)
	}
}

// File names are relative to the directory of the command.
func TestInitialDirectory(t *testing.T) {
	s := project(t)
	for cwd, want := range map[string]policy.Effect{"": policy.Ask, "/work": policy.Ask, "/work/sub": policy.Ask, "sub": policy.Ask, "/etc": policy.Deny} {
		q := policy.Question{Action: "bash", Resource: "npm test > package.json", Attributes: map[string]string{"cwd": cwd}}
		if d := s.Decide(q); d.Effect != want {
			t.Errorf("in %q: %s: %s, want %s", cwd, d.Effect, d.Reason, want)
		}
	}
}

func TestCommonDevicesAreAllowed(t *testing.T) {
	s := file(t, `{"permission": {"edit": "deny", "read": "deny", "external_directory": "deny"}}`)
	for _, name := range []string{"/dev/null", "/dev/stderr", "/dev/fd/2", "/dev/urandom"} {
		for _, action := range []string{"edit", "write", "read"} {
			if d := decide(s, "", action, name); d.Effect != policy.Allow {
				t.Errorf("%s %s = %q: %s, want allow", action, name, d.Effect, d.Reason)
			}
		}
	}
	for _, name := range []string{"/dev/sda", "/dev/fd/x", "/dev/shm/x", "/dev/tcp/10.0.0.1/80", "/dev/null/../sda"} {
		if d := decide(s, "", "edit", name); d.Effect != policy.Deny {
			t.Errorf("edit %s = %q: %s, want deny", name, d.Effect, d.Reason)
		}
	}
}

func TestAllowedCommandNamesItsRule(t *testing.T) {
	d := decide(project(t), "worker", "bash", "npm test > out.txt 2>/dev/null")
	if d.Effect != policy.Allow || d.Rule.Pattern != "npm *" {
		t.Errorf("npm test = %s by %s, want allow by npm *", d.Effect, d.Rule)
	}
}

package policy_test

import (
	"errors"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy"
)

// today returns a set in the match mode of OpenCode 1.18.
func today(t *testing.T, text string) *policy.Set { return file(t, text, match(policy.Last)) }

const printed = "testdata/opencode.json"

// The same file in the match mode of OpenCode 1.18, as measured with OpenCode.
func TestMatchLastDiffers(t *testing.T) {
	s := today(t, read(t, printed))
	for _, line := range []string{"npm --version", "sudo true", "echo hi", "git status", "rm -rf x", "git commit -m x"} {
		if d := decide(s, "", "bash", line); d.Effect != policy.Ask || d.Rule.Line != 15 {
			t.Errorf("%q = %s by %s, want ask by line 15", line, d.Effect, d.Rule)
		}
		if d := decide(s, "worker", "bash", line); d.Effect != policy.Allow || d.Rule.Line != 29 {
			t.Errorf("worker: %q = %s by %s, want allow by line 29", line, d.Effect, d.Rule)
		}
	}
	if d := decide(s, "reviewer", "bash", "ls"); d.Effect != policy.Deny {
		t.Errorf("reviewer: ls = %s, want deny", d.Effect)
	}
}

func TestDecisionsMatchLast(t *testing.T) {
	tests := []struct {
		name, file              string
		agent, action, resource string
		want                    policy.Effect
		rule                    string // pattern of the deciding rule
	}{
		{"nothing said", `{}`, "", "bash", "rm -rf x", "allow", "*"},
		{"any tool", `{}`, "", "some_tool", "x", "allow", "*"},
		{"doom loop", `{}`, "", "doom_loop", "bash", "ask", "*"},
		{"outside", `{}`, "", "external_directory", "/etc/x", "ask", "*"},
		{"tool output", `{}`, "", "external_directory", "~/.local/share/opencode/tool-output/x", "allow", "~/.local/share/opencode/tool-output/*"},
		{"its temporary files", `{}`, "", "external_directory", "/tmp/opencode/x", "allow", "/tmp/opencode/*"},
		{"question of build", `{}`, "build", "question", "x", "allow", "*"},
		{"question of the default agent", `{}`, "", "question", "x", "allow", "*"},
		{"question of others", `{}`, "mine", "question", "x", "deny", "*"},
		{"plan edits nothing", `{}`, "plan", "edit", "a.ts", "deny", "*"},
		{"plan edits plans", `{}`, "plan", "edit", ".opencode/plans/x.md", "ask", ".opencode/*"}, // a built-in rule asks
		{"explore runs nothing else", `{}`, "explore", "task", "x", "deny", "*"},
		{"explore reads", `{}`, "explore", "read", "a", "allow", "*"},
		{"general has no list", `{}`, "general", "todowrite", "x", "deny", "*"},
		{"env", `{}`, "", "read", ".env", "ask", "*.env"},
		{"env in a directory", `{}`, "", "read", "a/b/.env", "ask", "*.env"},
		{"env of production", `{}`, "", "read", ".env.production", "ask", "*.env.*"},
		{"env example", `{}`, "", "read", ".env.example", "allow", "*.env.example"},
		{"cat env is free", `{}`, "", "bash", "cat .env", "allow", "*"},
		{"one word for all", `{"permission": "deny"}`, "", "read", "a", "deny", "*"},
		{"one word for a tool", `{"permission": {"read": "allow"}}`, "", "read", ".env", "allow", "*"},
		{"last counts", `{"permission": {"bash": {"rm *": "deny", "*": "allow"}}}`, "", "bash", "rm x", "allow", "*"},
		{"last counts also if shorter", `{"permission": {"bash": {"git push origin *": "allow", "git *": "deny"}}}`, "", "bash", "git push origin x", "deny", "git *"},
		{"tools in the order of keys", `{"permission": {"bash": "deny", "*": "allow"}}`, "", "bash", "x", "allow", "*"},
		{"wildcards over tools", `{"permission": {"agentpod_*": "ask"}}`, "", "agentpod_list", "*", "ask", "*"},
		{"whole numbers first", `{"permission": {"task": {"*": "deny", "1": "allow"}}}`, "", "task", "1", "deny", "*"},
		{"edit is write", `{"permission": {"edit": {"*": "deny"}}}`, "", "write", "a", "deny", "*"},
		{"edit is patch", `{"permission": {"edit": {"*": "deny"}}}`, "", "apply_patch", "a", "deny", "*"},
		{"write is nothing", `{"permission": {"write": "deny"}}`, "", "write", "a", "allow", "*"},
		{"home", `{"permission": {"external_directory": {"*": "deny", "~/x/*": "allow", "$HOME/y/*": "allow"}}}`, "", "external_directory", "/root/y/a", "allow", "$HOME/y/*"},
		{"exactly", `{"permission": {"bash": {"*": "deny", "git status": "allow"}}}`, "", "bash", "git status -s", "deny", "*"},
		{"without arguments", `{"permission": {"bash": {"*": "allow", "rm *": "deny"}}}`, "", "bash", "rm", "deny", "rm *"},
		{"options as they are written", `{"permission": {"bash": {"*": "allow", "rm -rf *": "deny"}}}`, "", "bash", "rm -fr x", "allow", "*"},
		{"tools off", `{"tools": {"bash": false}}`, "", "bash", "x", "deny", "*"},
		{"tools give way to permission", `{"tools": {"bash": true}, "permission": {"bash": {"rm *": "deny"}}}`, "", "bash", "rm x", "deny", "rm *"},
		{"tools keep their place", `{"tools": {"bash": true}, "permission": {"*": "ask", "bash": "deny"}}`, "", "bash", "x", "ask", "*"},
		{"tools off in an agent", `{"agent": {"a": {"tools": {"bash": false}}}}`, "a", "bash", "x", "deny", "*"},
		{"tools of another agent", `{"agent": {"a": {"tools": {"bash": false}}}}`, "b", "bash", "x", "allow", "*"},
		{"tools on cancel patterns", `{"permission": {"bash": {"rm *": "deny"}}, "agent": {"a": {"tools": {"bash": true}}}}`, "a", "bash", "rm x", "allow", "*"},
		{"tools off are edit", `{"tools": {"write": false, "edit": true}}`, "", "edit", "x", "allow", "*"},
		{"the agent's permission over its tools", `{"agent": {"a": {"tools": {"bash": false}, "permission": {"bash": "ask"}}}}`, "a", "bash", "x", "ask", "*"},
		{"agent over global", `{"permission": {"bash": "deny"}, "agent": {"a": {"permission": {"bash": {"ls *": "allow"}}}}}`, "a", "bash", "ls x", "allow", "ls *"},
		{"global where the agent is silent", `{"permission": {"bash": "deny"}, "agent": {"a": {"permission": {"bash": {"ls *": "allow"}}}}}`, "a", "bash", "cat x", "deny", "*"},
		{"an agent as it was called", `{"mode": {"a": {"permission": "ask"}}}`, "a", "webfetch", "x", "ask", "*"},
		{"an agent that is off", `{"agent": {"a": {"disable": true}}}`, "a", "read", "x", "deny", "*"},
		{"the default agent", `{"default_agent": "a", "agent": {"a": {"permission": "deny"}}}`, "", "read", "x", "deny", "*"},
		{"twice in one object", `{"permission": {"bash": {"a *": "allow", "*": "ask", "a *": "deny"}}}`, "", "bash", "a x", "ask", "*"},
	}
	for _, tt := range tests {
		d := decide(today(t, tt.file), tt.agent, tt.action, tt.resource)
		if d.Effect != tt.want || d.Rule.Pattern != tt.rule {
			t.Errorf("%s: %s %q = %s by %s, want %s by %q", tt.name, tt.action, tt.resource, d.Effect, d.Rule, tt.want, tt.rule)
		}
	}
}

// Later files take precedence over earlier ones, but a key keeps the position of its first
// occurrence.
func TestSeveralFiles(t *testing.T) {
	files := func(m policy.Match, texts ...string) *policy.Set {
		c := policy.Config{Match: m, Level: policy.Full}
		for i, text := range texts {
			c.Permissions = append(c.Permissions, permissions(t, string('a'+rune(i))+".json", text))
		}
		return compile(t, c)
	}
	tests := []struct {
		name  string
		match policy.Match
		files []string
		agent string
		line  string
		want  policy.Effect
		file  string
	}{
		{"a value is overridden", policy.Last, []string{`{"permission":{"bash":"deny"}}`, `{"permission":{"bash":"ask"}}`}, "", "x", "ask", "b.json"},
		{"patterns are joined", policy.Last, []string{`{"permission":{"bash":{"a *":"deny"}}}`, `{"permission":{"bash":{"b *":"ask"}}}`}, "", "a", "deny", "a.json"},
		{"its place is not moved", policy.Last, []string{`{"permission":{"bash":{"rm *":"allow","*":"allow"}}}`, `{"permission":{"bash":{"rm *":"deny"}}}`}, "", "rm x", "allow", "a.json"},
		{"by an agent it is beaten", policy.Last, []string{`{"agent":{"build":{"permission":{"bash":"allow"}}}}`, `{"permission":{"bash":{"rm *":"deny"}}}`}, "", "rm x", "allow", "a.json"},
		{"a word replaces patterns", policy.Last, []string{`{"permission":{"bash":{"rm *":"deny"}}}`, `{"permission":{"bash":"allow"}}`}, "", "rm x", "allow", "b.json"},
		{"agents are joined", policy.Last, []string{`{"agent":{"a":{"permission":{"bash":"ask"}}}}`, `{"agent":{"a":{"permission":{"read":"ask"}}}}`}, "a", "x", "ask", "a.json"},
		{"the longest of all files", policy.Longest, []string{`{"permission":{"bash":{"rm *":"deny"}}}`, `{"permission":{"bash":{"*":"allow"}}}`}, "", "rm x", "deny", "a.json"},
		{"a word replaces patterns here too", policy.Longest, []string{`{"permission":{"bash":{"rm *":"deny"}}}`, `{"permission":{"bash":"allow"}}`}, "", "rm x", "allow", "b.json"},
		{"the same pattern later", policy.Longest, []string{`{"permission":{"bash":{"rm *":"deny"}}}`, `{"permission":{"bash":{"rm *":"ask"}}}`}, "", "rm x", "ask", "b.json"},
	}
	for _, tt := range tests {
		d := decide(files(tt.match, tt.files...), tt.agent, "bash", tt.line)
		if d.Effect != tt.want || d.Rule.File != tt.file {
			t.Errorf("%s: %q = %s by %s, want %s by %s", tt.name, tt.line, d.Effect, d.Rule, tt.want, tt.file)
		}
	}
}

func TestDecisionsMatchLongest(t *testing.T) {
	tests := []struct {
		name, file              string
		agent, action, resource string
		want                    policy.Effect
	}{
		{"in any order", `{"permission": {"bash": {"rm -rf *": "deny", "*": "allow", "rm *": "ask"}}}`, "", "bash", "rm -rf x", "deny"},
		{"the longer allows", `{"permission": {"bash": {"rm -rf *": "deny", "rm -rf node_modules": "allow"}}}`, "", "bash", "rm -rf node_modules", "allow"},
		{"as long: the stricter", `{"permission": {"bash": {"ab*": "allow", "a*b": "deny"}}}`, "", "bash", "ab/b", "deny"},
		{"as long: the exact tool", `{"permission": {"*": "deny", "bash": "allow"}}`, "", "bash", "x", "allow"},
		{"the key write counts", `{"permission": {"edit": "allow", "write": "deny"}}`, "", "write", "a", "deny"},
		{"and for the machine's view", `{"permission": {"edit": "allow", "write": "deny"}}`, "", "edit", "a", "deny"},
		{"write alone allows", `{"permission": {"*": "ask", "write": "allow"}}`, "", "write", "a", "allow"},
		{"edit alone allows", `{"permission": {"*": "ask", "edit": "allow"}}`, "", "write", "a", "allow"},
		{"write where edit is silent", `{"permission": {"edit": {"src/*": "deny"}, "write": "ask"}}`, "", "write", "a", "ask"},
		{"tools on cancel no pattern", `{"permission": {"bash": {"rm *": "deny"}}, "agent": {"a": {"tools": {"bash": true}}}}`, "a", "bash", "rm x", "deny"},
		{"nor of OpenCode's own", `{"tools": {"read": true}}`, "", "read", ".env", "ask"},
		{"tools on allow what nothing is said of", `{"permission": "ask", "tools": {"create_task": true}}`, "", "create_task", "x", "allow"},
		{"tools off are off", `{"permission": {"bash": {"npm *": "allow"}}, "agent": {"a": {"tools": {"bash": false}}}}`, "a", "bash", "npm x", "deny"},
		{"tools on again in an agent", `{"tools": {"bash": false}, "agent": {"a": {"tools": {"bash": true}}}}`, "a", "bash", "x", "allow"},
		{"write off", `{"tools": {"write": false}}`, "", "edit", "x", "deny"},
		{"an agent adds to patterns", `{"permission": {"bash": {"rm *": "deny"}}, "agent": {"a": {"permission": {"bash": "allow"}}}}`, "a", "bash", "rm x", "deny"},
		{"an agent's word for the same", `{"permission": {"bash": {"rm *": "deny"}}, "agent": {"a": {"permission": {"bash": {"rm *": "ask"}}}}}`, "a", "bash", "rm x", "ask"},
		{"a file over OpenCode's defaults", `{"permission": {"read": "allow"}}`, "", "read", ".env", "allow"},
		{"defaults where it is silent", `{"permission": {"bash": "deny"}}`, "", "read", ".env", "ask"},
	}
	for _, tt := range tests {
		d := decide(file(t, tt.file, match(policy.Longest)), tt.agent, tt.action, tt.resource)
		if d.Effect != tt.want {
			t.Errorf("%s: %s %q = %s by %s, want %s", tt.name, tt.action, tt.resource, d.Effect, d.Rule, tt.want)
		}
	}
}

func TestDetectMatchMode(t *testing.T) {
	tests := []struct {
		file, why string
		want      policy.Match
	}{
		{`{}`, "the files give no indication", policy.Last},
		{`{"permission": {"bash": {"npm *": "allow", "*": "ask"}}}`, `"*" after other patterns of "bash" (opencode.json:1)`, policy.Longest},
		{`{"permission": {"bash": {"npm *": "ask", "*": "ask"}}}`, "no indication", policy.Last},
		{`{"permission": {"bash": {"*": "ask", "npm *": "allow"}}}`, `"*" before the other patterns`, policy.Last},
		{`{"agent": {"a": {"maxSteps": 5}}}`, `"maxSteps"`, policy.Longest},
		{`{"agent": {"a": {"steps": 5}}}`, `"steps"`, policy.Last},
		{`{"tools": {"bash": true}}`, `"tools"`, policy.Longest},
		{`{"permission": {"write": "allow"}}`, `"write"`, policy.Longest},
		{`{"permission": {"read": "allow"}}`, `"read"`, policy.Last},
		{`{"permission": {"read": "allow"}, "tools": {"bash": true}}`, `"read"`, policy.Last},
		{`{"permission": {"read": "allow", "bash": {"npm *": "allow", "*": "ask"}}}`, `"*" after`, policy.Longest},
	}
	for _, tt := range tests {
		s := compile(t, policy.Config{Permissions: []*policy.Permissions{permissions(t, "opencode.json", tt.file)}})
		if m, why := s.Match(); m != tt.want || !strings.Contains(why, tt.why) {
			t.Errorf("%s: %s, %q; want %s for %q", tt.file, m, why, tt.want, tt.why)
		}
	}
}

func TestCommentsAndTrailingCommas(t *testing.T) {
	s := file(t, "\ufeff// who may what\n{\n  /* of\n bash */ \"permission\": {\n    \"bash\": {\n      \"*\": \"ask\", // all\n      \"npm *\": \"deny\",\n    },\n  },\n \"other\": [1, 2,],\n}\n// end")
	if d := decide(s, "", "bash", "npm x"); d.Effect != policy.Deny || d.Rule.Line != 7 {
		t.Errorf("npm x = %s by %s, want deny by line 7", d.Effect, d.Rule)
	}
}

func TestInvalidFilesHaveLines(t *testing.T) {
	tests := []struct{ file, on, says string }{
		{"{\n\"permission\": {\n\"bash\": \"maybe\"}}", "opencode.json:3", `"maybe"`},
		{"{\n\"permission\": 1}", "opencode.json:2", "a number"},
		{"{\"permission\": {\"bash\":\n[]}}", "opencode.json:2", "an array"},
		{"{\"permission\": {\"bash\": {\n\"x\": true}}}", "opencode.json:2", "true or false"},
		{"{\"permission\": null}", "opencode.json:1", "null"},
		{"{\"tools\": {\n\"bash\": \"yes\"}}", "opencode.json:2", "a string"},
		{"{\"tools\": []}", "opencode.json:1", "an array"},
		{"{\"agent\": {\n\"a\": 1}}", "opencode.json:2", "a number"},
		{"{\"agent\": {\"a\": {\n\n\"maxSteps\": 0}}}", "opencode.json:3", "above 0"},
		{"{\"agent\": {\"a\": {\"steps\": 1.5}}}", "opencode.json:1", "whole number"},
		{"{\"agent\": {\"a\": {\"steps\": \"5\"}}}", "opencode.json:1", "whole number"},
		{"{\"agent\": {\"a\": {\"disable\": 1}}}", "opencode.json:1", "a number"},
		{"{\"default_agent\": {}}", "opencode.json:1", "an object"},
		{"[]", "opencode.json:1", "an array"},
		{"", "opencode.json:1", "unexpected end of file"},
		{"{\n\n", "opencode.json:3", "double quotes"},
		{"{\"a\": 1} x", "opencode.json:1", "data after"},
		{"{\"a\" 1}", "opencode.json:1", "no colon"},
		{"{\"a\": 1 \"b\": 2}", "opencode.json:1", "comma"},
		{"{a: 1}", "opencode.json:1", "double quotes"},
		{"{\"a\": yes}", "opencode.json:1", "not a JSON value"},
		{"{\"a\": 01}", "opencode.json:1", "not a JSON value"},
		{"{\"a\": \"\n\"}", "opencode.json:1", "not end on its line"},
		{`{"a": "\x"}`, "opencode.json:1", "escape"},
		{`{"a": "\u12"}`, "opencode.json:1", "escape"},
		{"/* {", "opencode.json:1", "comment"},
		{`{"permission": {"bash": {"a\u0000": "deny"}}}`, "opencode.json:1", "zero byte"},
		{`{"permission": {"bash": {"{env:X} *": "deny"}}}`, "opencode.json:1", "is a reference to another value"},
		{`{"permission": {"bash": {"` + strings.Repeat("x", 5000) + `": "deny"}}}`, "opencode.json:1", "5000 bytes"},
		{strings.Repeat("[", 100), "opencode.json:1", "deep"},
		{strings.Repeat(" ", 2<<20), "opencode.json", "bytes"},
	}
	for _, tt := range tests {
		_, err := policy.ReadPermissions("opencode.json", []byte(tt.file))
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid || f.On != tt.on || !strings.Contains(err.Error(), tt.says) || f.Remedy == "" {
			t.Errorf("%.60q: %v, want invalid on %s, %q, with a remedy", tt.file, err, tt.on, tt.says)
		}
	}
}

func TestUnknownKeysAreIgnored(t *testing.T) {
	file(t, `{"$schema": "x", "model": 1, "provider": {"a": [null, {"b": 1e9}]}, "agent": {"a": {"model": {}, "prompt": ["x"]}},
		"permission": {"some_tool": "deny", "skill": {"x": "ask"}, "lsp": "allow"}}`)
}

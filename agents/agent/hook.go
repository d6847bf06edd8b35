package agent

import _ "embed"

//go:embed files/hook.py
var hookScript []byte

// hookSeconds is the timeout of a hook, which may wait for an approval. The timeout of the
// gateway is shorter.
const hookSeconds = 24 * 60 * 60

const hookName = ".glasshouse/hook.py"

// hook adds the hook program, which requests decisions from the gateway, and python3, which
// runs it.
func (b *builder) hook() {
	b.file(hookName, hookScript)
	b.out.Needs = append(b.out.Needs, Need{Program: "python3", From: "Debian package python3"})
	b.note("Hooks request a decision of the gateway before each tool call, but run with the privileges of the agent. Only the jail, and rules with enforce, are enforced.")
}

// hooks returns the settings that register the hook. Agents treat exit status 2 of a hook as
// a denial and any other failure as permission. The command therefore exits with 2 even if
// the interpreter is missing.
func (b *builder) hooks(before, after, matcher string, timeout int) map[string]any {
	command := func(phase string) any {
		line := "python3 -I -S '" + b.Home + "/" + hookName + "' " + phase + " || exit 2"
		return []any{map[string]any{"matcher": matcher, "hooks": []any{map[string]any{"type": "command", "command": line, "timeout": timeout}}}}
	}
	return map[string]any{before: command("before"), after: command("after")}
}

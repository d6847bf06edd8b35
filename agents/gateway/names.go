package gateway

import (
	"cmp"
	"strings"

	"glasshouse/policy"
)

// harnessTools maps the tool names of agents to policy actions.
var harnessTools = map[string]string{
	"Bash": policy.ActionRun, "run_shell_command": policy.ActionRun, "exec_command": policy.ActionRun, "shell": policy.ActionRun, "local_shell": policy.ActionRun,
	"Write": "write", "write_file": "write", "Edit": policy.ActionEdit, "MultiEdit": policy.ActionEdit, "NotebookEdit": policy.ActionEdit, "replace": policy.ActionEdit,
	"Read": policy.ActionRead, "read_file": policy.ActionRead, "WebFetch": policy.ActionFetch, "web_fetch": policy.ActionFetch,
	"Glob": "glob", "Grep": "grep", "LS": "list", "Task": "task", "TodoWrite": "todowrite",
}

// ToolOf returns the policy name of a tool, and whether it is a tool that the gateway itself
// offers over the Model Context Protocol.
func ToolOf(name string) (tool string, own bool) {
	for _, prefix := range []string{"mcp__glasshouse__", "mcp_glasshouse_", "glasshouse__", "glasshouse_"} {
		if strings.HasPrefix(name, prefix) {
			return name, true
		}
	}
	return cmp.Or(harnessTools[name], name), false
}

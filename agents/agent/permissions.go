package agent

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed files/framework.md
var framework string

// levels holds the parts of the files that depend on the autonomy level.
var levels = map[int]struct {
	edit  string // global permission for edits, as JSON
	bash  string // default effect of bash commands
	steps int    // step limit of the worker agent
	own   string // effect of requests to siblings and for resources
	says  string // description in the framework
}{
	1: {edit: `{ "*": "ask", "src/*": "allow", "test/*": "allow", "tests/*": "allow", "docs/*": "allow" }`, bash: "ask", steps: 5, own: "ask",
		says: "You are at level 1 of 3: guided. A person must approve every action that no permission rule allows. The list of pre-approved actions below has no effect at this level."},
	2: {edit: `"allow"`, bash: "ask", steps: 20, own: "ask",
		says: "You are at level 2 of 3: intelligent. You decide about pre-approved actions. A person must approve all others."},
	3: {edit: `"allow"`, bash: "allow", steps: 60, own: "allow",
		says: "You are at level 3 of 3: full. Pre-authorized actions need no approval. You coordinate siblings and request resources on your own, and watchdogs monitor you."},
}

// Framework returns the decision framework, an AGENTS.md, for an autonomy level from 1 to 3.
func Framework(level int) string {
	return strings.Replace(framework, "## Self-Decision Framework", levels[level].says+"\n\n## Self-Decision Framework", 1)
}

// openCodeJSON returns a permission file for OpenCode 1.1 or newer. The last matching rule
// applies, so general rules come first.
func openCodeJSON(level int) []byte {
	l := levels[level]
	return fmt.Appendf(nil, `{
  "$schema": "https://opencode.ai/config.json",

  "permission": {
    "edit": %s,
    "bash": {
      "*": %q,
      "npm *": "allow",
      "pnpm *": "allow",
      "git status *": "allow",
      "git diff *": "allow",
      "git add *": "allow",
      "git commit *": "allow",
      "rm -rf *": "deny",
      "rm -fr *": "deny",
      "rm -r *": "deny",
      "rm -R *": "deny",
      "rm --recursive *": "deny",
      "sudo *": "deny"
    },
    "external_directory": "deny",
    "coordinate_sibling": %q,
    "request_resources": %q,
    "create_task": "allow"
  },

  "default_agent": "worker",

  "agent": {
    "worker": {
      "description": "Writes code autonomously",
      "mode": "primary",
      "steps": %d
    },

    "reviewer": {
      "description": "Reviews code without changing it",
      "mode": "subagent",
      "permission": {
        "edit": "deny",
        "bash": "deny",
        "coordinate_sibling": "deny",
        "request_resources": "deny"
      }
    },

    "coordinator": {
      "description": "Delegates work to other agents and combines their results",
      "mode": "subagent",
      "permission": {
        "edit": "deny",
        "bash": "deny"
      }
    }
  },

  "instructions": ["AGENTS.md"]
}
`, l.edit, l.bash, l.own, l.own, l.steps)
}

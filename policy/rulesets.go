package policy

// A Level is an autonomy level: how much an agent may do without approval.
type Level int

const (
	// Guided: actions that no file allows need approval, destructive ones are denied, and
	// pre-approved actions have no effect.
	Guided Level = 1

	// Intelligent: the decision framework applies. Actions that it pre-approves need no
	// approval; peer messages and resource requests do, unless a file allows them.
	Intelligent Level = 2

	// Full: like Intelligent, and peer messages and resource requests need no approval within
	// the agent's budgets. Rules in files that ask or deny still apply.
	Full Level = 3
)

var levelNames = map[Level]string{Guided: "guided", Intelligent: "intelligent", Full: "full"}

// String returns for example "level 1 (guided)", which is also the name of the level's rule
// set.
func (l Level) String() string {
	if name, ok := levelNames[l]; ok {
		return "level " + string('0'+byte(l)) + " (" + name + ")"
	}
	return "no level"
}

// Valid reports whether l is one of the three levels.
func (l Level) Valid() bool { return levelNames[l] != "" }

// The names of built-in rule sets. Sets with lower precedence than files are defaults.
const (
	setOpenCode   = "OpenCode defaults"
	setKernel     = "kernel"
	setTightened  = "tightened"
	setRemembered = "remembered"
)

func ask(action string, patterns ...string) []Rule   { return rules(Ask, action, patterns) }
func allow(action string, patterns ...string) []Rule { return rules(Allow, action, patterns) }
func deny(action string, patterns ...string) []Rule  { return rules(Deny, action, patterns) }

func rules(e Effect, action string, patterns []string) []Rule {
	var all []Rule
	for _, p := range patterns {
		all = append(all, Rule{Action: action, Pattern: p, Effect: e})
	}
	return all
}

func join(sets ...[]Rule) []Rule {
	var all []Rule
	for _, s := range sets {
		all = append(all, s...)
	}
	return all
}

// toolOutput is where OpenCode stores long outputs of tools.
const toolOutput = "~/.local/share/opencode/tool-output/*"

// openCodeDefaults are the default rules of OpenCode 1.18 for every agent.
var openCodeDefaults = join(
	allow("*", "*"),
	ask("doom_loop", "*"),
	ask(ActionOutside, "*"),
	allow(ActionOutside, toolOutput, "/tmp/opencode/*"),
	deny("question", "*"),
	deny("plan_enter", "*"),
	deny("plan_exit", "*"),
	allow(ActionRead, "*"),
	ask(ActionRead, "*.env", "*.env.*"),
	allow(ActionRead, "*.env.example"),
)

// openCodeAgents are the rules of OpenCode's built-in agents, which follow the defaults.
var openCodeAgents = map[string][]Rule{
	"build": join(allow("question", "*"), allow("plan_enter", "*")),
	"plan": join(allow("question", "*"), allow("plan_exit", "*"),
		allow(ActionOutside, "~/.local/share/opencode/plans/*"),
		deny(ActionEdit, "*"), allow(ActionEdit, ".opencode/plans/*.md", "~/.local/share/opencode/plans/*.md")),
	"general": deny("todowrite", "*"),
	"explore": join(deny("*", "*"), allow("grep", "*"), allow("glob", "*"), allow("list", "*"), allow("bash", "*"),
		allow("webfetch", "*"), allow("websearch", "*"), allow("codesearch", "*"), allow(ActionRead, "*"),
		ask(ActionOutside, "*"), allow(ActionOutside, toolOutput, "/tmp/opencode/*")),
	"compaction": deny("*", "*"),
	"title":      deny("*", "*"),
	"summary":    deny("*", "*"),
}

// levelDefaults are the default rules of each level.
var levelDefaults = map[Level][]Rule{
	Guided: join(
		ask(ActionRun, "*"), ask(ActionEdit, "*"), ask(ActionFetch, "*"), ask("websearch", "*"), ask("task", "*"),
		ask(ActionConnect, "*"), ask(ActionSecret, "*"), ask(ActionCall, "*"),
		ask(ActionCoordinate, "*"), ask(ActionResources, "*"),
	),
	Intelligent: join(ask(ActionCoordinate, "*"), ask(ActionResources, "*")),
}

// levelFloors are the rules of each level that take precedence over files.
var levelFloors = map[Level][]Rule{
	Guided: deny(ActionRun,
		"rm -r -f *", "shred *", "mkfs*", "wipefs *", "dd * of=/dev/*",
		"sudo *", "su *", "doas *", "shutdown *", "reboot *", "halt *", "poweroff *",
		"git push --force *", "git push --force-with-lease *", "git push --mirror *", "git push --delete *",
		"git reset --hard *", "git clean -f *",
	),
}

// policyFiles are the files from which this package and the agent's harness read rules and
// code.
var policyFiles = []string{
	"opencode.json", "*/opencode.json", "opencode.jsonc", "*/opencode.jsonc",
	"AGENTS.md", "*/AGENTS.md", ".opencode/*", "*/.opencode/*",
	"*/.config/opencode/*", "/etc/opencode/*",
}

// kernelRules take precedence over files, levels and remembered answers.
var kernelRules = join(
	ask(ActionEdit, policyFiles...),
	deny(ActionEdit, "/.glasshouse", "/.glasshouse/*", "/run/secrets", "/run/secrets/*"),
	deny(ActionRead, "/.glasshouse", "/.glasshouse/*"),
	// Another process's root and working directory, memory and environment (proc(5)).
	deny(ActionEdit, "/proc/*/root/*", "/proc/*/cwd/*", "/proc/*/mem", "/proc/*/environ"),
	deny(ActionRead, "/proc/*/root/*", "/proc/*/mem", "/proc/1/environ"),
)

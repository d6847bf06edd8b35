package policy

// A Level is how much an agent does without a person.
type Level int

const (
	// Guided: within boundaries. What no file allows is asked, what destroys is
	// denied, and the list of pre-approved actions lifts no question.
	Guided Level = 1

	// Intelligent: the decision framework counts. What it pre-approves is not
	// asked; siblings and resources are, unless a file allows them.
	Intelligent Level = 2

	// Full: as Intelligent, and siblings and resources are the agent's own
	// affair, within its budgets. What files ask or deny stays so.
	Full Level = 3
)

var levelNames = map[Level]string{Guided: "guided", Intelligent: "intelligent", Full: "full"}

// String is "level 1 (guided)", which is also the name of its rules.
func (l Level) String() string {
	if name, ok := levelNames[l]; ok {
		return "level " + string('0'+byte(l)) + " (" + name + ")"
	}
	return "no level"
}

// Valid reports whether l is one of the three.
func (l Level) Valid() bool { return levelNames[l] != "" }

// The named rule sets that no file holds. Rules of a set that has files' rules
// behind it are defaults: they count where no file says anything.
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

// toolOutput is where OpenCode keeps long outputs of tools for the agent.
const toolOutput = "~/.local/share/opencode/tool-output/*"

// openCodeDefaults are what OpenCode 1.18 begins with, for every agent.
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

// openCodeAgents are what the agents that OpenCode comes with begin with, after
// the defaults.
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

// levelDefaults are what a level asks where no file says anything.
var levelDefaults = map[Level][]Rule{
	Guided: join(
		ask(ActionRun, "*"), ask(ActionEdit, "*"), ask(ActionFetch, "*"), ask("websearch", "*"), ask("task", "*"),
		ask(ActionConnect, "*"), ask(ActionSecret, "*"), ask(ActionCall, "*"),
		ask(ActionCoordinate, "*"), ask(ActionResources, "*"),
	),
	Intelligent: join(ask(ActionCoordinate, "*"), ask(ActionResources, "*")),
}

// levelFloors are what a level denies whatever files say.
var levelFloors = map[Level][]Rule{
	Guided: deny(ActionRun,
		"rm -r -f *", "shred *", "mkfs*", "wipefs *", "dd * of=/dev/*",
		"sudo *", "su *", "doas *", "shutdown *", "reboot *", "halt *", "poweroff *",
		"git push --force *", "git push --force-with-lease *", "git push --mirror *", "git push --delete *",
		"git reset --hard *", "git clean -f *",
	),
}

// policyFiles are the files that this package and the agent's harness take
// rules and code from.
var policyFiles = []string{
	"opencode.json", "*/opencode.json", "opencode.jsonc", "*/opencode.jsonc",
	"AGENTS.md", "*/AGENTS.md", ".opencode/*", "*/.opencode/*",
	"*/.config/opencode/*", "/etc/opencode/*",
}

// kernelRules hold whatever files, levels and remembered answers say.
var kernelRules = join(
	ask(ActionEdit, policyFiles...),
	deny(ActionEdit, "/.glasshouse", "/.glasshouse/*", "/run/secrets", "/run/secrets/*"),
	deny(ActionRead, "/.glasshouse", "/.glasshouse/*"),
	// Another process's files as it sees them, its memory and its environment.
	deny(ActionEdit, "/proc/*/root/*", "/proc/*/cwd/*", "/proc/*/mem", "/proc/*/environ"),
	deny(ActionRead, "/proc/*/root/*", "/proc/*/mem", "/proc/1/environ"),
)

package policy

import (
	"regexp"
	"slices"
	"strings"
)

// recognise returns the rules for an entry of a list of that kind, or none if it is not
// recognised. Entries that allow are interpreted narrowly, those that ask or deny broadly.
func recognise(text string, kind EntryKind) []Rule {
	e := &reading{kind: kind, text: text, low: strings.ToLower(text)}
	e.tools()
	e.commands()
	e.files()
	if len(e.rules) == 0 || kind != PreApproved {
		e.subjects()
	}
	return e.rules
}

// A reading is the recognition of one entry.
type reading struct {
	kind  EntryKind
	text  string
	low   string
	rules []Rule
}

func (e *reading) add(action string, patterns ...string) {
	for _, p := range patterns {
		r := Rule{Action: action, Pattern: p, Effect: e.kind.effect()}
		if !slices.Contains(e.rules, r) {
			e.rules = append(e.rules, r)
		}
	}
}

// namedTool matches a tool by its name: "via create_task tool", "the `task` tool".
var namedTool = regexp.MustCompile("`?([A-Za-z][A-Za-z0-9-]*(?:_[A-Za-z0-9-]+)+|[A-Za-z][A-Za-z0-9_-]*)`?\\s+tools?\\b")

// notTools are words before "tool" that are not names.
var notTools = []string{"a", "an", "the", "any", "all", "this", "my", "authorized", "authorised", "other", "external", "custom",
	"these", "which", "each", "no", "every", "mcp", "build", "dev", "cli", "new", "allowed", "approved"}

func (e *reading) tools() {
	for _, m := range namedTool.FindAllStringSubmatch(e.text, -1) {
		if !slices.Contains(notTools, strings.ToLower(m[1])) {
			e.add(m[1], "*")
		}
	}
}

// code matches code spans: `npm test`.
var code = regexp.MustCompile("`([^`]+)`")

// programs are names that begin a command in plain text.
var programs = strings.Fields(`npm pnpm yarn npx bun node deno git gh go cargo rustc make cmake pytest python python3 pip pip3
	uv poetry ruff black mypy tox docker docker-compose podman kubectl helm terraform ansible-playbook curl wget rm rmdir unlink
	mv cp chmod chown sudo ssh scp rsync psql mysql sqlite3 redis-cli mvn gradle bundle rake composer php dotnet swift eslint prettier tsc
	vitest jest apt apt-get brew systemctl kill pkill`)

// ends are words that end a command in plain text.
var ends = strings.Fields("to before after and or for in on with when if unless while as is are then commands command that which by from at the a any all only")

// ordinary are programs whose names are also common words; the next word decides.
var ordinary = map[string]bool{"go": true, "make": true, "node": true, "black": true, "bundle": true, "kill": true, "swift": true, "helm": true, "git": true, "yarn": true, "brew": true, "composer": true}

func (e *reading) commands() {
	for _, m := range code.FindAllStringSubmatch(e.text, -1) {
		if words := strings.Fields(m[1]); len(words) > 0 && (slices.Contains(programs, words[0]) || len(words) > 1 && !strings.Contains(words[0], "/")) {
			e.command(words)
		}
	}
	words := strings.FieldsFunc(code.ReplaceAllString(e.text, " , "), func(r rune) bool { return r == ' ' || r == '\t' })
	for i := 0; i < len(words); i++ {
		name := strings.Trim(words[i], "(\"'")
		if !slices.Contains(programs, name) {
			continue
		}
		var command []string
		for ; i < len(words); i++ {
			w := strings.Trim(words[i], "(\"'")
			bare := strings.TrimRight(w, ".,;:)\"'!?")
			if bare == "" || len(command) > 0 && slices.Contains(ends, strings.ToLower(bare)) {
				break
			}
			command = append(command, bare)
			if bare != w {
				break
			}
		}
		if ordinary[name] && len(command) < 2 {
			continue
		}
		e.command(command)
	}
}

// command adds a command. If it needs approval, only its first two words count, so that words
// of the sentence do not narrow the rule.
func (e *reading) command(words []string) {
	if last := len(words) - 1; words[last] == "*" {
		words = words[:last]
	}
	if len(words) == 0 {
		return
	}
	if e.kind != PreApproved && len(words) > 2 && !strings.HasPrefix(words[2], "-") {
		words = words[:2]
	}
	e.add(ActionRun, strings.Join(words, " ")+" *")
}

// fileName matches a path in text: with a slash, an extension or a leading dot.
var fileName = regexp.MustCompile(`(?:^|[\s(\x60"'])((?:~|\.{0,2})?/?(?:[\w@.*?-]+/)+[\w@.*?-]*|[\w@*?-][\w@.*?-]*\.[A-Za-z*][A-Za-z0-9*]{0,9}|\.[A-Za-z][\w.-]*)`)

var (
	changing  = regexp.MustCompile(`\b(?:write|edit|modify|modifying|change|changing|update|create|add|refactor|fix|implement|touch|delete|remove|rename|move|alter|affect)\b`)
	looking   = regexp.MustCompile(`\b(?:read|view|look|inspect|open|access|print|show)\b`)
	directory = regexp.MustCompile(`\b(?:directory|directories|folder|folders|dir)\b`)
)

func (e *reading) files() {
	var paths []string
	for _, m := range fileName.FindAllStringSubmatch(e.text, -1) {
		p := strings.TrimRight(m[1], ".,;:)")
		if p == "" || strings.Contains(p, "//") || abbreviation(p) || !strings.ContainsAny(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*") {
			continue
		}
		paths = append(paths, p)
	}
	writes, reads := changing.MatchString(e.low), looking.MatchString(e.low)
	for _, p := range paths {
		for _, pattern := range e.filePatterns(p) {
			if writes {
				e.add(ActionEdit, pattern)
			}
			if reads {
				e.add(ActionRead, pattern)
			}
		}
	}
}

func abbreviation(p string) bool {
	return slices.Contains([]string{"e.g", "i.e", "etc", "and/or", "n/a", "N/A", "yes/no", "read/write", "ci/cd", "CI/CD", "Node.js", "Next.js", "Vue.js"}, p)
}

// filePatterns returns the patterns for a path: a directory includes its contents. A path that
// needs approval is matched in every directory.
func (e *reading) filePatterns(p string) []string {
	p = strings.TrimPrefix(p, "./")
	p = strings.ReplaceAll(p, "**", "*")
	isDir := strings.HasSuffix(p, "/") || !strings.Contains(p, ".") && !strings.Contains(p, "*") && directory.MatchString(e.low)
	if isDir {
		p = strings.TrimSuffix(p, "/") + "/*"
	}
	all := []string{p}
	if e.kind != PreApproved && !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "~") && !strings.HasPrefix(p, "*") {
		all = append(all, "*/"+p)
	}
	return all
}

// A topic is a subject that entries name without a file or a command, with its rules.
type topic struct {
	words string // a regular expression over whole words, lower case
	wide  []Rule // if it needs approval or is forbidden
	near  []Rule // if it is pre-approved; nil if that would allow too much
}

func run(patterns ...string) []Rule { return rules("", ActionRun, patterns) }
func on(action string, patterns ...string) []Rule {
	return rules("", action, patterns)
}

var (
	deleteRules = run("rm *", "rmdir *", "unlink *", "shred *", "git rm *", "git clean *", "find * -delete *", "trash *")

	destroyRules = join(deleteRules, run("dd *", "mkfs*", "wipefs *", "truncate *", "git reset --hard *", "git checkout -- *", "git restore *",
		"git push --force *", "git push -f *", "git branch -D *", "git stash drop *", "git stash clear *", "docker system prune *",
		"dropdb *", "kill *", "pkill *", "killall *"))

	testRules = run("npm test *", "npm run test *", "npm run test:* *", "pnpm test *", "pnpm run test *", "yarn test *", "bun test *",
		"go test *", "cargo test *", "pytest *", "python -m pytest *", "make test *", "vitest *", "jest *")

	formatRules = run("npm run format *", "pnpm run format *", "pnpm format *", "yarn format *", "prettier *", "gofmt *", "go fmt *",
		"cargo fmt *", "rustfmt *", "black *", "ruff format *", "make fmt *", "make format *")

	lintRules = run("npm run lint *", "pnpm run lint *", "pnpm lint *", "yarn lint *", "eslint *", "ruff check *", "go vet *",
		"golangci-lint run *", "cargo clippy *", "make lint *")

	buildRules = run("npm run build *", "pnpm run build *", "pnpm build *", "yarn build *", "go build *", "cargo build *", "make", "make build *", "tsc *")

	installRules = run("npm install *", "npm i *", "npm ci *", "npm add *", "npm uninstall *", "pnpm install *", "pnpm add *", "yarn install *", "yarn add *",
		"bun install *", "bun add *", "pip install *", "pip3 install *", "uv add *", "uv pip install *", "poetry add *", "poetry install *", "go get *", "cargo add *", "cargo install *",
		"gem install *", "composer require *", "apt install *", "apt-get install *")

	deployRules = run("npm run deploy *", "pnpm run deploy *", "yarn deploy *", "npm publish *", "pnpm publish *", "yarn publish *", "cargo publish *",
		"kubectl *", "helm *", "terraform apply *", "terraform destroy *", "docker push *", "make deploy *", "gh release *", "vercel *", "fly *", "twine upload *")

	fetchRules = join(on(ActionFetch, "*"), on("websearch", "*"), on(ActionConnect, "*"), run("curl *", "wget *"))

	configurationRules = on(ActionEdit, everywhere("package.json", "tsconfig*.json", "jsconfig.json", "*.config.js", "*.config.cjs", "*.config.mjs", "*.config.ts",
		".env", ".env.*", ".npmrc", ".eslintrc*", ".prettierrc*", ".editorconfig", ".babelrc*", "opencode.json", "opencode.jsonc", ".opencode/*",
		"Dockerfile", "docker-compose*.yml", "docker-compose*.yaml", "compose.yml", "compose.yaml", "Makefile", "go.mod", "Cargo.toml", "pyproject.toml", "setup.cfg",
		"pom.xml", "build.gradle*", "pnpm-workspace.yaml", "turbo.json", ".github/*", ".gitlab-ci.yml", ".circleci/*")...)
)

// everywhere returns patterns for files of these names in every directory.
func everywhere(names ...string) []string {
	var all []string
	for _, n := range names {
		all = append(all, n)
		if !strings.HasPrefix(n, "*") {
			all = append(all, "*/"+n)
		}
	}
	return all
}

var topics = []topic{
	{`destructive|irreversible`, destroyRules, nil},
	{`(?:delet\w*|remov\w*|eras\w*)\b.*\b(?:files?|director(?:y|ies)|folders?|anything|data|code)`, deleteRules, run("rm *", "rmdir *", "unlink *")},
	{`force[- ]push\w*`, run("git push --force *", "git push -f *", "git push --force-with-lease *", "git push *"), nil},
	{`push\w*\b.*\b(?:git|remote|origin|github|gitlab|upstream|main|master|branch\w*|changes|commits|code|production)|git push\w*`, run("git push *"), run("git push *")},
	{`(?:git )?commit(?:s|ting)?`, run("git commit *"), run("git commit *", "git add *")},
	{`merg(?:e|es|ing)\b.*\b(?:branch\w*|pull requests?|prs?|main|master)`, run("git merge *", "gh pr merge *"), run("git merge *")},
	{`pull requests?|prs?`, run("gh pr *"), run("gh pr create *", "gh pr view *", "gh pr list *")},
	{`run\w*\b.*\btests?|tests`, testRules, testRules},
	{`format(?:s|ting)?`, formatRules, formatRules},
	{`lint(?:s|ing|ers?)?`, lintRules, lintRules},
	{`build(?:s|ing)?\b.*\b(?:project|code|app|application|package)|run (?:the |a )?builds?`, buildRules, buildRules},
	{`(?:install\w*|add\w*|upgrad\w*|updat\w*|chang\w*)\b.*\b(?:dependenc(?:y|ies)|packages?|librar(?:y|ies)|modules?)`, installRules, installRules},
	{`deploy\w*|publish\w*|releas(?:e|es|ing)`, deployRules, nil},
	{`(?:external|third[- ]party|outside|remote)\b.*\b(?:apis?|services?|calls?|requests?|network)|network (?:access|requests?|calls?)|http requests?|internet|api calls?`, fetchRules, fetchRules},
	{`(?:project |the )?configuration|config(?:uration)? files?|settings`, configurationRules, nil},
	{`secrets?|credentials?|api keys?`, join(on(ActionSecret, "*"), on(ActionRead, "*.env", "*.env.*")), nil},
	{`(?:other|sibling)\b.*\b(?:agents?|sandbox(?:es)?|jails?)|coordinat\w*`, on(ActionCoordinate, "*"), on(ActionCoordinate, "*")},
	{`(?:more|additional|extra)\b.*\b(?:resources|memory|cpu)|scal(?:e|ing)\b.*\bresources`, on(ActionResources, "*"), on(ActionResources, "*")},
	{`sudo|root privileges?|as root`, run("sudo *", "su *", "doas *"), nil},
	{`outside\b.*\b(?:workspace|project|repo|repository|directory)`, on(ActionOutside, "*"), nil},
}

// subjects adds the rules of topics.
func (e *reading) subjects() {
	for i, t := range topics {
		if !topicWords[i].MatchString(e.low) {
			continue
		}
		rules := t.wide
		if e.kind == PreApproved {
			rules = t.near
		}
		for _, r := range rules {
			e.add(r.Action, r.Pattern)
		}
	}
}

var topicWords = func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, t := range topics {
		all = append(all, regexp.MustCompile(`\b(?:`+t.words+`)\b`))
	}
	return all
}()

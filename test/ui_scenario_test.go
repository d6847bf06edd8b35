package test_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// modelThatRepairs is a scripted model that repairs the repository of a scenario: it runs the
// tests, reads the sources, fetches a package from a registry, is denied another host, edits a
// file and runs the tests again. A second goal needs an approval.
const modelThatRepairs = `
conversations:
  - when: {user: "write a short plan", model: "*sonnet*"}
    turns: [{text: "1. Run the tests. 2. Find the cause. 3. Repair it and run the tests again.", delay: 300ms, usage: {input: 1180, output: 46}}]
  - when: {user: "carry out the plan", model: "*sonnet*"}
    turns:
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && ls -R . && bash tests/run.sh"}}], delay: 500ms, usage: {input: 1620, output: 58}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && cat src/total.sh && grep -rn discount src tests"}}], delay: 400ms, usage: {input: 2140, output: 64}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && bash tools/fetch.sh registry.npmjs.org /decimal.js > vendor/decimal.json; cat vendor/decimal.json"}}], delay: 600ms, usage: {input: 2390, output: 71}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && bash tools/fetch.sh telemetry.example.net /v1/usage || echo 'not available, continuing without it'"}}], delay: 300ms, usage: {input: 2610, output: 52}}
      - {calls: [{tool: write_file, arguments: {path: /root/cart/src/total.sh, text: "# total PRICE QUANTITY DISCOUNT: the price in cents\ntotal() {\n  local sum=$(($1 * $2))\n  echo $((sum - sum * $3 / 100))\n}\n"}}], delay: 900ms, usage: {input: 2830, output: 148}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && sed -i 's/0.3.0/0.3.1/' VERSION && bash tests/run.sh"}}], delay: 400ms, usage: {input: 3020, output: 88}}
      - {text: "## Fixed\n\nThe discount was subtracted **before** the multiplication. The order is now:\n\n1. multiply price and quantity\n2. subtract the discount of the sum\n\n| test | before | after |\n| --- | --- | --- |\n| one article | pass | pass |\n| three articles, 10 % | **fail** | pass |\n\nOnly ` + "`src/total.sh` and `VERSION`" + ` changed. The telemetry host is not in the egress rules; nothing depends on it.", delay: 500ms, usage: {input: 3260, output: 132}}
  - when: {user: "write a short plan", model: "*haiku*"}
    turns: [{text: "1. Check the version. 2. Push the fix.", usage: {input: 940, output: 31}}]
  - when: {user: "carry out the plan", model: "*haiku*"}
    turns:
      - {calls: [{tool: bash, arguments: {command: "cat /root/cart/VERSION; ls /root/cart/src"}}], usage: {input: 1240, output: 40}}
      - {calls: [{tool: bash, arguments: {command: "git push origin main --tags"}}], usage: {input: 1390, output: 33}}
      - {text: "Pushed."}
`

// A repair is a scenario for the pages of the UI: an agent has repaired a repository, another
// run waits for an approval, and a snapshot has three branches.
type repair struct {
	*ui
	run, publish wire.Run
	waiting      wire.Approval // the push
	jail         id.Jail       // jail of the first run
	snapshot     wire.Snapshot
	branches     []wire.Jail
}

// repairs creates the scenario. The host must resolve the names of reachable, and the daemon
// must have the models of modelThatRepairs.
func (u *ui) repairs() repair {
	u.Helper()
	repo := filepath.Join(u.TempDir(), "cart")
	for name, text := range map[string]string{
		"VERSION":           "0.3.0\n",
		"README.md":         "# cart\n\nThe total of a shopping cart.\n",
		"src/total.sh":      "# total PRICE QUANTITY DISCOUNT: the price in cents\ntotal() {\n  echo $((($1 - $1 * $3) * $2 / 100))\n}\n",
		"src/tax.sh":        "tax() { echo $(($1 * 19 / 100)); }\n",
		"tests/run.sh":      ". src/total.sh\nfailed=0\nfor n in 1 2 3 4 5 6 7 8; do echo case $n > build/case$n; done\ncheck() {\n  sleep 0.2\n  got=$(total $2 $3 $4)\n  if [ $got = $5 ]; then echo \"ok $1\"; else echo \"FAIL $1: got $got, want $5\"; failed=1; fi\n}\ncheck 'one article' 500 1 0 500\ncheck 'three articles' 250 3 10 675\nls build | sort | head -3\nexit $failed\n",
		"tools/fetch.sh":    "exec 3<>/dev/tcp/$1/80 || exit 1\nprintf 'GET %s HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' $2 $1 >&3\nanswer=$(cat <&3)\ncase $answer in *' 200 '*) ;; *) echo \"$1: the request was denied\" >&2; exit 1;; esac\necho \"$answer\" | tail -n 1\n",
		"vendor/.keep":      "",
		"build/.keep":       "",
		"tests/data/a.json": "{\"price\": 500}\n",
	} {
		file := filepath.Join(repo, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			u.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			u.Fatal(err)
		}
	}
	created := wire.CreateJail{
		Name: "cart", Labels: map[string]string{"repo": "cart"}, Workspace: &wire.Workspace{Source: repo, Target: "/root/cart"}, Network: "proxy",
		Egress: &wire.Egress{Allow: []wire.EgressRule{{Host: "registry.npmjs.org"}}},
		Policy: &wire.Policy{
			Level: 2, Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission":{"edit":"allow","bash":{"*":"allow","git push*":"ask"}}}`}},
			Tiers: []wire.PolicyTier{{Action: "bash", Pattern: "git push*", Tier: "elevated"}},
		},
	}
	agent := func(name, model string) *wire.RunAgent {
		jail := created
		jail.Name = name
		return &wire.RunAgent{Model: model, Keep: true, Jail: &jail}
	}
	start := func(goal string, agent *wire.RunAgent) wire.Run {
		u.Helper()
		r, err := u.StartRun(u.Context(), wire.StartRun{Goal: goal, Session: "sess-cart", Agent: agent, Budget: map[string]int64{"steps": 60, "cost-micros": 500_000, "wall-clock-ms": 900_000}})
		if err != nil {
			u.Fatal(err)
		}
		return r
	}
	s := repair{ui: u}
	s.run = u.settled(start("Repair the failing test of cart", agent("cart", "claude-sonnet-4-5")).ID, "done")
	s.jail = s.run.Jail
	s.publish = u.settled(start("Publish cart 0.3.1", agent("cart-publish", "claude-haiku-4-5")).ID, "paused")
	s.waiting = u.pendingApproval(s.publish.Jail, "git push origin main --tags")

	if now, err := u.Jail(u.Context(), s.jail); err != nil {
		u.Fatal(err)
	} else if now.State != "running" {
		if _, err := u.StartJail(u.Context(), s.jail); err != nil {
			u.Fatal(err)
		}
	}
	s.snapshot = u.snapshot(s.jail, "tests pass")
	for _, name := range []string{"cart-rounding", "cart-reduced-tax", "cart-as-is"} {
		made, err := u.BranchSnapshot(u.Context(), s.snapshot.ID, wire.Branch{Count: 1, Overrides: wire.Overrides{Name: name}})
		if err != nil {
			u.Fatal(err)
		}
		s.branches = append(s.branches, made.Jails...)
	}
	u.sh(s.branches[0].ID, "cd /root/cart && echo 'round() { echo $((($1 + 50) / 100)); }' > src/round.sh && bash tests/run.sh")
	u.sh(s.branches[1].ID, "cd /root/cart && sed -i 's/19/7/' src/tax.sh && rm vendor/.keep && bash tests/run.sh")
	return s
}

// servesRegistry makes this host resolve the names of the scenario and serves the package registry.
// The test must have its own namespaces.
func servesRegistry(t *testing.T) {
	t.Helper()
	world := internet(t)
	named(t, map[string]string{"registry.npmjs.org": serverAddr, "telemetry.example.net": serverAddr})
	website(t, world, serverAddr+":80", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "{\"name\": %q, \"version\": \"10.4.3\"}\n", r.URL.Path[1:])
	}))
}

// TestUIScenario checks the pages of the UI with the scenario: the agent that repaired a
// repository, a pending approval, and a snapshot with three branches.
func TestUIScenario(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	servesRegistry(t)
	browser := browse(t)
	h := open(t, tools()+models(t, modelThatRepairs), "--listen", "127.0.0.1:0")
	u := &ui{daemonHarness: h, browser: browser}
	u.page = h.login(t, browser, "admin")
	u.showsFirstSteps()
	s := u.repairs()
	for _, part := range []struct {
		name string
		try  func(repair)
	}{
		{"overview", repair.overview},
		{"command palette", repair.palette},
		{"old paths", repair.oldPaths},
		{"timeline", repair.timeline},
		{"agent run", repair.runPage},
		{"snapshots and comparison", repair.snapshots},
		{"accessibility on a desktop and on a phone", repair.isAccessible},
		{"elevated approval", repair.elevatedApproval},
	} {
		t.Run(part.name, func(t *testing.T) { part.try(s.of(t)) })
	}
	u.ends(s.publish)
}

// of returns the scenario for a subtest.
func (s repair) of(t *testing.T) repair {
	s.ui = s.ui.of(t)
	return s
}

// ends cancels a run that has not ended, so that the daemon can remove its jail.
func (u *ui) ends(r wire.Run) {
	u.Helper()
	if now, err := u.Client.Run(u.Context(), r.ID); err != nil {
		u.Fatal(err)
	} else if now.State == "active" || now.State == "paused" {
		if _, err := u.CancelRun(u.Context(), r.ID); err != nil {
			u.Fatal(err)
		}
	}
	u.settled(r.ID, "cancelled", "done", "failed")
}

// showsFirstSteps checks the overview of a daemon without jails.
func (u *ui) showsFirstSteps() {
	p := u.page
	p.open("/")
	p.waitText("First steps")
	for _, command := range []string{"glasshouse run -- make test", "glasshouse diff JAIL --unified", "glasshouse apply JAIL"} {
		if !p.says(command) {
			u.Errorf("the first steps lack %q:\n%s", command, p.text())
		}
	}
	p.press("[aria-label='First steps'] a", "create a jail")
	p.until("open the form", `document.querySelector("dialog:modal") && location.search.includes("new=yes")`)
	p.keys(kb.Escape)
	p.until("close the form", `!document.querySelector("dialog:modal") && !location.search.includes("new=yes")`)
}

// tile returns a script that reads the value of a tile of the overview.
func tile(label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("[aria-label=Status] a")].find(e => e.innerText.startsWith(%s))?.querySelector("strong").innerText.trim()`, quoted(label))
}

func (u repair) overview() {
	p := u.page
	p.open("/")
	p.until("count the pending approval", tile("Pending approvals")+` === "1"`)
	p.until("count denials", "Number("+tile("Denials")+") >= 1")
	p.until("sum the cost of model calls", "Number("+tile("Spend")+") > 0")
	p.until("show the disk", tile("Disk")+`.endsWith("%")`)
	p.until("count the gaps", tile("Event gaps")+` === "0"`)
	p.until("count active runs", tile("Running agents")+` === "0"`)
	for _, says := range []string{"git push origin main --tags", "telemetry.example.net", "Repair the failing test of cart", "claude-sonnet-4-5", "cart-rounding"} {
		p.waitText(says)
	}
	if p.says("First steps") {
		u.Error("the first steps are shown although there are jails")
	}
	p.press("[aria-label=Status] a", "Pending approvals")
	p.until("open the approvals", `location.pathname === "/approvals"`)
}

func (u repair) palette() {
	p := u.page
	p.open("/jails")
	p.waitText("cart")
	selected := func(text string) string {
		return fmt.Sprintf(`(e => e && e.getAttribute("aria-selected") === "true" && e.innerText.includes(%s))(document.getElementById(document.activeElement.getAttribute("aria-activedescendant")))`, quoted(text))
	}
	find := func(query, first string) {
		u.Helper()
		p.ctrl('k')
		p.until("open the palette", `document.querySelector("dialog:modal [role=combobox]") === document.activeElement`)
		p.keys(query)
		p.until(fmt.Sprintf("select %q for %q", first, query), selected(first))
	}
	for _, c := range []struct{ query, first, path string }{
		{"egr", "Egress", "/egress"},
		{"stor", "Storage", "/doctor"},
		{"crtrnd", "cart-rounding", "/jails/" + string(u.branches[0].ID)},
		{"repair the", "Repair the failing test", "/chat/run/" + string(u.run.ID)},
		{"tests pass", "tests pass", "/lineage"},
	} {
		find(c.query, c.first)
		p.keys(kb.Enter)
		p.until("open "+c.path, fmt.Sprintf(`!document.querySelector("dialog:modal") && location.pathname === %s`, quoted(c.path)))
	}
	// The arrow keys select, Escape and Ctrl K close.
	p.ctrl('k')
	p.until("open the palette", selected("Overview"))
	p.keys(kb.ArrowDown)
	p.until("select the next command", selected("Jails"))
	p.keys(kb.ArrowUp + kb.ArrowUp)
	p.until("select the last command", "!"+selected("Overview")+" && "+selected(""))
	p.keys("!!!!") // no letters: ids are random
	p.waitText("Nothing matches “!!!!”.")
	p.keys(kb.Escape)
	p.until("close the palette", `!document.querySelector("dialog")`)
	p.ctrl('k')
	p.until("open the palette", `document.querySelector("dialog:modal")`)
	p.ctrl('k')
	p.until("close the palette", `!document.querySelector("dialog")`)
}

func (u repair) oldPaths() {
	p := u.page
	for old, want := range map[string]view{
		"/governance?view=egress&verdict=refused": {"/egress", "telemetry.example.net"},
		"/governance":                         {"/governance", "Decisions"},
		"/lineage":                            {"/lineage", "tests pass"},
		"/snapshots/" + string(u.snapshot.ID): {"/snapshots/" + string(u.snapshot.ID), "Branch from here"},
		"/capabilities":                       {"/capabilities", "Extensions"},
		"/doctor":                             {"/doctor", "System"},
	} {
		p.open(old)
		p.waitText(want.says)
		p.until("be at "+want.path, "location.pathname === "+quoted(want.path))
	}
}

func (u repair) timeline() {
	p := u.page
	p.open(at(u.jail, "events") + "&q=type:proc,file")
	p.until("show the lives of processes", `document.querySelectorAll("[aria-label=Processes] li").length >= 3`)
	p.until("group the processes of a program", `[...document.querySelectorAll("[aria-label=Processes] button")].some(e => /^Only bash: \d+ processes, \d+ failed/.test(e.title))`)
	p.until("mark the denial and the snapshot", `["denied", "snapshot"].every(kind => document.querySelector(".legend ." + kind))`)
	height := evaluate[float64](p, `(e => e.querySelector(".lanes").getBoundingClientRect().bottom - e.querySelector(".plot").getBoundingClientRect().top)(document.querySelector("[aria-label=Timeline]"))`)
	if height < 180 || height > 220 {
		u.Errorf("the timeline has a height of %v px, want 180 to 220", height)
	}
	// A burst shows its process once, and failures have badges.
	p.until("group bursts", `document.querySelectorAll("[role=option] .line.inside").length > 0`)
	p.filter("type:file ret:<0", 1)
	p.until("show results", `[...document.querySelectorAll("[role=option] .tag.bad")].some(e => e.innerText === "ENOENT")`)
	p.open(at(u.jail, "events") + "&lanes=yes")
	p.press("[aria-label=Processes] button", "sed")
	p.until("filter by the program", `/pid:\d+|comm:sed/.test(new URLSearchParams(location.search).get("q") ?? "")`)
}

func (u repair) runPage() {
	p := u.page
	p.open("/chat/run/" + string(u.run.ID))
	p.until("show the model of each call", `[...document.querySelectorAll("[role=treeitem]")].filter(e => e.innerText.includes("claude-sonnet-4-5")).length >= 5`)
	p.until("show the waterfall", `(bars => bars.length >= 10 && bars.every((e, i) => i === 0 || parseFloat(e.style.left) >= parseFloat(bars[i - 1].style.left)) && parseFloat(bars.at(-1).style.left) > 50)([...document.querySelectorAll("[role=treeitem] .bar")])`)
	p.until("format the result", `document.querySelector("[aria-label=Outcome] [role=heading]")?.innerText === "Fixed" && document.querySelectorAll("[aria-label=Outcome] ol li").length === 2 && document.querySelectorAll("[aria-label=Outcome] tbody tr").length === 2`)
	p.press("button", "Plain text")
	p.waitText("## Fixed")
	p.press("[role=tab]", "Files changed")
	p.waitText("total.sh")
	p.press("button", "total.sh")
	p.until("show the change", `[...document.querySelectorAll("main *")].some(e => e.innerText?.includes("local sum="))`)
	p.press("[role=tab]", "Steps")
	p.until("show the steps", `document.querySelector("[role=tree]")`)
}

func (u repair) snapshots() {
	p := u.page
	p.open("/snapshots")
	p.until("list the snapshot", found("tr", "tests pass"))
	p.press("tr a", "tests pass")
	p.until("open it", `location.pathname === "/lineage" && location.search.includes("at=s-")`)
	p.open("/lineage?at=" + string(u.snapshot.ID) + "&with=" + string(u.branches[1].ID))
	p.waitText("Only in tests pass")
	p.waitText("Only in cart-reduced-tax")
	p.waitText("In both, changed")
	p.until("name the columns", `[...document.querySelectorAll("[aria-label=Comparison] table")].every(t => ["tests pass", "cart-reduced-tax"].every(n => [...t.querySelectorAll("th[scope=col]")].some(h => h.innerText.includes(n))))`)
	p.until("fit the window", `document.querySelector("main").scrollHeight <= document.querySelector("main").clientHeight`)
}

func (u repair) elevatedApproval() {
	p := u.page
	p.open("/approvals/" + string(u.waiting.ID))
	for _, says := range []string{"Run a command", "elevated", "Why approval is required", "Impact", "in the jail cart-publish, not on this host", "until you apply them", "a second person"} {
		p.waitText(says)
	}
	sizes := evaluate[[]float64](p, `["Deny", "Approve"].map(text => [...document.querySelectorAll("form button")].find(e => e.innerText === text).getBoundingClientRect().width)`)
	if sizes[0] != sizes[1] || sizes[0] == 0 {
		u.Errorf("the buttons to deny and to approve are %v px wide, want the same width", sizes)
	}
	if evaluate[bool](p, `document.querySelector("form .answers .primary") !== null`) {
		u.Error("an answer to an elevated request is highlighted")
	}
	p.press("form button", "Deny")
	p.waitText("Denied by")
	u.settled(u.publish.ID, "done", "failed")

	// For a standard request the form shows the rule that an answer for always would add.
	waiting := u.asks(u.careful("standard"), wire.Question{Action: "bash", Resource: "make install"})
	p.open("/approvals/" + string(waiting.ID))
	p.waitText("“Always” would add the rule")
	if want := waiting.Writes["always"]; want == "" || !p.says(want) {
		u.Errorf("the page lacks the rule %q:\n%s", want, p.text())
	}
	p.until("highlight the approval", `document.querySelector("form .answers .primary")?.innerText === "Approve"`)
	u.allows(waiting)
}

func (u repair) isAccessible() {
	axe, err := os.ReadFile("../web/ui/node_modules/axe-core/axe.min.js")
	if err != nil {
		u.Skip("axe-core is not installed: run npm ci in web/ui")
	}
	views := []view{
		{"/", "telemetry.example.net"},
		{"/snapshots", "tests pass"},
		{"/lineage?at=" + string(u.snapshot.ID) + "&with=" + string(u.branches[1].ID), "Only in tests pass"},
		{"/approvals/" + string(u.waiting.ID), "Impact"},
		{"/chat/run/" + string(u.run.ID), "subtracted before"},
		{"/chat/run/" + string(u.run.ID) + "?view=files&side=workspace", "total.sh"},
		{at(u.jail, "events") + "&q=type:proc", "events"},
		{"/egress", "telemetry.example.net"},
	}
	for _, phone := range []bool{false, true} {
		p, size := u.login(u.T, u.browser, "admin"), ", on a desktop"
		if phone {
			p.phone()
			size = ", on a phone"
		}
		p.do(string(axe))
		for _, v := range views {
			p.prefers("light")
			p.goes(v.path)
			p.waitText(v.says)
			if phone {
				u.fitsThePhone(p)
			}
			u.usable(p, v.path+size, "{}")
			p.prefers("dark")
			p.until("be dark", `document.documentElement.dataset.theme === "dark"`)
			u.usable(p, v.path+size+", in the dark", `{ runOnly: ["color-contrast"] }`)
		}
		p.ctrl('k')
		p.until("open the palette", `document.querySelector("dialog:modal [role=option]")`)
		u.fitsThePhone(p)
		u.usable(p, "the command palette"+size, "{}")
	}
}

package test_test

import (
	"os"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// A view is a page of the UI, and a text that it shows when it is complete.
type view struct{ path, says string }

func (u *ui) isAccessible() {
	if testing.Short() {
		u.Skip("TestUIScenario checks the main pages: runs without -short")
	}
	axe, err := os.ReadFile("../web/ui/node_modules/axe-core/axe.min.js")
	if err != nil {
		u.Skip("axe-core is not installed: run npm ci in web/ui")
	}
	waiting := u.asks(u.careful("asking"), wire.Question{Action: "bash", Resource: "git push"})
	g := u.garden.ID
	s := u.snapshot(g, "first")
	run := u.pursued("count to three", "sess-count")
	views := []view{
		{"/", "Pending approvals"},
		{"/jails", "garden"},
		{at(g, "events") + "&lanes=yes", "events"},
		{at(g, "processes") + "&ended=yes", "exit 3"},
		{at(g, "files") + "&file=/root/notes.txt", "added"},
		{at(g, "network"), "B out"},
		{at(g, "syscalls"), "Failures"},
		{at(g, "terminal"), "Connected"},
		{at(g, "commands"), "Command for"},
		{"/lineage?at=" + string(g), "Branch from here"},
		{"/approvals", "git push"},
		{"/approvals/" + string(waiting.ID), "Why approval is required"},
		{"/chat/run", "count to three"},
		{"/chat/run/" + string(run.ID), "Result"},
		{"/chat/session", "sess-count"},
		{"/chat/session/sess-count", "Plan:"},
		{"/schedules", "Schedules"},
		{"/connectors", "Connectors"},
		{"/chain", "Verify all"},
		{"/governance", "Decisions"},
		{"/governance?view=explore", "Policy test"},
		{"/governance?view=policy", "Policies"},
		{"/egress", "Network access"},
		{"/snapshots", "first"},
		{"/snapshots/" + string(s.ID), "Branch from here"},
		{"/governance?view=secrets", "Secrets"},
		{"/governance?view=budgets", "Budgets"},
		{"/capabilities", "Capabilities"},
		{"/skills", "Skills"},
		{"/bundles", "Bundles"},
		{"/publishers", "Publishers"},
		{"/doctor", "System"},
		{"/doctor?view=fleet", "not in a fleet"},
		{"/doctor?view=records", "Gaps"},
		{"/doctor?view=storage", "Storage"},
		{"/doctor?view=deliveries", "Deliveries"},
		{"/doctor?view=access", "Log out …"},
		{"/nowhere", "Page not found"},
	}
	const first = 12 // the views that are used on a phone are among the first ones
	for _, phone := range []bool{false, true} {
		p, size := u.login(u.T, u.browser, "admin"), ", on a desk"
		if phone {
			p.phone()
			size = ", on a phone"
		}
		p.do(string(axe))
		for n, v := range views {
			p.prefers("light")
			p.goes(v.path)
			p.waitText(v.says)
			if phone && !p.comes(20*time.Second, "document.documentElement.scrollWidth <= innerWidth") { // a terminal adapts to the available width
				u.Errorf("%s is wider than a phone", v.path)
			}
			if !phone || n < first || thorough {
				u.usable(p, v.path+size, "{}")
			}
			if phone && !thorough {
				continue // its colours are those of a desktop
			}
			p.prefers("dark")
			p.until("be dark", `document.documentElement.dataset.theme === "dark"`)
			u.usable(p, v.path+size+", in the dark", `{ runOnly: ["color-contrast"] }`)
		}
	}
	u.allows(waiting)
}

// goes follows a link within the loaded page.
func (b *tab) goes(path string) {
	b.Helper()
	b.do(`history.pushState(null, "", ` + quoted(path) + `); dispatchEvent(new PopStateEvent("popstate"))`)
}

// usable fails the test for accessibility violations of the page.
func (u *ui) usable(p *tab, where, rules string) {
	u.Helper()
	type violation struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	found := evaluate[[]violation](p, `axe.run(document, { resultTypes: ["violations"], preload: false, ...`+rules+` }).then(r => r.violations.map(v => ({ ...v, nodes: v.nodes.slice(0, 3) })))`)
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			u.Errorf("%s: %s (%s): %+v", where, v.Help, v.ID, v.Nodes)
		}
	}
}

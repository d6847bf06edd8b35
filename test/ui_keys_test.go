package test_test

import (
	"fmt"
	"time"

	"github.com/chromedp/chromedp/kb"

	"glasshouse/api/wire"
)

func (u *ui) goesByKeys() {
	if _, err := u.CreateJail(u.Context(), wire.CreateJail{Name: "shed"}); err != nil {
		u.Fatal(err)
	}
	p := u.page
	p.open("/lineage")
	p.waitText("Lineage")
	p.keys("?")
	p.until("list the keys", `document.querySelector("dialog:modal")?.innerText.includes("Go to Approvals")`)
	p.keys("j") // the dialog now receives the key
	p.keys(kb.Escape)
	p.until("close the list", `!document.querySelector("dialog:modal")`)

	for _, place := range evaluate[[]struct{ Keys, Path string }](p, `[...document.querySelectorAll("nav li a")].map(a => ({ Keys: a.title.match(/\(g (.)\)/)[1], Path: a.pathname }))`) {
		p.typesTo("g"+place.Keys, place.Path)
	}

	p.open("/jails")
	p.until("list the jails", `document.querySelectorAll("tbody tr").length > 1`)
	current := func() string {
		return evaluate[string](p, `document.querySelector("tr[aria-current=true] a")?.pathname ?? ""`)
	}
	moved := func(key, from string) (to string) { // the page redraws after the key event
		p.keys(key)
		within(20*time.Second, func() bool { to = current(); return to != from })
		return to
	}
	first := moved("j", "")
	second := moved("j", first)
	if back := moved("k", second); first == "" || second == "" || first == second || back != first {
		u.Errorf("j, j and k go to %q, %q and %q", first, second, back)
	}
	p.keys(kb.Enter)
	p.until("open the jail", fmt.Sprintf("location.pathname === %s", quoted(first)))
	p.until("have its tabs", `document.querySelector("[role=tab]")`)
	p.keys("3")
	p.until("show its files", `new URLSearchParams(location.search).get("view") === "files"`)

	// In a field, letters are text; Escape leaves the field.
	p.open("/jails")
	p.waitText("garden")
	p.keys("/")
	p.keys("gl")
	p.until("search", `location.search.includes("q=gl")`)
	p.keys(kb.Escape)
	p.typesTo("gs", "/snapshots")

	// Tab shows the focus, and a skip link bypasses the navigation.
	p.open("/jails")
	p.waitText("garden")
	p.keys(kb.Tab)
	p.until("offer to skip to the content", `document.activeElement.matches(".skip") && document.activeElement.getBoundingClientRect().top >= 0`)
	p.keys(kb.Tab)
	if hidden := evaluate[bool](p, `(s => s.outlineStyle === "none" || parseFloat(s.outlineWidth) === 0)(getComputedStyle(document.activeElement))`); hidden {
		u.Error("the focus is not visible")
	}
}

// typesTo types keys that lead to a page. A key pair has a time limit, which a busy host can
// exceed, so it retries.
func (b *tab) typesTo(keys, path string) {
	b.Helper()
	if !within(30*time.Second, func() bool {
		b.keys(keys)
		return b.comes(5*time.Second, "location.pathname === "+quoted(path))
	}) {
		b.Fatalf("%s does not lead to %s:\n%s", keys, path, b.text())
	}
}

func (u *ui) onlyLooks() {
	j := u.careful("watched")
	u.sh(j, "true")
	waiting := u.asks(j, wire.Question{Action: "bash", Resource: "git pull"})

	p := u.login(u.T, u.browser, "viewer")
	for _, v := range []view{
		{"/jails", "watched"},
		{"/jails/" + string(j), "events"},
		{at(j, "commands"), "Status"},
		{at(j, "terminal"), "The terminal requires the operator role"},
		{"/approvals/" + string(waiting.ID), "Why approval is required"},
	} {
		p.open(v.path)
		p.waitText(v.says)
		for _, does := range []string{"New jail", "Create a jail", "Pause", "Stop", "Branch", "Delete", "Run", "Approve", "Deny"} {
			if evaluate[bool](p, fmt.Sprintf("Boolean(%s)", found("main button", does))) {
				u.Errorf("%s offers %q to a viewer", v.path, does)
			}
		}
	}
	u.allows(waiting)
}

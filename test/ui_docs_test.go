package test_test

import "strings"

// The documentation has a stricter policy than its generator expects: a script that the policy does
// not list causes an error in the console.
func (u *ui) readsDocumentation() {
	p := u.page
	p.open("/docs/")
	p.waitText("Compared with")
	p.press("button", "Search")
	p.until("open the search", `document.querySelector("dialog[aria-label=Search] input")`)
	p.do(`document.querySelector("dialog[aria-label=Search] input").focus()`)
	p.keys("audit log")
	p.until("find a page", `document.querySelector("dialog[aria-label=Search] a[href*='/docs/']")`)
	found := evaluate[string](p, `document.querySelector("dialog[aria-label=Search] a[href*='/docs/']").pathname`)
	p.open(found)
	if text := p.text(); !strings.Contains(strings.ToLower(text), "audit") {
		u.Errorf("%s, the first result for “audit log”, does not have the word:\n%s", found, text)
	}

	p.open("/docs/reference/cli/jail-create/")
	p.until("have a heading", `document.querySelector("h1")?.innerText === "glasshouse jail create"`)
	p.do(`(e => { e.value = "dark"; e.dispatchEvent(new Event("change", { bubbles: true })) })(document.querySelector("starlight-theme-select select"))`)
	p.until("be dark", `document.documentElement.dataset.theme === "dark"`)
	p.open("/docs/concepts/egress/")
	p.until("stay dark", `document.documentElement.dataset.theme === "dark"`)
	p.until("show the dark diagram only", `[...document.querySelectorAll("main img")].filter(e => e.offsetParent !== null).map(e => e.src).join().endsWith("-dark.svg")`)
	p.clean()
	p.open("/jails")
}

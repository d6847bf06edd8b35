package test_test

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func (u *ui) asksForALink() {
	p := blank(u.T, u.browser, u.page.base)
	p.open("/jails")
	p.waitText("Log in")
	p.fill("Login link", p.base+"/login#ghl_wrong")
	p.press("button", "Log in")
	p.until("refuse it", `document.querySelector("[role=alert]")`)
}

func (u *ui) linksWorkOnce() {
	link, err := u.CreateLoginLink(u.Context(), wire.CreateLoginLink{Role: "admin", Label: "once"})
	if err != nil {
		u.Fatal(err)
	}
	p := blank(u.T, u.browser, u.page.base)
	p.open("/login#" + link.Code)
	p.waitText("garden")
	if address := evaluate[string](p, "location.href"); address != p.base+"/" {
		u.Errorf("address after the login = %s, want /", address)
	}
	if seen := evaluate[string](p, "document.cookie"); seen != "" {
		u.Errorf("scripts can read the cookie %q", seen)
	}
	p.open("/jails") // authenticated by the cookie
	p.waitText("garden")

	other := blank(u.T, u.browser, u.page.base)
	other.open("/login#" + link.Code)
	other.until("refuse it", `document.querySelector("[role=alert]")`)
	if !other.says("used") || other.says("garden") {
		u.Errorf("a used link shows %s", other.text())
	}
}

// A browser opens at most six HTTP/1.1 connections to a host, shared by all tabs.
func (u *ui) sharesTheDaemon() {
	p := u.login(u.T, u.browser, "viewer")
	for n := range 8 { // pages in the browser's back/forward cache
		p.open(fmt.Sprintf("/jails?q=g&n=%d", n))
		p.waitText("garden")
	}
	p.run(chromedp.NavigateBack())
	p.waitText("garden")
	p.until("go on", `document.querySelector("nav [role=status]").innerText.includes("Live")`)
}

func (u *ui) listsJails() {
	p := u.page
	p.open("/jails")
	p.waitText("garden")
	p.waitText("running")
	p.keys("/")
	p.keys("nothing like it")
	p.waitText("No jail has “nothing like it”")
	p.fill("Search jails", "GARD")
	p.waitText("garden")
}

func (u *ui) makesAJail() {
	p := u.page
	p.open("/jails")
	p.press("button", "New jail")
	p.fill("Name", "made here")
	p.fill("Network group", strings.Repeat("long", 20)) // before it is sent
	p.press("dialog button", "Create jail")
	p.waitText("longer than 64")
	p.fill("Network group", "")
	p.fill("Hostname", "<b>") // by the daemon
	p.press("dialog button", "Create jail")
	p.until("say what is wrong with the host's name", `[...document.querySelectorAll("dialog [role=alert], dialog .bad")].some(e => e.checkVisibility() && e.innerText.includes("<b>"))`)
	p.fill("Hostname", "made")
	p.fill("Env", "GREETING=good day\nNAME=<i>")
	p.press("dialog button", "Create jail")
	p.until("show the jail", `location.pathname.startsWith("/jails/j-")`)
	p.waitText("made here")
	p.waitText("running")
	j := id.Jail(evaluate[string](p, `location.pathname.split("/").at(-1)`))
	if got := u.sh(j, `echo "$(cat /proc/sys/kernel/hostname): $GREETING, $NAME"`); got != "made: good day, <i>" {
		u.Errorf("settings of the new jail: got %q", got)
	}
}

func (u *ui) pausesAJail() {
	p := u.page
	p.open("/jails/" + string(u.garden.ID))
	for _, c := range []struct{ does, state string }{{"Pause", "paused"}, {"Resume", "running"}} {
		p.press("main header button", c.does)
		p.until("be "+c.state, found("main header .who", c.state))
		if now, err := u.Jail(u.Context(), u.garden.ID); err != nil || now.State != c.state {
			u.Errorf("page shows state %s, the jail is %s: %v", c.state, now.State, err)
		}
	}
}

func (u *ui) walksEvents() {
	p, j := u.page, u.garden.ID
	u.watchedByKernel(j)
	const ofInit = `[...document.querySelectorAll("[role=option] .who")].some(e => e.innerText.endsWith("·1"))`
	const withoutInit = `document.querySelectorAll("[role=option] .line").length > 2 && !(` + ofInit + `)`
	p.open(at(j, "events"))
	p.until("show what a running jail does", withoutInit)
	p.waitText("events")
	p.filter("type:proc op:exec comm:sh", 1)
	p.waitText("exec /bin/sh -c")
	p.keys("j" + kb.Enter)
	p.waitText("Event ")
	p.waitText("argv")
	p.filter("type:proc comm:sh", 2)
	p.keys("j" + kb.Enter)
	p.waitText("Event ")
	before := evaluate[string](p, `document.querySelector("aside h2").innerText`)
	p.keys("j")
	p.until("show the next record", fmt.Sprintf(`document.querySelector("aside h2")?.innerText !== %s`, quoted(before)))
	p.press("button", "Raw JSON")
	p.until("show the record as it is kept", `document.querySelector("aside pre")?.innerText.includes('"type": "proc"')`)
	p.keys(kb.Escape)
	p.until("close the record", `!document.querySelector("aside")`)
	p.fill("Filter", "ret:>")
	p.until("say what is wrong with a filter", `document.querySelector("[aria-invalid=true]") && document.querySelector("[role=alert]").innerText !== ""`)

	// Events of init are shown on request.
	ended := u.running(wire.CreateJail{})
	u.watchedByKernel(ended.ID)
	u.sh(ended.ID, "true")
	if _, err := u.StopJail(u.Context(), ended.ID, 0); err != nil {
		u.Fatal(err)
	}
	p.open(at(ended.ID, "events"))
	p.until("begin with the first program", withoutInit)
	p.press("section[aria-label=Timeline] button", "Init")
	p.until("show what init did", ofInit)
	p.press("section[aria-label=Timeline] button", "Init")
	p.until("hide it again", withoutInit)
	p.filter("pid:1", 1)
	p.until("show what a filter names", ofInit)
	if err := u.DeleteJail(u.Context(), ended.ID); err != nil {
		u.Fatal(err)
	}
}

// filter applies a filter, and waits for at least this many events.
func (b *tab) filter(q string, least int) {
	b.Helper()
	b.fill("Filter", q)
	b.keys(kb.Enter + kb.Escape)
	b.until("list what is asked for", fmt.Sprintf(`new URLSearchParams(location.search).get("q") === %s && document.querySelectorAll("[role=option] .line").length >= %d`, quoted(q), least))
}

func (u *ui) looksAtAJail() {
	p, j := u.page, u.garden.ID
	u.watchedByKernel(j)
	for view, says := range map[string]string{"processes&ended=yes": "exit 3", "network": "B out", "syscalls": "ENOENT", "commands": "Command for"} {
		p.open(at(j, view) + "&lanes=yes")
		p.waitText(says)
	}
	// The report can be downloaded or opened as a page.
	p.open("/jails/" + string(j))
	p.press("button", "More actions for garden")
	for _, format := range []string{"Open report (HTML)", "Open report (Markdown)", "Open report (JSON)"} {
		p.until("offer "+format, found("[role=menuitem]", format))
	}
	report := evaluate[string](p, fmt.Sprintf(`fetch("/jails/%s/report?format=md").then(r => r.text())`, j))
	if !strings.Contains(report, "/etc/nosuch") {
		u.Errorf("the report lacks the failed call:\n%.2000s", report)
	}
}

// picture returns an image.
func picture() string {
	img := image.NewRGBA(image.Rect(0, 0, 48, 32))
	for i := range 48 * 32 {
		img.Set(i%48, i/48, color.RGBA{uint8(i), 90, 200, 255})
	}
	var b bytes.Buffer
	png.Encode(&b, img)
	return b.String()
}

func (u *ui) looksAtFiles() {
	p, j := u.page, u.garden.ID
	u.copyIn(j, "/root/flag.png", picture())
	p.open(at(j, "files"))
	p.press("button", "notes.txt")
	p.waitText("/root/notes.txt")
	p.until("show what was added", `[...document.querySelectorAll("section[aria-label=File] *")].some(e => e.innerText?.trim() === "one")`)
	p.press("button", "flag.png")
	p.until("show the image", `document.querySelector("section[aria-label=File] img")?.naturalWidth === 48`)
}

func (u *ui) runsACommand() {
	p := u.page
	p.open(at(u.garden.ID, "commands"))
	p.fill("Command for", "echo 'it <i>says</i>'; exit 3")
	p.press("button", "Run")
	p.waitText("it <i>says</i>")
	p.waitText("exit 3")
}

// terminal opens a terminal in the running jail.
func (u *ui) terminal() *tab {
	u.Helper()
	u.page.open(at(u.garden.ID, "terminal"))
	u.page.until("open a terminal", `document.querySelector(".terminal [role=status]")?.innerText.startsWith("Connected\n") && document.querySelector(".xterm").innerText.includes("bash")`)
	return u.page
}

func (u *ui) typesIntoATerminal() {
	u.page.window(1280, 800)
	p := u.terminal()
	p.keys("echo $((6*7))-\r")
	p.waitText("42-")
	// A shell updates its size after a child process has ended.
	size := func() (rows, cols int) {
		p.keys("clear; (:); echo size $LINES $COLUMNS\r")
		p.until("say its size", `/^size [0-9]+ [0-9]+/m.test(document.querySelector(".xterm").innerText)`)
		told := evaluate[string](p, `document.querySelector(".xterm").innerText.match(/^size [0-9]+ [0-9]+/gm).at(-1)`)
		fmt.Sscanf(told, "size %d %d", &rows, &cols)
		return rows, cols
	}
	rows, cols := size()
	p.window(900, 700)
	if !within(20*time.Second, func() bool {
		r, c := size()
		return r < rows && c < cols
	}) {
		u.Errorf("the terminal has %d rows, before %d, in a smaller window", rows, cols)
	}
	p.keys("sleep 1000; echo code $?\r")
	p.until("run it", `document.querySelector(".xterm").innerText.includes("sleep 1000")`)
	if !within(20*time.Second, func() bool {
		return strings.Contains(u.sh(u.garden.ID, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "sleep 1000")
	}) {
		u.Fatal("the typed command does not run")
	}
	p.ctrl('c')
	p.until("be interrupted", `document.querySelector(".xterm").innerText.includes("^C")`)
	p.keys("exit 5\r")
	p.waitText("exited with 5")
	p.run(chromedp.ResetViewport())
}

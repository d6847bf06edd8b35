package test_test

import (
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"

	"glasshouse/api/wire"
)

// fitsOnAPhone checks the pages with the most content on a screen of 390 pixels.
func (u *ui) fitsOnAPhone() {
	p := u.login(u.T, u.browser, "admin")
	p.phone()

	u.registersEcho()
	p.open("/capabilities")
	p.waitText("host.say")
	u.fitsThePhone(p)
	u.picture(p, "capabilities")

	// In a tree of three levels, the last one would extend beyond the right edge.
	at1 := u.running(wire.CreateJail{Name: "trunk"})
	for range 3 {
		made, err := u.BranchJail(u.Context(), at1.ID, wire.Branch{Count: 1})
		if err != nil || len(made.Jails) != 1 {
			u.Fatalf("branch of %s: %+v, %v", at1.ID, made, err)
		}
		at1 = made.Jails[0]
	}
	p.open("/lineage")
	node := `document.getElementById("node-` + string(at1.ID) + `")`
	p.until("show the last branch", node)
	if !p.comes(20*time.Second, `[...document.querySelectorAll("[id^=node-]")].every(e => e.getBoundingClientRect().left >= 0 && e.getBoundingClientRect().right <= innerWidth)`) {
		u.Errorf("the last branch ends at %v px, want at most 390", evaluate[float64](p, node+".getBoundingClientRect().right"))
	}
	u.fitsThePhone(p)
	u.picture(p, "lineage")

	// The header of a jail shows all its fields.
	p.open(at(u.garden.ID, "terminal"))
	p.waitText("Connected")
	if cut := evaluate[[]string](p, `[...document.querySelectorAll("header dl > div, header h1, header button")].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth).map(e => e.innerText)`); len(cut) > 0 {
		u.Errorf("cut off at the right edge: %q, want nothing", cut)
	}

	// The keys that a phone's keyboard lacks: Tab completes, Ctrl interrupts, ↑ repeats.
	p.until("show a prompt", `document.querySelector(".xterm").innerText.includes("bash")`)
	p.keys("echo $((6*7))-\r")
	p.waitText("42-")
	p.tap(".keypad button", "↑")
	p.keys("\r")
	p.until("repeat the command", `document.querySelector(".xterm").innerText.match(/^42-/gm).length === 2`)
	p.keys("cat /etc/hostna")
	p.tap(".keypad button", "Tab")
	p.until("complete a name", `document.querySelector(".xterm").innerText.includes("/etc/hostname")`)
	p.tap(".keypad button", "Ctrl")
	p.keys("c")
	p.until("interrupt", `document.querySelector(".xterm").innerText.includes("^C")`)
	u.picture(p, "terminal")
}

// findsFilesThatSortBetween opens the changes of a jail with a directory whose entries sort
// after those of another directory, as is the case after npm has installed packages.
func (u *ui) findsFilesThatSortBetween() {
	u.sh(u.garden.ID, "mkdir -p /root/t/foo /root/t/foo-bar && touch /root/t/foo/x /root/t/foo-bar/y")
	p := u.page
	p.open(at(u.garden.ID, "files"))
	p.waitText("foo-bar")
	p.until("show each directory once", `[...document.querySelectorAll(".entry code")].filter(e => e.innerText.replace(/[^\w-]/g, "") === "foo").length === 1`)
	p.press("button", "notes.txt") // a page that failed to render does not react
	p.waitText("/root/notes.txt")
	u.unmoved(p, "the files")
}

// picture saves a screenshot of a page if GLASSHOUSE_PICTURES names a directory.
func (u *ui) picture(p *tab, name string) {
	u.Helper()
	dir := os.Getenv("GLASSHOUSE_PICTURES")
	if dir == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		p.prefers(scheme)
		shot, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			u.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+"-"+scheme+".png"), shot, 0o600); err != nil {
			u.Fatal(err)
		}
	}
}

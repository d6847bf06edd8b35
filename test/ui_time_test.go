package test_test

import (
	"fmt"
	"time"

	"github.com/chromedp/chromedp"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
)

func (u *ui) snapshot(j id.Jail, name string) wire.Snapshot {
	u.Helper()
	s, err := u.TakeSnapshot(u.Context(), j, wire.TakeSnapshot{Name: name})
	if err != nil {
		u.Fatal(err)
	}
	return s
}

// branches returns the jails that were created from a snapshot.
func (u *ui) branches(s id.Snapshot) (list []wire.Jail) {
	u.Helper()
	all, err := client.Collect(u.Jails(u.Context(), client.JailFilter{}))
	if err != nil {
		u.Fatal(err)
	}
	for _, j := range all {
		if j.Origin != nil && j.Origin.Snapshot == s {
			list = append(list, j)
		}
	}
	return list
}

func (u *ui) goesBackInTime() {
	j := u.running(wire.CreateJail{Name: "orchard"})
	u.watchedByKernel(j.ID)
	u.sh(j.ID, "echo sown > /root/seed; sleep 0.3")
	s := u.snapshot(j.ID, "sown")
	u.sh(j.ID, "sleep 0.5; echo grown > /root/tree; sleep 0.4")
	tree := u.events(j.ID, "type:file op:create path:/root/tree")
	if len(tree) == 0 {
		u.Fatal("the event log lacks the file")
	}
	// A moment between the two, and far from both: the slider has a thousand steps.
	between := (s.CreatedAt.UnixMilli() + tree[0].TS) / 2

	p := u.page
	// Before the snapshot there is nothing to branch from.
	p.open(fmt.Sprintf("%s&at=%d", at(j.ID, "processes"), s.CreatedAt.Add(-10*time.Millisecond).UnixMilli()))
	p.waitText("running at that time")
	p.waitText("you cannot branch from here")

	// The slider moves back in steps, and the page follows.
	p.open(at(j.ID, "processes"))
	p.until("have a slider", fmt.Sprintf(`(e => e && Number(e.max) > %d && (e.value = %d, e.dispatchEvent(new Event("input", { bubbles: true })), true))(document.querySelector("input[aria-label=Moment]"))`, tree[0].TS, between))
	p.waitText("As of ")
	distance := evaluate[string](p, `document.querySelector(".travel .soft").innerText`)
	p.until("update how long ago that was", fmt.Sprintf(`document.querySelector(".travel .soft").innerText !== %s`, quoted(distance)))
	p.waitText("running at that time")
	p.press("[role=tab]", "Files")
	p.until("say that the file was made", `[...document.querySelectorAll("tr")].some(e => e.innerText.includes("/root/seed") && e.querySelector(".sign.added"))`)
	if p.says("/root/tree") {
		u.Errorf("a file is shown at a moment before its creation:\n%s", p.text())
	}

	// A click in the chart moves as well, and a drag zooms in. New events redraw the chart, and
	// the address is updated after the page.
	evaluate[bool](p, `(window.seen = [], ["mousedown", "mouseup", "click"].forEach(type => document.addEventListener(type, e => window.seen.push(type + "@" + e.clientX + "," + e.clientY + " " + e.target.className), true)), true)`)
	tries := func(what, condition string, gesture func(x, y, width float64)) {
		u.Helper()
		began, attempts := time.Now(), 0
		if !within(30*time.Second, func() bool {
			attempts++
			box := evaluate[struct{ X, Y, Width float64 }](p, `(e => { e.scrollIntoView({ block: "center" }); const r = e.getBoundingClientRect(); return { X: r.x, Y: r.y + r.height / 2, Width: r.width } })(document.querySelector(".u-over"))`)
			gesture(box.X, box.Y, box.Width)
			return p.comes(2*time.Second, condition)
		}) {
			chart := evaluate[string](p, `(e => { const r = e.getBoundingClientRect(); const at = document.elementFromPoint(r.right - 20, r.y + r.height / 2); return e.outerHTML + "\nat the point: " + at?.outerHTML.slice(0, 200) + "\nvisible: " + document.visibilityState + ", focus: " + document.hasFocus() })(document.querySelector(".u-over"))`)
			slider := evaluate[string](p, `(e => "slider from " + e.min + " to " + e.max + " at " + e.value + ", events seen by the chart: " + (window.seen ?? []).join(" "))(document.querySelector("input[aria-label=Moment]"))`)
			u.Fatalf("%s has no effect: %d attempts in %v; the slider was set to %d, the file is from %d\n%s\n%s\n%s", what, attempts, time.Since(began), between, tree[0].TS, slider, chart, p.text())
		}
	}
	tries("a click in the chart", fmt.Sprintf(`Number(new URLSearchParams(location.search).get("at")) > %d`, between+50), func(x, y, width float64) {
		// A hand moves the mouse while it clicks.
		p.run(chromedp.DragAndDropXY(x+width-8, y, x+width-6, y+1, 1))
	})
	p.waitText("sown")
	tries("a drag in the chart", `new URLSearchParams(location.search).get("from")`, func(x, y, _ float64) {
		p.run(chromedp.DragAndDropXY(x+100, y, x+300, y, 4))
	})
	p.press("button", "All time")

	p.press("button", "Branch from here")
	p.until("show the branch", fmt.Sprintf(`location.pathname.startsWith("/jails/j-") && !location.pathname.endsWith(%s)`, quoted(string(j.ID))))
	list := u.branches(s.ID)
	if len(list) != 1 {
		u.Fatalf("got %d branches of the snapshot, want 1", len(list))
	}
	p.until("show it as it is now", fmt.Sprintf(`location.pathname === "/jails/%s" && !location.search.includes("at=")`, list[0].ID))
	if got := u.sh(list[0].ID, "cat /root/seed; ls /root"); got != "sown\nseed" {
		u.Errorf("files of the branch: got %q", got)
	}
}

func (u *ui) comparesABranch() {
	j := u.running(wire.CreateJail{Name: "meadow"})
	u.sh(j.ID, "echo one > /root/notes.txt")
	s := u.snapshot(j.ID, "seed")
	u.sh(j.ID, "echo two >> /root/notes.txt")

	p := u.page
	p.open("/lineage")
	p.press("button", "seed")
	p.press("button", "Branch from here")
	p.until("compare the two", `document.querySelector("[aria-label=Comparison]")`)
	p.waitText("No differences.")
	if len(u.branches(s.ID)) != 1 {
		u.Errorf("got %d branches of the snapshot, want 1", len(u.branches(s.ID)))
	}
	p.open("/lineage?at=" + string(s.ID) + "&with=" + string(j.ID))
	p.waitText("/root/notes.txt")
	p.press("summary", "/root/notes.txt")
	p.until("show what was added", `[...document.querySelectorAll("[aria-label=Comparison] *")].some(e => e.innerText?.trim() === "two")`)
	for _, says := range []string{"Processes and network", "Events", "Resource usage"} {
		p.waitText(says)
	}
}

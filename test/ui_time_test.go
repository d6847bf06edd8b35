package test_test

import (
	"fmt"
	"time"

	"github.com/chromedp/cdproto/input"
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

// branches are the jails that began from a snapshot.
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

	p := u.page
	// Before the snapshot there is nothing to begin from.
	p.open(fmt.Sprintf("%s&at=%d", at(j.ID, "processes"), s.CreatedAt.Add(-10*time.Millisecond).UnixMilli()))
	p.sees("ran then")
	p.sees("nothing can branch from here")

	// The slider goes back, step by step, and the page with it.
	p.open(at(j.ID, "processes"))
	p.until("have a slider", `document.querySelector("input[aria-label=Moment]")`)
	p.do(fmt.Sprintf(`(e => { e.value = %d; e.dispatchEvent(new Event("input", { bubbles: true })); })(document.querySelector("input[aria-label=Moment]"))`, s.CreatedAt.Add(100*time.Millisecond).UnixMilli()))
	p.sees("As of ")
	p.sees("ran then")
	p.press("[role=tab]", "Files")
	p.sees("/root/seed")
	if p.says("/root/tree") {
		u.Errorf("a file of later is shown as one of then:\n%s", p.text())
	}

	// So does a click in the chart; a drag in it looks closer.
	box := evaluate[struct{ X, Y, Width float64 }](p, `(r => ({ X: r.x, Y: r.y + r.height / 2, Width: r.width }))(document.querySelector(".u-over").getBoundingClientRect())`)
	x, later := box.X+box.Width-20, fmt.Sprintf(`Number(new URLSearchParams(location.search).get("at")) > %d`, s.CreatedAt.Add(150*time.Millisecond).UnixMilli())
	if !within(20*time.Second, func() bool { // what goes on meanwhile draws the chart anew
		p.run(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x, box.Y), chromedp.MouseClickXY(x, box.Y))
		return within(2*time.Second, func() bool { return evaluate[bool](p, later) }) // the address comes after the page
	}) {
		u.Fatalf("a click in the chart does not go to its moment:\n%s", p.text())
	}
	p.sees("sown")
	p.run(chromedp.DragAndDropXY(box.X+100, box.Y, box.X+300, box.Y, 4))
	p.until("zoom", `new URLSearchParams(location.search).get("from")`)
	p.press("button", "All time")

	p.press("button", "Branch from here")
	p.until("show the branch", fmt.Sprintf(`location.pathname.startsWith("/jails/j-") && !location.pathname.endsWith(%s)`, quoted(string(j.ID))))
	list := u.branches(s.ID)
	if len(list) != 1 {
		u.Fatalf("there are %d branches of the snapshot", len(list))
	}
	p.until("show it as it is now", fmt.Sprintf(`location.pathname === "/jails/%s" && !location.search.includes("at=")`, list[0].ID))
	if got := u.sh(list[0].ID, "cat /root/seed; ls /root"); got != "sown\nseed" {
		u.Errorf("in the branch there is %q", got)
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
	p.sees("The same.")
	if len(u.branches(s.ID)) != 1 {
		u.Errorf("there are %d branches of the snapshot", len(u.branches(s.ID)))
	}
	p.open("/lineage?at=" + string(s.ID) + "&with=" + string(j.ID))
	p.sees("/root/notes.txt")
	p.press("summary", "/root/notes.txt")
	p.until("show what was added", `[...document.querySelectorAll("[aria-label=Comparison] *")].some(e => e.innerText?.trim() === "two")`)
	for _, says := range []string{"Processes and network", "Events", "Used"} {
		p.sees(says)
	}
}

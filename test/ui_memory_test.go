package test_test

import (
	"context"
	"fmt"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"glasshouse/api/wire"
)

// heap returns the size of the page's JavaScript heap after a garbage collection.
func (b *tab) heap() (bytes float64) {
	b.Helper()
	b.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		if _, err := cdp.Call(ctx, t, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			return chromedp.Void{}, err
		}
		used, err := cdp.Call(ctx, t, runtime.GetHeapUsage, cdp.Empty{})
		if err == nil {
			bytes = used.UsedSize
		}
		return chromedp.Void{}, err
	})
	return bytes
}

// floods makes a jail write files until it has at least this many additional events, and returns
// their number.
func (u *ui) floods(j wire.Jail, records int64) int64 {
	u.Helper()
	count := func() int64 {
		now, err := u.Jail(u.Context(), j.ID)
		if err != nil {
			u.Fatal(err)
		}
		return now.Observation.Log.Events
	}
	now := count()
	for enough := now + records; now < enough; now = count() {
		u.sh(j.ID, "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i > /root/file; done")
	}
	return now
}

func (u *ui) doesNotGrow() {
	j := u.running(wire.CreateJail{Name: "busy"})
	u.watchedByKernel(j.ID)
	p := u.login(u.T, u.browser, "admin")
	p.open(at(j.ID, "events") + "&lanes=yes&init=yes") // its number is that of the whole log
	p.waitText("events")
	shows := func(records int64) { // the number of events and some of the events are shown
		u.Helper()
		p.until("follow", fmt.Sprintf(`Number(document.querySelector("[role=listbox]").ariaLabel.replace(/\D/g, "")) >= %d && document.querySelectorAll("[role=option] .line").length > 5`, records))
	}
	shows(u.floods(j, 10_000))
	before, elements := p.heap(), evaluate[int](p, `document.querySelectorAll("*").length`)
	shows(u.floods(j, 100_000))
	after, now := p.heap(), evaluate[int](p, `document.querySelectorAll("*").length`)
	u.Logf("the page holds %.1f MiB and %d elements, before that %.1f and %d", after/(1<<20), now, before/(1<<20), elements)
	if after-before > 16<<20 || now > elements+1000 {
		u.Errorf("a page that follows 100 000 records grew by %.1f MiB and %d elements", (after-before)/(1<<20), now-elements)
	}
}

//go:build bench

package test_test

import (
	"testing"
	"time"

	"glasshouse/api/wire"
)

// TestScrollMillionEvents measures frame times while the user scrolls. It sets no
// limit, because a busy host renders fewer frames.
func TestScrollMillionEvents(t *testing.T) {
	browser := browse(t)
	h := open(t, tools(), "--listen", "127.0.0.1:0")
	u := &ui{daemonHarness: h, browser: browser}
	j := h.running(wire.CreateJail{Name: "million"})
	h.watchedByKernel(j.ID)
	u.floods(j, 1_000_000)
	p := h.login(t, browser, "admin")
	p.open(at(j.ID, "events") + "&init=yes")
	p.until("list a million", `Number(document.querySelector("[role=listbox]")?.ariaLabel.replace(/\D/g, "")) >= 1e6`)
	p.do(`document.querySelector("input[type=checkbox]").checked && document.querySelector("input[type=checkbox]").click()`)
	for _, way := range []struct{ name, step string }{
		{"by the wheel, 120 pixels a frame", "list.scrollTop += 120"},
		{"by the page, 600 pixels a frame", "list.scrollTop += 600"},
		{"by the bar, anywhere each frame", "list.scrollTop = Math.random() * list.scrollHeight"},
	} {
		took := evaluate[struct{ Frames, Median, P95, Most, Late, Empty float64 }](p, `new Promise(done => {
			const list = document.querySelector("[role=listbox]"), times = [];
			let last = performance.now(), empty = 0;
			list.scrollTop = 0;
			const frame = (now) => {
				times.push(now - last);
				last = now;
				empty += !list.querySelector(".line");
				if (times.length < 300) { `+way.step+`; requestAnimationFrame(frame); return; }
				const s = times.slice(1).sort((a, b) => a - b);
				done({ Frames: s.length, Median: s[s.length >> 1], P95: s[s.length * 0.95 | 0], Most: s.at(-1), Late: s.filter(t => t > 25).length, Empty: empty });
			};
			requestAnimationFrame(frame);
		})`)
		t.Logf("%s: a frame takes %.1f ms, %.1f at the 95th percentile, %.1f at most; %.0f of %.0f were late, %.0f without any record yet",
			way.name, took.Median, took.P95, took.Most, took.Late, took.Frames, took.Empty)
	}
}

// TestFirstPaintOfLongLog measures the time from the first request until the browser shows the
// events of a jail with half a million events.
func TestFirstPaintOfLongLog(t *testing.T) {
	browser := browse(t)
	h := open(t, tools(), "--listen", "127.0.0.1:0")
	u := &ui{daemonHarness: h, browser: browser}
	j := h.running(wire.CreateJail{Name: "long"})
	h.watchedByKernel(j.ID)
	u.floods(j, 500_000)
	if _, err := h.StopJail(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	p := h.login(t, browser, "admin")
	for _, what := range []string{"first", "second"} {
		p.open("/doctor")
		p.waitText("Findings")
		began := time.Now()
		p.open(at(j.ID, "events"))
		p.until("show events", `document.querySelectorAll("[role=option] .line").length > 5`)
		lines := time.Since(began)
		p.until("show the timeline", `Number(document.querySelector("[aria-label=Timeline] .syscall b")?.innerText.replace(/\D/g, "")) > 1000`)
		t.Logf("%s: the events after %.2f s, the timeline after %.2f s", what, lines.Seconds(), time.Since(began).Seconds())
	}
}

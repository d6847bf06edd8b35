package test_test

import (
	"slices"
	"testing"

	"glasshouse/api/wire"
)

// fleetAnswers makes the page believe that its daemon is in a fleet, and records its changes.
const fleetAnswers = `(() => {
	const real = window.fetch, answer = (body) => new Response(JSON.stringify(body), { headers: { "Content-Type": "application/json" } });
	const node = (id, more) => ({ id, name: "box-" + id, version: "1.2.3", address: "10.0.0.1:8443", state: "up", self: false, lease_ms: 25400, epoch: 1, jails: 0, sessions: 0, runs: 0,
		arch: "amd64", kernel: "6.12.1", cpu: "A processor", cpus: 16, memory_bytes: 8 * 2 ** 30, free_memory_bytes: 3 * 2 ** 30, disk_bytes: 100 * 2 ** 30, free_disk_bytes: 50 * 2 ** 30, ...more });
	window.sent = [];
	window.fetch = async (to, how) => {
		const request = new Request(to, how), url = new URL(request.url), path = url.pathname.replace(/^\/v1/, "");
		if (request.method !== "GET" && /^\/(nodes|jails)\//.test(path)) {
			window.sent.push(request.method + " " + path + " " + (await request.text()));
			return answer({});
		}
		if (path === "/nodes") return answer({ items: [
			node("one", { self: true, jails: 1, runs: 2, sessions: 3, unshipped_bytes: 5242880 }), node("two", { jails: 1, draining: true }), node("three"),
			node("front", { front: true }), { id: "lost", name: "<b>lost</b>", state: "lost", self: false, lease_ms: -9000, epoch: 1, jails: 0, sessions: 0, runs: 0, address: "10.0.0.9:8443" },
		] });
		if (path === "/jails" && url.searchParams.get("nodes") === "all") return answer({ items: [
			{ id: "j-aaaaaaaaaaaa", name: "web", state: "running", node: "box-one", backend: "oci", created_at: new Date().toISOString() },
			{ id: "j-bbbbbbbbbbbb", name: "db", state: "stopped", node: "box-two", backend: "oci", created_at: new Date().toISOString() },
		] });
		return real(to, how);
	};
})()`

// showsTheFleet checks the page of the fleet: nodes, their hosts, and jails that are moved.
func (u *ui) showsTheFleet() {
	p := u.login(u.T, u.browser, "admin")
	p.open("/doctor?view=fleet")
	p.waitText("This daemon is not in a fleet")
	p.open("/doctor")
	p.waitText("Findings")
	p.do(fleetAnswers)
	p.goes("/doctor?view=fleet")
	for _, text := range []string{"2 nodes of 5 for new jails", "box-two", "draining", "front end", "expired", "3.0 GiB", "of 8.0 GiB", "5.0 MiB not in the object store", "amd64 6.12.1", "16 CPUs, A processor", "<b>lost</b>", "on all nodes"} {
		p.waitText(text)
	}
	u.picture(p, "fleet")
	actions := func(name string) []string {
		p.press("button", "Actions for "+name)
		defer p.keys("\x1b")
		return evaluate[[]string](p, `[...document.querySelectorAll("[popover]:popover-open button")].map((b) => b.innerText.trim())`)
	}
	if got, want := actions("web"), []string{"Move to box-three"}; !slices.Equal(got, want) {
		u.Errorf("actions for a jail = %q, want %q: other nodes do not accept it, or have it", got, want)
	}
	p.press("button", "Actions for web")
	p.press("button", "Move to box-three")
	p.waitText("web moved to box-three")
	p.press("button", "Actions for box-two")
	p.press("button", "Accept new jails")
	p.waitText("box-two gets new jails again")
	p.press("button", "Actions for box-one")
	p.press("button", "Drain")
	p.waitText("box-one gets no new jails")
	want := []string{
		`POST /jails/j-aaaaaaaaaaaa/move {"node":"three"}`, `PATCH /nodes/two {"draining":false}`, `PATCH /nodes/one {"draining":true}`,
	}
	if sent := evaluate[[]string](p, "window.sent"); !slices.Equal(sent, want) {
		u.Errorf("requests = %q, want %q", sent, want)
	}
	p.do(`[...document.querySelectorAll("a")].find((a) => a.href.endsWith("node=box-two")).click()`)
	p.waitText("on box-two")
	p.until("show the jails of this node", `document.body.innerText.includes("db") && !document.body.innerText.includes("j-aaaaaaaaaaaa")`)
	p.phone()
	u.fitsThePhone(p)
	u.picture(p, "fleet-phone")
}

// TestFleetInBrowser moves a jail between two nodes with the page of a front end.
func TestFleetInBrowser(t *testing.T) {
	browser := browse(t)
	f, one, two, front := openFleet(t, "", "--listen", "127.0.0.1:0")
	j := two.running(wire.CreateJail{Name: "mover"})
	p := front.login(t, browser, "operator")
	p.open("/doctor?view=fleet")
	for _, text := range []string{"2 nodes of 3 for new jails", "front end", "mover", "GiB"} {
		p.waitText(text)
	}
	p.press("button", "Actions for mover")
	p.press("button", "Move to one")
	p.waitText("mover moved to one")
	if _, err := one.as(f.token, "one").Jail(t.Context(), j.ID); err != nil {
		t.Errorf("after the move, node one has no such jail: %v", err)
	}
	// Its page is that of a jail of another node.
	p.do(`[...document.querySelectorAll("a")].find((a) => a.href.endsWith("` + string(j.ID) + `")).click()`)
	p.waitText("running")
	if err := one.as(f.token, "one").DeleteJail(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
}

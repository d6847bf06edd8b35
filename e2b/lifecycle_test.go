package e2b

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/e2b/e2btest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

func TestCreate(t *testing.T) {
	d := newFakeDaemon(t)
	first := e2btest.Read[wireSandbox](d, d.api(201, "POST", "/sandboxes", `{"templateID":"base"}`))
	if first.EnvdToken != "" || first.Traffic != nil {
		t.Errorf("a sandbox created with version 1: got the tokens %q and %v, want none", first.EnvdToken, first.Traffic)
	}
	second := d.create(`{"templateID":"base:default","metadata":{"a":"b"},"envVars":{"C":"d"},"timeout":60}`)
	if len(second.EnvdToken) != 64 || second.Traffic != nil || second.Domain != "localhost:8083" || second.TemplateID != "base" {
		t.Errorf("a sandbox created with version 2: got %+v, want an access token, no traffic token, the domain and the template base", second)
	}
	for box, want := range map[string]time.Duration{first.SandboxID: 15 * time.Second, second.SandboxID: time.Minute} {
		got := e2btest.Read[wireDetail](d, d.api(200, "GET", "/sandboxes/"+box, ""))
		if left := got.EndAt.Sub(got.StartedAt); left != want {
			t.Errorf("the remaining time of %s: got %v, want %v", box, left, want)
		}
		if !got.StartedAt.Equal(got.StartedAt.Truncate(time.Microsecond)) {
			t.Errorf("the start of %s: got %v, want whole microseconds", box, got.StartedAt)
		}
	}
	j := d.jails[d.handle(second.SandboxID).box.Load().Jail]
	if j.Spec.Name != second.SandboxID || j.Spec.Labels[LabelSandbox] != second.SandboxID || j.Spec.Network != jail.Proxied || j.Spec.Rootfs.User != "user" {
		t.Errorf("its jail: got %+v, want its name and label, the proxied network and the user", j.Spec)
	}
	if got := e2btest.Read[wireDetail](d, d.api(200, "GET", "/sandboxes/"+second.SandboxID, "")); got.Metadata["a"] != "b" || got.Lifecycle.OnTimeout != "kill" || got.EnvdToken != second.EnvdToken {
		t.Errorf("got %+v, want its metadata, kill and its token", got)
	}
}

// Sandboxes count towards the quota of their key.
func TestKeyOverQuota(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	d.api(201, "POST", "/sandboxes/"+box.SandboxID+"/fork", `{"count":2}`)
	if len(d.jails) != 3 {
		t.Errorf("jails = %d, want 3", len(d.jails))
	}
	for _, j := range d.jails {
		if j.Spec.Creator != "mine" {
			t.Errorf("creator of jail %s = %q, want mine", j.ID, j.Spec.Creator)
		}
	}
	over := &fault.Error{Op: "jail.Create", Kind: fault.Exhausted, Err: errors.New("the quota of the token for jails is 3"), Remedy: "delete jails"}
	d.failWith("Create", over)
	d.failWith("Restore", over)
	want := Error{429, "the quota of the token for jails is 3: delete jails"}
	if got := e2btest.Read[Error](d, d.api(429, "POST", "/sandboxes", `{"templateID":"base"}`)); got != want {
		t.Errorf("error = %+v, want %+v", got, want)
	}
	forks := e2btest.Read[[]wireFork](d, d.api(201, "POST", "/sandboxes/"+box.SandboxID+"/fork", `{"count":1}`))
	if len(forks) != 1 || forks[0].Error == nil || *forks[0].Error != want {
		t.Errorf("forks = %+v, want the error %+v", forks, want)
	}
	if left := len(d.records); left != 3 {
		t.Errorf("records = %d, want 3: the refused sandboxes leave none", left)
	}
}

func TestInvalidRequests(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	at := "/sandboxes/" + box.SandboxID
	for _, c := range []struct {
		method, path, body string
		want               int
		text               string
	}{
		{"POST", "/v2/sandboxes", ``, 400, "templateID is missing"},
		{"POST", "/v2/sandboxes", `{"templateID":5}`, 400, "Error when parsing request"},
		{"POST", "/v2/sandboxes", `{"templateID":"base"`, 400, "Error when parsing request"},
		{"POST", "/v2/sandboxes", `{"templateID":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "larger than"},
		{"POST", "/v2/sandboxes", `{"templateID":"nothing"}`, 404, "template 'nothing' not found"},
		{"POST", "/v2/sandboxes", `{"templateID":"base:v1"}`, 404, "template 'base:v1' not found"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":-1}`, 400, "must not be negative"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":86401}`, 400, "24 hours"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","autoPauseMemory":false}`, 400, "needs autoPause"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`, 400, "autoResume cannot be combined"},
		{"POST", "/sandboxes", `{"templateID":"base","secure":false,"network":{"allowPublicTraffic":false}}`, 400, "needs a secure sandbox"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`, 400, "needs a secure sandbox"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["example.com"]}}`, 400, "invalid denied CIDR"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"allowOut":["example.com"]}}`, 400, "ALL_TRAFFIC"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"egressProxy":{"address":"1.2.3.4:1"}}}`, 400, "egressProxy"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"httpsPorts":[70000]}}`, 400, "httpsPorts"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"a b"}}`, 400, "maskRequestHost"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"none","path":"/v"}]}`, 400, "not found"},
		{"GET", "/sandboxes/inothing", "", 404, "doesn't exist"},
		{"DELETE", "/sandboxes/" + strings.Repeat("x", 500), "", 404, "…"},
		{"POST", at + "/timeout", `{}`, 400, "timeout is missing"},
		{"POST", at + "/timeout", `{"timeout":90000}`, 400, "24 hours"},
		{"POST", at + "/connect", `{"timeout":-5}`, 400, "negative"},
		{"POST", at + "/resume", `{}`, 409, "already running"},
		{"POST", at + "/fork", `{"count":0}`, 400, "between 1 and 100"},
		{"POST", at + "/fork", `{"count":101}`, 400, "between 1 and 100"},
		{"POST", at + "/snapshots", `{"name":"Not A Name"}`, 400, "invalid snapshot name"},
		{"PUT", at + "/network", `{"denyOut":["x"]}`, 400, "invalid denied CIDR"},
		{"GET", at + "/metrics?start=x", "", 400, "invalid start"},
		{"GET", at + "/metrics?start=9&end=8", "", 400, "start is after end"},
		{"GET", "/v2/sandboxes?state=gone", "", 400, "invalid state"},
		{"GET", "/v2/sandboxes?order=up", "", 400, "invalid order"},
		{"GET", "/v2/sandboxes?limit=0", "", 400, "invalid limit"},
		{"GET", "/v2/sandboxes?nextToken=x", "", 400, "invalid next token"},
		{"GET", "/v2/sandboxes?startedAfter=x", "", 400, "invalid startedAfter"},
		{"GET", "/v2/sandboxes?metadata=%25zz", "", 400, "metadata"},
		{"GET", "/nothing", "", 404, "no matching operation"},
		{"DELETE", "/templates/nothing", "", 404, "not found"},
		{"GET", "/templates/nothing", "", 404, "not found"},
		{"GET", "/templates/nothing/tags", "", 404, "not found"},
	} {
		w := d.api(c.want, c.method, c.path, c.body)
		got := e2btest.Read[Error](d, w)
		if got.Code != c.want || !strings.Contains(got.Message, c.text) {
			t.Errorf("%s %.80s %.80s: got %+v, want the code %d and %q", c.method, c.path, c.body, got, c.want, c.text)
		}
	}
	for key, want := range map[string]string{"": "authorization header is missing", "x": "there is no such key", "key-viewer": "cannot create sandboxes"} {
		w := d.do("GET", at, "", "X-API-Key", key)
		if got := e2btest.Read[Error](d, w); w.Code != 401 || got.Code != 401 || !strings.Contains(got.Message, want) {
			t.Errorf("the key %q: got %d %+v, want 401 and %q", key, w.Code, got, want)
		}
	}
	if w := d.do("GET", at, "", "Authorization", "Bearer key-mine"); w.Code != 200 {
		t.Errorf("a key as a bearer token: got %d %s, want 200", w.Code, w.Body)
	}
	for _, c := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/pause"}, {"POST", "/connect"}, {"POST", "/fork"}, {"POST", "/snapshots"}, {"GET", "/logs"}} {
		if w := d.do(c[0], at+c[1], "{}", "X-API-Key", "key-other"); w.Code != 404 {
			t.Errorf("%s %s of another team: got %d %s, want 404", c[0], c[1], w.Code, w.Body)
		}
	}
}

func TestErrorsHideInternalDetails(t *testing.T) {
	d := newFakeDaemon(t)
	d.failWith("Create", errors.New("open /var/lib/glasshouse/secret: permission denied"))
	w := d.api(500, "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	if got := e2btest.Read[Error](d, w); got.Message != "Internal Server Error" {
		t.Errorf("got %q, want Internal Server Error", got.Message)
	}
	if got := d.log.String(); !strings.Contains(got, "permission denied") {
		t.Errorf("the log: got %s, want the reason", got)
	}
	if len(d.records) != 0 {
		t.Errorf("got the records %v after a failed creation, want none", d.records)
	}

	d.failWith("Create", fault.Fieldf("rootfs.user", "rootfs.user", "/srv/tree is the host's, and nobody is added to it"))
	w = d.api(503, "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	if strings.Contains(w.Body.String(), "/srv/tree") || !strings.Contains(w.Body.String(), "default root filesystem") {
		t.Errorf("a default root filesystem without the user: got %s, want its kind and not its path", w.Body)
	}
	if got := d.log.String(); !strings.Contains(got, "/srv/tree") {
		t.Errorf("the log: got %s, want the path", got)
	}

	d.failWith("Create", fault.Newf(fault.Exhausted, "jail.Create", "", "there are too many jails"))
	d.api(429, "POST", "/v2/sandboxes", `{"templateID":"base"}`)
}

func TestConcurrentPausesAndResumesJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDaemon(t)
		box := d.create(`{"templateID":"base","timeout":3600}`)
		at := "/sandboxes/" + box.SandboxID
		together := func(method, path, body string, want int) {
			t.Helper()
			gate := make(chan struct{})
			d.mu.Lock()
			d.gate[method] = gate
			d.mu.Unlock()
			before := d.count(method)
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() { d.api(want, "POST", at+path, body) })
			}
			synctest.Wait() // one call runs, four wait
			close(gate)
			wg.Wait()
			d.mu.Lock()
			delete(d.gate, method)
			d.mu.Unlock()
			if n := d.count(method) - before; n != 1 {
				t.Errorf("five calls of %s: %s was called %d times, want once", path, method, n)
			}
		}
		together("Take", "/pause", "", 204)
		d.api(409, "POST", at+"/pause", "")
		together("Rewind", "/resume", `{"timeout":60}`, 201)
		d.api(409, "POST", at+"/resume", "{}")
		together("Stop", "/pause", `{"memory":false}`, 204)
		together("Start", "/resume", `{"timeout":60}`, 201)

		// A pause that saves the memory does not join one that discards it.
		gate := make(chan struct{})
		d.mu.Lock()
		d.gate["Stop"] = gate
		d.mu.Unlock()
		var wg sync.WaitGroup
		wg.Go(func() { d.api(204, "POST", at+"/pause", `{"memory":false}`) })
		synctest.Wait()
		wg.Go(func() { d.api(409, "POST", at+"/pause", "") })
		synctest.Wait()
		close(gate)
		wg.Wait()
	})
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDaemon(t)
		killed := d.create(`{"templateID":"base","timeout":10}`)
		longer := d.create(`{"templateID":"base","timeout":10}`)
		paused := d.create(`{"templateID":"base","timeout":10,"autoPause":true}`)
		files := d.create(`{"templateID":"base","timeout":10,"autoPause":true,"autoPauseMemory":false}`)
		d.api(204, "POST", "/sandboxes/"+longer.SandboxID+"/timeout", `{"timeout":30}`)
		d.api(204, "POST", "/sandboxes/"+longer.SandboxID+"/refreshes", `{"duration":5}`) // does not shorten the timeout
		time.Sleep(11 * time.Second)
		d.api(404, "GET", "/sandboxes/"+killed.SandboxID, "")
		if got := d.state(longer.SandboxID); got != Running {
			t.Errorf("a sandbox with a longer timeout: got %s, want running", got)
		}
		for _, box := range []wireSandbox{paused, files} {
			if got := d.state(box.SandboxID); got != Paused {
				t.Errorf("a sandbox with autoPause: got %s, want paused", got)
			}
		}
		if n := d.count("Take"); n != 1 {
			t.Errorf("memory was saved %d times, want once", n)
		}
		time.Sleep(20 * time.Second)
		d.api(404, "GET", "/sandboxes/"+longer.SandboxID, "")
		d.api(201, "POST", "/sandboxes/"+paused.SandboxID+"/connect", `{"timeout":60}`)
		d.api(200, "POST", "/sandboxes/"+paused.SandboxID+"/connect", `{"timeout":30}`)
		if got := e2btest.Read[wireDetail](d, d.api(200, "GET", "/sandboxes/"+paused.SandboxID, "")); time.Until(got.EndAt) != time.Minute {
			t.Errorf("connect with a shorter timeout: got %v, want a minute", time.Until(got.EndAt))
		}
	})
}

// TestPauseWithoutMemorySupport covers hosts without CRIU, and processes that cannot be saved.
func TestPauseWithoutMemorySupport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDaemon(t)
		d.failWith("Take", fault.Cannot("snapshot.Take", "CRIU is not installed", "install it"))
		box := d.create(`{"templateID":"base","timeout":10,"autoPause":true}`)
		time.Sleep(11 * time.Second)
		if got := d.state(box.SandboxID); got != Paused {
			t.Fatalf("on a host without checkpoints: got %s, want paused", got)
		}
		if n := d.count("Take"); n != 1 {
			t.Errorf("saving the memory was attempted %d times, want once", n)
		}
		if got := d.log.String(); !strings.Contains(got, "CRIU is not installed") || !strings.Contains(got, box.SandboxID) {
			t.Errorf("the log: got %s, want the sandbox and the reason", got)
		}
		d.api(201, "POST", "/sandboxes/"+box.SandboxID+"/resume", `{"timeout":60}`)
		if d.count("Start") != 1 || d.count("Rewind") != 0 {
			t.Errorf("it was started %d times and rewound %d times, want started once", d.count("Start"), d.count("Rewind"))
		}
		// A client that requires the memory gets an error.
		w := d.api(501, "POST", "/sandboxes/"+box.SandboxID+"/pause", "")
		if !strings.Contains(w.Body.String(), "CRIU is not installed") {
			t.Errorf("a pause with memory: got %s, want the reason", w.Body)
		}
		d.api(204, "POST", "/sandboxes/"+box.SandboxID+"/pause", `{"memory":false}`)
	})
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDaemon(t)
		d.failWith("Take", fault.Newf(fault.Conflict, "snapshot.Take", "", "a process has a device open"))
		box := d.create(`{"templateID":"base","timeout":10,"autoPause":true}`)
		time.Sleep(10*time.Second + answerTime - time.Minute)
		if got := d.state(box.SandboxID); got != Running {
			t.Errorf("while the pause is retried: got %s, want running", got)
		}
		if n := d.count("Take"); n < 4 || n > 10 {
			t.Errorf("saving the memory was attempted %d times in nine minutes, want 4 to 10", n)
		}
		time.Sleep(lastRetry + time.Minute)
		if got := d.state(box.SandboxID); got != Paused {
			t.Errorf("after ten minutes: got %s, want paused", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDaemon(t)
		d.failWith("Delete", errors.New("the device is busy"))
		box := d.create(`{"templateID":"base","timeout":10}`)
		time.Sleep(time.Minute)
		if n := d.count("Delete"); n < 3 || n > 5 {
			t.Errorf("it was deleted %d times in a minute, want 3 to 5", n)
		}
		d.failWith("Delete", nil)
		time.Sleep(lastRetry)
		d.api(404, "GET", "/sandboxes/"+box.SandboxID, "")
		if jails, records := d.left(); jails != 0 || records != 0 {
			t.Errorf("got %d jails and %d records, want none", jails, records)
		}

		// The same for a client's kill, which the client cannot retry.
		box = d.create(`{"templateID":"base","timeout":3600}`)
		d.failWith("Delete", errors.New("the device is busy"))
		d.api(500, "DELETE", "/sandboxes/"+box.SandboxID, "")
		d.failWith("Delete", nil)
		time.Sleep(2 * lastRetry)
		if jails, records := d.left(); jails != 0 || records != 0 {
			t.Errorf("after a failed kill: got %d jails and %d records, want none", jails, records)
		}
	})
}

func TestBusySandboxIsNotPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDaemon(t)
		box := d.create(`{"templateID":"base","timeout":10,"autoPause":true}`)
		c := d.handle(box.SandboxID)
		leave, _ := c.uses.enter(false)
		time.Sleep(time.Minute)
		if got := d.state(box.SandboxID); got != Running {
			t.Fatalf("while a request is in progress: got %s, want running", got)
		}
		leave()
		synctest.Wait()
		if got := d.state(box.SandboxID); got != Paused {
			t.Errorf("after the response: got %s, want paused", got)
		}
		d.api(201, "POST", "/sandboxes/"+box.SandboxID+"/connect", `{"timeout":10}`)
		if _, in := c.uses.enter(false); !in {
			t.Fatal("a resumed sandbox admits no request")
		}
		time.Sleep(answerTime + time.Minute)
		if got := d.state(box.SandboxID); got != Paused {
			t.Errorf("after a request that never ends: got %s, want paused", got)
		}
	})
}

func TestIdleSandboxIsPausedBeforeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDaemon(t, func(c *Config) { c.Idle = time.Minute })
		const lazy = `{"templateID":"base","timeout":3600,"autoPause":true,"autoResume":{"enabled":true}}`
		box, other := d.create(lazy), d.create(`{"templateID":"base","timeout":3600,"autoPause":true}`)
		time.Sleep(3 * time.Minute)
		if got := d.state(box.SandboxID); got != Paused {
			t.Errorf("an idle sandbox: got %s, want paused", got)
		}
		if got := d.state(other.SandboxID); got != Running {
			t.Errorf("an idle sandbox without autoResume: got %s, want running", got)
		}
		d.mu.Lock()
		d.execs = []protocol.ExecStatus{{}}
		d.mu.Unlock()
		d.api(201, "POST", "/sandboxes/"+box.SandboxID+"/connect", `{"timeout":3600}`)
		time.Sleep(10 * time.Minute)
		if got := d.state(box.SandboxID); got != Running {
			t.Errorf("a sandbox with a running command: got %s, want running", got)
		}
		d.mu.Lock()
		d.execs = nil
		d.mu.Unlock()
		d.failWith("Take", fault.Cannot("snapshot.Take", "CRIU is not installed", "install it"))
		time.Sleep(10 * time.Minute)
		if got := d.state(box.SandboxID); got != Running {
			t.Errorf("a sandbox whose memory would be lost: got %s, want running", got)
		}
		if n := strings.Count(d.log.String(), "cannot pause an idle sandbox"); n != 1 {
			t.Errorf("the log reports it %d times, want once", n)
		}
	})
}

// TestStartCompletesInterruptedChanges starts a daemon on each state that a killed daemon can
// leave.
func TestStartCompletesInterruptedChanges(t *testing.T) {
	for _, c := range []struct {
		state State
		jail  jail.State // "": no jail exists
		want  State      // "": the sandbox was removed
	}{
		{Creating, "", ""}, {Creating, jail.Created, ""}, {Creating, jail.Running, Running},
		{Running, "", ""}, {Running, jail.Running, Running}, {Running, jail.Stopped, Paused}, {Running, jail.Failed, Paused}, {Running, jail.Paused, Running},
		{Pausing, jail.Paused, Running}, {Pausing, jail.Running, Running}, {Pausing, jail.Stopped, Paused},
		{Paused, jail.Stopped, Paused}, {Paused, jail.Running, Paused}, {Paused, jail.Paused, Paused}, {Paused, "", ""},
		{Resuming, jail.Running, Running}, {Resuming, jail.Stopped, Paused},
		{Killing, jail.Running, ""}, {Killing, jail.Stopped, ""}, {Killing, "", ""},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.state, c.jail), func(t *testing.T) {
			h := newFakeHost()
			b := Sandbox{ID: newID(), Team: "mine", State: c.state, Template: "base", End: time.Now().Add(time.Hour)}
			if c.jail != "" {
				b.Jail = h.add(jail.Spec{Labels: map[string]string{LabelSandbox: b.ID}}, c.jail).ID
				if c.state == Creating { // the jail was created but not recorded
					b.Jail = ""
				}
			} else {
				b.Jail = "j-gone"
			}
			stray := h.add(jail.Spec{Labels: map[string]string{LabelSandbox: "iofnosandbox"}}, jail.Running)
			foreign := h.add(jail.Spec{}, jail.Running)
			h.records[b.ID] = b
			d := startFakeDaemon(t, h)
			if c.want == "" {
				d.api(404, "GET", "/sandboxes/"+b.ID, "")
				if len(h.records) != 0 {
					t.Errorf("got the records %v, want none", h.records)
				}
			} else if got := d.state(b.ID); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if _, there := h.jails[stray.ID]; there {
				t.Error("the jail of an unrecorded sandbox still exists")
			}
			if _, there := h.jails[foreign.ID]; !there {
				t.Error("a jail without a sandbox was removed")
			}
		})
	}
}

func TestSandboxFollowsJailState(t *testing.T) {
	d := newFakeDaemon(t)
	ended, removed := d.create(`{"templateID":"base"}`), d.create(`{"templateID":"base"}`)
	jailOf := func(box wireSandbox) id.Jail { return d.handle(box.SandboxID).box.Load().Jail }
	if _, err := d.Stop(t.Context(), jailOf(ended), jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := d.fakeHost.Delete(t.Context(), jailOf(removed)); err != nil {
		t.Fatal(err)
	}
	if got := d.state(ended.SandboxID); got != Paused {
		t.Errorf("a sandbox whose jail has stopped: got %s, want paused", got)
	}
	d.api(404, "GET", "/sandboxes/"+removed.SandboxID, "")
	d.api(201, "POST", "/sandboxes/"+ended.SandboxID+"/resume", "{}")
}

func TestFork(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base","metadata":{"a":"b"},"network":{"allowPublicTraffic":false}}`)
	forks := e2btest.Read[[]wireFork](d, d.api(201, "POST", "/sandboxes/"+box.SandboxID+"/fork", `{"count":3,"timeout":60}`))
	if len(forks) != 3 {
		t.Fatalf("got %d forks, want 3", len(forks))
	}
	seen := map[string]bool{box.EnvdToken: true, *box.Traffic: true}
	for _, f := range forks {
		if f.Error != nil || f.Sandbox.SandboxID == box.SandboxID || seen[f.Sandbox.EnvdToken] || seen[*f.Sandbox.Traffic] {
			t.Errorf("got %+v, want its own id and tokens", f)
			continue
		}
		seen[f.Sandbox.EnvdToken], seen[*f.Sandbox.Traffic] = true, true
		got := e2btest.Read[wireDetail](d, d.api(200, "GET", "/sandboxes/"+f.Sandbox.SandboxID, ""))
		if got.Metadata["a"] != "b" || got.EndAt.Sub(got.StartedAt) != time.Minute {
			t.Errorf("got %+v, want the metadata of the sandbox and a minute", got)
		}
	}
	if len(d.snaps) != 0 {
		t.Errorf("got %d snapshots after the forks, want none", len(d.snaps))
	}
	d.failWith("Restore", fault.Newf(fault.Exhausted, "jail.Create", "", "there are too many jails"))
	forks = e2btest.Read[[]wireFork](d, d.api(201, "POST", "/sandboxes/"+box.SandboxID+"/fork", `{"count":1}`))
	if forks[0].Sandbox != nil || forks[0].Error == nil || forks[0].Error.Code != http.StatusTooManyRequests {
		t.Errorf("a failed fork: got %+v, want 429", forks[0])
	}
	d.api(204, "POST", "/sandboxes/"+box.SandboxID+"/pause", "")
	d.api(409, "POST", "/sandboxes/"+box.SandboxID+"/fork", `{"count":1}`)
}

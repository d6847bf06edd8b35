package api_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/policy/access"
)

func TestSnapshotExportAndImport(t *testing.T) {
	d := open(t, apitest.New())
	s := d.taken(d.running(), nil)
	self := "/snapshots/" + string(s.ID) + "/export"
	got := d.want(200, req{as: access.Operator, method: "GET", path: self}, nil)
	if ct, cd := got.header.Get("Content-Type"), got.header.Get("Content-Disposition"); ct != "application/zstd" || !strings.Contains(cd, string(s.ID)+".tar.zst") {
		t.Errorf("headers %v", got.header)
	}
	archive := string(got.body)
	d.refused(403, req{as: access.Viewer, method: "GET", path: self})
	d.refused(404, req{as: access.Operator, method: "GET", path: "/snapshots/s-aaaaaaaaaaaa/export"})

	d.refused(403, req{as: access.Operator, method: "POST", path: "/snapshots/import", body: archive})
	var back wire.Snapshot
	made := d.want(201, req{as: access.Admin, method: "POST", path: "/snapshots/import", body: archive}, &back)
	if back.ID == s.ID || back.Reason != "imported" || !back.Memory || made.header.Get("Location") != "/snapshots/"+string(back.ID) {
		t.Errorf("%+v at %q", back, made.header.Get("Location"))
	}
	other := strings.Replace(archive, `"cpu":"one"`, `"cpu":"two"`, 1)
	if p := d.refused(501, req{as: access.Admin, method: "POST", path: "/snapshots/import", body: other}); p.Remedy == "" {
		t.Errorf("%+v", p)
	}
	d.want(201, req{as: access.Admin, method: "POST", path: "/snapshots/import?files_only=true", body: other}, &back)
	if back.Memory {
		t.Error("the processes were imported")
	}
	d.want(201, req{as: access.Admin, method: "POST", path: "/snapshots/import?force=true", body: other}, &back)
	if !back.Memory {
		t.Error("the processes were not imported")
	}
	d.refused(400, req{as: access.Admin, method: "POST", path: "/snapshots/import", body: "nothing"})
}

func TestFailedExportIsNotAnArchive(t *testing.T) {
	d := open(t, apitest.New())
	s := d.taken(d.running(), nil)
	self := "/snapshots/" + string(s.ID) + "/export"
	fails := func(at string) {
		d.kept.Fail = func(op string) error {
			if op == at {
				return fault.New(fault.Exhausted, "snapshot.Export", "", errors.New("no room"))
			}
			return nil
		}
	}
	fails("export")
	d.refused(429, req{as: access.Operator, method: "GET", path: self})
	fails("end of export") // fails after a part of the archive was sent
	resp := d.send(req{as: access.Operator, method: "GET", path: self})
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("the failed export ends like a complete one, after %d bytes", n)
	}
}

func TestSnapshotPolicy(t *testing.T) {
	d := open(t, apitest.New())
	var j wire.Jail
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails",
		body: `{"snapshots":{"every":"10m","before":["exec:git push"],"after":"exec","keep":{"last":3},"keep_connections":true}}`}, &j)
	want := wire.Snapshots{Every: "10m0s", Before: []string{"exec:git push"}, After: "exec", Keep: wire.Keep{Last: 3}, KeepConnections: true}
	if j.Snapshots.Every != want.Every || j.Snapshots.After != want.After || j.Snapshots.Keep != want.Keep || !j.Snapshots.KeepConnections || len(j.Snapshots.Before) != 1 {
		t.Errorf("%+v, want %+v", j.Snapshots, want)
	}
	for _, bad := range []string{"10", "0s", "soon"} {
		p := d.refused(400, req{as: access.Operator, method: "POST", path: "/jails", body: `{"snapshots":{"every":"` + bad + `"}}`})
		if p.Field != "snapshots.every" {
			t.Errorf("%q: %+v", bad, p)
		}
	}
}

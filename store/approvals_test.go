package store_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/store/postgrestest"
)

func TestApprovalsInSQLite(t *testing.T) {
	approvals(t, filepath.Join(t.TempDir(), "g.db"))
}

func TestApprovalsInPostgreSQL(t *testing.T) {
	approvals(t, postgrestest.Start(t).URL(t))
}

// approvals checks that stored data can be read after reopening the database.
func approvals(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	as := s.Approvals()
	request := func(n int, jail id.Jail, state approval.State) approval.Request {
		return approval.Request{
			Question: policy.Question{Subject: policy.Subject{Jail: jail}, Action: "bash", Resource: "rm \u202e \x01 '\\", Attributes: map[string]string{"cwd": "/"}},
			Rule:     policy.Rule{Action: "bash", Pattern: "*", Effect: policy.Ask}, Tier: approval.Standard, Scopes: []approval.Scope{approval.Once},
			Context: json.RawMessage(`{"a":1}`), ID: id.NewApproval(), State: state, Hash: "sha256:00",
			Created: epoch.Add(time.Duration(n)), Expires: epoch.Add(time.Hour),
		}
	}
	one, two, three := request(1, "j-a", approval.Pending), request(2, "j-b", approval.Pending), request(3, "j-a", approval.Expired)
	four := request(4, "j-b", approval.Answered)
	four.Answer = &approval.Answer{Verdict: approval.Allow, Scope: approval.Always, By: approval.Person{ID: "t", Name: "anna"}, At: epoch, Rule: &one.Rule}
	four.AnswerUsed = true
	five := four
	five.ID, five.Created, five.RulePending = id.NewApproval(), epoch.Add(5), true
	notice := func(n int, r approval.Request) approval.Notice {
		return approval.Notice{ID: string(id.NewApproval()), Approval: r.ID, Channel: "c", Kind: approval.KindAsked, Created: epoch.Add(time.Duration(n)), Next: epoch, Body: json.RawMessage(`{}`)}
	}
	n1, n2 := notice(1, two), notice(2, two)
	for r, notices := range map[*approval.Request][]approval.Notice{&two: {n2, n1}, &one: nil, &three: nil, &four: nil, &five: nil} {
		if err := as.Save(ctx, *r, notices); err != nil {
			t.Fatal(err)
		}
	}
	two.Outcome = "changed"
	if err := as.Save(ctx, two, nil); err != nil {
		t.Fatal(err)
	}
	link := approval.Link{Hash: "abc", Approval: one.ID, Verdict: approval.Deny, Author: approval.Person{ID: "t", Role: "operator"}, Expires: epoch.Add(time.Hour)}
	old := approval.Link{Hash: "old", Expires: epoch}
	for _, l := range []approval.Link{old, link, link} {
		if err := as.PutLink(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	n1.Attempts = 3
	if err := as.PutNotice(ctx, n1); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	as = open(t, where).Approvals()
	check := func(name string, want []approval.Request, got []approval.Request, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	got, err := as.Unfinished(ctx)
	check("unfinished", []approval.Request{one, two, five}, got, err)
	got, err = as.List(ctx, approval.Filter{})
	check("all", []approval.Request{five, four, three, two, one}, got, err)
	got, err = as.List(ctx, approval.Filter{Jail: "j-a", Limit: 1})
	check("one of a jail", []approval.Request{three}, got, err)
	got, err = as.List(ctx, approval.Filter{State: approval.Pending})
	check("pending", []approval.Request{two, one}, got, err)
	single, err := as.Get(ctx, four.ID)
	check("get", []approval.Request{four}, []approval.Request{single}, err)
	if _, err := as.Get(ctx, "a-none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get = %v, want not found", err)
	}
	notices, err := as.Notices(ctx)
	if diff := cmp.Diff([]approval.Notice{n1, n2}, notices); err != nil || diff != "" {
		t.Errorf("notices: %v\n%s", err, diff)
	}
	for range 2 {
		if err := as.DeleteNotice(ctx, n1.ID); err != nil {
			t.Fatal(err)
		}
	}
	if notices, err := as.Notices(ctx); err != nil || len(notices) != 1 {
		t.Errorf("%d notices remain, %v", len(notices), err)
	}
	if err := as.Forget(ctx, epoch.Add(time.Minute), epoch); err != nil {
		t.Fatal(err)
	}
	l, err := as.GetLink(ctx, "abc")
	if diff := cmp.Diff(link, l); err != nil || diff != "" {
		t.Errorf("link: %v\n%s", err, diff)
	}
	got, err = as.List(ctx, approval.Filter{})
	check("before any is old", []approval.Request{five, four, three, two, one}, got, err)
	if err := as.Forget(ctx, epoch, five.Created.Add(time.Nanosecond)); err != nil {
		t.Fatal(err)
	}
	got, err = as.List(ctx, approval.Filter{})
	check("unfinished requests remain", []approval.Request{five, two, one}, got, err)
	if notices, err := as.Notices(ctx); err != nil || len(notices) != 0 {
		t.Errorf("%d old notices remain, %v", len(notices), err)
	}
	for _, hash := range []string{"old", ""} {
		if _, err := as.GetLink(ctx, hash); !errors.Is(err, fault.NotFound) {
			t.Errorf("GetLink(%q) = %v, want not found", hash, err)
		}
	}
}

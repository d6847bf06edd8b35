package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"glasshouse/policy"
)

func TestDenials(t *testing.T) {
	tests := []struct {
		name, match, permission string
		want                    []string // action pattern
	}{
		{"a file, a directory, a program and an address", "longest",
			`{"edit": {"*": "allow", "/etc/*": "deny", "src/key": "deny"}, "bash": {"*": "allow", "curl *": "deny"}, "connect": {"*": "allow", "10.0.0.1:*": "deny"}}`,
			[]string{"bash curl *", "connect 10.0.0.1:*", "edit /etc/*", "edit /work/src/key"}},
		{"an exception that is longer", "longest", `{"edit": {"/etc/*": "deny", "/etc/motd": "allow"}}`, nil},
		{"an exception that comes later", "last", `{"edit": {"/etc/*": "deny", "/etc/m*": "ask"}}`, nil},
		{"one that comes earlier is none", "last", `{"edit": {"/etc/motd": "allow", "/etc/*": "deny"}}`, []string{"edit /etc/*"}},
		{"an exception by another name of the file", "longest", `{"edit": {"src/*": "deny", "/work/src/a": "allow"}}`, nil},
		{"an exception for another tool that writes", "last", `{"edit": {"/etc/*": "deny"}, "write": {"/etc/*": "allow"}}`, nil},
		{"an exception for everything", "last", `{"connect": {"10.0.0.1:*": "deny"}, "*": {"*:80": "allow"}}`, nil},
		{"another action is no exception", "last", `{"edit": {"/etc/*": "deny"}, "read": {"/etc/*": "allow"}}`, []string{"edit /etc/*"}},
		{"the home directory", "longest", `{"edit": {"~/.ssh/*": "deny"}}`, []string{"edit /root/.ssh/*"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := policy.ReadPermissions("opencode.json", []byte(`{"permission": `+tt.permission+`}`))
			if err != nil {
				t.Fatal(err)
			}
			set, err := policy.Compile(policy.Config{Permissions: []*policy.Permissions{p}, Match: policy.Match(tt.match), Level: policy.Full, Home: "/root", Workspace: "/work"})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for _, r := range set.Denials("") {
				if r.File == "opencode.json" {
					got[r.Action+" "+r.Pattern] = true
				}
				// All resources that it matches are denied.
				some := strings.TrimSuffix(r.Pattern, "*") + "some"
				if d := set.Decide(policy.Question{Action: r.Action, Resource: some}); strings.HasSuffix(r.Pattern, "*") && d.Effect != policy.Deny {
					t.Errorf("%s is reported as denied, but %q is %v", r, some, d)
				}
			}
			want := map[string]bool{}
			for _, w := range tt.want {
				want[w] = true
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestDenialsIncludeTightening(t *testing.T) {
	set := file(t, `{"edit": "allow"}`, level(policy.Full)).Remember(policy.Rule{Action: "edit", Pattern: "/etc/*", Effect: policy.Deny})
	for _, r := range set.Denials("") {
		if r.Action == "edit" && r.Pattern == "/etc/*" {
			return
		}
	}
	t.Errorf("it is not among %v", set.Denials(""))
}

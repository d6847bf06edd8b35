package policy_test

import (
	"fmt"

	"glasshouse/policy"
)

const examplePermissions = `{
  "permission": {
    "bash": {
      "*": "ask",
      "git status*": "allow",
      "git push*": "deny"
    },
    "edit": "allow"
  }
}`

func exampleSet() *policy.Set {
	p, err := policy.ReadPermissions("opencode.json", []byte(examplePermissions))
	if err != nil {
		panic(err)
	}
	s, err := policy.Compile(policy.Config{Permissions: []*policy.Permissions{p}, Level: policy.Intelligent, Workspace: "/work"})
	if err != nil {
		panic(err)
	}
	return s
}

func ExampleSet_Decide() {
	s := exampleSet()
	for _, line := range []string{"git status --short", "git push origin main", "make test", "git status && git push"} {
		d := s.Decide(policy.Question{Action: policy.ActionRun, Resource: line})
		fmt.Printf("%s: %s by %s\n", line, d.Effect, d.Rule)
	}
	// Output:
	// git status --short: allow by bash "git status*": allow (opencode.json:5)
	// git push origin main: deny by bash "git push*": deny (opencode.json:6)
	// make test: ask by bash "*": ask (opencode.json:4)
	// git status && git push: deny by bash "git push*": deny (opencode.json:6)
}

func ExampleSet_Remember() {
	s := exampleSet().Remember(policy.Rule{Action: policy.ActionRun, Pattern: "make *", Effect: policy.Allow})
	fmt.Println(s.Decide(policy.Question{Action: policy.ActionRun, Resource: "make test"}).Effect)
	// A remembered answer does not change a denial.
	s = s.Remember(policy.Rule{Action: policy.ActionRun, Pattern: "git push*", Effect: policy.Allow})
	fmt.Println(s.Decide(policy.Question{Action: policy.ActionRun, Resource: "git push"}).Effect)
	// Output:
	// allow
	// deny
}

func ExampleSet_Explain() {
	_, considered := exampleSet().Explain(policy.Question{Action: policy.ActionRun, Resource: "git push"})
	for _, c := range considered {
		fmt.Println(c.Rule, c.Matches, c.Decides)
	}
	// Output:
	// bash "git push*": deny (opencode.json:6) true true
	// bash "git status*": allow (opencode.json:5) false false
	// bash "*": ask (opencode.json:4) true false
	// * "*": allow (OpenCode defaults) true false
}

func ExampleMatches() {
	fmt.Println(policy.Matches("git *", "git push origin"), policy.Matches("git *", "gitk"))
	// Output:
	// true false
}

func ExampleStricter() {
	fmt.Println(policy.Stricter(policy.Allow, policy.Ask), policy.Stricter(policy.Deny, policy.Ask))
	// Output:
	// ask deny
}

func ExampleHolder_Raise() {
	h, err := policy.NewHolder(exampleSet(), policy.Intelligent)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(h.Raise(policy.Intelligent, policy.Agent))
	// Output:
	// policy.Raise: denied: an agent cannot raise its own level
}

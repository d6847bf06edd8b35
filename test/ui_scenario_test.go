package test_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// modelThatRepairs is a scripted model that repairs the repository of a scenario: it runs the
// tests, reads the sources, fetches a package from a registry, is denied another host, edits a
// file and runs the tests again. A second goal needs an approval.
const modelThatRepairs = `
conversations:
  - when: {user: "write a short plan", model: "*sonnet*"}
    turns: [{text: "1. Run the tests. 2. Find the cause. 3. Repair it and run the tests again.", delay: 300ms, usage: {input: 1180, output: 46}}]
  - when: {user: "carry out the plan", model: "*sonnet*"}
    turns:
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && ls -R . && bash tests/run.sh"}}], delay: 500ms, usage: {input: 1620, output: 58}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && cat src/total.sh && grep -rn discount src tests"}}], delay: 400ms, usage: {input: 2140, output: 64}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && bash tools/fetch.sh registry.npmjs.org /decimal.js > vendor/decimal.json; cat vendor/decimal.json"}}], delay: 600ms, usage: {input: 2390, output: 71}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && bash tools/fetch.sh telemetry.example.net /v1/usage || echo 'not available, continuing without it'"}}], delay: 300ms, usage: {input: 2610, output: 52}}
      - {calls: [{tool: write_file, arguments: {path: /root/cart/src/total.sh, text: "# total PRICE QUANTITY DISCOUNT: the price in cents\ntotal() {\n  local sum=$(($1 * $2))\n  echo $((sum - sum * $3 / 100))\n}\n"}}], delay: 900ms, usage: {input: 2830, output: 148}}
      - {calls: [{tool: bash, arguments: {command: "cd /root/cart && sed -i 's/0.3.0/0.3.1/' VERSION && bash tests/run.sh"}}], delay: 400ms, usage: {input: 3020, output: 88}}
      - {text: "## Fixed\n\nThe discount was subtracted **before** the multiplication. The order is now:\n\n1. multiply price and quantity\n2. subtract the discount of the sum\n\n| test | before | after |\n| --- | --- | --- |\n| one article | pass | pass |\n| three articles, 10 % | **fail** | pass |\n\nOnly ` + "`src/total.sh` and `VERSION`" + ` changed. The telemetry host is not in the egress rules; nothing depends on it.", delay: 500ms, usage: {input: 3260, output: 132}}
  - when: {user: "write a short plan", model: "*haiku*"}
    turns: [{text: "1. Check the version. 2. Push the fix.", usage: {input: 940, output: 31}}]
  - when: {user: "carry out the plan", model: "*haiku*"}
    turns:
      - {calls: [{tool: bash, arguments: {command: "cat /root/cart/VERSION; ls /root/cart/src"}}], usage: {input: 1240, output: 40}}
      - {calls: [{tool: bash, arguments: {command: "git push origin main --tags"}}], usage: {input: 1390, output: 33}}
      - {text: "Pushed."}
`

// A repair is a scenario for the pages of the UI: an agent has repaired a repository, another
// run waits for an approval, and a snapshot has three branches.
type repair struct {
	*ui
	run, publish wire.Run
	waiting      wire.Approval // the push
	jail         id.Jail       // of the first run
	snapshot     wire.Snapshot
	branches     []wire.Jail
}

// repairs creates the scenario. The host must resolve the names of reachable, and the daemon
// must have the models of modelThatRepairs.
func (u *ui) repairs() repair {
	u.Helper()
	repo := filepath.Join(u.TempDir(), "cart")
	for name, text := range map[string]string{
		"VERSION":           "0.3.0\n",
		"README.md":         "# cart\n\nThe total of a shopping cart.\n",
		"src/total.sh":      "# total PRICE QUANTITY DISCOUNT: the price in cents\ntotal() {\n  echo $((($1 - $1 * $3) * $2 / 100))\n}\n",
		"src/tax.sh":        "tax() { echo $(($1 * 19 / 100)); }\n",
		"tests/run.sh":      ". src/total.sh\nfailed=0\nfor n in 1 2 3 4 5 6 7 8; do echo case $n > build/case$n; done\ncheck() {\n  sleep 0.2\n  got=$(total $2 $3 $4)\n  if [ $got = $5 ]; then echo \"ok $1\"; else echo \"FAIL $1: got $got, want $5\"; failed=1; fi\n}\ncheck 'one article' 500 1 0 500\ncheck 'three articles' 250 3 10 675\nls build | sort | head -3\nexit $failed\n",
		"tools/fetch.sh":    "exec 3<>/dev/tcp/$1/80 || exit 1\nprintf 'GET %s HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' $2 $1 >&3\nanswer=$(cat <&3)\ncase $answer in *' 200 '*) ;; *) echo \"$1: the request was denied\" >&2; exit 1;; esac\necho \"$answer\" | tail -n 1\n",
		"vendor/.keep":      "",
		"build/.keep":       "",
		"tests/data/a.json": "{\"price\": 500}\n",
	} {
		file := filepath.Join(repo, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			u.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			u.Fatal(err)
		}
	}
	created := wire.CreateJail{
		Name: "cart", Labels: map[string]string{"repo": "cart"}, Workspace: &wire.Workspace{Source: repo, Target: "/root/cart"}, Network: "proxy",
		Egress: &wire.Egress{Allow: []wire.EgressRule{{Host: "registry.npmjs.org"}}},
		Policy: &wire.Policy{
			Level: 2, Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission":{"edit":"allow","bash":{"*":"allow","git push*":"ask"},"connect":"deny"}}`}},
			Tiers: []wire.PolicyTier{{Action: "bash", Pattern: "git push*", Tier: "elevated"}},
		},
	}
	agent := func(name, model string) *wire.RunAgent {
		jail := created
		jail.Name = name
		return &wire.RunAgent{Model: model, Keep: true, Jail: &jail}
	}
	start := func(goal string, agent *wire.RunAgent) wire.Run {
		u.Helper()
		r, err := u.StartRun(u.Context(), wire.StartRun{Goal: goal, Session: "sess-cart", Agent: agent, Budget: map[string]int64{"steps": 60, "cost-micros": 500_000, "wall-clock-ms": 900_000}})
		if err != nil {
			u.Fatal(err)
		}
		return r
	}
	s := repair{ui: u}
	s.run = u.settled(start("Repair the failing test of cart", agent("cart", "claude-sonnet-4-5")).ID, "done")
	s.jail = s.run.Jail
	s.publish = u.settled(start("Publish cart 0.3.1", agent("cart-publish", "claude-haiku-4-5")).ID, "paused")
	s.waiting = u.pendingApproval(s.publish.Jail, "git push origin main --tags")

	if now, err := u.Jail(u.Context(), s.jail); err != nil {
		u.Fatal(err)
	} else if now.State != "running" {
		if _, err := u.StartJail(u.Context(), s.jail); err != nil {
			u.Fatal(err)
		}
	}
	s.snapshot = u.snapshot(s.jail, "tests pass")
	for _, name := range []string{"cart-rounding", "cart-reduced-tax", "cart-as-is"} {
		made, err := u.BranchSnapshot(u.Context(), s.snapshot.ID, wire.Branch{Count: 1, Overrides: wire.Overrides{Name: name}})
		if err != nil {
			u.Fatal(err)
		}
		s.branches = append(s.branches, made.Jails...)
	}
	u.sh(s.branches[0].ID, "cd /root/cart && echo 'round() { echo $((($1 + 50) / 100)); }' > src/round.sh && bash tests/run.sh")
	u.sh(s.branches[1].ID, "cd /root/cart && sed -i 's/19/7/' src/tax.sh && rm vendor/.keep && bash tests/run.sh")
	return s
}

// servesRegistry makes this host resolve the names of the scenario and serves the package registry.
// The test must have its own namespaces.
func servesRegistry(t *testing.T) {
	t.Helper()
	world := internet(t)
	named(t, map[string]string{"registry.npmjs.org": serverAddr, "telemetry.example.net": serverAddr})
	website(t, world, serverAddr+":80", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "{\"name\": %q, \"version\": \"10.4.3\"}\n", r.URL.Path[1:])
	}))
}

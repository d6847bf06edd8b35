package test_test

import (
	"fmt"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// careful creates a jail whose commands need approvals.
func (u *ui) careful(name string) id.Jail {
	u.Helper()
	j := u.running(wire.CreateJail{Name: name})
	p := wire.Policy{Level: 1, Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission":{"bash":{"*":"ask"}}}`}}}
	if _, err := u.SetPolicy(u.Context(), j.ID, p); err != nil {
		u.Fatal(err)
	}
	return j.ID
}

func (u *ui) answersOnAPhone() {
	j := u.careful("careful")
	u.sh(j, "echo before the question > /root/trace")
	p := u.login(u.T, u.browser, "admin")
	p.phone()
	p.open("/approvals")
	p.waitText("No pending approvals.")

	for _, c := range []struct {
		command, scope, button, outcome string
		allow                           bool
	}{
		{"git push", "", "Approve", "Approved by", true},
		{"npm install left-pad", "Session", "Approve", "Approved by", true},
		{"make release", "Always", "Approve", "Approved by", true},
		{"python deploy.py", "", "Deny", "Denied by", false},
	} {
		told := u.ask(j, "bash", c.command)
		u.pendingApproval(j, c.command)
		p.tap("a", c.command) // it appears on an open page without a reload
		for _, says := range []string{"Why approval is required", "Rule", string(j), c.command} {
			p.waitText(says)
		}
		u.fitsThePhone(p)
		if c.scope != "" {
			p.tap("form label", c.scope)
			p.waitText("Approving adds the rule")
		}
		if c.button == "Deny" {
			p.fill("Reason", "not that")
		}
		p.tap("form button", c.button)
		v := u.waitVerdict(told)
		if v.Allow != c.allow || !c.allow && !strings.Contains(v.Decision.Reason, "not that") {
			u.Errorf("verdict for %q = %+v", c.command, v)
		}
		p.waitText(c.outcome)
		p.tap("a", "All requests")
		p.waitText("No pending approvals.")
	}
	// An answer for longer covers the next question, an answer for once does not.
	for _, command := range []string{"npm install left-pad", "make release"} {
		if v := u.decide(j, "bash", command); !v.Allow {
			u.Errorf("%q, allowed for longer, got %+v", command, v)
		}
	}
	u.allows(u.asks(j, wire.Question{Action: "bash", Resource: "git push"}))
	p.open("/approvals?state=settled")
	p.waitText("python deploy.py")
	u.fitsThePhone(p)
}

// fitsThePhone fails the test for pages that are wider than a phone, and for controls that are
// too small for a finger.
func (u *ui) fitsThePhone(p *tab) {
	u.Helper()
	if wide := "document.documentElement.scrollWidth - innerWidth"; !p.comes(20*time.Second, wide+" <= 0") {
		u.Errorf("the page is %d pixels wider than the phone", evaluate[int](p, wide))
	}
	const least = 24 // target size (minimum), WCAG 2.2, success criterion 2.5.8
	small := evaluate[[]string](p, fmt.Sprintf(`[...document.querySelectorAll("button, input, form label:has(input)")].filter(e => e.checkVisibility() && !e.closest(".unseen") && !(e.labels?.length) && e.getBoundingClientRect().height < %d).map(e => e.outerHTML.slice(0, 120))`, least))
	if len(small) > 0 {
		u.Errorf("too small for a finger: %q", small)
	}
}

package enforce_test

import (
	"testing"

	"glasshouse/policy"
)

func TestAnAllowedCommandRunsAsEver(t *testing.T) {
	forEach(t, func(t *testing.T, b *box) {
		if got := b.does("mkdir -p /work/a; echo one >/work/a/b; cat /work/a/b"); got != "one" {
			t.Errorf("got %q", got)
		}
		if len(b.judge.questions(policy.ActionRun)) < 3 {
			t.Errorf("asked was %q", b.judge.questions(policy.ActionRun))
		}
		t.Logf("%q %q", b.judge.questions(policy.ActionRun), b.judge.questions(policy.ActionEdit))
	})
}

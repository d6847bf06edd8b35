package test_test

import (
	"fmt"
	"strings"

	"glasshouse/api/wire"
)

// modelThatIsHostile is one that was told by somebody what to say.
func modelThatIsHostile() string {
	said := strings.ReplaceAll(hostile, "{{7*7}}", "") // which would be for the model itself
	return fmt.Sprintf(`
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: %s}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: bash, arguments: {command: %s}}]
      - text: %s
`, quoted("1. "+said), quoted("printf '%s\\n' \"$0 <b>tool</b>\" '"+script[:70]+"'"), quoted("answered "+script+said))
}

// pursued is a run that has come to its end.
func (u *ui) pursued(goal, session string) wire.Run {
	u.Helper()
	r, err := u.StartRun(u.Context(), wire.StartRun{Goal: goal, Session: session})
	if err != nil {
		u.Fatal(err)
	}
	return u.settled(r.ID, "done")
}

func (u *ui) showsRuns() {
	run := u.pursued("look after "+hostile, "sess-wild")
	p := u.page
	for _, v := range []view{
		{"/chat/run", "look after <img src=x"},
		{"/chat/run/" + string(run.ID), "answered <script>"},
		{"/chat/session", "sess-wild"},
		{"/chat/session/sess-wild", "1. <img src=x"},
		{"/chain", "Verify all"},
		{"/governance", "printf"},
		{"/jails?q=" + string(run.Jail), string(run.Jail)},
	} {
		p.open(v.path)
		p.sees(v.says)
		u.unmoved(p, v.path)
	}
	// A step, opened.
	p.open("/chat/run/" + string(run.ID))
	p.press("main [role=row], main [role=option], main [role=treeitem], main li, main tr", "printf")
	p.sees("<b>tool</b>")
	u.unmoved(p, "what a tool said")
}

func (u *ui) plansRuns() {
	p := u.page
	r, err := u.StartRun(u.Context(), wire.StartRun{Goal: "water the garden", Session: "sess-garden", Schedule: "0 6 * * *"})
	if err != nil {
		u.Fatal(err)
	}
	p.open("/schedules")
	p.sees("water the garden")
	p.sees("0 6 * * *")
	p.open("/schedules/" + string(r.Schedule))
	p.sees("water the garden")
	p.open("/chat/run")
	p.sees("water the garden")
}

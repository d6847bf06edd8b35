package test_test

import (
	"fmt"
	"strings"

	"glasshouse/api/wire"
)

// modelThatIsHostile is a scripted model with hostile output.
func modelThatIsHostile() string {
	said := strings.ReplaceAll(hostile, "{{7*7}}", "") // this would be a template of the model itself
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

// pursued starts a run and waits until it has ended.
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
		p.waitText(v.says)
		u.unmoved(p, v.path)
	}
	// Open a step.
	p.open("/chat/run/" + string(run.ID))
	p.press("main [role=row], main [role=option], main [role=treeitem], main li, main tr", "printf")
	p.waitText("<b>tool</b>")
	u.unmoved(p, "what a tool said")
}

func (u *ui) plansRuns() {
	p := u.page
	r, err := u.StartRun(u.Context(), wire.StartRun{Goal: "water the garden", Session: "sess-garden", Schedule: "0 6 * * *"})
	if err != nil {
		u.Fatal(err)
	}
	p.open("/schedules")
	p.waitText("water the garden")
	p.waitText("0 6 * * *")
	p.open("/schedules/" + string(r.Schedule))
	p.waitText("water the garden")
	p.open("/chat/run")
	p.waitText("water the garden")
}

package skill_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"glasshouse/capability/skill"
)

func TestGuideExample(t *testing.T) {
	doc, err := os.ReadFile("../../docs/how-to/skills.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)````markdown\n(.*?)````").FindStringSubmatch(string(doc))
	if m == nil {
		t.Fatal("there is no example")
	}
	shelf := shelve(t, jailed("places.search", `:effects [:network] :network {:allowed-hosts ["x.example"]} :secrets [:PLACES_KEY]`))
	if _, err := read(t, m[1]).Check(shelf.approved); err != nil {
		t.Error(err)
	}
	for _, tier := range skill.Tiers {
		if !strings.Contains(string(doc), "| `"+string(tier)+"` |") {
			t.Errorf("the guide has no row for the tier %s", tier)
		}
	}
}

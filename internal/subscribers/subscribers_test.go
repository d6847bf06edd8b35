package subscribers_test

import (
	"slices"
	"testing"

	"glasshouse/internal/subscribers"
)

func TestEachNotifiesSubscribersInOrder(t *testing.T) {
	var list subscribers.List[string]
	notified := func() (all []string) {
		list.Each(func(s string) { all = append(all, s) })
		return all
	}
	if got := notified(); len(got) != 0 {
		t.Errorf("subscribers of an empty list = %q, want none", got)
	}
	list.Add("a")
	removeFirst := list.Add("b")
	list.Add("b") // another subscriber that is equal
	list.Add("c")
	if got, want := notified(), []string{"a", "b", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("subscribers = %q, want %q", got, want)
	}
	removeFirst()
	removeFirst()
	if got, want := notified(), []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("subscribers after a removal = %q, want %q", got, want)
	}
}

func TestSubscriberMayRemoveItself(t *testing.T) {
	var list subscribers.List[func()]
	calls := 0
	var remove func()
	remove = list.Add(func() { calls++; remove() })
	for range 2 {
		list.Each(func(f func()) { f() })
	}
	if calls != 1 {
		t.Errorf("calls of a subscriber that removed itself = %d, want 1", calls)
	}
}

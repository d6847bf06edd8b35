// Package subscribers keeps the parties that are notified about something.
package subscribers

import (
	"slices"
	"sync"
)

// A List is a list of subscribers. The zero value is empty. It is safe for concurrent use.
type List[T any] struct {
	mu sync.Mutex
	// +checklocks:mu
	all []*T // replaced, never modified
}

// Add adds a subscriber until remove is called.
func (l *List[T]) Add(subscriber T) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	added := &subscriber
	l.all = append(slices.Clone(l.all), added)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(slices.Clone(l.all), func(s *T) bool { return s == added })
	}
}

// Each calls notify with each subscriber, in the order in which they were added. notify may
// change the list, which affects later calls of Each.
func (l *List[T]) Each(notify func(T)) {
	l.mu.Lock()
	all := l.all
	l.mu.Unlock()
	for _, s := range all {
		notify(*s)
	}
}

package chain

import (
	"context"
	"runtime"
	"sync"
)

// inOrder runs the tasks that next returns, several at once, and hands what they
// return to consume, in their order. It ends when next returns no task, or with
// the first error, and when it returns nothing runs any more.
func inOrder[T any](ctx context.Context, next func() (func() (T, error), error), consume func(T) error) error {
	type result struct {
		value T
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	results := make(chan chan result, runtime.GOMAXPROCS(0))
	running.Go(func() {
		defer close(results)
		for ctx.Err() == nil {
			one := make(chan result, 1)
			task, err := next()
			if err != nil {
				one <- result{err: err}
			} else if task == nil {
				return
			}
			select {
			case results <- one:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
			running.Go(func() {
				value, err := task()
				one <- result{value, err}
			})
		}
	})
	for one := range results {
		r := <-one
		if r.err != nil {
			return r.err
		}
		if err := consume(r.value); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

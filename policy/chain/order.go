package chain

import (
	"context"
	"runtime"
	"sync"
)

// inOrder runs the tasks that next returns concurrently, and passes their results to consume
// in order. It ends when next returns a nil task or with the first error. No task is running
// when it returns.
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

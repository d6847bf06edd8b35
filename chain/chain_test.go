package chain_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"glasshouse/chain"
	"glasshouse/id"
	"glasshouse/store"
)

func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			c := openBench(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := c.Append(context.Background(), anEntry(w)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

func openBench(b testing.TB) *chain.Chain {
	dir := b.TempDir()
	s, err := store.Open(context.Background(), filepath.Join(dir, "g.db"))
	if err != nil {
		b.Fatal(err)
	}
	k, err := chain.LoadKey(dir)
	if err != nil {
		b.Fatal(err)
	}
	c, err := chain.Open(context.Background(), chain.Config{Store: s.Chain(), Key: k})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(); s.Close() })
	return c
}

func anEntry(n int) chain.Entry {
	body, _ := json.Marshal(map[string]any{"action": "bash", "resource": "npm install --save left-pad", "effect": "allow", "rule": map[string]any{"file": "opencode.json", "line": 12, "pattern": "npm *"}})
	return chain.Entry{
		Kind: chain.Decided, Jail: id.Jail(fmt.Sprintf("j-aaaaaaaaaa%02d", n%50)), Session: fmt.Sprint("session-", n%20), Run: fmt.Sprint("run-", n%30),
		Agent: "worker", Body: body,
	}
}

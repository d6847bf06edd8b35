package chain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"glasshouse/policy/chain"
	"glasshouse/store"
)

// exampleChain opens an audit log in a new directory.
func exampleChain(ctx context.Context) (*chain.Chain, func()) {
	dir, err := os.MkdirTemp("", "chain")
	if err != nil {
		panic(err)
	}
	key, err := chain.LoadKey(dir)
	if err != nil {
		panic(err)
	}
	db, err := store.Open(ctx, filepath.Join(dir, "glasshouse.db"))
	if err != nil {
		panic(err)
	}
	c, err := chain.Open(ctx, chain.Config{Store: db.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	for _, kind := range []chain.Kind{chain.JailCreated, chain.JailDeleted} {
		if _, err := c.Append(ctx, chain.Entry{Kind: kind, Jail: "j-aaaaaaaaaaaa", Agent: "anna", Body: json.RawMessage(`{"reason":"example"}`)}); err != nil {
			panic(err)
		}
	}
	return c, func() {
		c.Close()
		db.Close()
		os.RemoveAll(dir)
	}
}

func ExampleVerifyExport() {
	ctx := context.Background()
	c, closeChain := exampleChain(ctx)
	defer closeChain()
	var export bytes.Buffer
	if _, err := c.Export(ctx, &export); err != nil {
		fmt.Println(err)
		return
	}
	trust := chain.TrustedInput{Key: c.Key()} // from a trusted source, not from the export
	r, err := chain.VerifyExport(ctx, bytes.NewReader(export.Bytes()), trust)
	fmt.Println(r.Entries, r.Signed, r.Bad, err)

	changed := bytes.Replace(export.Bytes(), []byte("anna"), []byte("emma"), 1)
	r, err = chain.VerifyExport(ctx, bytes.NewReader(changed), trust)
	fmt.Println(r.Entries, r.Bad, err)
	// Output:
	// 2 2 <nil> <nil>
	// 0 entry 1: line 1: hash does not match the content <nil>
}

func ExampleChain_Prove() {
	ctx := context.Background()
	c, closeChain := exampleChain(ctx)
	defer closeChain()
	if _, err := c.Checkpoint(ctx); err != nil {
		fmt.Println(err)
		return
	}
	proof, err := c.Prove(ctx, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(proof.Entry.Kind, proof.Check(c.Key()))
	proof.Entry.Agent = "emma"
	fmt.Println(proof.Check(c.Key()))
	// Output:
	// jail.deleted <nil>
	// chain.Check: 2: conflict: hash does not match the content
}

func ExampleChain_ProveConsistency() {
	ctx := context.Background()
	c, closeChain := exampleChain(ctx)
	defer closeChain()
	earlier, err := c.Checkpoint(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := c.Append(ctx, chain.Entry{Kind: chain.JailCreated, Jail: "j-bbbbbbbbbbbb"}); err != nil {
		fmt.Println(err)
		return
	}
	proof, err := c.ProveConsistency(ctx, earlier.Note)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(earlier.Size, proof.Check(c.Key()))
	// Output:
	// 2 <nil>
}

func ExampleCanonical() {
	b, err := chain.Canonical([]byte(`{ "b": 1.0, "a": "\u00e9" }`))
	fmt.Printf("%s %v\n", b, err)
	// Output:
	// {"a":"é","b":1} <nil>
}

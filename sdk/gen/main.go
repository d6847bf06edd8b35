// Gen generates parts of the clients in sdk from the OpenAPI document: the types of requests
// and responses, and a method for each operation.
//
// Run it in the top directory of the repository, with `make sdk`.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"glasshouse/api"
)

func main() {
	if err := run("sdk"); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	text, err := api.Document("")
	if err != nil {
		return err
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return fmt.Errorf("read the OpenAPI document: %w", err)
	}
	ops, err := d.operations()
	if err != nil {
		return err
	}
	python, typescript := filepath.Join(dir, "python/src/glasshouse"), filepath.Join(dir, "typescript/src")
	for name, text := range map[string]string{
		filepath.Join(python, "wire.py"):              pythonTypes(d.Components.Schemas),
		filepath.Join(python, "_async/operations.py"): pythonOperations(ops),
		filepath.Join(typescript, "wire.ts"):          typescriptTypes(d.Components.Schemas),
		filepath.Join(typescript, "operations.ts"):    typescriptOperations(ops),
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

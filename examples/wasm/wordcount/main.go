//go:build wasip1

// Wordcount is a capability as a command: it reads its input from its standard
// input and writes its output to its standard output, once for each call.
//
//	GOOS=wasip1 GOARCH=wasm go build -o wordcount.wasm .
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

func main() {
	var input struct {
		Text string `json:"text"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		fmt.Fprintln(os.Stderr, "wordcount:", err)
		os.Exit(1)
	}
	words := strings.Fields(input.Text)
	longest := ""
	for _, w := range words {
		if len(w) > len(longest) {
			longest = w
		}
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"words": len(words), "longest": longest})
}

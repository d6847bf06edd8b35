package enforce_test

import "fmt"

func attackMain(args []string) int {
	fmt.Println(args)
	return 0
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
)

// answering returns a client of a server that sends the same response to every request.
func answering(status int, contentType, body string) (*client.Client, func()) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	c, err := client.New(client.Options{Addr: s.URL, Token: "secret"})
	if err != nil {
		panic(err)
	}
	return c, s.Close
}

func ExampleClient_Jails() {
	c, closeServer := answering(200, "application/json", `{"items":[{"id":"j-aaaaaaaaaaaa","name":"builder","state":"running"},{"id":"j-bbbbbbbbbbbb","name":"tester","state":"stopped"}]}`)
	defer closeServer()
	for j, err := range c.Jails(context.Background(), client.JailFilter{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(j.ID, j.Name, j.State)
	}
	// Output:
	// j-aaaaaaaaaaaa builder running
	// j-bbbbbbbbbbbb tester stopped
}

func ExampleCollect() {
	c, closeServer := answering(200, "application/json", `{"items":[{"name":"oci","available":true},{"name":"bwrap","available":true}]}`)
	defer closeServer()
	backends, err := client.Collect(c.Backends(context.Background()))
	fmt.Println(len(backends), err)
	// Output:
	// 2 <nil>
}

func ExampleClient_Exec() {
	c, closeServer := answering(200, "application/json", `{"id":"x-aaaaaaaaaaaa","exit_code":2,"stdout":"","stderr":"ls: no such file"}`)
	defer closeServer()
	x, err := c.Exec(context.Background(), "j-aaaaaaaaaaaa", wire.ExecRequest{Argv: []string{"ls", "/missing"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, stderr, err := client.Output(x)
	fmt.Printf("exit code %d, %q, %v\n", *x.ExitCode, stderr, err)
	// Output:
	// exit code 2, "ls: no such file", <nil>
}

// Errors have the kind and the remedy of the daemon's error.
func ExampleError() {
	c, closeServer := answering(404, "application/problem+json", `{"type":"/problems/not-found","title":"Not found","status":404,"detail":"no such jail","remedy":"list jails with glasshouse jail ls"}`)
	defer closeServer()
	_, err := c.Jail(context.Background(), "j-aaaaaaaaaaaa")
	fmt.Println(errors.Is(err, fault.NotFound), fault.RemedyOf(err))
	// Output:
	// true list jails with glasshouse jail ls
}

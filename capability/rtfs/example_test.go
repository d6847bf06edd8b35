package rtfs_test

import (
	"context"
	"fmt"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
)

func ExampleProgram_Run() {
	p, err := rtfs.New(rtfs.Config{}).Compile("sum.rtfs", []byte(`(reduce + 0 (map (fn [x] (* x x)) [1 2 3]))`))
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := p.Run(context.Background())
	fmt.Println(form.Text(v), err)
	// Output:
	// 14 <nil>
}

// greeter is a host with one capability.
type greeter struct{}

func (greeter) Call(_ context.Context, id string, input form.Value) (form.Value, error) {
	if id != "demo.greet" {
		return nil, fmt.Errorf("no capability %s", id)
	}
	return "hello, " + input.(string), nil
}

func ExampleHost() {
	p, err := rtfs.New(rtfs.Config{Host: greeter{}}).Compile("greet.rtfs", []byte(`(call "demo.greet" "world")`))
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := p.Run(context.Background())
	fmt.Println(v, err)
	// Output:
	// hello, world <nil>
}

func ExampleProgram_With() {
	p, err := rtfs.New(rtfs.Config{}).Compile("context.rtfs", []byte(`(str "project " (get :name))`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"a", "b"} {
		v, err := p.With(rtfs.Env{Context: form.NewMap(form.Keyword("name"), name)}).Run(context.Background())
		fmt.Println(v, err)
	}
	// Output:
	// project a <nil>
	// project b <nil>
}

func ExampleExhausted() {
	p, err := rtfs.New(rtfs.Config{Limits: rtfs.Limits{Steps: 1000}}).Compile("loop.rtfs", []byte(`(loop [n 0] (recur (+ n 1)))`))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = p.Run(context.Background())
	fmt.Println(rtfs.Exhausted(err))
	// Output:
	// steps true
}

func ExampleSession() {
	s := rtfs.New(rtfs.Config{}).Session()
	for _, line := range []string{`(def n 20)`, `(defn twice [x] (* 2 x))`, `(+ 2 (twice n))`} {
		v, err := s.Eval(context.Background(), "input", []byte(line))
		if err != nil {
			fmt.Println(err)
			return
		}
		if line[:4] != "(def" {
			fmt.Println(form.Text(v), s.Names())
		}
	}
	// Output:
	// 42 [n twice]
}

func ExampleProgram_Undefined() {
	p, err := rtfs.New(rtfs.Config{}).Compile("p.rtfs", []byte(`(+ 1 (missing 2))`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Undefined())
	// Output:
	// [missing]
}

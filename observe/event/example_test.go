package event_test

import (
	"fmt"

	"glasshouse/observe/event"
)

func ExampleParseFilter() {
	f, err := event.ParseFilter("type:file path:/etc -op:read ret:EACCES,EPERM")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range []event.Event{
		{Type: event.File, Op: event.OpOpen, Path: "/etc/shadow", Ret: -13},
		{Type: event.File, Op: event.OpOpen, Path: "/etc/passwd"},
		{Type: event.File, Op: event.OpOpen, Path: "/home/u/x", Ret: -13},
	} {
		fmt.Println(e.Path, f.Match(&e))
	}
	// Output:
	// /etc/shadow true
	// /etc/passwd false
	// /home/u/x false
}

func ExampleFilter_Types() {
	f, err := event.ParseFilter("host:*.example.com")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range f.Types() {
		fmt.Println(t)
	}
	// Output:
	// net
}

func ExampleEvent_AppendJSON() {
	e := event.Event{Type: event.Proc, Op: event.OpExec, Seq: 7, PID: 12, TID: 12, Comm: "ls", Exe: "/usr/bin/ls", Argv: []string{"ls", "-l"}, FD: -1}
	fmt.Printf("%s\n", e.AppendJSON(nil))
	// Output:
	// {"type":"proc","seq":7,"ts":0,"jail":"","op":"exec","pid":12,"tid":12,"host_pid":0,"comm":"ls","ppid":0,"uid":0,"gid":0,"exe":"/usr/bin/ls","argv":["ls","-l"]}
}

func ExampleParse() {
	var e event.Event
	err := event.Parse([]byte(`{"seq":3,"ts":1767225600000,"ns":5,"type":"net","dir":"egress","proto":"tcp","src":"10.0.0.2:4000","dst":"93.184.215.14:443","host":"example.com","bytes":60}`), &e)
	fmt.Println(e.Type, e.Host, e.Dst, err)
	// Output:
	// net example.com 93.184.215.14:443 <nil>
}

func ExampleSelection_Wants() {
	s := event.Selection{Syscalls: "security", Allow: []string{"getpid"}, Ignore: []string{"execve"}}.Defaults(event.Selection{})
	for _, call := range []string{"connect", "execve", "getpid", "read"} {
		fmt.Println(call, s.Wants(call))
	}
	// Output:
	// connect true
	// execve false
	// getpid true
	// read false
}

func ExampleFlags_Names() {
	fmt.Println((event.Denied | event.Cut).Names())
	// Output:
	// [denied cut]
}

func ExampleErrnoName() {
	fmt.Println(event.ErrnoName(-13), event.ErrnoName(-2))
	// Output:
	// EACCES ENOENT
}

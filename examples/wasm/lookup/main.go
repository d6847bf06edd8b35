//go:build wasip1

// Lookup is a capability as a handler: it starts once and answers requests. It calls another
// capability and, through the egress proxy, a web server.
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o lookup.wasm .
package main

import (
	"encoding/json"
	"unsafe"
)

func main() {} // never runs: a handler only initializes

// What a handler imports: questions and answers are JSON in its memory.

//go:wasmimport glasshouse fetch
func fetch(question unsafe.Pointer, length uint32) uint32

//go:wasmimport glasshouse call
func call(question unsafe.Pointer, length uint32) uint32

//go:wasmimport glasshouse answer
func answer(buffer unsafe.Pointer, length uint32) uint32

// ask asks the host, and reads its answer.
func ask(how func(unsafe.Pointer, uint32) uint32, question, to any) error {
	q, err := json.Marshal(question)
	if err != nil {
		return err
	}
	length := how(unsafe.Pointer(unsafe.SliceData(q)), uint32(len(q)))
	if length == 0 {
		return nil
	}
	a := make([]byte, length)
	answer(unsafe.Pointer(unsafe.SliceData(a)), length)
	return json.Unmarshal(a, to)
}

// The memory of the request and of the response, until the next one.
var request, response []byte

//go:wasmexport glasshouse_alloc
func alloc(size uint32) unsafe.Pointer {
	request = make([]byte, size)
	return unsafe.Pointer(unsafe.SliceData(request))
}

//go:wasmexport glasshouse_handle
func handle(_ unsafe.Pointer, _ uint32) uint64 {
	response = respond(request)
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(response))))<<32 | uint64(len(response))
}

type failure struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

func respond(text []byte) []byte {
	var r struct {
		Body struct {
			Word string `json:"word"`
			URL  string `json:"url"`
		} `json:"body"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return reply(400, err.Error())
	}
	var counted struct {
		Output json.RawMessage `json:"output"`
		Error  *failure        `json:"error"`
	}
	if err := ask(call, map[string]any{"id": "text.wordcount", "input": map[string]string{"text": r.Body.Word}}, &counted); err != nil {
		return reply(500, err.Error())
	}
	if counted.Error != nil {
		return reply(502, counted.Error.Message)
	}
	var page struct {
		Status int      `json:"status"`
		Body   string   `json:"body"`
		Error  *failure `json:"error"`
	}
	if err := ask(fetch, map[string]any{"url": r.Body.URL, "headers": map[string]string{"Accept": "text/plain"}}, &page); err != nil {
		return reply(500, err.Error())
	}
	if page.Error != nil {
		return reply(502, page.Error.Message)
	}
	return reply(200, map[string]any{"counted": counted.Output, "status": page.Status, "page": page.Body})
}

func reply(status int, body any) []byte {
	text, err := json.Marshal(map[string]any{"status": status, "body": body})
	if err != nil {
		return []byte(`{"status":500,"body":"the response cannot be written"}`)
	}
	return text
}

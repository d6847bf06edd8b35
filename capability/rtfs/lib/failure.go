package lib

import (
	"strings"
	"unicode"

	"glasshouse/capability/rtfs/form"
)

var failures = []Builtin{
	{"throw", 1, 1, "[x]", "Fails: with an error as it is, with a string as the message, or with any other value as the data of an ApplicationError.", func(_ Call, args []form.Value) (form.Value, error) { return nil, Thrown(args[0]) }},
	{"ex-info", 2, 3, "[message data cause?]", "An error to throw. Its kind is the :type of the data, or ApplicationError.", exInfo},
	{"Exception", 1, 2, "[message data?]", "An error to throw, of kind Exception.", exception},
	{"Exception.", 1, 2, "[message data?]", "The same as Exception.", exception},
	{"RuntimeError.", 1, 2, "[message data?]", "An error to throw, of kind RuntimeError.", errorOf("RuntimeError")},
	{"HostError.", 1, 2, "[message data?]", "An error to throw, of kind HostError.", errorOf("HostError")},
	{"ValidationError.", 1, 2, "[message data?]", "An error to throw, of kind ValidationError.", errorOf("ValidationError")},
	{"error", 1, 2, "[message data?]", "Throws an error of kind RuntimeError.", throwError},
	{"with-context", 2, 2, "[e context]", "The error with the entries of a map added to its data.", withContext},
	{"ex-message", 1, 1, "[e]", "The message of an error; nil for other values.", exField("message")},
	{"ex-data", 1, 1, "[e]", "The data of an error; nil if it has none.", exField("data")},
	{"ex-kind", 1, 1, "[e]", "The kind of an error, a string; nil for other values.", exField("kind")},
	{"ex-cause", 1, 1, "[e]", "The cause of an error, or nil.", exCause},
	{"getMessage", 1, 1, "[e]", "The message of an error, of a map with a :message, or a string itself.", getMessage},
}

// Thrown returns the error of (throw v).
func Thrown(v form.Value) *form.Error {
	switch v := v.(type) {
	case *form.Error:
		return v
	case string:
		return &form.Error{Kind: "ApplicationError", Message: v}
	case *form.Map:
		e := &form.Error{Kind: kindIn(v), Message: "thrown", Data: v}
		if message, ok := v.Get(form.Keyword("message")); ok && isText(message) {
			e.Message = message.(string)
		}
		return e
	}
	return &form.Error{Kind: "ApplicationError", Message: "thrown: " + describe(v), Data: v}
}

// kindIn returns the error kind in data, from its :type.
func kindIn(data form.Value) string {
	m, _ := data.(*form.Map)
	switch kind, _ := m.Get(form.Keyword("type")); kind := kind.(type) {
	case string:
		return kind
	case form.Keyword:
		return string(kind)
	case form.Symbol:
		return string(kind)
	}
	return "ApplicationError"
}

func exInfo(_ Call, args []form.Value) (form.Value, error) {
	message, err := text("ex-info", args, 0)
	if err != nil {
		return nil, err
	}
	e := &form.Error{Kind: kindIn(args[1]), Message: message, Data: args[1]}
	if len(args) > 2 {
		cause, ok := args[2].(*form.Error)
		if !ok && args[2] != nil {
			return nil, wrong("ex-info", 2, "an error", args[2])
		}
		if ok {
			e.Cause = cause
		}
	}
	return e, nil
}

var exception = errorOf("Exception")

// errorOf returns a function that makes errors of a kind.
func errorOf(kind string) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		message, err := text(kind, args, 0)
		if err != nil {
			return nil, err
		}
		e := &form.Error{Kind: kind, Message: message}
		if len(args) > 1 {
			e.Data = args[1]
		}
		return e, nil
	}
}

func throwError(c Call, args []form.Value) (form.Value, error) {
	v, err := errorOf("RuntimeError")(c, args)
	if err != nil {
		return nil, err
	}
	return nil, v.(*form.Error)
}

func withContext(c Call, args []form.Value) (form.Value, error) {
	e, ok := args[0].(*form.Error)
	if !ok {
		return nil, wrong("with-context", 0, "an error", args[0])
	}
	context, err := mapping("with-context", args, 1)
	if err != nil {
		return nil, err
	}
	data, ok := e.Data.(*form.Map)
	if !ok {
		data = form.NewMap()
		if e.Data != nil {
			data = data.With(form.Keyword("data"), e.Data)
		}
	}
	if err := charge(c, data.Len()+context.Len(), entry); err != nil {
		return nil, err
	}
	for k, v := range context.All() {
		data = data.With(k, v)
	}
	with := *e
	with.Data = data
	return &with, nil
}

// Class is the class of an error: HostError if the host could not do what a call asked
// for, ValidationError if a value is not of its type, otherwise RuntimeError.
func Class(e *form.Error) string {
	switch {
	case e.Kind == "RuntimeError", e.Kind == "HostError", e.Kind == "ValidationError":
		return e.Kind
	case e.Host:
		return "HostError"
	case e.Kind == "TypeValidationError":
		return "ValidationError"
	case e.Kind == "Exception":
		return ""
	}
	return "RuntimeError"
}

// errorType is the :type of an error: the one in its data, or its kind as a keyword.
func errorType(e *form.Error) form.Value {
	if data, ok := e.Data.(*form.Map); ok {
		if typ, ok := data.Get(form.Keyword("type")); ok {
			return typ
		}
	}
	switch {
	case e.Kind == "UnknownCapability":
		return form.Keyword("not-found")
	case e.Kind == "SecurityViolation":
		return form.Keyword("permission-denied")
	case e.Kind == "InvalidArgument" && e.Host:
		return form.Keyword("invalid-arguments")
	case e.Kind == "TypeValidationError":
		return form.Keyword("validation-error")
	}
	var dashed strings.Builder // TypeError: type-error
	for i, r := range e.Kind {
		if unicode.IsUpper(r) && i > 0 {
			dashed.WriteByte('-')
		}
		dashed.WriteRune(unicode.ToLower(r))
	}
	return form.Keyword(dashed.String())
}

// Fields returns an error as a map, for (:message e), match and destructuring.
func Fields(e *form.Error) *form.Map {
	return form.NewMap(
		form.Keyword("type"), errorType(e),
		form.Keyword("kind"), e.Kind,
		form.Keyword("message"), e.Message,
		form.Keyword("data"), e.Data,
	)
}

func exField(name form.Keyword) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		e, ok := args[0].(*form.Error)
		if !ok {
			return nil, nil
		}
		v, _ := Fields(e).Get(name)
		return v, nil
	}
}

func exCause(_ Call, args []form.Value) (form.Value, error) {
	if e, ok := args[0].(*form.Error); ok {
		if cause, ok := e.Cause.(*form.Error); ok {
			return cause, nil
		}
	}
	return nil, nil
}

func getMessage(_ Call, args []form.Value) (form.Value, error) {
	switch v := args[0].(type) {
	case *form.Error:
		return v.Message, nil
	case string:
		return v, nil
	case *form.Map:
		if message, ok := v.Get(form.Keyword("message")); ok {
			return message, nil
		}
	}
	return nil, wrong("getMessage", 0, "an error", args[0])
}

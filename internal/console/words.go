package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"

	"github.com/callq/callq/internal/admin"
)

const (
	mostData  = 64 << 10 // bytes of call_data or result that are shown
	mostError = 4 << 10
)

// words are the functions of the templates.
func words() template.FuncMap {
	return template.FuncMap{
		"number":   number,
		"instant":  instant,
		"ago":      admin.Ago,
		"short":    admin.Short,
		"dash":     admin.Dash,
		"text":     optional,
		"join":     strings.Join,
		"json":     func(data json.RawMessage) string { return cut(indented(data), mostData) },
		"cut":      func(text string) string { return cut(text, mostError) },
		"charges":  charges,
		"calls":    callsURL,
		"queueURL": func(name string) string { return pathTo("queues", "queue", name) },
		"limitURL": func(name string) string { return pathTo("limits", "", name) },
	}
}

// number writes 1234567 as 1,234,567.
func number(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func instant(at any) string {
	switch at := at.(type) {
	case time.Time:
		return admin.Instant(&at)
	case *time.Time:
		return admin.Instant(at)
	}
	return fmt.Sprint(at)
}

func optional(value any) string {
	switch value := value.(type) {
	case *string:
		return admin.Text(value)
	case *int:
		return admin.Text(value)
	}
	return fmt.Sprint(value)
}

// cut says what it leaves out.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + fmt.Sprintf("… (cut here: it has %s bytes; `callq calls get` shows all)", number(len(text)))
}

func indented(data json.RawMessage) string {
	if len(data) == 0 {
		return "-"
	}
	var text bytes.Buffer
	if err := json.Indent(&text, data, "", "  "); err != nil {
		return string(data)
	}
	return text.String()
}

// charges says which limits an attempt was charged to; what it cannot read it gives as it is.
func charges(data json.RawMessage) string {
	var list []struct {
		Limit, Key string
		Cost       int64
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return string(data)
	}
	texts := make([]string, len(list))
	for i, c := range list {
		texts[i] = c.Limit + " " + number(c.Cost)
		if c.Key != "" {
			texts[i] += " (key " + c.Key + ")"
		}
	}
	return admin.Dash(strings.Join(texts, ", "))
}

// callsURL leads to the list of calls with these parameters, name by value.
func callsURL(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	if len(values) == 0 {
		return "/calls"
	}
	return "/calls?" + values.Encode()
}

// pathTo leads to what has this name in a folder, or, where no browser would ask for the name as it is, to its
// calls.
func pathTo(folder, filter, name string) string {
	switch {
	case name != "" && name != "." && name != "..":
		return "/" + folder + "/" + url.PathEscape(name)
	case filter != "" && name != "":
		return callsURL(filter, name)
	}
	return "/calls"
}

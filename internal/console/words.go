package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"

	"github.com/callq/callq/internal/admin"
)

const (
	mostData  = 64 << 10 // bytes of call_data or result that are shown
	mostError = 4 << 10
)

// words returns the functions of the templates.
func words() template.FuncMap {
	return template.FuncMap{
		"number":   number,
		"ago":      admin.Ago,
		"short":    admin.Short,
		"dash":     admin.Dash,
		"text":     admin.Text,
		"join":     strings.Join,
		"json":     func(data json.RawMessage) string { return cut(indented(data), mostData) },
		"cut":      func(text string) string { return cut(text, mostError) },
		"calls":    callsURL,
		"queueURL": func(name string) string { return pathTo("queues", name) },
		"limitURL": func(name string) string { return pathTo("limits", name) },
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

// cut shortens a text, and says so.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") +
		fmt.Sprintf("… (cut here: it has %s bytes; `callq calls get` shows all)", number(len(text)))
}

func indented(data json.RawMessage) string {
	var text bytes.Buffer
	if err := json.Indent(&text, data, "", "  "); err != nil { // there is none
		return admin.Dash(string(data))
	}
	return text.String()
}

// callsURL is the address of the list of calls with these parameters, as pairs of a name and a value. The last value of
// a name counts; an empty one leaves it out.
func callsURL(pairs ...string) string {
	values := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		if values.Del(pair[0]); pair[1] != "" {
			values.Set(pair[0], pair[1])
		}
	}
	if len(values) == 0 {
		return "/calls"
	}
	return "/calls?" + values.Encode()
}

// pathTo is the address of what has this name in a folder.
func pathTo(folder, name string) string { return "/" + folder + "/" + url.PathEscape(name) }

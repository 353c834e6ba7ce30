package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

const (
	mostData  = 64 << 10 // bytes of call_data or result that are shown
	mostError = 4 << 10
)

// functions are those of the templates.
func (p *pages) functions() template.FuncMap {
	named := func(path string) func(string) string {
		return func(name string) string { return p.Prefix + path + url.PathEscape(name) }
	}
	return template.FuncMap{
		"number":  words.Number,
		"ago":     admin.Ago,
		"about":   admin.About,
		"short":   admin.Short,
		"dash":    admin.Dash,
		"text":    admin.Text,
		"when":    when,
		"join":    strings.Join,
		"count":   words.Count,
		"verb":    words.Verb,
		"begins":  strings.HasPrefix,
		"percent": limitPart,
		"code":    codeText,
		"json":    func(data json.RawMessage) string { return cut(indented(data), mostData) },
		"cut":     func(text string) string { return cut(text, mostError) },
		"at":      func(path string) string { return p.Prefix + path },
		"calls":   p.callsURL,
		"do":      p.doURL,
		"bulk": func(action string, pairs []string, back string) string {
			return p.doURL(action, append([]string{"back", back}, pairs...)...)
		},
		"back":      func(path, name string) string { return path + url.PathEscape(name) },
		"path":      p.callsPath,
		"queueURL":  named("/queues/"),
		"limitURL":  named("/limits/"),
		"keyURL":    named("/keys/"),
		"taskURL":   named("/tasks/"),
		"workerURL": named("/workers/"),
		"budgetURL": named("/budgets/"),
		"callURL":   func(id int64) string { return p.Prefix + "/calls/" + strconv.FormatInt(id, 10) },
		"charged":   charged,
		"int64":     func(n int) int64 { return int64(n) },
		"hundred":   func(part float64) float64 { return 100 * part },
	}
}

// when is a time, which a script shows as how long ago it was, or how soon it is.
func when(value any) template.HTML {
	text := admin.Text(value)
	at, err := time.Parse("2006-01-02 15:04:05Z", text)
	if err != nil {
		return template.HTML(template.HTMLEscapeString(text)) // #nosec G203 -- it is escaped
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`, at.Format(time.RFC3339), text)) // #nosec G203 -- a time
}

// charged is what an attempt was charged to.
func charged(text json.RawMessage) string {
	var charges []struct {
		Limit, Key string
		Cost       int64
	}
	if json.Unmarshal(text, &charges) != nil || len(charges) == 0 {
		return "-"
	}
	var list []string
	for _, c := range charges {
		of := c.Limit
		if c.Key != "" {
			of += " (" + admin.Short(c.Key) + ")"
		}
		list = append(list, fmt.Sprintf("%s: %s", of, words.Number(c.Cost)))
	}
	return strings.Join(list, ", ")
}

// codeText is an HTTP status; empty: there was none.
func codeText(code *int) string {
	if code == nil {
		return ""
	}
	return strconv.Itoa(*code)
}

func limitPart(percent float64) string { return strconv.FormatFloat(percent, 'g', 6, 64) + " %" }

// cut shortens a text, and marks that.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") +
		fmt.Sprintf("… (cut here: it has %s bytes; `callq calls get` shows all)", words.Number(len(text)))
}

func indented(data json.RawMessage) string {
	var text bytes.Buffer
	if err := json.Indent(&text, data, "", "  "); err != nil { // there is none
		return admin.Dash(string(data))
	}
	return text.String()
}

// callsURL is the address of the list of calls with these words of a search, as pairs of a name and a value.
func (p *pages) callsURL(pairs ...string) string {
	var search []string
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" || pair[0] == "key" || pair[0] == "shape" {
			search = append(search, pair[0]+":"+quoted(pair[1]))
		}
	}
	return p.Prefix + "/calls?" + url.Values{"q": {strings.Join(search, " ")}}.Encode()
}

// callsPath is callsURL without the prefix, to come back to.
func (p *pages) callsPath(pairs ...string) string {
	return strings.TrimPrefix(p.callsURL(pairs...), p.Prefix)
}

// quoted is a value of a search.
func quoted(value string) string {
	if value != "" && !strings.ContainsAny(value, " \t\n\"\\") && strconv.Quote(value) == `"`+value+`"` {
		return value
	}
	return strconv.Quote(value)
}

// doURL is the address of the form for an action, with what it acts on as pairs.
func (p *pages) doURL(action string, pairs ...string) string {
	values := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" || pair[0] == "key" || pair[0] == "shape" {
			values.Set(pair[0], pair[1])
		}
	}
	return p.Prefix + "/do/" + action + "?" + values.Encode()
}

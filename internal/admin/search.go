package admin

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/words"
)

// SearchWords are the words of a search, each with what follows its colon.
const SearchWords = "queue: key: task: status: code: error: limit: since:"

// searchStatuses are words for several statuses, or plainer ones.
var searchStatuses = map[string][]callqueue.Status{
	"waiting": {callqueue.StatusNew, callqueue.StatusError},
	"ended":   {callqueue.StatusDone, callqueue.StatusFailed, callqueue.StatusCancelled},
}

// ParseSearch reads a search such as
//
//	queue:payments status:failed,cancelled code:5xx error:"timed out" since:24h
//
// All words must hold. A value with a space stands in double quotes. since takes a duration before now, or a time; key:"" means
// calls without a key. shape, which the groups of dead letters use, is an error as a group has it. An error names the word that cannot be read.
func ParseSearch(text string, now time.Time) (f Filter, err error) {
	terms, err := searchTerms(text)
	if err != nil {
		return f, err
	}
	seen := map[string]bool{}
	for _, w := range terms {
		if seen[w.name] {
			return f, fmt.Errorf("%s: is there twice", w.name)
		}
		seen[w.name] = true
		if err := f.search(w.name, w.value, now); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f *Filter) search(name, value string, now time.Time) (err error) {
	if value == "" && name != "key" && name != "shape" {
		return fmt.Errorf("%s: has no value", name)
	}
	switch name {
	case "queue":
		f.Queue = value
	case "task":
		f.Task = value
	case "key":
		f.Key = &value
	case "error":
		f.Error = value
	case "shape":
		f.Shape = &value
	case "limit":
		f.Limit = value
	case "code":
		f.Codes, err = ParseCodes(value)
	case "status":
		for status := range strings.SplitSeq(value, ",") {
			switch several := searchStatuses[status]; {
			case several != nil:
				f.Statuses = append(f.Statuses, several...)
			case slices.Contains(callqueue.Statuses(), callqueue.Status(status)):
				f.Statuses = append(f.Statuses, callqueue.Status(status))
			default:
				return fmt.Errorf("status:%s is none: new, dispatched, done, error, failed, cancelled, waiting or ended", status)
			}
		}
	case "since":
		f.Since, err = parseSince(value, now)
	default:
		return fmt.Errorf("%q is no word of a search: %s", name, SearchWords)
	}
	return err
}

// parseSince reads a time, or how long ago it was.
func parseSince(text string, now time.Time) (*time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z", "2006-01-02T15:04", "2006-01-02"} {
		if at, err := time.Parse(layout, text); err == nil {
			return &at, nil
		}
	}
	ago, err := words.ParseDuration(text)
	if err != nil || ago <= 0 || ago > 3660*24*time.Hour {
		return nil, fmt.Errorf("since:%s is neither how long ago, such as 90m or 7d, nor a time, such as 2026-11-21T09:00:00Z", text)
	}
	at := now.Add(-ago)
	return &at, nil
}

// And is the filter with what another asks for as well. An error names what both ask for.
func (f Filter) And(other Filter) (Filter, error) {
	both, err := ParseSearch(f.Search()+" "+other.Search(), time.Time{})
	both.Before = max(f.Before, other.Before)
	return both, err
}

type searchTerm struct{ name, value string }

// searchTerms splits a search into its words.
func searchTerms(text string) (terms []searchTerm, err error) {
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		end := strings.IndexFunc(rest, func(r rune) bool { return r == ':' || unicode.IsSpace(r) })
		if end < 0 || rest[end] != ':' {
			word := rest
			if end >= 0 {
				word = rest[:end]
			}
			return nil, fmt.Errorf("%q: say what it is: key:%s, or another word of %s", Short(word), Short(word), SearchWords)
		}
		term := searchTerm{name: strings.ToLower(rest[:end])}
		if term.value, rest, err = searchValue(rest[end+1:]); err != nil {
			return nil, err
		}
		terms = append(terms, term)
	}
	return terms, nil
}

// searchValue takes a value, in quotes or up to a space, off a search.
func searchValue(text string) (value, rest string, err error) {
	if !strings.HasPrefix(text, `"`) {
		value, rest, _ = cutSpace(text)
		return value, rest, nil
	}
	quoted, err := strconv.QuotedPrefix(text)
	if err == nil {
		value, err = strconv.Unquote(quoted)
	}
	if err != nil {
		return "", "", errors.New(`a quotation mark is not closed: end the value with another "`)
	}
	return value, text[len(quoted):], nil
}

func cutSpace(text string) (before, after string, found bool) {
	if at := strings.IndexFunc(text, unicode.IsSpace); at >= 0 {
		return text[:at], text[at:], true
	}
	return text, "", false
}

// Search is the filter as ParseSearch reads it.
func (f Filter) Search() string {
	var found []string
	add := func(name, value string) {
		if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r == '"' || r == '\\' || !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
			value = strconv.Quote(value)
		}
		found = append(found, name+":"+value)
	}
	if f.Queue != "" {
		add("queue", f.Queue)
	}
	if f.Key != nil {
		add("key", *f.Key)
	}
	if f.Task != "" {
		add("task", f.Task)
	}
	if len(f.Statuses) > 0 {
		add("status", f.statusText())
	}
	if len(f.Codes) > 0 {
		add("code", f.CodesText())
	}
	if f.Error != "" {
		add("error", f.Error)
	}
	if f.Shape != nil {
		add("shape", *f.Shape)
	}
	if f.Limit != "" {
		add("limit", f.Limit)
	}
	if f.Since != nil {
		add("since", f.Since.UTC().Format(time.RFC3339))
	}
	return strings.Join(found, " ")
}

func (f Filter) statusText() string {
	for name, several := range searchStatuses {
		if slices.Equal(f.Statuses, several) {
			return name
		}
	}
	texts := make([]string, len(f.Statuses))
	for i, s := range f.Statuses {
		texts[i] = string(s)
	}
	return strings.Join(texts, ",")
}

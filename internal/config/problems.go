package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Error is everything that is wrong with a configuration, in the order of its sources.
type Error struct{ Problems []Problem }

// Problem is one mistake.
type Problem struct {
	Source  string `json:"source"`           // the file, variable or flag
	Line    int    `json:"line,omitempty"`   // in a file, from 1
	Column  int    `json:"column,omitempty"` // in characters, from 1
	Path    string `json:"path,omitempty"`   // limits.stripe.rate
	Message string `json:"message"`
	Allowed string `json:"allowed,omitempty"`

	rank int
	text string // the line, with what may be secret starred out
}

func (e *Error) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = p.String()
	}
	return strings.Join(texts, "\n")
}

// String shows the problem as compilers do:
//
//	config.yaml:7:18: limits.stripe.rate: a rate of 0 lets nothing through: pause the limit instead
//	    7 |   stripe: {rate: 0/h}
//	      |                  ^
//	      = allowed: units/window such as 100/h
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Place() + ": ")
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Line > 0 {
		text, before := around(p.text, p.Column-1)
		indent := strings.Map(func(r rune) rune {
			if r == '\t' {
				return r
			}
			return ' '
		}, firstRunes(text, before))
		fmt.Fprintf(&b, "\n%5d | %s\n      | %s^", p.Line, text, indent)
	}
	if p.Allowed != "" {
		b.WriteString("\n      = allowed: " + p.Allowed)
	}
	return b.String()
}

// around cuts a long line to what stands about the mistake, and returns how many characters are before that.
func around(line string, before int) (string, int) {
	const most = 160
	runes := []rune(line)
	if len(runes) <= most {
		return line, before
	}
	from := max(0, min(before-most/2, len(runes)-most))
	text := string(runes[from:min(from+most, len(runes))])
	if from+most < len(runes) {
		text += "…"
	}
	if from > 0 {
		return "…" + text, before - from + 1
	}
	return text, before
}

// Place is where the mistake stands: config.yaml:7:18, or a variable or flag.
func (p Problem) Place() string {
	if p.Line > 0 {
		return fmt.Sprintf("%s:%d:%d", p.Source, p.Line, p.Column)
	}
	return p.Source
}

func firstRunes(s string, n int) string {
	runes := []rune(s)
	return string(runes[:min(n, len(runes))])
}

func (l *loader) fail(at source, path, message, allowed string) {
	l.problems = append(l.problems, Problem{
		Source: at.name, Line: at.line, Column: at.column, Path: path, Message: message, Allowed: allowed, rank: at.rank,
	})
}

func (l *loader) failBy(at source, path string, err error) {
	if f, ok := errors.AsType[fault](err); ok {
		l.fail(at, path, f.message, f.allowed)
		return
	}
	l.fail(at, path, err.Error(), "")
}

// err sorts the problems and adds the lines, when all that must not be shown is known.
func (l *loader) err() error {
	slices.SortStableFunc(l.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Source, b.Source), cmp.Compare(a.Path, b.Path))
	})
	for i := range l.problems {
		if p := &l.problems[i]; p.Line > 0 {
			p.text = l.line(p.Line)
		}
	}
	return &Error{Problems: l.problems}
}

// span is a part of the file that must not be shown: length characters from line and column, or
// all that follows when length is 0 and it is open, or to the end of the line.
type span struct {
	line, column, length int
	open                 bool
}

// hideIfSecret hides the values under a refused key whose path sounds like a secret.
func (l *loader) hideIfSecret(n *yaml.Node, path string) {
	switch {
	case regexp.MustCompile(`(?i)^postgres|^redis|url|dsn|pass|secret|credential|(auth|token|key)$`).MatchString(path):
		l.hide(n)
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			l.hideIfSecret(n.Content[i+1], join(path, n.Content[i].Value))
		}
	case n.Kind == yaml.SequenceNode:
		for _, item := range n.Content {
			l.hideIfSecret(item, path)
		}
	}
}

// hide marks the scalars under a node as secret, but for the keys of a mapping.
func (l *loader) hide(n *yaml.Node) {
	for i, child := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 {
			l.hide(child)
		}
	}
	if n.Kind != yaml.ScalarNode || isOnlyVariable(n.Value) || n.Line < 1 || n.Line > len(l.lines) {
		return
	}
	s := span{line: n.Line, column: n.Column, open: true}
	rest := strings.TrimPrefix(l.lines[n.Line-1], firstRunes(l.lines[n.Line-1], n.Column-1))
	if n.Style == yaml.SingleQuotedStyle || n.Style == yaml.DoubleQuotedStyle {
		s.column++
		rest = rest[min(1, len(rest)):]
	}
	if strings.HasPrefix(rest, n.Value) { // written as it reads, on one line
		s.length, s.open = utf8.RuneCountInString(n.Value), false
		if s.length == 0 {
			return
		}
	}
	l.hidden = append(l.hidden, s)
}

func isOnlyVariable(s string) bool { return regexp.MustCompile(`^\$\{\w+\}$`).MatchString(s) }

// line returns a line of the file with a star for each character that may be of a secret.
func (l *loader) line(number int) string {
	runes := []rune(l.lines[min(number, len(l.lines))-1])
	star := func(from, to int) {
		for i := max(from, 0); i < min(to, len(runes)); i++ {
			runes[i] = '*'
		}
	}
	for _, s := range l.hidden {
		switch {
		case s.line == number && s.length > 0:
			star(s.column-1, s.column-1+s.length)
		case s.line == number:
			star(s.column-1, len(runes))
		case s.open && s.line < number:
			star(0, len(runes))
		}
	}
	text := string(runes)
	for _, m := range userinfo().FindAllStringIndex(text, -1) {
		from := utf8.RuneCountInString(text[:m[0]])
		star(from+len("://"), from+utf8.RuneCountInString(text[m[0]:m[1]])-1)
	}
	return string(runes)
}

// userinfo finds what may be a user and password in any text.
func userinfo() *regexp.Regexp { return regexp.MustCompile(`://[^\s"']*@`) }

// Quote shows a value in a message.
func Quote(s string) string {
	if len(s) > 80 {
		s = firstRunes(s, 80) + "…"
	}
	return strconv.Quote(userinfo().ReplaceAllString(s, "://…@"))
}

// Redact returns a connection string without its password, for people to read.
func Redact(s string) string {
	scheme, _, isURL := strings.Cut(s, "://")
	if !isURL {
		return regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|\S)*)`).ReplaceAllString(s, "${1}xxxxx")
	}
	u, err := url.Parse(s)
	if err != nil {
		return scheme + "://xxxxx"
	}
	query := u.Query()
	for key := range query {
		if strings.Contains(strings.ToLower(key), "password") {
			query.Set(key, "xxxxx")
			u.RawQuery = query.Encode()
		}
	}
	return u.Redacted()
}

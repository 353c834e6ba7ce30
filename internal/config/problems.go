package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Error is everything that is wrong with a configuration, in the order of its sources.
type Error struct{ Problems []Problem }

// Problem is one mistake.
type Problem struct {
	source
	Path    string `json:"path,omitempty"` // limits.stripe.rate
	Message string `json:"message"`
	Allowed string `json:"allowed,omitempty"`

	text []rune // the line, without secrets
}

// source is where a value or a mistake stands. The zero source is the default.
type source struct {
	Source string `json:"source"`           // the file, variable or flag
	Line   int    `json:"line,omitempty"`   // in a file, from 1
	Column int    `json:"column,omitempty"` // in characters, from 1
	rank   int
}

// Ranks of sources, the weakest first.
const (
	rankDefault = iota
	rankFile
	rankEnv
	rankFlag
)

func (s source) String() string {
	if s.Line > 0 {
		return fmt.Sprintf("%s:%d", s.Source, s.Line)
	}
	return cmp.Or(s.Source, "default")
}

func (e *Error) Error() string {
	var texts []string
	for _, p := range e.Problems {
		texts = append(texts, p.String())
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
	text := p.Place() + ": " + strings.TrimPrefix(p.Path+": "+p.Message, ": ")
	if p.Line > 0 {
		const most = 160 // of a long line, what stands about the mistake
		at := min(p.Column-1, len(p.text))
		from := max(0, min(at-most/2, len(p.text)-most))
		excerpt := string(p.text[from:min(from+most, len(p.text))])
		indent := regexp.MustCompile(`[^\t]`).ReplaceAllString(string(p.text[from:at]), " ")
		text += fmt.Sprintf("\n%5d | %s\n      | %s^", p.Line, excerpt, indent)
	}
	if p.Allowed != "" {
		text += "\n      = allowed: " + p.Allowed
	}
	return text
}

// Place is where the mistake stands: config.yaml:7:18, or a variable or flag.
func (p Problem) Place() string {
	if p.Line > 0 {
		return fmt.Sprintf("%s:%d:%d", p.Source, p.Line, p.Column)
	}
	return p.Source
}

func (l *loader) fail(at source, path, message, allowed string) {
	l.problems = append(l.problems, Problem{source: at, Path: path, Message: message, Allowed: allowed})
}

// err sorts the problems and adds their lines, now that all secrets in them are known.
func (l *loader) err() error {
	slices.SortStableFunc(l.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	for i, p := range l.problems {
		if p.Line > 0 {
			text := string(l.file.lines[p.Line-1])
			l.problems[i].text = []rune(credentials().ReplaceAllStringFunc(text, func(found string) string {
				return "://" + strings.Repeat("*", len([]rune(found))-len("://@")) + "@"
			}))
		}
	}
	return &Error{Problems: l.problems}
}

// credentials find what may be a user and password in any text, such as a comment.
func credentials() *regexp.Regexp { return regexp.MustCompile(`://[^\s"']*@`) }

// Quote shows a value in a message.
func Quote(s string) string {
	if runes := []rune(s); len(runes) > 80 {
		s = string(runes[:80]) + "…"
	}
	return strconv.Quote(credentials().ReplaceAllString(s, "://…@"))
}

// file is a file's lines, with a star for each character that may belong to a secret.
type file struct {
	name  string
	lines [][]rune
	next  map[*yaml.Node]*yaml.Node // what follows a node and all below it; nil: nothing
}

func newFile(name string, text []byte) *file {
	f := &file{name: name, next: map[*yaml.Node]*yaml.Node{}}
	for _, line := range lines(text) {
		f.lines = append(f.lines, []rune(line))
	}
	return f
}

// lines splits a text as YAML does.
func lines(text []byte) []string {
	return regexp.MustCompile(`\r\n|[\n\r\x{85}\x{2028}\x{2029}]`).Split(strings.TrimPrefix(string(text), "\uFEFF"), -1)
}

func (f *file) at(n *yaml.Node) source {
	if n == nil {
		return source{}
	}
	return source{f.name, n.Line, n.Column, rankFile}
}

// parse returns the document's root, or nil where there is none. Nodes keep their text: 0042 stays what it is.
func (l *loader) parse(text []byte) *yaml.Node {
	docs, err := documents(text)
	if err != nil {
		l.syntaxError(lines(text), err)
	}
	if len(docs) == 0 { // nothing, or only comments
		return nil
	}
	if len(docs) > 1 {
		l.fail(l.file.at(docs[1]), "", "a second document begins", "one document")
	}
	l.file.link(docs[0].Content[0], nil)
	return docs[0].Content[0]
}

func documents(text []byte) (docs []*yaml.Node, err error) {
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		if err := decoder.Decode(&doc); err != nil {
			if errors.Is(err, io.EOF) {
				return docs, nil
			}
			return nil, err
		}
		docs = append(docs, &doc)
	}
}

// syntaxError reports where the file stops being YAML. The parser's own line may be far before, so this
// looks for the first line without which the file is good so far. It hides all but keys.
func (l *loader) syntaxError(lines []string, err error) {
	line := len(lines) - 1
	for ; line > 0; line-- {
		if _, err := documents([]byte(strings.Join(lines[:line], "\n"))); err == nil {
			break
		}
	}
	for _, runes := range l.file.lines {
		from := indent(runes)
		if colon := slices.Index(runes, ':'); colon >= 0 {
			from = min(colon+2, len(runes))
		}
		copy(runes[from:], []rune(strings.Repeat("*", len(runes))))
	}
	message := regexp.MustCompile(`^yaml: (line \d+: )?`).ReplaceAllString(err.Error(), "")
	if strings.HasPrefix(message, "unknown anchor") { // it quotes the value
		message = "a value begins with * and is not quoted"
	}
	l.fail(source{l.file.name, line + 1, indent(l.file.lines[line]) + 1, rankFile}, "", "is not YAML: "+message, "")
}

func indent(line []rune) int {
	return max(0, slices.IndexFunc(line, func(r rune) bool { return !unicode.IsSpace(r) }))
}

// link records what follows each node in the file. An alias becomes what it stands for, in its own place.
func (f *file) link(n, next *yaml.Node) {
	f.next[n] = next
	if n.Kind == yaml.AliasNode {
		place := *n
		*n = *n.Alias
		n.Line, n.Column = place.Line, place.Column
		return // what is below it is linked where it stands
	}
	for _, child := range slices.Backward(n.Content) {
		f.link(child, next)
		next = child
	}
}

// hide stars out a node and what follows up to the next one: a comment may repeat a secret.
func (f *file) hide(n *yaml.Node) {
	if matches(`^\$\{\w+\}$`, n.Value) {
		return
	}
	next, from := f.next[n], n.Column-1
	for i := n.Line - 1; i < len(f.lines) && (next == nil || i < next.Line); i++ {
		line := f.lines[i]
		if next != nil && i == next.Line-1 {
			line = line[:len([]rune(strings.TrimRight(string(line[:min(next.Column-1, len(line))]), " ,]}")))]
		}
		copy(line[min(from, len(line)):], []rune(strings.Repeat("*", len(line))))
		if i+1 < len(f.lines) {
			from = indent(f.lines[i+1])
		}
	}
}

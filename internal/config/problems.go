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
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Error is everything that is wrong with a configuration, in the order of its sources.
type Error struct{ Problems []Problem }

// Problem is one mistake.
type Problem struct {
	source
	Path    string // limits.stripe.rate
	Message string
	Allowed string
}

// source is where a value or a mistake stands. The zero source is the default.
type source struct {
	Source string // the file, variable or flag
	Line   int    // in a file, from 1
	Column int    // in characters, from 1
	rank   int
	text   string // the value there, or where no key is known what stands there; empty: it is not shown
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
		return fmt.Sprintf("%s:%d:%d", s.Source, s.Line, s.Column)
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

// String shows the problem as compilers do, but of the line only what is known to hold no secret:
//
//	config.yaml:7:18: limits.stripe.rate: a rate of 0 lets nothing through: pause the limit instead
//	    7 | rate: "0/h"
//	      |       ^
//	      = allowed: units/window such as 100/h
func (p Problem) String() string {
	text := p.Place() + ": " + strings.TrimPrefix(p.Path+": "+p.Message, ": ")
	if p.Line > 0 {
		excerpt, caret := p.Path[strings.LastIndexByte(p.Path, '.')+1:]+":", 0
		switch {
		case p.Path == "":
			excerpt = p.text
		case p.text != "":
			caret = utf8.RuneCountInString(excerpt) + 1
			excerpt += " " + p.text
		}
		text += fmt.Sprintf("\n%5d | %s\n      | %*s^", p.Line, excerpt, caret, "")
	}
	if p.Allowed != "" {
		text += "\n      = allowed: " + p.Allowed
	}
	return text
}

// Place is where the mistake stands: config.yaml:7:18, or a variable or flag.
func (p Problem) Place() string { return p.source.String() }

func (l *loader) fail(at source, path, message, allowed string) {
	l.problems = append(l.problems, Problem{source: at, Path: path, Message: message, Allowed: allowed})
}

// err is all that is wrong, in order.
func (l *loader) err() error {
	slices.SortStableFunc(l.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Error{Problems: l.problems}
}

// Quote shows a value in a message, without what may be a user and password.
func Quote(s string) string {
	if runes := []rune(s); len(runes) > 80 {
		s = string(runes[:80]) + "…"
	}
	return strconv.Quote(regexp.MustCompile(`://[^\s"']*@`).ReplaceAllString(s, "://…@"))
}

// at is where a node stands in the file.
func (l *loader) at(n *yaml.Node) source {
	if n == nil {
		return source{}
	}
	return source{Source: l.config.File, Line: n.Line, Column: n.Column, rank: rankFile}
}

// parse returns the document's root, or nil where there is none. Nodes keep their text: 0042 stays what it is.
func (l *loader) parse(text []byte) *yaml.Node {
	docs, err := documents(text)
	if err != nil {
		l.syntaxError(text, err)
	}
	if len(docs) == 0 { // nothing, or only comments
		return nil
	}
	if len(docs) > 1 {
		l.fail(l.at(docs[1]), "", "a second document begins", "one document")
	}
	resolve(docs[0])
	return docs[0].Content[0]
}

// resolve puts what an alias stands for in its place.
func resolve(n *yaml.Node) {
	for _, child := range n.Content {
		resolve(child)
	}
	if n.Kind == yaml.AliasNode {
		line, column := n.Line, n.Column
		*n = *n.Alias
		n.Line, n.Column = line, column
	}
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
// finds the first line without which the file is good so far.
func (l *loader) syntaxError(text []byte, err error) {
	lines := regexp.MustCompile(`\r\n|[\n\r\x{85}\x{2028}\x{2029}]`).Split(strings.TrimPrefix(string(text), "\uFEFF"), -1) // as YAML does
	line := len(lines) - 1
	for ; line > 0; line-- {
		if _, err := documents([]byte(strings.Join(lines[:line], "\n"))); err == nil {
			break
		}
	}
	message := regexp.MustCompile(`^yaml: (line \d+: )?`).ReplaceAllString(err.Error(), "")
	if strings.HasPrefix(message, "unknown anchor") { // it quotes the value
		message = "a value begins with * and is not quoted"
	}
	indent := utf8.RuneCountInString(lines[line]) - utf8.RuneCountInString(strings.TrimLeftFunc(lines[line], unicode.IsSpace))
	at := source{Source: l.config.File, Line: line + 1, Column: indent + 1, rank: rankFile}
	if key, _, ok := strings.Cut(lines[line], ":"); ok {
		at.text = strings.TrimSpace(key) + ":"
	}
	l.fail(at, "", "is not YAML: "+message, "")
}

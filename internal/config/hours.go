package config

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/callq/callq/internal/hours"
)

// Hours are when a queue is open, as internal/hours writes them; empty: always.
type Hours string

func parseHours(texts ...string) (Hours, error) {
	h, err := hours.Parse(texts...)
	return Hours(h.String()), err
}

func isListOfHours(n *yaml.Node, v reflect.Value) bool {
	_, is := v.Interface().(Hours)
	return is && resolve(n).Kind == yaml.SequenceNode
}

// listOfHours reads spans from a list: what is wrong with one is said where it stands.
func (l *loader) listOfHours(n *yaml.Node, f reflect.StructField, v reflect.Value, path string) {
	at, allowed := l.at(n), f.Tag.Get("allowed")
	var texts []string
	items := resolve(n).Content
	for _, item := range items {
		text, ok := l.text(item, f, path)
		if !ok {
			continue
		}
		if _, err := parseHours(text); err != nil {
			l.failBy(l.at(item), path, fault{err.Error(), allowed})
			continue
		}
		texts = append(texts, text)
		if via := variablesIn(resolve(item).Value); via != "" && !strings.Contains(at.via, via) {
			at.via = strings.TrimPrefix(at.via+", "+via, ", ")
		}
	}
	l.from[path] = at
	if len(texts) < len(items) {
		return
	}
	all, err := parseHours(texts...)
	if err != nil {
		l.failBy(at, path, fault{err.Error(), allowed})
	}
	v.Set(reflect.ValueOf(all))
}

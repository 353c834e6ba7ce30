package config

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/callq/callq/internal/budget"
)

// What no value shows by itself: whether those of a section fit together.

// section is where a section stands.
type section struct {
	*loader
	path string
	from source
}

func (s section) get(key string) *setting { return s.config.origin.byPath[join(s.path, key)] }

func (s section) given(key string) bool { return s.get(key).from.rank > rankDefault }

// require refuses a section that has none of some keys, and lists of them that are empty.
func (s section) require(keys ...string) {
	if !slices.ContainsFunc(keys, s.given) {
		s.fail(s.from, s.path, "has no "+strings.Join(keys, " and no "), keys[0]+": "+s.get(keys[0]).allowed())
	}
	for _, key := range keys {
		list := s.get(key)
		reported := slices.ContainsFunc(s.problems, func(p Problem) bool { return p.Path == list.path })
		if s.given(key) && list.value.Kind() == reflect.Slice && len(list.items) == 0 && !reported {
			s.refuse(key, "", "is empty", list.allowed())
		}
	}
}

// refuse reports a mistake of a key, or of one item of it.
func (s section) refuse(key, item, message, allowed string) {
	at := s.get(key).from
	for _, it := range s.get(key).items {
		if item != "" && (it.key == item || it.text == item) {
			at = it.from
		}
	}
	s.fail(at, join(s.path, key), message, allowed)
}

func (q *Queue) check(s section) {
	for _, name := range q.Limits {
		if _, ok := s.config.Limits[name]; !ok {
			known := slices.Sorted(maps.Keys(s.config.Limits))
			allowed := cmp.Or(strings.Join(known, ", "), "none: the file has no limits")
			s.refuse("limits", name, Quote(name)+" is not a limit", allowed)
		}
	}
}

func (b *Budget) check(s section) {
	s.require("rate")
	if err := (budget.Rule{Rate: b.Rate, Burst: int64(b.Burst)}).Check(); err != nil && b.Rate.Units > 0 {
		s.refuse("rate", "", err.Error(), "a smaller burst or a higher rate")
	}
}

func (w *Worker) check(s section) {
	const most = 64 // as tasks.New and the table have it
	if n := len(w.Labels); n > most {
		s.refuse("labels", "", fmt.Sprintf("has %d labels", n), fmt.Sprintf("%d at most", most))
	}
}

func (x *Secret) check(s section) {
	s.require("env", "file")
	s.require("hosts")
	if x.Env != "" && x.File != "" {
		s.refuse("file", "", "is given beside env", "one of them")
	}
}

// SecretValues reads what http_task.secrets point to, by name. Only a worker needs them, so a file that
// names one is good on machines that lack it. The error is an *Error with all that cannot be read.
func (c *Config) SecretValues() (map[string]string, error) {
	values, failed := map[string]string{}, &Error{}
	for _, name := range slices.Sorted(maps.Keys(c.HTTPTask.Secrets)) {
		secret, path := c.HTTPTask.Secrets[name], "http_task.secrets."+name
		p := Problem{Path: path + ".env", Message: "the variable that it names is not set"} // no name: it may be the secret
		values[name] = strings.TrimSpace(c.origin.env[secret.Env])
		if secret.File != "" {
			text, err := readSecret(secret.File)
			if values[name], p.Path = text, path+".file"; err != nil {
				p.Message = "cannot be read: " + reason(err)
			}
		}
		if p.Source = c.Origin(p.Path); values[name] == "" {
			failed.Problems = append(failed.Problems, p)
		}
	}
	if len(failed.Problems) > 0 {
		return nil, failed
	}
	return values, nil
}

package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
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

// require refuses a section that has none of some keys.
func (s section) require(keys ...string) {
	if !slices.ContainsFunc(keys, s.given) {
		s.fail(s.from, s.path, "has no "+strings.Join(keys, " and no "), keys[0]+": "+s.get(keys[0]).allowed())
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

func (x *Limit) check(s section) {
	s.require("rate", "concurrency")
	spec := limit.Spec{
		Rates: x.Rate, Concurrency: int64(x.Concurrency),
		Algorithm: limit.Algorithm(x.Algorithm), Burst: int64(x.Burst), Timezone: x.Timezone,
		PerKey: x.Per != "", ByCost: x.Count != "", Overrides: x.Overrides, Anchor: x.Anchor, Slack: x.Slack, SendWithin: x.SendWithin,
	}
	if s.given("burst") && x.Burst == 0 {
		return // that was reported
	}
	windows, mistakes := spec.Windows()
	for _, m := range mistakes {
		s.refuse(m.Key, m.Item, m.Message, m.Allowed)
	}
	x.Windows, x.Rate = windows, nil
	for i, w := range windows {
		if i == 0 {
			x.Slack, x.SendWithin = w.Slack, w.SendWithin
		}
		if x.Concurrency > 0 {
			x.Anchor = limit.AnchorFinish
		} else {
			x.Rate = append(x.Rate, w.Rate.String())
		}
	}
}

func (q *Queue) check(s section) {
	for _, name := range q.Limits {
		if _, ok := s.config.Limits[name]; !ok {
			known := slices.Sorted(maps.Keys(s.config.Limits))
			allowed := cmp.Or(strings.Join(known, ", "), "none: the file has no limits")
			s.refuse("limits", name, Quote(name)+" is not a limit"+didYouMean(name, known), allowed)
		}
	}
	reported := func(text string) bool { return checkHours(text) != nil }
	if h, err := hours.Parse(q.Hours...); err == nil {
		q.Hours = Hours{h.String()}
	} else if len(q.Hours) > 0 && !slices.ContainsFunc(q.Hours, reported) {
		s.refuse("hours", "", err.Error(), s.get("hours").allowed())
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
	if s.given("hosts") && len(s.get("hosts").items) == 0 {
		s.refuse("hosts", "", "is empty: no call could use it", s.get("hosts").allowed())
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

package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Path reads a path in call_data: $.customer.id is customer, id. Not ok: the text is none.
func Path(text string) (names []string, ok bool) {
	rest, ok := strings.CutPrefix(text, "$.")
	if !ok || !matches(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`, rest) {
		return nil, false
	}
	return strings.Split(rest, "."), true
}

func checkRouteKey(s string) error {
	if strings.HasPrefix(s, "$") {
		_, ok := Path(s)
		return unless(ok, s, "is not a path in call_data")
	}
	return unless(len(s) <= 255, s, "is longer than 255 bytes")
}

func checkRouteCost(s string) error {
	_, isPath := Path(s)
	return unless(isPath || matches(`^[1-9][0-9]{0,11}$`, s), s, "is no cost")
}

// mostFields bounds how many combinations of values of call_data's fields a route may name.
const mostFields = 1000

// check refuses a route that does nothing, or that leads nowhere.
func (r *Route) check(s section) {
	sets := slices.ContainsFunc([]string{"queue", "task", "priority", "cost", "key", "run_at", "expires_in"}, func(key string) bool { return s.given("set." + key) })
	switch {
	case r.Discard != "" && sets:
		s.refuse("discard", "", "is given beside set: a discarded call goes nowhere", "one of them")
	case r.Discard != "" && r.Continue:
		s.refuse("continue", "", "is given beside discard: no rule comes after it", "one of them")
	case r.Discard == "" && !sets:
		s.fail(s.from, s.path, "does nothing", "set or discard")
	}
	combinations := 1
	for _, path := range slices.Sorted(maps.Keys(r.Match.JSON)) {
		combinations *= max(1, 2*len(r.Match.JSON[path]))
		if _, ok := Path(path); !ok {
			s.refuse("match.json", path, Quote(path)+" is not a path in call_data", "$.name, $.name.name: names of A-Z, a-z, 0-9, _ and -")
		}
	}
	if combinations > mostFields {
		s.refuse("match.json", "", fmt.Sprintf("has %d combinations of values", combinations), fmt.Sprintf("%d at most: make several rules of it", mostFields))
	}
}

// check refuses routes to queues that are not there, and those that lead back to where one that goes on has taken a call from.
func (c *Config) checkRoutes(s section) {
	for i, r := range c.Routes {
		if slices.ContainsFunc(c.Routes[:i], func(before Route) bool { return reflect.DeepEqual(before, r) }) {
			s.fail(s.from, fmt.Sprintf("routes[%d]", i), "is the same as one before it", "each rule once")
		}
		at := section{s.loader, fmt.Sprintf("routes[%d].set", i), s.from}
		if _, is := c.Queues[r.Set.Queue]; r.Set.Queue != "" && !is {
			at.refuse("queue", "", Quote(r.Set.Queue)+" is not a queue", strings.Join(slices.Sorted(maps.Keys(c.Queues)), ", "))
		}
		for j, before := range c.Routes[:i] {
			if before.Continue && before.Set.Queue != "" && before.Set.Queue != r.Set.Queue && slices.Contains(before.Match.Queue, r.Set.Queue) &&
				(len(r.Match.Queue) == 0 || slices.Contains(r.Match.Queue, before.Set.Queue)) {
				at.refuse("queue", "", fmt.Sprintf("takes calls back to %s, from where routes[%d] takes them and goes on (continue)", Quote(r.Set.Queue), j), "another queue")
			}
		}
	}
}

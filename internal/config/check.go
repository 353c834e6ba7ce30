package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/callq/callq/internal/budget"
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

// given reports whether a key was given a value. An empty list is none.
func (s section) given(key string) bool {
	x := s.get(key)
	return x.from.rank > rankDefault && (len(x.items) > 0 || x.value.Kind() != reflect.Slice)
}

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

// check holds sections against one another.
func (c *Config) check(s section) {
	c.checkRoutes(s)
	for _, name := range slices.Sorted(maps.Keys(c.Limits)) {
		x := c.Limits[name]
		x.checkShares(section{s.loader, "limits." + name, s.from}, name)
		c.Limits[name] = x
	}
}

// check makes windows of what a limit's keys mean together. Rates and overrides that mean nothing by themselves are reported
// already, and left out.
func (x *Limit) check(s section) {
	s.require("rate", "concurrency")
	if s.given("burst") && x.Burst == 0 || x.conflict(s) {
		return // that was reported
	}
	if x.Concurrency > 0 {
		x.Windows = []Window{{Rate: limit.Rate{Units: int64(x.Concurrency)}}}
	}
	for _, text := range x.Rate {
		rate, err := limit.ParseShape(text, x.shape())
		if err != nil {
			s.refuse("rate", text, err.Error(), "")
			continue
		}
		x.Windows = append(x.Windows, Window{Rate: rate})
	}
	slices.SortStableFunc(x.Windows, func(a, b Window) int { return cmp.Compare(a.Rate.Window, b.Rate.Window) })
	x.Rate = nil
	for i := range x.Windows {
		w := &x.Windows[i]
		if i > 0 {
			w.Suffix = "/" + w.Rate.Length()
			if w.Rate.Length() == x.Windows[i-1].Rate.Length() {
				s.refuse("rate", "", "has two rates of one window: write the smaller one", "")
			}
		}
		if x.Concurrency == 0 {
			x.Rate = append(x.Rate, w.Rate.String())
		}
		w.Overrides = x.overridesIn(s, w.Rate)
	}
}

// shape is that of the rates. What is spread is a leaky bucket.
func (x *Limit) shape() limit.Shape {
	s := limit.Shape{Algorithm: limit.Algorithm(x.Algorithm), Burst: int64(x.Burst), Timezone: x.Timezone, Tolerance: x.Tolerance}
	if x.Spread {
		if s.Algorithm == limit.FixedWindow {
			s.Timezone = cmp.Or(s.Timezone, "UTC")
		}
		s.Algorithm = limit.LeakyBucket
	}
	return s
}

// conflict reports the first of the keys that do not go together.
func (x *Limit) conflict(s section) bool {
	algorithm := limit.Algorithm(x.Algorithm)
	t, kept, name := algorithm.Traits(), x.shape().Algorithm.Traits(), "a "+algorithm.Words()
	if x.Spread {
		name = "a limit with spread"
	}
	for _, c := range []struct {
		holds        bool
		key, message string
	}{
		{x.Concurrency > 0 && len(x.Rate) > 0, "concurrency", "is given beside rate: make two limits, and queues that use both"},
		{x.Concurrency > 0 && algorithm != limit.SlidingWindow, "algorithm", x.Algorithm + " applies to rates only"},
		{x.Concurrency > 0 && x.Spread, "spread", "applies to rates only"},
		{x.Concurrency > 0 && x.Anchor == limit.AnchorStart, "anchor", "start applies to rates only: a call counts until it has ended"},
		{x.Spread && !t.Spread, "spread", only(hasSpread)},
		{t.Burst && x.Burst == 0, "algorithm", name + " needs a burst: what it holds"},
		{!t.Burst && x.Burst != 0, "burst", only(hasBurst)},
		{!t.Timezone && x.Timezone != "", "timezone", only(hasTimezone)},
		{!kept.Tolerance && x.Tolerance != 0, "tolerance", "applies to algorithm: leaky_bucket, or with spread: true, only"},
		{kept.OneByOne && x.Count != "", "count", name + " lets one through after another, whatever it costs"},
		{len(x.Rate) > 1 && kept.OneRate, "rate", name + " has one rate"},
		{len(x.Overrides) > 0 && x.Per == "", "overrides", "apply to limits with per: key only"},
		{len(x.Overrides) > 0 && (kept.OneRate || len(x.Rate) > 1), "overrides", "do not apply to " + name + ", nor to several rates"},
	} {
		if c.holds {
			s.refuse(c.key, "", c.message, "")
			return true
		}
	}
	return false
}

func hasBurst(t limit.Traits) bool    { return t.Burst }
func hasTimezone(t limit.Traits) bool { return t.Timezone }
func hasSpread(t limit.Traits) bool   { return t.Spread }

// only is of a key that the other algorithms do not have.
func only(has func(limit.Traits) bool) string {
	return "applies to algorithm: " + algorithms(", ", has) + " only"
}

// overridesIn are the units that some keys have of a rate's window.
func (x *Limit) overridesIn(s section, of limit.Rate) map[string]int64 {
	own := map[string]int64{}
	for _, key := range slices.Sorted(maps.Keys(x.Overrides)) {
		units, err := x.units(x.Overrides[key], of)
		if err != nil {
			const allowed = "a rate of the limit's window, or a whole number for a concurrency"
			s.refuse("overrides", key, fmt.Sprintf("of key %.80q: %v", key, err), allowed)
			continue
		}
		own[key] = units
	}
	return own
}

// units reads an override: the calls at once, or the units in the limit's window.
func (x *Limit) units(text string, of limit.Rate) (int64, error) {
	if x.Concurrency > 0 {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, unless(err == nil, text, "is not a number of calls at once")
	}
	rate, err := limit.Parse(text, limit.Algorithm(x.Algorithm), 0, x.Timezone)
	if err == nil && rate.Span() != of.Span() {
		err = fmt.Errorf("%q is of another window than the limit's, %s", text, of.Length())
	}
	return rate.Units, err
}

// checkShares works out the parts of a limit's shares. What is no part by itself is reported already.
func (x *Limit) checkShares(s section, name string) {
	shares := limit.Shares{}
	for of, text := range x.Shares {
		part, err := limit.ParsePart(text)
		if err != nil {
			return
		}
		shares[of] = part
	}
	var queues []string
	for queue, q := range s.config.Queues {
		if slices.Contains(q.Limits, name) {
			queues = append(queues, queue)
		}
	}
	var of string
	var err error
	if x.Parts, of, err = shares.Complete(queues); err != nil {
		allowed := append(slices.Sorted(slices.Values(queues)), `"priority 0-2"`, limit.Retries, limit.Rest)
		s.refuse("shares", of, err.Error(), strings.Join(allowed, ", "))
	}
}

func (q *Queue) check(s section) {
	for _, name := range q.Limits {
		if _, ok := s.config.Limits[name]; !ok {
			known := slices.Sorted(maps.Keys(s.config.Limits))
			allowed := cmp.Or(strings.Join(known, ", "), "none: the file has no limits")
			s.refuse("limits", name, Quote(name)+" is not a limit", allowed)
		}
	}
	q.checkNeeds(s)
}

func (q *Queue) checkNeeds(s section) {
	for name, text := range q.Needs {
		n, _ := parseInt(text) // it was checked
		switch b, ok := s.config.Budgets[name]; {
		case !ok:
			known := slices.Sorted(maps.Keys(s.config.Budgets))
			s.refuse("needs", name, Quote(name)+" is not a budget", cmp.Or(strings.Join(known, ", "), "none: the file has no budgets"))
		case b.Rule.Rate.Units == 0: // that was reported
		case int64(n) > b.Rule.LeastMost():
			s.refuse("needs", name, fmt.Sprintf("%s has %d at once", Quote(name), b.Rule.LeastMost()), "no more than that")
		}
	}
}

func (b *Budget) check(s section) {
	s.require("rate")
	if b.Rate.Units == 0 || b.Burst == 0 {
		return // that was reported
	}
	algorithm := limit.Algorithm(b.Algorithm)
	units, window := b.Rate.Written()
	text := fmt.Sprintf("%d/%s", units, window)
	rule, err := budget.Parse(text, algorithm, int64(b.Burst), b.Timezone)
	if err != nil {
		s.refuse("rate", "", err.Error(), "")
		return
	}
	t := algorithm.Traits()
	for _, c := range []struct {
		holds        bool
		key, message string
	}{
		{!t.Burst && s.given("burst"), "burst", only(hasBurst)},
		{!t.Timezone && b.Timezone != "", "timezone", only(hasTimezone)},
		{len(b.Overrides) > 0 && b.Per == "", "overrides", "apply to budgets with per: key only"},
	} {
		if c.holds {
			s.refuse(c.key, "", c.message, "")
			return
		}
	}
	rule.PerKey = b.Per == "key"
	own := (&Limit{Overrides: b.Overrides, Algorithm: string(rule.Algorithm), Timezone: b.Timezone}).overridesIn(s, limit.Rate{Units: rule.Rate.Units, Window: rule.Rate.Window})
	if len(own) > 0 {
		rule.Overrides = own
	}
	if err := rule.Check(); err != nil {
		s.refuse("rate", "", err.Error(), "a smaller burst, or a higher rate")
	}
	b.Rule = rule
}

func (x *Secret) check(s section) {
	s.oneOf("env", "file")
	s.require("hosts")
}

func (x *Token) check(s section) { s.oneOf("env", "file") }

// oneOf refuses a section that has none of some keys, or two.
func (s section) oneOf(keys ...string) {
	s.require(keys...)
	if s.given(keys[0]) && s.given(keys[1]) {
		s.refuse(keys[1], "", "is given beside "+keys[0], "one of them")
	}
}

// ErrOpen is why callq does not listen where others could read the pages.
var ErrOpen = errors.New("other machines reach this address, and nobody has to log in")

// OpenFix is what to do about it.
const OpenFix = "set http.auth, or http.pages: false, or listen on 127.0.0.1"

func (h *HTTP) check(s section) {
	host, _, err := net.SplitHostPort(h.Listen)
	if err != nil || !h.Pages || h.Auth.Closed() {
		return
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && !ip.IsLoopback() {
		s.refuse("listen", "", ErrOpen.Error(), OpenFix)
	}
}

// TokenValues reads what http.auth.tokens point to, by name, as SecretValues does.
func (c *Config) TokenValues() (map[string]string, error) {
	points := map[string]pointer{}
	for name, t := range c.HTTP.Auth.Tokens {
		points[name] = pointer{t.Env, t.File}
	}
	return c.pointed("http.auth.tokens.", points)
}

// SecretValues reads what http_task.secrets point to, by name. Only a worker needs them, so a file that
// names one is good on machines that lack it. The error is an *Error with all that cannot be read.
func (c *Config) SecretValues() (map[string]string, error) {
	points := map[string]pointer{}
	for name, s := range c.HTTPTask.Secrets {
		points[name] = pointer{s.Env, s.File}
	}
	return c.pointed("http_task.secrets.", points)
}

// pointer is where a secret is: in a variable, or a file.
type pointer struct{ env, file string }

func (c *Config) pointed(section string, points map[string]pointer) (map[string]string, error) {
	values, failed := map[string]string{}, &Error{}
	for _, name := range slices.Sorted(maps.Keys(points)) {
		secret, path := points[name], section+name
		p := Problem{Path: path + ".env", Message: "the variable that it names is not set"} // no name: it may be the secret
		values[name] = strings.TrimSpace(c.origin.env[secret.env])
		if secret.file != "" {
			text, err := readSecret(secret.file)
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

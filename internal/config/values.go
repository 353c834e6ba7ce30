package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/words"
)

// parse reads a value by the setting's type, or an item of its list or mapping.
func (s *setting) parse(text string) (reflect.Value, error) {
	var value any = text
	var err error
	switch s.value.Interface().(type) {
	case int:
		value, err = within(text, s.allowed(), parseInt)
	case time.Duration:
		bounds, answer := strings.CutSuffix(s.allowed(), "|answer")
		if answer && text == "answer" {
			return reflect.ValueOf(Answer), nil
		}
		value, err = within(text, bounds, words.ParseDuration)
	case Bytes:
		value, err = within(text, s.allowed(), parseBytes)
	case Backoff:
		value, err = parseBackoff(text, s.allowed())
	case limit.Rate:
		value, err = limit.ParseAny(text)
	case bool:
		value, err = text == "true", s.check(text)
	default:
		err = s.check(text)
	}
	return reflect.ValueOf(value), err
}

// check holds text against the setting's rule, or its choices.
func (s *setting) check(text string) error {
	if rule := ruleOf(s.tag("check")); rule.check != nil {
		return rule.check(text)
	}
	choices := s.allowed()
	return unless(choices == "" || slices.Contains(strings.Split(choices, "|"), text), text, "is not allowed")
}

func unless(good bool, text, why string) error {
	if good {
		return nil
	}
	return errors.New(Quote(text) + " " + why)
}

// within parses text and holds it against bounds: 1s..1d, or 1s..1d|off where off is 0.
func within[T cmp.Ordered](text, bounds string, parse func(string) (T, error)) (value T, err error) {
	bounds, off := strings.CutSuffix(bounds, "|off")
	if off && text == "off" {
		return value, nil
	}
	if value, err = parse(text); err != nil {
		return value, err
	}
	lo, hi, _ := strings.Cut(bounds, "..")
	least, _ := parse(lo) // bounds are as they must be: Default uses them
	most, _ := parse(hi)
	return value, unless(value >= least && value <= most, text, "is out of bounds")
}

// parseInt reads 10000, and 10_000 as rates have it.
func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(regexp.MustCompile(`(\d)_(\d)`).ReplaceAllString(s, "$1$2"))
	return n, unless(err == nil, s, "is not a whole number")
}

func parseBytes(s string) (Bytes, error) {
	number := strings.TrimRight(s, "KMiB ")
	shift, ok := map[string]int{"": 0, "KiB": 10, "MiB": 20}[strings.TrimSpace(s[len(number):])]
	n, err := strconv.ParseInt(number, 10, 64)
	return Bytes(n << shift), unless(ok && err == nil && n <= math.MaxInt64>>shift, s,
		"is not a size: write 256KiB, 1MiB or a number of bytes")
}

// parseBackoff reads min..max, or one duration for a wait that does not grow.
func parseBackoff(s, bounds string) (b Backoff, err error) {
	lo, hi, ok := strings.Cut(s, "..")
	if !ok {
		hi = lo
	}
	if b.Min, err = within(strings.TrimSpace(lo), bounds, words.ParseDuration); err == nil {
		b.Max, err = within(strings.TrimSpace(hi), bounds, words.ParseDuration)
	}
	return b, cmp.Or(err, unless(b.Min <= b.Max, s, "ends before it begins"))
}

// rule is what a text must be, and how a person is told. Without a check it is one of the words that are told. The tag check names it.
type rule struct {
	check   func(string) error
	allowed string
}

func ruleOf(name string) rule {
	const times = `minute hour day month weekday, such as "0 4 * * *", or @daily, or "@every 10s" in whole seconds`
	const escapes = "; @ : / ? in a password as %40 %3A %2F %3F"
	calendars := algorithms(", ", hasTimezone)
	return map[string]rule{
		"algorithm":        {nil, algorithms("|", func(limit.Traits) bool { return true })},
		"budget_algorithm": {nil, algorithms("|", func(t limit.Traits) bool { return budget.Keeps(t.Name) })},
		"any":              {func(string) error { return nil }, ""},
		"address":          {checkAddress, "a name, an address, or a network such as 10.0.0.0/8"},
		"budget_rate":      {checkRate, "units/window such as 100/s, 10/500ms, 90_000/m; ms s m h d w, and mo for " + calendars},
		"cron":             {checkCron, times},
		"cron_or_off":      {checkCronOrOff, times + ", or off"},
		"host":             {checkHost, "a name or an address without scheme, port and path"},
		"header":           {checkHeader, "a header's name, such as x-ratelimit-reset; one that ends in * stands for all that begin so"},
		"hours": {checkHours, "[days] HH:MM-HH:MM [zone], several joined by commas: " +
			"Mon-Fri 09:00-18:00, Sat 10:00-14:00 Europe/Berlin"},
		"cost":        {checkRouteCost, "a whole number from 1 on, or a path in call_data such as $.tokens"},
		"method":      {func(s string) error { return unless(matches(`^[A-Z]+$`, s), s, "is not a method") }, "GET, POST and so on, in capitals"},
		"priority":    {func(s string) error { return unless(matches(`^[0-9]$`, s), s, "is no priority") }, "0..9"},
		"role":        {checkRole, "users with viewer, operator or admin, such as {alice: admin}"},
		"route_key":   {checkRouteKey, "text of at most 255 bytes, or a path in call_data such as $.customer"},
		"listen":      {checkListen, "host:port (port 0: any free one), :port for every interface, or off"},
		"header_name": {func(s string) error { return unless(matches(`^[A-Za-z0-9_-]{1,100}$`, s), s, "is not a header's name") }, "a header's name, such as X-Forwarded-User"},
		"network":     {checkNetwork, "an address, or a network such as 10.0.0.0/8"},
		"need":        {checkNeed, "budgets with how many units each call draws, such as {search-api: 3}"},
		"name":        {checkName, "1 to 100 bytes without spaces, quotes, commas and stars"},
		"override":    {checkOverride, "keys with rates, or with numbers for a concurrency, such as {acct_1: 50/s}"},
		"postgres":    {checkPostgres, "postgres://user:password@host:port/database?sslmode=…, or host=… user=… dbname=…" + escapes},
		"rate": {checkRate, "units/window such as 100/h, 5/s, 10/500ms, 1_000/d, 100 per 1h; ms s m h d w, " +
			"and mo for " + calendars + "; or a list of them"},
		"redis": {checkRedis, "redis://user:password@host:port/0, rediss:// for TLS, unix:///path/to.sock?db=0" + escapes},
		"share": {func(s string) error { return second(limit.ParsePart(s)) }, "parts in percent by a queue's name, \"priority 0-2\", retries or rest, " +
			"such as {chat: 30%, retries: 20%, rest: 50%}"},
		"schema":       {checkOwnSchema, "at most 40 of a-z, 0-9 and _"},
		"secret_host":  {checkSecretHost, "host or host:port, over https (over http to private addresses); http://host for http to any"},
		"table_schema": {checkTableSchema, "a schema, without quotes"},
		"timezone":     {checkTimezone, "an IANA name such as Europe/Berlin or America/New_York; UTC"},
		"variable":     {checkVariable, "the name of the environment variable that holds it, such as STRIPE_KEY"},
	}[name]
}

// algorithms are the names of those that have something.
func algorithms(separator string, has func(limit.Traits) bool) string {
	var names []string
	for _, a := range limit.Algorithms() {
		if has(a.Traits()) {
			names = append(names, string(a))
		}
	}
	return strings.Join(names, separator)
}

// checkRate reads a rate of an algorithm that is not known.
func checkRate(s string) error {
	return second(limit.ParseAny(s))
}

// checkOverride reads a key's rate, or its calls at once.
func checkOverride(s string) error {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return checkRate(s)
	}
	return unless(n >= 1 && n <= 1_000_000, s, "is out of bounds")
}

func checkOwnSchema(s string) error { return schema.Names{Own: s}.Check() }

func checkTableSchema(s string) error { return schema.Names{Own: "callq_", Tables: s}.Check() }

func checkNeed(s string) error { return second(within(s, "1..1000000000", parseInt)) }

func checkTimezone(s string) error { return second(limit.ParseCalendar("1d", s)) }

func checkHours(s string) error { return second(hours.Parse(s)) }

func second[T any](_ T, err error) error { return err }

// checkName holds for limits, queues and labels: what can be written in a shell and in SQL.
func checkName(s string) error {
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune(`,"'*`, r) }
	return unless(s != "" && len(s) <= 100 && !strings.ContainsFunc(s, bad), s, "cannot be a name")
}

// checkVariable does not repeat what is none: it may be the secret itself.
func checkVariable(s string) error {
	if matches(`^[A-Za-z_]\w*$`, s) {
		return nil
	}
	return errors.New("is not a variable's name")
}

func checkHost(s string) error {
	isIP := second(netip.ParseAddr(s)) == nil
	return unless(isIP || matches(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?$`, s), s, "is not a host")
}

func checkHeader(s string) error {
	return unless(len(s) <= 100 && matches(`^[A-Za-z0-9_-]+[*]?$`, s), s, "is not a header's name")
}

func checkAddress(s string) error {
	return unless(second(netip.ParsePrefix(s)) == nil || checkHost(s) == nil, s, "is not a host")
}

func checkNetwork(s string) error {
	return unless(second(netip.ParsePrefix(s)) == nil || second(netip.ParseAddr(s)) == nil, s, "is not a network")
}

func checkRole(s string) error {
	return unless(slices.Contains([]string{"viewer", "operator", "admin"}, s), s, "is no role")
}

func matches(pattern, s string) bool { return regexp.MustCompile(pattern).MatchString(s) }

// checkSecretHost takes host, host:port, and both after http://.
func checkSecretHost(s string) error {
	host, port := strings.TrimPrefix(s, "http://"), "1"
	if name, given, err := net.SplitHostPort(host); err == nil {
		host, port = name, given
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return unless(err == nil && n > 0 && checkHost(host) == nil, s, "is not a host, nor one with a port from 1 to 65535")
}

func checkListen(s string) error {
	_, port, err := net.SplitHostPort(s)
	_, notPort := strconv.ParseUint(port, 10, 16)
	return unless(s == "off" || err == nil && notPort == nil, s, "is not an address to listen on")
}

func checkCronOrOff(s string) error {
	if s == "off" {
		return nil
	}
	return checkCron(s)
}

// checkCron also refuses what cron accepts and never runs, or runs at other times than are written.
func checkCron(s string) error {
	if strings.Contains(s, "TZ=") && !strings.Contains(s, " ") { // cron would panic
		return unless(false, s, "has a time zone and no schedule")
	}
	schedule, err := cron.ParseStandard(s)
	if err != nil {
		return fmt.Errorf("%s is not a schedule: %w", Quote(s), err)
	}
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		_, text, _ := strings.Cut(s, "@every ")
		d, err := time.ParseDuration(text)
		return unless(err == nil && d == every.Delay, s, "can never fire as written: cron knows whole seconds, from 1s")
	}
	next := schedule.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) // in 5 years, leap days too
	return unless(!next.IsZero(), s, "can never fire: no such date comes")
}

// checkPostgres and checkRedis never show the URL or a part of it: it may hold a password.
func checkPostgres(s string) error {
	_, err := pgx.ParseConfig(s)
	if err == nil {
		return nil
	}
	why := err.Error()
	if i := strings.LastIndex(why, "`: "); i >= 0 { // the connection string stands before
		why = why[i+len("`: "):]
	}
	return errors.New("is not a Postgres URL: " + regexp.MustCompile(`"[^"]*"`).ReplaceAllString(why, "…"))
}

func checkRedis(s string) error {
	first, _ := RedisServers(s)
	if _, err := redis.ParseURL(first); err != nil {
		return errors.New("is not a Redis URL")
	}
	return nil
}

// RedisServers splits a Redis URL: the first server's, and the host:port of each ?addr=.
func RedisServers(s string) (first string, more []string) {
	u, err := url.Parse(s)
	if err != nil || !u.Query().Has("addr") {
		return s, nil
	}
	query := u.Query()
	more = query["addr"]
	query.Del("addr")
	u.RawQuery = query.Encode()
	return u.String(), more
}

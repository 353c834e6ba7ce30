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

	"github.com/callq/callq/internal/limit"
)

// Backoff bounds the wait before a retry: it doubles from Min up to Max, with jitter.
type Backoff struct{ Min, Max time.Duration }

// AtMost is a duration that may be "off": 0.
type AtMost time.Duration

// Bytes is a size, written 256KiB, 1MiB or 1000.
type Bytes int64

// fault is why a value is refused, and what is allowed instead.
type fault struct{ message, allowed string }

func (f fault) Error() string { return f.message }

// setField gives a field the value that text stands for. A list is written a,b outside of the file.
func setField(v reflect.Value, f reflect.StructField, text string) (err error) {
	allowed := f.Tag.Get("allowed")
	switch p := v.Addr().Interface().(type) {
	case *int:
		*p, err = within(text, allowed, parseInt)
	case *bool:
		*p, err = parseBool(text)
	case *time.Duration:
		*p, err = within(text, allowed, ParseDuration)
	case *AtMost:
		*p = 0
		if text != "off" {
			*p, err = within(text, allowed, parseAtMost)
		}
	case *Bytes:
		*p, err = within(text, allowed, parseBytes)
	case *Backoff:
		*p, err = parseBackoff(text, allowed)
	case *Hours:
		*p, err = parseHours(text)
	case *limit.Rate:
		*p, err = limit.ParseRate(text)
	case *Rates:
		*p = nil
		for item := range strings.SplitSeq(strings.ReplaceAll(text, ", sliding window", ""), ",") {
			if err = checkRate(strings.TrimSpace(item)); err != nil {
				break
			}
			*p = append(*p, strings.TrimSpace(item))
		}
	case *Overrides:
		*p = Overrides{}
		for item := range strings.SplitSeq(text, ",") {
			key, units, ok := strings.Cut(item, "=")
			if err = checkOverride(strings.TrimSpace(units)); err != nil || !ok {
				err = cmp.Or(err, errors.New(Quote(item)+" is not key=rate"))
				break
			}
			(*p)[strings.TrimSpace(key)] = strings.TrimSpace(units)
		}
	case *[]string:
		*p = nil
		seen := map[string]bool{}
		for item := range strings.SplitSeq(text, ",") {
			if err = appendItem(v, f, strings.TrimSpace(item), seen); err != nil {
				break
			}
		}
	default:
		if err = checkString(f, text); err == nil {
			v.SetString(text)
		}
	}
	if _, ok := errors.AsType[fault](err); err != nil && !ok {
		return fault{err.Error(), allowed}
	}
	return err
}

// appendItem adds to a list what it does not have yet.
func appendItem(list reflect.Value, f reflect.StructField, text string, seen map[string]bool) error {
	switch {
	case text == "":
		return fault{"an item is empty", ""}
	case seen[text]:
		return fault{Quote(text) + " is given twice", ""}
	}
	seen[text] = true
	list.Set(reflect.Append(list, reflect.ValueOf(text)))
	return checkString(f, text)
}

func checkString(f reflect.StructField, text string) error {
	switch f.Tag.Get("check") {
	case "postgres":
		return checkPostgres(text)
	case "redis":
		return checkRedis(text)
	case "listen":
		return checkListen(text)
	case "cron":
		return checkCron(text)
	case "host":
		return checkHost(text)
	case "address":
		if _, err := netip.ParsePrefix(text); err == nil {
			return nil
		}
		return checkHost(text)
	case "name":
		return checkName(text)
	case "secret_host":
		return checkSecretHost(text)
	case "password":
		return nil
	case "rate":
		return checkRate(text)
	case "override":
		return checkOverride(text)
	case "zone":
		return checkZone(text)
	case "variable":
		return checkVariable(text)
	}
	if allowed := f.Tag.Get("allowed"); allowed != "" && !slices.Contains(strings.Split(allowed, "|"), text) {
		return errors.New(Quote(text) + " is not allowed")
	}
	return nil
}

// within reads text and holds it against bounds written lo..hi.
func within[T cmp.Ordered](text, bounds string, parse func(string) (T, error)) (T, error) {
	value, err := parse(text)
	if err != nil {
		return value, err
	}
	lo, hi, _ := strings.Cut(bounds, "..")
	least, err1 := parse(lo)
	most, err2 := parse(hi)
	if err := errors.Join(err1, err2); err != nil {
		return value, fmt.Errorf("the bounds %s: %w", bounds, err)
	}
	if value < least || value > most {
		return value, errors.New(Quote(text) + " is out of bounds")
	}
	return value, nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, errors.New(Quote(s) + " is not a whole number")
	}
	return n, nil
}

func parseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, errors.New(Quote(s) + " is not allowed")
	}
	return s == "true", nil
}

func parseAtMost(s string) (AtMost, error) {
	d, err := ParseDuration(s)
	return AtMost(d), err
}

// ParseDuration reads Go's durations and those with days and weeks: 90s, 1d12h, 2w. Not negative.
func ParseDuration(s string) (time.Duration, error) {
	bad := errors.New(Quote(s) + " is not a duration: write numbers with units, such as 30s, 1h30m, 7d, 1d12h (ms s m h d w)")
	var sum time.Duration
	if s == "0" {
		return 0, nil
	}
	for rest := s; rest != "" || s == ""; {
		number := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		unit := number + len(rest[number:]) - len(strings.TrimLeft(rest[number:], "abcdefghijklmnopqrstuvwxyzµ"))
		factor, name := time.Duration(1), rest[number:unit]
		switch name {
		case "d":
			factor, name = 24, "h"
		case "w":
			factor, name = 7*24, "h"
		}
		part, err := time.ParseDuration(rest[:number] + name)
		if err != nil || name == "" || part > math.MaxInt64/factor || sum > math.MaxInt64-part*factor {
			return 0, bad
		}
		sum += part * factor
		rest = rest[unit:]
	}
	return sum, nil
}

func parseBytes(s string) (Bytes, error) {
	number, unit := s, int64(1)
	if n, ok := strings.CutSuffix(s, "KiB"); ok {
		number, unit = n, 1<<10
	} else if n, ok := strings.CutSuffix(s, "MiB"); ok {
		number, unit = n, 1<<20
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return 0, errors.New(Quote(s) + " is not a size: write 256KiB, 1MiB or a number of bytes")
	}
	return Bytes(n * unit), nil
}

// parseBackoff reads min..max, or one duration for a wait that does not grow.
func parseBackoff(s, bounds string) (b Backoff, err error) {
	lo, hi, ok := strings.Cut(s, "..")
	if !ok {
		hi = lo
	}
	if b.Min, err = within(strings.TrimSpace(lo), bounds, ParseDuration); err != nil {
		return b, err
	}
	if b.Max, err = within(strings.TrimSpace(hi), bounds, ParseDuration); err != nil {
		return b, err
	}
	if b.Min > b.Max {
		return b, errors.New(Quote(s) + " ends before it begins")
	}
	return b, nil
}

// checkName holds for limits, queues and labels: what can be written in a shell and in SQL.
func checkName(s string) error {
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune(`,"'*`, r) }
	if s == "" || len(s) > 100 || strings.ContainsFunc(s, bad) {
		return fault{Quote(s) + " cannot be a name", "1 to 100 bytes without spaces, quotes, commas and stars"}
	}
	return nil
}

func checkHost(s string) error {
	_, notIP := netip.ParseAddr(s)
	if notIP != nil && !regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?$`).MatchString(s) {
		return fault{Quote(s) + " is not a host", "a name or an address without scheme, port and path"}
	}
	return nil
}

func checkListen(s string) error {
	if s == "off" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	n, notNumber := strconv.Atoi(port)
	if err != nil || notNumber != nil || n < 0 || n > 65535 {
		return fault{Quote(s) + " is not an address to listen on", "host:port (port 0: any free one), :port for every interface, or off"}
	}
	return nil
}

// checkCron refuses what cron accepts and never runs, or runs at other times than are written.
func checkCron(s string) error {
	allowed := `minute hour day month weekday, such as "0 4 * * *", or @daily, or "@every 10s" in whole seconds`
	spec := s
	if strings.HasPrefix(s, "TZ=") || strings.HasPrefix(s, "CRON_TZ=") {
		var ok bool
		if _, spec, ok = strings.Cut(s, " "); !ok { // cron would panic
			return fault{Quote(s) + " has a time zone and no schedule", allowed}
		}
	}
	schedule, err := cron.ParseStandard(s)
	if err != nil {
		return fault{Quote(s) + " is not a schedule: " + err.Error(), allowed}
	}
	if every, ok := strings.CutPrefix(strings.TrimSpace(spec), "@every "); ok {
		if d, err := time.ParseDuration(every); err != nil || d < time.Second || d%time.Second != 0 {
			return fault{Quote(s) + " can never fire as written: cron knows whole seconds, from 1s", allowed}
		}
		return nil
	}
	if schedule.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() { // within 5 years, leap days too
		return fault{Quote(s) + " can never fire: no such date comes", allowed}
	}
	return nil
}

// checkPostgres and checkRedis never show the URL or a part of it: it may hold a password.
func checkPostgres(s string) error {
	if _, err := pgx.ParseConfig(s); err != nil {
		return fault{
			"is not a Postgres URL: " + postgresReason(err),
			"postgres://user:password@host:port/database?sslmode=…, or host=… user=… dbname=…; @ : / ? in a password as %40 %3A %2F %3F",
		}
	}
	return nil
}

// postgresReason is pgx's without the connection string, and without what it quotes from it.
func postgresReason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	return regexp.MustCompile(`"[^"]*"`).ReplaceAllString(text, "…")
}

func checkRedis(s string) error {
	first, _ := RedisServers(s)
	_, err := redis.ParseURL(first)
	if err == nil {
		return nil
	}
	why := "it cannot be taken apart"
	if text, ok := strings.CutPrefix(err.Error(), "redis: "); ok {
		why, _, _ = strings.Cut(text, ":")
	}
	return fault{"is not a Redis URL: " + why, "redis://user:password@host:port/0, rediss:// for TLS, unix:///path/to.sock?db=0; @ : / ? in a password as %40 %3A %2F %3F"}
}

// RedisServers takes a Redis URL apart: the first server's, and the host:port of each ?addr=.
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

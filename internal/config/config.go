// Package config turns flags, environment, config.yaml and defaults, in this order of precedence,
// into one checked Config. Load reports every mistake at once, each with its place and what is allowed.
// It ignores nothing that the file has, and shows no password.
//
// A setting is declared once, by its field below. Its tags are
//
//	key        its name; keys joined by dots are its path, and CALLQ_HTTP_LISTEN is http.listen
//	default    its default, as written in the file
//	allowed    bounds (lo..hi), choices (a|b), or a description
//	check      a rule, see ruleOf
//	secret     masked, and KEY_file may name a file that holds it
//	hide       masked where it is wrong: somebody may have put a secret there
//	env        a variable of other programs, used where nothing else gives a value
//	omitempty  not shown where it is not set
//	always     an entry that exists even if the file does not name it
package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
)

// Config is everything that callq can be told.
type Config struct {
	Postgres  Postgres          `key:"postgres"`
	Redis     Redis             `key:"redis"`
	HTTP      HTTP              `key:"http"`
	Log       Log               `key:"log"`
	Limits    map[string]Limit  `key:"limits"`
	Budgets   map[string]Budget `key:"budgets"`
	Queues    map[string]Queue  `key:"queues" always:"default"`
	Routes    []Route           `key:"routes"`
	Schedule  Schedule          `key:"schedule"`
	Retention Retention         `key:"retention"`
	Worker    Worker            `key:"worker"`
	HTTPTask  HTTPTask          `key:"http_task"`
	Calls     Calls             `key:"calls"`

	File   string // the file that was read; empty: none
	origin origins
}

// Postgres is the authority. Use PostgresURL, which also knows libpq's PG*.
type Postgres struct {
	URL         string `key:"url" secret:"true" check:"postgres" env:"DATABASE_URL"`
	DirectURL   string `key:"direct_url" secret:"true" check:"postgres"`           // past a pgbouncer, for LISTEN and migrations
	Pool        int    `key:"pool" default:"10" allowed:"2..1000"`                 // most connections of a process
	QueryMode   string `key:"query_mode" allowed:"cache_statement|cache_describe"` // empty: the URL's, else cache_statement
	Schema      string `key:"schema" default:"callq" check:"schema"`               // where callq's own tables and functions stand
	TableSchema string `key:"table_schema" default:"public" check:"table_schema"`  // where call_queue, call_attempts and enqueue_call do
	Failover    string `key:"failover" default:"witnessed" allowed:"witnessed|strict|lossless"`
}

// Redis carries attempts to the workers. Use RedisURL.
type Redis struct {
	URL              string   `key:"url" secret:"true" check:"redis" env:"REDIS_URL"`
	Sentinel         string   `key:"sentinel" check:"name"` // the master's name; then the URL names sentinels
	SentinelUsername string   `key:"sentinel_username" check:"any"`
	SentinelPassword string   `key:"sentinel_password" secret:"true" check:"any"`
	Cluster          bool     `key:"cluster" default:"false" allowed:"true|false"` // the URL names nodes of a cluster
	BudgetsURL       string   `key:"budgets_url" secret:"true" check:"redis"`      // of the budgets' own; empty: the same
	TLS              RedisTLS `key:"tls"`
}

// RedisTLS are files in PEM, for rediss:// URLs.
type RedisTLS struct {
	CA   string `key:"ca" check:"any"`   // whom the servers' certificates are from; empty: an authority that the system knows
	Cert string `key:"cert" check:"any"` // the client's own, for servers that ask for one; read again for each connection
	Key  string `key:"key" check:"any"`
}

// HTTP is where callq serves /livez, /readyz, /metrics and the pages.
type HTTP struct {
	Listen string `key:"listen" default:"127.0.0.1:7460" check:"listen"`
	Pages  bool   `key:"pages" default:"true" allowed:"true|false"`

	Hosts   []string `key:"hosts" check:"host"`                           // names it has beside those that it listens at
	Actions bool     `key:"actions" default:"false" allowed:"true|false"` // without a login, on loopback
	Auth    Auth     `key:"auth"`
}

// Auth is who may see the pages, and act. Where it is empty, nobody has to log in: then the pages are on loopback only.
type Auth struct {
	Users  string           `key:"users" check:"any"` // a file with name:hash:role lines
	Tokens map[string]Token `key:"tokens"`
	Proxy  Proxy            `key:"proxy"`
}

// Token is where a daemon finds the token of a script, and what its holder may do. TokenValues reads it.
type Token struct {
	Env  string `key:"env" hide:"true" check:"variable"`
	File string `key:"file"`
	Role string `key:"role" default:"viewer" allowed:"viewer|operator|admin"`
}

// Proxy has authenticated whom its header names.
type Proxy struct {
	From   []string `key:"from" check:"network"` // the addresses that its header counts from
	Header string   `key:"header" default:"X-Forwarded-User" check:"header_name"`
	Roles  Roles    `key:"roles" check:"role"` // of users; others are viewers
}

// Closed reports whether people have to log in.
func (a *Auth) Closed() bool { return a.Users != "" || len(a.Tokens) > 0 || len(a.Proxy.From) > 0 }

// Log is how callq writes to stderr.
type Log struct {
	Level  string `key:"level" default:"info" allowed:"debug|info|warn|error"`
	Format string `key:"format" default:"text" allowed:"text|json"`
}

// Limit allows Rate at the API, or Concurrency calls at once. Windows holds what its keys mean together.
type Limit struct {
	Rate         Rates         `key:"rate" omitempty:"true" check:"rate"`
	Algorithm    string        `key:"algorithm" default:"sliding_window" check:"algorithm"`
	Burst        int           `key:"burst" omitempty:"true" allowed:"1..1000000000"` // of a token bucket
	Timezone     string        `key:"timezone" omitempty:"true" check:"timezone"`     // of a fixed window; empty: UTC
	Spread       bool          `key:"spread" default:"false" allowed:"true|false"`    // its windows, evenly: a leaky bucket
	Tolerance    time.Duration `key:"tolerance" omitempty:"true" allowed:"1ms..1m"`   // of a leaky bucket
	Concurrency  int           `key:"concurrency" omitempty:"true" allowed:"1..1000000"`
	Per          string        `key:"per" allowed:"key"` // empty: all calls share it
	Overrides    Overrides     `key:"overrides" check:"override"`
	Count        string        `key:"count" allowed:"cost"`                               // empty: a call takes 1
	Anchor       limit.Anchor  `key:"anchor" allowed:"start|finish"`                      // empty: start for the http task, finish for others
	Slack        time.Duration `key:"slack" omitempty:"true" allowed:"1ms..10m|answer"`   // default: limit.DefaultSlack, and a later answer; or Answer
	ArriveWithin time.Duration `key:"arrive_within" omitempty:"true" allowed:"1s..3660d"` // default: limit.DefaultArriveWithin
	SendWithin   time.Duration `key:"send_within" omitempty:"true" allowed:"10ms..1m"`    // default: limit.DefaultSendWithin
	Hosts        []string      `key:"hosts" check:"host"`                                 // whose Retry-After closes it; none: any
	RetryAfter   time.Duration `key:"retry_after" default:"1h" allowed:"1s..1d|off"`
	Headers      Headers       `key:"headers"`
	Trust        string        `key:"trust" default:"lower" allowed:"lower|ignore"` // what comes of what the API says remains
	Shares       Shares        `key:"shares" check:"share"`                         // parts that some calls are guaranteed

	Windows []Window     // what Load makes of it, the shortest first
	Parts   limit.Shares // likewise, of Shares
}

// Headers are which of an answer's headers say when to come again.
type Headers struct {
	Wait []string `key:"wait" check:"header"` // beside those of docs/apis.md
	Off  []string `key:"off" check:"header"`  // of those, which do not
}

// Answer is a slack that lasts until the answer.
const Answer time.Duration = -1

// Proof is what the slack takes for an arrival, and how long it is; empty and 0: the default.
func (x Limit) Proof() (proof limit.Proof, slack time.Duration) {
	if x.Slack == Answer {
		return limit.ProofAnswer, 0
	}
	return "", x.Slack
}

// Window is one rate of a limit, or its concurrency.
type Window struct {
	Suffix    string // follows the limit's name; "" for the shortest
	Rate      limit.Rate
	Overrides map[string]int64 // keys that have other units
}

// Queue is a named stream of calls.
type Queue struct {
	Limits      []string      `key:"limits" check:"name"` // none: only the workers' concurrency bounds it
	On          string        `key:"on" check:"name"`     // a worker's label; empty: any worker
	MaxAttempts int           `key:"max_attempts" default:"3" allowed:"1..1000"`
	Backoff     Backoff       `key:"backoff" default:"10s..15m" allowed:"1ms..30d"`
	Timeout     time.Duration `key:"timeout" default:"30s" allowed:"10ms..12h"`
	OnLost      string        `key:"on_lost" default:"retry" allowed:"retry|fail"`
	Hours       string        `key:"hours" check:"hours"`                            // empty: always
	Store       string        `key:"store" allowed:"errors|all|none"`                // empty: http_task.store
	StoreMax    Bytes         `key:"store_max" default:"64KiB" allowed:"1..64KiB"`   // of an answer's body
	StoreFor    time.Duration `key:"store_for" omitempty:"true" allowed:"1s..3660d"` // 0: as the call
	Needs       Needs         `key:"needs" check:"need"`                             // units of budgets that each call draws
	OnRefused   string        `key:"on_refused" default:"close" allowed:"close|retry"`
	MaxRefusals int           `key:"max_refusals" default:"1000" allowed:"1..1000000"`

	MaxWaiting       int    `key:"max_waiting" omitempty:"true" allowed:"1..1000000000"`         // calls that may wait; 0: any number
	MaxWaitingPerKey int    `key:"max_waiting_per_key" omitempty:"true" allowed:"1..1000000000"` // likewise, of each key
	WhenFull         string `key:"when_full" default:"refuse" allowed:"refuse|discard_new|discard_oldest"`
}

// Route is a rule between an INSERT and the queue. Calls that match it are changed or discarded. The first that matches ends, unless it
// goes on.
type Route struct {
	Match    RouteMatch `key:"match"`
	Set      RouteSet   `key:"set"`
	Discard  string     `key:"discard" check:"any"` // why
	Continue bool       `key:"continue" default:"false" allowed:"true|false"`
}

// RouteMatch is which calls it is for: all that is given must hold, each by one of its values.
type RouteMatch struct {
	Queue   []string `key:"queue" check:"name"`
	Task    []string `key:"task" check:"name"`
	Key     []string `key:"key" check:"any"` // one that ends in * stands for all that begin so
	Method  []string `key:"method" check:"method"`
	URLHost []string `key:"url_host" check:"host"`
	JSON    Fields   `key:"json" check:"any"` // by path, such as $.country
}

// Fields are paths in call_data with values.
type Fields map[string][]string

// RouteSet is what becomes of them. Key and Cost may be paths in call_data.
type RouteSet struct {
	Queue     string        `key:"queue" check:"name"`
	Task      string        `key:"task" check:"name"`
	Priority  string        `key:"priority" check:"priority"`
	Cost      string        `key:"cost" check:"cost"`
	Key       string        `key:"key" check:"route_key"`
	RunAt     time.Duration `key:"run_at" omitempty:"true" allowed:"1ms..3660d"`    // so much later
	ExpiresIn time.Duration `key:"expires_in" omitempty:"true" allowed:"1s..3660d"` // after run_at
}

// Budget is what handlers draw on in Redis while they run. Rule is what its keys mean together.
type Budget struct {
	Rate      limit.Rate `key:"rate" check:"budget_rate"`
	Algorithm string     `key:"algorithm" default:"token_bucket" check:"budget_algorithm"`
	Burst     int        `key:"burst" default:"1" allowed:"1..1000000000"`
	Timezone  string     `key:"timezone" omitempty:"true" check:"timezone"`       // of a fixed window; empty: UTC
	Per       string     `key:"per" allowed:"key"`                                // empty: all calls share it
	Overrides Overrides  `key:"overrides" check:"override"`                       // of keys
	OnOutage  string     `key:"on_outage" default:"closed" allowed:"closed|open"` // what a draw does while Redis is away

	Rule budget.Rule // what Load makes of it
}

// Schedule is when the recurring work runs, in cron's notation, UTC.
type Schedule struct {
	Dispatch  string `key:"dispatch" default:"@every 1s" check:"cron"`
	Retention string `key:"retention" default:"0 4 * * *" check:"cron"`
	Vacuum    string `key:"vacuum" default:"30 4 * * 0" check:"cron"`
	Verify    string `key:"verify" default:"off" check:"cron_or_off"`
}

// Retention is how long finished calls are kept.
type Retention struct {
	Done      time.Duration `key:"done" default:"7d" allowed:"1s..3660d"`
	Failed    time.Duration `key:"failed" default:"30d" allowed:"1s..3660d"`
	Cancelled time.Duration `key:"cancelled" default:"1d" allowed:"1s..3660d"`
	History   time.Duration `key:"history" default:"7d" allowed:"1h..366d|off"` // minute by minute, of limits and queues
}

// Worker is what one worker process offers.
type Worker struct {
	Concurrency     int           `key:"concurrency" default:"100" allowed:"1..10000"`
	Labels          []string      `key:"labels" check:"name"`
	ShutdownTimeout time.Duration `key:"shutdown_timeout" default:"60s" allowed:"1s..1h"`
}

// HTTPTask is what the built-in task http may do.
type HTTPTask struct {
	Hosts        []string          `key:"hosts" check:"host"`            // when set, only these may be called
	PrivateHosts []string          `key:"private_hosts" check:"address"` // private addresses that may be called
	AllowPrivate bool              `key:"allow_private" default:"false" allowed:"true|false"`
	Store        string            `key:"store" default:"errors" allowed:"errors|all|none"` // which answers to keep in result
	Secrets      map[string]Secret `key:"secrets"`                                          // what headers may name
}

// Secret is where a worker finds a secret, and the hosts that it may be sent to. SecretValues reads it.
type Secret struct {
	Env   string   `key:"env" hide:"true" check:"variable"`
	File  string   `key:"file"`
	Hosts []string `key:"hosts" check:"secret_host"`
}

// Calls is what a call may be.
type Calls struct {
	MaxData Bytes `key:"max_data" default:"256KiB" allowed:"1KiB..64MiB"` // of call_data
}

// Values that are more than a number, a text or a list of texts.
type (
	Rates     []string                         // rates that hold at once
	Overrides map[string]string                // keys that have another rate
	Needs     map[string]string                // budgets, with how many units
	Shares    map[string]string                // shares of a limit, with their parts
	Roles     map[string]string                // users, with what they may do
	Backoff   struct{ Min, Max time.Duration } // the wait before a retry doubles from Min up to Max, with jitter
	Bytes     int64                            // a size: 256KiB, 1MiB or 1000
)

// PostgresURL returns what pgx connects to, or an *Error where no server is configured. It is empty where libpq's PG*
// name the server, because pgx reads those.
func (c *Config) PostgresURL() (string, error) {
	return c.url("Postgres", "postgres.url", c.Postgres.URL, "--postgres-url, CALLQ_POSTGRES_URL, DATABASE_URL or PGHOST")
}

// RedisURL returns a redis://, rediss:// or unix:// URL, or an *Error where no server is configured.
func (c *Config) RedisURL() (string, error) {
	return c.url("Redis", "redis.url", c.Redis.URL, "--redis-url, CALLQ_REDIS_URL or REDIS_URL")
}

func (c *Config) url(server, path, value, others string) (string, error) {
	if value == "" && c.Origin(path) == "default" {
		what := fmt.Sprintf("no %s is configured: set %s in config.yaml, %s", server, path, others)
		return "", &Error{[]Problem{{source: source{Source: "callq"}, Message: what}}}
	}
	return value, nil
}

// origins is how a Config was loaded.
type origins struct {
	settings []*setting // in the order of the keys
	byPath   map[string]*setting
	env      map[string]string
	read     map[string]bool // variables that were read
}

// Origin is where the value at a path such as queues.payments.timeout came from: "--postgres-url",
// "CALLQ_HTTP_LISTEN", "config.yaml:12:5" or "default".
func (c *Config) Origin(path string) string {
	if s := c.origin.byPath[path]; s != nil {
		return s.from.String()
	}
	return "default"
}

// Value is a setting that is in force.
type Value struct {
	Key    string `json:"key"`
	Value  string `json:"value"`  // as it was written, a list with commas
	Source string `json:"source"` // --postgres-url, CALLQ_HTTP_LISTEN, config.yaml:12:5, default
}

// Values are all settings in force, in the order of the keys, with secrets masked.
func (c *Config) Values() []Value {
	var all []Value
	for _, s := range c.origin.settings {
		if s.tag("omitempty") == "" || !s.value.IsZero() {
			all = append(all, Value{Key: s.path, Value: s.shown(), Source: s.from.String()})
		}
	}
	return all
}

// shown is a value as it was written, and a rate in its one form. A secret is masked.
func (s *setting) shown() string {
	switch x := s.value.Interface().(type) {
	case Rates:
		return strings.Join(x, ", ")
	case limit.Rate:
		return (&budget.Rule{Rate: x}).RateText()
	}
	var texts []string
	for _, it := range s.items {
		texts = append(texts, strings.TrimPrefix(it.key+"="+it.text, "="))
	}
	text := strings.Join(texts, ", ")
	if s.tag("secret") != "" && text != "" {
		return redact(text, s.tag("check"))
	}
	return text
}

// redact returns a connection string without its password, for people to read, and nothing of another secret.
func redact(s, check string) string {
	password := `(?i)(password\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|\S)*)`
	switch {
	case check == "any":
		return "xxxxx"
	case strings.Contains(s, "://"):
		s = regexp.MustCompile(`(://[^:@]*:).*@`).ReplaceAllString(s, "${1}xxxxx@")
		password = `(?i)(password=)([^&]*)`
	}
	return regexp.MustCompile(password).ReplaceAllString(s, "${1}xxxxx")
}

// Changed are the keys of two configurations whose values differ, in order. Where a value came from does not matter. A key
// that only one of them has, of an entry such as a limit, is not among them.
func Changed(a, b *Config) (keys []string) {
	for _, s := range b.origin.settings {
		if was := a.origin.byPath[s.path]; was != nil && !reflect.DeepEqual(was.value.Interface(), s.value.Interface()) {
			keys = append(keys, s.path)
		}
	}
	return keys
}

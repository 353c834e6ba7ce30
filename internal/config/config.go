// Package config turns flags, environment, config.yaml and defaults, in this order of precedence,
// into one checked Config.
//
// Load accepts only what callq does: every mistake is an error, all of them are reported at once,
// each with its place and what is allowed, and nothing that was written is ignored. Passwords are
// never shown. The struct below is the only place of keys, defaults and bounds: the tags say
//
//	key       the name in the file; the path of keys is the name everywhere else:
//	          http.listen is CALLQ_HTTP_LISTEN in the environment
//	default   as it would be written in the file
//	allowed   a choice (a|b), bounds (lo..hi), or words for the reader
//	check     a check by name, for what bounds cannot say
//	required  must be given, or the key that it names instead
//	hide      never shown where it is wrong: it may be a secret that was put in the wrong place
//	secret    a URL that may hold a password; KEY_file names a file that holds it
//	env       a variable that other programs know too, used where nothing else is given
package config

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/limit"
)

// ErrNoPostgres and ErrNoRedis say that a server is needed and none is configured.
var (
	ErrNoPostgres = errors.New("no Postgres configured: set postgres.url in config.yaml, --postgres-url, CALLQ_POSTGRES_URL, DATABASE_URL or PGHOST")
	ErrNoRedis    = errors.New("no Redis configured: set redis.url in config.yaml, --redis-url, CALLQ_REDIS_URL or REDIS_URL")
)

// Config is everything callq can be told.
type Config struct {
	Postgres  Postgres          `key:"postgres"`
	Redis     Redis             `key:"redis"`
	HTTP      HTTP              `key:"http"`
	Log       Log               `key:"log"`
	Limits    map[string]Limit  `key:"limits"`
	Queues    map[string]Queue  `key:"queues"` // always has "default"
	Budgets   map[string]Budget `key:"budgets"`
	Schedule  Schedule          `key:"schedule"`
	Retention Retention         `key:"retention"`
	Worker    Worker            `key:"worker"`
	HTTPTask  HTTPTask          `key:"http_task"`
	Calls     Calls             `key:"calls"`

	File string // the file that was read; empty: none

	from     map[string]source // where the values that are not defaults came from
	warnings []string
	env      map[string]string // for SecretValues
	libpq    bool              // one of libpq's PG* names a server
}

// Postgres is the authority. Use PostgresURL, which also knows of PG*.
type Postgres struct {
	URL           string `key:"url" secret:"true" check:"postgres" env:"DATABASE_URL"`
	URLFile       string `key:"url_file"`
	DirectURL     string `key:"direct_url" secret:"true" check:"postgres"` // past a pgbouncer, for LISTEN and migrations
	DirectURLFile string `key:"direct_url_file"`
	Pool          int    `key:"pool" default:"10" allowed:"2..1000"` // connections of a process, at most
	// QueryMode is how statements are sent. Empty: as the URL says, else cache_statement.
	QueryMode string `key:"query_mode" allowed:"cache_statement|cache_describe"`
}

// Redis carries work to the workers. Use RedisURL.
type Redis struct {
	URL     string `key:"url" secret:"true" check:"redis" env:"REDIS_URL"`
	URLFile string `key:"url_file"`
	CAFile  string `key:"ca_file"` // who signed the certificate of a rediss:// server; empty: one the system trusts
	// Sentinel is the master's name at the sentinels that the URL names, the first as its host, others as
	// ?addr=host:port. Cluster: it names nodes of a cluster so. Neither: it names the server.
	Sentinel             string `key:"sentinel" check:"name"`
	SentinelPassword     string `key:"sentinel_password" secret:"true" check:"password"`
	SentinelPasswordFile string `key:"sentinel_password_file"`
	Cluster              bool   `key:"cluster" default:"false" allowed:"true|false"`
}

// HTTP is where /livez, /readyz and /metrics are served, and the pages, which show what calls hold.
type HTTP struct {
	Listen string `key:"listen" default:"127.0.0.1:7460" check:"listen"`
	Pages  bool   `key:"pages" default:"true" allowed:"true|false"`
}

// Log is how stderr is written.
type Log struct {
	Level  string `key:"level" default:"info" allowed:"debug|info|warn|error"`
	Format string `key:"format" default:"text" allowed:"text|json"`
}

// Limit allows at most Rate, at the API; or Concurrency calls at once. Load puts into Windows what that means.
type Limit struct {
	Rate        Rates         `key:"rate" required:"concurrency" check:"rate" allowed:"units/window such as 100/h, 5/s, 10/500ms, 1_000/d, 100 per 1h; ms s m h d w, and mo for fixed_window; or a list of them"`
	Algorithm   string        `key:"algorithm" default:"sliding_window" allowed:"sliding_window|fixed_window|token_bucket|leaky_bucket"`
	Burst       int           `key:"burst" allowed:"1..1000000000"` // of a token bucket
	Timezone    string        `key:"timezone" check:"zone"`         // of a fixed window; empty: UTC
	Concurrency int           `key:"concurrency" allowed:"1..1000000"`
	Per         string        `key:"per" allowed:"key"` // empty: all calls share it
	Overrides   Overrides     `key:"overrides" check:"override" allowed:"keys with rates, or of a concurrency with numbers, such as {acct_1: 50/s}"`
	Count       string        `key:"count" allowed:"cost"`           // empty: a call takes 1
	Anchor      limit.Anchor  `key:"anchor" allowed:"start|finish"`  // empty: start for the http task, finish for others
	Slack       time.Duration `key:"slack" allowed:"1ms..10m"`       // default limit.DefaultSlack
	SendWithin  time.Duration `key:"send_within" allowed:"10ms..1m"` // default limit.DefaultSendWithin
	Hosts       []string      `key:"hosts" check:"host"`             // whose Retry-After closes it; none: any
	RetryAfter  AtMost        `key:"retry_after" default:"1h" allowed:"1s..1d"`

	Windows []Window // shortest first
}

// Rates are rates as they are written: one, or several that hold at once.
type Rates []string

// Overrides are keys that have another rate, as it is written.
type Overrides map[string]string

// Window is one of what a limit allows.
type Window struct {
	Suffix     string // of its name behind the limit's; empty: the first
	Rate       limit.Rate
	Overrides  map[string]int64 // keys that have other units in the same window
	Slack      time.Duration
	SendWithin time.Duration
}

// Queue is a named stream of calls.
type Queue struct {
	Limits      []string      `key:"limits"`          // none: bounded by the workers' concurrency only
	On          string        `key:"on" check:"name"` // empty: any worker
	MaxAttempts int           `key:"max_attempts" default:"3" allowed:"1..1000"`
	Backoff     Backoff       `key:"backoff" default:"10s..15m" allowed:"1ms..30d"`
	Timeout     time.Duration `key:"timeout" default:"30s" allowed:"10ms..12h"`
	OnLost      string        `key:"on_lost" default:"retry" allowed:"retry|fail"`
	Hours       Hours         `key:"hours" allowed:"[days] HH:MM-HH:MM [zone], several joined by commas or as a list: Mon-Fri 09:00-18:00, Sat 10:00-14:00 Europe/Berlin"` // empty: always
}

// Budget is a token bucket in Redis, which handlers draw on while they run.
type Budget struct {
	Rate     limit.Rate `key:"rate" required:"rate" allowed:"units/window such as 100/s, 10/500ms, 90_000/m; ms s m h d w"`
	Burst    int        `key:"burst" default:"1" allowed:"1..1000000000"`
	OnOutage string     `key:"on_outage" default:"closed" allowed:"closed|open"` // what a draw does while Redis is away
}

// Schedule is when what must be done is done, in cron's words, UTC.
type Schedule struct {
	Dispatch  string `key:"dispatch" default:"@every 1s" check:"cron"`
	Retention string `key:"retention" default:"0 4 * * *" check:"cron"`
	Vacuum    string `key:"vacuum" default:"30 4 * * 0" check:"cron"`
}

// Retention is how long finished calls are kept.
type Retention struct {
	Done      time.Duration `key:"done" default:"7d" allowed:"1s..3660d"`
	Failed    time.Duration `key:"failed" default:"30d" allowed:"1s..3660d"`
	Cancelled time.Duration `key:"cancelled" default:"1d" allowed:"1s..3660d"`
}

// Worker is what one worker process offers.
type Worker struct {
	Concurrency     int           `key:"concurrency" default:"100" allowed:"1..10000"`
	Labels          []string      `key:"labels" check:"name"`
	ShutdownTimeout time.Duration `key:"shutdown_timeout" default:"60s" allowed:"1s..1h"`
}

// HTTPTask is what the built-in task http may do.
type HTTPTask struct {
	Hosts        []string `key:"hosts" check:"host"`            // when set, only these may be called
	PrivateHosts []string `key:"private_hosts" check:"address"` // private addresses that may be called
	AllowPrivate bool     `key:"allow_private" default:"false" allowed:"true|false"`
	Store        string   `key:"store" default:"errors" allowed:"errors|all|none"` // which answers to keep in result

	Secrets map[string]Secret `key:"secrets"` // what headers may name; their values are SecretValues'
}

// Secret says where the value of a secret is, and where it may go.
type Secret struct {
	Env   string   `key:"env" required:"file" check:"variable" hide:"true" allowed:"the name of the environment variable that holds it"`
	File  string   `key:"file"`
	Hosts []string `key:"hosts" required:"hosts" check:"secret_host" allowed:"hosts that may be sent it"`
}

// Calls is what a call may be.
type Calls struct {
	MaxData Bytes `key:"max_data" default:"256KiB" allowed:"1KiB..64MiB"` // of call_data
}

// PostgresURL returns what pgx is to connect to: the flag, CALLQ_POSTGRES_URL, the file or
// DATABASE_URL. It is empty when libpq's PG* say it, which pgx reads itself. Without any of them it
// is ErrNoPostgres.
func (c *Config) PostgresURL() (string, error) {
	switch {
	case c.Postgres.URL != "":
		return c.Postgres.URL, nil
	case !c.libpq:
		return "", ErrNoPostgres
	}
	if _, err := pgx.ParseConfig(""); err != nil {
		return "", errors.New("libpq's PG* variables: " + postgresReason(err))
	}
	return "", nil
}

// RedisURL returns what to connect to, a redis://, rediss:// or unix:// URL: the flag,
// CALLQ_REDIS_URL, the file or REDIS_URL. Without any of them it is ErrNoRedis.
func (c *Config) RedisURL() (string, error) {
	if c.Redis.URL == "" {
		return "", ErrNoRedis
	}
	return c.Redis.URL, nil
}

// Origin says where the value at a path such as queues.payments.timeout came from: "--postgres-url",
// "CALLQ_HTTP_LISTEN", "config.yaml:12" or "default".
func (c *Config) Origin(path string) string { return c.from[path].String() }

// Warnings are what looks like a slip in the environment and may not be one: variables that callq
// does not know and that nearly have the name of a setting.
func (c *Config) Warnings() []string { return c.warnings }

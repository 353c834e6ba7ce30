// Package pages mounts callq's pages in the server of an application, which lets people in itself.
//
// `callq serve` has them without a line of code; use this package where callq's dispatcher and workers run within your program.
package pages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/access"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/console"
	"github.com/callq/callq/internal/schema"
)

// Role is what somebody may do. Each may do what those before it may.
type Role int

// The roles.
const (
	Nobody   = Role(access.Nobody)
	Viewer   = Role(access.Viewer)   // reads
	Operator = Role(access.Operator) // pauses and resumes, and changes calls
	Admin    = Role(access.Admin)    // changes limits
)

// Config is what the pages need. Pool and Who have no default.
type Config struct {
	// Pool should be small and the pages' own. Its role needs the rights of callq_daemon for people to act, of callq_viewer to read.
	Pool *pgxpool.Pool
	// Who tells who sends a request, for the audit, and what they may do. [Nobody] gets 401.
	Who         func(*http.Request) (name string, role Role)
	Prefix      string        // of the paths, such as /callq; default: none
	Timeout     time.Duration // of each page; default 5 s
	Schema      string        // callq's own; default callq
	TableSchema string        // that of call_queue and call_attempts; default public
	Logger      *slog.Logger  // default: slog.Default()
}

// New returns the handler of all paths that begin with Prefix. It refuses what changes something if another site's page sent it.
func New(cfg Config) (http.Handler, error) {
	switch {
	case cfg.Pool == nil:
		return nil, errors.New("pages: Pool is missing")
	case cfg.Who == nil:
		return nil, errors.New("pages: Who is missing: it tells who may come in")
	case cfg.Prefix != "" && (!strings.HasPrefix(cfg.Prefix, "/") || strings.HasSuffix(cfg.Prefix, "/")):
		return nil, fmt.Errorf("pages: Prefix %q does not begin with a slash, or ends with one", cfg.Prefix)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	names := schema.Names{Own: cfg.Schema, Tables: cfg.TableSchema}
	if err := names.Check(); err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	client, err := callqueue.New(cfg.Pool, callqueue.Schemas(cfg.Schema, cfg.TableSchema))
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	guard, err := access.New(access.Config{Logger: cfg.Logger, Application: func(r *http.Request) access.Who {
		name, role := cfg.Who(r)
		return access.Who{Name: name, Role: access.Role(role)}
	}})
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	db := names.In(cfg.Pool)
	return console.New(console.Config{
		Pool: db, Client: client, Actions: &actions.Actions{Pool: db, Client: client},
		Guard: guard, Prefix: cfg.Prefix, Timeout: cfg.Timeout, Logger: cfg.Logger, Explain: explain,
	})
}

// explain tells whether Postgres cannot be reached.
func explain(err error) (away bool, text string) {
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	return connect || errors.Is(err, context.DeadlineExceeded), err.Error()
}

// Package schema knows in which schemas of a database callq's tables stand, so that several callqs can share one.
//
// SQL is written, everywhere, for the schemas by default: callq.call_open, public.call_queue. It needs no search_path. Where a
// callq stands elsewhere, [Names.In] makes a pool whose statements name those schemas instead.
//
// What callq reads has to be what was written last. So its pool also marks each statement such that pgpool-II, which may send
// others to a standby, sends it to the primary.
package schema

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Names are the schemas of one callq. An empty one is the default.
type Names struct {
	Own    string // of what is callq's own; callq
	Tables string // of what users see, call_queue, call_attempts and enqueue_call; public
}

const (
	defaultOwn    = "callq"
	defaultTables = "public"
)

var ownForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

// Check refuses what cannot name schemas. The own one names the channel of wakes, too.
func (n Names) Check() error {
	if n = n.filled(); !ownForm.MatchString(n.Own) || strings.HasPrefix(n.Own, "pg_") {
		return fmt.Errorf("%q cannot name callq's own schema: at most 40 of a-z, 0-9 and _, and not pg_", n.Own)
	}
	if n.Own == n.Tables {
		return fmt.Errorf("callq's own schema and that of its tables are both %q: they have to differ", n.Own)
	}
	if len(n.Tables) > 63 || strings.ContainsAny(n.Tables, "\"'\\\x00") || strings.HasPrefix(n.Tables, "pg_") {
		return fmt.Errorf("%q cannot name a schema of tables: at most 63 bytes, without quotes, and not pg_", n.Tables)
	}
	return nil
}

func (n Names) filled() Names {
	if n.Own == "" {
		n.Own = defaultOwn
	}
	if n.Tables == "" {
		n.Tables = defaultTables
	}
	return n
}

// Quoted are the names as SQL writes them.
func (n Names) Quoted() (own, tables string) {
	n = n.filled()
	return pgx.Identifier{n.Own}.Sanitize(), pgx.Identifier{n.Tables}.Sanitize()
}

func (n Names) isDefault() bool { return n.filled() == Names{defaultOwn, defaultTables} }

// OwnName is the own schema's name, which needs no quotes.
func (n Names) OwnName() string { return n.filled().Own }

// WakeChannel is the NOTIFY channel that wakes the dispatchers.
func (n Names) WakeChannel() string { return n.OwnName() + "_wake" }

// word is what names a schema in SQL. Settings of a session have names of this form, too: they are the same in every callq.
var word = regexp.MustCompile(`\bcallq\.\w+|\bpublic\.|\bSCHEMA callq\b|\bSCHEMA public\b|\bcallq_wake\b`)

// SQL is a text of SQL that names these schemas. Nothing in it may come from outside.
func (n Names) SQL(text string) string {
	if n.isDefault() {
		return text
	}
	ownName, tables := n.Quoted()
	return word.ReplaceAllStringFunc(text, func(w string) string {
		name, own := strings.CutPrefix(w, "callq.")
		switch {
		case w == "callq.repair" || w == "callq.session_epoch" || w == "callq.woke":
			return w
		case own:
			return ownName + "." + name
		case w == "public.":
			return tables + "."
		case w == "SCHEMA callq":
			return "SCHEMA " + ownName
		case w == "SCHEMA public":
			return "SCHEMA " + tables
		}
		return n.WakeChannel()
	})
}

// OnPrimary begins a statement that pgpool-II is not to send to a standby.
const OnPrimary = "/*NO LOAD BALANCE*/ "

// DB runs statements: what Names.In makes of a *pgxpool.Pool, or such a pool, which reaches the schemas by default.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Begin(ctx context.Context) (pgx.Tx, error)
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// In is a pool whose statements name these schemas, and read what was written last.
func (n Names) In(p *pgxpool.Pool) DB {
	return &pool{p, &rewriter{names: n}}
}

// Tx is somebody's transaction whose statements name the schemas of db.
func Tx(db DB, t pgx.Tx) pgx.Tx {
	if p, ok := db.(*pool); ok {
		return &tx{t, p.rewriter}
	}
	return t
}

// Conn is a connection of a DB.
type Conn struct {
	*pooled
	rewriter *rewriter // nil: the schemas by default
}

type pooled = pgxpool.Conn

// Acquire takes a connection of a pool. Its Release gives it back.
func Acquire(ctx context.Context, db DB) (*Conn, error) {
	switch p := db.(type) {
	case *pgxpool.Pool:
		conn, err := p.Acquire(ctx)
		return &Conn{conn, nil}, err
	case *pool:
		conn, err := p.Acquire(ctx)
		return &Conn{conn, p.rewriter}, err
	}
	return nil, errors.New("not a pool of connections")
}

// rewriter keeps what each statement has become. They are constants, so there are few.
type rewriter struct {
	names Names
	done  sync.Map // string: string
}

func (r *rewriter) sql(text string) string {
	if r == nil {
		return text
	}
	if to, ok := r.done.Load(text); ok {
		return to.(string)
	}
	to := OnPrimary + r.names.SQL(text)
	r.done.Store(text, to)
	return to
}

func (r *rewriter) batch(b *pgx.Batch) *pgx.Batch {
	for _, q := range b.QueuedQueries {
		q.SQL = r.sql(q.SQL)
	}
	return b
}

type pool struct {
	*pgxpool.Pool
	rewriter *rewriter
}

type tx struct {
	pgx.Tx
	rewriter *rewriter
}

func (r *rewriter) tx(t pgx.Tx, err error) (pgx.Tx, error) {
	if err != nil || r == nil {
		return t, err
	}
	return &tx{t, r}, nil
}

func (p *pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.Pool.Query(ctx, p.rewriter.sql(sql), args...)
}

func (p *pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.Pool.QueryRow(ctx, p.rewriter.sql(sql), args...)
}

func (p *pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.Pool.Exec(ctx, p.rewriter.sql(sql), args...)
}

func (p *pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return p.Pool.SendBatch(ctx, p.rewriter.batch(b))
}

func (p *pool) Begin(ctx context.Context) (pgx.Tx, error) { return p.rewriter.tx(p.Pool.Begin(ctx)) }

func (p *pool) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	return p.rewriter.tx(p.Pool.BeginTx(ctx, options))
}

func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.Tx.Query(ctx, t.rewriter.sql(sql), args...)
}

func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.Tx.QueryRow(ctx, t.rewriter.sql(sql), args...)
}

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.Tx.Exec(ctx, t.rewriter.sql(sql), args...)
}

func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.Tx.SendBatch(ctx, t.rewriter.batch(b))
}

func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) { return t.rewriter.tx(t.Tx.Begin(ctx)) }

func (c *Conn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return c.pooled.Query(ctx, c.rewriter.sql(sql), args...)
}

func (c *Conn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return c.pooled.QueryRow(ctx, c.rewriter.sql(sql), args...)
}

func (c *Conn) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return c.pooled.Exec(ctx, c.rewriter.sql(sql), args...)
}

func (c *Conn) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if c.rewriter != nil {
		b = c.rewriter.batch(b)
	}
	return c.pooled.SendBatch(ctx, b)
}

func (c *Conn) Begin(ctx context.Context) (pgx.Tx, error) { return c.rewriter.tx(c.pooled.Begin(ctx)) }

func (c *Conn) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	return c.rewriter.tx(c.pooled.BeginTx(ctx, options))
}

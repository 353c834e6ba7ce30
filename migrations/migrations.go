// Package migrations holds callq's schema and brings a database to it.
//
// Any number of processes may call Up at once: an advisory lock lets one apply while the others
// wait and then find nothing to do.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int64  `json:"version"`
	File    string `json:"file"`
	Applied bool   `json:"applied"`
}

// Up applies what is missing and returns it. conn must not go through a pooler in transaction
// mode: the lock belongs to the session.
func Up(ctx context.Context, conn *pgx.ConnConfig) ([]Migration, error) {
	var applied []Migration
	err := withProvider(conn, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		applied = migrated(results, true)
		return err
	})
	return applied, err
}

// Down takes back the newest step and returns it; with nothing applied it returns nil.
func Down(ctx context.Context, conn *pgx.ConnConfig) (*Migration, error) {
	var undone *Migration
	err := withProvider(conn, func(p *goose.Provider) error {
		version, err := p.GetDBVersion(ctx)
		if err != nil || version == 0 {
			return err
		}
		result, err := p.Down(ctx)
		if err != nil {
			return err
		}
		undone = &migrated([]*goose.MigrationResult{result}, false)[0]
		return nil
	})
	return undone, err
}

// Status lists every step and whether it is applied. It changes nothing but goose's own table.
func Status(ctx context.Context, conn *pgx.ConnConfig) ([]Migration, error) {
	var all []Migration
	err := withProvider(conn, func(p *goose.Provider) error {
		steps, err := p.Status(ctx)
		for _, s := range steps {
			all = append(all, Migration{s.Source.Version, s.Source.Path, s.State == goose.StateApplied})
		}
		return err
	})
	return all, err
}

// Version is the newest step that this program knows.
func Version() int64 {
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		panic("migrations: none embedded") // cannot happen: they are compiled in
	}
	version, err := goose.NumericComponent(names[len(names)-1])
	if err != nil {
		panic("migrations: " + err.Error())
	}
	return version
}

// SQL returns every step's text, oldest first, for those who apply migrations by other means.
func SQL() (string, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return "", err
	}
	var text string
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf("-- %s\n%s\n", name, data)
	}
	return text, nil
}

func withProvider(conn *pgx.ConnConfig, use func(*goose.Provider) error) error {
	db := stdlib.OpenDB(*conn)
	defer db.Close()
	provider, err := newProvider(db)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if err := use(provider); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithTableName("callq_migrations"))
}

func migrated(results []*goose.MigrationResult, applied bool) []Migration {
	list := make([]Migration, 0, len(results))
	for _, r := range results {
		list = append(list, Migration{r.Source.Version, r.Source.Path, applied})
	}
	return list
}

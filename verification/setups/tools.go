package main

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/local"
)

// tools is what runs beside callq in many a database: callq's tables are rewritten and dumped, a table of somebody's own is dumped
// alone, and all are published, and their changes decoded. pg_repack 1.4 itself fails where all tables are published.
func tools(ctx context.Context, on *stage) (*servers, error) {
	postgres, err := on.postgresWith(ctx, local.Postgres{}, "wal_level=logical")
	if err != nil {
		return nil, err
	}
	s, err := on.withRedis(ctx, postgres, func(ctx context.Context, _ *world) error {
		err := statements(ctx, postgres.url(), `CREATE EXTENSION pg_repack`, `CREATE TABLE own (id bigint PRIMARY KEY)`)
		for _, args := range [][]string{
			{"pg_dump", "-d", postgres.url(), "-t", "public.own", "-f", "/dev/null"},
			{"pg_dump", "-d", postgres.url(), "-f", "/dev/null"},
			{"pg_repack", "-h", "127.0.0.1", "-p", postgres.port, "-U", "postgres", "-d", "postgres", "-t", "public.call_queue", "-t", "public.call_attempts", "-t", "callq.call_open"},
		} {
			if err == nil {
				err = tool(ctx, args[0], args[1:]...)
			}
		}
		if err == nil {
			err = statements(ctx, postgres.url(), `CREATE PUBLICATION everything FOR ALL TABLES`,
				`SELECT pg_create_logical_replication_slot('everything', 'test_decoding')`)
		}
		return err
	})
	if err == nil {
		s.after = func(ctx context.Context, _ *world) error {
			return one(ctx, postgres.url(), `SELECT count(*) > 0 FROM pg_logical_slot_peek_changes('everything', NULL, NULL)
				WHERE data LIKE 'table public.call_attempts: INSERT:%' OR data LIKE 'table callq.call_inbox: DELETE:%'`)
		}
	}
	return s, err
}

// tool runs a program of Postgres's.
func tool(ctx context.Context, name string, args ...string) error {
	program, err := local.Find("postgres", []string{name})
	if err != nil {
		return err
	}
	if out, err := program.Command(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

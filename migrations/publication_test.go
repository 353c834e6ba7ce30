package migrations_test

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// A publication of all tables, as change data capture and upgrades by replication make, has Postgres refuse to update or delete rows
// of a table that it cannot tell apart. Every table of callq's can be.
func TestTablesCanBePublished(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.NewURL(t))
	without := list(t, conn, `SELECT array_agg(c.oid::regclass::text) FROM pg_class c
		WHERE c.relnamespace IN ('callq'::regnamespace, 'public'::regnamespace) AND c.relkind = 'r' AND NOT (
			c.relreplident = 'f'
			OR c.relreplident = 'd' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
			OR c.relreplident = 'i' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))`)
	if len(without) > 0 {
		t.Errorf("tables without a replica identity: %v", without)
	}
	exec(t, conn, `INSERT INTO call_queue DEFAULT VALUES`)
	exec(t, conn, `CREATE PUBLICATION everything FOR ALL TABLES`)
	exec(t, conn, `DELETE FROM callq.call_inbox`)
	exec(t, conn, `UPDATE call_queue SET priority = 1`)
}

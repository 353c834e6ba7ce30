package ledger_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
)

// Whatever pool a worker is given, its sessions are set as callq's statements need it.
func TestConnect(t *testing.T) {
	t.Parallel()
	given, err := pgxpool.New(t.Context(), pgtest.NewURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(given.Close)
	own, end, err := ledger.Connect(t.Context(), given, schema.Names{}, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for name, want := range ledger.Settings() {
		if name == "timezone" {
			name = "TimeZone"
		}
		var got string
		if err := own.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
	if n := configOf(own).MaxConns; n < 8 {
		t.Errorf("%d connections", n)
	}
	if given.Stat().AcquireCount() > 0 {
		t.Error("the pool that was given was used")
	}
	full, err := pgxpool.NewWithConfig(t.Context(), configOf(own))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(full.Close)
	again, _, err := ledger.Connect(t.Context(), full, schema.Names{}, 8)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Exec(t.Context(), `SELECT`); err != nil || full.Stat().AcquireCount() != 1 {
		t.Errorf("a pool that has all of it is not used as it is (%v)", err)
	}
}

func configOf(db schema.DB) *pgxpool.Config {
	return db.(interface{ Config() *pgxpool.Config }).Config()
}

// Behind a pooler no settings are sent: it would refuse the connection.
func TestConnectThroughAPooler(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(pgtest.NewURL(t) + "&default_query_exec_mode=cache_describe&application_name=shop")
	if err != nil {
		t.Fatal(err)
	}
	given, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(given.Close)
	own, end, err := ledger.Connect(t.Context(), given, schema.Names{}, given.Config().MaxConns+1)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	config = configOf(own)
	params := config.ConnConfig.RuntimeParams
	if config.MaxConns == given.Config().MaxConns || params["plan_cache_mode"] != "" || params["application_name"] != "shop" {
		t.Errorf("its parameters are %v", params)
	}
	if config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe {
		t.Error("its way of sending statements is another")
	}
}

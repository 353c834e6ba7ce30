package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/migrations"
)

// Logins are URLs of one database, each of a login that holds one of callq's roles and no other.
type Logins struct {
	Prefix                             string // of the roles' names
	Producer, Enqueuer, Daemon, Viewer string
}

// NewLogins makes callq's roles, and a login in each, for the database of NewURL. Roles belong to the whole server: these have
// names of their own, and go when t ends.
func NewLogins(t testing.TB, database string) Logins {
	t.Helper()
	l := Logins{Prefix: NewPrefix(t, database)}
	sql, err := migrations.RolesSQL(l.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, database, sql)
	for i, login := range []*string{&l.Producer, &l.Enqueuer, &l.Daemon, &l.Viewer} {
		*login = NewLogin(t, database, migrations.Roles(l.Prefix)[i].Name)
	}
	return l
}

// NewPrefix is what the names of roles may begin with that the test makes in these databases. When t ends, the roles go, with
// what they own and may do there.
func NewPrefix(t testing.TB, databases ...string) string {
	t.Helper()
	prefix := "callq_t" + strings.ToLower(rand.Text())[:12]
	t.Cleanup(func() {
		for i, database := range databases {
			drop := "NULL"
			if i == len(databases)-1 {
				drop = "EXECUTE format('DROP ROLE %I', r)"
			}
			exec(t, database, fmt.Sprintf(dropRolesSQL, prefix, drop))
		}
	})
	return prefix
}

const dropRolesSQL = `
DO $$
DECLARE r name;
BEGIN
    FOR r IN SELECT rolname FROM pg_roles WHERE starts_with(rolname, '%s_') LOOP
        EXECUTE format('DROP OWNED BY %%I CASCADE', r);
        %s;
    END LOOP;
END $$`

// NewLogin makes a login that holds a role, and returns the database's URL for it. The role's name begins the login's.
func NewLogin(t testing.TB, database, role string) string {
	t.Helper()
	name := role + "_login"
	exec(t, database, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%[1]s' IN ROLE %s", name, role))
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, name)
	return u.String()
}

// exec is for set-up and cleaning up: it runs although t ends.
func exec(t testing.TB, database, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), cleanUpWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// pgbouncer starts a pgbouncer in front of a Postgres, and returns its process and a URL through it.
func (on *stage) pgbouncer(ctx context.Context, postgres *database, mode string, settings ...string) (*process, string, error) {
	dir, err := on.folder("pgbouncer-" + mode)
	if err != nil {
		return nil, "", err
	}
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	users, err := file(dir, "users", `"postgres" ""`)
	if err != nil {
		return nil, "", err
	}
	ini, err := file(dir, "pgbouncer.ini", fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"+
		"listen_port = %s\nunix_socket_dir =\nauth_type = trust\nauth_file = %s\npool_mode = %s\nmax_client_conn = 500\ndefault_pool_size = 40\n%s\n",
		postgres.port, port, users, mode, strings.Join(settings, "\n")))
	if err != nil {
		return nil, "", err
	}
	p, err := on.startAsPostgres(dir, "pgbouncer", ini)
	if err != nil {
		return nil, "", err
	}
	return p, "postgres://postgres@127.0.0.1:" + port + "/postgres", until(ctx, "pgbouncer listens", func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// away kills a pooler and starts it again after two seconds.
func away(p *process) func(context.Context, *world) error {
	return func(context.Context, *world) error {
		p.end(syscall.SIGKILL)
		<-time.After(2 * time.Second)
		return p.begin()
	}
}

func pgbouncerTransaction(ctx context.Context, on *stage) (*servers, error) {
	postgres, err := on.postgres(ctx, "")
	if err != nil {
		return nil, err
	}
	pooler, through, err := on.pgbouncer(ctx, postgres, "transaction")
	if err != nil {
		return nil, err
	}
	s, err := on.withRedis(ctx, postgres, away(pooler))
	if err != nil {
		return nil, err
	}
	s.postgres = fmt.Sprintf("{url: %q, query_mode: cache_describe, direct_url: %q}", through, postgres.url())
	return s, nil
}

// ignoreParameters is a pgbouncer's setting: what callq sets in its sessions, but for what each pgbouncer passes on.
func ignoreParameters() string {
	ignored := slices.DeleteFunc(slices.Sorted(maps.Keys(ledger.Settings())), func(name string) bool {
		return slices.Contains([]string{"application_name", "client_encoding", "timezone"}, name)
	})
	return "ignore_startup_parameters = " + strings.Join(ignored, ", ")
}

// pgbouncerSession gives each of callq's connections a session, but drops what callq sets in it.
func pgbouncerSession(ctx context.Context, on *stage) (*servers, error) {
	postgres, err := on.postgres(ctx, "")
	if err != nil {
		return nil, err
	}
	pooler, through, err := on.pgbouncer(ctx, postgres, "session", ignoreParameters())
	if err != nil {
		return nil, err
	}
	s, err := on.withRedis(ctx, postgres, away(pooler))
	if err != nil {
		return nil, err
	}
	s.postgres = fmt.Sprintf("{url: %q}", through)
	return s, nil
}

// pgbouncerRefused are set-ups that cannot work, which callq says, and how to make them work.
func pgbouncerRefused(ctx context.Context, on *stage) (string, error) {
	postgres, err := on.postgres(ctx, "")
	if err != nil {
		return "", err
	}
	s, err := on.withRedis(ctx, postgres, nil)
	if err != nil {
		return "", err
	}
	if _, err := newWorld(ctx, on, s); err != nil {
		return "", err
	}
	_, statement, err := on.pgbouncer(ctx, postgres, "statement")
	if err != nil {
		return "", err
	}
	_, transaction, err := on.pgbouncer(ctx, postgres, "transaction")
	if err != nil {
		return "", err
	}
	inStatements := fmt.Sprintf("{url: %q, query_mode: cache_describe, direct_url: %q}", statement, postgres.url())
	for _, c := range []struct {
		name, postgres, command string
		code                    int
		words                   string
	}{
		{"statement mode", inStatements, "config apply", exitUsage, "set pool_mode = transaction"},
		{"statement mode", inStatements, "doctor", exitFindings, "set pool_mode = transaction"},
		{"no query_mode", fmt.Sprintf("{url: %q, direct_url: %q}", transaction, postgres.url()), "status", exitUsage, "postgres.query_mode: cache_describe"},
		{"no direct_url", fmt.Sprintf("{url: %q, query_mode: cache_describe}", transaction), "serve", exitUsage, "set postgres.direct_url"},
	} {
		config, err := ownFile(on.dir, strings.ReplaceAll(c.name, " ", "-")+".yaml", fmt.Sprintf("postgres: %s\nredis: %s\n", c.postgres, s.redis))
		if err != nil {
			return "", err
		}
		refused := &world{servers: s, on: on, config: config}
		out, err := refused.command(ctx, c.code, strings.Fields(c.command)...)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
		if !strings.Contains(out, c.words) {
			return "", fmt.Errorf("%s: callq does not say %q:\n%s", c.name, c.words, out)
		}
	}
	return "refused, as are transaction mode without query_mode or direct_url", nil
}

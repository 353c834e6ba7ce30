package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// pgpool is a pgpool-II in front of a primary and its standby, which is a second behind. With balance, reads may go to the standby.
func pgpool(balance bool) func(context.Context, *stage) (*servers, error) {
	return func(ctx context.Context, on *stage) (*servers, error) {
		primary, standby, err := on.pair(ctx, false, "recovery_min_apply_delay=1s")
		if err != nil {
			return nil, err
		}
		dir, err := on.folder("pgpool")
		if err != nil {
			return nil, err
		}
		ports, err := freePorts(2)
		if err != nil {
			return nil, err
		}
		mode := map[bool]string{false: "off", true: "on"}[balance]
		config, err := file(dir, "pgpool.conf", fmt.Sprintf(`
listen_addresses = '127.0.0.1'
port = %s
pcp_port = %s
socket_dir = '%s'
pcp_socket_dir = '%[3]s'
work_dir = '%[3]s'
logdir = '%[3]s'
pid_file_name = '%[3]s/pgpool.pid'
backend_clustering_mode = 'streaming_replication'
backend_hostname0 = '127.0.0.1'
backend_port0 = %s
backend_weight0 = 1
backend_flag0 = 'DISALLOW_TO_FAILOVER'
backend_hostname1 = '127.0.0.1'
backend_port1 = %s
backend_weight1 = 1
backend_flag1 = 'DISALLOW_TO_FAILOVER'
sr_check_period = 1
sr_check_user = 'postgres'
sr_check_database = 'postgres'
num_init_children = 64
load_balance_mode = %s
`, ports[0], ports[1], dir, primary.port, standby.port, mode))
		if err != nil {
			return nil, err
		}
		pcp, err := file(dir, "pcp.conf", "")
		if err != nil {
			return nil, err
		}
		pooler, err := on.startAsPostgres(dir, "pgpool", "-n", "-f", config, "-F", pcp)
		if err != nil {
			return nil, err
		}
		s, err := on.withRedis(ctx, primary, func(ctx context.Context, w *world) error {
			pooler.end(syscall.SIGINT) // its connections end at once
			<-time.After(2 * time.Second)
			return pooler.begin()
		})
		if err != nil {
			return nil, err
		}
		through := "postgres://postgres@127.0.0.1:" + ports[0] + "/postgres"
		s.postgres = fmt.Sprintf("{url: %q}", through)
		s.after = readsItsWrites
		return s, until(ctx, "pgpool knows the primary", func() error {
			return one(ctx, through, `SELECT NOT pg_is_in_recovery() AND pg_current_xact_id() IS NOT NULL`)
		})
	}
}

// readsItsWrites is nil if a call can be waited for as soon as it is inserted.
func readsItsWrites(ctx context.Context, w *world) error {
	var wrong []error
	for range 8 {
		id, err := w.command(ctx, 0, "enqueue", "--data", fmt.Sprintf(`{"url": %q}`, w.api.URL()))
		if err == nil {
			_, err = w.command(ctx, 0, "calls", "wait", strings.TrimSpace(id))
		}
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

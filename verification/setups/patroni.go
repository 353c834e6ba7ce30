package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/callq/callq/internal/local"
)

func patroniPackages() []string {
	return []string{"patroni", "etcd-server", "python3-etcd", "python3-psycopg2"}
}

// patroniCluster is two Postgres of which Patroni has one be the primary, by an etcd.
type patroniCluster struct {
	members []*member
	url     string // of whichever is the primary
}

type member struct {
	name, port, rest, data string
	patroni                *process
}

func (on *stage) patroni(ctx context.Context, synchronous bool) (*patroniCluster, error) {
	program, err := local.Find("postgres", []string{"postgres", "initdb", "pg_basebackup", "pg_rewind", "pg_controldata"})
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	dir, err := on.folder("etcd")
	if err != nil {
		return nil, err
	}
	etcd := "127.0.0.1:" + ports[0]
	if _, err := on.startAsPostgres(dir, "etcd", "--data-dir", filepath.Join(dir, "data"), "--listen-client-urls", "http://"+etcd,
		"--advertise-client-urls", "http://"+etcd, "--listen-peer-urls", "http://127.0.0.1:"+ports[1],
		"--initial-advertise-peer-urls", "http://127.0.0.1:"+ports[1], "--initial-cluster", "default=http://127.0.0.1:"+ports[1]); err != nil {
		return nil, err
	}
	c := &patroniCluster{}
	var hosts []string
	for i, name := range []string{"a", "b"} {
		dir, err := on.folder("patroni-" + name)
		if err != nil {
			return nil, err
		}
		m := &member{name: name, port: ports[2+i], rest: "127.0.0.1:" + ports[4+i], data: filepath.Join(dir, "data")}
		config, err := file(dir, "patroni.yml", fmt.Sprintf(`
scope: callq
name: %s
restapi: {listen: '%s', connect_address: '%[2]s'}
etcd3: {host: '%[3]s'}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    synchronous_mode: %[4]t
    postgresql: {use_pg_rewind: true, parameters: {max_connections: 100, unix_socket_directories: ''}}
  initdb: [{encoding: UTF8}, {locale: C}, {auth: trust}]
postgresql:
  listen: 127.0.0.1:%[5]s
  connect_address: 127.0.0.1:%[5]s
  data_dir: %[6]s
  bin_dir: %[7]s
  pgpass: %[8]s/pgpass
  pg_hba: [host all all 127.0.0.1/32 trust, host replication all 127.0.0.1/32 trust]
  authentication: {superuser: {username: postgres, password: none}, replication: {username: replicator, password: none}}
`, name, m.rest, etcd, synchronous, m.port, m.data, program.Dir, dir))
		if err != nil {
			return nil, err
		}
		if m.patroni, err = on.startAsPostgres(dir, "patroni", config); err != nil {
			return nil, err
		}
		// Where Patroni is killed, its Postgres stays.
		on.later(func() { _ = m.kill(syscall.SIGQUIT) })
		c.members = append(c.members, m)
		hosts = append(hosts, "127.0.0.1:"+m.port)
		// The first is to be the primary.
		role := []string{"primary", "replica"}[i]
		if err := until(ctx, name+" is the "+role, func() error { return m.is(ctx, role) }); err != nil {
			return nil, err
		}
	}
	c.url = primaryOf(hosts...)
	return c, until(ctx, "the standby streams", func() error {
		return one(ctx, c.url, fmt.Sprintf(`SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming' AND (sync_state = 'sync' OR NOT %t)`, synchronous))
	})
}

// is is nil if Patroni says that the member has this role: primary or replica.
func (m *member) is(ctx context.Context, role string) error {
	return m.ask(ctx, http.MethodGet, role, nil)
}

// ask has Patroni's API answer 200.
func (m *member) ask(ctx context.Context, method, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+m.rest+"/"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("patroni's /%s: %s: %s", path, response.Status, said)
	}
	return err
}

// kill ends the member's Postgres by a signal.
func (m *member) kill(sig syscall.Signal) error {
	text, err := os.ReadFile(filepath.Join(m.data, "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

func (c *patroniCluster) servers(ctx context.Context, on *stage, fault func(context.Context, *world) error) (*servers, error) {
	s, err := on.withRedis(ctx, &database{}, fault)
	if err != nil {
		return nil, err
	}
	s.admin, s.postgres, s.failsOver = c.url, fmt.Sprintf("{url: %q}", c.url), true
	return s, nil
}

// patroniSwitchover has the other member be the primary, in order.
func patroniSwitchover(ctx context.Context, on *stage) (*servers, error) {
	c, err := on.patroni(ctx, false)
	if err != nil {
		return nil, err
	}
	return c.servers(ctx, on, func(ctx context.Context, _ *world) error {
		return c.members[0].ask(ctx, http.MethodPost, "switchover", map[string]string{"leader": "a", "candidate": "b"})
	})
}

// patroniKill kills the primary and its Patroni. The standby is synchronous: it has all that was acknowledged.
func patroniKill(ctx context.Context, on *stage) (*servers, error) {
	c, err := on.patroni(ctx, true)
	if err != nil {
		return nil, err
	}
	return c.servers(ctx, on, func(ctx context.Context, _ *world) error {
		a, b := c.members[0], c.members[1]
		_ = a.patroni.cmd.Process.Signal(syscall.SIGSTOP) // it is not to start Postgres again
		err := errors.Join(a.kill(syscall.SIGKILL), a.patroni.cmd.Process.Kill())
		<-a.patroni.done
		if err != nil {
			return err
		}
		return until(ctx, "b is the primary", func() error { return b.is(ctx, "primary") })
	})
}

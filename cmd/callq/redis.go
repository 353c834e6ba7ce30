package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/config"
)

// openRedis makes a client and does not connect: of one server, of the master that sentinels name,
// or of a cluster. Timeouts and pool sizes in the URL hold. go-redis reports to log, for the whole
// process.
func openRedis(cfg *config.Config, log *slog.Logger) (redis.UniversalClient, error) {
	redis.SetLogger(redisLog{log})
	url, err := cfg.RedisURL()
	if err != nil {
		return nil, err
	}
	first, more := config.RedisServers(url)
	parsed, err := redis.ParseURL(first)
	if err != nil {
		return nil, usagef("read redis.url: %w", err)
	}
	if err := trust(cfg, parsed); err != nil {
		return nil, err
	}
	sentinel, cluster := cfg.Redis.Sentinel != "", cfg.Redis.Cluster
	origin := cfg.Origin("redis.url")
	switch {
	case (sentinel || cluster) && parsed.Network == "unix":
		return nil, usagef("redis.url (from %s) is a socket: sentinels and clusters are reached over the network", origin)
	case !sentinel && !cluster && len(more) > 0:
		return nil, usagef("redis.url (from %s) names several servers: set redis.sentinel or redis.cluster", origin)
	case sentinel && cluster:
		return nil, usagef("redis.sentinel (from %s) is given beside redis.cluster: a cluster needs no sentinels",
			cfg.Origin("redis.sentinel"))
	case cluster && parsed.DB != 0:
		return nil, usagef("redis.url (from %s) names database %d: a cluster has none but 0", origin, parsed.DB)
	}
	parsed.DialTimeout = cmp.Or(parsed.DialTimeout, redisWithin)
	parsed.ReadTimeout = cmp.Or(parsed.ReadTimeout, redisWithin)
	parsed.WriteTimeout = cmp.Or(parsed.WriteTimeout, redisWithin)
	parsed.ContextTimeoutEnabled = true
	parsed.DialerRetries = 1 // who waits for Redis asks again, and hears why it is away
	if !sentinel && !cluster {
		return redis.NewClient(parsed), nil
	}
	if parsed.TLSConfig != nil {
		parsed.TLSConfig.ServerName = "" // each server has its own
	}
	options := &redis.UniversalOptions{
		Addrs: append([]string{parsed.Addr}, more...), MasterName: cfg.Redis.Sentinel, SentinelPassword: cfg.Redis.SentinelPassword,
		Username: parsed.Username, Password: parsed.Password, DB: parsed.DB, TLSConfig: parsed.TLSConfig,
		DialTimeout: parsed.DialTimeout, ReadTimeout: parsed.ReadTimeout, WriteTimeout: parsed.WriteTimeout,
		PoolSize: parsed.PoolSize, MaxRetries: parsed.MaxRetries, DialerRetries: parsed.DialerRetries, ContextTimeoutEnabled: true,
	}
	if sentinel {
		return redis.NewFailoverClient(options.Failover()), nil
	}
	ofCluster := options.Cluster()
	ofCluster.ClusterStateReloadInterval = 2 * time.Second // by default go-redis asks a dead node for a minute
	return redis.NewClusterClient(ofCluster), nil
}

// redisWithin is the default of timeouts.
const redisWithin = 2 * time.Second

// trust lets the client believe the authority in redis.ca_file, and no other.
func trust(cfg *config.Config, options *redis.Options) error {
	file, origin := cfg.Redis.CAFile, cfg.Origin("redis.ca_file")
	if file == "" {
		return nil
	}
	if options.TLSConfig == nil {
		return usagef("redis.ca_file (from %s) is for TLS, and the Redis URL is not rediss://", origin)
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return usagef("read redis.ca_file (from %s): %w", origin, err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return usagef("redis.ca_file (from %s): %s holds no certificate in PEM", origin, file)
	}
	options.TLSConfig.RootCAs = authorities
	return nil
}

// isTLS reports whether a server was reached and TLS with it failed: waiting does not help.
func isTLS(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.As(err, new(tls.RecordHeaderError)) || // it answers, but not in TLS
		errors.As(err, new(x509.UnknownAuthorityError)) || // with sslmode=verify-ca
		err != nil && strings.Contains(err.Error(), "server refused TLS connection") // pgx gives no other sign
}

func tlsSettings(server string) string {
	if server == "Postgres" {
		return "sslmode and sslrootcert (PGSSLMODE, PGSSLROOTCERT), and that the certificate names the URL's host"
	}
	return "redis.ca_file, rediss:// or redis://, and that the certificate names the URL's host"
}

// redisLog passes go-redis's own log lines to slog. Callers say what matters of them.
type redisLog struct{ log *slog.Logger }

// Printf is what go-redis calls.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, "go-redis reported", "message", fmt.Sprintf(format, args...))
}

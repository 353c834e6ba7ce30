package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/handoff"
)

func (a *app) awaitRedis(ctx context.Context, cfg *config.Config, client redis.UniversalClient) error {
	return a.await(ctx, "Redis", cfg.Origin("redis.url"), func(ctx context.Context) error { return pingRedis(ctx, cfg, client) })
}

// withRedis does what needs a Redis that answers.
func (a *app) withRedis(ctx context.Context, cfg *config.Config, do func(redis.UniversalClient) error) error {
	client, err := openRedis(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := a.awaitRedis(ctx, cfg, client); err != nil {
		return err
	}
	return do(client)
}

// openRedis makes a client and does not connect: of one server, of the master that sentinels name,
// or of a cluster. Timeouts and pool sizes in the URL hold. go-redis is told to log nothing, in the whole process:
// callers say what matters of it.
func openRedis(cfg *config.Config) (redis.UniversalClient, error) {
	logging.Disable()
	url, err := cfg.RedisURL()
	if err != nil {
		return nil, err
	}
	first, more := config.RedisServers(url)
	parsed, err := redis.ParseURL(first)
	if err != nil {
		return nil, usagef("read redis.url: %w", err)
	}
	sentinel, cluster := cfg.Redis.Sentinel != "", cfg.Redis.Cluster
	origin := cfg.Origin("redis.url")
	switch {
	case !sentinel && !cluster && len(more) > 0:
		return nil, usagef("redis.url (from %s) names several servers: set redis.sentinel or redis.cluster", origin)
	case sentinel && cluster:
		return nil, usagef("redis.sentinel (from %s) is given beside redis.cluster: a cluster needs no sentinels",
			cfg.Origin("redis.sentinel"))
	case cluster && parsed.DB != 0:
		return nil, usagef("redis.url (from %s) names database %d: a cluster has none but 0", origin, parsed.DB)
	}
	if err := secureRedis(cfg, parsed); err != nil {
		return nil, err
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
		Addrs: append([]string{parsed.Addr}, more...), MasterName: cfg.Redis.Sentinel,
		SentinelUsername: cfg.Redis.SentinelUsername, SentinelPassword: cfg.Redis.SentinelPassword,
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

// secureRedis gives a client the files of redis.tls.
func secureRedis(cfg *config.Config, options *redis.Options) error {
	files := cfg.Redis.TLS
	switch {
	case files == config.RedisTLS{}:
		return nil
	case options.TLSConfig == nil:
		return usagef("redis.tls is given, and redis.url (from %s) asks for no TLS: begin it with rediss://", cfg.Origin("redis.url"))
	case (files.Cert == "") != (files.Key == ""):
		return usagef("redis.tls needs both cert and key, or neither")
	}
	if files.CA != "" {
		text, err := os.ReadFile(files.CA)
		if err != nil {
			return usagef("redis.tls.ca: %w", err)
		}
		options.TLSConfig.RootCAs = x509.NewCertPool()
		if !options.TLSConfig.RootCAs.AppendCertsFromPEM(text) {
			return usagef("redis.tls.ca: %s holds no certificate in PEM", files.CA)
		}
	}
	if files.Cert != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
			return &pair, err
		}
		if _, err := load(nil); err != nil {
			return usagef("redis.tls.cert and redis.tls.key: %w", err)
		}
		options.TLSConfig.GetClientCertificate = load // they are renewed while the process lives
	}
	return nil
}

// pingRedis asks whether Redis answers, and is what the configuration takes it for: a sentinel or one node of a cluster answers, too,
// and carries nothing, or a part.
func pingRedis(ctx context.Context, cfg *config.Config, client redis.UniversalClient) error {
	if err := client.Ping(ctx).Err(); err != nil || cfg.Redis.Sentinel != "" || cfg.Redis.Cluster {
		return err
	}
	info, _ := client.Info(ctx, "server").Result() // a login may not be allowed to ask
	for mode, setting := range map[string]string{"sentinel": "redis.sentinel to the master's name", "cluster": "redis.cluster: true"} {
		if strings.Contains(info, "redis_mode:"+mode) {
			return usagef("redis.url (from %s) leads to a %s: set %s", cfg.Origin("redis.url"), mode, setting)
		}
	}
	return nil
}

// askRedis asks for what a hand-over needs, as doctor does. refused is what it says against that, and away why it could not be asked.
func askRedis(ctx context.Context, cfg *config.Config) (refused, away string) {
	client, err := openRedis(cfg)
	if err != nil {
		return "", explained(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := pingRedis(ctx, cfg, client); err != nil {
		return "", explained(err)
	}
	if err := handoff.Probe(ctx, client, "callq:doctor"); err != nil {
		return explained(err), ""
	}
	return "", ""
}

// openBudgets makes a client of the budgets' own Redis, a cluster if its URL names several servers; nil: they have none.
func openBudgets(cfg *config.Config) (redis.UniversalClient, error) {
	if cfg.Redis.BudgetsURL == "" {
		return nil, nil
	}
	own := *cfg
	_, more := config.RedisServers(cfg.Redis.BudgetsURL)
	own.Redis = config.Redis{URL: cfg.Redis.BudgetsURL, Cluster: len(more) > 0, TLS: cfg.Redis.TLS}
	return openRedis(&own)
}

// redisWithin is the default of timeouts.
const redisWithin = 2 * time.Second

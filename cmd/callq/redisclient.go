package main

import (
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/config"
)

// openRedis makes a client and does not connect: of one server, of the master that sentinels name, or of a
// cluster. What the URL says of timeouts and the pool holds. What go-redis itself reports, for the whole
// process, goes to log.
func openRedis(cfg *config.Config, log *slog.Logger) (redis.UniversalClient, error) {
	redis.SetLogger(redisLog{log})
	url, err := cfg.RedisURL()
	if err != nil {
		return nil, err
	}
	first, more := config.RedisServers(url)
	options, err := redis.ParseURL(first)
	if err != nil {
		return nil, usagef("read redis.url: %w", err)
	}
	if err := trust(cfg, options); err != nil {
		return nil, err
	}
	for _, timeout := range []*time.Duration{&options.DialTimeout, &options.ReadTimeout, &options.WriteTimeout} {
		if *timeout == 0 {
			*timeout = 2 * time.Second
		}
	}
	const dials = 1 // who waits for Redis asks again, and hears why it is away
	servers := append([]string{options.Addr}, more...)
	origin := cfg.Origin("redis.url")
	several := cfg.Redis.Sentinel != "" || cfg.Redis.Cluster
	switch {
	case several && options.Network == "unix":
		return nil, usagef("redis.url (from %s) is a socket: sentinels and clusters are reached over the network", origin)
	case several && options.TLSConfig != nil:
		options.TLSConfig.ServerName = "" // each server's own
	case !several && len(more) > 0:
		return nil, usagef("redis.url (from %s) names several servers: set redis.sentinel or redis.cluster", origin)
	}
	switch {
	case cfg.Redis.Sentinel != "" && cfg.Redis.Cluster:
		return nil, usagef("redis.sentinel (from %s) is given beside redis.cluster: a cluster needs no sentinels",
			cfg.Origin("redis.sentinel"))
	case cfg.Redis.Sentinel != "":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: cfg.Redis.Sentinel, SentinelAddrs: servers, SentinelPassword: cfg.Redis.SentinelPassword,
			Username: options.Username, Password: options.Password, DB: options.DB, TLSConfig: options.TLSConfig,
			DialTimeout: options.DialTimeout, ReadTimeout: options.ReadTimeout, WriteTimeout: options.WriteTimeout,
			PoolSize: options.PoolSize, MaxRetries: options.MaxRetries, DialerRetries: dials, ContextTimeoutEnabled: true,
		}), nil
	case cfg.Redis.Cluster && options.DB != 0:
		return nil, usagef("redis.url (from %s) names database %d: a cluster has none but 0", origin, options.DB)
	case cfg.Redis.Cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: servers, Username: options.Username, Password: options.Password, TLSConfig: options.TLSConfig,
			DialTimeout: options.DialTimeout, ReadTimeout: options.ReadTimeout, WriteTimeout: options.WriteTimeout,
			PoolSize: options.PoolSize, MaxRetries: options.MaxRetries, DialerRetries: dials, ContextTimeoutEnabled: true,
			ClusterStateReloadInterval: 2 * time.Second, // by default a node that has died is asked for a minute
		}), nil
	}
	options.ContextTimeoutEnabled, options.DialerRetries = true, dials
	return redis.NewClient(options), nil
}

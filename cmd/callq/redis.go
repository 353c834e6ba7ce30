package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// checkRedis warns of a Redis that may lose messages or is too old. Nothing is lost for
// good by that, for Postgres is the authority: calls only wait longer.
func (s servers) checkRedis(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	info, err := s.redis.Info(ctx, "server").Result()
	version := infoField(info, "redis_version")
	switch {
	case err != nil || version == "":
		s.log.WarnContext(ctx, "Redis does not tell its version; 6.2 or newer is needed", "err", err)
	case !atLeast(version, 6, 2):
		s.log.WarnContext(ctx, "Redis is too old; 6.2 or newer is needed", "version", version)
	}
	policy, err := s.redis.ConfigGet(ctx, "maxmemory-policy").Result()
	switch set := policy["maxmemory-policy"]; {
	case err != nil || set == "":
		s.log.WarnContext(ctx, "Redis does not tell its maxmemory-policy; noeviction is needed", "err", err)
	case set != "noeviction":
		s.log.WarnContext(ctx, "Redis may evict what it holds; set maxmemory-policy noeviction", "maxmemory-policy", set)
	}
}

// infoField reads a field of INFO's answer, "" if it is not there.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

func atLeast(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(first)
	b, err2 := strconv.Atoi(second)
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}

// redisLog gives go-redis's own log lines to slog: what matters of them is said by its callers.
type redisLog struct{ log *slog.Logger }

// Printf is what go-redis calls.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, "go-redis reported", "message", fmt.Sprintf(format, args...))
}

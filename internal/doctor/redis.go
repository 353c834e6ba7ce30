package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/handoff"
)

// Redis examines Redis. It returns an error only if Redis cannot be reached.
func Redis(ctx context.Context, client redis.UniversalClient) ([]Finding, error) {
	info, err := client.Info(ctx, "server", "memory").Result()
	if err != nil && !redis.HasErrorPrefix(err, "ERR") { // a stand-in may not know the sections
		return nil, fmt.Errorf("ask Redis: %w", err)
	}
	found := readRedis(info)
	paused, err := handoff.Paused(ctx, client)
	if err != nil {
		return nil, err
	}
	if len(paused) == 0 {
		return append(found, Finding{Check: "asynq queues", Level: OK}), nil
	}
	for _, queue := range paused {
		found = append(found, Finding{
			"asynq queues", Problem, "Asynq queue " + queue + " is paused: its workers take nothing",
			"resume it in Asynqmon, or redis-cli DEL 'asynq:{" + queue + "}:paused'; to pause calls: callq queues pause",
		})
	}
	return found, nil
}

// readRedis judges the answer to INFO. Managed servers often refuse CONFIG, so doctor does not ask for that.
func readRedis(text string) []Finding {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	version := Finding{"redis version", OK, info["redis_version"], ""}
	var major, minor int
	if _, err := fmt.Sscanf(version.What, "%d.%d", &major, &minor); err != nil {
		version.Level, version.What, version.Fix = Note, "Redis does not tell its version", "see that it is 6.2 or newer"
	} else if major < 6 || major == 6 && minor < 2 {
		version.Level, version.What, version.Fix = Problem, "Redis is "+version.What, "upgrade it to 6.2 or newer"
	}
	eviction := Finding{"redis eviction", OK, info["maxmemory_policy"], ""}
	switch eviction.What {
	case "noeviction":
	case "":
		eviction.Level, eviction.What, eviction.Fix = Note, "Redis does not tell its maxmemory-policy", "see that it is noeviction"
	default:
		eviction.Level = Problem
		eviction.What = "maxmemory-policy is " + eviction.What + ": calls that were handed over may be evicted, and are then late by seconds"
		eviction.Fix = "redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf"
	}
	used, most := number(info["used_memory"]), number(info["maxmemory"])
	memory := Finding{"redis memory", OK, Size(used) + " used", ""}
	if most > 0 {
		memory.What += " of " + Size(most)
		if used > most/10*9 {
			memory.Level, memory.Fix = Problem, "raise maxmemory, or move what else is in this Redis: callq needs a few megabytes"
		}
	}
	return []Finding{version, eviction, memory}
}

// number returns 0 for what is not one.
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Size writes a number of bytes for people.
func Size(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/1000, 0
	for f >= 999.5 && unit < len(units)-1 {
		f, unit = f/1000, unit+1
	}
	return fmt.Sprintf("%.3g %cB", f, units[unit])
}

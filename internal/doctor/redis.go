package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// readRedis judges what INFO says. Managed servers often refuse CONFIG, so that is not asked.
func readRedis(info string) []Finding {
	found := []Finding{redisVersion(field(info, "redis_version")), evictionPolicy(field(info, "maxmemory_policy"))}
	found[0].Check, found[1].Check = "redis version", "redis eviction"
	used, most := number(info, "used_memory"), number(info, "maxmemory")
	memory := Finding{Check: "redis memory", Level: OK, What: size(used) + " used"}
	if most > 0 {
		memory.What += " of " + size(most)
		if used > most/10*9 {
			memory.Level, memory.Fix = Problem, "raise maxmemory, or move what else is in this Redis: callq needs a few megabytes"
		}
	}
	return append(found, memory)
}

// asynqQueues judges the queues that are paused in Asynq, as Asynqmon can.
func asynqQueues(paused []string) []Finding {
	if len(paused) == 0 {
		return []Finding{{Check: "asynq queues", Level: OK}}
	}
	var found []Finding
	for _, queue := range paused {
		found = append(found, Finding{
			Check: "asynq queues", Level: Problem, What: "Asynq queue " + queue + " is paused: its workers take nothing",
			Fix: "resume it in Asynqmon, or redis-cli DEL 'asynq:{" + queue + "}:paused'; to pause calls: callq queues pause",
		})
	}
	return found
}

func redisVersion(version string) Finding {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	switch {
	case err != nil || err2 != nil:
		return Finding{Level: Note, What: "Redis does not tell its version", Fix: "see that it is 6.2 or newer"}
	case a < 6 || a == 6 && b < 2:
		return Finding{Level: Problem, What: "Redis is " + version, Fix: "upgrade it to 6.2 or newer"}
	}
	return Finding{Level: OK, What: version}
}

func evictionPolicy(policy string) Finding {
	switch policy {
	case "noeviction":
		return Finding{Level: OK, What: policy}
	case "":
		return Finding{Level: Note, What: "Redis does not tell its maxmemory-policy", Fix: "see that it is noeviction"}
	}
	return Finding{
		Level: Problem,
		What:  "maxmemory-policy is " + policy + ": calls that were handed over may be evicted, and are then late by seconds",
		Fix:   "redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf",
	}
}

// field reads a field of INFO's answer, "" if it is not there.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

func number(info, name string) int64 {
	n, err := strconv.ParseInt(field(info, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// size writes bytes for people.
func size(n int64) string {
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

package budget

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// The scripts with a clock that the caller gives, by which Redis lets nothing expire.
const atLua = `
local now, server = tonumber(ARGV[#ARGV]), redis
local redis = {call = function(verb, key, ...)
    if verb == 'PEXPIRE' then return end
    if verb == 'SET' then return server.call(verb, key, (...)) end
    return server.call(verb, key, ...)
end}
`

var (
	atScript         = redis.NewScript(atLua + tokenLua + budgetLua + drawLua)
	adjustAtScript   = redis.NewScript(atLua + budgetLua + adjustLua)
	peekAtScript     = redis.NewScript(atLua + budgetLua + peekLua)
	throttleAtScript = redis.NewScript(atLua + budgetLua + throttleLua)
)

// DrawAt is Draw at a moment of Redis's clock.
func DrawAt(ctx context.Context, client redis.Scripter, most time.Duration, now time.Time, units ...Units) (Grant, error) {
	return draw(ctx, client, atScript, "", most, units, now.UnixMicro())
}

// AdjustAt is Adjust at a moment of Redis's clock.
func AdjustAt(ctx context.Context, client redis.Scripter, u Units, drawn Part, by int64, now time.Time) error {
	_, err := run(ctx, client, adjustAtScript, by, drawn.mark, []Units{u}, now.UnixMicro())
	return err
}

// FreeAt is how many units are free at a moment of Redis's clock.
func FreeAt(ctx context.Context, client redis.Scripter, u Units, now time.Time) (int64, error) {
	answer, err := run(ctx, client, peekAtScript, 0, "", []Units{u}, now.UnixMicro())
	if err != nil {
		return 0, err
	}
	return answer[1], nil
}

// ThrottleAt is Throttle at a moment of Redis's clock.
func ThrottleAt(ctx context.Context, client redis.Scripter, u Units, now time.Time) (float64, error) {
	answer, err := run(ctx, client, throttleAtScript, 0, "", []Units{u}, now.UnixMicro())
	if err != nil {
		return 0, err
	}
	return float64(answer[1]) / 1000, nil
}

// Key is where Redis keeps a budget.
func Key(name string) string { return Units{Name: name}.redisKey() }

// Raw runs draw.lua with what the caller says of a budget.
func Raw(ctx context.Context, client redis.Scripter, of ...any) error {
	return drawScript.Run(ctx, client, []string{"raw"}, append([]any{-1, ""}, of...)...).Err()
}

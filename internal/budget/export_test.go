package budget

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// atScript is Draw's with a clock that the caller gives, by which Redis lets nothing expire.
var atScript = redis.NewScript(`
local now, server = tonumber(ARGV[6]), redis
local redis = {call = function(verb, ...) return verb ~= 'PEXPIRE' and server.call(verb, ...) end}
` + bucketLua + drawLua)

// DrawAt is Draw at a moment of Redis's clock.
func DrawAt(ctx context.Context, client redis.Scripter, name string, rule Rule, n int64, most time.Duration, now time.Time) (Grant, error) {
	return draw(ctx, client, atScript, name, rule, n, most, now.UnixMicro())
}

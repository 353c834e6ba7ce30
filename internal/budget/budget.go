// Package budget draws on token buckets in Redis: what handlers do while they run, for calls that are not
// known when their own call is dispatched.
//
// It promises, on Redis's clock and while that clock is not set forward: the units granted in any span of
// length t are at most burst + rate x t, and grants come in the order in which they were asked for. Redis
// alone keeps the bucket, so what it loses is forgotten: then the bucket is full again.
package budget

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/limit"
)

// MaxBurst, and limit.MaxWindow as the longest time to fill an empty bucket, keep the script's arithmetic, in numbers of 53
// bits, on the safe side.
const MaxBurst = 1_000_000_000

// Rule is a bucket that holds Burst units at most and gains Rate.Units in each Rate.Window, evenly.
type Rule struct {
	Rate  limit.Rate
	Burst int64
}

// Check refuses what the script cannot keep.
func (r Rule) Check() error {
	switch {
	case r.Rate.Units < 1 || r.Rate.Units > limit.MaxUnits || r.Rate.Window < limit.MinWindow || r.Rate.Window > limit.MaxWindow:
		return errors.New("the rate must have 1 to 1e12 units and a window of 10ms to 366d")
	case r.Burst < 1 || r.Burst > MaxBurst:
		return fmt.Errorf("the burst must be 1 to %d", MaxBurst)
	}
	if float64(r.Burst)*float64(r.Rate.Window) > float64(limit.MaxWindow)*float64(r.Rate.Units) {
		return errors.New("a burst would take longer than 366d to come back")
	}
	return nil
}

// String is "100 per 1s, burst 20".
func (r Rule) String() string { return fmt.Sprintf("%s, burst %d", RateString(r.Rate), r.Burst) }

// RateString is "100 per 1s": of a budget's rate there is no window that slides.
func RateString(r limit.Rate) string {
	text, _, _ := strings.Cut(r.String(), ",")
	return text
}

// Key is the Redis key of a budget; the braces keep it in one slot of a cluster.
func Key(name string) string { return "callq:budget:{" + name + "}" }

// Grant is what a draw was answered.
type Grant struct {
	Drawn bool          // false: nothing was taken
	Wait  time.Duration // until the units may be used; where nothing was taken, until they could have been
	At    time.Time     // the end of Wait on Redis's clock
}

// Forever lets a draw wait for any time.
const Forever time.Duration = -1

// Draw takes n units, n being at most the burst, if they may be used within most (Forever: whenever that
// is). The wait counts from when Redis answered, so whoever sleeps so long from when the answer came is late
// rather than early. After an error the units may have been taken all the same.
func Draw(ctx context.Context, client redis.Scripter, name string, rule Rule, n int64, most time.Duration) (Grant, error) {
	return draw(ctx, client, drawScript, name, rule, n, most)
}

func draw(ctx context.Context, client redis.Scripter, script *redis.Script, name string, rule Rule, n int64, most time.Duration, more ...any) (Grant, error) {
	micros := int64(-1)
	if most >= 0 {
		micros = most.Microseconds()
	}
	args := append([]any{rule.Rate.Units, rule.Rate.Window.Microseconds(), rule.Burst, n, micros}, more...)
	answer, err := script.Run(ctx, client, []string{Key(name)}, args...).Int64Slice()
	if err != nil {
		return Grant{}, err
	}
	wait := time.Duration(answer[1]) * time.Microsecond
	return Grant{Drawn: answer[0] == 1, Wait: wait, At: time.UnixMicro(answer[2]).Add(wait)}, nil
}

// Look says how many units are free now; where none are because draws wait for their turn, until when the last of these waits.
func Look(ctx context.Context, client redis.Scripter, name string, rule Rule) (free int64, waiting time.Duration, err error) {
	answer, err := lookScript.Run(ctx, client, []string{Key(name)}, rule.Rate.Units, rule.Rate.Window.Microseconds(), rule.Burst).Int64Slice()
	if err != nil {
		return 0, 0, err
	}
	return answer[0], time.Duration(answer[1]) * time.Microsecond, nil
}

// Of the arguments the first three are the rule's, whoever asks.
var (
	//go:embed bucket.lua
	bucketLua string
	//go:embed draw.lua
	drawLua string
	//go:embed look.lua
	lookLua string

	drawScript = redis.NewScript(clockLua + bucketLua + drawLua)
	lookScript = redis.NewScript(clockLua + bucketLua + lookLua)
)

const clockLua = `
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
`

// Package budget draws on budgets in Redis: what handlers do while they run, for calls that are not known when their own
// call is dispatched.
//
// It promises, on Redis's clock and while that clock is not set forward, what a budget's algorithm allows: of a token bucket
// the units granted in any span of length t are at most burst + rate x t, of windows at most their units in each. Grants come
// in the order in which they were asked for, and several budgets are drawn on at once or not at all. Redis alone keeps the
// state, so what it loses is forgotten: then the budget is as if it had never been used.
package budget

import (
	"context"
	_ "embed"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Units are units of a budget, of those per key of one key.
type Units struct {
	Name string
	Rule Rule // which was checked
	Key  string
	N    int64
}

// redisKey is where Redis keeps the budget. All keys of what stands before the first slash of a name lie in one slot of a cluster.
func (u Units) redisKey() string {
	group, rest, found := strings.Cut(u.Name, "/")
	group, rest = escaped.Replace(group), escaped.Replace(rest)
	if found {
		rest = "/" + rest
	}
	if u.Rule.PerKey {
		rest += ":k:" + escaped.Replace(u.Key)
	}
	return "callq:budget:{" + group + "}" + rest
}

// escaped takes out of names and keys what the names in Redis are built with: else that of key a's log would be that of key "a:log".
var escaped = strings.NewReplacer("%", "%25", ":", "%3A", "#", "%23", "{", "%7B", "}", "%7D")

// Promised is the key of a hash in Redis: what the budget owes to attempts (see needs), which have not drawn it yet. A field is the
// owner of a draw, a value begins with units.
func (u Units) Promised() string { return u.redisKey() + ":promised" }

// Owner is whose promises those of a call's open attempt are: several databases may share a Redis.
func Owner(database string, call int64) string { return database + ":" + strconv.FormatInt(call, 10) }

// Grant is what a draw was answered.
type Grant struct {
	Drawn bool          // false: nothing was taken
	Wait  time.Duration // until the units may be used; where nothing was taken, until they could have been
	At    time.Time     // the end of Wait on Redis's clock
	Last  int           // the budget that it waits for
	Parts []Part        // what was drawn, of each budget
}

// Part is what one budget gave.
type Part struct {
	Multiplier float64 // of its rate, see Throttle; 1: the whole
	mark       int64
}

// Forever lets a draw wait for any time.
const Forever time.Duration = -1

// Draw takes units of one or several budgets, all or none, if they may be used within most (Forever: whenever that is). All are
// granted at one moment. Units promised to owner are promised no more; "": there is no owner. The wait counts from when Redis answered, so
// sleeping so long from when the answer came is late rather than early. After an error the units may have been taken all
// the same. On a cluster, several budgets must have one name up to the first slash.
func Draw(ctx context.Context, client redis.Scripter, owner string, most time.Duration, units ...Units) (Grant, error) {
	return draw(ctx, client, drawScript, owner, most, units)
}

func draw(
	ctx context.Context, client redis.Scripter, script *redis.Script, owner string, most time.Duration, units []Units, more ...any,
) (g Grant, err error) {
	micros := int64(-1)
	if most >= 0 {
		micros = most.Microseconds()
	}
	answer, err := run(ctx, client, script, micros, owner, units, more...)
	if err != nil {
		return Grant{}, err
	}
	g.Drawn, g.Wait, g.Last = answer[0] == 1, time.Duration(answer[1])*time.Microsecond, int(answer[3]-1)
	g.At = time.UnixMicro(answer[2]).Add(g.Wait)
	for rest := answer[4:]; len(rest) > 1; rest = rest[2:] {
		g.Parts = append(g.Parts, Part{Multiplier: float64(rest[0]) / 1000, mark: rest[1]})
	}
	return g, nil
}

// Adjust takes more units than a draw did, above 0, or gives some of them back, below 0. More was used already: it waits for
// nothing, and later draws wait for it.
func Adjust(ctx context.Context, client redis.Scripter, u Units, drawn Part, by int64) error {
	_, err := run(ctx, client, adjustScript, by, drawn.mark, []Units{u})
	return err
}

// Throttle halves a budget's rate, or lowers it to a sixteenth at least, once a second at most. It comes back within a minute.
func Throttle(ctx context.Context, client redis.Scripter, u Units) (multiplier float64, err error) {
	answer, err := run(ctx, client, throttleScript, 0, "", []Units{u})
	if err != nil {
		return 0, err
	}
	return float64(answer[1]) / 1000, nil
}

// State is how a budget is.
type State struct {
	Free       int64         // units that may be drawn at once
	Waiting    time.Duration // until the last of the draws that wait has its units
	Multiplier float64
	Promised   int64         // units that attempts were promised
	Until      time.Duration // until so many may be free as were asked for, besides those
}

// Peek reads the state of budgets.
func Peek(ctx context.Context, client redis.Scripter, units ...Units) ([]State, error) {
	answer, err := run(ctx, client, peekScript, 0, "", units)
	if err != nil {
		return nil, err
	}
	states := make([]State, len(units))
	for i, u := range units {
		of := answer[1+5*i:]
		s := &states[i]
		s.Free, s.Waiting, s.Multiplier = of[0], time.Duration(of[1])*time.Microsecond, float64(of[2])/1000
		if s.Promised, s.Until = of[3], time.Duration(of[4])*time.Microsecond; s.Promised > 0 {
			s.Until = max(s.Until, u.Rule.backIn(time.UnixMicro(answer[0]), u, s))
		}
	}
	return states, nil
}

// run runs a script. Only Redis's clock decides which windows of a calendar are meant: those around this machine's are given, and
// others if it answers that they lie elsewhere.
func run(
	ctx context.Context, client redis.Scripter, script *redis.Script, first, second any, units []Units, more ...any,
) ([]int64, error) {
	near, keys := make([]time.Time, len(units)), make([]string, len(units))
	for i, u := range units {
		near[i], keys[i] = time.Now(), u.redisKey()
	}
	for range 3 * len(units) {
		args := append(make([]any, 0, 3+5*len(units)), first, second)
		for i, u := range units {
			args = append(u.Rule.args(args, u.Key, near[i]), u.N)
		}
		answer, err := script.Run(ctx, client, keys, append(args, more...)...).Int64Slice()
		if err != nil || answer[0] != -1 {
			return answer, judged(err)
		}
		near[answer[1]-1] = time.UnixMicro(answer[2])
	}
	return nil, errors.New("the calendar's windows move: is Redis's clock being set?")
}

var (
	//go:embed token.lua
	tokenLua string
	//go:embed budget.lua
	budgetLua string
	//go:embed draw.lua
	drawLua string
	//go:embed peek.lua
	peekLua string
	//go:embed adjust.lua
	adjustLua string
	//go:embed throttle.lua
	throttleLua string

	drawScript     = redis.NewScript(clockLua + tokenLua + budgetLua + drawLua)
	peekScript     = redis.NewScript(clockLua + budgetLua + peekLua)
	adjustScript   = redis.NewScript(clockLua + budgetLua + adjustLua)
	throttleScript = redis.NewScript(clockLua + budgetLua + throttleLua)
)

const clockLua = `
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
`

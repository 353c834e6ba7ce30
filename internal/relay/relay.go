// Package relay carries attempts from the dispatchers to the workers through Redis, in parcels:
// ids only, in one list a pool.
//
// It promises no more than speed. A parcel may be lost, repeated or taken by a worker that dies:
// the ledger decides what runs, and the dispatcher's sweeper sends again what nobody started. So
// nothing here acknowledges, retries or keeps what was taken.
package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Parcel is some attempts of one claim and one task, for one pool.
type Parcel struct {
	Pool     string `json:"-"`
	ID       string `json:"id"`
	Task     string `json:"task"` // "": the ledger says
	Attempts []Ref  `json:"attempts"`
}

// ID is the id of a claim's n-th parcel, sent for the resend-th time.
func ID(epoch string, batch int64, n, resend int32) string {
	return fmt.Sprintf("%s-%d-%d-%d", epoch, batch, n, resend)
}

// Ref names one attempt of one call. In JSON it is [call, attempt].
type Ref struct {
	CallID  int64
	Attempt int32
}

// MarshalJSON writes [call, attempt].
func (r Ref) MarshalJSON() ([]byte, error) {
	data := strconv.AppendInt([]byte{'['}, r.CallID, 10)
	data = strconv.AppendInt(append(data, ','), int64(r.Attempt), 10)
	return append(data, ']'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Ref) UnmarshalJSON(data []byte) error {
	inner, opened := bytes.CutPrefix(data, []byte{'['})
	inner, closed := bytes.CutSuffix(inner, []byte{']'})
	callID, attempt, two := bytes.Cut(inner, []byte{','})
	if !opened || !closed || !two {
		return fmt.Errorf("%q is not [call, attempt]", data)
	}
	id, err := strconv.ParseInt(string(callID), 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(string(attempt), 10, 32)
	if err != nil {
		return err
	}
	*r = Ref{CallID: id, Attempt: int32(n)}
	return nil
}

// life is how long a pool's list outlives its last parcel: what nobody took by then was sent
// elsewhere long ago.
const life = 24 * time.Hour

// Send hands parcels over, in one round trip. After an error they may be there all the same.
func Send(ctx context.Context, client redis.UniversalClient, parcels ...Parcel) error {
	byPool := map[string][]any{}
	for _, p := range parcels {
		data, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("write parcel %s: %w", p.ID, err)
		}
		byPool[p.Pool] = append(byPool[p.Pool], data)
	}
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for pool, list := range byPool {
			pipe.RPush(ctx, Key(pool), list...)
			pipe.Expire(ctx, Key(pool), life)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("send %d parcels: %w", len(parcels), err)
	}
	return nil
}

// TakeWait is how long Take waits for a parcel: whole seconds, or go-redis rounds them up.
const TakeWait = time.Second

// ErrUnreadable marks a parcel that was taken and cannot be read.
var ErrUnreadable = errors.New("unreadable parcel")

// Take takes the pool's oldest parcel, of which there is none when ok is false. It does not stop
// when ctx is cancelled, for a parcel taken meanwhile would be lost until it is sent again: it
// returns within TakeWait, while Redis answers.
func Take(ctx context.Context, client redis.UniversalClient, pool string) (parcel Parcel, ok bool, err error) {
	answer, err := client.BLPop(context.WithoutCancel(ctx), TakeWait, Key(pool)).Result() // key and element
	switch {
	case errors.Is(err, redis.Nil):
		return Parcel{}, false, nil
	case err != nil:
		return Parcel{}, false, fmt.Errorf("take a parcel: %w", err)
	}
	parcel.Pool = pool
	if err := json.Unmarshal([]byte(answer[1]), &parcel); err != nil {
		return Parcel{}, false, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return parcel, true, nil
}

// Waiting are the ids of the parcels that nobody has taken yet. Its cost follows their number,
// which the dispatchers keep to what the workers can take up soon.
func Waiting(ctx context.Context, client redis.UniversalClient, pool string) (map[string]bool, error) {
	list, err := client.LRange(ctx, Key(pool), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("look up the parcels of pool %s: %w", pool, err)
	}
	ids := make(map[string]bool, len(list))
	for _, data := range list {
		var p Parcel
		if json.Unmarshal([]byte(data), &p) == nil {
			ids[p.ID] = true
		}
	}
	return ids, nil
}

// Key is the Redis key of a pool's list.
func Key(pool string) string { return "callq:" + pool }

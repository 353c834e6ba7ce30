package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// missing is what may have been given out of the limit that nobody knows of, as the claim has it, of the key that is
// shown; nil: nothing that may still count.
func (l *Limit) missing(ctx context.Context, db ledger.DB) (*limit.Missing, error) {
	m := limit.MissingAt(l.rate(), l.MayArrive, l.KnownAt, l.Now, 0)
	if m == nil || l.KnownAt == nil {
		return m, nil
	}
	m.Former = l.Former
	key := ""
	if l.Key != nil {
		key = *l.Key
	}
	known, err := policy.Known(ctx, db, []string{l.Name}, []string{key}, []time.Time{l.rate().KnownSince(*l.KnownAt)})
	if err != nil {
		return nil, err
	}
	m.Known = known[0] - l.KnownLess
	return m, nil
}

// noteMissing says how many units count as used for that, and until when.
func (l *Limit) noteMissing(use limit.Use, room int64) {
	m := use.Missing
	use.Missing = nil
	l.Missing, l.MissingUntil = use.Room(l.Now, 0)-room, new(l.rate().Passed(m.Until, 0))
	if l.State == "open" && m.Known <= 0 && l.Shape.Algorithm != limit.TokenBucket {
		l.State, l.ShutUntil = "shut: what it has used may be missing", l.MissingUntil
	}
}

func (l Limit) missingText() string {
	return fmt.Sprintf("%d units that may be missing and count as used until %s", l.Missing, Instant(l.MissingUntil))
}

func (l Limit) alsoMissing() string {
	if l.Missing == 0 {
		return ""
	}
	return "; besides there are " + l.missingText()
}

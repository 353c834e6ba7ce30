package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/budget"
)

var errRedisAway = errors.New("no answer from Redis, which is asked again soon")

// ask asks Redis, and notes whether it answers. While it does not, one draw at a time asks, so that the
// others need not wait for an answer that does not come.
func (b *budgets) ask(ctx context.Context, name string, rule budgetRule, n int64, maxWait time.Duration) (budget.Grant, error) {
	if !b.mayAsk(name) {
		return budget.Grant{}, errRedisAway
	}
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	type answer struct {
		grant budget.Grant
		err   error
	}
	// The client may not heed contexts. What it is granted after that is used by nobody.
	answered := make(chan answer, 1)
	go func() {
		grant, err := budget.Draw(bounded, b.redis, name, rule.Rule, n, maxWait)
		answered <- answer{grant, err}
	}()
	var got answer
	select {
	case got = <-answered:
	case <-bounded.Done():
		got.err = fmt.Errorf("no answer from Redis within %s", answerWithin)
	}
	b.note(ctx, name, rule, got.err)
	return got.grant, got.err
}

func (b *budgets) mayAsk(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, away := b.away[name]
	if away && time.Now().Before(at) {
		return false
	}
	if away {
		b.away[name] = time.Now().Add(answerWithin + askAgain)
	}
	return true
}

// note notes whether Redis answered, and logs when that changes.
func (b *budgets) note(ctx context.Context, name string, rule budgetRule, err error) {
	b.mu.Lock()
	_, away := b.away[name]
	switch {
	case err == nil:
		delete(b.away, name)
	case ctx.Err() == nil:
		b.away[name] = time.Now().Add(askAgain)
	case away: // it was the draw that ended: let another ask
		b.away[name] = time.Now()
	}
	b.mu.Unlock()
	switch {
	case err == nil && away:
		b.log.InfoContext(ctx, "draws on the budget counted again", "budget", name)
	case err != nil && !away && ctx.Err() == nil:
		b.log.WarnContext(ctx, "Redis did not answer draws on the budget", "budget", name, "draws", does(rule), "err", err)
	}
}

func does(rule budgetRule) string {
	if rule.open {
		return "go through uncounted"
	}
	return "wait"
}

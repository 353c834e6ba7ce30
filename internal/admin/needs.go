package admin

import (
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/words"
)

// needs are the budgets of which a call that waits needs units. What is free of them, Redis knows.
func (r *reader) needs(call *callqueue.Record) []Budget {
	if call.Status != callqueue.StatusNew && call.Status != callqueue.StatusError {
		return nil
	}
	budgets := slices.DeleteFunc(r.budgets(), func(b Budget) bool { return b.NeededBy[call.Queue] == 0 })
	for i := range budgets {
		budgets[i].Asker.Queue, budgets[i].Asker.Key = call.Queue, call.Key
	}
	return budgets
}

// Short adds the budgets that lack units for the call to its reasons, once Redis was asked.
func (w *Why) Short() {
	for _, b := range w.Needs {
		n := b.NeededBy[w.Queue]
		text := fmt.Sprintf("each call of queue %s needs %d of budget %s, of which ", w.Queue, n, b.Name)
		switch {
		case b.Free == nil && b.OnOutage == "open" && b.Fix == "":
			continue
		case b.Free == nil:
			text += "nothing is known: " + b.Unknown
		case *b.Free-b.Promised >= n:
			continue
		default:
			text += fmt.Sprintf("%d %s free and %d of these promised; they suffice in about %s", *b.Free, words.Verb(*b.Free, "is", "are"), b.Promised, b.Until.Round(100*time.Millisecond))
		}
		if len(w.Reasons) == 1 && w.Reasons[0].Code == "next" {
			w.Reasons = nil
		}
		w.Reasons = append(w.Reasons, Reason{Code: "budget_short", Text: text})
		w.StartsAt, w.Because = nil, "unknown: "+text // the forecast knows limits alone
	}
}

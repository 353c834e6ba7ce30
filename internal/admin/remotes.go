package admin

import (
	"fmt"
	"time"

	"github.com/callq/callq/internal/words"
)

// LimitRemote is what the API says of its own limit, in its newest answer within a day; of a limit per key, of the key that is shown.
// Nil: it does not say.
type LimitRemote struct {
	RemoteLimit     *int64     `json:"remote_limit" db:"-"`
	RemoteRemaining *int64     `json:"remote_remaining" db:"-"`
	RemoteReset     *time.Time `json:"remote_reset" db:"-"` // no later than the limit's retry_after
	Lowered         *int64     `json:"lowered" db:"-"`      // what may be used until then; nil: no less than the rate
}

// remote is a row of call_remotes.
type remote struct {
	Name      string     `db:"limit_name"`
	Key       string     `db:"key"`
	Most      *int64     `db:"most"`
	Remaining *int64     `db:"remaining"`
	ResetAt   *time.Time `db:"reset_at"`
	Lowered   *int64     `db:"lowered"`
}

// addRemotes adds what APIs say to limits, each with the key that is shown.
func (r *reader) addRemotes(limits []Limit) {
	names, keys := make([]string, len(limits)), make([]string, len(limits))
	of := map[string]*Limit{}
	for i := range limits {
		names[i], keys[i] = limits[i].Name, limits[i].key
		of[limits[i].Name] = &limits[i]
	}
	for _, m := range list[remote](r, "read what APIs say", remotesSQL, names, keys) {
		of[m.Name].LimitRemote = LimitRemote{m.Most, m.Remaining, m.ResetAt, m.Lowered}
	}
}

const remotesSQL = `
SELECT r.limit_name, r.key, r.most, r.remaining, r.reset_at, CASE WHEN r.reset_at > clock_timestamp() THEN r.lowered END AS lowered
FROM unnest($1::text[], $2::text[]) AS a (name, key)
JOIN callq.call_remotes r ON r.limit_name = a.name AND r.key = a.key
WHERE r.answered_at > clock_timestamp() - interval '1 day'`

// remains is what the API has left; nil: it does not say, or its limit was reset since.
func (l Limit) remains() *int64 {
	if l.RemoteReset != nil && !l.RemoteReset.After(l.now) {
		return nil
	}
	return l.RemoteRemaining
}

// RemoteText returns what the API says; empty: nothing.
func (l Limit) RemoteText() string {
	left, most := l.RemoteRemaining, l.RemoteLimit
	is := l.remains() != nil
	text := ""
	switch {
	case left != nil && is:
		text = fmt.Sprintf("the API says: %s %s", ofAll(*left, most), words.Verb(*left, "remains", "remain"))
	case left != nil:
		text = fmt.Sprintf("the API said: %s remained", ofAll(*left, most))
	case most != nil:
		return fmt.Sprintf("the API says: %d in all", *most)
	default:
		return ""
	}
	if l.RemoteReset != nil {
		text += ", until " + Instant(l.RemoteReset)
	}
	if l.Lowered != nil {
		text += fmt.Sprintf("; at most %d %s used until then", *l.Lowered, words.Verb(*l.Lowered, "is", "are"))
	}
	return text
}

func ofAll(left int64, most *int64) string {
	if most == nil {
		return fmt.Sprint(left)
	}
	return fmt.Sprintf("%d of %d", left, *most)
}

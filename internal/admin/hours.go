package admin

import (
	"context"
	"strings"
	"time"

	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/ledger"
)

// opening says whether a queue is open. The zero opening belongs to a queue without hours.
type opening struct {
	texts   []string
	outside bool
	until   time.Time // in the hours' zone; zero: it stays so
	unknown bool      // a zone of theirs is not known to this machine
}

func openingAt(texts []string, now time.Time) opening {
	o := opening{texts: texts}
	all, err := hours.ParseAll(texts)
	if err != nil {
		o.unknown = true
		return o
	}
	open, until := all.Open(now)
	o.outside, o.until = !open, until
	return o
}

// at is when it changes, for JSON.
func (o opening) at() *time.Time {
	if o.until.IsZero() {
		return nil
	}
	at := o.until.UTC()
	return &at
}

// holdsUp reports whether calls wait for the queue to open, or may wait: the zone is not known here.
func (o opening) holdsUp() bool { return o.outside || o.unknown }

func (o opening) String() string {
	switch {
	case o.unknown:
		return "open in hours whose zone is not known here: " + o.rule()
	case o.outside && o.until.IsZero():
		return "outside its hours, which are not open together within a year: " + o.rule()
	case o.outside:
		return "outside its hours until " + hours.When(o.until)
	case o.until.IsZero():
		return "open"
	}
	return "open until " + hours.When(o.until)
}

func (o opening) rule() string { return strings.Join(o.texts, " and ") }

// readHours returns the hours of the queues that have some.
func readHours(ctx context.Context, db ledger.DB) (map[string][]string, error) {
	rows, err := collect[struct {
		Name  string
		Hours []string
	}](ctx, db, "read queues", hoursSQL)
	hours := map[string][]string{}
	for _, r := range rows {
		hours[r.Name] = r.Hours
	}
	return hours, err
}

const hoursSQL = `SELECT name, hours FROM call_queues WHERE hours <> '{}'`

package dispatcher

import (
	"fmt"
	"time"

	"github.com/callq/callq/internal/hours"
)

// openings are hours that were read, by their text: to read a zone opens a file.
type openings map[string]hours.Hours

// of are a queue's hours. It fails where a zone is not known to this machine, though it was where they were
// published: then other dispatchers claim, for nobody may guess.
func (o openings) of(texts []string) (hours.All, error) {
	var all hours.All
	for _, text := range texts {
		h, known := o[text]
		if !known {
			var err error
			if h, err = hours.Parse(text); err != nil {
				return nil, fmt.Errorf("read the queue's hours: %w", err)
			}
			if len(o) >= 1000 { // after so many reloads
				clear(o)
			}
			o[text] = h
		}
		all = append(all, h)
	}
	return all, nil
}

// closedFor is how long a queue that is outside its hours need not be looked at; 0: it is open, until closes,
// which is nil where it stays so.
func closedFor(all hours.All, now time.Time) (wait time.Duration, closes *time.Time) {
	open, until := all.Open(now)
	switch {
	case open && until.IsZero():
		return 0, nil
	case open:
		return 0, &until
	case until.IsZero():
		return lookLater, nil
	}
	return min(until.Sub(now), lookLater), nil
}

package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrBusy: another transaction has locked the row of a call or of its attempt.
var ErrBusy = errors.New("another transaction holds the call's row")

// Busy reports whether a statement gave up waiting for a lock.
func Busy(err error) bool { return hasCode(err, "55P03") } // lock_not_available

// BadData reports whether a statement failed because of a value in one of its rows, which Postgres does not take or which is
// too large for it.
func BadData(err error) bool { return hasCode(err, "22", "54") }

// Spoiled reports whether a statement may succeed without one of its rows. That row has bad data, or breaks a trigger or a
// constraint that somebody added, or is corrupt where it is stored.
func Spoiled(err error) bool { return BadData(err) || hasCode(err, "23", "P0", "XX") }

func hasCode(err error, prefixes ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(pg.Code, p) })
}

// Reason is an error's message without Postgres's code, fit for a row that users read.
func Reason(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Message
	}
	return err.Error()
}

// Apart runs a statement on a list. If one entry may have spoiled it, Apart runs it on each half of the list, and so on; an
// entry that fails alone goes to bad. Any other error ends it. run must leave nothing behind where it fails.
func Apart[T any](list []T, run func([]T) error, bad func(T, error)) error {
	if len(list) == 0 {
		return nil
	}
	err := run(list)
	switch half := len(list) / 2; {
	case !Spoiled(err):
		return err
	case half == 0:
		bad(list[0], err)
		return nil
	default:
		if err := Apart(list[:half], run, bad); err != nil {
			return err
		}
		return Apart(list[half:], run, bad)
	}
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

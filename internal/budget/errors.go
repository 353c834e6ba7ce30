package budget

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// LastingError is what every further question gets, too, until Fix is done: so it is no outage. Nothing was drawn.
type LastingError struct {
	Fix string
	err error
}

func (e *LastingError) Error() string { return fmt.Sprintf("%v: %s", e.err, e.Fix) }
func (e *LastingError) Unwrap() error { return e.err }

// Lasting reports whether an error does not pass by itself.
func Lasting(err error) bool {
	_, lasting := errors.AsType[*LastingError](err)
	return lasting
}

// judged makes a LastingError of what does not pass. Whatever is not listed may pass: Redis may be full, load its data or fail over.
// Redis 6 and scripts put words of their own before the code.
func judged(err error) error {
	if _, answered := errors.AsType[redis.Error](err); !answered || Lasting(err) {
		return err
	}
	const (
		allow = "give callq's login in Redis the right to run scripts on callq:budget:*"
		login = "correct the user and password in the URL of the budgets' Redis"
		clear = "something else wrote to the budget's key in Redis: delete that key"
	)
	for _, l := range [...]struct{ says, fix string }{
		{"NOPERM ", allow},
		{"The user executing the script can't ", allow},
		{"NOAUTH ", login},
		{"unauthenticated ", login}, // said of what is long
		{"WRONGPASS ", login},
		{"WRONGTYPE ", clear},
		{notKept, clear},
		{"MOVED ", "set redis.cluster: true, or name several nodes in redis.budgets_url: this Redis is one node of a cluster"},
		{"CROSSSLOT ", "on a cluster, budgets that are drawn on at once must have one name up to the first slash"},
	} {
		if strings.Contains(err.Error(), l.says) {
			return &LastingError{l.fix, err}
		}
	}
	return err
}

const notKept = "no budget is kept there" // says budget.lua

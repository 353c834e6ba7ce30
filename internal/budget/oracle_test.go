package budget_test

import (
	"fmt"
	"math/big"
	"time"

	"github.com/callq/callq/internal/budget"
)

// granted is what a draw was granted, in true time.
type granted struct {
	at    time.Duration
	units int64
}

// over finds a span in which more was granted than burst + rate x t. Grants are in the order of their
// moments. A bucket that is filled to the brim at first, and may not run dry, says it for all spans at once;
// its arithmetic is exact.
func over(rule budget.Rule, grants []granted) error {
	level, brim, last := new(big.Rat), big.NewRat(rule.Burst, 1), time.Duration(0)
	for i, g := range grants {
		if i == 0 {
			level.Set(brim)
		} else {
			level.Add(level, gain(rule, g.at-last))
		}
		if g.at < last {
			return fmt.Errorf("grant %d at %s comes before the one at %s", i, g.at, last)
		}
		if level.Cmp(brim) > 0 {
			level.Set(brim)
		}
		last = g.at
		if level.Sub(level, big.NewRat(g.units, 1)).Sign() < 0 {
			return fmt.Errorf("at %s, grant %d of %d, %s units too many", g.at, i, len(grants), new(big.Rat).Neg(level).FloatString(9))
		}
	}
	return nil
}

func gain(rule budget.Rule, d time.Duration) *big.Rat {
	return new(big.Rat).Mul(big.NewRat(int64(d), 1), big.NewRat(rule.Rate.Units, int64(rule.Rate.Window)))
}

// exact is the bucket in rational numbers: by when a draw would have been granted that lost nothing to rounding.
type exact struct {
	rule  budget.Rule
	level *big.Rat // at from
	from  *big.Rat // nanoseconds
}

func newExact(rule budget.Rule, now time.Duration) *exact {
	return &exact{rule: rule, level: big.NewRat(rule.Burst, 1), from: big.NewRat(int64(now), 1)}
}

// draw says when n units may be used; taken: they are taken.
func (e *exact) draw(now time.Duration, n int64, taken bool) (at *big.Rat) {
	perNano := big.NewRat(e.rule.Rate.Units, int64(e.rule.Rate.Window))
	from, level := new(big.Rat).Set(e.from), new(big.Rat).Set(e.level)
	if passed := new(big.Rat).Sub(big.NewRat(int64(now), 1), from); passed.Sign() > 0 {
		level.Add(level, passed.Mul(passed, perNano))
		from.SetInt64(int64(now))
	}
	if brim := big.NewRat(e.rule.Burst, 1); level.Cmp(brim) > 0 {
		level.Set(brim)
	}
	want := big.NewRat(n, 1)
	if lacks := new(big.Rat).Sub(want, level); lacks.Sign() > 0 {
		from.Add(from, lacks.Quo(lacks, perNano))
		level.Set(want)
	}
	if taken {
		e.from, e.level = from, level.Sub(level, want)
	}
	return from
}

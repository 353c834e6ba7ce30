package config

import "github.com/callq/callq/internal/budget"

// checkBudgets checks what neither rate nor burst shows by itself.
func (l *loader) checkBudgets(c *Config) {
	for name, b := range c.Budgets {
		path := "budgets." + name
		if b.Rate.Units == 0 || b.Burst == 0 {
			continue // that was said
		}
		if err := (budget.Rule{Rate: b.Rate, Burst: int64(b.Burst)}).Check(); err != nil {
			at := l.from[path+".burst"]
			if at.rank == rankDefault {
				at = l.from[path+".rate"]
			}
			l.fail(at, path, err.Error(), "a smaller burst or a higher rate")
		}
	}
}

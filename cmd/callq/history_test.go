package main

import "testing"

// What a limit did in the last hour, drawn and as JSON.
func TestLimitsHistory(t *testing.T) {
	t.Parallel()
	w := published(t)
	has(t, w.do("limits", "history", "stripe"), "Nothing was used of it, and nothing waited for it.")
	w.exec(`INSERT INTO callq.call_limit_history (minute, limit_name, used, capacity, waiting, refused, next_unit, closed)
		SELECT date_trunc('minute', now()) - m * interval '1 min', 'stripe', used, 100, waiting, refused, next, closed::jsonb
		FROM (VALUES (9, 40, NULL, NULL, NULL, NULL), (5, 100, 7, 2, 90000, '{"refused": 10}')) AS h (m, used, waiting, refused, next, closed)`)
	has(t, w.do("limits", "history", "stripe"), "at most 100 of 100 a minute", "at most 7\n", "at most 2 a minute", "at most 90 s for the next unit", "closed for 10 seconds: refused")
	has(t, w.do("limits", "history", "stripe", "-o", "json"), `"waiting": 0`, `"next_unit_ms": null`, `"refused": 2`, `"next_unit_ms": 90000`)
}

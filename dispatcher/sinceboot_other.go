//go:build !linux && !darwin

package dispatcher

import "time"

func sinceBoot() time.Time { return time.Now() }

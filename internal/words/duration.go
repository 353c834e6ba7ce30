package words

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ParseDuration reads Go's durations and those with days and weeks: 90s, 1d12h, 2w. None is negative.
func ParseDuration(s string) (time.Duration, error) {
	inHours := regexp.MustCompile(`[\d.]+[dw]`).ReplaceAllStringFunc(s, func(part string) string {
		n, err := strconv.ParseFloat(part[:len(part)-1], 64)
		if err != nil {
			return part // which is then refused
		}
		return fmt.Sprintf("%fh", n*map[byte]float64{'d': 24, 'w': 7 * 24}[part[len(part)-1]])
	})
	d, err := time.ParseDuration(inHours)
	if err != nil || strings.ContainsAny(s, "+-") {
		return d, fmt.Errorf("%.200q is not a duration: write numbers with units, such as 30s, 1h30m, 7d, 1d12h (ms s m h d w)", s)
	}
	return d, nil
}

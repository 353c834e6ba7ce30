package tasks

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Pool names the pool of the workers that handle these tasks and carry these labels. Workers
// that handle just http and have no labels are the pool "http".
func Pool(tasks, labels []string) string {
	tasks, labels = slices.Sorted(slices.Values(tasks)), slices.Sorted(slices.Values(labels))
	if len(tasks) == 1 && len(labels) == 0 && tasks[0] == HTTP {
		return HTTP
	}
	sum := sha256.Sum256([]byte(strings.Join(tasks, "\x00") + "\x01" + strings.Join(labels, "\x00")))
	return hex.EncodeToString(sum[:6])
}

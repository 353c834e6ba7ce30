package handoff

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// HTTP is the pool of workers that handle just the task http and have no labels, and the name of that task.
const HTTP = "http"

// Pool names the pool of the workers that handle these tasks and carry these labels.
func Pool(tasks, labels []string) string {
	tasks, labels = slices.Sorted(slices.Values(tasks)), slices.Sorted(slices.Values(labels))
	if len(labels) == 0 && slices.Equal(tasks, []string{HTTP}) {
		return HTTP
	}
	sum := sha256.Sum256([]byte(strings.Join(tasks, "\x00") + "\x01" + strings.Join(labels, "\x00")))
	return hex.EncodeToString(sum[:6])
}

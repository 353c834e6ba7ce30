package tasks

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// The form of what travels through Redis, shared with the dispatcher: ids only, for an Asynq
// task is shown in UIs, rewritten by Asynq, and may be lost or repeated at any time.

// TypeAttempts is the type of callq's Asynq tasks.
const TypeAttempts = "callq:attempts"

// Ref names one attempt of one call.
type Ref struct {
	CallID  int64
	Attempt int32
}

// MarshalJSON writes a Ref as [call, attempt].
func (r Ref) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d]", r.CallID, r.Attempt), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Ref) UnmarshalJSON(data []byte) error {
	var pair [2]int64
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	*r = Ref{CallID: pair[0], Attempt: int32(pair[1])}
	return nil
}

type payload struct {
	Attempts []Ref `json:"attempts"`
}

// EncodePayload is the payload of an Asynq task that carries these attempts.
func EncodePayload(refs []Ref) []byte {
	data, err := json.Marshal(payload{refs})
	if err != nil {
		panic(err) // cannot happen: numbers only
	}
	return data
}

// DecodePayload reads what EncodePayload wrote.
func DecodePayload(data []byte) ([]Ref, error) {
	var p payload
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("read the Asynq task's payload: %w", err)
	}
	return p.Attempts, nil
}

// TaskID is the id of an Asynq task: the n-th of a claim's batch, sent for the resend-th time.
// The same hand-over always has the same id, so that Asynq refuses a repetition.
func TaskID(epoch string, batch int64, n, resend int32) string {
	return fmt.Sprintf("%s-%d-%d-%d", epoch, batch, n, resend)
}

// AsynqQueue is the Asynq queue of a pool.
func AsynqQueue(pool string) string { return "callq:" + pool }

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

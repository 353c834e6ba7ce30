package tasks

import (
	"context"
	"errors"
	"strconv"

	"github.com/hibiken/asynq"
)

// Asynq makes a handler of an [asynq.Handler], or of a whole [asynq.ServeMux] with its middleware, so that handlers
// written for Asynq run under callq's limits:
//
//	for _, task := range []string{"email:welcome", "email:reminder"} {
//		worker.Handle(task, tasks.Asynq(mux))
//	}
//
// The Asynq task's type is the call's task, its payload the call's data, which is JSON. Its headers are Callq-Call-Id,
// Callq-Attempt (1 for the first), Callq-Queue and Callq-Key. The context ends at the call's timeout, and [CallFrom]
// gives the call. Nil is done; an error is retried by the queue's policy; one that wraps [asynq.SkipRetry]
// or [asynq.RevokeTask] is [Permanent]; [RetryAfter], [Snooze] and [NotSent] mean what they do elsewhere.
//
// What only Asynq itself could give is missing: GetTaskID, GetRetryCount, GetMaxRetry and GetQueueName find nothing, and the
// task's ResultWriter is nil. The headers and [Call.SetResult] stand in for them.
func Asynq(handler asynq.Handler) Handler {
	return func(ctx context.Context, call *Call) error {
		err := handler.ProcessTask(context.WithValue(ctx, callKey{}, call), asynq.NewTaskWithHeaders(call.Task, call.Data, map[string]string{
			"Callq-Call-Id": strconv.FormatInt(call.ID, 10),
			"Callq-Attempt": strconv.Itoa(call.Attempt),
			"Callq-Queue":   call.Queue,
			"Callq-Key":     call.Key,
		}))
		if errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
			return Permanent(err)
		}
		return err
	}
}

type callKey struct{}

// CallFrom is the call that a handler runs which was given to [Asynq]; false elsewhere.
func CallFrom(ctx context.Context) (*Call, bool) {
	call, ok := ctx.Value(callKey{}).(*Call)
	return call, ok
}

package tasks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/callq/callq/tasks"
)

// A handler that sends through the call's client, so that its limits may have anchor: start.
func ExampleHandler() {
	var handler tasks.Handler = func(ctx context.Context, call *tasks.Call) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/mails", bytes.NewReader(call.Data))
		if err != nil {
			return tasks.Permanent(err)
		}
		answer, err := call.Client.Do(r)
		if err != nil {
			return err // retried; where the request was too late to be sent it says so itself
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the API answered %s", answer.Status)
		}
		return nil
	}
	_ = handler
}

// The producer estimates tokens, and the answer says how many there were.
func ExampleCall_Settle() {
	var handler tasks.Handler = func(ctx context.Context, call *tasks.Call) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://llm.example.com/v1/chat", bytes.NewReader(call.Data))
		if err != nil {
			return tasks.Permanent(err)
		}
		answer, err := call.Client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var said struct {
			Usage struct {
				Total int64 `json:"total_tokens"`
			} `json:"usage"`
		}
		if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
			return err
		}
		return call.Settle(said.Usage.Total)
	}
	_ = handler
}

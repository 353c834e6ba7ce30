// A producer with pgx alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Data is the request of a call of the task http.
type Data struct {
	Method string `json:"method,omitempty"`
	URL    string `json:"url"`
	JSON   any    `json:"json,omitempty"`
}

var api = os.Getenv("API_URL")

func data(path string) Data {
	return Data{Method: "POST", URL: api + path, JSON: map[string]int{"order": 4711}}
}

const (
	insertSQL = `INSERT INTO call_queue (queue, key, unique_key, call_data) VALUES ('payments', 'acct_42', $1, $2) RETURNING id`
	ignoreSQL = `INSERT INTO call_queue (queue, key, unique_key, call_data) VALUES ('payments', 'acct_42', $1, $2)
ON CONFLICT (coalesce(queue, 'default'), unique_key) WHERE unique_key IS NOT NULL DO NOTHING RETURNING id`
	findSQL = `SELECT id FROM call_queue WHERE queue = 'payments' AND unique_key = $1`
)

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	said, err := step(ctx, conn, os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

func step(ctx context.Context, conn *pgx.Conn, args []string) (any, error) {
	switch args[0] {
	case "create":
		var id int64
		err := conn.QueryRow(ctx, `INSERT INTO call_queue (queue, key, unique_key, call_data) VALUES ($1, $2, $3, $4) RETURNING id`,
			"payments", "acct_42", "order-4711", Data{Method: "POST", URL: api + "/create", JSON: map[string]int{"order": 4711}}).Scan(&id)
		return map[string]any{"id": id}, err

	case "bulk":
		calls := pgx.CopyFromSlice(1000, func(i int) ([]any, error) {
			return []any{"payments", "acct_42", data(fmt.Sprintf("/bulk/%d", i))}, nil
		})
		_, err := conn.CopyFrom(ctx, pgx.Identifier{"call_queue"}, []string{"queue", "key", "call_data"}, calls)
		return struct{}{}, err

	case "transaction":
		insert := func(path string, and error) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertSQL, nil, data(path))
				return errors.Join(err, and)
			})
		}
		if err := insert("/committed", nil); err != nil {
			return nil, err
		}
		errNotPaid := errors.New("not paid")
		if err := insert("/rolled-back", errNotPaid); !errors.Is(err, errNotPaid) {
			return nil, err
		}
		return struct{}{}, nil

	case "duplicates":
		batch := &pgx.Batch{} // a transaction
		for i, key := range []string{"dup-1", "dup-1", "dup-2"} {
			batch.Queue(ignoreSQL, key, data(fmt.Sprintf("/duplicates/%d", i+1)))
		}
		answers := conn.SendBatch(ctx, batch)
		ids := make([]int64, batch.Len())
		for i := range ids {
			if err := answers.QueryRow().Scan(&ids[i]); err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return nil, err
			}
		}
		return map[string]any{"ids": ids}, answers.Close()

	case "upsert":
		var ids [2]int64
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for i := range ids {
				err := tx.QueryRow(ctx, ignoreSQL, "up-1", data(fmt.Sprintf("/upsert/%d", i+1))).Scan(&ids[i])
				if errors.Is(err, pgx.ErrNoRows) { // it is asked for already
					err = tx.QueryRow(ctx, findSQL, "up-1").Scan(&ids[i])
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		return map[string]any{"ids": ids}, err

	case "read":
		var status string
		var result json.RawMessage
		err := conn.QueryRow(ctx, `SELECT c.status, a.result FROM call_queue c JOIN call_attempts a ON a.call_id = c.id
WHERE c.id = $1 ORDER BY a.attempt DESC LIMIT 1`, args[1]).Scan(&status, &result)
		return map[string]any{"status": status, "result": result}, err

	case "stale":
		var id int64
		var status string
		if err := conn.QueryRow(ctx, `SELECT id, status FROM call_queue WHERE id = $1`, args[1]).Scan(&id, &status); err != nil {
			return nil, err
		}
		fmt.Printf("{\"loaded\": %d}\n", id)
		fmt.Scanln()
		_, err := conn.Exec(ctx, `UPDATE call_queue SET priority = 9, status = $2 WHERE id = $1`, id, status)
		return map[string]any{"sqlstate": sqlstate(err)}, nil

	case "diff":
		return map[string]any{"skip": "it has no models"}, nil

	case "version":
		info, _ := debug.ReadBuildInfo()
		for _, m := range info.Deps {
			if m.Path == "github.com/jackc/pgx/v5" {
				return map[string]any{"version": m.Version}, nil
			}
		}
	}
	return nil, fmt.Errorf("no such step: %v", args)
}

func sqlstate(err error) string {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &pg):
		return pg.Code
	}
	return err.Error()
}

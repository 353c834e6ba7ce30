// A producer with ent on pgx. The package gen is made by go generate where this is built.
package main

//go:generate go tool ent generate --feature sql/upsert --target ./gen ./schema

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"producer/gen"
	"producer/gen/attempt"
	"producer/gen/call"
	"producer/schema"
	"regexp"
	"runtime/debug"
	"strconv"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
)

var api = os.Getenv("API_URL")

func create(client *gen.Client, path, uniqueKey string) *gen.CallCreate {
	create := client.Call.Create().SetQueue("payments").SetKey("acct_42").SetCallData(schema.Data{
		Method: "POST", URL: api + path, JSON: map[string]int{"order": 4711},
	})
	if uniqueKey != "" {
		create.SetUniqueKey(uniqueKey)
	}
	return create
}

func main() {
	pool, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	client := gen.NewClient(gen.Driver(entsql.OpenDB(dialect.Postgres, pool)))
	said, err := step(context.Background(), client, os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

func step(ctx context.Context, client *gen.Client, args []string) (any, error) {
	switch args[0] {
	case "create":
		c, err := client.Call.Create().SetQueue("payments").SetKey("acct_42").SetUniqueKey("order-4711").SetCallData(schema.Data{
			Method: "POST", URL: api + "/create", JSON: map[string]int{"order": 4711},
		}).Save(ctx)
		if err != nil {
			return nil, err
		}
		return map[string]any{"id": c.ID}, nil

	case "bulk":
		creates := make([]*gen.CallCreate, 1000)
		for i := range creates {
			creates[i] = create(client, fmt.Sprintf("/bulk/%d", i), "")
		}
		calls, err := client.Call.CreateBulk(creates...).Save(ctx)
		var ids []int64
		for _, c := range calls {
			ids = append(ids, c.ID)
		}
		return map[string]any{"ids": ids}, err

	case "transaction":
		for _, path := range []string{"/committed", "/rolled-back"} {
			tx, err := client.Tx(ctx)
			if err != nil {
				return nil, err
			}
			if err := create(tx.Client(), path, "").Exec(ctx); err != nil {
				return nil, errors.Join(err, tx.Rollback())
			}
			end := tx.Commit
			if path == "/rolled-back" { // not paid
				end = tx.Rollback
			}
			if err := end(); err != nil {
				return nil, err
			}
		}
		return struct{}{}, nil

	case "duplicates":
		var ids []int64
		for i, key := range []string{"dup-1", "dup-1", "dup-2"} {
			c := create(client, fmt.Sprintf("/duplicates/%d", i+1), key)
			id, err := c.OnConflict(entsql.DoNothing()).ID(ctx)
			if errors.Is(err, sql.ErrNoRows) { // a duplicate
				id, err = 0, nil
			}
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return map[string]any{"ids": ids}, nil

	case "upsert":
		tx, err := client.Tx(ctx)
		if err != nil {
			return nil, err
		}
		var ids []int64
		for _, path := range []string{"/upsert/1", "/upsert/2"} {
			id, err := create(tx.Client(), path, "up-1").OnConflict(entsql.DoNothing()).ID(ctx)
			if errors.Is(err, sql.ErrNoRows) { // it is asked for already
				id, err = tx.Call.Query().Where(call.Queue("payments"), call.UniqueKey("up-1")).OnlyID(ctx)
			}
			if err != nil {
				return nil, errors.Join(err, tx.Rollback())
			}
			ids = append(ids, id)
		}
		return map[string]any{"ids": ids}, tx.Commit()

	case "read":
		id, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return nil, err
		}
		made, err := client.Call.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		last, err := client.Attempt.Query().Where(attempt.CallID(id)).Order(gen.Desc(attempt.FieldAttempt)).First(ctx)
		if err != nil {
			return nil, err
		}
		return map[string]any{"status": made.Status, "result": last.Result}, nil

	case "stale":
		id, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return nil, err
		}
		made, err := client.Call.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		fmt.Printf("{\"loaded\": %d}\n", made.ID)
		fmt.Scanln()
		return map[string]any{"sqlstate": sqlstate(made.Update().SetPriority(9).Exec(ctx))}, nil

	case "diff": // what Schema.Create would run
		var out bytes.Buffer
		if err := client.Schema.WriteTo(ctx, &out); err != nil {
			return nil, err
		}
		return map[string]any{"tables": regexp.MustCompile(`(?m)^(CREATE|ALTER|DROP) .*`).FindAllString(out.String(), -1)}, nil

	case "version":
		info, _ := debug.ReadBuildInfo()
		for _, m := range info.Deps {
			if m.Path == "entgo.io/ent" {
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

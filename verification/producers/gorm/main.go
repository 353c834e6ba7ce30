// A producer with GORM.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
)

// Call is what a producer may set. An empty string or a nil is callq's default. A zero is not: hence pointers.
type Call struct {
	ID          int64
	Queue       string
	Task        string
	Key         string
	CallData    Data `gorm:"serializer:json"`
	Cost        *int64
	Priority    *int16
	RunAt       *time.Time
	ExpiresAt   *time.Time
	UniqueKey   string
	MaxAttempts *int32
}

func (Call) TableName() string { return "call_queue" }

// Data is the request of a call of the task http.
type Data struct {
	Method string `json:"method,omitempty"`
	URL    string `json:"url"`
	JSON   any    `json:"json,omitempty"`
}

// Made is a call to read, with what became of it.
type Made struct {
	Call
	Status   string
	Attempts int
	Results  []Attempt `gorm:"foreignKey:CallID"`
}

// Attempt is one of its attempts.
type Attempt struct {
	CallID  int64 `gorm:"primaryKey"`
	Attempt int   `gorm:"primaryKey"`
	Outcome string
	Result  json.RawMessage `gorm:"type:jsonb"`
}

func (Attempt) TableName() string { return "call_attempts" }

var api = os.Getenv("API_URL")

func call(path, uniqueKey string) *Call {
	return &Call{Queue: "payments", Key: "acct_42", UniqueKey: uniqueKey, CallData: Data{
		Method: "POST", URL: api + path, JSON: map[string]int{"order": 4711},
	}}
}

func main() {
	db, err := gorm.Open(postgres.Open(os.Getenv("DATABASE_URL")), &gorm.Config{Logger: logger.Default.LogMode(logger.Silent)})
	if err != nil {
		log.Fatal(err)
	}
	said, err := step(db, os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

func step(db *gorm.DB, args []string) (any, error) {
	switch args[0] {
	case "create":
		c := &Call{Queue: "payments", Key: "acct_42", UniqueKey: "order-4711", CallData: Data{
			Method: "POST", URL: api + "/create", JSON: map[string]int{"order": 4711},
		}}
		err := db.Create(c).Error
		return map[string]any{"id": c.ID}, err

	case "bulk":
		calls := make([]*Call, 1000)
		for i := range calls {
			calls[i] = call(fmt.Sprintf("/bulk/%d", i), "")
		}
		err := db.Create(calls).Error
		return map[string]any{"ids": ids(calls)}, err

	case "transaction":
		err := db.Transaction(func(tx *gorm.DB) error { return tx.Create(call("/committed", "")).Error })
		if err != nil {
			return nil, err
		}
		errNotPaid := errors.New("not paid")
		err = db.Transaction(func(tx *gorm.DB) error {
			if err := tx.Create(call("/rolled-back", "")).Error; err != nil {
				return err
			}
			return errNotPaid
		})
		if errors.Is(err, errNotPaid) {
			err = nil
		}
		return struct{}{}, err

	case "duplicates":
		calls := []*Call{call("/duplicates/1", "dup-1"), call("/duplicates/2", "dup-1"), call("/duplicates/3", "dup-2")}
		err := db.Clauses(clause.OnConflict{DoNothing: true}).Create(calls).Error
		return map[string]any{"ids": ids(calls)}, err

	case "upsert":
		calls := []*Call{call("/upsert/1", "up-1"), call("/upsert/2", "up-1")}
		err := db.Transaction(func(tx *gorm.DB) error {
			for _, c := range calls {
				err := tx.Clauses(clause.OnConflict{DoNothing: true}).Create(c).Error
				if err == nil && c.ID == 0 { // it is asked for already
					err = tx.Select("id").Where(&Call{Queue: c.Queue, UniqueKey: c.UniqueKey}).Take(c).Error
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		return map[string]any{"ids": ids(calls)}, err

	case "read":
		var made Made
		err := db.Table("call_queue").Preload("Results", func(db *gorm.DB) *gorm.DB { return db.Order("attempt") }).
			First(&made, args[1]).Error
		if err != nil {
			return nil, err
		}
		return map[string]any{"status": made.Status, "result": made.Results[len(made.Results)-1].Result}, nil

	case "stale":
		var made Made
		if err := db.Table("call_queue").First(&made, args[1]).Error; err != nil {
			return nil, err
		}
		fmt.Printf("{\"loaded\": %d}\n", made.ID)
		fmt.Scanln()
		made.Priority = new(int16(9))
		return map[string]any{"sqlstate": sqlstate(db.Table("call_queue").Omit("Results").Save(&made).Error)}, nil

	case "diff":
		return map[string]any{"skip": "AutoMigrate has no dry form, and callq migrates its tables itself"}, nil

	case "version":
		info, _ := debug.ReadBuildInfo()
		for _, m := range info.Deps {
			if m.Path == "gorm.io/gorm" {
				return map[string]any{"version": m.Version}, nil
			}
		}
	}
	return nil, fmt.Errorf("no such step: %v", args)
}

func ids(calls []*Call) (ids []int64) {
	for _, c := range calls {
		ids = append(ids, c.ID)
	}
	return ids
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

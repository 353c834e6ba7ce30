//go:build !linux

// Package alarm wakes a goroutine at a moment.
package alarm

import "time"

// Alarm wakes a goroutine at a moment.
type Alarm struct{}

// New makes an Alarm, to be closed.
func New() Alarm { return Alarm{} }

// Sleep sleeps until a moment.
func (Alarm) Sleep(until time.Time) { time.Sleep(time.Until(until)) }

// Close frees what it holds.
func (Alarm) Close() {}

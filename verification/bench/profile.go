package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
)

// profiled runs do, and writes its CPU profile to path unless that is empty.
func profiled(path string, do func() error) (err error) {
	if path == "" {
		return do()
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := pprof.StartCPUProfile(file); err != nil {
		return fmt.Errorf("start the profile: %w", err)
	}
	defer pprof.StopCPUProfile()
	return do()
}

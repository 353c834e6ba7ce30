//go:build !linux

package tasks

import (
	"errors"
	"net"
)

func unacked(*net.TCPConn) (int, error) { return 0, errors.ErrUnsupported }
